/* SPDX-License-Identifier: MIT OR GPL-2.0-only */
/* How many calls a freeze or thaw takes, and who pays for them. Inside the core only. */
#ifndef CGPU_CORE_SCHED_CALLS_H
#define CGPU_CORE_SCHED_CALLS_H

#include "env.h"
#include "sched_gpu.h"

/* Calls that freeze or thaw @mask. Several slots are taken as one call, and so is none. */
u32 cgpu_calls(const struct cgpu_sched *t, u32 mask);

/* @stopped were frozen: charge those that took many calls. */
void cgpu_calls_charge(struct cgpu_sched *t, u32 stopped);

#endif
