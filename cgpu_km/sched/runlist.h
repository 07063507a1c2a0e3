/* SPDX-License-Identifier: MIT OR GPL-2.0-only */
/*
 * Scheduling controls (`ctrl` in names): RM calls that influence which channels the
 * hardware runs. Each sleeps, spins under the driver's locks and takes 0.25 to 5 ms.
 * Therefore only the scheduler thread and the call that makes a channel schedulable use
 * them.
 */
#ifndef CKM_RUNLIST_H
#define CKM_RUNLIST_H

#include <linux/types.h>

#include "state/gpu.h"

/* Whether a freeze stops work on a video engine: the control works, and needs no restart of
 * runlists, which is made of graphics/compute's only. Takes gpu->lock.
 */
bool ckm_ctrl_freezes_video(struct ckm_gpu *gpu);

/* A control of the driver, with its latency noted. Returns its NV_STATUS. Caller holds
 * gpu->ctrl_lock. May sleep.
 */
u32 ckm_ctrl_timed(struct ckm_gpu *gpu, enum ckm_ctrl_kind kind, u32 client, u32 object, u32 cmd,
		   void *params, u32 size);

/**
 * ckm_ctrl_commit() - restart the runlist
 * @gpu: the GPU
 * @mask: slots for which it is done; a failure is recorded for the first of them
 * @failed_ns: set to the time spent in calls that the driver refused, 0: none was
 *
 * Caller holds gpu->ctrl_lock; takes gpu->lock.
 *
 * Return: true if a call succeeded; false also if there is no channel to call it on.
 */
bool ckm_ctrl_commit(struct ckm_gpu *gpu, u32 mask, u64 *failed_ns);

/* True if a freeze or thaw takes effect only with ckm_ctrl_commit(). No lock. */
bool ckm_ctrl_needs_restart(const struct ckm_gpu *gpu);

/* The driver is let go: forget what its calls usually took and its own timeslice. The next one may
 * be of another version. Takes gpu->ctrl_lock; may sleep.
 */
void ckm_ctrl_forget(struct ckm_gpu *gpu);

/* What the calls took, as of one time or of two next to each other. */
struct ckm_ctrl_figures {
	u64 calls, failed, max_us;
	u32 p50_us, p99_us;		/* of the latest calls; 0: there was none */
	u32 usual_us[CKM_CTRL_KINDS];
	u32 timeslice_us;		/* the driver's own; 0: not read */
};

/* No lock: a reader that waits, or is throttled by its cgroup, delays no hand-over. */
void ckm_ctrl_figures(const struct ckm_gpu *gpu, struct ckm_ctrl_figures *figures);

/* What a hand-over usually takes: a freeze, a thaw and, where it is needed, a restart. 0: not
 * known. Caller holds gpu->ctrl_lock.
 */
u64 ckm_ctrl_handover_ns(const struct ckm_gpu *gpu);

/* What a context switch takes, and where the figure is from: "set", by the administrator; "a100" or "h100", assumed
 * for the architecture of that card; "between" these two.
 */
struct ckm_switch_cost {
	u32 us;
	const char *source;
};

/* No lock. */
struct ckm_switch_cost ckm_ctrl_switch_cost(const struct ckm_gpu *gpu);

#endif
