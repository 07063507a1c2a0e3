// SPDX-License-Identifier: MIT OR GPL-2.0
/* What the run-state source read: which slots have work. */
#include "sched_gpu.h"

#include "sched_account.h"

/**
 * cgpu_sched_set_run_state() - the run state of the channels was read
 * @t: the scheduler
 * @known: slots of which every graphics/compute channel was read
 * @busy: those of @known with work
 * @now_ns: monotonic
 *
 * The time until now is charged by the run state that was read before.
 *
 * Context: Caller serialises.
 * Return: true if the plan in force no longer fits.
 */
bool cgpu_sched_set_run_state(struct cgpu_sched *t, u32 known, u32 busy, u64 now_ns)
{
	u32 before = t->known_mask & ~t->busy_mask, idle;

	if (!t->inflight)
		cgpu_account_until(t, now_ns);
	t->known_mask = known & t->live_mask;
	t->busy_mask = busy & t->known_mask;
	idle = t->known_mask & ~t->busy_mask;
	return idle != before;
}
