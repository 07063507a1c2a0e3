// SPDX-License-Identifier: MIT OR GPL-2.0-only
/*
 * How many TSGs of a slot have work at the same moment.
 *
 * The hardware has a timeslice in its round for each TSG with work, and none for those without. A process makes
 * several TSGs and mostly works in one, so how many there are says little of what a slot gets beside others.
 */
#include "sched_at_work.h"

#define ONE		1024	/* TSG, in the mean */
#define READINGS_MAX	64u	/* so many make the mean: 6 ms of work */
#define READINGS_LEAST	16u
#define ONE_MORE	(3 * ONE / 8)	/* of a second TSG, in the mean, and two are taken to work */
#define STAYS_NS	400000000ull	/* a larger number: each change can be calls */
#define LEFT_POINTS	48u	/* for a TSG whose work was over; one less for each reading in which none was */
#define LEFT_MAX	204u
#define MISSED		4u	/* about so many such ends for one that a single reading found */
#define PIECES		8	/* about so many make the mean */
#define PIECE_MAX_US	1000000u
#define ALONE_NS	400000000ull	/* beside high priority that always works, all readings count after so long */

/**
 * cgpu_at_work_is_known() - do readings show how many TSGs work at once
 * @t: the scheduler
 * @slot: which
 */
bool cgpu_at_work_is_known(const struct cgpu_sched *t, u32 slot)
{
	return (t->known_mask >> slot & 1) && t->slot[slot].at_work;
}

/**
 * cgpu_at_work() - how many TSGs of a slot work at once
 * @t: the scheduler
 * @slot: which
 *
 * Return: 1 to the number of its TSGs; that number while no readings show it.
 */
u32 cgpu_at_work(const struct cgpu_sched *t, u32 slot)
{
	const struct cgpu_sched_entity *s = &t->slot[slot];
	u32 all = s->tsgs ? s->tsgs : 1;

	return cgpu_at_work_is_known(t, slot) && s->at_work < all ? s->at_work : all;
}

/* High priority that has the GPU keeps others' work waiting, and then more TSGs wait than work at once
 * without it.
 */
static bool counts(const struct cgpu_sched *t, struct cgpu_sched_entity *s, u64 now_ns)
{
	u32 high = t->weighted_mask[1] & t->busy_mask & t->run_mask;

	if (s->highprio || t->prio_throttled)
		return true;
	if (!high)
		s->at_work_alone_ns = now_ns;
	return !s->at_work || now_ns - s->at_work_alone_ns >= ALONE_NS || !high;
}

static bool note(struct cgpu_sched_entity *s, u32 tsgs, u64 now_ns)
{
	u32 was = s->at_work, now;

	s->at_work_readings += s->at_work_readings < READINGS_MAX;
	s->at_work_mean = (u32)(s->at_work_mean + ((s64)tsgs * ONE - s->at_work_mean) / s->at_work_readings);
	if (s->at_work_readings < READINGS_LEAST)
		return false;
	now = (s->at_work_mean + ONE - ONE_MORE - 1) / ONE;
	now = now ? now : 1;
	if (now < was && now_ns - s->at_work_ns < STAYS_NS)
		return false;
	s->at_work = (u8)now;
	s->at_work_ns = now_ns;
	return now != was;
}

/* Alone it has the GPU from one end of a piece to the next one. */
static void note_piece(struct cgpu_sched_entity *s, bool alone, u64 now_ns)
{
	u64 us = (now_ns - s->tsg_left_ns) / 1000;

	if (alone && s->tsg_left_ns) {
		us = s->short_dips ? us / MISSED : us;
		us = us < PIECE_MAX_US ? us : PIECE_MAX_US;
		s->piece_us = s->piece_us ? (u32)((s64)s->piece_us + ((s64)us - (s64)s->piece_us) / PIECES) : (u32)us;
		s->piece_us = s->piece_us ? s->piece_us : 1;
	}
	s->tsg_left_ns = alone ? now_ns : 0;
}

/* Each TSG leaves the GPU when its work is over. Of several at work the slot shows no gap then. */
static void note_left(struct cgpu_sched_entity *s, u32 tsgs, bool alone, u64 now_ns)
{
	if (!alone)
		s->tsg_left_ns = 0;
	if (tsgs < s->at_work_last) {
		s->tsgs_leave += s->tsgs_leave < LEFT_MAX ? LEFT_POINTS : 0;
		note_piece(s, alone, now_ns);
	} else {
		s->tsgs_leave -= s->tsgs_leave > 0;
	}
	if (tsgs > s->at_work_last)
		s->short_dips = s->fell;
	s->fell = tsgs < s->at_work_last;
	s->at_work_last = (u8)tsgs;
}

/**
 * cgpu_at_work_leaves() - does the work of single TSGs of a slot end often while others of it go on
 * @s: the slot
 */
bool cgpu_at_work_leaves(const struct cgpu_sched_entity *s)
{
	return s->tsgs_leave >= 2 * LEFT_POINTS;
}

/**
 * cgpu_at_work_note() - a reading found TSGs with work
 * @t: the scheduler, with the run state of that reading
 * @tsgs: of each slot, how many of its TSGs; 0: not read
 * @now_ns: of the reading
 *
 * Return: true if a number changed that plans go by.
 */
bool cgpu_at_work_note(struct cgpu_sched *t, const u8 tsgs[CGPU_SLOTS], u64 now_ns)
{
	bool changed = false;
	u32 mask = t->inflight ? 0 : t->busy_mask & t->run_mask, busy = mask;

	/* A slot that is frozen shows nothing. */
	for (; mask; mask &= mask - 1) {
		u32 i = __builtin_ctz(mask);

		if (tsgs[i])
			note_left(&t->slot[i], tsgs[i], !(busy & ~(1u << i)), now_ns);
		if (tsgs[i] && counts(t, &t->slot[i], now_ns) && note(&t->slot[i], tsgs[i], now_ns))
			changed = true;
	}
	return changed;
}

/**
 * cgpu_at_work_forget() - a slot closed the GPU
 * @s: the slot
 */
void cgpu_at_work_forget(struct cgpu_sched_entity *s)
{
	s->at_work = 0;
	s->at_work_readings = 0;
	s->at_work_mean = 0;
	s->at_work_last = 0;
	s->tsgs_leave = 0;
	s->piece_us = 0;
	s->tsg_left_ns = 0;
}
