// SPDX-License-Identifier: MIT OR GPL-2.0-only
/*
 * Ceilings: a slot has a budget of GPU time that grows by ceiling/max_inst of the time and
 * shrinks by what the slot ran. A slot that used it up is frozen until it has resume_ns()
 * again. Its turn is lent meanwhile, as if it slept, so that its credit keeps its guaranteed
 * part; another slot's turn is cut short when it comes back.
 *
 * In any time a slot gets no more than its ceiling of it and one full budget, so a budget is
 * less than one per cent of a second.
 */
#include "sched_ceiling.h"

#include "policy.h"
#include "sched_at_work.h"
#include "sched_hwshare.h"
#include "sched_on.h"

#define BUDGET_NS	7000000ll	/* full; 3 ms of one per cent of a second are for late freezes */
#define SLACK_NS	50000ll		/* less is not worth a plan */
#define PAUSE_PARTS	4		/* frozen for this part of a slice at least */
#define REPAID_NS	1000000000ll	/* an overrun delays a slot by this at most */
#define BINDS_NS	400000000ull	/* one that used up its budget so lately will do so again */
#define DRAWN_NS	(BUDGET_NS - BUDGET_NS / 8)	/* with less it used much of its ceiling lately */
#define EDGE_NS		100000ull	/* between two readings of one that works */

/**
 * cgpu_ceiling_refresh() - work out which slots have a ceiling in force
 * @t: the scheduler, of which a slot, the policy or max_inst was changed
 *
 * One of max_inst or more limits nothing.
 */
void cgpu_ceiling_refresh(struct cgpu_sched *t)
{
	u32 i;

	t->ceiling_mask = 0;
	for (i = 0; cgpu_policy_get(t->policy)->ceilings && i < CGPU_SLOTS; i++) {
		const struct cgpu_sched_entity *s = &t->slot[i];

		if (s->ceiling && s->ceiling < t->max_inst)
			t->ceiling_mask |= 1u << i;
	}
	t->capped_mask &= t->ceiling_mask;
}

/**
 * cgpu_ceiling_fill() - a slot begins with a full budget
 * @t: the scheduler
 * @slot: which
 */
void cgpu_ceiling_fill(struct cgpu_sched *t, u32 slot)
{
	t->slot[slot].ceiling_budget_ns = BUDGET_NS;
	t->capped_mask &= ~(1u << slot);
}

/* Does a slot other than @slot run whose work is unknown? If it has none, @slot has all. */
static bool may_have_all(const struct cgpu_sched *t, u32 slot, u32 ran)
{
	return ran & ~t->known_mask & ~(1u << slot);
}

/**
 * cgpu_ceiling_charge() - a slot could run
 * @t: the scheduler
 * @slot: which; of no effect on one without a ceiling, or whose run state is known
 * @ran: all slots that could
 * @got_ns: its part by the account
 * @len_ns: how long
 *
 * A ceiling is kept beside slots that may be idle, so all of the time is charged then.
 */
void cgpu_ceiling_charge(struct cgpu_sched *t, u32 slot, u32 ran, u64 got_ns, u64 len_ns)
{
	if ((t->ceiling_mask & ~t->known_mask) >> slot & 1)
		t->slot[slot].ceiling_budget_ns -=
			(s64)(may_have_all(t, slot, ran) ? len_ns : got_ns);
}

/* How long the work of one of several TSGs is; 0: unknown, or it seldom ends while the others go on. */
static u32 piece_us(const struct cgpu_sched_entity *s)
{
	return cgpu_at_work_leaves(s) ? s->piece_us : 0;
}

/* Of a round of the hardware one TSG has its timeslice, or the rest of its work if that is less. */
static u64 round_us(const struct cgpu_sched *t, u32 slot)
{
	const struct cgpu_sched_entity *s = &t->slot[slot];
	u32 us = cgpu_hw_timeslice_us(t, s), piece = piece_us(s);

	if (piece && piece < us)
		us = piece;
	return (u64)cgpu_at_work(t, slot) * us;
}

static bool has_pieces(const struct cgpu_sched *t, u32 mask)
{
	for (; mask; mask &= mask - 1)
		if (piece_us(&t->slot[__builtin_ctz(mask)]))
			return true;
	return false;
}

/* Of several TSGs it is known how long their work is. */
static s64 part_of_round_ns(const struct cgpu_sched *t, u32 slot, u32 ran, u64 len_ns)
{
	u64 mine = cgpu_at_work(t, slot) * (u64)cgpu_hw_timeslice_us(t, &t->slot[slot]), all = mine;

	for (ran &= ~(1u << slot); ran; ran &= ran - 1)
		all += round_us(t, __builtin_ctz(ran));
	return (s64)(len_ns * mine / all);
}

/* The part of @slot of a time that is divided among @ran. Of pieces shorter than the timeslices each
 * has its length, whatever its timeslice: it is charged an equal part at least.
 */
static s64 part_ns(const struct cgpu_sched *t, u32 slot, u32 ran, u64 len_ns)
{
	u64 share_ns, equal_ns;

	if (may_have_all(t, slot, ran))
		return (s64)len_ns;
	if (!(ran >> slot & 1))
		return 0;
	if (has_pieces(t, ran & ~(1u << slot)))
		return part_of_round_ns(t, slot, ran, len_ns);
	share_ns = cgpu_hw_share(t, cgpu_hw_weight(t, ran, true), slot, true, len_ns);
	equal_ns = len_ns / cgpu_count(ran);
	return (s64)(share_ns < equal_ns ? equal_ns : share_ns);
}

static u32 measured(const struct cgpu_sched *t)
{
	return t->paused ? 0 : t->ceiling_mask & t->known_mask & t->run_mask & t->opened_mask;
}

/* Awake without work, @ran are charged while others wait for them: they have lost that time to it. */
static u32 kept(const struct cgpu_sched *t, u32 ran, bool wait)
{
	return wait && !(ran & (t->busy_mask | ~t->known_mask)) ? ran : 0;
}

static void charge(struct cgpu_sched *t, u32 slot, u32 busy, u64 len_ns)
{
	u32 ran = t->run_mask & t->opened_mask & (busy | ~t->known_mask);
	u32 beside = cgpu_on_without_tiny(t, ran) | (ran & 1u << slot);
	s64 ns = part_ns(t, slot, cgpu_on_of(t, beside), len_ns);

	t->slot[slot].ceiling_budget_ns -= ns;
	if (cgpu_on_is_open(t, slot))
		t->slot[slot].open_ceiling_ns += ns;
}

/**
 * cgpu_ceiling_charge_before() - time has passed, at the end of which the run state was read, or it stayed
 * @t: the scheduler, with that run state and what was on the GPU before
 * @was_busy: those that had work at the beginning
 * @ran: those that ran, by the account
 * @wait: others wait for a turn
 * @len_ns: how long
 *
 * Of known run state what a slot works is charged, by the readings, whether it counts as asleep or
 * as awake: a piece of work begins and ends between two of them, on average in the middle. Where
 * they are far apart most pieces begin and end between two and are not seen: one that is stands for
 * the others.
 */
void cgpu_ceiling_charge_before(struct cgpu_sched *t, u32 was_busy, u32 ran, bool wait, u64 len_ns)
{
	u32 mask = measured(t) & ~kept(t, ran, wait) & was_busy;

	for (; mask; mask &= mask - 1)
		charge(t, __builtin_ctz(mask), was_busy, len_ns / 2);
}

/**
 * cgpu_ceiling_charge_after() - the same time, with what is on the GPU now
 * @t: the scheduler
 * @was_busy: as above
 * @ran: as above
 * @wait: as above
 * @len_ns: as above
 */
void cgpu_ceiling_charge_after(struct cgpu_sched *t, u32 was_busy, u32 ran, bool wait, u64 len_ns)
{
	u64 edge_ns = (len_ns < EDGE_NS ? len_ns : EDGE_NS) / 2;
	u32 all = kept(t, ran, wait), slots = measured(t), mask;

	for (mask = slots & all; mask; mask &= mask - 1) {
		u32 i = __builtin_ctz(mask);

		t->slot[i].ceiling_budget_ns -= part_ns(t, i, all, len_ns);
	}
	for (mask = slots & ~all & t->busy_mask; mask; mask &= mask - 1)
		charge(t, __builtin_ctz(mask), t->busy_mask,
		       was_busy & mask & -mask ? len_ns - len_ns / 2 : len_ns - edge_ns);
}

/**
 * cgpu_ceiling_is_drawn() - has a slot used much of its ceiling lately
 * @t: the scheduler, accounted up to now
 * @slots: some slots
 */
bool cgpu_ceiling_is_drawn(const struct cgpu_sched *t, u32 slots)
{
	for (slots &= t->ceiling_mask; slots; slots &= slots - 1)
		if (t->slot[__builtin_ctz(slots)].ceiling_budget_ns < DRAWN_NS)
			return true;
	return false;
}

/**
 * cgpu_ceiling_charge_rest() - the account gave a part of an overlap to others
 * @t: the scheduler
 * @slot: which; of no effect on one without a ceiling
 * @ran: all slots of the overlap
 * @rest_ns: that part
 */
void cgpu_ceiling_charge_rest(struct cgpu_sched *t, u32 slot, u32 ran, u64 rest_ns)
{
	if ((t->ceiling_mask >> slot & 1) && may_have_all(t, slot, ran))
		t->slot[slot].ceiling_budget_ns -= (s64)rest_ns;
}

/**
 * cgpu_ceiling_grow() - time has passed
 * @t: the scheduler; the slots were charged
 * @len_ns: how long
 */
void cgpu_ceiling_grow(struct cgpu_sched *t, u64 len_ns)
{
	u32 mask;

	for (mask = t->ceiling_mask; mask; mask &= mask - 1) {
		struct cgpu_sched_entity *s = &t->slot[__builtin_ctz(mask)];
		s64 least = -(REPAID_NS * (s64)s->ceiling / (s64)t->max_inst);
		/* What may be charged yet is not lost to a full budget before. */
		s64 most = BUDGET_NS + cgpu_on_more_ns(t, __builtin_ctz(mask));

		s->ceiling_budget_ns += (s64)(len_ns * s->ceiling / t->max_inst);
		if (s->ceiling_budget_ns > most)
			s->ceiling_budget_ns = most;
		if (s->ceiling_budget_ns < least)
			s->ceiling_budget_ns = least;
	}
}

/* A capped slot goes on with a budget that lasts for a slice, or after a pause that is worth
 * the two calls it takes, whichever is more.
 */
static s64 resume_ns(const struct cgpu_sched *t, const struct cgpu_sched_entity *s)
{
	s64 run = (s64)(t->slice_ns * (t->max_inst - s->ceiling) / t->max_inst);
	s64 pause = (s64)(t->slice_ns * s->ceiling / t->max_inst / PAUSE_PARTS);
	s64 need = run > pause ? run : pause;

	return need < BUDGET_NS ? need : BUDGET_NS;
}

/**
 * cgpu_ceiling_check() - which slots have used up their budget
 * @t: the scheduler, accounted up to now
 *
 * Also of slots that closed the GPU: opening it again ends no pause.
 */
void cgpu_ceiling_check(struct cgpu_sched *t)
{
	u32 mask;

	for (mask = t->ceiling_mask; mask; mask &= mask - 1) {
		u32 i = __builtin_ctz(mask), bit = 1u << i;
		struct cgpu_sched_entity *s = &t->slot[i];

		if (!(t->capped_mask & bit)) {
			t->capped_mask |= s->ceiling_budget_ns <= SLACK_NS ? bit : 0;
			continue;
		}
		s->capped_ns = t->last_ns;
		if (s->ceiling_budget_ns >= resume_ns(t, s)) {
			t->capped_mask &= ~bit;
			s->woken_ns = t->last_ns;
		}
	}
}

/**
 * cgpu_ceiling_binding() - slots that their ceilings pause, now and then
 * @t: the scheduler, after cgpu_ceiling_check()
 *
 * Such a pause is no sleep: the slot had work all the time. A ceiling that a slot does not reach pauses nothing.
 */
u32 cgpu_ceiling_binding(const struct cgpu_sched *t)
{
	u32 mask, out = t->capped_mask;

	for (mask = t->ceiling_mask; mask; mask &= mask - 1) {
		const struct cgpu_sched_entity *s = &t->slot[__builtin_ctz(mask)];

		if (s->capped_ns && t->last_ns - s->capped_ns < BINDS_NS)
			out |= mask & -mask;
	}
	return out;
}

/**
 * cgpu_ceiling_paused() - of slots that woke, those that had no budget, and did not sleep
 * @t: the scheduler
 * @woken: slots
 */
u32 cgpu_ceiling_paused(const struct cgpu_sched *t, u32 woken)
{
	u32 out = 0;

	for (woken &= t->ceiling_mask; woken; woken &= woken - 1) {
		const struct cgpu_sched_entity *s = &t->slot[__builtin_ctz(woken)];

		if (s->capped_ns && s->capped_ns == s->woken_ns)
			out |= woken & -woken;
	}
	return out;
}

/**
 * cgpu_ceiling_left() - how long the answer of cgpu_ceiling_check() holds
 * @t: the scheduler, right after that
 * @run: slots that may run from now on
 * @left_ns: lowered to it
 */
void cgpu_ceiling_left(const struct cgpu_sched *t, u32 run, u64 *left_ns)
{
	u32 may_change = t->capped_mask | (run & ~t->asleep_mask);
	u32 mask;

	for (mask = t->ceiling_mask & t->opened_mask & may_change; mask; mask &= mask - 1) {
		u32 i = __builtin_ctz(mask);
		const struct cgpu_sched_entity *s = &t->slot[i];
		u64 left;

		if (t->capped_mask >> i & 1)
			left = (u64)(resume_ns(t, s) - s->ceiling_budget_ns) * t->max_inst /
			       s->ceiling + 1;
		else
			left = (u64)s->ceiling_budget_ns * t->max_inst / (t->max_inst - s->ceiling);
		if (left < *left_ns)
			*left_ns = left;
	}
}
