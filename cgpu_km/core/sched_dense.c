// SPDX-License-Identifier: MIT OR GPL-2.0-only
/* High priority with gaps too short to be lent, as between kernels that are launched one at a time. */
#include "sched_dense.h"

/* The others are frozen after a high-priority one has worked so long with gaps too short to be lent,
 * at once where its bursts were long before.
 */
#define DENSE_NS	4000000ull
#define DENSE_BURSTS	2u	/* of struct cgpu_sched_entity.long_bursts */
#define BURST_LONG_NS	500000ull	/* about what a freeze and a thaw take from others */
#define LONG_BURSTS_MAX	3u

/* Quarters of a switch. A gap that is lent costs two switches, so shorter ones give others less than the
 * work after them is late.
 */
#define TOO_SHORT	7u	/* gaps of less on average are kept */
#define PAYS		8u	/* of as much they are lent again */
#define COUNTS		24u	/* what is longer counts for no more */
#define SWITCH_LEAST_NS	25000u	/* gaps of less than two such are not told from none */

#define BEFORE_MAX_NS	100000u	/* calls in the gap put off what is taken for its begin */
#define LONG_NS		2000000ull	/* others have such a gap by calls too, so it counts for a part: */
#define LONG_PARTS	8u
#define SEEN_NS	200000u	/* two intervals between readings of one that works */
#define GAPS_MAX	64u	/* so many make the mean */
#define GAPS_LEAST	4u
#define UNSEEN_GAPS	4u	/* in a row, of which each is a reading only: the mean is none */
#define UNSEEN_COUNT	2u	/* and follows quickly what comes next */

/* How much of such work is work: over about so long, since a budget lasts for as long. */
#define SHARE_NS	1000000000ull
#define CHARGED_PERCENT	25u	/* gaps of so much or more are charged in full, of less for as much of that */

static u64 switches_ns(const struct cgpu_sched *t, u32 quarters)
{
	u64 ns = t->switch_ns < SWITCH_LEAST_NS ? SWITCH_LEAST_NS : t->switch_ns;

	return ns * quarters / 4;
}

/**
 * cgpu_dense_may_be_lent() - is a gap so long that the hardware may lend it
 * @t: the scheduler
 * @len_ns: how long it was
 */
bool cgpu_dense_may_be_lent(const struct cgpu_sched *t, u64 len_ns)
{
	return len_ns >= switches_ns(t, TOO_SHORT);
}

/**
 * cgpu_dense_between_readings() - the time of a change that the last two readings found
 * @t: the scheduler
 * @now_ns: of the second
 */
u64 cgpu_dense_between_readings(const struct cgpu_sched *t, u64 now_ns)
{
	return now_ns - (t->read_ns < now_ns ? now_ns - t->read_ns : 0) / 2;
}

/**
 * cgpu_dense_gap() - a reading found no work after one that did
 * @t: the scheduler
 * @slot: which
 * @now_ns: of the reading
 */
void cgpu_dense_gap(struct cgpu_sched *t, u32 slot, u64 now_ns)
{
	t->slot[slot].gap_from_ns = cgpu_dense_between_readings(t, now_ns);
}

/**
 * cgpu_dense_gap_ns() - how long the gap was that a reading ended
 * @t: the scheduler
 * @slot: which, with a gap that some readings found
 * @now_ns: of the first reading with work
 */
u64 cgpu_dense_gap_ns(const struct cgpu_sched *t, u32 slot, u64 now_ns)
{
	u64 end_ns = cgpu_dense_between_readings(t, now_ns), from_ns = t->slot[slot].gap_from_ns;

	return end_ns > from_ns ? end_ns - from_ns : 0;
}

/**
 * cgpu_dense_lent_ns() - how much of the gap was taken for one by the account
 * @t: the scheduler
 * @slot: as above
 *
 * From the reading before the gap to the last one in it: a time is charged by the reading at its end.
 */
u64 cgpu_dense_lent_ns(const struct cgpu_sched *t, u32 slot)
{
	const struct cgpu_sched_entity *s = &t->slot[slot];
	u64 before_ns = s->idle_since_ns > s->gap_from_ns ? s->idle_since_ns - s->gap_from_ns : 0;

	before_ns = before_ns < BEFORE_MAX_NS ? before_ns : BEFORE_MAX_NS;
	return (t->read_ns > s->gap_from_ns ? t->read_ns - s->gap_from_ns : 0) + before_ns;
}

/**
 * cgpu_dense_idle() - the gap goes on
 * @t: the scheduler
 * @slot: which
 * @now_ns: of a reading without work, at least the third
 *
 * A gap that pays ends a burst. The next burst is taken to be as long as the last
 * ones, by a counter like that of a branch predictor: one odd burst changes nothing.
 */
void cgpu_dense_idle(struct cgpu_sched *t, u32 slot, u64 now_ns)
{
	struct cgpu_sched_entity *s = &t->slot[slot];

	if (!s->close_since_ns || now_ns - s->gap_from_ns < switches_ns(t, TOO_SHORT))
		return;
	if (s->gap_from_ns > s->close_since_ns && s->gap_from_ns - s->close_since_ns >= BURST_LONG_NS)
		s->long_bursts += s->long_bursts < LONG_BURSTS_MAX;
	else
		s->long_bursts -= s->long_bursts > 0;
	s->close_since_ns = 0;
}

static void count_gap(const struct cgpu_sched *t, struct cgpu_sched_entity *s, u64 len_ns)
{
	s64 parts = len_ns < LONG_NS ? 1 : LONG_PARTS, most_ns = (s64)switches_ns(t, COUNTS);
	s64 counts_ns = len_ns < (u64)most_ns ? (s64)len_ns : most_ns;

	s->gaps += s->gaps < GAPS_MAX;
	s->gap_ns = (u32)((s64)s->gap_ns + (counts_ns - (s64)s->gap_ns) / (parts * s->gaps));
}

/* By the mean, or at once after some that were not seen twice: a request of short kernels has a hundred of
 * those before there is a mean.
 */
static void judge_gaps(const struct cgpu_sched *t, struct cgpu_sched_entity *s, bool seen)
{
	if (s->close_gaps >= UNSEEN_GAPS) {
		if (s->gap_ns >= switches_ns(t, PAYS))
			s->close_gaps = 0;
		return;
	}
	s->close_gaps = seen ? 0 : s->close_gaps + 1;
	if (s->close_gaps == UNSEEN_GAPS) {
		s->gap_ns = 0;
		s->gaps = UNSEEN_COUNT;
	} else if (s->gaps >= GAPS_LEAST && s->gap_ns < switches_ns(t, TOO_SHORT)) {
		s->close_gaps = UNSEEN_GAPS;
	}
}

/**
 * cgpu_dense_work() - a reading found work, or nothing is known
 * @t: the scheduler
 * @slot: which
 * @known: there is work
 * @now_ns: of the reading
 *
 * A gap begins and ends in the middle of the two readings that found the change. One that a single
 * reading found has no length.
 */
void cgpu_dense_work(struct cgpu_sched *t, u32 slot, bool known, u64 now_ns)
{
	struct cgpu_sched_entity *s = &t->slot[slot];
	bool seen = s->idle_readings > 1;
	u64 len_ns;

	if (!known) {
		s->close_since_ns = 0;
		return;
	}
	if (!s->close_since_ns)
		s->close_since_ns = now_ns;
	if (!s->idle_since_ns || !s->highprio)
		return;
	len_ns = seen ? cgpu_dense_gap_ns(t, slot, now_ns) : 0;
	count_gap(t, s, len_ns);
	judge_gaps(t, s, seen);
}

/**
 * cgpu_dense_mask() - high-priority slots beside which the others must not run
 * @t: the scheduler, accounted up to now
 * @high: those with highprio whose run state is known, awake
 * @left_ns: lowered to the time until one more may be such
 *
 * The hardware gives each gap of a slot to the others, and comes back: two switches, and the rest of a
 * timeslice. Shorter gaps give the others less than the slot loses, and as much time in one piece, as its
 * ceiling leaves them, costs it less (policies.md). So the others are frozen beside one whose gaps are
 * shorter on average, as between kernels that are launched one at a time. Where its bursts were long lately
 * they are frozen as soon as it wakes: what it lost to them in half a millisecond would be more than the
 * calls cost. Beside another one only after DENSE_NS, since two calls take a good part of that. Until
 * it sleeps, or its gaps are longer. Without the timeslice control others would have the driver's
 * timeslice beside any of them.
 *
 * Return: mask of them.
 */
u32 cgpu_dense_mask(struct cgpu_sched *t, u32 high, u64 *left_ns)
{
	u32 mask;

	if (!(t->controls & CGPU_CTRL_TIMESLICE))
		return high;
	t->dense_mask &= high;
	for (mask = t->dense_mask; mask; mask &= mask - 1)
		if (t->slot[__builtin_ctz(mask)].close_gaps < UNSEEN_GAPS)
			t->dense_mask &= ~(mask & -mask);
	for (mask = high & ~t->dense_mask; mask; mask &= mask - 1) {
		u32 i = __builtin_ctz(mask);
		const struct cgpu_sched_entity *s = &t->slot[i];
		u64 age_ns = t->last_ns - s->close_since_ns;
		u64 after_ns = s->long_bursts >= DENSE_BURSTS ? 0 : DENSE_NS;

		if (!s->close_since_ns || s->close_gaps < UNSEEN_GAPS)
			continue;
		if (age_ns >= after_ns)
			t->dense_mask |= 1u << i;
		else if (after_ns - age_ns < *left_ns)
			*left_ns = after_ns - age_ns;
	}
	return t->dense_mask;
}

/**
 * cgpu_dense_has_seen_gaps() - do readings find most gaps of a slot
 * @t: the scheduler
 * @slot: with highprio
 *
 * What the others have of gaps that they do not find is charged to it.
 */
bool cgpu_dense_has_seen_gaps(const struct cgpu_sched *t, u32 slot)
{
	return t->slot[slot].gap_ns >= SEEN_NS;
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

/* Readings tell the gaps of one of @high from none, and they are kept because a switch takes longer. */
static bool has_seen_gaps(const struct cgpu_sched *t, u32 high)
{
	for (; high; high &= high - 1)
		if (t->slot[__builtin_ctz(high)].gap_ns >= 2 * SWITCH_LEAST_NS)
			return true;
	return false;
}

/**
 * cgpu_dense_charged_ns() - what high priority is charged of time that others did not have
 * @t: the scheduler, its last reading at the end of that time
 * @high: high-priority slots that are awake
 * @len_ns: how long it was
 *
 * No control can lend gaps so short: charged for all of them, a slot that launches one kernel after another
 * without end would be stopped for time that it did not work in. In shorter bursts it has gaps too
 * that could be lent and are not, since the others are frozen: all of them are charged. So are longer
 * ones from their begin, and not from when they are seen. By its work alone a slot that is busy for just less than
 * its ceiling would leave the others nothing of a GPU that idles. So the more of such a stretch its gaps are, the more
 * of them is charged: with work and all that is charged it has 94 % at least.
 */
u64 cgpu_dense_charged_ns(const struct cgpu_sched *t, u32 high, u64 len_ns)
{
	u64 gaps_ns = t->dense_ns - t->dense_busy_ns;

	if ((high & t->busy_mask) || !is_in_stretch(t, high) || has_seen_gaps(t, high) ||
	    gaps_ns * 100 >= t->dense_ns * CHARGED_PERCENT)
		return len_ns;
	return len_ns * (gaps_ns * 100 / CHARGED_PERCENT) / t->dense_ns;
}
