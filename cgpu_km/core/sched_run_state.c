// SPDX-License-Identifier: MIT OR GPL-2.0-only
/*
 * Which slots have work, by what the run-state source read.
 *
 * A slot sleeps when it had no work in every reading of idle_need_us, and in three at least: a
 * reading that is late can fall on the gap after the next kernel. Its time is lent, and it stays
 * thawed: what it launches next runs at once. A slot that sleeps and wakes within what a hand-over
 * costs would make two hand-overs for nothing, so each such nap doubles its idle_need_us and each
 * longer sleep halves it.
 */
#include "sched_run_state.h"

#include "policy.h"
#include "sched_account.h"
#include "sched_ceiling.h"
#include "sched_dense.h"
#include "sched_on.h"
#include "sched_prio.h"
#include "sched_quick.h"

#define NEED_MIN_US	50u	/* with one reading per POLL_CHECK_NS: IDLE_READINGS */
#define IDLE_READINGS	3u	/* without work, in a row */
#define NEED_MAX_US	2000u	/* the driver's timeslice */
#define FLICKER_POINTS	48u	/* for a gap shorter than NEED_MIN_US; one less for each reading without */
#define FLICKER_LONGER	6u	/* and so many less for each longer one */
#define FLICKER_MAX	204u
#define BRIEF_WORK_NS	6000000ull	/* three quarters of the timeslice of equal ones */
#define COUNTS_NS	2000000ull	/* so much of it counts, and shorter work for a part of that */
#define SLEEP_MAX_NS	1000000000ull
#define SLEEPS		8	/* about so many make the mean */
#define NAP_PARTS	8u	/* a slice is 20 control calls long; a lend takes two and a half */

/* On average: the caller draws each interval between half of it and one and a half. Work whose
 * gaps fell on the readings each time would not be charged, and work whose gaps fell between
 * them would be charged in full.
 */
#define POLL_BUSY_NS	100000ull	/* while the owner has work */
#define POLL_CHECK_NS	25000ull	/* while a slot may be about to sleep */
#define POLL_URGENT_NS	100000ull	/* while a high-priority slot sleeps and others have the GPU */
#define POLL_DRAWN_NS	100000ull	/* while a slot sleeps that used much of its ceiling lately */
#define POLL_LENT_NS	250000ull	/* while another slot's time is lent */
#define POLL_UNKNOWN_NS	10000000ull	/* while there is nothing to go by */
#define POLL_ASLEEP_NS	500000ull	/* while every slot sleeps: the first one to wake runs anyway */

/* While it sleeps others may run that delay their preemption. */
static void note_sleep(struct cgpu_sched_entity *s, u64 ns)
{
	u32 us = (u32)(ns < SLEEP_MAX_NS ? ns / 1000 : SLEEP_MAX_NS / 1000);

	s->sleep_us = s->sleep_us ? (u32)((s64)s->sleep_us + ((s64)us - (s64)s->sleep_us) / SLEEPS) : us;
}

static void wake(struct cgpu_sched *t, u32 slot, u64 now_ns)
{
	struct cgpu_sched_entity *s = &t->slot[slot];
	u64 nap_ns = t->slice_ns / NAP_PARTS;

	s->woken_ns = now_ns;
	note_sleep(s, now_ns - s->idle_since_ns);
	if (now_ns - s->idle_since_ns < nap_ns)
		s->idle_need_us *= 2;
	else
		s->idle_need_us /= 2;
}

static u32 clamp_need(u32 need_us)
{
	if (need_us < NEED_MIN_US)
		return NEED_MIN_US;
	return need_us > NEED_MAX_US ? NEED_MAX_US : need_us;
}

static void note_no_gap(struct cgpu_sched_entity *s)
{
	s->flicker -= s->flicker > 0;
	s->left_unseen -= s->left_unseen > 0;
}

/* It works, or its state is unknown. A gap between two readings that was too short to be one
 * that the hardware could lend is a flicker. The gap of one that was frozen in it may go on.
 */
static void note_work(struct cgpu_sched_entity *s, bool known, bool frozen, bool alone, u64 now_ns)
{
	if (!known)
		s->worked_since_ns = 0;
	else if (!s->worked_since_ns)
		s->worked_since_ns = now_ns;
	else if (s->idle_since_ns && !frozen && s->flicker < FLICKER_MAX)
		s->flicker += FLICKER_POINTS;
	else if (alone)
		note_no_gap(s);
	s->idle_since_ns = 0;
}

/* A gap that readings tell from none. */
static void end_burst(struct cgpu_sched *t, u32 slot)
{
	struct cgpu_sched_entity *s = &t->slot[slot];

	if (s->gap_from_ns > s->worked_since_ns)
		cgpu_prio_charge_burst(t, slot, s->gap_from_ns - s->worked_since_ns);
	s->flicker -= s->flicker < FLICKER_LONGER ? s->flicker : FLICKER_LONGER;
	s->worked_since_ns = 0;
}

/* What it was charged since it last fell asleep is about what its work took. By a counter again: of
 * requests that come by chance some come together. Longer work counts for as much brief work as it would
 * make, and work of less than COUNTS_NS if the sum of all passes a multiple of that in it: else a slot
 * with long work could pass for one of brief work by pieces that cost it nothing.
 */
static void fall_asleep(struct cgpu_sched *t, u32 slot)
{
	struct cgpu_sched_entity *s = &t->slot[slot];
	u64 took_ns = s->gpu_ns - s->slept_gpu_ns, longer = took_ns / BRIEF_WORK_NS;

	if (took_ns > BRIEF_WORK_NS)
		s->brief_work -= longer < s->brief_work ? longer : s->brief_work;
	else if (s->gpu_ns / COUNTS_NS != s->slept_gpu_ns / COUNTS_NS)
		s->brief_work += s->brief_work < CGPU_BRIEF_WORK_MAX;
	s->slept_gpu_ns = s->gpu_ns;
	s->full_turns = 0;
	t->asleep_mask |= 1u << slot;
}

/**
 * cgpu_sched_set_run_state() - the run state of the channels was read
 * @t: the scheduler
 * @known: slots of which every graphics/compute channel was read
 * @busy: those of @known with work
 * @now_ns: monotonic
 *
 * What a frozen channel shows is not documented, so a frozen slot has work, unless it slept
 * when it was frozen. The time until now is charged by which slots slept in it.
 *
 * Context: Caller serialises.
 * Return: true if the plan in force no longer fits.
 */
bool cgpu_sched_set_run_state(struct cgpu_sched *t, u32 known, u32 busy, u64 now_ns)
{
	u32 was_known = t->known_mask, was_busy = t->busy_mask, was_asleep = t->asleep_mask;
	u32 frozen = t->opened_mask & ~t->run_mask & ~was_asleep, mask;

	known &= t->opened_mask;
	busy = (busy | frozen) & known;
	/* What sched_stat.c has shown of slots in an unknown state stays so. */
	if (!t->inflight && (known & ~was_known))
		cgpu_sched_update(t, now_ns);
	t->known_mask = known;
	t->busy_mask = busy;
	/* By this reading: by the one before, which also chose how long ago it is, work in
	 * short pieces would be charged for too much.
	 */
	if (!t->inflight)
		cgpu_account_reading(t, was_busy, now_ns);
	t->asleep_mask &= known & ~busy;
	for (mask = was_asleep & busy; mask; mask &= mask - 1)
		wake(t, __builtin_ctz(mask), now_ns);
	for (mask = t->live_mask; mask; mask &= mask - 1) {
		u32 i = __builtin_ctz(mask), bit = 1u << i;
		struct cgpu_sched_entity *s = &t->slot[i];

		if (!(known & ~busy & bit)) {
			if ((known & bit) && !s->worked_since_ns)
				cgpu_prio_charge_handover(t, i, cgpu_dense_gap_ns(t, i, now_ns),
							  cgpu_dense_lent_ns(t, i));
			cgpu_dense_work(t, i, known & bit, now_ns);
			note_work(s, known & bit, frozen & bit, t->on_mask == bit, now_ns);
			continue;
		}
		s->idle_need_us = clamp_need(s->idle_need_us);
		if (!s->idle_since_ns) {
			s->idle_since_ns = now_ns;
			s->idle_readings = 0;
			cgpu_dense_gap(t, i, now_ns);
		}
		if (s->idle_readings < IDLE_READINGS)
			s->idle_readings++;
		if (s->idle_readings < IDLE_READINGS)
			continue;
		if (now_ns - s->idle_since_ns >= NEED_MIN_US * 1000ull && s->worked_since_ns)
			end_burst(t, i);
		cgpu_dense_idle(t, i, now_ns);
		if (!(t->asleep_mask & bit) && now_ns - s->idle_since_ns >= s->idle_need_us * 1000ull)
			fall_asleep(t, i);
	}
	cgpu_quick_note(t, now_ns);
	t->read_ns = now_ns;
	return known != was_known || busy != was_busy || t->asleep_mask != was_asleep;
}

/**
 * cgpu_run_state_forget() - slots are in an unknown state from here on
 * @t: the scheduler, accounted up to now
 * @slots: which: they are gone, closed the GPU, or are not read any more
 */
void cgpu_run_state_forget(struct cgpu_sched *t, u32 slots)
{
	t->known_mask &= ~slots;
	t->busy_mask &= ~slots;
	t->asleep_mask &= ~slots;
	t->dense_mask &= ~slots;
	cgpu_quick_forget(t, slots);
	if (t->on_mask & slots)
		cgpu_on_forget(t);
	for (slots &= t->live_mask; slots; slots &= slots - 1) {
		struct cgpu_sched_entity *s = &t->slot[__builtin_ctz(slots)];

		cgpu_dense_work(t, __builtin_ctz(slots), false, 0);
		note_work(s, false, false, false, 0);
		s->slept_gpu_ns = s->gpu_ns;
	}
}

/**
 * cgpu_run_state_unread() - the calls of the last plan are over
 * @t: the scheduler
 * @now_ns: monotonic
 *
 * No reading was made during the calls, so their time is not counted as sleep. A slot that woke
 * during the calls that lent its time napped, however long they took: counted, three calls would
 * exceed an eighth of a short slice, and the same gaps would be lent again and again.
 */
void cgpu_run_state_unread(struct cgpu_sched *t, u64 now_ns)
{
	u32 mask;

	if (t->inflight || !t->unread_since_ns)
		return;
	for (mask = t->known_mask & ~t->busy_mask; mask; mask &= mask - 1) {
		struct cgpu_sched_entity *s = &t->slot[__builtin_ctz(mask)];

		s->idle_since_ns += now_ns - t->unread_since_ns;
		if (s->idle_since_ns > now_ns)
			s->idle_since_ns = now_ns;
	}
	t->unread_since_ns = 0;
}

/**
 * cgpu_run_state_poll_ns() - when the run state must be read again
 * @t: the scheduler
 * @contend: slots that have opened the GPU and compete for it
 * @run: those of them that the plan lets run
 * @urgent: those of them that take the GPU as soon as they wake
 *
 * Return: nanoseconds after the last reading, on average; 0 if another one would change nothing.
 */
u64 cgpu_run_state_poll_ns(const struct cgpu_sched *t, u32 contend, u32 run, u32 urgent)
{
	u32 known = t->known_mask & contend, asleep = t->asleep_mask & contend;

	if (!contend)
		return 0;
	if (!known)
		return POLL_UNKNOWN_NS;
	if (known & run & ~t->busy_mask & ~asleep)
		return POLL_CHECK_NS;
	/* Pieces that the readings miss are not charged to its ceiling. */
	if (cgpu_ceiling_is_drawn(t, asleep))
		return POLL_DRAWN_NS;
	if (asleep == contend)
		return POLL_ASLEEP_NS;
	if (asleep & urgent)
		return POLL_URGENT_NS;
	return asleep ? POLL_LENT_NS : POLL_BUSY_NS;
}
