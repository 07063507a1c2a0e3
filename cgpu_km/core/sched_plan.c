// SPDX-License-Identifier: MIT OR GPL-2.0-only
/* (state, now) -> plan -> acknowledgement -> state. */
#include "sched_account.h"
#include "policy.h"
#include "sched_at_work.h"
#include "sched_calls.h"
#include "sched_ceiling.h"
#include "sched_debt.h"
#include "sched_dense.h"
#include "sched_failed.h"
#include "sched_hold.h"
#include "sched_hwshare.h"
#include "sched_prio.h"
#include "sched_quick.h"
#include "sched_resist.h"
#include "sched_restart.h"
#include "sched_rr.h"
#include "sched_run_state.h"
#include "sched_gpu.h"

/* The input of a plan, computed once. */
struct plan_input {
	const struct cgpu_policy *policy;
	u32 live;
	u32 opened;
	u32 high;		/* those with highprio that may run at all */
	u32 low;		/* those without */
	u32 present;		/* of @high, those that have opened the GPU */
	u32 active;		/* of @present, those that keep @low from running, or may */
	u32 awake;		/* of @present, those not known to sleep */
	bool polled;		/* the run state matters to this plan */
	bool expected;		/* exclusive, and awake not long ago */
	bool exclusive;		/* run state of @present is known: alone while they have work */
	bool shares;		/* timeslices divide the GPU while the budget of @present is used up */
	bool quick;		/* gaps of @present are the hardware's to lend */
	u32 corunnable;		/* of @low, those that may run beside @active */
	u32 crowd;		/* the others of @low: they have turns to themselves */
	u32 waits;		/* those of @crowd that keep what is due to them until high priority sleeps */
	u32 corun;		/* of these, how many do at once */
	u32 restless;		/* those that sleep now and then */
	u32 ts_scale;		/* of the timeslices of @active, for all that run beside them */
	u64 left_ns;		/* how long the plan holds */
};

static void snapshot(struct cgpu_sched *t, struct plan_input *v)
{
	u32 contend;

	v->left_ns = CGPU_NEVER_NS;
	cgpu_hold_step(t, &v->left_ns);
	v->policy = cgpu_policy_get(t->policy);
	v->live = t->live_mask;
	v->opened = t->opened_mask;
	v->high = v->policy->limits ? t->weighted_mask[1] : 0;
	v->low = t->weighted_mask[0];
	v->present = v->high & v->opened;
	/* Fixed rounds lend nothing, without high priority nothing else depends on it, and one
	 * slot alone competes with none but its ceiling. Forget a run state that is not read any
	 * more: it would be too old to charge and lend by.
	 */
	contend = (v->high | v->low) & v->opened;
	v->polled = !t->paused &&
		    (((contend & (contend - 1)) &&
		      (v->present || (v->policy->slices && !v->policy->fixed_round))) ||
		     (contend & t->ceiling_mask));
	if (!v->polled)
		cgpu_run_state_forget(t, t->live_mask);
	/* Not under fixed rounds: their caps are promised beside high priority too. */
	v->exclusive = v->present && !(v->present & ~t->known_mask) &&
		       (t->controls & CGPU_CTRL_FREEZE) && !v->policy->fixed_round;
	v->awake = (v->exclusive ? v->present & ~t->asleep_mask : v->present) & ~t->capped_mask;
	v->quick = !v->exclusive || cgpu_quick_are(t);
	v->corunnable = v->present ? cgpu_prio_corunnable(t, v->low, v->quick ? CGPU_PRIO_CORUN_TSGS_MAX : 1) : v->low;
	v->crowd = v->low & ~v->corunnable;
	v->waits = 0;
	v->shares = false;
	v->corun = 1;
	v->ts_scale = 1;
	if (v->present && !v->exclusive) {
		u32 low = (v->corunnable | t->hold_mask) & ~v->high & v->opened;

		v->corun = v->policy->slices || !low ? 1 : cgpu_count(low);
		v->ts_scale = cgpu_prio_ts_scale(t, low);
	}
	v->active = v->exclusive ? cgpu_dense_mask(t, v->awake, &v->left_ns) : v->awake;
	v->expected = v->exclusive && cgpu_prio_is_expected(t, v->awake, &v->left_ns);
	if (v->exclusive && !v->active)
		v->active = cgpu_prio_probed(t, v->awake, &v->left_ns);
	if (v->expected)
		v->low &= ~cgpu_prio_kept_back(t, v->low, &v->left_ns);
}

static u32 with_slices(const struct cgpu_sched *t, const struct plan_input *v, u32 mask)
{
	u32 out = 0;

	for (; mask; mask &= mask - 1) {
		u32 i = __builtin_ctz(mask);

		if (v->policy->slices(&t->slot[i]))
			out |= 1u << i;
	}
	return out;
}

static u32 step(struct cgpu_sched *t, struct plan_input *v, u32 nr, u32 members, bool fixed)
{
	u64 left_ns = CGPU_NEVER_NS;
	u32 asleep = members & (cgpu_rr_lent(t, nr) | t->capped_mask | v->waits), run;

	if (fixed)
		run = cgpu_rr_step_fixed(t, nr, members, &left_ns);
	else
		run = cgpu_rr_step(t, nr, members & ~asleep, asleep, &left_ns);
	if (left_ns < v->left_ns)
		v->left_ns = left_ns;
	return run | (asleep & ~v->waits);
}

/* Policies 0 and 3. A different slot begins in each period: the last one is cut short if there
 * is less time than the caps, and gaps between turns are charged to no slot.
 */
static u32 run_under_quota(struct cgpu_sched *t, struct plan_input *v, u32 members, bool corun)
{
	members = cgpu_prio_under_quota(t, members & v->opened, corun, &v->left_ns);
	if (corun)
		members &= v->corunnable;
	if (members && t->rr[CGPU_RR_BACKGROUND].curr >= CGPU_SLOTS)
		cgpu_rr_begin_with(t, CGPU_RR_BACKGROUND, members,
				   t->prio_period_ns / CGPU_PRIO_PERIOD_NS);
	return step(t, v, CGPU_RR_BACKGROUND, members, false);
}

/* High priority is throttled: the others have the GPU until the period ends. */
static u32 run_low(struct cgpu_sched *t, struct plan_input *v)
{
	u32 members = with_slices(t, v, v->low);

	if (v->policy->fixed_round)
		return run_under_quota(t, v, members, false);
	return step(t, v, CGPU_RR_NORMAL, members, false);
}

/* No high-priority slot has opened the GPU. They are thawed all the same, so that the
 * first one runs at once, without a driver call.
 *
 * A fixed round stands where it is until the period is over: what is left of the caps may
 * be had in it. Those at its end would else come later each time one closes the GPU.
 */
static u32 run_alone(struct cgpu_sched *t, struct plan_input *v)
{
	u32 members = with_slices(t, v, v->low);

	/* The first to open the GPU need not wait for a call either. */
	if (!members)
		return v->high | v->low;
	if (v->policy->fixed_round && t->prio_period_ns)
		return v->high | run_low(t, v);
	return v->high | step(t, v, CGPU_RR_NORMAL, members, v->policy->fixed_round);
}

/* The high-priority ones take turns among themselves and the others, at
 * short timeslices, have what they leave.
 */
static u32 run_high(struct cgpu_sched *t, struct plan_input *v, bool bounded)
{
	u32 run = step(t, v, CGPU_RR_PRIO, v->present, false);
	u32 members = with_slices(t, v, v->low);

	if (!(t->controls & CGPU_CTRL_TIMESLICE) || !bounded)
		return run;
	if (v->policy->fixed_round)
		return run | run_under_quota(t, v, members, true);
	return run | step(t, v, CGPU_RR_BACKGROUND, members & v->corunnable, false);
}

/* The run state of the high-priority ones is known. The others run beside them at short timeslices:
 * the hardware gives high priority that wakes the GPU within one, and its gaps to the others. Where
 * the gaps are too short for that the others are frozen while it works. Once the budget is used up
 * the others run beside it at timeslices such that the budget grows again.
 */
static u32 run_exclusive(struct cgpu_sched *t, struct plan_input *v)
{
	u32 run, low, rivals;
	bool throttled;

	if (!v->awake)
		return v->policy->slices ? run_alone(t, v) : v->high | v->low;
	throttled = cgpu_prio_budget_used_up(t, &v->left_ns);
	if (!v->active && !throttled) {
		/* The timeslices divide it: a crowd would take all of the hardware's round. It runs in its turns while
		 * high priority sleeps. Where that is seldom for long enough, it waits without one.
		 */
		v->waits = v->quick ? v->crowd : 0;
		return (v->policy->slices ? run_alone(t, v) : v->high | v->low) & ~v->crowd;
	}
	run = v->policy->slices ? step(t, v, CGPU_RR_PRIO, v->present, false) : v->present;
	run |= v->high & ~v->opened;
	if (!throttled)
		return run;
	low = v->low;
	/* Or they sleep, or their ceilings keep them from it. */
	rivals = low & v->opened & ~(t->capped_mask | (t->asleep_mask & t->run_mask));
	if (rivals && v->policy->slices)
		low = step(t, v, CGPU_RR_BACKGROUND, with_slices(t, v, low), false);
	/* Timeslices divide the GPU between few TSGs; many take it in their round whatever theirs. */
	v->shares = !(low & v->opened & ~v->corunnable) &&
		    cgpu_prio_may_share(t, v->active, v->low & v->opened & ~cgpu_rr_naps(t));
	if (v->shares || !rivals)
		return run | low;
	return low | (run & t->asleep_mask);
}

static u32 decide(struct cgpu_sched *t, struct plan_input *v, u64 now_ns)
{
	bool bounded = v->awake && (v->low & v->opened), throttled;

	cgpu_rr_plan(t);
	/* Without the freeze control weight 0 cannot be enforced: enforce all limits or none. */
	if (!v->policy->limits || !(t->controls & CGPU_CTRL_FREEZE) || t->paused)
		return v->live;
	cgpu_prio_set_budgeted(t, v->exclusive);
	if (v->exclusive)
		return run_exclusive(t, v);
	if (bounded && v->policy->slices && !v->policy->fixed_round &&
	    cgpu_prio_is_held(t, v->awake, v->low & v->opened, &v->ts_scale, &v->left_ns)) {
		cgpu_prio_end_period(t);
		return run_high(t, v, bounded);
	}
	/* Each period leaves the others their part: beside high priority they get as little as can be. */
	if (bounded && !v->policy->fixed_round)
		v->ts_scale = CGPU_PRIO_TS_SCALE_MAX;
	throttled = cgpu_prio_is_throttled(t, bounded, now_ns, &v->left_ns);
	if (!v->policy->slices)
		return throttled ? v->low : v->corunnable | v->high;
	if (!v->active)
		return run_alone(t, v);
	return throttled ? run_low(t, v) : run_high(t, v, bounded);
}

/* Do TSGs of others than high priority run at once with one of @slot? */
static bool alternates(const struct cgpu_sched *t, const struct plan_input *v, u32 slot)
{
	u32 low = v->low & v->opened, beside = v->policy->slices ? low & v->restless : low;

	return cgpu_at_work(t, slot) > 1 || ((beside >> slot & 1) && (beside & (beside - 1)));
}

static u32 wanted_timeslice_us(const struct cgpu_sched *t, const struct plan_input *v,
			       u32 most_tsgs, u32 slot)
{
	if (t->paused)
		return 0;
	/* A crowd that has turns to itself needs no short ones: it would lose them to switching. */
	if (v->policy->slices && v->crowd >> slot & 1)
		return 0;
	if (v->exclusive && t->prio_throttled && v->expected &&
	    (v->shares || (!t->slot[slot].highprio && alternates(t, v, slot))))
		return cgpu_prio_shared_timeslice_us(t, slot);
	if (v->expected || (v->exclusive && t->slot[slot].highprio))
		return cgpu_prio_known_timeslice_us(t, slot, alternates(t, v, slot));
	if (v->present && !v->exclusive)
		return cgpu_prio_timeslice_us(t, slot, v->corun, v->ts_scale);
	if (v->policy->slices && !v->policy->fixed_round)
		return cgpu_rr_beside_timeslice_us(t, v->restless, slot);
	return v->policy->timeslice_us ? v->policy->timeslice_us(most_tsgs, t->slot[slot].tsgs) : 0;
}

/* Not high priority's own, nor a shorter one beside it or any by its ceiling. */
static u64 wait_ns(const struct cgpu_sched *t, const struct plan_input *v, u32 slot, u32 want_us)
{
	u32 have_us = t->slot[slot].timeslice_us;
	bool shorter = want_us && (!have_us || want_us < have_us);

	if (t->paused || (v->high >> slot & 1) || (v->present && (shorter || t->prio_throttled)))
		return 0;
	if (!v->policy->slices && (t->ts_dirty_mask >> slot & 1))
		return 0;
	return cgpu_rr_timeslice_wait_ns(t, slot);
}

static void plan_timeslices(const struct cgpu_sched *t, struct plan_input *v, u32 due,
			    struct cgpu_sched_plan *plan)
{
	u32 mask = t->controls & CGPU_CTRL_TIMESLICE ? v->opened : 0;
	u32 most = cgpu_hw_most_tsgs(t, v->policy->timeslice_us ? v->high | v->low | t->hold_mask : 0);

	v->restless = mask ? cgpu_rr_restless(t) : 0;
	for (; mask; mask &= mask - 1) {
		u32 i = __builtin_ctz(mask), bit = 1u << i, have_us = t->slot[i].timeslice_us;
		u32 want_us = wanted_timeslice_us(t, v, most, i);
		u64 left_ns = want_us != have_us ? wait_ns(t, v, i, want_us) : 0;

		if (left_ns) {
			want_us = have_us;
			v->left_ns = left_ns < v->left_ns ? left_ns : v->left_ns;
		}
		plan->timeslice_us[i] = want_us;
		if (want_us != have_us || (want_us && (t->ts_dirty_mask & bit)))
			plan->timeslice_mask |= bit;
	}
	plan->unrestarted_mask = t->controls & CGPU_CTRL_TIMESLICE ? t->unrestarted_mask & v->opened : 0;
	plan->timeslice_mask &= ~t->ts_failed_mask | due;
	plan->unrestarted_mask &= ~t->ts_failed_mask | due;
	cgpu_restart_plan(t, plan, &v->left_ns);
}

/**
 * cgpu_sched_next() - what should be in force from now on
 * @t: the scheduler
 * @now_ns: monotonic
 * @plan: filled; see its fields
 *
 * Call it again when @plan->until_ns has come, after an acknowledgement, and
 * after any change. A plan with a mask that is not 0 is carried out and
 * acknowledged; another call without that returns the same calls again.
 *
 * Context: Caller serialises.
 */
void cgpu_sched_next(struct cgpu_sched *t, u64 now_ns, struct cgpu_sched_plan *plan)
{
	u32 due = cgpu_failed_due(t, now_ns), want, again;
	struct plan_input v;

	cgpu_sched_update(t, now_ns);
	cgpu_run_state_unread(t, now_ns);
	cgpu_ceiling_check(t);
	snapshot(t, &v);
	memset(plan, 0, sizeof(*plan));
	want = decide(t, &v, now_ns);
	if (!t->paused) {
		want &= ~t->capped_mask;
		cgpu_ceiling_left(t, want, &v.left_ns);
	}

	/* One without channels needs no call to be thawed or frozen. */
	t->run_mask = (t->run_mask & v.opened) | (want & ~v.opened);
	t->freeze_unknown_mask &= v.opened;
	t->part_thawed_mask &= v.opened;
	t->ts_failed_mask &= v.opened;
	t->unrestarted_mask &= v.opened;
	again = t->freeze_unknown_mask & due;
	plan->run_mask = want;
	/* A freeze does not wait until a thaw may be repeated. */
	plan->freeze_mask = ((t->run_mask & ~t->freeze_unknown_mask) | t->part_thawed_mask | again) &
			    ~want & v.opened;
	plan->thaw_mask = ((~t->run_mask & ~t->freeze_unknown_mask) | again) & want & v.opened;
	plan->thaw_first = cgpu_rr_thaws_first(t);
	plan->curr = t->rr[v.active ? CGPU_RR_PRIO : CGPU_RR_NORMAL].curr;
	plan_timeslices(t, &v, due, plan);

	if (v.left_ns < CGPU_NEVER_NS - now_ns)
		plan->until_ns = now_ns + v.left_ns;
	else
		plan->until_ns = CGPU_NEVER_NS;
	cgpu_failed_until(t, due, &plan->until_ns);
	plan->late_ns = cgpu_rr_late_ns(t, plan->curr);
	if (v.polled)
		plan->poll_ns = cgpu_run_state_poll_ns(t, (v.high | v.low) & v.opened &
						       ~t->capped_mask,
						       want, v.present);
	t->planned_mask = want;
	t->new_mask = 0;
	t->touched_mask = 0;
	t->inflight = (plan->freeze_mask | plan->thaw_mask | plan->timeslice_mask) != 0;
	if (!t->inflight)
		cgpu_rr_planned(t);
	else if (!t->unread_since_ns)
		t->unread_since_ns = now_ns;
}

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

/* A call takes effect in the middle. A container can run as soon as one of its lists is thawed,
 * until the last is frozen.
 */
static u64 thaw_ns(const struct cgpu_sched *t, u32 mask, u64 from_ns, u64 to_ns)
{
	return from_ns + (to_ns - from_ns) / (2 * cgpu_calls(t, mask));
}

static u64 freeze_ns(const struct cgpu_sched *t, u32 mask, u64 from_ns, u64 to_ns)
{
	return to_ns - cgpu_resist_rest_ns(t, mask, (to_ns - from_ns) / cgpu_calls(t, mask));
}

static void switch_freeze_first(struct cgpu_sched *t, const struct cgpu_sched_ack *ack,
				u32 in_force)
{
	u32 stopped = t->run_mask & ~in_force & t->opened_mask;
	u32 started = in_force & ~t->run_mask & t->opened_mask;
	u64 took_ns = (ack->frozen_ns - ack->begin_ns) / cgpu_calls(t, stopped);

	cgpu_resist_note_thaw(t, started, (ack->thawed_ns - ack->frozen_ns) / cgpu_calls(t, started));
	cgpu_resist_note(t, stopped, took_ns);
	cgpu_account_freeze(t, stopped, cgpu_resist_is_late(t, stopped, took_ns),
			    freeze_ns(t, stopped, ack->begin_ns, ack->frozen_ns));
	cgpu_sched_switch(t, t->run_mask & in_force);
	cgpu_sched_update(t, thaw_ns(t, started, ack->frozen_ns, ack->thawed_ns));
}

static void switch_thaw_first(struct cgpu_sched *t, const struct cgpu_sched_ack *ack,
			      u32 in_force)
{
	u32 before = t->run_mask, stopped = before & ~in_force & t->opened_mask;
	u32 started = in_force & ~before & t->opened_mask;
	u64 took_ns = (ack->frozen_ns - ack->thawed_ns) / cgpu_calls(t, stopped);

	cgpu_resist_note_thaw(t, started, (ack->thawed_ns - ack->begin_ns) / cgpu_calls(t, started));
	cgpu_resist_note(t, stopped, took_ns);
	/* The kernel of one that resists keeps the GPU from the others. */
	if (cgpu_resist_is_late(t, stopped, took_ns)) {
		cgpu_account_freeze(t, stopped, true, freeze_ns(t, stopped, ack->thawed_ns, ack->frozen_ns));
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
	u32 stopped = t->run_mask & ~in_force & t->opened_mask;

	cgpu_sched_update(t, ack->begin_ns);
	cgpu_debt_spread(t, stopped, CGPU_DEBT_USUAL_SLICES * t->slice_ns);
	if (ack->frozen_ns <= ack->thawed_ns)
		switch_freeze_first(t, ack, in_force);
	else
		switch_thaw_first(t, ack, in_force);
	cgpu_sched_switch(t, in_force);
	cgpu_calls_charge(t, stopped);
}

/**
 * cgpu_sched_ack() - the calls of a plan were made
 * @t: the scheduler
 * @plan: as cgpu_sched_next() gave it, no other plan in between
 * @ack: when each part took effect, and what is in force now
 *
 * If @ack differs from @plan, a call failed: the state of that container is unknown, and
 * the call for its next state is repeated after 1 ms, then 2, up to 64. One whose thaw failed for
 * some channels runs with the others: it is charged, and its freeze is not put off.
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
	/* What ran before its thaw failed still does. */
	u32 part = plan->thaw_mask & known & (ack->part_thawed_mask | (t->run_mask & ~ack->run_mask));
	/* Of one that waits until its call is repeated the plan says what should be. */
	u32 kept = ~known | (t->freeze_unknown_mask & ~called);
	u32 in_force = ((ack->run_mask | part) & ~kept) | (t->run_mask & kept);
	u32 failed = ((ack->run_mask ^ plan->run_mask) & called) | part;
	u32 ts_failed = plan->timeslice_mask & ~(ack->timeslice_mask | ack->timeslice_more) & known;

	if (!t->inflight)
		return;
	switch_over(t, ack, in_force);
	cgpu_restart_note(t, plan->timeslice_mask, ack->unrestarted_mask & known, ack->restarted_ns);
	ack_timeslices(t, plan, ack);

	t->freeze_unknown_mask = (t->freeze_unknown_mask & ~called) | failed;
	t->part_thawed_mask = (t->part_thawed_mask & ~called) | part;
	t->ts_failed_mask = (t->ts_failed_mask & ~plan->timeslice_mask) | ts_failed;
	t->inflight = 0;
	cgpu_rr_planned(t);
	cgpu_failed_count(t, called | (plan->timeslice_mask & known), failed, ts_failed,
			  ack->frozen_ns > ack->thawed_ns ? ack->frozen_ns : ack->thawed_ns);
}
