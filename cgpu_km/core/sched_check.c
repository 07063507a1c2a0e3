// SPDX-License-Identifier: MIT OR GPL-2.0-only
/*
 * Does the share move when a control is used?
 *
 * A container that is sampled while frozen proves little: the sampler's clock may be
 * off, or its kernel may resist preemption longer than a turn. So samples of normal
 * operation can prove a control, but not disable it: they make it suspect. Then one
 * container is held frozen for a second, and the control is without effect if the
 * container left the engine and came back.
 */
#include "sched_check.h"

#include "sched_hwshare.h"
#include "sched_rr.h"
#include "sched_use.h"

#define MARGIN_NS	1000000ull	/* around a change: its effect, the sampler's clock */
#define LONG_NS		250000000ull	/* longer than a sample's period */

#define SAMPLES_MAX	240u		/* then the old ones count half */

static u32 bit_of(u32 slot)
{
	return slot < CGPU_SLOTS ? 1u << slot : 0;
}

/**
 * cgpu_check_init() - nothing was seen yet
 * @l: storage of the caller
 * @now_ns: monotonic
 */
void cgpu_check_init(struct cgpu_check *l, u64 now_ns)
{
	memset(l, 0, sizeof(*l));
	l->seen_ns = now_ns;
	l->timed_ns = now_ns;
	l->wait_ns = CGPU_CHECK_WAIT_NS;
}

static struct cgpu_check_mark *last_mark(struct cgpu_check *l)
{
	return &l->mark[(l->marks - 1) % CGPU_CHECK_MARKS];
}

static void add_mark(struct cgpu_check *l, u64 at_ns, u32 frozen, u32 thawed)
{
	struct cgpu_check_mark *mark;

	if (l->marks) {
		mark = last_mark(l);
		if (mark->frozen == frozen && mark->thawed == thawed)
			return;
		if (mark->at_ns > at_ns)
			at_ns = mark->at_ns;
	}
	mark = &l->mark[l->marks++ % CGPU_CHECK_MARKS];
	mark->at_ns = at_ns;
	mark->frozen = frozen;
	mark->thawed = thawed;
}

static void note(struct cgpu_check *l, const struct cgpu_sched *t, u64 at_ns)
{
	u32 known = t->opened_mask & ~t->freeze_unknown_mask;

	add_mark(l, at_ns, known & ~t->run_mask & ~l->fresh & ~l->uncommitted,
		 known & t->run_mask);
}

/**
 * cgpu_check_forget_timed() - begin anew with what timeslices show
 * @l: the effect check
 * @now_ns: monotonic
 */
void cgpu_check_forget_timed(struct cgpu_check *l, u64 now_ns)
{
	u32 i;

	for (i = 0; i < CGPU_SLOTS; i++) {
		l->slot[i].corun = 0;
		l->slot[i].corun_on_engine = 0;
		l->slot[i].expected_by_ts = 0;
		l->slot[i].expected_by_tsgs = 0;
		l->slot[i].alone = 0;
		l->slot[i].alone_on_engine = 0;
	}
	l->corun = 0;
	l->corun_idle = 0;
	l->timed_ns = now_ns;
}

/**
 * cgpu_check_acted() - the calls of a plan were made and acknowledged
 * @l: the effect check
 * @t: the scheduler, after cgpu_sched_ack()
 * @plan: the plan
 * @ack: when its parts took effect
 * @committed: the runlist was restarted where that is needed
 * @now_ns: when the last call, that one included, was answered
 *
 * Context: Caller serialises.
 */
void cgpu_check_acted(struct cgpu_check *l, const struct cgpu_sched *t,
		      const struct cgpu_sched_plan *plan, const struct cgpu_sched_ack *ack,
		      bool committed, u64 now_ns)
{
	u32 called = plan->freeze_mask | plan->thaw_mask;

	if (l->marks) {
		struct cgpu_check_mark before = *last_mark(l);

		add_mark(l, ack->begin_ns, before.frozen & ~called, before.thawed & ~called);
	}
	l->fresh &= ~called;
	l->uncommitted = committed ? 0 : l->uncommitted | called | plan->timeslice_mask;
	/* A held container is left out of the others' timeslices, so these change too. */
	if (plan->timeslice_mask && l->suspect == CGPU_CTRL_TIMESLICE)
		l->timed_ns = now_ns;
	else if (plan->timeslice_mask)
		cgpu_check_forget_timed(l, now_ns);
	note(l, t, now_ns);
}

/**
 * cgpu_check_touched() - a container's channels, or it itself, came or went
 * @l: the effect check
 * @t: the scheduler, with the change
 * @slot: the container's
 * @now_ns: monotonic
 *
 * A new channel runs until it is frozen in the call that made it.
 *
 * Context: Caller serialises.
 */
void cgpu_check_touched(struct cgpu_check *l, const struct cgpu_sched *t, u32 slot, u64 now_ns)
{
	u32 bit = bit_of(slot);

	if (!bit)
		return;
	l->fresh |= bit;
	l->left_engine &= ~bit;
	if (!t->slot[slot].cookie)
		memset(&l->slot[slot], 0, sizeof(l->slot[slot]));
	cgpu_check_forget_timed(l, now_ns);
	note(l, t, now_ns);
}

/**
 * cgpu_check_until_ns() - up to when samples can be judged
 * @t: the scheduler
 * @now_ns: monotonic
 *
 * The effect of calls under way is known when they are acknowledged.
 */
u64 cgpu_check_until_ns(const struct cgpu_sched *t, u64 now_ns)
{
	u64 known_ns = t->inflight ? t->last_ns : now_ns;

	return known_ns > MARGIN_NS ? known_ns - MARGIN_NS : 0;
}

/* Slots frozen, and slots thawed, all the time. Returns how many marks that is of; 0: no longer on record. */
static u32 in_force(const struct cgpu_check *l, u64 from_ns, u64 to_ns,
		     struct cgpu_check_mark *all)
{
	u32 n = l->marks < CGPU_CHECK_MARKS ? l->marks : CGPU_CHECK_MARKS, marks = 0, i;

	all->frozen = 0xffffffffu;
	all->thawed = 0xffffffffu;
	for (i = 1; i <= n; i++) {
		const struct cgpu_check_mark *mark = &l->mark[(l->marks - i) % CGPU_CHECK_MARKS];

		if (mark->at_ns > to_ns)
			continue;
		all->frozen &= mark->frozen;
		all->thawed &= mark->thawed;
		marks++;
		if (mark->at_ns <= from_ns)
			return marks;
	}
	return 0;
}

static void halve(struct cgpu_check *l)
{
	u32 i;

	for (i = 0; i < CGPU_SLOTS; i++) {
		l->slot[i].on_engine /= 2;
		l->slot[i].frozen /= 2;
		l->slot[i].hits /= 2;
		l->slot[i].long_frozen /= 2;
		l->slot[i].long_on_engine /= 2;
		l->slot[i].long_returned /= 2;
	}
	l->samples /= 2;
}

static void count_frozen(struct cgpu_check *l, u32 frozen, u32 long_frozen, u32 sampled)
{
	u32 i;

	for (i = 0; i < CGPU_SLOTS; i++) {
		struct cgpu_check_slot *s = &l->slot[i];
		u32 bit = 1u << i;

		s->on_engine += sampled == bit;
		if (!(frozen & bit))
			continue;
		s->frozen++;
		s->hits += sampled == bit;
		if (!(long_frozen & bit))
			continue;
		s->long_frozen++;
		s->long_on_engine += sampled == bit;
		s->long_returned += sampled == bit && (l->left_engine & bit);
	}
	l->samples++;
}

static void count_alone(struct cgpu_check_slot *s, bool on_engine)
{
	s->alone++;
	s->alone_on_engine += on_engine;
}

static void count_corun(struct cgpu_check *l, const struct cgpu_sched *t, u32 thawed, u32 sampled)
{
	u64 weight = cgpu_hw_weight(t, thawed, true), tsgs = cgpu_hw_weight(t, thawed, false);
	u32 mask;

	for (mask = thawed; mask; mask &= mask - 1) {
		u32 i = __builtin_ctz(mask);
		struct cgpu_check_slot *s = &l->slot[i];

		s->corun++;
		s->corun_on_engine += sampled == 1u << i;
		s->expected_by_ts += (u32)cgpu_hw_share(t, weight, i, true, CGPU_CHECK_UNIT);
		s->expected_by_tsgs += (u32)cgpu_hw_share(t, tsgs, i, false, CGPU_CHECK_UNIT);
	}
	if (thawed) {
		l->corun++;
		l->corun_idle += !sampled;
	}
}

/* The timeslices of those that are thawed are in force. */
static bool is_timed(const struct cgpu_check *l, const struct cgpu_sched *t, u32 thawed, u64 at_ns)
{
	return at_ns > l->timed_ns + LONG_NS &&
	       !((t->ts_failed_mask | t->ts_dirty_mask | t->unrestarted_mask | l->uncommitted) &
		 thawed);
}

/* One that runs alone does so whatever its timeslice. */
static void count_thawed(struct cgpu_check *l, const struct cgpu_sched *t,
			 const struct cgpu_check_mark *at, u64 at_ns, u32 sampled)
{
	if (t->opened_mask & ~(at->frozen | at->thawed))
		return;
	if (cgpu_is_one(at->thawed))
		count_alone(&l->slot[__builtin_ctz(at->thawed)], sampled == at->thawed);
	else if (is_timed(l, t, at->thawed, at_ns))
		count_corun(l, t, at->thawed, sampled);
}

/* Of a GPU that nobody had open no sample was read. */
static void note_period(struct cgpu_check *l, u64 gap_ns)
{
	if (gap_ns > 2 * LONG_NS)
		return;
	l->period_ns = l->period_ns ? (7 * l->period_ns + gap_ns) / 8 : gap_ns;
}

/* A sample shows something if one container at least was frozen, or thawed, all around it. Where nothing changes and
 * none is known to be either, none has the GPU open.
 */
static void note_shown(struct cgpu_check *l, u32 marks, const struct cgpu_check_mark *at)
{
	if (marks && (at->frozen | at->thawed))
		l->blind = 0;
	else if (marks != 1)
		l->blind += l->blind < CGPU_CHECK_BLIND;
}

/**
 * cgpu_check_is_blind() - do the samples show nothing
 * @l: the effect check
 *
 * Where turns are shorter than MARGIN_NS before and after a sample, every container changes around each.
 */
bool cgpu_check_is_blind(const struct cgpu_check *l)
{
	return l->blind >= CGPU_CHECK_BLIND;
}

/* Else it is some container's work, and not known whose. */
static bool names_one_or_none(u32 slot)
{
	return slot != CGPU_CHECK_FOREIGN && slot != CGPU_CHECK_LOW;
}

/**
 * cgpu_check_sample() - add a utilisation sample
 * @l: the effect check
 * @t: the scheduler, which notes what high priority uses
 * @at_ns: when; monotonic, rising, at most cgpu_check_until_ns()
 * @slot: on the engine, or CGPU_CHECK_IDLE, CGPU_CHECK_FOREIGN or CGPU_CHECK_LOW
 *
 * Context: Caller serialises.
 */
void cgpu_check_sample(struct cgpu_check *l, struct cgpu_sched *t, u64 at_ns, u32 slot)
{
	struct cgpu_check_mark at, since;
	u64 before_ns = l->seen_ns;
	u32 sampled = bit_of(slot), long_frozen = 0, marks;

	if (at_ns <= before_ns)
		return;
	l->seen_ns = at_ns;
	note_period(l, at_ns - before_ns);
	marks = at_ns >= MARGIN_NS ? in_force(l, at_ns - MARGIN_NS, at_ns + MARGIN_NS, &at) : 0;
	note_shown(l, marks, &at);
	if (!marks) {
		l->left_engine = 0;
		return;
	}
	/* Work that no container is known to do may be that of high priority. */
	cgpu_use_note(t, at.thawed, slot == CGPU_CHECK_FOREIGN ? ~0u : sampled, at_ns);
	if (!in_force(l, before_ns, at_ns, &since))
		since.frozen = 0;
	l->left_engine &= since.frozen;
	if (names_one_or_none(slot)) {
		if (at_ns > LONG_NS && in_force(l, at_ns - LONG_NS, at_ns, &since))
			long_frozen = since.frozen & at.frozen;
		count_frozen(l, at.frozen, long_frozen, sampled);
		count_thawed(l, t, &at, at_ns, sampled);
		l->left_engine |= at.frozen;
	}
	l->left_engine &= at.frozen & ~sampled;
	if (l->samples >= SAMPLES_MAX)
		halve(l);
}
