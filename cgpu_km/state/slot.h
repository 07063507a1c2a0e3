/* SPDX-License-Identifier: MIT OR GPL-2.0-only */
/* Adding a container's slot to a GPU and removing it. */
#ifndef CKM_SLOT_H
#define CKM_SLOT_H

#include <linux/types.h>

#include "core/nv_row.h"

struct ckm_gpu;
struct ckm_slot;

struct ckm_slot_request {
	u32 gpu;
	u32 weight;
	u64 limit_bytes;		/* 0: default_memsize */
	u32 highprio;
	u32 ceiling;			/* 0: none */
};

/**
 * ckm_slot_add() - admit a slot to its GPU
 * @slot: its ct and gpu are set; gets sched_id and granted_weight
 * @req: weight, limit, priority and ceiling
 * @cookie: of the container, not 0
 * @why: set to the reason of an error, a sentence
 *
 * Sleeps; takes gpu->lock; caller holds ckm_lock. After -ENOSPC the kernel log has a line with what each container
 * on the GPU holds.
 *
 * Return: 0. -EINVAL: limit, weight, priority or ceiling out of range. -ENOSPC: no memory, weight
 * or instance left on the GPU. Or another error of core/sched_config.c.
 */
int ckm_slot_add(struct ckm_slot *slot, const struct ckm_slot_request *req, u64 cookie,
		 const char **why);
/* Sleeps; takes gpu->lock. Only after ckm_slot_add() succeeded. */
void ckm_slot_remove(struct ckm_slot *slot);

/* The container was destroyed. What it does not use of its limit is free for other containers from now
 * on, and so is what goes later: a process elsewhere can hold a file of it for any time. Takes
 * gpu->lock. The second does it again after memory was given back; caller holds gpu->lock.
 */
void ckm_slot_end(struct ckm_slot *slot);
void ckm_slot_less_locked(struct ckm_slot *slot);

/* Pass the slot's numbers of channels and TSGs to the scheduler. Caller holds gpu->lock. */
void ckm_slot_channels_changed_locked(struct ckm_slot *slot);

/* What a context of the slot is charged now, in bytes. Each call counts as one context. Takes gpu->lock. */
u64 ckm_slot_context_bytes(struct ckm_slot *slot, enum cgpu_engine engine);

/* Limit and charged memory in bytes. Sleeps; takes gpu->lock. */
void ckm_slot_limits(struct ckm_slot *slot, u64 *limit, u64 *used);

/* Write what holds the card to @text, CKM_HOLDERS_MAX zeroed bytes: what each container uses, and what is left for others.
 * Caller holds gpu->lock.
 */
#define CKM_HOLDERS_MAX	800		/* a line of the kernel log holds about a thousand characters */
void ckm_slots_holders_locked(const struct ckm_gpu *gpu, char *text);

/* Bytes charged on the GPU, those of destroyed containers included. Caller holds gpu->lock. */
u64 ckm_slots_used_locked(const struct ckm_gpu *gpu);

#endif
