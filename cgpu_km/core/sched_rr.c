// SPDX-License-Identifier: MIT OR GPL-2.0-only
/*
 * Deficit round robin (Shreedhar and Varghese 1996).
 *
 * A slot is granted its slices when its turn begins, and is charged the time that it ran
 * as acknowledged by the driver. Its turn ends when its deficit is used up. A turn that
 * ends late makes the next one shorter, and the reverse: over n rounds a slot gets n
 * grants, plus or minus the error of the last turn. Latency of calls, late wake-ups and
 * failed calls cancel out without being predicted.
 */
#include "sched_rr.h"

#include "sched_debt.h"
#include "sched_debtors.h"
#include "sched_hwshare.h"
#include "sched_recent.h"

#define MIN_PARTS	CGPU_TURN_MIN_PARTS
#define SLACK_PARTS	64	/* a turn with less than slice/64 left is over */
#define LATE_PARTS	4	/* turns are spread by at most this part of a slice */
#define LATE_MAX_NS	1024000u	/* and by a timeslice of the driver, or half of one */
#define WOKEN_NS	4000000u	/* to the next look whether a turn gives way to a slot that woke */
#define GOLDEN		0x9e3779b9u
#define SLOT_STEP	53u	/* no two go in step */

static bool has(u32 mask, u32 slot)
{
	return slot < CGPU_SLOTS && (mask >> slot & 1);
}

/**
 * cgpu_rr_reset() - end the turn of a group; deficits stay
 * @t: the scheduler
 * @nr: enum cgpu_rr_nr
 */
void cgpu_rr_reset(struct cgpu_sched *t, u32 nr)
{
	u32 i;

	memset(&t->rr[nr], 0, sizeof(t->rr[nr]));
	t->rr[nr].curr = CGPU_NO_SLOT;
	t->rr[nr].resume = CGPU_NO_SLOT;
	t->rr[nr].cursor = CGPU_SLOTS - 1;
	for (i = 0; nr == CGPU_RR_NORMAL && i < CGPU_SLOTS; i++)
		t->slot[i].last_round_served = 0;
}

/**
 * cgpu_rr_begin_with() - select the first slot while no turn is under way
 * @t: the scheduler
 * @nr: enum cgpu_rr_nr
 * @members: candidates
 * @nth: which of them, counted from 0, modulo their number
 */
void cgpu_rr_begin_with(struct cgpu_sched *t, u32 nr, u32 members, u64 nth)
{
	u32 count = 0, mask, slot;

	for (mask = members; mask; mask &= mask - 1)
		count++;
	for (nth %= count; nth; nth--)
		members &= members - 1;
	slot = __builtin_ctz(members);
	t->rr[nr].cursor = slot ? slot - 1 : CGPU_SLOTS - 1;
}

/* What may be saved up: a grant that is less than a turn is worth adds up to one. */
static s64 most_saved_ns(const struct cgpu_sched *t, u32 slot)
{
	u64 grant_ns = cgpu_round_grant_ns(t, slot);

	return (s64)(grant_ns > t->slice_ns ? grant_ns : t->slice_ns);
}

/* Its thaw failed. It has run for nothing of its turn yet. */
static bool curr_is_stuck(const struct cgpu_sched *t, const struct cgpu_rr *r)
{
	return has(t->freeze_unknown_mask & ~t->run_mask, r->curr);
}

/**
 * cgpu_rr_thaws_first() - is the next thawed before the last is frozen
 * @t: the scheduler
 *
 * In a fixed round only while it is late: between two freezes and thaws lies a gap, and
 * with few empty slices these gaps would shorten the turns of all slots.
 */
bool cgpu_rr_thaws_first(const struct cgpu_sched *t)
{
	const struct cgpu_rr *r = &t->rr[CGPU_RR_NORMAL];

	return cgpu_policy_get(t->policy)->thaw_first ||
	       ((r->running & CGPU_RR_PLANNED) && r->fixed && r->late);
}

/**
 * cgpu_rr_late_ns() - how much later than it is used up a turn shall end
 * @t: the scheduler
 * @slot: the current one
 *
 * If thaw comes first, the hardware's timeslices decide which slot runs during the overlap.
 * Turns of equal length would meet them at the same place every time, and always the same
 * slot would gain. So turns end up to one timeslice late, and the deficit takes it back
 * from the next. The difference of two in a row moves the end: it goes in golden steps.
 */
u64 cgpu_rr_late_ns(const struct cgpu_sched *t, u32 slot)
{
	u64 span_ns = t->slice_ns / LATE_PARTS;
	u32 turn, late;

	if (!cgpu_rr_thaws_first(t) || slot >= CGPU_SLOTS)
		return 0;
	if (span_ns > LATE_MAX_NS)
		span_ns = LATE_MAX_NS;
	/* Two and two make up for one another, or all together would shift the round. */
	turn = ((u32)t->slot[slot].turns + slot / 2 * SLOT_STEP) & 0xffff;
	late = turn * (turn + 1) / 2 * GOLDEN;
	return span_ns * (slot % 2 ? ~late : late) >> 32;
}

/**
 * cgpu_turn_over() - is the turn under way used up
 * @t: the scheduler, accounted up to now
 * @nr: enum cgpu_rr_nr
 */
bool cgpu_turn_over(struct cgpu_sched *t, u32 nr)
{
	struct cgpu_rr *r = &t->rr[nr];
	s64 left;

	if (!has(r->members, r->curr) || r->clock_ns >= r->deadline_ns)
		return true;
	left = *cgpu_debt_deficit(t, nr, r->curr);
	if (left <= (s64)(t->slice_ns / SLACK_PARTS))
		return true;
	/* The next may try sooner: deadline_ns is the beginning + deficit + slice. */
	return curr_is_stuck(t, r) &&
	       r->clock_ns + (u64)left + t->slice_ns >= r->deadline_ns + t->slice_ns / MIN_PARTS;
}

/**
 * cgpu_turn_left_ns() - how long the turn under way lasts by what is known now
 * @t: the scheduler, accounted up to now
 * @nr: enum cgpu_rr_nr, with an owner
 */
u64 cgpu_turn_left_ns(struct cgpu_sched *t, u32 nr)
{
	struct cgpu_rr *r = &t->rr[nr];
	u64 left_ns = (u64)*cgpu_debt_deficit(t, nr, r->curr);
	u64 most_ns = curr_is_stuck(t, r) ? t->slice_ns / MIN_PARTS : r->deadline_ns - r->clock_ns;

	return left_ns < most_ns ? left_ns : most_ns;
}

/**
 * cgpu_turn_end() - the current turn ends
 * @t: the scheduler
 * @nr: enum cgpu_rr_nr, with an owner
 *
 * A slot that closed the GPU keeps a negative deficit only; one that sleeps keeps what is left
 * of its turn for when it wakes.
 */
void cgpu_turn_end(struct cgpu_sched *t, u32 nr)
{
	struct cgpu_rr *r = &t->rr[nr];

	if (has(r->members, r->curr) && t->slot[r->curr].full_turns < CGPU_APART_TURNS)
		t->slot[r->curr].full_turns++;
	if (!has(r->members | r->asleep, r->curr)) {
		s64 *deficit = cgpu_debt_deficit(t, nr, r->curr);

		if (*deficit > 0)
			*deficit = 0;
	}
	r->curr = CGPU_NO_SLOT;
}

/* A turn of the deficit that @slot has. */
static void continue_turn(struct cgpu_sched *t, u32 nr, u32 slot)
{
	struct cgpu_rr *r = &t->rr[nr];

	r->curr = slot;
	/* A slot that cannot be thawed must not delay the others for ever. */
	r->deadline_ns = r->clock_ns + (u64)*cgpu_debt_deficit(t, nr, slot) + t->slice_ns;
}

static void grant_part(struct cgpu_sched *t, u32 nr, u32 slot, const struct cgpu_round *whole)
{
	cgpu_debt_grant(t, nr, slot, cgpu_round_grant_ns(t, slot), cgpu_round_part_ns(t, whole, slot), whole->len_ns);
	cgpu_debtors_note(t, nr, slot, false);
}

/**
 * cgpu_turn_begin() - grant a slot its part of the round
 * @t: the scheduler
 * @nr: enum cgpu_rr_nr
 * @slot: the next one
 * @whole: cgpu_round_of() the group
 *
 * Return: false if its debt leaves too little of the part: the turn is passed over and the
 * rest carried.
 */
bool cgpu_turn_begin(struct cgpu_sched *t, u32 nr, u32 slot, const struct cgpu_round *whole)
{
	s64 most_saved = most_saved_ns(t, slot);
	s64 *deficit = cgpu_debt_deficit(t, nr, slot);

	if (*deficit > most_saved)
		*deficit = most_saved;
	grant_part(t, nr, slot, whole);
	if (*deficit < (s64)(t->slice_ns / MIN_PARTS))
		return false;
	/* Not of a turn that is passed over: it would pay the debt, once for each round without a turn. */
	*deficit += cgpu_rr_missing_ns(t, nr, slot);
	continue_turn(t, nr, slot);
	t->slot[slot].turns++;
	return true;
}

/* All of @members were passed over: grant the rounds in which none of them can begin at once. */
static void skip_rounds(struct cgpu_sched *t, u32 nr, u32 members, const struct cgpu_round *whole)
{
	struct cgpu_rr *r = &t->rr[nr];
	s64 enough_ns = (s64)(t->slice_ns / MIN_PARTS);
	u64 least = CGPU_NEVER_NS, part[CGPU_SLOTS];
	u32 mask;

	for (mask = members; mask; mask &= mask - 1) {
		u32 i = __builtin_ctz(mask);
		s64 lacks = enough_ns - *cgpu_debt_deficit(t, nr, i);
		u64 most_ns = lacks > 0 ? (u64)lacks - 1 : 0;

		part[i] = (u64)cgpu_round_part_ns(t, whole, i);
		if (least == CGPU_NEVER_NS || most_ns < least * part[i])
			least = most_ns / part[i];
	}
	for (mask = members; mask; mask &= mask - 1) {
		u32 i = __builtin_ctz(mask);

		*cgpu_debt_deficit(t, nr, i) += (s64)(least * part[i]);
	}
	r->round += least;
}

/* A slot that sleeps has its part of the round for when it wakes: one grant in all, since
 * what it did not use was lent.
 */
static void grant_asleep(struct cgpu_sched *t, u32 nr, u32 slot, const struct cgpu_round *whole)
{
	s64 *deficit = cgpu_debt_deficit(t, nr, slot), most_saved = most_saved_ns(t, slot);

	grant_part(t, nr, slot, whole);
	if (*deficit > most_saved)
		*deficit = most_saved;
}

static u32 first_woken(const struct cgpu_sched *t, u32 mask)
{
	u32 first = __builtin_ctz(mask);

	for (; mask; mask &= mask - 1)
		if (t->slot[__builtin_ctz(mask)].woken_ns < t->slot[first].woken_ns)
			first = __builtin_ctz(mask);
	return first;
}

/* Slots that woke come first, in that order, each with what it has left: it lent that time.
 * A grant is given per round only, so sleeping and waking gains nothing. A slot that delayed its
 * freeze since it woke may have none left.
 */
static bool pass_to_woken(struct cgpu_sched *t, u32 nr, u32 waiting)
{
	struct cgpu_rr *r = &t->rr[nr];
	u32 slot;

	while (r->woken) {
		slot = first_woken(t, r->woken);
		r->woken &= ~(1u << slot);
		if (has(waiting, slot) || *cgpu_debt_deficit(t, nr, slot) < (s64)(t->slice_ns / MIN_PARTS))
			continue;
		continue_turn(t, nr, slot);
		t->slot[slot].turns++;
		return true;
	}
	slot = r->resume;
	r->resume = CGPU_NO_SLOT;
	if (!has(r->members, slot) ||
	    *cgpu_debt_deficit(t, nr, slot) <= (s64)(t->slice_ns / SLACK_PARTS))
		return false;
	continue_turn(t, nr, slot);
	return true;
}

/* One that has enough of it comes next. */
static void grant_debtors(struct cgpu_sched *t, u32 nr, const struct cgpu_round *whole)
{
	u32 due = cgpu_debtors_due(t, nr, cgpu_debtors_of(t, nr));

	for (; due; due &= due - 1) {
		u32 i = __builtin_ctz(due);

		grant_part(t, nr, i, whole);
		cgpu_debtors_note(t, nr, i, true);
		if (*cgpu_debt_deficit(t, nr, i) >= (s64)(t->slice_ns / MIN_PARTS))
			t->rr[nr].woken |= 1u << i;
	}
}

static void pass_to_next(struct cgpu_sched *t, u32 nr)
{
	struct cgpu_rr *r = &t->rr[nr];
	struct cgpu_round whole = cgpu_round_of(t, r);
	u32 steps, passed = 0, waiting;

	grant_debtors(t, nr, &whole);
	waiting = cgpu_debtors_of(t, nr);
	if (pass_to_woken(t, nr, waiting))
		return;
	if (waiting == r->members)
		return;
	for (steps = 0; steps < CGPU_RR_STEPS_MAX; steps++) {
		if (++r->cursor >= CGPU_SLOTS) {
			r->cursor = 0;
			r->round++;
		}
		if (has(r->asleep, r->cursor))
			grant_asleep(t, nr, r->cursor, &whole);
		if (!has(r->members & ~waiting, r->cursor))
			continue;
		if (cgpu_turn_begin(t, nr, r->cursor, &whole))
			return;
		passed |= 1u << r->cursor;
		if (passed == (r->members & ~waiting)) {
			waiting |= cgpu_debtors_of(t, nr);
			if (waiting == r->members)
				return;
			skip_rounds(t, nr, r->members & ~waiting, &whole);
			passed = 0;
		}
	}
}

/* No contention: do not charge or preempt. Clear the deficit of the only runnable slot, since
 * there is no competitor to repay; slots without channels keep theirs, otherwise closing and
 * opening the GPU would reset it.
 */
static u32 step_alone(struct cgpu_sched *t, u32 nr, u32 member)
{
	struct cgpu_rr *r = &t->rr[nr];
	u32 i;

	if (r->contended && r->curr < CGPU_SLOTS)
		cgpu_turn_end(t, nr);
	r->contended = 0;
	r->curr = CGPU_NO_SLOT;
	for (i = 0; i < CGPU_SLOTS; i++) {
		if (has(member, i)) {
			r->curr = i;
			r->cursor = i;
			*cgpu_debt_deficit(t, nr, i) = 0;
			cgpu_debt_drop(t, nr, i);
		}
	}
	return member;
}

/* Those of @were_asleep that have work again and enough left for a turn come next. */
static void cut_short(struct cgpu_sched *t, u32 nr, u32 were_asleep)
{
	struct cgpu_rr *r = &t->rr[nr];
	bool goes_on;
	u32 mask;

	r->woken &= r->members;
	for (mask = were_asleep & r->members; mask; mask &= mask - 1) {
		u32 i = __builtin_ctz(mask);

		if (*cgpu_debt_deficit(t, nr, i) >= (s64)(t->slice_ns / MIN_PARTS))
			r->woken |= 1u << i;
	}
	if (r->woken && has(r->members, r->curr) && cgpu_rr_gives_way(t, r, &goes_on)) {
		/* The turn that one that woke had cut short is still due, if this one's is not. */
		if (goes_on)
			r->resume = r->curr;
		r->curr = CGPU_NO_SLOT;
	}
}

/* Does a slot that woke, and lacks much of its part, wait for a turn of one that had more than its own over some
 * seconds? As its turn began that one may have had less lately.
 */
static bool is_kept_waiting(const struct cgpu_sched *t, const struct cgpu_rr *r)
{
	u32 mask;

	for (mask = r->woken; mask; mask &= mask - 1)
		if (!cgpu_recent_is_near(t, __builtin_ctz(mask)))
			return cgpu_recent_over(t, CGPU_RECENT_LONG, 1u << r->curr);
	return false;
}

/* Turns among the members, nothing between them. */
static u32 step_round_robin(struct cgpu_sched *t, u32 nr, u32 were_asleep, u64 *left_ns)
{
	struct cgpu_rr *r = &t->rr[nr];
	struct cgpu_round whole;
	u64 stay_ns;
	u32 wait;

	if (!r->asleep && !(r->members & (r->members - 1))) {
		r->woken = 0;
		r->resume = CGPU_NO_SLOT;
		return step_alone(t, nr, r->members);
	}
	if (!r->members) {
		if (r->curr < CGPU_SLOTS)
			cgpu_turn_end(t, nr);
		r->contended = 1;
		return 0;
	}
	if (!r->contended) {
		r->contended = 1;
		/* The slot that was alone continues for a turn: opening and closing the GPU
		 * repeatedly must not give another slot a turn each time.
		 */
		whole = cgpu_round_of(t, r);
		if (has(r->members, r->curr))
			cgpu_turn_begin(t, nr, r->curr, &whole);
	}
	if (r->curr < CGPU_SLOTS && cgpu_turn_over(t, nr))
		cgpu_turn_end(t, nr);
	cut_short(t, nr, were_asleep);
	if (r->curr >= CGPU_SLOTS)
		pass_to_next(t, nr);
	if (r->curr >= CGPU_SLOTS) {
		wait = cgpu_debtors_of(t, nr);
		if (wait)
			*left_ns = cgpu_debtors_wait_ns(t, nr, wait);
		return 0;
	}
	*left_ns = cgpu_turn_left_ns(t, nr);
	if (*left_ns > WOKEN_NS && is_kept_waiting(t, r))
		*left_ns = WOKEN_NS;
	stay_ns = cgpu_rr_stay_ns(t, r);
	if (stay_ns && stay_ns < *left_ns)
		*left_ns = stay_ns;
	return 1u << r->curr | cgpu_rr_beside(t, nr, left_ns);
}

/**
 * cgpu_rr_enter() - a group is part of the plan that is made
 * @t: the scheduler, accounted up to now
 * @nr: enum cgpu_rr_nr
 * @members: slots that take turns
 * @asleep: slots that would, had they work; not with @fixed
 * @fixed: in a fixed round, or one after the other
 *
 * Return: the slots that slept in the plan before.
 */
u32 cgpu_rr_enter(struct cgpu_sched *t, u32 nr, u32 members, u32 asleep, bool fixed)
{
	struct cgpu_rr *r = &t->rr[nr];
	u32 were_asleep = r->asleep;

	if (r->fixed != fixed) {
		cgpu_rr_reset(t, nr);
		r->fixed = fixed;
		r->cursor = fixed ? 0 : CGPU_SLOTS - 1;
	}
	r->members = members;
	r->asleep = asleep;
	r->running |= CGPU_RR_PLANNED;
	return were_asleep;
}

/**
 * cgpu_rr_step() - select the current slot, one after the other
 * @t: the scheduler, accounted up to now
 * @nr: enum cgpu_rr_nr
 * @members: slots that take turns
 * @asleep: slots that would, had they work
 * @left_ns: how long it stays so, by what is known now; untouched: for ever
 *
 * Return: the slot that may run as a mask.
 */
u32 cgpu_rr_step(struct cgpu_sched *t, u32 nr, u32 members, u32 asleep, u64 *left_ns)
{
	return step_round_robin(t, nr, cgpu_rr_enter(t, nr, members, asleep, false), left_ns);
}
