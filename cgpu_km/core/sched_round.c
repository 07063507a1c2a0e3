// SPDX-License-Identifier: MIT OR GPL-2.0-only
/* How long a round of turns is, and what of it each slot has. */
#include "sched_round.h"

#include "policy.h"
#include "sched_debt.h"

#define SCALED_SLICES	20	/* a round of scaled grants; the least is a slice if it fits */

/**
 * cgpu_round_grant_ns() - a slot's part of a round by its slices
 * @t: the scheduler
 * @slot: which
 */
u64 cgpu_round_grant_ns(const struct cgpu_sched *t, u32 slot)
{
	const struct cgpu_policy *policy = cgpu_policy_get(t->policy);
	const struct cgpu_sched_entity *s = &t->slot[slot];
	u64 ns = policy->slices(s) * t->slice_ns;
	u32 sum = t->opened_weight[s->highprio], least;

	if (!policy->scaled || !sum)
		return ns;
	least = t->least_weight[s->highprio];
	return sum <= least * SCALED_SLICES ? ns / least : ns * SCALED_SLICES / sum;
}

/**
 * cgpu_round_of() - how long a round is, and what of it goes to context switches
 * @t: the scheduler
 * @r: one of its round-robin groups
 */
struct cgpu_round cgpu_round_of(const struct cgpu_sched *t, const struct cgpu_rr *r)
{
	struct cgpu_round whole = { 0, 0 };
	u32 mask;

	for (mask = r->members; mask; mask &= mask - 1) {
		whole.len_ns += cgpu_round_grant_ns(t, __builtin_ctz(mask));
		whole.lost_ns += t->switch_ns;
	}
	if (r->fixed && whole.len_ns < t->max_inst * t->slice_ns) {
		whole.len_ns = t->max_inst * t->slice_ns;
		whole.lost_ns = 0;
	}
	return whole;
}

/**
 * cgpu_round_part_ns() - what the switches of a round leave of a slot's part
 * @t: the scheduler
 * @whole: cgpu_round_of() its group
 * @slot: which
 *
 * Each switch is refunded to its slot, and all switches are subtracted from the slots' parts in
 * proportion: so a round is as long as its slices, and the rest of it is shared by weight.
 */
s64 cgpu_round_part_ns(const struct cgpu_sched *t, const struct cgpu_round *whole, u32 slot)
{
	u64 grant = cgpu_round_grant_ns(t, slot), lost = whole->lost_ns * grant / whole->len_ns;

	/* Where a slice is hardly longer than a switch something is left: debts are paid of it. */
	if (lost > grant - grant / CGPU_TURN_MIN_PARTS)
		lost = grant - grant / CGPU_TURN_MIN_PARTS;
	return (s64)(grant - lost);
}
