/* SPDX-License-Identifier: MIT OR GPL-2.0-only */
/* The ceiling of a container, above its guaranteed part. Inside the core only. */
#ifndef CGPU_CORE_SCHED_CEILING_H
#define CGPU_CORE_SCHED_CEILING_H

#include "env.h"
#include "sched_gpu.h"

/* After a change of slots, policy or max_inst: ceiling_mask. */
void cgpu_ceiling_refresh(struct cgpu_sched *t);

/* Another policy, or a slot that was added: a full budget. */
void cgpu_ceiling_fill(struct cgpu_sched *t, u32 slot);

/* @slot could run for @len_ns beside the others of @ran, and got @got_ns of it by the account. */
void cgpu_ceiling_charge(struct cgpu_sched *t, u32 slot, u32 ran, u64 got_ns, u64 len_ns);
/* The same for all whose run state is known: @was_busy had work at the beginning, busy_mask has at the end.
 * Of @ran by the account those without work are charged if others @wait. Before and after cgpu_on_find().
 */
void cgpu_ceiling_charge_before(struct cgpu_sched *t, u32 was_busy, u32 ran, bool wait, u64 len_ns);
void cgpu_ceiling_charge_after(struct cgpu_sched *t, u32 was_busy, u32 ran, bool wait, u64 len_ns);
/* Of an overlap of @ran, charged one by one, @rest_ns is not charged to @slot yet. */
void cgpu_ceiling_charge_rest(struct cgpu_sched *t, u32 slot, u32 ran, u64 rest_ns);

/* Time has passed, and each slot was charged. */
void cgpu_ceiling_grow(struct cgpu_sched *t, u64 len_ns);

/* Has one of @slots used so much of its ceiling lately that its work must be seen? */
bool cgpu_ceiling_is_drawn(const struct cgpu_sched *t, u32 slots);

/* A plan begins: which slots have used up their budget. */
void cgpu_ceiling_check(struct cgpu_sched *t);

/* Those that their ceilings pause lately; of @woken, those that come back from such a pause. */
u32 cgpu_ceiling_binding(const struct cgpu_sched *t);
u32 cgpu_ceiling_paused(const struct cgpu_sched *t, u32 woken);

/* @left_ns is lowered to the time until that may change, while exactly @run may run. */
void cgpu_ceiling_left(const struct cgpu_sched *t, u32 run, u64 *left_ns);

#endif
