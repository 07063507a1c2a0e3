// SPDX-License-Identifier: MIT OR GPL-2.0-only
/* (state, event) -> a call of the driver, a wait, or a plan. */
#include "sched_step.h"

#include "sched_at_work.h"

#define AGAIN_NS	75000u	/* to the next plan, if one is over when it is made */
#define CALLS		4u	/* of a plan at most */

/* Slots of which timeslices were set that no restart put in force yet. */
static u32 unrestarted(const struct cgpu_step *s)
{
	return s->called | s->plan.unrestarted_mask;
}

static bool needs_restart(const struct cgpu_step *s)
{
	const struct cgpu_sched_plan *plan = &s->plan;

	return (plan->restart && (unrestarted(s) & ~s->ack.timeslice_more)) ||
	       (s->restarts && (plan->freeze_mask | plan->thaw_mask));
}

static u32 mask_of(const struct cgpu_step *s, u32 kind)
{
	switch (kind) {
	case CGPU_STEP_TIMESLICE:
		return s->plan.timeslice_mask;
	case CGPU_STEP_THAW:
		return s->plan.thaw_mask;
	case CGPU_STEP_FREEZE:
		return s->plan.freeze_mask;
	default:
		return needs_restart(s) ? s->plan.run_mask | s->plan.freeze_mask : 0;
	}
}

/* False: the plan has no more calls. */
static bool next_call(struct cgpu_step *s)
{
	static const u8 order[2][CALLS] = {
		{ CGPU_STEP_TIMESLICE, CGPU_STEP_FREEZE, CGPU_STEP_THAW, CGPU_STEP_RESTART },
		{ CGPU_STEP_TIMESLICE, CGPU_STEP_THAW, CGPU_STEP_FREEZE, CGPU_STEP_RESTART },
	};

	while (s->next < CALLS) {
		s->kind = order[s->plan.thaw_first != 0][s->next++];
		s->mask = mask_of(s, s->kind);
		if (s->mask)
			return true;
	}
	s->mask = 0;
	return false;
}

static void wait(struct cgpu_step *s, u64 now_ns)
{
	s->kind = CGPU_STEP_WAIT;
	s->poll_ns = s->plan.poll_ns;
	s->until_ns = s->plan.until_ns;
	if (s->until_ns <= now_ns)
		s->until_ns = now_ns + AGAIN_NS;
	else if (s->until_ns != CGPU_NEVER_NS)
		s->until_ns += s->plan.late_ns;
}

static void plan(struct cgpu_sched *t, struct cgpu_step *s, const struct cgpu_step_event *event)
{
	memset(s, 0, sizeof(*s));
	s->restarts = event->restarts;
	cgpu_sched_next(t, event->now_ns, &s->plan);
	if (!next_call(s))
		wait(s, event->now_ns);
}

static void note_call(struct cgpu_step *s, const struct cgpu_step_event *event)
{
	struct cgpu_sched_ack *ack = &s->ack;

	switch (s->kind) {
	case CGPU_STEP_TIMESLICE:
		ack->timeslice_mask = event->done;
		ack->timeslice_more = event->more;
		s->called = event->called & s->plan.timeslice_mask;
		/* Setting timeslices is not part of the duration of a freeze or thaw. */
		ack->begin_ns = event->end_ns;
		return;
	case CGPU_STEP_THAW:
		s->thawed = event->done;
		ack->part_thawed_mask = event->part & s->plan.thaw_mask & ~event->done;
		ack->thawed_ns = event->end_ns;
		break;
	case CGPU_STEP_FREEZE:
		s->frozen = event->done;
		ack->frozen_ns = event->end_ns;
		break;
	case CGPU_STEP_RESTART:
		s->refused_ns = event->refused_ns;
		/* Like any call, in its middle. */
		if (event->done)
			ack->restarted_ns = (event->begin_ns + event->end_ns) / 2;
		return;
	}
	if (!ack->begin_ns)
		ack->begin_ns = event->begin_ns;
}

static void acknowledge(struct cgpu_sched *t, struct cgpu_check *l, struct cgpu_step *s, u64 now_ns)
{
	const struct cgpu_sched_plan *plan = &s->plan;
	struct cgpu_sched_ack *ack = &s->ack;
	bool needed = needs_restart(s), committed = ack->restarted_ns || !needed;

	/* If the driver refused the restart that they need, no call took effect: repeat all
	 * of them. If there was no channel to call it on, nothing can run, and the calls
	 * count as done.
	 */
	if (!committed && s->refused_ns) {
		s->frozen = 0;
		s->thawed = 0;
		ack->part_thawed_mask = 0;
		ack->timeslice_mask = 0;
	}
	if (!needed || (!committed && s->refused_ns))
		ack->unrestarted_mask = unrestarted(s);
	if (!plan->freeze_mask)
		ack->frozen_ns = ack->begin_ns;
	if (!plan->thaw_mask)
		ack->thawed_ns = ack->begin_ns;
	/* If the GPU needs the restart, nothing took effect until it succeeded: shift the
	 * times by the time spent in refused attempts.
	 */
	if (s->restarts) {
		ack->begin_ns += s->refused_ns;
		ack->frozen_ns += s->refused_ns;
		ack->thawed_ns += s->refused_ns;
	}
	ack->run_mask = (plan->run_mask | (plan->freeze_mask & ~s->frozen)) &
			~(plan->thaw_mask & ~(s->thawed | ack->part_thawed_mask));
	cgpu_sched_ack(t, plan, ack);
	if (l)
		cgpu_check_acted(l, t, plan, ack, committed, now_ns);
}

static void done(struct cgpu_sched *t, struct cgpu_check *l, struct cgpu_step *s,
		 const struct cgpu_step_event *event)
{
	if (!s->mask)
		return;
	note_call(s, event);
	if (next_call(s))
		return;
	acknowledge(t, l, s, event->now_ns);
	/* The end of the turn depends on the acknowledged times: plan again. */
	s->kind = CGPU_STEP_PLAN;
}

static void read(struct cgpu_sched *t, struct cgpu_step *s, const struct cgpu_step_event *event)
{
	bool changed = cgpu_sched_set_run_state(t, event->known, event->busy, event->now_ns);

	if (cgpu_at_work_note(t, event->tsgs, event->now_ns))
		changed = true;
	if (changed && !s->mask)
		s->kind = CGPU_STEP_PLAN;
}

/**
 * cgpu_sched_step() - what the scheduler's thread does next
 * @t: the scheduler
 * @l: its effect check, NULL: none is kept
 * @s: the thread's record: zeros, or as the last step left it
 * @event: what happened since; fields that its kind does not name are not read
 *
 * An answer while no call is under way changes nothing. A plan while one is under way gives it up
 * without an acknowledgement: the next plan asks for the same calls again.
 *
 * Context: Caller serialises.
 */
void cgpu_sched_step(struct cgpu_sched *t, struct cgpu_check *l, struct cgpu_step *s,
		     const struct cgpu_step_event *event)
{
	switch (event->kind) {
	case CGPU_STEP_EVENT_PLAN:
		plan(t, s, event);
		break;
	case CGPU_STEP_EVENT_DONE:
		done(t, l, s, event);
		break;
	case CGPU_STEP_EVENT_READ:
		read(t, s, event);
		break;
	}
}
