// SPDX-License-Identifier: MIT OR GPL-2.0-only
/* What follows from a call that failed. */
#include "sched_failed.h"

#include "sched_account.h"

#define RETRY_NS	1000000ull	/* after a failed call; doubles each time */

/**
 * cgpu_failed_due() - slots whose calls that failed may be repeated
 * @t: the scheduler
 * @now_ns: monotonic
 *
 * Each by its own time: a channel that the driver refuses for good puts off the repetition of no other slot's call.
 */
u32 cgpu_failed_due(const struct cgpu_sched *t, u64 now_ns)
{
	u32 mask, out = 0;

	for (mask = t->freeze_unknown_mask | t->ts_failed_mask; mask; mask &= mask - 1)
		if (now_ns >= t->slot[__builtin_ctz(mask)].retry_ns)
			out |= mask & -mask;
	return out;
}

/**
 * cgpu_failed_until() - when the next of the others may be
 * @t: the scheduler
 * @due: cgpu_failed_due()
 * @until_ns: lowered to it
 */
void cgpu_failed_until(const struct cgpu_sched *t, u32 due, u64 *until_ns)
{
	u32 mask;

	for (mask = (t->freeze_unknown_mask | t->ts_failed_mask) & ~due; mask; mask &= mask - 1) {
		u64 retry_ns = t->slot[__builtin_ctz(mask)].retry_ns;

		if (retry_ns < *until_ns)
			*until_ns = retry_ns;
	}
}

/**
 * cgpu_failed_count() - calls were made
 * @t: the scheduler, with what failed in its masks
 * @called: slots for which
 * @failed: of these, those whose freeze or thaw failed
 * @ts_failed: and those whose timeslice was not set
 * @at_ns: when the last call was answered
 *
 * Repeated after 1 ms, then 2, up to 64, until all calls for a slot succeed.
 */
void cgpu_failed_count(struct cgpu_sched *t, u32 called, u32 failed, u32 ts_failed, u64 at_ns)
{
	for (; called; called &= called - 1) {
		struct cgpu_sched_entity *s = &t->slot[__builtin_ctz(called)];
		u32 bit = called & -called;

		s->failed += (failed & bit) != 0;
		if ((failed | ts_failed) & bit) {
			s->retry_ns = at_ns + (RETRY_NS << s->retries);
			s->retries += s->retries < CGPU_RETRY_DOUBLINGS;
		} else if (!((t->freeze_unknown_mask | t->ts_failed_mask) & bit)) {
			s->retries = 0;
		}
	}
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
	t->part_thawed_mask &= ~bit;
	cgpu_failed_count(t, bit, bit, 0, now_ns);
}
