/* SPDX-License-Identifier: MIT OR GPL-2.0-only */
/* Gaps of all high priority together: long enough for calls, or for the hardware only. Inside the core only. */
#ifndef CGPU_CORE_SCHED_QUICK_H
#define CGPU_CORE_SCHED_QUICK_H

#include "env.h"
#include "sched_gpu.h"

/* A reading found which of them have work. */
void cgpu_quick_note(struct cgpu_sched *t, u64 now_ns);

/* The run state of some slots is unknown from here on. */
void cgpu_quick_forget(struct cgpu_sched *t, u32 slots);

/* Are most gaps over before a thaw and a freeze could lend them? */
bool cgpu_quick_are(const struct cgpu_sched *t);

#endif
