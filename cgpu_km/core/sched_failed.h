/* SPDX-License-Identifier: MIT OR GPL-2.0-only */
/* Calls that failed. Inside the core only. */
#ifndef CGPU_CORE_SCHED_FAILED_H
#define CGPU_CORE_SCHED_FAILED_H

#include "env.h"
#include "sched_gpu.h"

/* Which calls that failed may be repeated, by slot; when the next of the others. */
u32 cgpu_failed_due(const struct cgpu_sched *t, u64 now_ns);
void cgpu_failed_until(const struct cgpu_sched *t, u32 due, u64 *until_ns);

/* Calls for @called were made; those of @failed and @ts_failed are put off. */
void cgpu_failed_count(struct cgpu_sched *t, u32 called, u32 failed, u32 ts_failed, u64 at_ns);

#endif
