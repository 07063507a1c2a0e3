/* SPDX-License-Identifier: MIT OR GPL-2.0-only */
/* When the runlist is restarted, so that timeslices that were set are in force. */
#ifndef CGPU_CORE_SCHED_RESTART_H
#define CGPU_CORE_SCHED_RESTART_H

#include "sched_gpu.h"

void cgpu_restart_plan(const struct cgpu_sched *t, struct cgpu_sched_plan *plan, u64 *left_ns);
void cgpu_restart_note(struct cgpu_sched *t, u32 planned, u32 unrestarted, u64 restarted_ns);

#endif
