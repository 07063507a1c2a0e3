// SPDX-License-Identifier: MIT OR GPL-2.0-only
/*
 * Slots that sleep now and then run beside the turns of their kind, and cut other turns short.
 *
 * With requests of a few milliseconds on several slots, a freeze and a thaw for each would cost
 * more than turns are worth: the GPU waits for the thaw after each request, and one call in
 * thirty takes as long as a request. The hardware divides the GPU among such slots, and each is
 * charged what it pulls. A slot that works on, or has had more than it is due, waits for its turn. So does
 * one with work of several turns where another one works on.
 */
#include "sched_rr.h"

#include "sched_at_work.h"
#include "sched_ceiling.h"
#include "sched_debt.h"
#include "sched_prio.h"
#include "sched_recent.h"
#include "sched_resist.h"
#include "sched_run_state.h"

#define MOST_SLICES	4	/* so much more than it is due, and a slot waits for its turn */
#define EQUAL_US	8000u	/* timeslices of those that run beside others, of equal weight */
#define SHORTEST_US	1000u
#define LONGEST_US	16000u
#define BURST_NS	64000000ull	/* of requests that came together: four of the longest timeslices */
#define NEAR_PARTS	4	/* one that differs by less than this part stays */
#define STAY_NS		2000000ull	/* a freeze and a thaw, and as long again what waits for them */
#define RESTLESS_NS	400000000ull	/* after the last sleep of a slot that always works */
#define RICH		10u	/* eighths of its part, and a slot has what others leave */
#define RICH_STILL	9u
#define STEADY_US	500u	/* of one that always works beside such */
#define STEADY_TURNS	2	/* used up without sleeping: a slot that always has work */
#define MOST_TSGS	2	/* of more at work, the hardware's round would be theirs alone */

/* It has slept before, and not worked for long since: for a few turns, or for as much as some requests
 * together take where its work mostly ended soon before.
 */
static bool is_brief(const struct cgpu_sched *t, u32 slot)
{
	const struct cgpu_sched_entity *s = &t->slot[slot];

	if (!s->woken_ns || cgpu_at_work(t, slot) > MOST_TSGS)
		return false;
	return s->full_turns < CGPU_APART_TURNS ||
	       (s->brief_work >= CGPU_BRIEF_WORK_ENOUGH && s->gpu_ns - s->slept_gpu_ns < BURST_NS);
}

/* It always works and has a short timeslice, which its kernels keep. */
static bool is_steady(const struct cgpu_sched *t, u32 slot)
{
	const struct cgpu_sched_entity *s = &t->slot[slot];

	return (t->run_mask >> slot & 1) && !s->slow_freezes && s->timeslice_us &&
	       cgpu_at_work(t, slot) * s->timeslice_us <= STEADY_US;
}

/* Does one of @mask wake often with work that ends soon? It cuts turns short. */
static bool wakes_often(const struct cgpu_sched *t, u32 mask)
{
	for (; mask; mask &= mask - 1) {
		const struct cgpu_sched_entity *s = &t->slot[__builtin_ctz(mask)];

		if (s->brief_work >= CGPU_BRIEF_WORK_ENOUGH && t->last_ns - s->woken_ns < RESTLESS_NS)
			return true;
	}
	return false;
}

/* Those that run in their own turns only, because turns end soon: one that works on, or of which
 * nothing is known, waits for its own, or others wake often. Of slots with work for longer than a turn
 * the first in the hardware's round would have all of each. The account, which divides by timeslices,
 * does not see that. One that had little of its part takes nothing from others. Where one works on
 * they are alone in their turns: one with small pieces would wait for a timeslice with each.
 */
static u32 turns_apart(const struct cgpu_sched *t, const struct cgpu_rr *r)
{
	u32 mask = r->members & t->known_mask, out = 0;
	bool works_on = r->members & ~t->known_mask;

	for (; mask; mask &= mask - 1) {
		u32 i = __builtin_ctz(mask);

		if (!is_brief(t, i))
			works_on = true;
		else if (t->slot[i].brief_work < CGPU_BRIEF_WORK_ENOUGH && cgpu_recent_is_near(t, i))
			out |= 1u << i;
	}
	if (works_on)
		return out;
	return wakes_often(t, (r->members | r->asleep) & t->known_mask) ? out & ~(1u << r->curr) : 0;
}

/**
 * cgpu_rr_stay_ns() - how long those that always work are not frozen in the turn under way
 * @t: the scheduler, accounted up to now
 * @r: one of its round-robin groups, with an owner
 *
 * At their short timeslices one that wakes waits less for the hardware than for a call that freezes
 * them, and work that ends soon costs none at all.
 *
 * Return: 0: they are frozen.
 */
u64 cgpu_rr_stay_ns(const struct cgpu_sched *t, const struct cgpu_rr *r)
{
	const struct cgpu_sched_entity *s = &t->slot[r->curr];
	u64 age_ns = t->last_ns - s->woken_ns;

	if (!((t->known_mask & ~cgpu_ceiling_binding(t)) >> r->curr & 1))
		return 0;
	if (cgpu_prio_was_awake(t))
		return 0;
	return is_brief(t, r->curr) && age_ns < STAY_NS ? STAY_NS - age_ns : 0;
}

/* Those that may run beside others. Where high priority may wake at once their timeslices are a few
 * switches long: several that work on would lose a third of the GPU to those, and it would wait for
 * all of them.
 */
static u32 sociable(const struct cgpu_sched *t, const struct cgpu_rr *r)
{
	u32 known = r->members & t->known_mask, out = known, mask;

	if (!cgpu_prio_was_awake(t) || (known & t->weighted_mask[1]))
		return out;
	for (mask = known; mask; mask &= mask - 1) {
		const struct cgpu_sched_entity *s = &t->slot[__builtin_ctz(mask)];

		if (s->gpu_ns - s->slept_gpu_ns > STAY_NS)
			out &= ~(mask & -mask);
	}
	return out;
}

/* Of @beside the one that is frozen for a moment now, while that whose turn it is has work. One at a time: of
 * several it would not be known which delayed it.
 */
static u32 probed(const struct cgpu_sched *t, const struct cgpu_rr *r, u32 beside, u64 *left_ns)
{
	u32 mask = t->busy_mask >> r->curr & 1 ? beside & ~(1u << r->curr) : 0;

	for (; mask; mask &= mask - 1) {
		u64 ns = cgpu_resist_probe_ns(t, __builtin_ctz(mask));

		if (!ns)
			return mask & -mask;
		*left_ns = ns < *left_ns ? ns : *left_ns;
	}
	return 0;
}

/**
 * cgpu_rr_beside() - slots that run beside the turn under way
 * @t: the scheduler, accounted up to now
 * @nr: enum cgpu_rr_nr, with an owner
 * @left_ns: lowered to the time until one of them is frozen to see whether its kernels delay that
 *
 * Only slots whose run state is known: the others never sleep. One that had more than its part over some
 * seconds is frozen; one in a burst is not (sched_recent.c).
 */
u32 cgpu_rr_beside(struct cgpu_sched *t, u32 nr, u64 *left_ns)
{
	const struct cgpu_rr *r = &t->rr[nr];
	u32 mask = sociable(t, r), over, apart, out = 0;
	u64 stay;

	if (!(mask >> r->curr & 1) || !is_brief(t, r->curr))
		return 0;
	/* It would have more of the GPU than its timeslices, unseen. */
	if (cgpu_resist_delays(t, &t->slot[r->curr]))
		return 0;
	over = cgpu_recent_over(t, CGPU_RECENT_LONG, mask);
	apart = turns_apart(t, r);
	if (apart >> r->curr & 1)
		return 0;
	stay = cgpu_rr_stay_ns(t, r);
	for (; mask; mask &= mask - 1) {
		u32 i = __builtin_ctz(mask);

		if (cgpu_resist_delays(t, &t->slot[i]))
			continue;
		if (stay && !is_brief(t, i) && is_steady(t, i))
			out |= 1u << i;
		if (apart >> i & 1)
			continue;
		if (i != r->curr && cgpu_recent_yields(t, CGPU_RECENT_LONG, over, i, r->curr))
			continue;
		if (is_brief(t, i) &&
		    *cgpu_debt_deficit(t, nr, i) > -(s64)(MOST_SLICES * t->slice_ns))
			out |= 1u << i;
	}
	return out & ~probed(t, r, out, left_ns);
}

/**
 * cgpu_rr_gives_way() - does the turn under way end for slots that woke
 * @t: the scheduler, accounted up to now
 * @r: one of its round-robin groups, with an owner and with slots that woke
 * @goes_on: after them the turn goes on
 *
 * It does if its slot had more than its part lately, and more of it than one of them. Otherwise it
 * goes on: slots that wake often take nothing from one that has its part.
 */
bool cgpu_rr_gives_way(const struct cgpu_sched *t, const struct cgpu_rr *r, bool *goes_on)
{
	u32 over = cgpu_recent_over(t, CGPU_RECENT_SHORT, r->members), mask;

	/* Its pauses are its ceiling's: it had work all the time, and its budget is for now. */
	*goes_on = cgpu_ceiling_paused(t, r->woken) && t->slot[r->curr].full_turns >= STEADY_TURNS;
	if (*goes_on)
		return true;
	for (mask = r->woken; mask; mask &= mask - 1)
		if (cgpu_recent_yields(t, CGPU_RECENT_SHORT, over, r->curr, __builtin_ctz(mask)))
			return true;
	return false;
}

/**
 * cgpu_rr_missing_ns() - by how much a turn is longer for what its slot lacks
 * @t: the scheduler, accounted up to now
 * @nr: enum cgpu_rr_nr
 * @slot: whose turn begins
 *
 * Slots that sleep often cost switches and calls, which are charged to none. Without this
 * one that always works would lose its part of them. Among slots that all work on
 * the credit is more exact. What a slot is kept from for a debt it does not lack: recent use is of
 * 0.4 s, and a debt is withheld for up to a second.
 *
 * Return: at most a slice; 0 while it owes time.
 */
s64 cgpu_rr_missing_ns(const struct cgpu_sched *t, u32 nr, u32 slot)
{
	u32 mask = (t->rr[nr].members | t->rr[nr].asleep) & t->known_mask;
	u64 lacks;

	if (nr != CGPU_RR_NORMAL || !(mask >> slot & 1) ||
	    t->slot[slot].full_turns < CGPU_APART_TURNS || t->slot[slot].owed_ns[0])
		return 0;
	/* The pauses of a ceiling are no sleep. */
	for (mask &= ~(1u << slot | cgpu_ceiling_binding(t)); mask; mask &= mask - 1)
		if (t->slot[__builtin_ctz(mask)].woken_ns)
			break;
	if (!mask)
		return 0;
	lacks = cgpu_recent_missing_ns(t, slot);
	return (s64)(lacks < t->slice_ns ? lacks : t->slice_ns);
}

/**
 * cgpu_rr_naps() - slots of which it is known that they slept within their last turns
 * @t: the scheduler
 */
u32 cgpu_rr_naps(const struct cgpu_sched *t)
{
	u32 mask, out = 0;

	for (mask = t->known_mask; mask; mask &= mask - 1) {
		const struct cgpu_sched_entity *s = &t->slot[__builtin_ctz(mask)];

		if (s->woken_ns && s->full_turns < CGPU_APART_TURNS)
			out |= mask & -mask;
	}
	return out;
}

/**
 * cgpu_rr_restless() - slots that slept not long ago
 * @t: the scheduler, accounted up to now
 *
 * A call for each step of a training that works through some turns and then waits would cost more
 * than the timeslice is worth.
 */
u32 cgpu_rr_restless(const struct cgpu_sched *t)
{
	u32 mask, out = 0;

	/* The pauses of a ceiling are no sleep. */
	mask = (t->known_mask | (cgpu_recent_opened(t) & ~t->opened_mask)) & ~cgpu_ceiling_binding(t);
	for (; mask; mask &= mask - 1) {
		const struct cgpu_sched_entity *s = &t->slot[__builtin_ctz(mask)];
		bool steady = s->full_turns >= CGPU_APART_TURNS && t->last_ns - s->woken_ns > RESTLESS_NS;

		if (s->woken_ns && cgpu_at_work(t, __builtin_ctz(mask)) <= MOST_TSGS && !steady)
			out |= mask & -mask;
	}
	return out;
}

/* Each piece of others' work takes two switches, and a moment until a reading finds it, from the slot
 * that always works. One that has what others leave can afford that; one that has its part cannot.
 */
static u32 steady_timeslice_us(const struct cgpu_sched *t, u32 slot)
{
	const struct cgpu_sched_entity *s = &t->slot[slot];
	u32 us = STEADY_US / cgpu_at_work(t, slot);

	return cgpu_recent_is_beyond(t, slot, s->timeslice_us == us ? RICH_STILL : RICH) ? us : 0;
}

/* Parts are of those that have opened the GPU: whenever one of them opens or closes it, those of all
 * others change, and a call for each would be at the expense of all. Recent use corrects what is left.
 */
static bool is_near(u32 have_us, u32 want_us)
{
	return have_us > want_us - want_us / NEAR_PARTS && have_us < want_us + want_us / NEAR_PARTS;
}

/**
 * cgpu_rr_timeslice_wait_ns() - how long a slot keeps its timeslice before another one
 * @t: the scheduler, accounted up to now
 * @slot: which
 *
 * Containers that open and close the GPU, or begin to sleep and to work, must not make calls on others
 * all the time.
 */
u64 cgpu_rr_timeslice_wait_ns(const struct cgpu_sched *t, u32 slot)
{
	u64 since_ns = t->slot[slot].ts_changed_ns, age_ns = t->last_ns - since_ns;

	return since_ns && age_ns < RESTLESS_NS ? RESTLESS_NS - age_ns : 0;
}

/**
 * cgpu_rr_beside_timeslice_us() - timeslice of a slot that may run beside others of its kind
 * @t: the scheduler
 * @restless: cgpu_rr_restless()
 * @slot: which
 *
 * The hardware divides the GPU among them by weight, and a request ends within its first timeslice:
 * in short ones each would wait for all others several times, and switches would take a part of the
 * GPU. One whose work mostly ends soon has twice as much: of requests that come together the second need not
 * wait for all others again, and it seldom uses up all of it. One with longer work would wait for them anyway, and
 * they for all of its timeslice. Where one had more than its part over some seconds the GPU is never idle, and the
 * smallest pieces of work would wait for all of these. A slot that always works has turns to itself, and a short
 * timeslice for when others wake.
 *
 * Return: microseconds for each of its TSGs; 0: the driver's.
 */
u32 cgpu_rr_beside_timeslice_us(const struct cgpu_sched *t, u32 restless, u32 slot)
{
	const struct cgpu_sched_entity *s = &t->slot[slot];
	u32 kind;
	u64 us;

	if (!(t->known_mask >> slot & 1) || !restless || cgpu_at_work(t, slot) > MOST_TSGS)
		return 0;
	if (!(restless >> slot & 1))
		return steady_timeslice_us(t, slot);
	us = cgpu_recent_part_of(t, slot, EQUAL_US);
	kind = t->weighted_mask[s->highprio] & t->opened_mask;
	if (s->brief_work >= CGPU_BRIEF_WORK_ENOUGH && !cgpu_recent_over(t, CGPU_RECENT_LONG, kind))
		us *= 2;
	us = us > LONGEST_US ? LONGEST_US : us;
	us /= cgpu_at_work(t, slot);
	us = us < SHORTEST_US ? SHORTEST_US : us;
	return is_near(s->timeslice_us, (u32)us) ? s->timeslice_us : (u32)us;
}
