// SPDX-License-Identifier: MIT OR GPL-2.0-only
/*
 * What each slot got lately, against its part.
 *
 * The credit of a turn is about one round. Work that waits after each step sleeps several times
 * in a round, and its time is lent each time: in credit alone every slot with such gaps has as much
 * as it can use, whatever its weight. So the use of the last RECENT_NS decides whose turn is cut
 * short. It decays as 1/e in that time: a slot that slept for longer has nothing left of it, and a
 * claim to at most so much.
 *
 * Whether a slot is frozen in the turns of others is decided by LONG_NS. Requests that come by chance
 * come in bursts, and in a burst a slot has more than its part of 0.4 s, though it has half of it
 * over some seconds. A freeze then costs two calls and delays each of its requests. A training with gaps
 * has more than its part of both.
 */
#include "sched_recent.h"

#include "policy.h"
#include "sched_hwshare.h"

#define RECENT_NS	400000000ull
#define LONG_NS		8000000000ull
#define LONG_LEAST_NS	2000000000ull	/* parts are of so much at least, while less has passed */
#define STEP_NS		4000000ull	/* decays are made in steps of this: not at each reading */
/* So much more than its part is over it: a 64th, and a quarter of a per cent of the GPU. */
#define OVER_PARTS	64u
#define OVER_OF_ALL	400u

/**
 * cgpu_recent_note() - a slot ran
 * @t: the scheduler
 * @slot: which
 * @got_ns: how long, by the account
 */
void cgpu_recent_note(struct cgpu_sched *t, u32 slot, u64 got_ns)
{
	got_ns = got_ns < RECENT_NS ? got_ns : RECENT_NS;
	t->slot[slot].recent_ns[CGPU_RECENT_SHORT] += got_ns;
	t->slot[slot].recent_ns[CGPU_RECENT_LONG] += got_ns;
}

/**
 * cgpu_recent_correct() - what was noted of a slot in the last timeslice was wrong
 * @t: the scheduler
 * @slot: which
 * @more_ns: so much more, or less if it is below 0
 */
void cgpu_recent_correct(struct cgpu_sched *t, u32 slot, s64 more_ns)
{
	u32 i;

	for (i = 0; i < CGPU_RECENT_COUNT; i++) {
		s64 ns = (s64)t->slot[slot].recent_ns[i] + more_ns;

		t->slot[slot].recent_ns[i] = ns > 0 ? (u64)ns : 0;
	}
}

static u64 decayed(u64 ns, u64 len_ns, u64 span_ns)
{
	/* In microseconds: the product of two spans in ns is near the end of 64 bits. */
	return ns * (span_ns / 1000) / ((span_ns + len_ns) / 1000);
}

static void decay(u64 ns[CGPU_RECENT_COUNT], u64 len_ns)
{
	ns[CGPU_RECENT_SHORT] = decayed(ns[CGPU_RECENT_SHORT], len_ns, RECENT_NS);
	ns[CGPU_RECENT_LONG] = decayed(ns[CGPU_RECENT_LONG], len_ns, LONG_NS);
}

/**
 * cgpu_recent_pass() - time has passed
 * @t: the scheduler; what ran in it was noted
 * @len_ns: how long
 */
void cgpu_recent_pass(struct cgpu_sched *t, u64 len_ns)
{
	u32 mask;

	if (len_ns > RECENT_NS)
		len_ns = RECENT_NS;
	t->recent_all_ns[CGPU_RECENT_SHORT] += len_ns;
	t->recent_all_ns[CGPU_RECENT_LONG] += len_ns;
	t->recent_step_ns += len_ns;
	if (t->recent_step_ns < STEP_NS)
		return;
	for (mask = t->live_mask; mask; mask &= mask - 1)
		decay(t->slot[__builtin_ctz(mask)].recent_ns, t->recent_step_ns);
	decay(t->recent_all_ns, t->recent_step_ns);
	t->recent_step_ns = 0;
}

static u32 slices_of(const struct cgpu_sched *t, u32 slot)
{
	return cgpu_policy_get(t->policy)->slices(&t->slot[slot]);
}

/**
 * cgpu_recent_opened() - slots that have opened the GPU, or had it open lately
 * @t: the scheduler, accounted up to now
 *
 * What is computed from these stays the same while one of them opens and closes it all the time.
 */
u32 cgpu_recent_opened(const struct cgpu_sched *t)
{
	u32 mask, out = t->opened_mask;

	for (mask = t->live_mask & ~out; mask; mask &= mask - 1) {
		const struct cgpu_sched_entity *s = &t->slot[__builtin_ctz(mask)];

		if (s->closed_ns && t->last_ns - s->closed_ns < RECENT_NS)
			out |= mask & -mask;
	}
	return out;
}

/* Of all of @opened that rank as @group. */
static u32 all_slices(const struct cgpu_sched *t, u32 group, u32 opened)
{
	u32 mask, sum = 0;

	if (!group)
		return 0;
	mask = t->weighted_mask[t->slot[__builtin_ctz(group)].highprio] & opened;
	for (; mask; mask &= mask - 1)
		sum += slices_of(t, __builtin_ctz(mask));
	return sum;
}

/* In the first seconds of a GPU a burst of requests is no sign of what a slot will use over some seconds. */
static u64 long_all_ns(const struct cgpu_sched *t)
{
	u64 all_ns = t->recent_all_ns[CGPU_RECENT_LONG];

	return all_ns < LONG_LEAST_NS ? LONG_LEAST_NS : all_ns;
}

/**
 * cgpu_recent_over() - slots that had more than their part
 * @t: the scheduler, accounted up to now; its policy has slices
 * @span: lately, or over some seconds
 * @group: all with highprio or all without
 *
 * A part is of all that have opened the GPU, whether they have work or not.
 */
u32 cgpu_recent_over(const struct cgpu_sched *t, enum cgpu_recent_span span, u32 group)
{
	u64 all = span == CGPU_RECENT_LONG ? long_all_ns(t) : t->recent_all_ns[span];
	u64 sum = all_slices(t, group, t->opened_mask), most;
	u32 out = 0;

	for (; sum && group; group &= group - 1) {
		u32 i = __builtin_ctz(group);

		most = all * slices_of(t, i);
		most += most / OVER_PARTS + all * sum / OVER_OF_ALL;
		if (t->slot[i].recent_ns[span] * sum > most)
			out |= 1u << i;
	}
	return out;
}

/**
 * cgpu_recent_yields() - does a slot wait for another one that has work
 * @t: the scheduler, accounted up to now
 * @span: of which @over is
 * @over: cgpu_recent_over() of both
 * @slot: the one
 * @other: the other
 *
 * A slot that had no more than its part never does. Of two that had more, the one with more for
 * its weight does: what a third one leaves is divided by weight too.
 */
bool cgpu_recent_yields(const struct cgpu_sched *t, enum cgpu_recent_span span, u32 over, u32 slot,
			u32 other)
{
	u64 mine, theirs;

	if (!(over >> slot & 1))
		return false;
	if (!(over >> other & 1))
		return true;
	mine = t->slot[slot].recent_ns[span] * slices_of(t, other);
	theirs = t->slot[other].recent_ns[span] * slices_of(t, slot);
	return mine > theirs + theirs / OVER_PARTS;
}

/**
 * cgpu_recent_part_of() - a slot's part against an equal one
 * @t: the scheduler; its policy has slices
 * @slot: which has opened the GPU
 * @of: what it has of equal parts
 */
u64 cgpu_recent_part_of(const struct cgpu_sched *t, u32 slot, u64 of)
{
	u32 opened = cgpu_recent_opened(t), n = cgpu_count(t->weighted_mask[t->slot[slot].highprio] & opened);
	u64 sum = all_slices(t, 1u << slot, opened);

	return sum ? of * n * slices_of(t, slot) / sum : of;
}

/**
 * cgpu_recent_is_beyond() - had a slot so many eighths of its part
 * @t: the scheduler, accounted up to now; its policy has slices
 * @slot: which has opened the GPU
 * @eighths: how many, at least 8
 */
bool cgpu_recent_is_beyond(const struct cgpu_sched *t, u32 slot, u32 eighths)
{
	u64 sum = all_slices(t, 1u << slot, cgpu_recent_opened(t));
	u64 part = t->recent_all_ns[CGPU_RECENT_SHORT] * slices_of(t, slot);

	return t->slot[slot].recent_ns[CGPU_RECENT_SHORT] * sum * 8 > part * eighths;
}

/**
 * cgpu_recent_is_near() - had a slot most of its part over some seconds
 * @t: the scheduler, accounted up to now; its policy has slices
 * @slot: which has opened the GPU
 */
bool cgpu_recent_is_near(const struct cgpu_sched *t, u32 slot)
{
	u64 sum = all_slices(t, 1u << slot, t->opened_mask);

	return t->slot[slot].recent_ns[CGPU_RECENT_LONG] * sum * 4 > long_all_ns(t) * slices_of(t, slot) * 3;
}

/**
 * cgpu_recent_missing_ns() - what a slot had less than its part
 * @t: the scheduler, accounted up to now; its policy has slices
 * @slot: which has opened the GPU
 *
 * One that takes turns has least of its part as its turn begins: half of what decayed while it waited
 * is no loss. Taken for one, it would give each of many small slots longer turns, at the expense of a
 * large one.
 */
u64 cgpu_recent_missing_ns(const struct cgpu_sched *t, u32 slot)
{
	u64 sum = all_slices(t, 1u << slot, t->opened_mask), got = t->slot[slot].recent_ns[CGPU_RECENT_SHORT], due;
	u64 all = t->recent_all_ns[CGPU_RECENT_SHORT], decayed_ns = t->slot[slot].wait.so_far_ns / 2;

	if (!sum)
		return 0;
	due = (all > decayed_ns ? all - decayed_ns : 0) * slices_of(t, slot) / sum;
	return due > got ? due - got : 0;
}
