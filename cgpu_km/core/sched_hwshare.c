// SPDX-License-Identifier: MIT OR GPL-2.0-only
/* How the hardware divides time among containers that are enabled together. Reads the state only. */
#include "sched_hwshare.h"

#include "sched_at_work.h"

/**
 * cgpu_hw_timeslice_us() - timeslice of each TSG of a slot
 * @t: the scheduler
 * @s: one of its slots
 *
 * Return: as acknowledged, else the driver's own.
 */
u32 cgpu_hw_timeslice_us(const struct cgpu_sched *t, const struct cgpu_sched_entity *s)
{
	return s->timeslice_us ? s->timeslice_us : t->timeslice_default_us;
}

/**
 * cgpu_hw_timeslice_ns() - the same in nanoseconds
 * @t: the scheduler
 * @s: one of its slots
 */
u64 cgpu_hw_timeslice_ns(const struct cgpu_sched *t, const struct cgpu_sched_entity *s)
{
	return cgpu_hw_timeslice_us(t, s) * 1000ull;
}

/**
 * cgpu_hw_shortest_ns() - the shortest timeslice
 * @t: the scheduler
 * @mask: of these slots
 *
 * Return: CGPU_NEVER_NS if there are none.
 */
u64 cgpu_hw_shortest_ns(const struct cgpu_sched *t, u32 mask)
{
	u64 shortest = CGPU_NEVER_NS;

	for (; mask; mask &= mask - 1) {
		u64 ns = cgpu_hw_timeslice_ns(t, &t->slot[__builtin_ctz(mask)]);

		shortest = ns < shortest ? ns : shortest;
	}
	return shortest;
}

static u64 weight_of(const struct cgpu_sched *t, u32 slot, bool by_timeslice)
{
	const struct cgpu_sched_entity *s = &t->slot[slot];
	u64 tsgs = cgpu_at_work(t, slot);

	if (!by_timeslice)
		return tsgs;
	return tsgs * cgpu_hw_timeslice_us(t, s);
}

/**
 * cgpu_hw_weight() - sum of the weights of slots that run together
 * @t: the scheduler
 * @mask: slots that run together
 * @by_timeslice: weigh TSGs by their timeslice, not all the same
 */
u64 cgpu_hw_weight(const struct cgpu_sched *t, u32 mask, bool by_timeslice)
{
	u64 all = 0;

	for (; mask; mask &= mask - 1)
		all += weight_of(t, __builtin_ctz(mask), by_timeslice);
	return all;
}

/**
 * cgpu_hw_share() - what one of several that ran together got
 * @t: the scheduler
 * @all: cgpu_hw_weight() of them
 * @slot: one of them
 * @by_timeslice: as in cgpu_hw_weight()
 * @len_ns: how long they ran together
 *
 * Return: nanoseconds, rounded down.
 */
u64 cgpu_hw_share(const struct cgpu_sched *t, u64 all, u32 slot, bool by_timeslice,
		  u64 len_ns)
{
	u64 mine = weight_of(t, slot, by_timeslice);

	if (mine == all)
		return len_ns;
	if (mine <= 0xffffffffu && len_ns <= 0xffffffffu)
		return len_ns * mine / all;
	return len_ns / all * mine + len_ns % all * mine / all;
}

/**
 * cgpu_hw_most_tsgs() - TSGs of the slot that has most of them
 * @t: the scheduler
 * @mask: of slots
 *
 * Return: at least 1.
 */
u32 cgpu_hw_most_tsgs(const struct cgpu_sched *t, u32 mask)
{
	u32 most = 1;

	for (; mask; mask &= mask - 1) {
		u32 tsgs = t->slot[__builtin_ctz(mask)].tsgs;

		most = tsgs > most ? tsgs : most;
	}
	return most;
}

/**
 * cgpu_count() - how many
 * @mask: of slots
 */
u32 cgpu_count(u32 mask)
{
	u32 n = 0;

	for (; mask; mask &= mask - 1)
		n++;
	return n;
}

/**
 * cgpu_is_one() - exactly one
 * @mask: of slots
 */
bool cgpu_is_one(u32 mask)
{
	return mask && !(mask & (mask - 1));
}

/**
 * cgpu_hw_with_work() - slots that the hardware divides the GPU among
 * @t: the scheduler
 * @ran: slots that may run and do not sleep
 * @has_work: those of them with work
 *
 * By the last reading. If none of them has work, all of them keep others out.
 */
u32 cgpu_hw_with_work(const struct cgpu_sched *t, u32 ran, u32 has_work)
{
	u32 busy = ran & (has_work | ~t->known_mask);

	return busy ? busy : ran;
}
