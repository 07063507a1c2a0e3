// SPDX-License-Identifier: MIT OR GPL-2.0-only
/*
 * 6, burst: weight/max_inst is what a container has whenever it has work, and what the others
 * do not use it has as well, by weight, up to its ceiling if it has one. With max_inst 100
 * both are percentages.
 *
 * Grants are scaled, so that the least is one slice or a round 20: a turn of weight x slice
 * would be a second long at weight 100.
 */
#include "policy.h"

#include "../uapi.h"

static u32 burst_slices(const struct cgpu_sched_entity *slot)
{
	return slot->channels ? slot->weight : 0;
}

const struct cgpu_policy cgpu_policy_burst = {
	.controls	= CGPU_CTRL_FREEZE,
	.limits		= 1,
	.fixed_round	= 0,
	.thaw_first	= 1,
	.scaled		= 1,
	.ceilings	= 1,
	.max_inst	= CGPU_MAX_INST_BURST_MAX,
	.slices		= burst_slices,
};
