/* SPDX-License-Identifier: MIT OR GPL-2.0-only */
/* When the run state is read again. Inside the core only; cgpu_sched_set_run_state() is in sched_gpu.h. */
#ifndef CGPU_CORE_SCHED_RUN_STATE_H
#define CGPU_CORE_SCHED_RUN_STATE_H

#include "env.h"
#include "sched_gpu.h"

/* Points of struct cgpu_sched_entity.brief_work. */
#define CGPU_BRIEF_WORK_MAX	15u
#define CGPU_BRIEF_WORK_ENOUGH	8u	/* its work mostly ends within one of the longest timeslices */

void cgpu_run_state_forget(struct cgpu_sched *t, u32 slots);
void cgpu_run_state_unread(struct cgpu_sched *t, u64 now_ns);
u64 cgpu_run_state_poll_ns(const struct cgpu_sched *t, u32 contend, u32 run, u32 urgent);

#endif
