// SPDX-License-Identifier: MIT OR GPL-2.0-only
/*
 * Holds that last only while a utilisation sample is due.
 *
 * What a container does alone is seen in samples, five in a second. Held for all of that second the others lose it, and
 * the GPU idles with the one that is looked at. Held around the samples they lose a twelfth of it.
 */
#include "sched_hold.h"

#include "sched_rr.h"

/* On an H100 a sample is at most 3.5 ms early or late. The rest is for the call that freezes, and the margin of the
 * effect check.
 */
#define AROUND_NS	8000000ull

/**
 * cgpu_hold_at_samples() - hold slots around each sample that is to come
 * @t: the scheduler
 * @mask: slots
 * @at_ns: when a sample was taken
 * @every_ns: how far they are apart, more than 0
 *
 * Context: Caller serialises. Acts at the next cgpu_sched_next(); cgpu_sched_set_held() ends it.
 */
void cgpu_hold_at_samples(struct cgpu_sched *t, u32 mask, u64 at_ns, u64 every_ns)
{
	t->hold_mask = mask & t->live_mask;
	t->hold_at_ns = at_ns;
	t->hold_every_ns = every_ns;
}

/**
 * cgpu_hold_step() - hold the slots if a sample is due, else let them go
 * @t: the scheduler, accounted up to now
 * @left_ns: lowered to the time until that changes
 */
void cgpu_hold_step(struct cgpu_sched *t, u64 *left_ns)
{
	u64 every_ns = t->hold_every_ns, now_ns = t->last_ns, over_ns, due_ns;
	u32 mask;

	/* A plan of a pause has no end, and freezes none. */
	if (!t->hold_mask || t->paused)
		return;
	over_ns = t->hold_at_ns + AROUND_NS;
	if (now_ns >= over_ns)
		t->hold_at_ns += ((now_ns - over_ns) / every_ns + 1) * every_ns;
	due_ns = t->hold_at_ns > AROUND_NS ? t->hold_at_ns - AROUND_NS : 0;
	mask = now_ns >= due_ns ? t->hold_mask : 0;
	if (mask != t->held_mask) {
		t->held_mask = mask;
		cgpu_rr_refresh(t);
	}
	over_ns = (mask ? due_ns + 2 * AROUND_NS : due_ns) - now_ns;
	if (over_ns < *left_ns)
		*left_ns = over_ns;
}
