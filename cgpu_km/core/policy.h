/* SPDX-License-Identifier: MIT OR GPL-2.0-only */
/* What makes one policy differ from another. One file each; docs/reference/policies.md. */
#ifndef CGPU_CORE_POLICY_H
#define CGPU_CORE_POLICY_H

#include "../uapi.h"
#include "env.h"
#include "sched_gpu.h"

struct cgpu_policy {
	u32 controls;		/* CGPU_CTRL_*: without them the policy is refused */
	u8 limits;		/* 0: no slot is frozen or measured (native) */
	u8 fixed_round;		/* a round is max_inst slices and empty ones pass */
	u8 thaw_first;		/* thaw the next before the last is frozen */
	u8 scaled;		/* the least grant is one slice, a round 20 at most */
	u8 ceilings;		/* a slot's ceiling is in force */
	u32 max_inst;		/* most slices of a GPU; 0: CGPU_MAX_INST_MAX */
	/* Consecutive slices of @slot in a round; 0: no turn. NULL: no turns, every slot with
	 * weight runs.
	 */
	u32 (*slices)(const struct cgpu_sched_entity *slot);
	/* Timeslice of each TSG of a container with @tsgs, the most crowded one
	 * having @most; 0: the driver's. NULL: always 0.
	 */
	u32 (*timeslice_us)(u32 most, u32 tsgs);
};

#define CGPU_POLICY_DECLARATION(nr, NAME, name) extern const struct cgpu_policy cgpu_policy_##name;
CGPU_POLICIES(CGPU_POLICY_DECLARATION)

/* The policy of a public number, or NULL. */
const struct cgpu_policy *cgpu_policy_get(u64 nr);

#endif
