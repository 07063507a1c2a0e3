/* SPDX-License-Identifier: MIT OR GPL-2.0-only */
/*
 * The scheduler's thread as a step machine: (state, event) -> what to do next.
 *
 * A thread steps with CGPU_STEP_EVENT_PLAN, does what the step says, and steps with the answer: at most
 * four calls of the driver, then CGPU_STEP_PLAN, from which it begins again, or a wait. The module's
 * thread drives it, cgpu simulate, conduct, a bench and the tests: docs/develop/scheduler-state.md.
 *
 * The record is the thread's own, zeroed before the first event. It is part of the shell's ABI: a
 * core that is swapped in during a wait goes on with it.
 *
 * Caller serialises the scheduler and its effect check. From CGPU_STEP_EVENT_PLAN to the step that is no
 * call none but the thread may step (the GPU's ctrl_lock). None allocates, sleeps, reads a clock.
 */
#ifndef CGPU_CORE_SCHED_STEP_H
#define CGPU_CORE_SCHED_STEP_H

#include "sched_check.h"
#include "sched_gpu.h"

/* What a step asks for. */
enum cgpu_step_kind {
	CGPU_STEP_PLAN		= 0,	/* step with CGPU_STEP_EVENT_PLAN, at once */
	CGPU_STEP_WAIT		= 1,	/* to @until_ns or a change of the state; meanwhile read each @poll_ns */
	CGPU_STEP_TIMESLICE	= 2,	/* set the timeslice of each TSG of @mask to @plan.timeslice_us[] */
	CGPU_STEP_THAW		= 3,	/* thaw @mask */
	CGPU_STEP_FREEZE	= 4,	/* freeze @mask */
	CGPU_STEP_RESTART	= 5,	/* restart the runlist, by a channel of @mask */
};

/* What happened since the last step. */
enum cgpu_step_event_kind {
	CGPU_STEP_EVENT_PLAN		= 0,	/* the thread begins, its wait is over, or the state changed */
	CGPU_STEP_EVENT_DONE		= 1,	/* the call that the step asked for was answered */
	CGPU_STEP_EVENT_READ		= 2,	/* the run state was read: @known, @busy, @tsgs */
};

struct cgpu_step_event {
	u64 now_ns;		/* monotonic */
	u64 begin_ns;		/* done: when the call began and ended */
	u64 end_ns;
	u64 refused_ns;		/* of a restart: the part of it in attempts that the driver refused; 0: none was */
	u32 kind;		/* enum cgpu_step_event_kind */
	u32 done;		/* done: slots for which all of it succeeded; of a restart: 1, or 0 */
	u32 more;		/* of timeslices: slots of which some TSGs have it, and none failed */
	u32 called;		/* of timeslices: slots of which a TSG had another one, and was set */
	u32 restarts;		/* plan: 1 if a freeze or thaw takes effect only with a restart */
	u32 known;		/* read */
	u32 busy;
	u32 part;		/* of a thaw: slots of which it succeeded for some channels only */
	u8 tsgs[CGPU_SLOTS];	/* read: how many TSGs of each have work, to 255; 0: not counted */
	u8 pad[7];
};

struct cgpu_step {
	u32 kind;		/* enum cgpu_step_kind */
	u32 mask;		/* slots of the call; 0: the step is no call */
	u64 until_ns;		/* of a wait; CGPU_NEVER_NS: only on a change */
	u64 poll_ns;		/* of a wait: as of the plan */
	struct cgpu_sched_plan plan;	/* being carried out, or in force */
	struct cgpu_sched_ack ack;	/* what is known of it so far */
	u64 refused_ns;		/* of its restart, as the event has it */
	u32 thawed;		/* slots for which that call succeeded */
	u32 frozen;		/* slots for which that one did */
	u32 next;		/* the call that follows, counted from 0 */
	u32 restarts;		/* as the event of the plan has it */
	u32 called;		/* as the event of the timeslices has it */
	u8 pad[4];
};

/* @l: NULL where no effect check is kept. */
void cgpu_sched_step(struct cgpu_sched *t, struct cgpu_check *l, struct cgpu_step *s,
		     const struct cgpu_step_event *event);

#endif
