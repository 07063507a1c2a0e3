// SPDX-License-Identifier: MIT OR GPL-2.0-only
/* Evaluation of the samples: docs/reference/policies.md, section 6. */
#include "sched_check.h"

#include "sched_hold.h"
#include "sched_hwshare.h"
#include "sched_rr.h"

#define MS_NS		1000000ull
#define EXPECT_MOVED	8u		/* hits there would be if a control moved nothing */
#define EXPECT_SUSPECT	5u
#define MOVED_PARTS	8u		/* a working control leaves less than this part of them */
#define RETURNED_MIN	3u		/* times it came back while held */
#define INEFFECTIVE_PARTS	2u	/* of what it has when thawed; more: no effect */
#define WORK_MIN	2u		/* times it was on the engine */
#define LONG_MOVED	5u		/* times it would have been there */
#define CORUN_MIN	24u
#define CORUN_MAX	192u
#define IDLE_PARTS	5u		/* samples fall on switches too; more than this part is idleness */
#define ALONE_MIN	4u		/* samples needed to see whether a slot always has work */
#define ALONE_SURE	24u		/* where a control depends on it: of 4 all show one that works for 0.7 of the time */
#define ALONE_MISSES	16u		/* one of so many may be wrong */
#define TRIES_MAX	6u
#define WAIT_MAX_NS	(3600000ull * MS_NS)

/* How often @s would have been seen while frozen, had that changed nothing. */
static u32 expected(const struct cgpu_check *l, const struct cgpu_check_slot *s, u32 frozen)
{
	return l->samples ? s->on_engine * frozen / l->samples : 0;
}

static void forget_frozen(struct cgpu_check *l)
{
	u32 i;

	for (i = 0; i < CGPU_SLOTS; i++) {
		l->slot[i].on_engine = 0;
		l->slot[i].frozen = 0;
		l->slot[i].hits = 0;
	}
	l->samples = 0;
}

static void forget_long_frozen(struct cgpu_check *l)
{
	u32 i;

	for (i = 0; i < CGPU_SLOTS; i++) {
		l->slot[i].long_frozen = 0;
		l->slot[i].long_on_engine = 0;
		l->slot[i].long_returned = 0;
	}
}

/* A container that is there when thawed and not when frozen is enough to prove the control. */
static bool freeze_moved(const struct cgpu_check *l)
{
	u32 i;

	for (i = 0; i < CGPU_SLOTS; i++) {
		const struct cgpu_check_slot *s = &l->slot[i];
		u32 expect = expected(l, s, s->frozen);

		if (expect >= EXPECT_MOVED && s->hits * MOVED_PARTS <= expect)
			return true;
		if (!s->long_on_engine && expected(l, s, s->long_frozen) >= LONG_MOVED)
			return true;
	}
	return false;
}

static u32 thawed_on_engine(const struct cgpu_check_slot *s)
{
	return s->on_engine - s->hits;
}

/* The slot left the engine, another one ran, and it came back, all while it was frozen for long;
 * and it was on the engine at least half as often then as at all other times: wrong samples are
 * fewer. The others, and not those when it could run: rounds can be in step with the sampler.
 */
static bool ran_while_frozen(const struct cgpu_check *l, const struct cgpu_check_slot *s)
{
	u32 else_on_engine = s->on_engine - s->long_on_engine, others = l->samples - s->long_frozen;

	if (!s->long_returned || s->on_engine < s->long_on_engine + WORK_MIN)
		return false;
	return (u64)s->long_on_engine * INEFFECTIVE_PARTS * others >=
	       (u64)s->long_frozen * else_on_engine;
}

/* Slots that are seen on the engine, be it once: what a freeze does to the others shows nothing. */
static u32 with_work(const struct cgpu_check *l, const struct cgpu_sched *t)
{
	u32 mask = 0, i;

	for (i = 0; i < CGPU_SLOTS; i++)
		if (l->slot[i].on_engine)
			mask |= 1u << i;
	return mask & t->opened_mask;
}

/* Those of @mask that ran while they were frozen. */
static u32 loose(const struct cgpu_check *l, u32 mask)
{
	u32 found = 0;

	for (; mask; mask &= mask - 1)
		if (ran_while_frozen(l, &l->slot[__builtin_ctz(mask)]))
			found |= mask & -mask;
	return found;
}

/* One slot that runs while it is frozen proves nothing about the control: a tenant may have brought
 * its channels out of our reach, and may have several containers. So all slots that have work must
 * do so, and there must be two of them, of which one was seen when it may run: else the sampler may
 * be wrong each time.
 */
static bool freeze_ineffective(const struct cgpu_check *l, const struct cgpu_sched *t)
{
	u32 work = with_work(l, t), returned = 0, i;
	bool seen = false;

	for (i = 0; i < CGPU_SLOTS; i++) {
		returned += l->slot[i].long_returned;
		seen |= thawed_on_engine(&l->slot[i]) >= WORK_MIN;
	}
	return work && !cgpu_is_one(work) && seen && returned >= RETURNED_MIN &&
	       loose(l, work) == work;
}

/* The slot of @mask with the most hits; CGPU_CHECK_IDLE: @mask is empty. */
static u32 most_hits(const struct cgpu_check *l, u32 mask)
{
	u32 most = CGPU_CHECK_IDLE, i;

	for (; mask; mask &= mask - 1) {
		i = __builtin_ctz(mask);
		if (most >= CGPU_SLOTS || l->slot[i].hits > l->slot[most].hits)
			most = i;
	}
	return most;
}

/* Slots that were sampled while frozen, but not only then: rounds can be in step with the
 * sampler.
 */
static u32 suspects(const struct cgpu_check *l)
{
	u32 found = 0, i;

	for (i = 0; i < CGPU_SLOTS; i++)
		if (l->slot[i].hits && thawed_on_engine(&l->slot[i]) >= WORK_MIN)
			found |= 1u << i;
	return found;
}

/* The slot to hold; CGPU_CHECK_IDLE: nothing is suspect. After one that ran while it was held come
 * the others that have work: they show whether the control is at fault, or the slot.
 */
static u32 freeze_suspect(const struct cgpu_check *l, const struct cgpu_sched *t)
{
	u32 work = with_work(l, t), shown = loose(l, work), expect = 0, hits = 0, i;

	for (i = 0; i < CGPU_SLOTS; i++) {
		const struct cgpu_check_slot *s = &l->slot[i];

		expect += expected(l, s, s->frozen);
		hits += s->hits;
	}
	if (expect < EXPECT_SUSPECT || hits * 2 < expect)
		return CGPU_CHECK_IDLE;
	if (shown && shown != work)
		return most_hits(l, work & ~shown);
	return most_hits(l, suspects(l));
}

static bool has_always_work(const struct cgpu_check_slot *s)
{
	return s->alone >= ALONE_MIN && s->alone_on_engine * 8 >= s->alone * 7;
}

static bool surely_has_always_work(const struct cgpu_check_slot *s)
{
	return s->alone >= ALONE_SURE && (s->alone - s->alone_on_engine) * ALONE_MISSES <= s->alone;
}

/* Its timeslice should give it more than the number of its TSGs, by so much that it must be seen. */
static bool is_favoured(const struct cgpu_check_slot *s, u32 samples)
{
	u64 gain = 0;

	if (s->expected_by_ts > s->expected_by_tsgs)
		gain = s->expected_by_ts - s->expected_by_tsgs;
	return gain * gain >= 6ull * CGPU_CHECK_UNIT * CGPU_CHECK_UNIT * samples;
}

enum timing {
	TIMING_UNCLEAR,
	TIMING_MOVES,
	TIMING_PROVEN,
	TIMING_SUSPECT,
	TIMING_IDLES,	/* a favoured slot needs no more than it gets */
	TIMING_INEFFECTIVE,
};

/* @unclear: a slot that may not always have work. The control is suspect only if every favoured
 * slot gets no more than without it, and ineffective only if all those always have work.
 */
static enum timing timing(const struct cgpu_check *l, u32 *unclear)
{
	u32 favoured = 0, near = 0, up = 0, idle = 0, i;
	bool others_work = true;

	*unclear = CGPU_CHECK_IDLE;
	if (l->corun < CORUN_MIN)
		return TIMING_UNCLEAR;
	for (i = 0; i < CGPU_SLOTS; i++) {
		const struct cgpu_check_slot *s = &l->slot[i];
		u32 got = s->corun_on_engine * CGPU_CHECK_UNIT, gain;

		if (!s->corun)
			continue;
		if (!is_favoured(s, s->corun)) {
			others_work &= has_always_work(s) ||
				       s->expected_by_ts > s->expected_by_tsgs;
			continue;
		}
		favoured++;
		gain = s->expected_by_ts - s->expected_by_tsgs;
		near += got <= s->expected_by_tsgs + gain / 4 &&
			got + gain / 2 >= s->expected_by_tsgs;
		up += got >= s->expected_by_tsgs + gain - gain / 4;
		idle += s->alone >= ALONE_MIN && !has_always_work(s);
		if (!surely_has_always_work(s))
			*unclear = i;
	}
	if (favoured && up)
		return others_work ? TIMING_PROVEN : TIMING_MOVES;
	if (!favoured || near < favoured || l->corun_idle * IDLE_PARTS > l->corun)
		return TIMING_UNCLEAR;
	if (idle)
		return TIMING_IDLES;
	return *unclear < CGPU_SLOTS ? TIMING_SUSPECT : TIMING_INEFFECTIVE;
}

static void clear_suspicion(struct cgpu_check *l, u32 control, u64 now_ns)
{
	if (l->suspect != control)
		return;
	l->suspect = 0;
	l->tries = 0;
	l->next_ns = now_ns + l->wait_ns;
	l->wait_ns = l->wait_ns * 2 < WAIT_MAX_NS ? l->wait_ns * 2 : WAIT_MAX_NS;
}

/* A hold for @control, if it is time for one; at most @tries of them for a suspicion. */
static u32 ask_for_hold(struct cgpu_check *l, const struct cgpu_sched *t, u32 control, u32 mask,
			u32 tries, u64 now_ns)
{
	if (now_ns < l->next_ns || !(t->controls & CGPU_CTRL_FREEZE))
		return 0;
	l->tries = l->suspect == control ? l->tries + 1 : 0;
	l->suspect = control;
	if (l->tries < tries)
		return mask & t->opened_mask;
	clear_suspicion(l, control, now_ns);	/* for now */
	forget_frozen(l);
	forget_long_frozen(l);
	cgpu_check_forget_timed(l, now_ns);
	return 0;
}

/* Each of @slots may be held in turn. */
static u32 tries_for(u32 slots)
{
	u32 tries = 0;

	for (; slots; slots &= slots - 1)
		tries += TRIES_MAX;
	return tries;
}

static void evaluate_freezes(struct cgpu_check *l, const struct cgpu_sched *t, u64 now_ns,
			     struct cgpu_check_finding *find)
{
	u32 suspect;

	if (freeze_moved(l)) {
		find->control = CGPU_CTRL_FREEZE;
		find->moved = 1;
		find->loose = loose(l, with_work(l, t));
		l->seen |= CGPU_CTRL_FREEZE;
		clear_suspicion(l, CGPU_CTRL_FREEZE, now_ns);
		forget_frozen(l);
		forget_long_frozen(l);
		return;
	}
	suspect = freeze_suspect(l, t);
	if (freeze_ineffective(l, t)) {
		find->control = CGPU_CTRL_FREEZE;
		l->seen &= ~CGPU_CTRL_FREEZE;
		l->tries = 0;
		forget_long_frozen(l);
	}
	/* Alone, it cannot be distinguished from a kernel that resists. */
	if (suspect < CGPU_SLOTS && !cgpu_is_one(t->opened_mask))
		find->hold = ask_for_hold(l, t, CGPU_CTRL_FREEZE, 1u << suspect,
					  tries_for(with_work(l, t)), now_ns);
}

static void evaluate_timeslices(struct cgpu_check *l, const struct cgpu_sched *t, u64 now_ns,
				struct cgpu_check_finding *find)
{
	u32 unclear;
	enum timing found = timing(l, &unclear);

	switch (found) {
	case TIMING_MOVES:
	case TIMING_PROVEN:
		find->control = CGPU_CTRL_TIMESLICE;
		find->moved = 1;
		l->seen |= found == TIMING_PROVEN ? CGPU_CTRL_TIMESLICE : 0;
		clear_suspicion(l, CGPU_CTRL_TIMESLICE, now_ns);
		cgpu_check_forget_timed(l, now_ns);
		return;
	case TIMING_INEFFECTIVE:
		find->control = CGPU_CTRL_TIMESLICE;
		l->seen &= ~CGPU_CTRL_TIMESLICE;
		break;	/* the next look is later: a hold of the others would show no more */
	case TIMING_SUSPECT:
		find->hold = ask_for_hold(l, t, CGPU_CTRL_TIMESLICE,
					  t->opened_mask & ~(1u << unclear), TRIES_MAX, now_ns);
		return;
	case TIMING_IDLES:
		break;
	case TIMING_UNCLEAR:
		if (l->corun < CORUN_MAX)
			return;
	}
	clear_suspicion(l, CGPU_CTRL_TIMESLICE, now_ns);	/* for now */
	cgpu_check_forget_timed(l, now_ns);
}

/**
 * cgpu_check_evaluate() - what follows from the samples so far
 * @l: the effect check
 * @t: the scheduler
 * @now_ns: monotonic
 * @find: filled; at most one control at a time
 *
 * Context: Caller serialises. No slot may be held. A finding of no effect comes before the
 * hold that may follow it.
 */
void cgpu_check_evaluate(struct cgpu_check *l, const struct cgpu_sched *t, u64 now_ns,
			 struct cgpu_check_finding *find)
{
	memset(find, 0, sizeof(*find));
	if (t->controls & CGPU_CTRL_FREEZE)
		evaluate_freezes(l, t, now_ns, find);
	if (!find->control && !find->hold && (t->controls & CGPU_CTRL_TIMESLICE))
		evaluate_timeslices(l, t, now_ns, find);
}

/**
 * cgpu_check_hold() - freeze some out of turn, or let them go
 * @l: the effect check
 * @t: the scheduler
 * @mask: slots, 0 lets all go
 * @now_ns: monotonic
 *
 * A freeze has to last for long to show whether one leaves the GPU by it. What a container does without the others
 * is seen in samples alone, so for timeslices the others are held around those.
 *
 * Context: Caller serialises. Acts at the next cgpu_sched_next().
 */
void cgpu_check_hold(struct cgpu_check *l, struct cgpu_sched *t, u32 mask, u64 now_ns)
{
	if (!mask && l->next_ns < now_ns + CGPU_CHECK_POLL_MS * MS_NS)
		l->next_ns = now_ns + CGPU_CHECK_POLL_MS * MS_NS;
	l->held = mask;
	if (mask && l->suspect == CGPU_CTRL_TIMESLICE && l->period_ns)
		cgpu_hold_at_samples(t, mask, l->seen_ns, l->period_ns);
	else
		cgpu_sched_set_held(t, mask, now_ns);
}
