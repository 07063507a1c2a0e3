// SPDX-License-Identifier: MIT OR GPL-2.0-only
/* What follows from a call that failed. */
#include "sched_failed.h"

#include "sched_account.h"

#define RETRY_NS	1000000ull	/* after a failed call; doubles each time */

/**
 * cgpu_failed_count() - calls failed
 * @t: the scheduler
 * @slots: of whose freezes or thaws they were; 0: of timeslices only
 * @at_ns: when the last call was answered
 *
 * Repeated after 1 ms, then 2, up to 64.
 */
void cgpu_failed_count(struct cgpu_sched *t, u32 slots, u64 at_ns)
{
	for (; slots; slots &= slots - 1)
		t->slot[__builtin_ctz(slots)].failed++;
	t->retry_ns = at_ns + (RETRY_NS << t->fails);
	t->fails += t->fails < CGPU_RETRY_DOUBLINGS;
}

/**
 * cgpu_sched_freeze_failed() - a new channel of a frozen slot could not be frozen
 * @t: the scheduler; no plan with calls is under way
 * @slot: the channel's
 * @now_ns: monotonic
 *
 * From here on it may run, and with it the slot: it is charged, it is not enforced, and the
 * freeze of all its channels is repeated as after a plan whose freeze failed.
 *
 * Context: Caller serialises.
 */
void cgpu_sched_freeze_failed(struct cgpu_sched *t, u32 slot, u64 now_ns)
{
	u32 bit;

	if (slot >= CGPU_SLOTS || !(t->opened_mask >> slot & 1))
		return;
	bit = 1u << slot;
	cgpu_sched_update(t, now_ns);
	cgpu_sched_switch(t, t->run_mask | bit);
	t->freeze_unknown_mask |= bit;
	cgpu_failed_count(t, bit, now_ns);
}
