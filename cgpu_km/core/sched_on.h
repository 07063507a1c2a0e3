/* SPDX-License-Identifier: MIT OR GPL-2.0-only */
/* Which slot the hardware runs: on_mask. Inside the core only. */
#ifndef CGPU_CORE_SCHED_ON_H
#define CGPU_CORE_SCHED_ON_H

#include "env.h"
#include "sched_gpu.h"

/* Of the time from @from_ns, when those of @was_busy had work, to last_ns: until when on_mask was
 * so.
 */
u64 cgpu_on_until_ns(const struct cgpu_sched *t, u32 was_busy, u64 from_ns);

/* The time up to @until_ns, from the above, was charged: on_mask from there on. */
void cgpu_on_find(struct cgpu_sched *t, u32 was_busy, u64 until_ns);

/* From now on it is not known. */
void cgpu_on_forget(struct cgpu_sched *t);

/* Those of @ran among which time is divided. */
u32 cgpu_on_of(const struct cgpu_sched *t, u32 ran);

/* Those of @busy that soon have the GPU beside the others, whose kernels leave it in gaps that readings miss. */
u32 cgpu_on_without_tiny(const struct cgpu_sched *t, u32 busy);

/* @slot is one of several in on_mask: what it is charged is noted in its open_*, and may be
 * corrected.
 */
bool cgpu_on_is_open(const struct cgpu_sched *t, u32 slot);

/* What may be charged to the ceiling of @slot by that. */
s64 cgpu_on_more_ns(const struct cgpu_sched *t, u32 slot);

#endif
