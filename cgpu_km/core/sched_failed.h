/* SPDX-License-Identifier: MIT OR GPL-2.0-only */
/* Calls that failed. Inside the core only. */
#ifndef CGPU_CORE_SCHED_FAILED_H
#define CGPU_CORE_SCHED_FAILED_H

#include "env.h"
#include "sched_gpu.h"

/* Count a failed call for each of @slots, and put off the repetition of all. */
void cgpu_failed_count(struct cgpu_sched *t, u32 slots, u64 at_ns);

#endif
