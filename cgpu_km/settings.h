/* SPDX-License-Identifier: MIT OR GPL-2.0 */
/*
 * What an administrator sets of a GPU and of a container's slots: the one way
 * for /proc and for generic netlink. All values of a call, or none.
 */
#ifndef CKM_SETTINGS_H
#define CKM_SETTINGS_H

#include <linux/bits.h>
#include <linux/types.h>

#include "uapi.h"

struct ckm_gpu;
struct ckm_slot;

#define CKM_GPU_SETTABLE	(BIT(CGPU_G_POLICY) | BIT(CGPU_G_MAX_INST) | \
				 BIT(CGPU_G_PRIO_RATIO) | BIT(CGPU_G_SLICE_US) | \
				 BIT(CGPU_G_UVM) | BIT(CGPU_G_DEFAULT_MEMSIZE) | \
				 BIT(CGPU_G_OVERCOMMIT))

struct ckm_gpu_values {
	u32 given;			/* BIT(CGPU_G_*) of CKM_GPU_SETTABLE */
	u64 value[CGPU_G_BORN + 1];	/* by CGPU_G_* */
};

struct ckm_slot_values {
	struct ckm_slot *slot;
	u32 given;			/* BIT(CGPU_S_*): LIMIT, WEIGHT, HIGHPRIO */
	u64 limit_bytes, weight, highprio;
};

/**
 * ckm_gpu_set() - set values of a GPU, all of them or none
 * @gpu: the GPU
 * @values: which, and to what; slice_us 0: chosen from the lever again;
 *	default_memsize in bytes, 0: that of all GPUs; overcommit in percent
 * @why: on an error, the value it is about and what it may be
 *
 * Context: Process. Takes gpu->lock.
 * Return: 0; -EINVAL out of range; -EBUSY max_inst or overcommit below what is
 * there; -EOPNOTSUPP a policy whose lever does not work; -ENODEV without a
 * core; -ENOMEM.
 */
int ckm_gpu_set(struct ckm_gpu *gpu, const struct ckm_gpu_values *values, const char **why);

/**
 * ckm_slots_set() - set values of slots, all of them or none
 * @values: which slots, each on another GPU, and to what
 * @count: how many; with more than one the caller holds ckm_lock
 * @why: on an error, the value it is about and what it may be
 *
 * Context: Process. Takes the gpu->lock of every slot.
 * Return: 0; -EINVAL out of range; -ENOSPC the sum of weights or limits would
 * be more than the GPU has; -ENODEV without a core; -ENOMEM.
 */
int ckm_slots_set(struct ckm_slot_values *values, u32 count, const char **why);

/* What a new slot gets where nobody says how much, bytes. Caller holds gpu->lock. */
u64 ckm_gpu_default_memsize_locked(struct ckm_gpu *gpu);

/* Whether a GPU whose other limits sum up to @others takes one more of @bytes.
 * Caller holds gpu->lock.
 */
bool ckm_gpu_has_room_locked(struct ckm_gpu *gpu, u64 others, u64 bytes);

#endif
