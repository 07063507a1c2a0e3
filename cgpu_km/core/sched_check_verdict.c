// SPDX-License-Identifier: MIT OR GPL-2.0
/* What the samples say of the controls: docs/reference/policies.md, section 6. */
#include "sched_check.h"

#include "sched_hwshare.h"
#include "sched_rr.h"

#define MS_NS		1000000ull
#define EXPECT_MOVED	8u		/* hits there would be if a control moved nothing */
#define EXPECT_SUSPECT	5u
#define MOVED_PARTS	8u		/* a working control leaves less than this part of them */
#define BACK_MIN	3u		/* times it came back while held */
#define INEFFECTIVE_PARTS	2u	/* an ineffective one leaves this part of what it has when it may, and more */
#define THAWED_MIN	2u		/* times it was there when it may */
#define DEEP_MOVED	5u		/* times it would have been there */
#define BESIDE_MIN	24u
#define BESIDE_MAX	192u
#define IDLE_PARTS	5u		/* samples fall on switches too; more than this part is idleness */
#define ALONE_MIN	4u		/* samples that tell whether one always has work */
#define TRIES_MAX	6u
#define WAIT_MAX_NS	(3600000ull * MS_NS)

/* How often @s would have been seen while frozen, had that changed nothing. */
static u32 expected(const struct cgpu_look *l, const struct cgpu_look_slot *s, u32 frozen)
{
	return l->samples ? s->named * frozen / l->samples : 0;
}

static void forget_frozen(struct cgpu_look *l)
{
	u32 i;

	for (i = 0; i < CGPU_SLOTS; i++) {
		l->slot[i].named = 0;
		l->slot[i].frozen = 0;
		l->slot[i].hits = 0;
	}
	l->samples = 0;
}

static void forget_deep(struct cgpu_look *l)
{
	u32 i;

	for (i = 0; i < CGPU_SLOTS; i++) {
		l->slot[i].deep = 0;
		l->slot[i].deep_named = 0;
		l->slot[i].deep_back = 0;
	}
}

/* A container that is there when thawed and not when frozen is enough to prove the control. */
static bool freeze_moved(const struct cgpu_look *l)
{
	u32 i;

	for (i = 0; i < CGPU_SLOTS; i++) {
		const struct cgpu_look_slot *s = &l->slot[i];
		u32 expect = expected(l, s, s->frozen);

		if (expect >= EXPECT_MOVED && s->hits * MOVED_PARTS <= expect)
			return true;
		if (!s->deep_named && expected(l, s, s->deep) >= DEEP_MOVED)
			return true;
	}
	return false;
}

static u32 thawed_named(const struct cgpu_look_slot *s)
{
	return s->named - s->hits;
}

/* It was taken off, somebody else ran, and it came back, all while it was frozen; and
 * it was there about as often as when it may be: wrong samples are less than that.
 */
static bool freeze_ineffective(const struct cgpu_look *l)
{
	u32 back = 0, named = 0, expect = 0, i;

	for (i = 0; i < CGPU_SLOTS; i++) {
		const struct cgpu_look_slot *s = &l->slot[i];
		u32 thawed = l->samples - s->frozen;

		if (!s->deep || thawed_named(s) < THAWED_MIN)
			continue;
		back += s->deep_back;
		named += s->deep_named;
		expect += s->deep * thawed_named(s) * CGPU_LOOK_UNIT / thawed;
	}
	return back >= BACK_MIN && named * CGPU_LOOK_UNIT >= expect / INEFFECTIVE_PARTS;
}

/* Whom to hold; CGPU_LOOK_NOBODY: there is nothing to suspect. Not one that was only ever
 * seen while frozen: rounds can be in step with the sampler.
 */
static u32 freeze_suspect(const struct cgpu_look *l)
{
	u32 expect = 0, hits = 0, most = CGPU_LOOK_NOBODY, i;

	for (i = 0; i < CGPU_SLOTS; i++) {
		const struct cgpu_look_slot *s = &l->slot[i];

		expect += expected(l, s, s->frozen);
		hits += s->hits;
		if (s->hits && thawed_named(s) >= THAWED_MIN &&
		    (most >= CGPU_SLOTS || s->hits > l->slot[most].hits))
			most = i;
	}
	return expect >= EXPECT_SUSPECT && hits * 2 >= expect ? most : CGPU_LOOK_NOBODY;
}

static bool has_always_work(const struct cgpu_look_slot *s)
{
	return s->alone >= ALONE_MIN && s->alone_named * 8 >= s->alone * 7;
}

/* Its timeslice should give it more than the number of its TSGs, by so much that it must be seen. */
static bool is_favoured(const struct cgpu_look_slot *s, u32 samples)
{
	u64 gain = s->asked > s->natural ? s->asked - s->natural : 0;

	return gain * gain >= 6ull * CGPU_LOOK_UNIT * CGPU_LOOK_UNIT * samples;
}

enum timing {
	TIMING_UNCLEAR,
	TIMING_MOVES,
	TIMING_PROVEN,
	TIMING_SUSPECT,
	TIMING_IDLES,	/* one was seen to ask for no more than it gets */
	TIMING_INEFFECTIVE,
};

/* @ask: of whom it is not known whether it always has work. Only if every favoured one gets no
 * more than without the control is it suspect, and only if all those have work is it ineffective.
 */
static enum timing timing(const struct cgpu_look *l, u32 *ask)
{
	u32 favoured = 0, near = 0, up = 0, idle = 0, i;
	bool others_work = true;

	*ask = CGPU_LOOK_NOBODY;
	if (l->beside < BESIDE_MIN)
		return TIMING_UNCLEAR;
	for (i = 0; i < CGPU_SLOTS; i++) {
		const struct cgpu_look_slot *s = &l->slot[i];
		u32 got = s->beside_named * CGPU_LOOK_UNIT, gain;

		if (!s->beside)
			continue;
		if (!is_favoured(s, s->beside)) {
			others_work &= has_always_work(s) || s->asked > s->natural;
			continue;
		}
		favoured++;
		gain = s->asked - s->natural;
		near += got <= s->natural + gain / 4 && got + gain / 2 >= s->natural;
		up += got >= s->natural + gain - gain / 4;
		if (!has_always_work(s)) {
			idle += s->alone >= ALONE_MIN;
			*ask = i;
		}
	}
	if (favoured && up)
		return others_work ? TIMING_PROVEN : TIMING_MOVES;
	if (!favoured || near < favoured || l->beside_idle * IDLE_PARTS > l->beside)
		return TIMING_UNCLEAR;
	if (idle)
		return TIMING_IDLES;
	return *ask < CGPU_SLOTS ? TIMING_SUSPECT : TIMING_INEFFECTIVE;
}

static void acquit(struct cgpu_look *l, u32 control, u64 now_ns)
{
	if (l->suspect != control)
		return;
	l->suspect = 0;
	l->tries = 0;
	l->next_ns = now_ns + l->wait_ns;
	l->wait_ns = l->wait_ns * 2 < WAIT_MAX_NS ? l->wait_ns * 2 : WAIT_MAX_NS;
}

/* A hold for @control, if it is time for one. */
static u32 ask_for_hold(struct cgpu_look *l, const struct cgpu_sched *t, u32 control, u32 mask,
			u64 now_ns)
{
	if (now_ns < l->next_ns || !(t->controls & CGPU_CTRL_FREEZE))
		return 0;
	l->tries = l->suspect == control ? l->tries + 1 : 0;
	l->suspect = control;
	if (l->tries < TRIES_MAX)
		return mask & t->opened_mask;
	acquit(l, control, now_ns);	/* for now */
	forget_frozen(l);
	forget_deep(l);
	cgpu_look_forget_timed(l, now_ns);
	return 0;
}

static void judge_freezes(struct cgpu_look *l, const struct cgpu_sched *t, u64 now_ns,
			  struct cgpu_look_finding *find)
{
	u32 who;

	if (freeze_moved(l)) {
		find->control = CGPU_CTRL_FREEZE;
		find->moved = 1;
		l->seen |= CGPU_CTRL_FREEZE;
		acquit(l, CGPU_CTRL_FREEZE, now_ns);
		forget_frozen(l);
		forget_deep(l);
		return;
	}
	who = freeze_suspect(l);
	if (freeze_ineffective(l)) {
		find->control = CGPU_CTRL_FREEZE;
		l->seen &= ~CGPU_CTRL_FREEZE;
		l->tries = 0;
		forget_deep(l);
	}
	/* With nobody else about it cannot be told from a kernel that resists. */
	if (who < CGPU_SLOTS && !cgpu_is_one(t->opened_mask))
		find->hold = ask_for_hold(l, t, CGPU_CTRL_FREEZE, 1u << who, now_ns);
}

static void judge_timeslices(struct cgpu_look *l, const struct cgpu_sched *t, u64 now_ns,
			     struct cgpu_look_finding *find)
{
	u32 ask;
	enum timing found = timing(l, &ask);

	switch (found) {
	case TIMING_MOVES:
	case TIMING_PROVEN:
		find->control = CGPU_CTRL_TIMESLICE;
		find->moved = 1;
		l->seen |= found == TIMING_PROVEN ? CGPU_CTRL_TIMESLICE : 0;
		acquit(l, CGPU_CTRL_TIMESLICE, now_ns);
		cgpu_look_forget_timed(l, now_ns);
		return;
	case TIMING_INEFFECTIVE:
		find->control = CGPU_CTRL_TIMESLICE;
		l->seen &= ~CGPU_CTRL_TIMESLICE;
		l->tries = 0;
		cgpu_look_forget_timed(l, now_ns);
		return;
	case TIMING_SUSPECT:
		find->hold = ask_for_hold(l, t, CGPU_CTRL_TIMESLICE,
					  t->opened_mask & ~(1u << ask), now_ns);
		return;
	case TIMING_IDLES:
		break;
	case TIMING_UNCLEAR:
		if (l->beside < BESIDE_MAX)
			return;
	}
	acquit(l, CGPU_CTRL_TIMESLICE, now_ns);		/* for now */
	cgpu_look_forget_timed(l, now_ns);
}

/**
 * cgpu_look_judge() - what follows from the samples so far
 * @l: the look
 * @t: the scheduler
 * @now_ns: monotonic
 * @find: filled; at most one control at a time
 *
 * Context: Caller serialises. Nobody may be held. A finding of no effect comes before the hold that may follow it.
 */
void cgpu_look_judge(struct cgpu_look *l, const struct cgpu_sched *t, u64 now_ns,
		     struct cgpu_look_finding *find)
{
	memset(find, 0, sizeof(*find));
	if (t->controls & CGPU_CTRL_FREEZE)
		judge_freezes(l, t, now_ns, find);
	if (!find->control && !find->hold && (t->controls & CGPU_CTRL_TIMESLICE))
		judge_timeslices(l, t, now_ns, find);
}

/**
 * cgpu_look_hold() - freeze some out of turn, or let them go
 * @l: the look
 * @t: the scheduler
 * @mask: slots, 0 lets all go
 * @now_ns: monotonic
 *
 * Context: Caller serialises. Acts at the next cgpu_sched_next().
 */
void cgpu_look_hold(struct cgpu_look *l, struct cgpu_sched *t, u32 mask, u64 now_ns)
{
	if (!mask && l->next_ns < now_ns + CGPU_LOOK_POLL_MS * MS_NS)
		l->next_ns = now_ns + CGPU_LOOK_POLL_MS * MS_NS;
	l->held = mask;
	cgpu_sched_set_held(t, mask, now_ns);
}
