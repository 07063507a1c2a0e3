// SPDX-License-Identifier: MIT OR GPL-2.0-only
/*
 * Gaps of high priority that are over before calls could lend them.
 *
 * What others have of the GPU begins when the last high-priority slot has no work and ends when the first one has
 * some, however long the gaps of each are: two with gaps of 2 ms leave some of less than one.
 */
#include "sched_quick.h"

#include "sched_dense.h"

/* A gap of less is half over when others were thawed, and they have to be frozen after it. */
#define QUICK_NS	1500000ull
#define POINTS_MAX	64u
#define POINTS		4u	/* for each such gap; so many less for as much of a longer one: */
#define LONGER_POINTS	32u	/* at most */
#define QUICK_FROM	56u
#define QUICK_UNTIL	16u
#define LATELY_NS	400000000ull	/* after a longer gap: each change can be calls */

static u32 high(const struct cgpu_sched *t)
{
	return t->weighted_mask[1] & t->opened_mask;
}

static void count(struct cgpu_sched *t, u64 len_ns, u64 now_ns)
{
	u64 less = len_ns < QUICK_NS * LONGER_POINTS / POINTS ? len_ns * POINTS / QUICK_NS : LONGER_POINTS;

	if (len_ns < QUICK_NS) {
		t->quick_points += t->quick_points + POINTS <= POINTS_MAX ? POINTS : 0;
	} else {
		t->quick_points -= less < t->quick_points ? (u32)less : t->quick_points;
		if (t->high_gap_ns > t->prio_stopped_ns)
			t->high_long_gap_ns = now_ns;
	}
	if (t->quick_points >= QUICK_FROM)
		t->quick = 1;
	else if (t->quick_points < QUICK_UNTIL)
		t->quick = 0;
}

/**
 * cgpu_quick_note() - the run state was read
 * @t: the scheduler, with that run state; its last reading was the one before
 * @now_ns: of the reading
 *
 * Only gaps that the hardware may lend count.
 */
void cgpu_quick_note(struct cgpu_sched *t, u64 now_ns)
{
	u64 at_ns = cgpu_dense_between_readings(t, now_ns), len_ns;

	if (!high(t) || (high(t) & ~t->known_mask)) {
		t->high_gap_ns = 0;
		return;
	}
	if (!(high(t) & t->busy_mask)) {
		if (!t->high_gap_ns)
			t->high_gap_ns = at_ns ? at_ns : 1;
		return;
	}
	len_ns = t->high_gap_ns && at_ns > t->high_gap_ns ? at_ns - t->high_gap_ns : 0;
	if (cgpu_dense_may_be_lent(t, len_ns))
		count(t, len_ns, now_ns);
	t->high_gap_ns = 0;
}

/**
 * cgpu_quick_forget() - the run state of some slots is unknown from here on
 * @t: the scheduler
 * @slots: which
 */
void cgpu_quick_forget(struct cgpu_sched *t, u32 slots)
{
	if (slots & high(t))
		t->high_gap_ns = 0;
}

/* They are in a gap that calls lend, or had one lately. */
static bool have_long_gaps(const struct cgpu_sched *t)
{
	u64 from_ns = t->high_gap_ns > t->prio_stopped_ns ? t->high_gap_ns : t->prio_stopped_ns;

	if (t->high_gap_ns && !(high(t) & ~t->asleep_mask) && t->last_ns >= from_ns + QUICK_NS)
		return true;
	return t->high_long_gap_ns && t->last_ns < t->high_long_gap_ns + LATELY_NS;
}

/**
 * cgpu_quick_are() - are gaps mostly over before a thaw and a freeze could lend them
 * @t: the scheduler, accounted up to now; the run state of all high-priority slots is known
 *
 * High priority that works without a gap, as in several TSGs at once, has none that calls could lend either.
 */
bool cgpu_quick_are(const struct cgpu_sched *t)
{
	return t->quick || !have_long_gaps(t);
}
