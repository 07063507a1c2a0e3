/* SPDX-License-Identifier: MIT OR GPL-2.0-only */
/* How the hardware divides time among containers that are enabled together: a timeslice for
 * each TSG in turn. Inside the core only.
 */
#ifndef CGPU_CORE_SCHED_HWSHARE_H
#define CGPU_CORE_SCHED_HWSHARE_H

#include "env.h"
#include "sched_gpu.h"

/* The timeslice in force of each TSG of @s. */
u32 cgpu_hw_timeslice_us(const struct cgpu_sched *t, const struct cgpu_sched_entity *s);
u64 cgpu_hw_timeslice_ns(const struct cgpu_sched *t, const struct cgpu_sched_entity *s);

/* The shortest time that one of @mask keeps the GPU once it has it. */
u64 cgpu_hw_shortest_ns(const struct cgpu_sched *t, u32 mask);

/* What @slot got of @len_ns in which several ran together that pull @all. */
u64 cgpu_hw_weight(const struct cgpu_sched *t, u32 mask, bool by_timeslice);
u64 cgpu_hw_share(const struct cgpu_sched *t, u64 all, u32 slot, bool by_timeslice,
		  u64 len_ns);

/* Those of @ran, slots that may run and do not sleep, that the hardware divides the GPU among. */
u32 cgpu_hw_with_work(const struct cgpu_sched *t, u32 ran, u32 has_work);

/* TSGs of the slot of @mask that has most of them, at least 1. */
u32 cgpu_hw_most_tsgs(const struct cgpu_sched *t, u32 mask);

u32 cgpu_count(u32 mask);

/* Exactly one slot is in @mask. */
bool cgpu_is_one(u32 mask);

#endif
