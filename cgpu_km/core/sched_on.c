// SPDX-License-Identifier: MIT OR GPL-2.0-only
/*
 * Which slot the hardware runs, by which had work first and whose work is over.
 *
 * The hardware runs a slot until its work or its timeslice is over, then the next one that has
 * work. A run state shows which slots have work, not which of them has the GPU. But the only one
 * with work has it, and keeps it to the end of its timeslice, whichever wakes meanwhile. Then the
 * only other one has it. And one whose work is over had it until then. So work that is shorter than
 * a timeslice is charged its length. By timeslices one with pieces of 2 ms, which waits for 8 ms of
 * another one with each, would be charged half of that wait.
 *
 * Where it is only known that one of several has it, their timeslices divide the time. That is open
 * for a timeslice: if the work of one of them is over within it, that one had all of the time.
 *
 * A slot with gaps that the readings miss loses the GPU in each: beside it nothing is known.
 */
#include "sched_on.h"

#include "sched_at_work.h"
#include "sched_hwshare.h"
#include "sched_recent.h"

#define FLICKER		96u	/* points of one that leaves the GPU between two readings */
#define LEFT_UNSEEN	200u	/* readings in which one that left it has it again, and shows no gap */

static u32 running(const struct cgpu_sched *t)
{
	return t->run_mask & t->opened_mask;
}

static bool flickers(const struct cgpu_sched *t, u32 mask)
{
	for (; mask; mask &= mask - 1)
		if (t->slot[__builtin_ctz(mask)].flicker >= FLICKER ||
		    cgpu_at_work_leaves(&t->slot[__builtin_ctz(mask)]))
			return true;
	return false;
}

/**
 * cgpu_on_without_tiny() - those that soon have the GPU beside kernels with gaps that readings miss
 * @t: the scheduler
 * @busy: slots that run and have work
 *
 * They leave it in the next gap to one that wakes, which keeps it. Not known is only when: a ceiling is charged as
 * if at once, turns are not.
 *
 * Return: those of @busy without such gaps; all, if all have them.
 */
u32 cgpu_on_without_tiny(const struct cgpu_sched *t, u32 busy)
{
	u32 out = busy, mask;

	for (mask = busy; mask; mask &= mask - 1)
		if (t->slot[__builtin_ctz(mask)].flicker >= FLICKER || t->slot[__builtin_ctz(mask)].left_unseen)
			out &= ~(mask & -mask);
	return out ? out : busy;
}

/* Has it the GPU to itself? */
static bool is_alone(const struct cgpu_sched *t, u32 busy)
{
	return busy == t->on_mask && cgpu_is_one(busy);
}

/**
 * cgpu_on_until_ns() - until when on_mask was what it is, of a time that has passed
 * @t: the scheduler, with the run state at the end of that time, which is last_ns
 * @was_busy: those that had work at its beginning
 * @from_ns: its beginning
 *
 * Work ends between two readings, on average in the middle.
 */
u64 cgpu_on_until_ns(const struct cgpu_sched *t, u32 was_busy, u64 from_ns)
{
	u32 ran = running(t), busy = ran & t->busy_mask;
	u64 end_ns;

	if (was_busy & ran & ~busy)
		return from_ns + (t->last_ns - from_ns) / 2;
	if (!t->on_mask || (t->on_mask & ~busy))
		return from_ns;
	if (is_alone(t, busy))
		return t->last_ns;
	end_ns = t->on_ns + cgpu_hw_shortest_ns(t, t->on_mask);
	if (end_ns < from_ns)
		return from_ns;
	return end_ns < t->last_ns ? end_ns : t->last_ns;
}

/**
 * cgpu_on_of() - those among which time is divided
 * @t: the scheduler
 * @ran: slots that ran
 *
 * Return: those of on_mask. Where none of @ran is: all, as for the turns of some beside high
 * priority.
 */
u32 cgpu_on_of(const struct cgpu_sched *t, u32 ran)
{
	return ran & t->on_mask ? ran & t->on_mask : ran;
}

/**
 * cgpu_on_is_open() - is it open what a slot had
 * @t: the scheduler
 * @slot: which
 */
bool cgpu_on_is_open(const struct cgpu_sched *t, u32 slot)
{
	return (t->on_mask >> slot & 1) && !cgpu_is_one(t->on_mask);
}

/**
 * cgpu_on_more_ns() - what may be charged to a slot's ceiling for time that has passed
 * @t: the scheduler
 * @slot: which
 */
s64 cgpu_on_more_ns(const struct cgpu_sched *t, u32 slot)
{
	return cgpu_on_is_open(t, slot) ? (s64)(t->last_ns - t->on_ns) - t->slot[slot].open_ceiling_ns : 0;
}

/* The time that was open is over. @had: the slot that had all of it; 0: it is not known which. Of
 * the turns only those are charged for it that were, in one group.
 */
static void settle(struct cgpu_sched *t, u32 had)
{
	const struct cgpu_sched_entity *one = had ? &t->slot[__builtin_ctz(had)] : NULL;
	u32 mask, group = one && one->open_turn_ns ? t->weighted_mask[one->highprio] : 0;
	u64 all_ns = 0, turns_ns = 0;

	for (mask = t->on_mask; mask; mask &= mask - 1) {
		const struct cgpu_sched_entity *s = &t->slot[__builtin_ctz(mask)];

		all_ns += s->open_ns;
		turns_ns += group & mask & -mask ? s->open_turn_ns : 0;
	}
	for (mask = t->on_mask; mask; mask &= mask - 1) {
		u32 i = __builtin_ctz(mask), bit = mask & -mask;
		struct cgpu_sched_entity *s = &t->slot[i];
		s64 ns = had & bit ? (s64)all_ns : 0;

		if (had) {
			s->gpu_ns += (u64)(ns - (s64)s->open_ns);
			cgpu_recent_correct(t, i, ns - (s64)s->open_ns);
			if (t->ceiling_mask & bit)
				s->ceiling_budget_ns -= ns - s->open_ceiling_ns;
			if (group & bit)
				s->deficit_ns -= (had & bit ? (s64)turns_ns : 0) - (s64)s->open_turn_ns;
		}
		s->open_ns = 0;
		s->open_turn_ns = 0;
		s->open_ceiling_ns = 0;
	}
}

/* Another slot had the GPU: that of @on left it unseen. While it waits it shows work in each reading, as if it had no
 * gaps.
 */
static void note_left(struct cgpu_sched *t, u32 on)
{
	if (cgpu_is_one(on))
		t->slot[__builtin_ctz(on)].left_unseen = LEFT_UNSEEN;
}

/**
 * cgpu_on_find() - which slots may have the GPU from now on
 * @t: the scheduler, accounted with what was on it before, and with the run state that was read
 * @was_busy: those that had work before
 * @until_ns: from cgpu_on_until_ns()
 *
 * Its timeslices follow each other while one is alone. With several TSGs the next of them may come
 * after others. Work of another slot that is over although it should have waited shows that nothing
 * is known.
 */
void cgpu_on_find(struct cgpu_sched *t, u32 was_busy, u64 until_ns)
{
	u32 ran = running(t), busy = ran & t->busy_mask, ended = was_busy & ran & ~busy;
	u32 on = t->on_mask, had = 0;
	u64 age_ns = until_ns - t->on_ns, since_ns = until_ns + t->switch_ns;

	if (ran & ~t->known_mask) {
		cgpu_on_forget(t);
		return;
	}
	if (on && !ended && !(on & ~busy)) {
		if (is_alone(t, busy)) {
			t->on_ns = t->last_ns - (t->last_ns - t->on_ns) % cgpu_hw_shortest_ns(t, on);
			return;
		}
		if (flickers(t, on))
			t->on_mask = busy;
		if (age_ns < cgpu_hw_shortest_ns(t, on))
			return;
		if (cgpu_is_one(on) && cgpu_at_work(t, __builtin_ctz(on)) <= 1) {
			t->slot[__builtin_ctz(on)].used_up_ns = t->last_ns;
			busy &= ~on;
		}
	} else if (cgpu_is_one(ended) && (on & ended) && !cgpu_is_one(on) && !flickers(t, on) &&
		   age_ns < cgpu_hw_shortest_ns(t, on & ~ended) + t->switch_ns) {
		had = ended;
	} else if (ended & ~on) {
		note_left(t, on & busy);
	}
	settle(t, had);
	t->on_mask = busy;
	t->on_ns = since_ns < t->last_ns ? since_ns : t->last_ns;
}

/**
 * cgpu_on_forget() - it is not known any more which slot has the GPU
 * @t: the scheduler, accounted up to now
 */
void cgpu_on_forget(struct cgpu_sched *t)
{
	settle(t, 0);
	t->on_mask = 0;
}
