// SPDX-License-Identifier: MIT OR GPL-2.0
/* (state, plan, when each part took effect) -> state. */
#include "sched_account.h"
#include "sched_debt.h"
#include "sched_failed.h"
#include "sched_resist.h"
#include "sched_rr.h"
#include "sched_gpu.h"

#define CHANNELS_PER_CALL	64u	/* what DISABLE_CHANNELS takes */

static void ack_timeslices(struct cgpu_sched *t, const struct cgpu_sched_plan *plan,
			   const struct cgpu_sched_ack *ack)
{
	u32 done = plan->timeslice_mask & ack->timeslice_mask & ~t->new_mask, i;

	for (i = 0; i < CGPU_SLOTS; i++) {
		u32 bit = 1u << i;

		if (!(done & bit))
			continue;
		if (t->slot[i].timeslice_us != plan->timeslice_us[i])
			t->slot[i].ts_changed_ns = t->last_ns;
		t->slot[i].timeslice_us = plan->timeslice_us[i];
		if (!(t->touched_mask & bit))
			t->ts_dirty_mask &= ~bit;
		if (plan->timeslice_us[i])
			t->timesliced |= bit;
		else
			t->timesliced &= ~bit;
	}
}

static u64 later_ns(u64 one_ns, u64 other_ns)
{
	return one_ns > other_ns ? one_ns : other_ns;
}

/* How many calls it took: one container's channels go in lists. Several are taken as one. */
static u32 lists(const struct cgpu_sched *t, u32 mask)
{
	u32 channels;

	if (!mask || (mask & (mask - 1)))
		return 1;
	channels = t->slot[__builtin_ctz(mask)].channels;
	return channels / CHANNELS_PER_CALL + (channels % CHANNELS_PER_CALL != 0);
}

/* A call takes effect in the middle. A container can run as soon as one of its lists is thawed,
 * until the last is frozen.
 */
static u64 thaw_ns(const struct cgpu_sched *t, u32 mask, u64 from_ns, u64 to_ns)
{
	return from_ns + (to_ns - from_ns) / (2 * lists(t, mask));
}

static u64 freeze_ns(const struct cgpu_sched *t, u32 mask, u64 from_ns, u64 to_ns)
{
	return to_ns - cgpu_resist_rest_ns(t, mask, (to_ns - from_ns) / lists(t, mask));
}

static void switch_freeze_first(struct cgpu_sched *t, const struct cgpu_sched_ack *ack,
				u32 in_force)
{
	u32 stopped = t->run_mask & ~in_force & t->opened_mask;
	u32 started = in_force & ~t->run_mask & t->opened_mask;

	cgpu_resist_note_thaw(t, started, (ack->thawed_ns - ack->frozen_ns) / lists(t, started));
	cgpu_resist_note(t, stopped, (ack->frozen_ns - ack->begin_ns) / lists(t, stopped));
	cgpu_sched_update(t, freeze_ns(t, stopped, ack->begin_ns, ack->frozen_ns));
	cgpu_sched_switch(t, t->run_mask & in_force);
	cgpu_sched_update(t, thaw_ns(t, started, ack->frozen_ns, ack->thawed_ns));
}

static void switch_thaw_first(struct cgpu_sched *t, const struct cgpu_sched_ack *ack,
			      u32 in_force)
{
	u32 before = t->run_mask, stopped = before & ~in_force & t->opened_mask;
	u32 started = in_force & ~before & t->opened_mask;
	u64 took_ns = (ack->frozen_ns - ack->thawed_ns) / lists(t, stopped);

	cgpu_resist_note_thaw(t, started, (ack->thawed_ns - ack->begin_ns) / lists(t, started));
	cgpu_resist_note(t, stopped, took_ns);
	/* The kernel of one that resists keeps the GPU from the others. */
	if (cgpu_resist_is_late(t, stopped, took_ns)) {
		cgpu_sched_update(t, freeze_ns(t, stopped, ack->thawed_ns, ack->frozen_ns));
		return;
	}
	cgpu_sched_update(t, thaw_ns(t, started, ack->begin_ns, ack->thawed_ns));
	cgpu_sched_switch(t, before | in_force);
	cgpu_account_overlap(t, before, in_force,
			     freeze_ns(t, stopped, ack->thawed_ns, ack->frozen_ns));
}

/* From what ran to @in_force, at the times the shell saw. */
static void switch_over(struct cgpu_sched *t, const struct cgpu_sched_ack *ack, u32 in_force)
{
	cgpu_sched_update(t, ack->begin_ns);
	cgpu_debt_spread(t, t->run_mask & ~in_force & t->opened_mask,
			 CGPU_DEBT_USUAL_SLICES * t->slice_ns);
	if (ack->frozen_ns <= ack->thawed_ns)
		switch_freeze_first(t, ack, in_force);
	else
		switch_thaw_first(t, ack, in_force);
	cgpu_sched_switch(t, in_force);
}

/**
 * cgpu_sched_ack() - the calls of a plan were made
 * @t: the scheduler
 * @plan: as cgpu_sched_next() gave it, no other plan in between
 * @ack: when each part took effect, and what is in force now
 *
 * If @ack differs from @plan, a call failed: the state of that container is unknown, and
 * the call for its next state is repeated after 1 ms, then 2, up to 64.
 *
 * A plan is acknowledged once: the same acknowledgement again, or one of a plan without calls,
 * changes nothing. Counted twice, a failed call would double the time until it is repeated.
 *
 * Context: Caller serialises. State may have changed since the plan was made.
 */
void cgpu_sched_ack(struct cgpu_sched *t, const struct cgpu_sched_plan *plan,
		    const struct cgpu_sched_ack *ack)
{
	u32 known = t->live_mask & ~t->new_mask;
	u32 called = (plan->freeze_mask | plan->thaw_mask) & known;
	u32 in_force = (ack->run_mask & known) | (t->run_mask & ~known);
	u32 failed = (ack->run_mask ^ plan->run_mask) & called;
	u32 ts_failed = plan->timeslice_mask & ~ack->timeslice_mask & known;

	if (!t->inflight)
		return;
	switch_over(t, ack, in_force);
	if (ack->restarted_ns)
		cgpu_account_restart(t, ack->restarted_ns);
	ack_timeslices(t, plan, ack);

	t->freeze_unknown_mask = (t->freeze_unknown_mask & ~called) | failed;
	t->ts_failed_mask = (t->ts_failed_mask & ~plan->timeslice_mask) | ts_failed;
	t->inflight = 0;
	cgpu_rr_planned(t);
	if (failed | ts_failed)
		cgpu_failed_count(t, failed, later_ns(ack->frozen_ns, ack->thawed_ns));
	else if (!(t->freeze_unknown_mask | t->ts_failed_mask))
		t->fails = 0;
}
