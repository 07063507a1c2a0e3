// SPDX-License-Identifier: MIT OR GPL-2.0-only
/* High priority: quota per period, timeslices beside it. */
#include "sched_prio.h"

#include "policy.h"
#include "sched_at_work.h"
#include "sched_hwshare.h"
#include "sched_resist.h"
#include "sched_rr.h"
#include "sched_use.h"

#define SLACK_NS	CGPU_PRIO_SLACK_NS
#define SPREAD_PERCENT	16u	/* so much shorter a period is while samples come */
#define LEAST_PARTS	32u	/* timeslices leave such a part at least: 16:1, rounded up to a power of two */

/* 8000 to 500 was seen to give 14:1 on hardware. Divided by a container's
 * TSGs, but not below what switching costs.
 */
#define LONG_US		8192u
#define LONG_MIN_US	1000u
#define SHORT_US	512u
#define SHORT_MIN_US	200u

/* Where the run state is known: high priority waits for one of the others' when it wakes, and goes
 * on for so long when it works.
 */
#define KNOWN_LONG_US	32000u
#define KNOWN_SHORT_US	90u	/* at 100, with an H100's switch, requests of 1 ms have 110.04 % of alone at p99 */
#define EXPECT_NS	2000000000ull	/* high priority that was awake so lately may wake at once */
#define KNOWN_SWITCHES	2u	/* so many switches at least, where several of the others' TSGs alternate */

/* Each second those beside high priority that has worked for so long are frozen for a moment, to see whether their
 * kernels delay that.
 */
#define SECOND_NS	1000000000ull
#define PROBE_NS	20000000ull
#define PROBE_AFTER_NS	8000000ull

#define SHARED_US	10000u	/* both together, while they share the GPU; less costs more in switches */

static u32 slices(const struct cgpu_sched *t, u32 slot)
{
	const struct cgpu_policy *policy = cgpu_policy_get(t->policy);

	return policy->slices ? policy->slices(&t->slot[slot]) : t->max_inst;
}

static void give_back(u64 *used_ns, u64 allowed_ns, u64 most_ns)
{
	*used_ns = *used_ns > allowed_ns ? *used_ns - allowed_ns : 0;
	if (*used_ns > most_ns)
		*used_ns = most_ns;
}

/* Samples are exactly 200 ms apart, and would all fall at the same place of periods of 100 ms. In ones of 84
 * ms each falls 0.38 of a period further, which spreads them evenly. So the next period began a
 * while ago, and that part of its quota is used up. The caps of fixed rounds are promised for 100 ms.
 */
static void spread_samples(struct cgpu_sched *t, u64 quota_ns, u64 now_ns)
{
	t->use_spread = cgpu_use_is_sampled(t, now_ns) && !cgpu_policy_get(t->policy)->fixed_round;
	if (!t->use_spread)
		return;
	t->prio_period_ns -= CGPU_PRIO_PERIOD_NS / 100 * SPREAD_PERCENT;
	t->prio_runtime_ns += quota_ns / 100 * SPREAD_PERCENT;
}

/* The next period begins. Runtime above the quota is charged to it. */
static void roll_period(struct cgpu_sched *t, u64 quota_ns, u64 now_ns)
{
	u64 part_ns = CGPU_PRIO_PERIOD_NS / t->max_inst, n, cap;
	u32 mask;

	spread_samples(t, quota_ns, now_ns);
	n = (now_ns - t->prio_period_ns) / CGPU_PRIO_PERIOD_NS;
	t->prio_period_ns += n * CGPU_PRIO_PERIOD_NS;
	t->prio_throttled = 0;
	give_back(&t->prio_runtime_ns, n * quota_ns, CGPU_PRIO_PERIOD_NS);
	for (mask = t->live_mask; mask; mask &= mask - 1) {
		u32 i = __builtin_ctz(mask);

		cap = slices(t, i) * part_ns;
		give_back(&t->slot[i].cap_runtime_ns, n * cap, cap);
	}
}

static void open_period(struct cgpu_sched *t, u64 now_ns)
{
	s64 quota_ns = (s64)(CGPU_PRIO_PERIOD_NS / 100 * t->prio_ratio);
	s64 used_ns = cgpu_prio_budget_max_ns(t) - t->prio_budget_ns;
	u32 i;

	t->prio_period_ns = now_ns ? now_ns : 1;
	/* A run state that becomes unknown now and then gives no new quota each time. */
	if (used_ns < 0)
		used_ns = 0;
	t->prio_runtime_ns = (u64)(used_ns < quota_ns ? used_ns : quota_ns);
	t->prio_throttled = 0;
	for (i = 0; i < CGPU_SLOTS; i++)
		t->slot[i].cap_runtime_ns = 0;
}

/**
 * cgpu_prio_is_throttled() - must the high-priority containers be frozen now
 * @t: the scheduler, accounted up to now
 * @bounded: a high-priority container and one without have opened the GPU
 * @now_ns: monotonic
 * @left_ns: lowered to the time until the answer may change
 *
 * The period lives to its end even when its reason is gone: closing and
 * opening the GPU gives no new budget.
 *
 * Return: true until the period's end once prio_ratio percent are used.
 */
bool cgpu_prio_is_throttled(struct cgpu_sched *t, bool bounded, u64 now_ns, u64 *left_ns)
{
	u64 quota_ns = CGPU_PRIO_PERIOD_NS / 100 * t->prio_ratio, end_ns, left = 0;

	if (!bounded && now_ns - t->prio_period_ns >= CGPU_PRIO_PERIOD_NS)
		t->prio_period_ns = 0;
	if (!bounded) {
		end_ns = t->prio_period_ns + CGPU_PRIO_PERIOD_NS - now_ns;
		/* Caps by the period until it ends. Others have nothing to wait for. */
		if (t->prio_period_ns && cgpu_policy_get(t->policy)->fixed_round &&
		    end_ns < *left_ns)
			*left_ns = end_ns;
		return false;
	}
	if (!t->prio_period_ns)
		open_period(t, now_ns);
	if (now_ns - t->prio_period_ns >= CGPU_PRIO_PERIOD_NS)
		roll_period(t, quota_ns, now_ns);
	if (quota_ns > t->prio_runtime_ns)
		left = quota_ns - t->prio_runtime_ns;
	if (left <= SLACK_NS)
		t->prio_throttled = 1;
	end_ns = t->prio_period_ns + CGPU_PRIO_PERIOD_NS - now_ns;
	if (end_ns < *left_ns)
		*left_ns = end_ns;
	if (!t->prio_throttled && left < *left_ns)
		*left_ns = left;
	return t->prio_throttled;
}

/**
 * cgpu_prio_corunnable() - slots that may run beside a high-priority one
 * @t: the scheduler
 * @group: containers without highprio
 * @most: so many TSGs of one at once at most, of one of which it is known how many work
 *
 * The hardware's round has a timeslice for each TSG with work, and a high-priority container waits for
 * the whole of it whenever it leaves the GPU for a moment. A container of which more than CGPU_PRIO_CORUN_TSGS_MAX
 * work at once would get, by its number of processes, time that is not granted to it. Two that work at once have more
 * of a gap by a thaw and a freeze, if it is long enough for these, than in short timeslices among themselves, and high
 * priority waits less.
 *
 * Return: mask of the others.
 */
u32 cgpu_prio_corunnable(const struct cgpu_sched *t, u32 group, u32 most)
{
	u32 out = group, mask;

	for (mask = group; mask; mask &= mask - 1) {
		u32 i = __builtin_ctz(mask);

		if (cgpu_at_work(t, i) > (cgpu_at_work_is_known(t, i) ? most : CGPU_PRIO_CORUN_TSGS_MAX))
			out &= ~(1u << i);
	}
	return out;
}

/* Of each of @mask, the shortest or the longest time in the hardware's round. */
static u64 in_round_us(const struct cgpu_sched *t, u32 mask, u32 ts_scale, bool longest)
{
	u64 out = 0;

	for (; mask; mask &= mask - 1) {
		u32 i = __builtin_ctz(mask);
		u64 us = (u64)cgpu_at_work(t, i) * cgpu_prio_timeslice_us(t, i, 1, ts_scale);

		if (!out || (longest ? us > out : us < out))
			out = us;
	}
	return out;
}

/* The timeslices of all of @mask can be set, by this plan if they are not yet, and none delays its freezes. */
static bool obeys_timeslices(const struct cgpu_sched *t, u32 mask)
{
	if (!(t->controls & CGPU_CTRL_TIMESLICE) || (mask & t->ts_failed_mask))
		return false;
	for (; mask; mask &= mask - 1)
		if (cgpu_resist_is_slow(t, &t->slot[__builtin_ctz(mask)]))
			return false;
	return true;
}

/**
 * cgpu_prio_is_held() - do the timeslices alone leave the others what the quota leaves them
 * @t: the scheduler, accounted up to now
 * @high: high-priority slots that may run, one at a time
 * @low: the others that have opened the GPU, one at a time
 * @ts_scale: cgpu_prio_ts_scale(); raised where high priority that uses little has several TSGs
 * @left_ns: lowered to the time until the answer may change without an event
 *
 * Whenever one of @low has work it has its part of the hardware's round. With a quota of 95 that
 * is enough, whatever high priority does; with a lower one while it uses less than it may. If it was frozen
 * for the rest of each 100 ms, it would wait for nothing.
 *
 * Divided among many TSGs the long timeslices are shorter than a request, and each then waits for all others several
 * times. High priority that uses little takes nothing by longer ones.
 */
bool cgpu_prio_is_held(const struct cgpu_sched *t, u32 high, u32 low, u32 *ts_scale, u64 *left_ns)
{
	u64 theirs = in_round_us(t, low, *ts_scale, false), ours = in_round_us(t, high, *ts_scale, true);
	u32 tsgs;

	if (!obeys_timeslices(t, high | low) || low != cgpu_prio_corunnable(t, low, CGPU_PRIO_CORUN_TSGS_MAX))
		return false;
	if (theirs * LEAST_PARTS >= ours && cgpu_use_is_little(t, left_ns)) {
		tsgs = cgpu_hw_most_tsgs(t, high);
		while (tsgs > 1 && *ts_scale < CGPU_PRIO_TS_SCALE_MAX && theirs * LEAST_PARTS >= 2 * ours) {
			*ts_scale *= 2;
			ours *= 2;
			tsgs = (tsgs + 1) / 2;
		}
		return true;
	}
	return theirs * 100 >= (theirs + ours) * (100 - t->prio_ratio);
}

/* What can still come of this period's time without high priority: what is left of the
 * period when the quota is used up without a break. Kept without that, it would be lost.
 */
static u64 still_to_come_ns(const struct cgpu_sched *t)
{
	u64 quota_ns = CGPU_PRIO_PERIOD_NS / 100 * t->prio_ratio, gone_ns, not_low_ns;

	gone_ns = t->last_ns > t->prio_period_ns ? t->last_ns - t->prio_period_ns : 0;
	not_low_ns = gone_ns + (quota_ns > t->prio_runtime_ns ? quota_ns - t->prio_runtime_ns : 0);
	return not_low_ns < CGPU_PRIO_PERIOD_NS ? CGPU_PRIO_PERIOD_NS - not_low_ns : 0;
}

/**
 * cgpu_prio_under_quota() - slots that may still run in this period
 * @t: the scheduler, policy 0 or 3 in force, accounted up to now
 * @group: containers without highprio that have opened the GPU
 * @corun: while a high-priority one may run too; then each keeps its part of
 *          the time in which that one will be frozen
 * @left_ns: lowered to the time until a cap is reached
 *
 * Return: mask of those below their cap.
 */
u32 cgpu_prio_under_quota(const struct cgpu_sched *t, u32 group, bool corun, u64 *left_ns)
{
	u64 low_ns = corun ? still_to_come_ns(t) : 0;
	u64 part_ns = CGPU_PRIO_PERIOD_NS / t->max_inst, kept_ns;
	u32 out = 0, sum = 0, mask;

	for (mask = group; mask; mask &= mask - 1)
		sum += slices(t, __builtin_ctz(mask));
	kept_ns = sum ? low_ns / sum : 0;
	for (mask = sum ? group : 0; mask; mask &= mask - 1) {
		u32 i = __builtin_ctz(mask), n = slices(t, i);
		u64 cap = n * part_ns, used = t->slot[i].cap_runtime_ns + n * kept_ns;

		if (used + SLACK_NS > cap)
			continue;
		out |= 1u << i;
		if (cap - used < *left_ns)
			*left_ns = cap - used;
	}
	return out;
}

/**
 * cgpu_prio_shared_timeslice_us() - timeslice while the budget is used up
 * @t: the scheduler
 * @slot: with or without highprio
 *
 * By them high priority has prio_ratio: the budget stays used up while it always works, and grows
 * with its gaps.
 *
 * Return: microseconds for each of its TSGs.
 */
u32 cgpu_prio_shared_timeslice_us(const struct cgpu_sched *t, u32 slot)
{
	u32 tsgs = cgpu_at_work(t, slot);
	u32 us = SHARED_US * (t->slot[slot].highprio ? t->prio_ratio : 100 - t->prio_ratio) / 100;

	return us / tsgs < SHORT_MIN_US ? SHORT_MIN_US : us / tsgs;
}

/**
 * cgpu_prio_charge() - time has passed in a period
 * @t: the scheduler
 * @ran: slots that could run and had opened the GPU
 * @len_ns: how long
 *
 * The high-priority ones are charged in full while they may run: whether they did is
 * unknown. A gap between two of them is charged to them too, or the quota would not be used
 * up before the period ends. Those beside them are charged among themselves.
 */
void cgpu_prio_charge(struct cgpu_sched *t, u32 ran, u64 len_ns)
{
	u32 high = t->weighted_mask[1], low = t->weighted_mask[0], mask;
	u64 all;

	cgpu_prio_charge_budget(t, ran, len_ns);
	if (t->prio_budgeted || !t->prio_period_ns)
		return;
	if (((ran & high) || cgpu_rr_in_force(t, CGPU_RR_PRIO)) && (t->opened_mask & low))
		t->prio_runtime_ns += len_ns;
	/* Other policies have no caps to hold. */
	if (!cgpu_policy_get(t->policy)->fixed_round)
		return;
	all = cgpu_hw_weight(t, ran & low, false);
	for (mask = ran & low; mask; mask &= mask - 1) {
		u32 i = __builtin_ctz(mask);

		t->slot[i].cap_runtime_ns += cgpu_hw_share(t, all, i, false, len_ns);
	}
}

/**
 * cgpu_prio_ts_scale() - by how much high-priority timeslices are longer than usual
 * @t: the scheduler
 * @group: those without highprio that may run beside them, each in its turn
 *
 * Where those beside them have so many TSGs that the shortest timeslices are more than
 * SHORT_US in all, the long ones grow with that. In powers of two: a TSG that comes or goes
 * is seldom a call for others'.
 *
 * Return: 1 to CGPU_PRIO_TS_SCALE_MAX.
 */
u32 cgpu_prio_ts_scale(const struct cgpu_sched *t, u32 group)
{
	u32 round_us = 0, ts_scale = 1;

	for (; group; group &= group - 1) {
		u32 i = __builtin_ctz(group), us = cgpu_at_work(t, i) * cgpu_prio_timeslice_us(t, i, 1, 1);

		if (us > round_us)
			round_us = us;
	}
	while (ts_scale < CGPU_PRIO_TS_SCALE_MAX && round_us > ts_scale * SHORT_US)
		ts_scale *= 2;
	return ts_scale;
}

/**
 * cgpu_prio_timeslice_us() - timeslice while a high-priority one is there
 * @t: the scheduler
 * @slot: with or without highprio
 * @corun: how many without run at once, at least 1: one that wakes waits for all
 * @ts_scale: cgpu_prio_ts_scale() of those
 *
 * Return: microseconds for each of its TSGs.
 */
u32 cgpu_prio_timeslice_us(const struct cgpu_sched *t, u32 slot, u32 corun, u32 ts_scale)
{
	bool high = t->slot[slot].highprio;
	u32 us = (high ? ts_scale * LONG_US : SHORT_US / corun) / cgpu_at_work(t, slot);
	u32 least = high ? LONG_MIN_US : SHORT_MIN_US;

	return us < least ? least : us;
}

/**
 * cgpu_prio_known_timeslice_us() - timeslice while the run state of all high-priority ones is known
 * @t: the scheduler
 * @slot: with or without highprio
 * @alternates: one without, and TSGs of others without, or several of its own, run at once
 *
 * In its gaps, and while it sleeps, those alternate with each other: by timeslices that are
 * shorter than a switch they would lose most of that time.
 *
 * Return: microseconds for each of its TSGs.
 */
u32 cgpu_prio_known_timeslice_us(const struct cgpu_sched *t, u32 slot, bool alternates)
{
	u32 us = KNOWN_LONG_US / cgpu_at_work(t, slot), least = KNOWN_SWITCHES * t->switch_ns / 1000, window_us;

	if (!t->slot[slot].highprio)
		return alternates && least > KNOWN_SHORT_US ? least : KNOWN_SHORT_US;
	window_us = cgpu_prio_window_us(t, slot);
	if (us > window_us)
		us = window_us;
	return us < LONG_MIN_US ? LONG_MIN_US : us;
}

/**
 * cgpu_prio_was_awake() - may high priority whose run state is known wake at once, by the last plan
 * @t: the scheduler, accounted up to now
 */
bool cgpu_prio_was_awake(const struct cgpu_sched *t)
{
	return t->high_awake_ns && t->last_ns - t->high_awake_ns < EXPECT_NS;
}

/**
 * cgpu_prio_is_expected() - may high priority whose run state is known wake at once
 * @t: the scheduler, accounted up to now
 * @awake: it is
 * @left_ns: lowered to the time until the answer may change
 *
 * High priority that sleeps for long costs the others nothing. When it wakes then it may wait for
 * one of their usual timeslices.
 */
bool cgpu_prio_is_expected(struct cgpu_sched *t, bool awake, u64 *left_ns)
{
	u64 age_ns;

	if (awake)
		t->high_awake_ns = t->last_ns;
	age_ns = t->last_ns - t->high_awake_ns;
	if (age_ns < EXPECT_NS && EXPECT_NS - age_ns < *left_ns)
		*left_ns = EXPECT_NS - age_ns;
	return age_ns < EXPECT_NS;
}

/**
 * cgpu_prio_probed() - high-priority slots beside which the others are frozen for a moment
 * @t: the scheduler, accounted up to now
 * @awake: those with highprio whose run state is known, awake
 * @left_ns: lowered to the time until the answer may change
 *
 * Beside high priority no other is frozen, and only a freeze shows whose kernels delay their
 * preemption: such a one would keep each request waiting, and never be found. In the first moment of each
 * second the others are frozen beside high priority that has worked for longer than their timeslices
 * explain. Work that is short, and not kept waiting, is never probed.
 */
u32 cgpu_prio_probed(const struct cgpu_sched *t, u32 awake, u64 *left_ns)
{
	u64 at_ns = t->last_ns % SECOND_NS, left;
	u32 out = 0;

	for (; awake; awake &= awake - 1) {
		u32 i = __builtin_ctz(awake);
		u64 since_ns = t->slot[i].worked_since_ns, age_ns = t->last_ns - since_ns;

		if (!since_ns)
			continue;
		if (at_ns >= PROBE_NS) {
			left = SECOND_NS - at_ns;
		} else if (age_ns >= PROBE_AFTER_NS) {
			left = PROBE_NS - at_ns;
			out |= 1u << i;
		} else {
			left = PROBE_AFTER_NS - age_ns;
		}
		if (left < *left_ns)
			*left_ns = left;
	}
	return out;
}

/**
 * cgpu_prio_kept_back() - slots whose kernels would keep high priority waiting
 * @t: the scheduler, accounted up to now
 * @low: those without highprio
 * @left_ns: lowered to the time until the answer changes
 *
 * Those whose kernels delay their preemption run beside high priority that may wake at once for what
 * prio_ratio leaves of each second, in one piece: then it waits for a kernel's length, and has the rest.
 */
u32 cgpu_prio_kept_back(const struct cgpu_sched *t, u32 low, u64 *left_ns)
{
	u64 at_ns = t->last_ns % SECOND_NS, ends_ns = PROBE_NS + (100 - t->prio_ratio) * (SECOND_NS / 100), left;
	u32 out = 0;

	for (; low; low &= low - 1)
		if (cgpu_resist_is_slow(t, &t->slot[__builtin_ctz(low)]))
			out |= low & -low;
	if (!out)
		return 0;
	left = at_ns < PROBE_NS ? PROBE_NS - at_ns : at_ns < ends_ns ? ends_ns - at_ns : SECOND_NS + PROBE_NS - at_ns;
	if (left < *left_ns)
		*left_ns = left;
	return at_ns >= PROBE_NS && at_ns < ends_ns ? 0 : out;
}
