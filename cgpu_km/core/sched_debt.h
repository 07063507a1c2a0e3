/* SPDX-License-Identifier: MIT OR GPL-2.0-only */
/* What slots ran too long, and how they pay it back. Inside the core only. */
#ifndef CGPU_CORE_SCHED_DEBT_H
#define CGPU_CORE_SCHED_DEBT_H

#include "env.h"
#include "sched_gpu.h"

#define CGPU_DEBT_USUAL_SLICES	16u	/* what slow calls cost a slot of a full house */
#define CGPU_TURN_MIN_PARTS	4	/* a turn below slice/4 is not worth two control calls */

s64 *cgpu_debt_deficit(struct cgpu_sched *t, u32 nr, u32 slot);
void cgpu_debt_spread(struct cgpu_sched *t, u32 slots, u64 usual_ns);
void cgpu_debt_grant(struct cgpu_sched *t, u32 nr, u32 slot, u64 grant_ns, s64 part_ns,
		     u64 round_ns);
void cgpu_debt_drop(struct cgpu_sched *t, u32 nr, u32 slot);
void cgpu_debt_clear(struct cgpu_sched *t, u32 slot);

#endif
