// SPDX-License-Identifier: MIT OR GPL-2.0
/* High priority that timeslices alone hold to its ceiling: no call, and no wait for the end of a period. */
#include "sched_prio.h"

#define SHORT_MIN_US	CGPU_PRIO_SHORT_MIN_US

/* Timeslices can be set on all of @mask, and none was slow to leave the GPU. */
static bool takes_timeslices(const struct cgpu_sched *t, u32 mask)
{
	if (!(t->controls & CGPU_CTRL_TIMESLICE) || (mask & t->ts_failed_mask))
		return false;
	for (; mask; mask &= mask - 1)
		if (t->slot[__builtin_ctz(mask)].slow_freezes)
			return false;
	return true;
}

/**
 * cgpu_prio_carried_us() - do timeslices alone hold high priority to its ceiling
 * @t: the scheduler
 * @high: high-priority slots that have opened the GPU
 * @low: the others that have, one at a time
 *
 * Beside one of @low at the usual short timeslice, with the switches of the hardware's round. High
 * priority that is frozen for the rest of each 100 ms would wait for nothing. Under a low ceiling nothing
 * is left for @high, and periods hold it.
 *
 * Return: microseconds for all TSGs of one of @high; 0: no.
 */
u32 cgpu_prio_carried_us(const struct cgpu_sched *t, u32 high, u32 low)
{
	u32 round_us, least_us = 0, mask;

	if (!low || low != cgpu_prio_corunnable(t, low) || !takes_timeslices(t, high | low))
		return 0;
	for (mask = low; mask; mask &= mask - 1) {
		const struct cgpu_sched_entity *s = &t->slot[__builtin_ctz(mask)];
		u32 tsgs = s->tsgs ? s->tsgs : 1, lost_us = (tsgs + 1) * (t->switch_ns / 1000);
		u32 own_us = tsgs * cgpu_prio_timeslice_us(s, 1, 1);

		round_us = own_us * 100 / (100 - t->prio_ratio);
		if (round_us <= own_us + lost_us)
			return 0;
		round_us -= own_us + lost_us;
		if (!least_us || round_us < least_us)
			least_us = round_us;
	}
	for (mask = high; mask; mask &= mask - 1) {
		const struct cgpu_sched_entity *s = &t->slot[__builtin_ctz(mask)];

		if (least_us / (s->tsgs ? s->tsgs : 1) < SHORT_MIN_US)
			return 0;
	}
	return least_us;
}

/**
 * cgpu_prio_bounded_timeslice_us() - one that holds high priority to its ceiling
 * @slot: with or without highprio
 * @us: cgpu_prio_timeslice_us()
 * @most_us: cgpu_prio_carried_us(), not 0
 */
u32 cgpu_prio_bounded_timeslice_us(const struct cgpu_sched_entity *slot, u32 us, u32 most_us)
{
	most_us /= slot->tsgs ? slot->tsgs : 1;
	return slot->highprio && us > most_us ? most_us : us;
}
