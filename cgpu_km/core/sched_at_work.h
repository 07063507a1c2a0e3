/* SPDX-License-Identifier: MIT OR GPL-2.0-only */
/* How many TSGs of a slot have work at the same moment. Inside the core only. */
#ifndef CGPU_CORE_SCHED_AT_WORK_H
#define CGPU_CORE_SCHED_AT_WORK_H

#include "env.h"
#include "sched_gpu.h"

/* By the readings so far; all of its TSGs without any. At least 1. */
u32 cgpu_at_work(const struct cgpu_sched *t, u32 slot);

/* Do readings show it? */
bool cgpu_at_work_is_known(const struct cgpu_sched *t, u32 slot);

/* A reading, which the run state has already, found so many with work. True: a number changed that plans go by. */
bool cgpu_at_work_note(struct cgpu_sched *t, const u8 tsgs[CGPU_SLOTS], u64 now_ns);

void cgpu_at_work_forget(struct cgpu_sched_entity *s);

/* Does the work of single TSGs of a slot end often while others of it go on? */
bool cgpu_at_work_leaves(const struct cgpu_sched_entity *s);

#endif
