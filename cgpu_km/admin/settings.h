/* SPDX-License-Identifier: MIT OR GPL-2.0-only */
/*
 * The settings of a GPU and of a container's slots, from /proc and from generic netlink.
 * A call sets all its values or none.
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
	u64 value[CGPU_G_COUNT];	/* by CGPU_G_* */
};

#define CKM_SLOT_SETTABLE	(BIT(CGPU_S_LIMIT) | BIT(CGPU_S_WEIGHT) | BIT(CGPU_S_HIGHPRIO) | \
				 BIT(CGPU_S_CEILING) | BIT(CGPU_S_HOST_LIMIT))

struct ckm_slot_values {
	struct ckm_slot *slot;
	u32 given;			/* BIT(CGPU_S_*) of CKM_SLOT_SETTABLE */
	u64 value[CGPU_S_COUNT];	/* by CGPU_S_* */
};

/**
 * ckm_gpu_set() - set values of a GPU, all of them or none
 * @gpu: the GPU
 * @values: which, and to what; slice_us in microseconds, 0: derived from the control's
 *	latency again; default_memsize in bytes, 0: that of all GPUs; overcommit and
 *	prio_ratio in percent
 * @why: on an error, the invalid value and its range, or NULL
 *
 * Context: Process; sleeps. Takes gpu->lock, and gpu->events.lock afterwards.
 * Return: 0; -EINVAL out of range; -EBUSY max_inst or overcommit below what is in use;
 * -EOPNOTSUPP a policy without a working control; -ENODEV without a core; -ENOMEM.
 */
int ckm_gpu_set(struct ckm_gpu *gpu, const struct ckm_gpu_values *values, const char **why);

/**
 * ckm_slots_set() - set values of slots, all of them or none, and send CHANGED
 * @values: which slots of one container, each on another GPU, and to what; limits in bytes
 * @count: number of slots; with more than one the caller holds ckm_lock
 * @why: on an error, the invalid value and its range, or NULL
 *
 * Context: Process; sleeps. Takes the gpu->lock of each slot, and send_lock of notify.c
 * afterwards.
 * Return: 0; -EINVAL out of range; -ENOSPC the sum of weights or limits would exceed
 * the GPU's; -ENODEV without a core; -ENOMEM.
 */
int ckm_slots_set(struct ckm_slot_values *values, u32 count, const char **why);

#endif
