// SPDX-License-Identifier: MIT OR GPL-2.0-only
/*
 * 0, fair share: a round is max_inst slices and every container has one of
 * them, whatever its weight. The slice of a container that has not opened the
 * GPU, or is idle, passes empty: no container gets more than 1/max_inst.
 */
#include "policy.h"

static u32 fair_slices(const struct cgpu_sched_entity *slot)
{
	return slot->weight > 0;
}

const struct cgpu_policy cgpu_policy_fair = {
	.controls	= CGPU_CTRL_FREEZE,
	.limits		= 1,
	.fixed_round	= 1,
	.thaw_first	= 0,
	.slices		= fair_slices,
};
