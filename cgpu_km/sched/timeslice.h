/* SPDX-License-Identifier: MIT OR GPL-2.0-only */
/* The timeslices of TSGs: which one each has, and the calls that set them. */
#ifndef CKM_TIMESLICE_H
#define CKM_TIMESLICE_H

struct cgpu_sched_ack;
struct cgpu_sched_plan;
struct ckm_gpu;

/* Set the timeslices of @plan for the TSGs that have another one, in 16 calls at most. @ack gets the
 * slots whose TSGs all have it (timeslice_mask), and those that have more of them (timeslice_more).
 * For the others a call failed, or there is no memory; failed calls are recorded as events. They take
 * effect with ckm_ctrl_commit(). Caller holds gpu->ctrl_lock; takes gpu->lock. May sleep.
 */
void ckm_timeslices_set(struct ckm_gpu *gpu, const struct cgpu_sched_plan *plan,
			struct cgpu_sched_ack *ack);

#endif
