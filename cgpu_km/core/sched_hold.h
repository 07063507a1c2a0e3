/* SPDX-License-Identifier: MIT OR GPL-2.0-only */
/* A hold that lasts only while a utilisation sample is due. Inside the core only. */
#ifndef CGPU_CORE_SCHED_HOLD_H
#define CGPU_CORE_SCHED_HOLD_H

#include "env.h"
#include "sched_gpu.h"

/* Hold @mask around each sample; one was at @at_ns, and they are @every_ns apart. */
void cgpu_hold_at_samples(struct cgpu_sched *t, u32 mask, u64 at_ns, u64 every_ns);

/* Hold or let go. @left_ns is lowered to when that changes. */
void cgpu_hold_step(struct cgpu_sched *t, u64 *left_ns);

#endif
