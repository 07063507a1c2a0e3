// SPDX-License-Identifier: MIT OR GPL-2.0-only
/*
 * Kernels that delay their preemption.
 *
 * A freeze that took long is the driver's own tail, or a kernel that was not off the GPU
 * earlier. Slow freezes, of more than two of the driver's timeslices, are told apart by how
 * frequent they are beside slow thaws, which no kernel can delay. Shorter delays, which kernels
 * of 2 ms and turns in step with long ones cause, are told apart by the usual length of a slot's
 * freezes: a running upper quartile, on which the tail has no influence and to which a slot that
 * delays a quarter of its freezes adds. The least of the slots is what the driver needs. What a
 * slot's freeze takes beyond that the slot was on the GPU.
 */
#include "sched_resist.h"

#include "sched_at_work.h"
#include "sched_hwshare.h"

#define SLOW_NS		2048000ull	/* two of the driver's timeslices: a slow freeze */
#define TAIL_MAX_NS	8192000ull	/* beyond the slowest call seen on hardware */
#define SLOW_POINTS	8u		/* for a slow freeze; one less for any other */
#define SLOW_ALLOWED	64u
#define SLOW_MAX	96u

/* The quartile moves down by 1/8 of itself with each freeze that is shorter, later by 1/32, then
 * by 1/128: slot by slot it must differ by less than LATE_NS and a half where no kernel delays
 * anything.
 */
#define USUAL_EARLY	16u
#define USUAL_LATER	64u
#define USUAL_KNOWN	128u		/* freezes until it counts */
#define USUAL_UP	3u		/* steps up for one down: three freezes in four are shorter */
#define LATE_NS		30000u

#define KERNEL_PARTS	16u		/* what is known of its longest kernel shrinks with each freeze */

#define PROBE_NS	1000000000ull	/* since a freeze that found it on the GPU, or would have */
#define PROBE_AGAIN_NS	50000000ull	/* the same, where one was slow */
#define PROBE_SLOTS	4u	/* run at most, or both times are longer */
#define PROBE_WITHIN_NS	1000000ull	/* after its timeslice: a kernel begun in it goes on */
#define PROBE_ROUNDS	2u		/* of the hardware: it had its timeslice by then */

/* A running sum: far up only when slow calls come much more often than one in 20. */
static void add_points(u32 *points, bool slow)
{
	if (slow)
		*points += SLOW_POINTS;
	else if (*points)
		--*points;
	if (*points > SLOW_MAX)
		*points = SLOW_MAX;
}

/* Towards @took_ns, whatever the distance. */
static void move_usual(struct cgpu_sched_entity *s, u64 took_ns)
{
	u32 parts = s->freezes < USUAL_EARLY ? 8 : s->freezes < USUAL_LATER ? 32 : 128;
	u32 step = s->freeze_ns / parts + 1;

	if (!s->freezes)
		s->freeze_ns = took_ns < SLOW_NS ? (u32)took_ns : (u32)SLOW_NS;
	else if (took_ns > s->freeze_ns)
		s->freeze_ns += USUAL_UP * step;
	else if (took_ns < s->freeze_ns)
		s->freeze_ns -= step < s->freeze_ns ? step : s->freeze_ns;
	if (s->freeze_ns > SLOW_NS)
		s->freeze_ns = (u32)SLOW_NS;
	s->freezes += s->freezes < USUAL_KNOWN;
}

/* What a freeze takes on this GPU where no kernel delays it, 0: not known. */
static u32 least_freeze_ns(const struct cgpu_sched *t)
{
	u32 least = 0, mask;

	for (mask = t->opened_mask; mask; mask &= mask - 1) {
		const struct cgpu_sched_entity *s = &t->slot[__builtin_ctz(mask)];

		if (s->freezes >= USUAL_KNOWN && (!least || s->freeze_ns < least))
			least = s->freeze_ns;
	}
	return least;
}

/**
 * cgpu_resist_is_slow() - are the freezes of a slot slow more often than the driver's tail makes them
 * @t: the scheduler
 * @s: one of its slots
 *
 * Not after one slow freeze, and not while thaws are slow as well.
 */
bool cgpu_resist_is_slow(const struct cgpu_sched *t, const struct cgpu_sched_entity *s)
{
	return s->slow_freezes > SLOW_ALLOWED + t->slow_thaws;
}

/* Kernels are taken to delay their preemption if slow freezes are frequent, or if the call took longer than
 * any tail.
 */
static bool was_slow(const struct cgpu_sched *t, const struct cgpu_sched_entity *s, u64 took_ns)
{
	return took_ns > TAIL_MAX_NS || (took_ns > SLOW_NS && cgpu_resist_is_slow(t, s));
}

/**
 * cgpu_resist_note_thaw() - count a thaw
 * @t: the scheduler
 * @started: slots that were thawed, none is allowed
 * @took_ns: for each list of channels
 */
void cgpu_resist_note_thaw(struct cgpu_sched *t, u32 started, u64 took_ns)
{
	if (started)
		add_points(&t->slow_thaws, took_ns > SLOW_NS);
}

/* Its kernel, if it resists. */
static bool may_have_it(const struct cgpu_sched *t, u32 slot)
{
	u64 since_ns = t->slot[slot].used_up_ns;

	return (t->on_mask >> slot & 1) || (since_ns && t->last_ns - since_ns < PROBE_WITHIN_NS);
}

/**
 * cgpu_resist_note() - count a freeze
 * @t: the scheduler
 * @stopped: slots that were frozen, none is allowed
 * @took_ns: for each list of channels
 */
void cgpu_resist_note(struct cgpu_sched *t, u32 stopped, u64 took_ns)
{
	bool one = cgpu_is_one(stopped);

	for (; stopped; stopped &= stopped - 1) {
		struct cgpu_sched_entity *s = &t->slot[__builtin_ctz(stopped)];

		if (may_have_it(t, __builtin_ctz(stopped)))
			s->probed_ns = t->last_ns;
		s->kernel_ns -= s->kernel_ns / KERNEL_PARTS;
		if (one && took_ns > SLOW_NS && took_ns > s->kernel_ns)
			s->kernel_ns = took_ns;
		if (one)
			move_usual(s, took_ns);
		add_points(&s->slow_freezes, took_ns > SLOW_NS);
		/* No tail of the driver's: one is proof. A call that freezes many takes as long without any delay. */
		if (one && took_ns > TAIL_MAX_NS)
			s->slow_freezes = SLOW_MAX;
		s->preempt_slow += was_slow(t, s, took_ns);
	}
}

/* A timeslice of each TSG that has work. */
static u64 hw_round_ns(const struct cgpu_sched *t)
{
	u64 round_ns = 0;
	u32 mask;

	for (mask = t->run_mask & t->busy_mask; mask; mask &= mask - 1) {
		u32 i = __builtin_ctz(mask);

		round_ns += cgpu_at_work(t, i) * (cgpu_hw_timeslice_ns(t, &t->slot[i]) + t->switch_ns);
	}
	return round_ns;
}

/* How long after a freeze that found a slot on the GPU it is frozen again. A slow one may have been slow by chance.
 * Each probe is two calls, so for many slots it is longer.
 */
static u64 probe_every_ns(const struct cgpu_sched *t, const struct cgpu_sched_entity *s)
{
	u64 least_ns = s->slow_freezes ? PROBE_AGAIN_NS : PROBE_NS;
	u64 every_ns = least_ns / PROBE_SLOTS * cgpu_count(t->run_mask & t->opened_mask);

	return every_ns > least_ns ? every_ns : least_ns;
}

/**
 * cgpu_resist_probe_ns() - how long until a slot that runs beside others is frozen for a moment
 * @t: the scheduler, accounted up to now
 * @slot: which
 *
 * Slots side by side are not frozen, and only a freeze shows that kernels delay their preemption: such a slot
 * would keep the GPU beyond its timeslices, unseen. Work that is over within a timeslice is no sign of it. That
 * of any other lost the GPU when its timeslice was over, and waits.
 *
 * Return: CGPU_NEVER_NS: not for the work that it has.
 */
u64 cgpu_resist_probe_ns(const struct cgpu_sched *t, u32 slot)
{
	const struct cgpu_sched_entity *s = &t->slot[slot];
	u64 at_ns, had_ns = s->used_up_ns;

	if (!s->worked_since_ns || !(t->busy_mask >> slot & 1))
		return CGPU_NEVER_NS;
	if (had_ns <= s->worked_since_ns)
		had_ns = s->worked_since_ns + PROBE_ROUNDS * hw_round_ns(t);
	at_ns = s->probed_ns + probe_every_ns(t, s);
	at_ns = at_ns < had_ns ? had_ns : at_ns;
	return at_ns > t->last_ns ? at_ns - t->last_ns : 0;
}

/* A freeze that takes longer is delayed: the driver needs less. */
static u32 most_freeze_ns(const struct cgpu_sched *t)
{
	u32 least = least_freeze_ns(t);

	return least + least / 2 + LATE_NS;
}

static bool usually_delays(const struct cgpu_sched *t, const struct cgpu_sched_entity *s)
{
	return s->freezes >= USUAL_KNOWN && s->freeze_ns > most_freeze_ns(t);
}

/**
 * cgpu_resist_delays() - do kernels of a slot delay its freezes
 * @t: the scheduler
 * @s: one of its slots
 *
 * Also by less than what makes a freeze slow. Timeslices do not divide the GPU between such a slot
 * and others.
 */
bool cgpu_resist_delays(const struct cgpu_sched *t, const struct cgpu_sched_entity *s)
{
	return cgpu_resist_is_slow(t, s) || usually_delays(t, s);
}

/**
 * cgpu_resist_is_late() - is a freeze taken to be delayed by kernels
 * @t: the scheduler, cgpu_resist_note() was called
 * @stopped: slots that were frozen
 * @took_ns: for each list of channels
 *
 * Of several slots it is not known which; a slow freeze is charged to all.
 */
bool cgpu_resist_is_late(const struct cgpu_sched *t, u32 stopped, u64 took_ns)
{
	const struct cgpu_sched_entity *s;
	u32 mask;

	for (mask = stopped; mask; mask &= mask - 1)
		if (was_slow(t, &t->slot[__builtin_ctz(mask)], took_ns))
			return true;
	if (!cgpu_is_one(stopped) || took_ns > SLOW_NS)
		return false;
	s = &t->slot[__builtin_ctz(stopped)];
	return usually_delays(t, s) && took_ns > most_freeze_ns(t);
}

/**
 * cgpu_resist_rest_ns() - the part of a freeze after its effect
 * @t: the scheduler, cgpu_resist_note() was called
 * @stopped: slots that were frozen
 * @took_ns: for each list of channels
 *
 * A call takes effect in the middle, of the length that it has without a delay.
 */
u64 cgpu_resist_rest_ns(const struct cgpu_sched *t, u32 stopped, u64 took_ns)
{
	return (cgpu_resist_is_late(t, stopped, took_ns) ? least_freeze_ns(t) : took_ns) / 2;
}
