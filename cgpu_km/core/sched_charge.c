// SPDX-License-Identifier: MIT OR GPL-2.0-only
/* Which round-robin groups are in force, and the charge to the turn under way. */
#include "sched_rr.h"

#include "sched_debt.h"
#include "sched_hwshare.h"
#include "sched_on.h"

/**
 * cgpu_rr_plan() - a plan begins: groups in force stay so until its calls act
 * @t: the scheduler
 */
void cgpu_rr_plan(struct cgpu_sched *t)
{
	u32 nr;

	for (nr = 0; nr < CGPU_RR_COUNT; nr++) {
		u8 *running = &t->rr[nr].running;

		/* That of the last plan is still to come. */
		if (t->inflight)
			*running &= CGPU_RR_BEFORE;
		else
			*running = *running ? CGPU_RR_BEFORE : 0;
	}
}

/**
 * cgpu_rr_planned() - the plan is in force: its calls are made, or none is needed
 * @t: the scheduler
 */
void cgpu_rr_planned(struct cgpu_sched *t)
{
	u32 nr;

	for (nr = 0; nr < CGPU_RR_COUNT; nr++)
		t->rr[nr].running &= CGPU_RR_PLANNED;
}

/**
 * cgpu_rr_in_force() - does the clock of a group run
 * @t: the scheduler
 * @nr: enum cgpu_rr_nr
 *
 * Between two groups, while calls are under way, run_mask decides: a high-priority slot
 * that resists its freeze takes that time from no turn of the others, also not beside it.
 */
bool cgpu_rr_in_force(const struct cgpu_sched *t, u32 nr)
{
	u8 running = t->rr[nr].running;
	bool high;

	if (!t->inflight || running == (CGPU_RR_PLANNED | CGPU_RR_BEFORE))
		return running & CGPU_RR_PLANNED;
	high = t->run_mask & t->opened_mask & t->weighted_mask[1];
	return running && nr == (high ? CGPU_RR_PRIO : CGPU_RR_NORMAL);
}

/**
 * cgpu_rr_lent() - slots whose time a group lends to others
 * @t: the scheduler
 * @nr: enum cgpu_rr_nr
 *
 * The caps of fixed rounds are not work-conserving: what is idle there is lost. High priority
 * has no caps among itself.
 */
u32 cgpu_rr_lent(const struct cgpu_sched *t, u32 nr)
{
	if (cgpu_policy_get(t->policy)->fixed_round && nr != CGPU_RR_PRIO)
		return 0;
	return t->asleep_mask;
}

/**
 * cgpu_rr_charge() - time has passed with what is in force
 * @t: the scheduler
 * @nr: enum cgpu_rr_nr
 * @has_work: slots that had work in that time
 * @len_ns: how much
 */
void cgpu_rr_charge(struct cgpu_sched *t, u32 nr, u32 has_work, u64 len_ns)
{
	struct cgpu_rr *r = &t->rr[nr];
	/* A slot that used up its ceiling runs until it is frozen. */
	u32 turns = r->members | (r->asleep & t->capped_mask);
	u32 ran = t->run_mask & t->opened_mask & ~cgpu_rr_lent(t, nr) & turns, mask;
	/* Beside high priority a turn is not charged for what that one has. */
	u32 high = nr == CGPU_RR_NORMAL ? t->run_mask & t->busy_mask & t->weighted_mask[1] : 0;
	u64 all;

	if (!cgpu_rr_in_force(t, nr))
		return;
	r->clock_ns += len_ns;
	if (!r->contended)
		return;
	mask = cgpu_on_of(t, cgpu_hw_with_work(t, ran, has_work) | (high & has_work));
	all = cgpu_hw_weight(t, mask, true);
	for (mask &= ran; mask; mask &= mask - 1) {
		u32 i = __builtin_ctz(mask);
		u64 got_ns = cgpu_hw_share(t, all, i, true, len_ns);

		*cgpu_debt_deficit(t, nr, i) -= (s64)got_ns;
		if (nr != CGPU_RR_BACKGROUND && cgpu_on_is_open(t, i))
			t->slot[i].open_turn_ns += got_ns;
	}
	/* The turn of one that has not opened the GPU is consumed all the same. It resists no
	 * freeze: were it to open the GPU after a late thread, it would not wait for that.
	 */
	if (!ran && r->curr < CGPU_SLOTS && !(t->opened_mask >> r->curr & 1)) {
		*cgpu_debt_deficit(t, nr, r->curr) -= (s64)len_ns;
		cgpu_debt_spread(t, 1u << r->curr, 0);
	}
}

/**
 * cgpu_rr_compensate_switch() - give back what a turn loses to its context switch
 * @t: the scheduler
 * @started: slots that run from now on and did not before
 *
 * A switch costs each turn the same, so short turns would lose a larger part.
 * Beside a high-priority container the hardware switches all the time.
 */
void cgpu_rr_compensate_switch(struct cgpu_sched *t, u32 started)
{
	u32 nr, mask;

	for (nr = CGPU_RR_NORMAL; nr <= CGPU_RR_PRIO; nr++) {
		struct cgpu_rr *r = &t->rr[nr];

		if (!(r->running & CGPU_RR_PLANNED) || !r->contended)
			continue;
		for (mask = started & r->members; mask; mask &= mask - 1)
			*cgpu_debt_deficit(t, nr, __builtin_ctz(mask)) += t->switch_ns;
	}
}
