// SPDX-License-Identifier: MIT OR GPL-2.0-only
/* The histogram of the waits of one slot. */
#include "sched_wait.h"

/**
 * cgpu_wait_below_ns() - the end of a bucket
 * @i: which, less than CGPU_WAIT_BUCKETS
 *
 * Return: nanoseconds; its waits are shorter.
 */
u64 cgpu_wait_below_ns(u32 i)
{
	return (u64)CGPU_WAIT_FIRST_NS << i;
}

/**
 * cgpu_wait_end() - count a wait
 * @w: of the slot whose turn begins
 */
void cgpu_wait_end(struct cgpu_wait *w)
{
	u32 i = 0;

	while (i < CGPU_WAIT_BUCKETS && w->so_far_ns >= cgpu_wait_below_ns(i))
		i++;
	if (i < CGPU_WAIT_BUCKETS)
		w->bucket[i]++;
	w->count++;
	w->sum_ns += w->so_far_ns;
	w->so_far_ns = 0;
}
