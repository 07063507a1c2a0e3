// SPDX-License-Identifier: MIT OR GPL-2.0-only
/*
 * Fixed rounds, policies 0 and 3: max_inst slices, of which the empty ones are the buffer.
 * Each ends where its place in the round is, however late the turn before it was.
 */
#include "sched_rr.h"

#define LAG_PARTS	4	/* a round may begin this part of itself late */
#define FULL_LAG_SLICES	3	/* and these slices, if that is more */
#define LATE_TURN_PARTS	2	/* a turn that begins later than this part of a slice is late */

/* The first of @members at @from or behind it that had no turn in this round: a
 * change moves slices, and must not give two.
 */
static u32 at_slice(const struct cgpu_sched *t, u32 members, u32 from, u32 round)
{
	u32 best = CGPU_NO_SLOT;

	for (; members; members &= members - 1) {
		u32 i = __builtin_ctz(members);

		if (t->slot[i].first_slice < from || t->slot[i].last_round_served == round)
			continue;
		if (best >= CGPU_SLOTS || t->slot[i].first_slice < t->slot[best].first_slice)
			best = i;
	}
	return best;
}

/* A slot whose slices were moved to a place that the round has passed, or CGPU_NO_SLOT. A slot
 * created in this round missed nothing.
 */
static u32 missed_slot(const struct cgpu_sched *t, const struct cgpu_rr *r)
{
	u32 mask;

	for (mask = r->members & t->opened_mask; mask; mask &= mask - 1) {
		const struct cgpu_sched_entity *s = &t->slot[__builtin_ctz(mask)];

		if (s->first_slice < r->cursor && s->last_round_served == (u32)r->round)
			return __builtin_ctz(mask);
	}
	return CGPU_NO_SLOT;
}

static void next_round(struct cgpu_sched *t, struct cgpu_rr *r)
{
	u64 most_late = t->max_inst * t->slice_ns / LAG_PARTS;
	u32 mask;

	/* In a small full house a quarter of a round is hardly more than what makes a turn late.
	 * A slow call that is paid back takes the lateness away, and gaps would bring it again.
	 */
	if (most_late < FULL_LAG_SLICES * t->slice_ns)
		most_late = FULL_LAG_SLICES * t->slice_ns;
	r->cursor = 0;
	r->round++;
	for (mask = r->members; mask; mask &= mask - 1)
		t->slot[__builtin_ctz(mask)].last_round_served = (u32)r->round;
	if (r->clock_ns > r->slot_start_ns + most_late)
		r->slot_start_ns = r->clock_ns - most_late;
}

/* Move to the next stretch of the fixed round: a slot's or an empty one. A slot that missed
 * its place has the next empty one, at the latest after the last stretch.
 */
static void next_stretch(struct cgpu_sched *t, u32 nr)
{
	struct cgpu_rr *r = &t->rr[nr];
	struct cgpu_round whole = cgpu_round_of(t, r);
	u32 slot, to, missed, own;

	missed = missed_slot(t, r);
	if (r->cursor >= t->max_inst && missed >= CGPU_SLOTS)
		next_round(t, r);
	slot = at_slice(t, r->members, r->cursor, (u32)r->round + 1);
	to = slot < CGPU_SLOTS ? t->slot[slot].first_slice : t->max_inst;
	to = to < r->cursor ? r->cursor : to;	/* max_inst may have become less */
	if (to == r->cursor && slot < CGPU_SLOTS) {
		to += cgpu_policy_get(t->policy)->slices(&t->slot[slot]);
		r->late = r->clock_ns > r->slot_start_ns + t->slice_ns / LATE_TURN_PARTS;
	} else if (missed < CGPU_SLOTS) {
		slot = missed;
		own = cgpu_policy_get(t->policy)->slices(&t->slot[slot]);
		to = own < to - r->cursor ? r->cursor + own : to;
	} else {
		slot = CGPU_NO_SLOT;
	}
	if (slot < CGPU_SLOTS) {
		cgpu_turn_begin(t, nr, slot, &whole);
		t->slot[slot].last_round_served = (u32)r->round + 1;
	}
	r->slot_start_ns += (to - r->cursor) * t->slice_ns;
	r->cursor = to;
}

/**
 * cgpu_rr_step_fixed() - select the current slot in a round of max_inst slices
 * @t: the scheduler, accounted up to now
 * @nr: enum cgpu_rr_nr
 * @members: slots that take turns
 * @left_ns: how long it stays so, by what is known now
 *
 * Empty slices pass.
 *
 * Return: the slot that may run as a mask, 0 in an empty slice.
 */
u32 cgpu_rr_step_fixed(struct cgpu_sched *t, u32 nr, u32 members, u64 *left_ns)
{
	struct cgpu_rr *r = &t->rr[nr];
	u32 steps;

	cgpu_rr_enter(t, nr, members, 0, true);
	r->contended = 1;
	if (r->curr < CGPU_SLOTS && cgpu_turn_over(t, nr))
		cgpu_turn_end(t, nr);
	for (steps = 0; steps < CGPU_RR_STEPS_MAX; steps++) {
		if (r->curr < CGPU_SLOTS) {
			*left_ns = cgpu_turn_left_ns(t, nr);
			return 1u << r->curr;
		}
		if (r->clock_ns < r->slot_start_ns)
			break;
		next_stretch(t, nr);
	}
	*left_ns = r->slot_start_ns > r->clock_ns ? r->slot_start_ns - r->clock_ns : t->slice_ns;
	return 0;
}
