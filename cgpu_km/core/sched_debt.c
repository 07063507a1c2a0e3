// SPDX-License-Identifier: MIT OR GPL-2.0
/*
 * What slots ran too long, and how they pay it back.
 *
 * A credit below zero costs whole grants: no turn until it is paid. What is owed costs halves
 * of grants: turns are shorter and none is lost. A late thread or a clock that jumped does not
 * come again with each turn, so halves pay for it. A kernel that resists its freeze does come
 * again, and halves of 8 ms do not pay for 50 ms each turn: it costs whole grants, for a wait
 * of WAIT_MAX_NS. That is 80 ms of one of 25 slots, and 1 s of one of two. What a kernel
 * resists beyond that is owed too; it gains that part, and the wait of each slot is bounded.
 */
#include "sched_debt.h"

#define WAIT_MAX_NS	2000000000ull
#define OWED_MAX_NS	1000000000ull	/* or a round, if that is longer */

/**
 * cgpu_debt_credit() - a slot's credit in one rotation
 * @t: the scheduler
 * @nr: enum cgpu_rota_nr
 * @slot: which
 */
s64 *cgpu_debt_credit(struct cgpu_sched *t, u32 nr, u32 slot)
{
	struct cgpu_sched_entity *s = &t->slot[slot];

	return nr == CGPU_ROTA_BESIDE ? &s->beside_ns : &s->credit_ns;
}

static u32 *owed_ns(struct cgpu_sched *t, u32 nr, u32 slot)
{
	return &t->slot[slot].owed_ns[nr == CGPU_ROTA_BESIDE];
}

/* Of a debt, what is beyond @withheld_ns is owed. */
static void spread(struct cgpu_sched *t, u32 nr, u32 slot, u64 withheld_ns)
{
	s64 *credit = cgpu_debt_credit(t, nr, slot), beyond = -*credit - (s64)withheld_ns;
	u32 *owed = owed_ns(t, nr, slot);

	if (beyond <= 0)
		return;
	*owed = beyond > (s64)(0xffffffffu - *owed) ? 0xffffffffu : *owed + (u32)beyond;
	*credit += beyond;
}

/**
 * cgpu_debt_spread() - slots that did not resist their freeze pay with halves of grants
 * @t: the scheduler, accounted up to their freeze
 * @slots: which
 *
 * Up to half a slice is the usual error of a turn, which the next one makes up for: it is no
 * more than half of a grant, unless grants are scaled down, and then halves would never do.
 */
void cgpu_debt_spread(struct cgpu_sched *t, u32 slots)
{
	for (; slots; slots &= slots - 1) {
		spread(t, CGPU_ROTA_MAIN, __builtin_ctz(slots), t->slice_ns / 2);
		spread(t, CGPU_ROTA_BESIDE, __builtin_ctz(slots), t->slice_ns / 2);
	}
}

/**
 * cgpu_debt_grant() - a slot's part of a round, less what it pays
 * @t: the scheduler
 * @nr: enum cgpu_rota_nr
 * @slot: which
 * @grant_ns: its part by its portions
 * @part_ns: what the switches of the round leave of that
 * @round_ns: all of the round
 *
 * Half of a part pays for what is owed, and less where the rest would be no turn.
 */
void cgpu_debt_grant(struct cgpu_sched *t, u32 nr, u32 slot, u64 grant_ns, s64 part_ns,
		     u64 round_ns)
{
	u64 most_owed = round_ns > OWED_MAX_NS ? round_ns : OWED_MAX_NS;
	s64 *credit = cgpu_debt_credit(t, nr, slot), pays;
	u32 *owed = owed_ns(t, nr, slot);

	spread(t, nr, slot, WAIT_MAX_NS * grant_ns / round_ns);
	if (*owed > most_owed)
		*owed = (u32)most_owed;
	*credit += part_ns;
	pays = *credit - (s64)(t->slice_ns / CGPU_TURN_MIN_PARTS);
	pays = pays < *credit - part_ns / 2 ? pays : *credit - part_ns / 2;
	pays = pays < part_ns / 2 ? pays : part_ns / 2;
	pays = pays < *owed ? pays : *owed;
	if (pays <= 0)
		return;
	*credit -= pays;
	*owed -= (u32)pays;
}

/**
 * cgpu_debt_drop() - a slot owes nothing any more
 * @t: the scheduler
 * @nr: enum cgpu_rota_nr
 * @slot: which
 */
void cgpu_debt_drop(struct cgpu_sched *t, u32 nr, u32 slot)
{
	*owed_ns(t, nr, slot) = 0;
}
