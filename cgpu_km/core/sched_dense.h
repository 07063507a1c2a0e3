/* SPDX-License-Identifier: MIT OR GPL-2.0-only */
/* High priority whose gaps are too short for the hardware to lend. Inside the core only. */
#ifndef CGPU_CORE_SCHED_DENSE_H
#define CGPU_CORE_SCHED_DENSE_H

#include "env.h"
#include "sched_gpu.h"

/* Those of @high whose gaps are too short for the hardware to lend: others are frozen. */
u32 cgpu_dense_mask(struct cgpu_sched *t, u32 high, u64 *left_ns);

/* What a reading of @slot found: no work after work, still none, or work. */
void cgpu_dense_gap(struct cgpu_sched *t, u32 slot, u64 now_ns);
u64 cgpu_dense_gap_ns(const struct cgpu_sched *t, u32 slot, u64 now_ns);
u64 cgpu_dense_lent_ns(const struct cgpu_sched *t, u32 slot);
void cgpu_dense_idle(struct cgpu_sched *t, u32 slot, u64 now_ns);
void cgpu_dense_work(struct cgpu_sched *t, u32 slot, bool known, u64 now_ns);

/* Of gaps in general: is one so long that the hardware may lend it, and when did it begin or end? */
bool cgpu_dense_may_be_lent(const struct cgpu_sched *t, u64 len_ns);
u64 cgpu_dense_between_readings(const struct cgpu_sched *t, u64 now_ns);

/* Do readings find most gaps of a slot? */
bool cgpu_dense_has_seen_gaps(const struct cgpu_sched *t, u32 slot);

/* How much of such work is work, and how much of its gaps is charged. */
void cgpu_dense_note(struct cgpu_sched *t, u32 high, u64 len_ns);
u64 cgpu_dense_charged_ns(const struct cgpu_sched *t, u32 high, u64 len_ns);

#endif
