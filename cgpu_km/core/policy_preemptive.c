// SPDX-License-Identifier: MIT OR GPL-2.0-only
/*
 * 1, preemptive: those that have opened the GPU take turns, one slice each;
 * the others are skipped. One that has opened it and idles keeps its slice unless its
 * run state is known.
 */
#include "policy.h"

static u32 preempt_slices(const struct cgpu_sched_entity *slot)
{
	return slot->weight > 0 && slot->channels > 0;
}

const struct cgpu_policy cgpu_policy_preemptive = {
	.controls	= CGPU_CTRL_FREEZE,
	.limits		= 1,
	.fixed_round	= 0,
	.thaw_first	= 1,
	.slices		= preempt_slices,
};
