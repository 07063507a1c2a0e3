// SPDX-License-Identifier: MIT OR GPL-2.0-only
/*
 * 3, fixed: a hard cap of weight/max_inst. Slices that are unassigned, or of a
 * container that has not opened the GPU or is idle, pass empty.
 */
#include "policy.h"

static u32 fixed_slices(const struct cgpu_sched_entity *slot)
{
	return slot->weight;
}

const struct cgpu_policy cgpu_policy_fixed = {
	.controls	= CGPU_CTRL_FREEZE,
	.limits		= 1,
	.fixed_round	= 1,
	.thaw_first	= 0,
	.slices		= fixed_slices,
};
