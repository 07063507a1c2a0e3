// SPDX-License-Identifier: MIT OR GPL-2.0-only
/*
 * Debts: the time by which slots ran too long, and how they pay it back.
 *
 * A credit below zero costs whole grants: no turn until it is paid. Owed time costs halves of
 * grants: turns are shorter and none is lost.
 *
 * Slow calls are frequent and their costs are up to a few slices, which whole grants pay for:
 * with halves, one slow call in thirty would keep 25 equal slots 7 % apart. A debt beyond
 * CGPU_DEBT_USUAL_SLICES at the begin of the call that freezes the slot comes from a late thread
 * or from a clock that jumped. It does not come again with each turn, so halves pay for it. The
 * time that a slot runs during the call that freezes it costs whole grants: otherwise a kernel
 * that resists each of its freezes for 50 ms on slices of 8 would never pay. Whole grants are
 * withheld for WAIT_MAX_NS at most: that is 80 ms of one of 25 slots, and 1 s of one of two. The
 * time that a kernel resists beyond that is owed too; it gains that part, and the wait of each
 * slot is bounded.
 */
#include "sched_debt.h"

#define WAIT_MAX_NS	2000000000ull
#define OWED_MAX_NS	1000000000ull	/* or a round, if that is longer */

/**
 * cgpu_debt_deficit() - a slot's credit in one group
 * @t: the scheduler
 * @nr: enum cgpu_rr_nr
 * @slot: which
 */
s64 *cgpu_debt_deficit(struct cgpu_sched *t, u32 nr, u32 slot)
{
	struct cgpu_sched_entity *s = &t->slot[slot];

	return nr == CGPU_RR_BACKGROUND ? &s->bg_deficit_ns : &s->deficit_ns;
}

static u32 *owed_ns(struct cgpu_sched *t, u32 nr, u32 slot)
{
	return &t->slot[slot].owed_ns[nr == CGPU_RR_BACKGROUND];
}

/* The part of a debt beyond @withheld_ns is owed. */
static void spread(struct cgpu_sched *t, u32 nr, u32 slot, u64 withheld_ns)
{
	s64 *deficit = cgpu_debt_deficit(t, nr, slot), beyond = -*deficit - (s64)withheld_ns;
	u32 *owed = owed_ns(t, nr, slot);

	if (beyond <= 0)
		return;
	*owed = beyond > (s64)(0xffffffffu - *owed) ? 0xffffffffu : *owed + (u32)beyond;
	*deficit += beyond;
}

/**
 * cgpu_debt_spread() - debts from before the call that freezes the slots cost halves
 * @t: the scheduler, accounted up to that call
 * @slots: which
 * @usual_ns: this much costs whole grants
 */
void cgpu_debt_spread(struct cgpu_sched *t, u32 slots, u64 usual_ns)
{
	for (; slots; slots &= slots - 1) {
		spread(t, CGPU_RR_NORMAL, __builtin_ctz(slots), usual_ns);
		spread(t, CGPU_RR_BACKGROUND, __builtin_ctz(slots), usual_ns);
	}
}

/**
 * cgpu_debt_grant() - a slot's part of a round, less what it pays
 * @t: the scheduler
 * @nr: enum cgpu_rr_nr
 * @slot: which
 * @grant_ns: its part by its slices
 * @part_ns: what the switches of the round leave of that
 * @round_ns: all of the round
 *
 * Half of a part pays for owed time, or less if the rest would be no turn.
 */
void cgpu_debt_grant(struct cgpu_sched *t, u32 nr, u32 slot, u64 grant_ns, s64 part_ns,
		     u64 round_ns)
{
	u64 most_owed = round_ns > OWED_MAX_NS ? round_ns : OWED_MAX_NS;
	s64 *deficit = cgpu_debt_deficit(t, nr, slot), pays;
	u32 *owed = owed_ns(t, nr, slot);

	spread(t, nr, slot, WAIT_MAX_NS * grant_ns / round_ns);
	if (*owed > most_owed)
		*owed = (u32)most_owed;
	*deficit += part_ns;
	pays = *deficit - (s64)(t->slice_ns / CGPU_TURN_MIN_PARTS);
	pays = pays < *deficit - part_ns / 2 ? pays : *deficit - part_ns / 2;
	pays = pays < part_ns / 2 ? pays : part_ns / 2;
	pays = pays < *owed ? pays : *owed;
	if (pays <= 0)
		return;
	*deficit -= pays;
	*owed -= (u32)pays;
}

/**
 * cgpu_debt_drop() - a slot owes nothing any more
 * @t: the scheduler
 * @nr: enum cgpu_rr_nr
 * @slot: which
 */
void cgpu_debt_drop(struct cgpu_sched *t, u32 nr, u32 slot)
{
	*owed_ns(t, nr, slot) = 0;
}

/**
 * cgpu_debt_clear() - a slot has neither credit nor debt, in any group
 * @t: the scheduler
 * @slot: which
 *
 * Also not by a correction to come: it would be one of what is forgotten (sched_on.c).
 */
void cgpu_debt_clear(struct cgpu_sched *t, u32 slot)
{
	struct cgpu_sched_entity *s = &t->slot[slot];

	s->deficit_ns = 0;
	s->bg_deficit_ns = 0;
	memset(s->owed_ns, 0, sizeof(s->owed_ns));
	s->open_turn_ns = 0;
}
