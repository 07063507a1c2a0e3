// SPDX-License-Identifier: MIT OR GPL-2.0-only
/*
 * 2, weighted preemptive: `weight` consecutive slices merged into one turn.
 * Only unassigned slices are skipped: those of a container that has not
 * opened the GPU are consumed. A lone container has the whole GPU.
 */
#include "policy.h"

static u32 weighted_slices(const struct cgpu_sched_entity *slot)
{
	return slot->weight;
}

const struct cgpu_policy cgpu_policy_weighted = {
	.controls	= CGPU_CTRL_FREEZE,
	.limits		= 1,
	.fixed_round	= 0,
	.thaw_first	= 1,
	.slices		= weighted_slices,
};
