/* SPDX-License-Identifier: MIT OR GPL-2.0 */
/*
 * The levers: RM calls that decide who runs. They sleep, spin under the
 * driver's locks and take 0.25 to 5 ms each, so only the turn thread and the
 * call that makes a channel schedulable use them.
 */
#ifndef CKM_LEVER_H
#define CKM_LEVER_H

#include <linux/types.h>

struct ckm_gpu;
struct ckm_slot;

/* Freeze or thaw every graphics/compute channel of the slots in @mask; returns
 * the slots for which the driver accepted it (a slot without channels counts).
 * Caller holds gpu->lever_lock.
 */
u32 ckm_lever_freeze(struct ckm_gpu *gpu, u32 mask, bool freeze);

/* Freeze a channel of a slot, or those of a TSG (@object is either's handle), and
 * restart the runlist if that is what it takes. Caller holds gpu->lever_lock.
 */
void ckm_lever_freeze_object(struct ckm_gpu *gpu, u32 turn_slot, u32 client, u32 object);

/* Timeslice of every TSG of a slot, 0: the driver's default; returns success.
 * Takes effect with ckm_lever_commit(), which returns whether the driver took it.
 * It is for the slots in @mask; @vain_ns is the time that went by in calls which the
 * driver refused. Caller holds gpu->lever_lock.
 */
bool ckm_lever_timeslice(struct ckm_gpu *gpu, u32 slot, u32 timeslice_us);
bool ckm_lever_commit(struct ckm_gpu *gpu, u32 mask, u64 *vain_ns);

/* Whether a freeze or thaw takes effect with ckm_lever_commit() only. */
bool ckm_lever_needs_restart(const struct ckm_gpu *gpu);

/* Percentile (0..100) of the latest calls. Sleeps; caller holds gpu->lever_lock. */
u64 ckm_lever_latency_ns(const struct ckm_gpu *gpu, u32 percentile);

#endif
