// SPDX-License-Identifier: MIT OR GPL-2.0
/*
 * What high priority uses, by the driver's utilisation samples.
 *
 * Without a run state nothing else shows whether high priority works. Five samples a second are few:
 * they decide within seconds whether it is above its ceiling, which timeslices then enforce. They
 * never decide who runs next.
 */
#include "sched_use.h"

#define WINDOW		32u		/* samples; then the old ones count half */
#define FEWEST		8u		/* before that they say nothing */
#define FRESH_NS	5000000000ull	/* they come once a second, the newest a second old */
#define LEAVE_PERCENT	20u		/* so much below prio_ratio, and it is above no more */

/**
 * cgpu_use_note() - a utilisation sample
 * @t: the scheduler
 * @on: the slot on the engine, as a mask; 0: idle
 * @at_ns: when; monotonic, rising
 *
 * Only while the ceiling is in force: a container with high priority and one without have opened
 * the GPU.
 */
void cgpu_use_note(struct cgpu_sched *t, u32 on, u64 at_ns)
{
	u32 high = t->weighted_mask[1] & t->opened_mask, part;

	if (!high || !(t->weighted_mask[0] & t->opened_mask))
		return;
	t->use_ns = at_ns;
	t->use_samples++;
	t->use_high += (on & high) != 0;
	part = t->use_high * 100;
	if (t->use_samples < FEWEST || part + LEAVE_PERCENT * t->use_samples < t->prio_ratio * t->use_samples)
		t->use_over = 0;
	else if (part > t->prio_ratio * t->use_samples)
		t->use_over = 1;
	if (t->use_samples < WINDOW)
		return;
	t->use_samples /= 2;
	t->use_high /= 2;
}

/**
 * cgpu_use_forget() - begin anew
 * @t: the scheduler
 */
void cgpu_use_forget(struct cgpu_sched *t)
{
	t->use_samples = 0;
	t->use_high = 0;
	t->use_over = 0;
}

/**
 * cgpu_use_of_high() - is high priority above its ceiling
 * @t: the scheduler, accounted up to now
 *
 * Return: by the samples of the last seconds.
 */
enum cgpu_use cgpu_use_of_high(const struct cgpu_sched *t)
{
	if (t->use_samples < FEWEST || t->last_ns > t->use_ns + FRESH_NS)
		return CGPU_USE_UNKNOWN;
	return t->use_over ? CGPU_USE_OVER : CGPU_USE_BELOW;
}
