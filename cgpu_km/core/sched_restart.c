// SPDX-License-Identifier: MIT OR GPL-2.0-only
/* When the runlist is restarted, so that timeslices that were set are in force. */
#include "sched_restart.h"

#include "sched_account.h"

#define RESTART_NS	20000000ull	/* between two restarts for TSGs that came */

/**
 * cgpu_restart_plan() - whether the timeslices of a plan are followed by a restart
 * @t: the scheduler, accounted up to now
 * @plan: with its timeslices, and of @plan->unrestarted_mask those that may be called for; completed
 * @left_ns: lowered to when those that wait for a restart are due
 *
 * A restart is a context switch for whatever runs, and a container decides how often it makes a TSG:
 * restarts for these alone are so far apart. One for a timeslice that the policy changed is not put off.
 */
void cgpu_restart_plan(const struct cgpu_sched *t, struct cgpu_sched_plan *plan, u64 *left_ns)
{
	u64 age_ns = t->last_ns - t->restarted_ns;

	plan->restart = t->paused || age_ns >= RESTART_NS || (plan->timeslice_mask & ~t->ts_dirty_mask);
	if (plan->restart)
		plan->timeslice_mask |= plan->unrestarted_mask;
	else if (plan->unrestarted_mask && RESTART_NS - age_ns < *left_ns)
		*left_ns = RESTART_NS - age_ns;
	plan->unrestarted_mask &= plan->timeslice_mask;
}

/**
 * cgpu_restart_note() - what of a plan waits for a restart
 * @t: the scheduler, accounted up to the calls before it
 * @planned: slots whose timeslices it was to set
 * @unrestarted: slots that do
 * @restarted_ns: when the runlist was restarted; 0: it was not
 */
void cgpu_restart_note(struct cgpu_sched *t, u32 planned, u32 unrestarted, u64 restarted_ns)
{
	t->unrestarted_mask = (t->unrestarted_mask & ~planned) | unrestarted;
	if (!restarted_ns)
		return;
	cgpu_account_restart(t, restarted_ns);
	t->restarted_ns = restarted_ns;
	t->unrestarted_mask = 0;
}
