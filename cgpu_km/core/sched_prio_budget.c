// SPDX-License-Identifier: MIT OR GPL-2.0-only
/* High priority: the quota as a budget. */
#include "sched_prio.h"

#include "sched_at_work.h"
#include "sched_dense.h"
#include "sched_hwshare.h"

#define BURST_NS	1000000000ull	/* a full budget lasts so long without a break */
#define SEVERAL_RESUME_NS	3000000ll	/* of several slots, which are frozen meanwhile */
#define LIVELY_NS	400000000ull	/* without work for longer, and a slot does not count */
#define RESUME_NS	10000000ll	/* once used up it must be so much again: one per cent of it */

/**
 * cgpu_prio_budget_max_ns() - a full budget
 * @t: the scheduler
 */
s64 cgpu_prio_budget_max_ns(const struct cgpu_sched *t)
{
	return (s64)(BURST_NS / 100 * (100 - t->prio_ratio));
}

/**
 * cgpu_prio_fill_budget() - another policy begins with a full budget
 * @t: the scheduler
 */
void cgpu_prio_fill_budget(struct cgpu_sched *t)
{
	t->prio_budget_ns = cgpu_prio_budget_max_ns(t);
}

/**
 * cgpu_prio_end_period() - periods do not hold high priority any more
 * @t: the scheduler
 *
 * A budget does, or timeslices. Kept, the period would be charged for all of the time until one is needed again,
 * and high priority be frozen for the rest of that one. What it may use of the next is by its budget.
 */
void cgpu_prio_end_period(struct cgpu_sched *t)
{
	t->prio_throttled = 0;
	t->prio_period_ns = 0;
}

/**
 * cgpu_prio_set_budgeted() - the quota is a budget, or a part of 100 ms periods
 * @t: the scheduler
 * @budgeted: the run state of every high-priority slot is known
 *
 * A change begins with no period. The budget stays what it is, and is charged in both: closing
 * and opening the GPU gives no new one.
 */
void cgpu_prio_set_budgeted(struct cgpu_sched *t, bool budgeted)
{
	if (t->prio_budgeted == budgeted)
		return;
	t->prio_budgeted = budgeted;
	cgpu_prio_end_period(t);
}

/**
 * cgpu_prio_lively() - high-priority slots that had work lately
 * @t: the scheduler, accounted up to now
 *
 * Of several the account does not know how long each had the GPU: when the work of one is over another one has some.
 */
u32 cgpu_prio_lively(const struct cgpu_sched *t)
{
	u32 mask, out = t->opened_mask & t->weighted_mask[1];

	for (mask = out & t->asleep_mask; mask; mask &= mask - 1)
		if (t->last_ns - t->slot[__builtin_ctz(mask)].idle_since_ns > LIVELY_NS)
			out &= ~(mask & -mask);
	return out;
}

static s64 resume_ns(const struct cgpu_sched *t)
{
	return cgpu_is_one(cgpu_prio_lively(t)) ? RESUME_NS : SEVERAL_RESUME_NS;
}

/**
 * cgpu_prio_window_us() - how long a slot may run between two pauses for the quota
 * @t: the scheduler, accounted up to now
 * @slot: with highprio
 *
 * Several slots run side by side until the budget is used up, and the hardware begins each time with the same TSG: at
 * longer timeslices only that one would run.
 *
 * Return: microseconds for each of its TSGs; 0xffffffff: it is the only one, or the quota stopped none lately.
 */
u32 cgpu_prio_window_us(const struct cgpu_sched *t, u32 slot)
{
	u32 slots = cgpu_count(cgpu_prio_lively(t));

	if (slots <= 1 || !t->prio_stopped_ns || t->last_ns - t->prio_stopped_ns > LIVELY_NS)
		return 0xffffffffu;
	return (u32)(SEVERAL_RESUME_NS / 1000) * 100 / (100 - t->prio_ratio) / (slots * cgpu_at_work(t, slot));
}

/**
 * cgpu_prio_budget_used_up() - must the high-priority slots share the GPU now
 * @t: the scheduler, accounted up to now
 * @left_ns: lowered to the time until the answer may change
 *
 * The budget grows by prio_ratio of the time and shrinks by what high priority ran while
 * others had work. Full, it lasts for a second without a break.
 */
bool cgpu_prio_budget_used_up(struct cgpu_sched *t, u64 *left_ns)
{
	u64 left;

	if (t->prio_budget_ns <= 0)
		t->prio_throttled = 1;
	else if (t->prio_budget_ns >= resume_ns(t))
		t->prio_throttled = 0;
	if (t->prio_throttled) {
		t->prio_stopped_ns = t->last_ns;
		left = (u64)resume_ns(t);
	} else {
		left = (u64)t->prio_budget_ns / (100 - t->prio_ratio) * 100 + CGPU_PRIO_SLACK_NS;
	}
	if (left < *left_ns)
		*left_ns = left;
	return t->prio_throttled;
}

/**
 * cgpu_prio_charge_budget() - time has passed
 * @t: the scheduler
 * @ran: slots that could run and had opened the GPU
 * @len_ns: how long
 *
 * While high priority is awake, what the others do not get is its own, so are gaps that could be lent.
 */
void cgpu_prio_charge_budget(struct cgpu_sched *t, u32 ran, u64 len_ns)
{
	u32 high = t->opened_mask & t->weighted_mask[1] & ~t->asleep_mask & ~t->capped_mask;
	u32 low = ran & t->weighted_mask[0];
	/* A slot that is frozen asleep may have work that its word does not show. */
	u32 rivals = t->opened_mask & t->weighted_mask[0] & ~(t->asleep_mask & t->run_mask);
	s64 most = cgpu_prio_budget_max_ns(t);
	u64 all, got;

	if (len_ns > BURST_NS)
		len_ns = BURST_NS;
	got = len_ns;
	t->prio_budget_ns += (s64)(len_ns * t->prio_ratio / 100);
	cgpu_dense_note(t, high, len_ns);
	all = cgpu_hw_weight(t, ran, true);
	for (; low; low &= low - 1)
		got -= cgpu_hw_share(t, all, __builtin_ctz(low), true, len_ns);
	if (rivals && high)
		t->prio_budget_ns -= (s64)cgpu_dense_charged_ns(t, high, got);
	if (t->prio_budget_ns > most)
		t->prio_budget_ns = most;
	if (t->prio_budget_ns < -most)
		t->prio_budget_ns = -most;
}

/* Others that run and have work. */
static u32 others(const struct cgpu_sched *t)
{
	return t->run_mask & t->busy_mask & t->weighted_mask[0];
}

/**
 * cgpu_prio_may_share() - do timeslices divide the GPU while the budget is used up
 * @t: the scheduler, accounted up to now
 * @active: high-priority slots beside which the others are frozen otherwise
 * @steady: those without highprio that have opened the GPU and did not sleep lately
 *
 * High priority with gaps too short to be lent would lose a timeslice to the others in each gap. But where all others
 * sleep now and then the GPU would idle meanwhile, and gaps of a slot with several TSGs show only beside others. What
 * the others had of gaps that readings miss is unknown, and so it is beside several high-priority slots, which share
 * only where the GPU would idle otherwise.
 *
 * Return: false: high priority is frozen meanwhile.
 */
bool cgpu_prio_may_share(const struct cgpu_sched *t, u32 active, u32 steady)
{
	if (!(t->controls & CGPU_CTRL_TIMESLICE))
		return false;
	if (!cgpu_is_one(cgpu_prio_lively(t)))
		return !active && !steady;
	return !active || (cgpu_dense_has_seen_gaps(t, __builtin_ctz(active)) && !steady);
}

/* One of @low works in so many TSGs at once that it is frozen whenever high priority works. */
static bool has_crowd(const struct cgpu_sched *t, u32 low)
{
	for (; low; low &= low - 1)
		if (cgpu_at_work(t, __builtin_ctz(low)) > CGPU_PRIO_CORUN_TSGS_MAX)
			return true;
	return false;
}

/* High priority that leaves the GPU as a whole, and beside which others run for longer than a call takes. The gaps
 * of one of several TSGs end by chance. A crowd is frozen at the end of each gap, so it has no whole round of one.
 */
static bool is_beside(const struct cgpu_sched *t, u32 slot)
{
	if (!(t->run_mask >> slot & 1) || cgpu_at_work(t, slot) > 1 || !cgpu_is_one(cgpu_prio_lively(t)))
		return false;
	return !has_crowd(t, others(t));
}

/**
 * cgpu_prio_charge_handover() - the GPU went to others and comes back
 * @t: the scheduler
 * @slot: it has work again
 * @gap_ns: after so long
 * @lent_ns: how much of that the account gave to the others
 *
 * The others lost the switch to them, which is in the gap. They keep the GPU to the end of a timeslice,
 * and what is left of that they have while high priority waits.
 */
void cgpu_prio_charge_handover(struct cgpu_sched *t, u32 slot, u64 gap_ns, u64 lent_ns)
{
	u32 low = others(t);
	u64 round_ns, step_ns, tsgs, got_ns;

	/* Of several the last one's gap is that of all. */
	if (!t->slot[slot].highprio || !low || !t->high_gap_ns)
		return;
	if (!is_beside(t, slot)) {
		t->prio_budget_ns -= t->prio_throttled ? 0 : (s64)t->switch_ns;
		return;
	}
	/* Several TSGs in turn: a switch before each, and high priority waits for those that are left of a round. */
	round_ns = cgpu_hw_weight(t, low, true) * 1000ull;
	tsgs = cgpu_hw_weight(t, low, false);
	step_ns = round_ns + (tsgs > 1 ? tsgs * t->switch_ns : 0);
	got_ns = gap_ns > t->switch_ns ? gap_ns - t->switch_ns : 1;
	got_ns = (got_ns + step_ns - 1) / step_ns * round_ns;
	t->prio_budget_ns += (s64)got_ns - (s64)lent_ns;
}

/**
 * cgpu_prio_charge_burst() - high priority worked, and is in a gap
 * @t: the scheduler
 * @slot: which
 * @len_ns: how long it worked, or waited until it could
 *
 * It has the GPU to itself until its timeslice is over, and seldom works for so long. The account divided
 * all of the time by timeslices.
 */
void cgpu_prio_charge_burst(struct cgpu_sched *t, u32 slot, u64 len_ns)
{
	const struct cgpu_sched_entity *s = &t->slot[slot];
	u64 mine_ns = cgpu_hw_timeslice_ns(t, s), theirs_ns, waits_ns, all, got_ns = 0;
	u32 low = others(t);

	if (!s->highprio || !low || !is_beside(t, slot))
		return;
	theirs_ns = cgpu_hw_weight(t, low, true) * 1000ull;
	all = cgpu_hw_weight(t, low | 1u << slot, true);
	waits_ns = cgpu_hw_shortest_ns(t, low) + t->switch_ns + mine_ns;
	if (len_ns > waits_ns)
		got_ns = ((len_ns - waits_ns) / (mine_ns + theirs_ns + 2 * t->switch_ns) + 1) * theirs_ns;
	t->prio_budget_ns += (s64)got_ns - (s64)(len_ns - cgpu_hw_share(t, all, slot, true, len_ns));
}
