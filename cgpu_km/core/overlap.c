// SPDX-License-Identifier: MIT OR GPL-2.0
/* Time in which several could run, as from a thaw to a freeze: who had it is the hardware's doing. */
#include "account.h"

#include "rota.h"

#define LEGS_MAX	16	/* timeslices of an overlap that are told apart */

static u64 pull(const struct cgpu_turn_slot *s, bool by_timeslice)
{
	u64 tsgs = s->tsgs ? s->tsgs : 1;

	if (!by_timeslice)
		return tsgs;
	return tsgs * (s->timeslice_us ? s->timeslice_us : CGPU_DRIVER_TIMESLICE_US);
}

/**
 * cgpu_rota_pull() - what all of several that run together pull
 * @t: the turn engine
 * @mask: who runs
 * @by_timeslice: weigh TSGs by their timeslice, not all the same
 */
u64 cgpu_rota_pull(const struct cgpu_turn *t, u32 mask, bool by_timeslice)
{
	u64 all = 0;

	for (; mask; mask &= mask - 1)
		all += pull(&t->slot[__builtin_ctz(mask)], by_timeslice);
	return all;
}

/**
 * cgpu_rota_split() - what one of several that ran together got
 * @t: the turn engine
 * @all: cgpu_rota_pull() of them
 * @slot: whose part
 * @by_timeslice: as in cgpu_rota_pull()
 * @len_ns: how long they ran together
 *
 * Return: nanoseconds, rounded down.
 */
u64 cgpu_rota_split(const struct cgpu_turn *t, u64 all, u32 slot, bool by_timeslice,
		    u64 len_ns)
{
	u64 mine = pull(&t->slot[slot], by_timeslice);

	if (mine == all)
		return len_ns;
	if (mine <= 0xffffffffu && len_ns <= 0xffffffffu)
		return len_ns * mine / all;
	return len_ns / all * mine + len_ns % all * mine / all;
}

/* How long a container goes on once it is the hardware's turn: each of its TSGs has a
 * timeslice, and a switch lies between two.
 */
static u64 block_ns(const struct cgpu_turn *t, const struct cgpu_turn_slot *s)
{
	u64 slice_ns = (s->timeslice_us ? s->timeslice_us : CGPU_DRIVER_TIMESLICE_US) * 1000ull;

	return s->tsgs > 1 ? s->tsgs * (slice_ns + t->switch_ns) - t->switch_ns : slice_ns;
}

/* How long one that runs goes on when another one can run too, as far as it matters for
 * @len_ns. Where in its timeslice it is, and which of its TSGs runs, is not known, so the
 * mean: nothing in short queues keeps to the beginnings that could be told, and turns are
 * spread over a timeslice (cgpu_rota_late_ns()).
 */
static u64 rest_ns(const struct cgpu_turn *t, const struct cgpu_turn_slot *s, u64 len_ns)
{
	u64 block = block_ns(t, s), tsgs = s->tsgs ? s->tsgs : 1;
	u64 slice_ns = block / tsgs, in_last, rest;

	in_last = len_ns < slice_ns ? len_ns - len_ns * len_ns / (2 * slice_ns) : slice_ns / 2;
	rest = len_ns - (len_ns - in_last) / tsgs;
	return rest < block / 2 ? rest : block / 2;
}

/**
 * cgpu_account_overlap() - charge the time in which two could run
 * @t: the turn engine, accounted up to where the overlap began
 * @before: who could run before it
 * @after: who can when it ends
 * @to_ns: its end
 *
 * The one that ran goes on to the end of its timeslice, if it has several TSGs to that
 * of the last of them; then they alternate, a timeslice for each TSG. With more than two
 * it is split by what each one pulls.
 */
void cgpu_account_overlap(struct cgpu_turn *t, u32 before, u32 after, u64 to_ns)
{
	u32 opened = t->opened_mask, all = t->run_mask, i;
	u32 who[2] = { before & ~after & opened, after & ~before & opened };
	u64 end_ns;

	if (!cgpu_is_one(who[0]) || !cgpu_is_one(who[1]) || (before & after & opened) ||
	    to_ns <= t->last_ns) {
		cgpu_account_until(t, to_ns);
		return;
	}
	end_ns = t->last_ns + rest_ns(t, &t->slot[__builtin_ctz(who[0])], to_ns - t->last_ns);
	for (i = 0; i < LEGS_MAX && t->last_ns < to_ns; i++) {
		t->run_mask = who[i % 2];
		if (i > 1)
			cgpu_rota_refund_switch(t, t->run_mask);
		cgpu_account_until(t, end_ns < to_ns ? end_ns : to_ns);
		end_ns += t->switch_ns + block_ns(t, &t->slot[__builtin_ctz(who[(i + 1) % 2])]);
	}
	t->run_mask = all;
	cgpu_account_until(t, to_ns);
}
