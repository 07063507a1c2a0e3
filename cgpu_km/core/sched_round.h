/* SPDX-License-Identifier: MIT OR GPL-2.0-only */
/* How long a round of turns is, and what of it each slot has. Inside the core only. */
#ifndef CGPU_CORE_SCHED_ROUND_H
#define CGPU_CORE_SCHED_ROUND_H

#include "env.h"
#include "sched_gpu.h"

/* How long a round is, and what of it goes to the context switches its turns begin with.
 * In a fixed round the empty slices make room for those, if there are any.
 */
struct cgpu_round {
	u64 len_ns;
	u64 lost_ns;
};

struct cgpu_round cgpu_round_of(const struct cgpu_sched *t, const struct cgpu_rr *r);
u64 cgpu_round_grant_ns(const struct cgpu_sched *t, u32 slot);
s64 cgpu_round_part_ns(const struct cgpu_sched *t, const struct cgpu_round *whole, u32 slot);

#endif
