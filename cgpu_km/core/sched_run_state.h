/* SPDX-License-Identifier: MIT OR GPL-2.0-only */
/* When the run state is read again. Inside the core only; cgpu_sched_set_run_state() is in sched_gpu.h. */
#ifndef CGPU_CORE_SCHED_RUN_STATE_H
#define CGPU_CORE_SCHED_RUN_STATE_H

#include "env.h"
#include "sched_gpu.h"

void cgpu_run_state_forget(struct cgpu_sched *t, u32 slots);
void cgpu_run_state_unread(struct cgpu_sched *t, u64 now_ns);
u64 cgpu_run_state_poll_ns(const struct cgpu_sched *t, u32 contend, u32 run, u32 urgent);

#endif
