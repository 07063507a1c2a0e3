// SPDX-License-Identifier: MIT OR GPL-2.0-only
/* High priority that launches its kernels one at a time: gaps too short for the hardware to lend. */
#include "sched_dense.h"

/* The others are frozen after a high-priority one has worked so long with gaps too short to be lent,
 * at once where its bursts were long before.
 */
#define DENSE_NS	4000000ull
#define DENSE_FLICKER	16u	/* more than one such gap */
#define DENSE_BURSTS	2u	/* of struct cgpu_sched_entity.long_bursts */

/* How much of such work is work: over about so long, since a budget lasts for as long. */
#define SHARE_NS	1000000000ull
#define WORK_PERCENT	80u	/* with less, its gaps are charged */

/**
 * cgpu_dense_mask() - high-priority slots beside which the others must not run
 * @t: the scheduler, accounted up to now
 * @high: those with highprio whose run state is known, awake
 * @left_ns: lowered to the time until one more may be such
 *
 * A slot that launches its kernels one at a time leaves the GPU for a moment after each. The
 * hardware gives it to the others, and two switches and a timeslice are many times the gap. It is
 * known by readings that find such gaps. Where its bursts of such work were long lately, the others
 * are frozen as soon as it wakes: what it lost to them in half a millisecond would be more than the
 * calls cost. Of another one only after DENSE_NS, since two calls take a good part of
 * that. Until it sleeps. Without the timeslice control others would have the driver's timeslice
 * beside any of them.
 *
 * Return: mask of them.
 */
u32 cgpu_dense_mask(struct cgpu_sched *t, u32 high, u64 *left_ns)
{
	u32 mask;

	if (!(t->controls & CGPU_CTRL_TIMESLICE))
		return high;
	t->dense_mask &= high;
	for (mask = high & ~t->dense_mask; mask; mask &= mask - 1) {
		u32 i = __builtin_ctz(mask);
		const struct cgpu_sched_entity *s = &t->slot[i];
		u64 age_ns = t->last_ns - s->worked_since_ns;
		u64 after_ns = s->long_bursts >= DENSE_BURSTS ? 0 : DENSE_NS;

		if (!s->worked_since_ns || s->flicker < DENSE_FLICKER)
			continue;
		if (age_ns >= after_ns)
			t->dense_mask |= 1u << i;
		else if (after_ns - age_ns < *left_ns)
			*left_ns = after_ns - age_ns;
	}
	return t->dense_mask;
}

/* All of @high are known to work so, and have for long enough. */
static bool is_in_stretch(const struct cgpu_sched *t, u32 high)
{
	if (!high || (high & (~t->known_mask | ~t->dense_mask | ~t->run_mask)))
		return false;
	for (; high; high &= high - 1) {
		u64 since_ns = t->slot[__builtin_ctz(high)].worked_since_ns;

		if (!since_ns || t->last_ns - since_ns < DENSE_NS)
			return false;
	}
	return true;
}

/**
 * cgpu_dense_note() - time has passed beside high priority
 * @t: the scheduler, its last reading at the end of that time
 * @high: high-priority slots that are awake
 * @len_ns: how long
 *
 * A reading at a drawn time finds work as often as there is some, so the sums give its share. Only
 * those after one that found work: the others follow soon, and find the same gap again.
 */
void cgpu_dense_note(struct cgpu_sched *t, u32 high, u64 len_ns)
{
	bool in_stretch = !t->inflight && is_in_stretch(t, high), works = high & t->busy_mask;
	bool after_work = t->dense_after_work;

	t->dense_after_work = in_stretch && works;
	if (!after_work || !in_stretch)
		return;
	t->dense_ns += len_ns;
	if (works)
		t->dense_busy_ns += len_ns;
	if (t->dense_ns < SHARE_NS)
		return;
	t->dense_ns /= 2;
	t->dense_busy_ns /= 2;
}

/**
 * cgpu_dense_forgives() - is high priority in a gap that is not charged
 * @t: the scheduler, its last reading at the end of the time to charge
 * @high: high-priority slots that are awake
 *
 * No control can lend gaps so short: charged for them, a slot that launches one kernel after another
 * without end would be stopped for time that it did not work in. In shorter bursts it has gaps too
 * that could be lent and are not, since the others are frozen: all of them are charged. So are those
 * of a slot that works for less than WORK_PERCENT of such a stretch: by its work alone it would never
 * reach the ceiling, and the others would have nothing of a GPU that idles.
 */
bool cgpu_dense_forgives(const struct cgpu_sched *t, u32 high)
{
	return !(high & t->busy_mask) && is_in_stretch(t, high) &&
	       t->dense_busy_ns * 100 >= t->dense_ns * WORK_PERCENT;
}
