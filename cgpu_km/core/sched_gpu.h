/* SPDX-License-Identifier: MIT OR GPL-2.0-only */
/*
 * The scheduler of one GPU: which slots may run, until when, by which control.
 *
 * (state, event, now) -> plan. The shell carries the plan out with driver calls that take
 * 0.25 to 5 ms, as sched_step.h asks for them, which passes the times at which each part took
 * effect to cgpu_sched_ack().
 * Deficits are computed from those times, never from the plan.
 *
 * Caller serialises (the GPU's mutex). now_ns is monotonic. None allocates, sleeps, reads a clock.
 */
#ifndef CGPU_CORE_SCHED_GPU_H
#define CGPU_CORE_SCHED_GPU_H

#include "sched_state.h"

/* Controls that were found to work, in cgpu_sched_set_controls(). */
#define CGPU_CTRL_FREEZE	1u	/* freeze and thaw whole containers */
#define CGPU_CTRL_TIMESLICE	2u	/* a timeslice per TSG */

#define CGPU_RETRY_DOUBLINGS	6u	/* a failed call is repeated after 1 ms, then 2, up to 64 */
#define CGPU_SWITCH_NS		140000u	/* between an A100's 85 us, computed, and an H100's 205 us, measured */
#define CGPU_SWITCH_MAX_NS	10000000ull
#define CGPU_TIMESLICE_MAX_US	100000ull
#define CGPU_TIMESLICE_US	2048u	/* measured on an H100; its source has 1024 */

struct cgpu_sched_plan {
	u64 until_ns;		/* call cgpu_sched_next() again then; CGPU_NEVER_NS: only on an event */
	u64 late_ns;		/* so much later, when nothing calls for it sooner */
	u64 poll_ns;		/* read the run state so long after each reading: half to 1.5, drawn; 0: no */
	u32 run_mask;		/* exactly these slots may run */
	u32 freeze_mask;	/* calls needed to get there from what was acknowledged */
	u32 thaw_mask;
	u32 timeslice_mask;	/* slots whose timeslice must be (re)set to timeslice_us[] */
	u32 unrestarted_mask;	/* of these, those that were set before, without a restart since */
	u32 restart;		/* 1: restart the runlist once a timeslice was set; 0: a later plan does */
	u32 thaw_first;		/* 1: thaw, then freeze (short overlap instead of a gap) */
	u32 curr;
	u32 timeslice_us[CGPU_SLOTS];	/* 0: the driver's own default */
};

struct cgpu_sched_ack {
	u64 begin_ns;		/* before the first freeze or thaw */
	u64 frozen_ns;		/* when the last freeze was acknowledged (begin_ns if none) */
	u64 thawed_ns;		/* when the last thaw was acknowledged (begin_ns if none) */
	u64 restarted_ns;	/* when the runlist was restarted after that; 0: it was not */
	u32 run_mask;		/* what is in force now; differs from the plan if a call failed */
	u32 timeslice_mask;	/* slots whose timeslice was set */
	u32 timeslice_more;	/* slots of which some TSGs have it: plan the rest again */
	u32 unrestarted_mask;	/* slots of which timeslices were set, and wait for a restart */
	u32 part_thawed_mask;	/* slots whose thaw failed, but some channels run: in run_mask too */
	u8 pad[4];
};

void cgpu_sched_init(struct cgpu_sched *t, u64 now_ns);

/* Admission. @weight > 0: granted if it fits; free_weight 0 -> granted weight 0 (documented; the
 * caller logs it); 0 < free < @weight -> -ENOSPC. -ENOSPC too when max_inst containers are there.
 * -EINVAL: weight 0 or > max_inst, cookie 0. -EEXIST: cookie present.
 */
int cgpu_sched_add(struct cgpu_sched *t, u64 cookie, u32 weight, u32 highprio,
		   u64 now_ns, u32 *slot, u32 *granted);
void cgpu_sched_del(struct cgpu_sched *t, u32 slot, u64 now_ns);

/* Changes are atomic at the next turn; an error changes nothing.
 * weight: 0..max_inst and the ceiling, -EINVAL; -ENOSPC if the sum would exceed max_inst.
 * ceiling: weight..max_inst or 0 (none), -EINVAL; burst only.
 * policy: -EINVAL out of range, -EOPNOTSUPP if its control does not work.
 * max_inst: -EINVAL out of range, -EBUSY below live containers or weights.
 * prio_ratio, slice_us: -EINVAL out of range. highprio: -EINVAL if not 0/1.
 */
int cgpu_sched_set_weight(struct cgpu_sched *t, u32 slot, u64 weight, u64 now_ns);
int cgpu_sched_set_ceiling(struct cgpu_sched *t, u32 slot, u64 ceiling, u64 now_ns);
int cgpu_sched_set_highprio(struct cgpu_sched *t, u32 slot, u64 highprio, u64 now_ns);
int cgpu_sched_set_policy(struct cgpu_sched *t, u64 policy, u64 now_ns);
int cgpu_sched_set_max_inst(struct cgpu_sched *t, u64 max_inst, u64 now_ns);
int cgpu_sched_set_prio_ratio(struct cgpu_sched *t, u64 prio_ratio, u64 now_ns);
int cgpu_sched_set_slice_us(struct cgpu_sched *t, u64 slice_us, u64 now_ns);
/* A policy whose control is disabled falls back to native. Returns the policy in force. */
u32 cgpu_sched_set_controls(struct cgpu_sched *t, u32 controls, u64 now_ns);

/* What this GPU needs, where it is known: a context switch, and the timeslice that the driver gives
 * a TSG. 0: what is assumed. -EINVAL: more than 10 ms, or 100.
 */
int cgpu_sched_set_costs(struct cgpu_sched *t, u64 switch_ns, u64 timeslice_us, u64 now_ns);

/* The shell looked whether the share moved when @control was used. From the first time that it did
 * not, no slot is reported as enforced. Freezing that three times in a row moved nothing is
 * ineffective: it is disabled as by cgpu_sched_set_controls(), which also enables it again.
 * Timeslices stay in use. Returns the policy in force.
 */
u32 cgpu_sched_control_moved(struct cgpu_sched *t, u32 control, u32 moved, u64 now_ns);

/* These are frozen out of turn from the next plan on, as with weight 0. */
void cgpu_sched_set_held(struct cgpu_sched *t, u32 mask, u64 now_ns);
/* 1: plans thaw every slot and reset every timeslice. Back to 0: those out of turn are frozen. */
void cgpu_sched_set_paused(struct cgpu_sched *t, u32 paused, u64 now_ns);

/* The container's live graphics/compute channels and TSGs changed. */
void cgpu_sched_set_channels(struct cgpu_sched *t, u32 slot, u32 channels, u32 tsgs, u64 now_ns);

/* The run-state source read the channels at @now_ns. @known: slots of which every
 * graphics/compute channel was read. @busy: those of @known with work. Slots outside
 * @known are in an unknown state and are scheduled as if they were busy.
 * Returns true if the plan in force no longer fits: call cgpu_sched_next() now.
 */
bool cgpu_sched_set_run_state(struct cgpu_sched *t, u32 known, u32 busy, u64 now_ns);

u32 cgpu_sched_free_weight(const struct cgpu_sched *t);
u32 cgpu_sched_instances(const struct cgpu_sched *t);

/* Must a channel that becomes schedulable now be frozen before its owner gets the answer? */
bool cgpu_sched_is_frozen(const struct cgpu_sched *t, u32 slot);
/* That freeze failed. No plan with calls may be under way. */
void cgpu_sched_freeze_failed(struct cgpu_sched *t, u32 slot, u64 now_ns);

/* Slice length from the measured median of the freeze control. */
u64 cgpu_sched_auto_slice_ns(u64 control_p50_ns);

/* What should be in force from now on. Idempotent until time passes or something changes. */
void cgpu_sched_next(struct cgpu_sched *t, u64 now_ns, struct cgpu_sched_plan *plan);
void cgpu_sched_ack(struct cgpu_sched *t, const struct cgpu_sched_plan *plan,
		    const struct cgpu_sched_ack *ack);

#endif
