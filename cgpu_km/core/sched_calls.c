// SPDX-License-Identifier: MIT OR GPL-2.0-only
/*
 * The calls of hand-overs, and who pays for them.
 *
 * A call takes 64 channels. The time of all calls of a freeze or thaw is charged to the slot that it
 * is of, since it can run from the first thaw to the last freeze. Up to FREE_CALLS that is all. A
 * slot with more could turn all of its part into calls, by a thread that is never idle and holds the
 * driver's locks, for which the calls of others wait. So each of its turns is charged CALLS_TIMES
 * what the calls beyond these usually take to freeze it; a thaw takes as long at most. It has fewer
 * turns, and the others have that time.
 */
#include "sched_calls.h"

#include "sched_debt.h"
#include "sched_hwshare.h"

#define CHANNELS_PER_CALL	64u	/* what DISABLE_CHANNELS takes */
#define FREE_CALLS		4u	/* 256 channels */
#define CALLS_TIMES		8u

static u32 calls_of(const struct cgpu_sched *t, u32 slot)
{
	u32 channels = t->slot[slot].channels;

	return channels / CHANNELS_PER_CALL + (channels % CHANNELS_PER_CALL != 0);
}

/**
 * cgpu_calls() - how many calls it took to freeze or thaw slots
 * @t: the scheduler
 * @mask: which; several are taken as one call, and so is none
 */
u32 cgpu_calls(const struct cgpu_sched *t, u32 mask)
{
	u32 calls = cgpu_is_one(mask) ? calls_of(t, __builtin_ctz(mask)) : 1;

	return calls ? calls : 1;
}

/* In the groups whose turns it takes part in. Where no other waits there are no turns to pay with. */
static void charge(struct cgpu_sched *t, u32 slot, u64 ns)
{
	u32 nr;

	for (nr = 0; nr < CGPU_RR_COUNT; nr++) {
		const struct cgpu_rr *r = &t->rr[nr];

		if (r->running && r->contended && ((r->members | r->asleep) >> slot & 1))
			*cgpu_debt_deficit(t, nr, slot) -= (s64)ns;
	}
}

/**
 * cgpu_calls_charge() - charge slots for calls beyond the free ones
 * @t: the scheduler, accounted up to the end of the freeze; cgpu_resist_note() was called
 * @stopped: slots that were frozen, none is allowed
 */
void cgpu_calls_charge(struct cgpu_sched *t, u32 stopped)
{
	for (; stopped; stopped &= stopped - 1) {
		u32 i = __builtin_ctz(stopped), calls = calls_of(t, i);

		if (calls > FREE_CALLS)
			charge(t, i, (u64)CALLS_TIMES * (calls - FREE_CALLS) * t->slot[i].freeze_ns);
	}
}
