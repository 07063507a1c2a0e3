/* SPDX-License-Identifier: MIT OR GPL-2.0-only */
/* Which processes had channels that are gone by now. */
#ifndef CKM_GONE_H
#define CKM_GONE_H

#include <linux/types.h>

struct ckm_gpu;
struct ckm_slot;

#define CKM_GONE_LOW	1u	/* of a container without high priority */
#define CKM_GONE_HIGH	2u

/* A channel of @slot that process @pid made is gone. Of more than CKM_GONE_PIDS processes the one that is longest
 * gone is forgotten: each slot's own. Caller holds gpu->lock.
 */
void ckm_gone_note_locked(struct ckm_slot *slot, u32 pid);

/**
 * ckm_gone_look_locked() - in which containers @pid may have had channels that are gone
 * @gpu: the GPU
 * @pid: of a sample
 * @at_ns: when it was taken; monotonic
 * @but: sched_id of the slot in which it has channels now, not looked at; CGPU_NO_SLOT: it has none
 *
 * If processes that were there at @at_ns were forgotten, it may be one of them, if it has their place among
 * CKM_GONE_LOST. One without high priority is looked for among these only where nothing else is known of it: else a
 * container could hide its neighbours' work.
 * Caller holds gpu->lock.
 *
 * Return: CKM_GONE_*, or 0: of none.
 */
u32 ckm_gone_look_locked(const struct ckm_gpu *gpu, u32 pid, u64 at_ns, u32 but);

#endif
