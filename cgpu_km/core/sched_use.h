/* SPDX-License-Identifier: MIT OR GPL-2.0-only */
/* What high priority uses, by the driver's utilisation samples. Inside the core only. */
#ifndef CGPU_CORE_SCHED_USE_H
#define CGPU_CORE_SCHED_USE_H

#include "env.h"
#include "sched_gpu.h"

#define CGPU_USE_MOST	240u	/* per cent of a sample: half a second of the GPU */

/* No container was on the GPU yet. */
void cgpu_use_begin(struct cgpu_sched *t);

/* High priority opens the GPU, and samples come again. */
void cgpu_use_opened(struct cgpu_sched *t, u64 now_ns);

/* A sample at @at_ns found @on, one slot, none, or high priority, on the engine while @thawed could run. */
void cgpu_use_note(struct cgpu_sched *t, u32 thawed, u32 on, u64 at_ns);

/* Was there one lately? */
bool cgpu_use_is_sampled(const struct cgpu_sched *t, u64 now_ns);

/* Does high priority use less than its quota? @left_ns is lowered to when to look again. */
bool cgpu_use_is_little(const struct cgpu_sched *t, u64 *left_ns);

#endif
