/* SPDX-License-Identifier: MIT OR GPL-2.0-only */
/* Slots that wait for their next grant, for what their kernels took. Inside the core only. */
#ifndef CGPU_CORE_SCHED_DEBTORS_H
#define CGPU_CORE_SCHED_DEBTORS_H

#include "env.h"
#include "sched_gpu.h"

/* Those of a group; until the first of @debtors is granted again. */
u32 cgpu_debtors_of(struct cgpu_sched *t, u32 nr);
u64 cgpu_debtors_wait_ns(const struct cgpu_sched *t, u32 nr, u32 debtors);

/* Those of @debtors that are granted now. */
u32 cgpu_debtors_due(const struct cgpu_sched *t, u32 nr, u32 debtors);

/* @slot was granted its part of a round, as one that was due or at its place. */
void cgpu_debtors_note(struct cgpu_sched *t, u32 nr, u32 slot, bool due);

#endif
