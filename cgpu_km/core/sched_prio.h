/* SPDX-License-Identifier: MIT OR GPL-2.0-only */
/* highprio: the quota of 100 ms periods, caps beside it, timeslices. Inside
 * the core only.
 */
#ifndef CGPU_CORE_SCHED_PRIO_H
#define CGPU_CORE_SCHED_PRIO_H

#include "env.h"
#include "sched_gpu.h"

#define CGPU_PRIO_PERIOD_NS	100000000ull	/* what prio_ratio is a part of */
#define CGPU_PRIO_SLACK_NS	250000ull	/* less than a control call: not worth one */
#define CGPU_PRIO_TS_SCALE_MAX	8u	/* 64 ms */
/* So many TSGs of one container at the shortest timeslice are 1.1 ms with their switches. */
#define CGPU_PRIO_CORUN_TSGS_MAX	4u

/* Is the quota used up? @left_ns is lowered to when that may change. */
bool cgpu_prio_is_throttled(struct cgpu_sched *t, bool bounded, u64 now_ns, u64 *left_ns);

/* Do the timeslices alone hold @high to the quota beside @low, one at a time? @left_ns is lowered to when
 * that may change.
 */
bool cgpu_prio_is_held(const struct cgpu_sched *t, u32 high, u32 low, u32 *ts_scale, u64 *left_ns);

/* Those of @group that work in at most so many TSGs at once, as far as that is known, that they may run beside a
 * high-priority one.
 */
u32 cgpu_prio_corunnable(const struct cgpu_sched *t, u32 group, u32 most);

/* Those of @group that their caps leave time in this period (policies 0, 3). */
u32 cgpu_prio_under_quota(const struct cgpu_sched *t, u32 group, bool corun, u64 *left_ns);

/* Timeslices or a budget hold high priority: it has no period. */
void cgpu_prio_end_period(struct cgpu_sched *t);

/* With the run state of every high-priority slot known, the quota is a budget. */
s64 cgpu_prio_budget_max_ns(const struct cgpu_sched *t);
void cgpu_prio_fill_budget(struct cgpu_sched *t);
void cgpu_prio_set_budgeted(struct cgpu_sched *t, bool budgeted);
bool cgpu_prio_budget_used_up(struct cgpu_sched *t, u64 *left_ns);
void cgpu_prio_charge_budget(struct cgpu_sched *t, u32 ran, u64 len_ns);
u32 cgpu_prio_shared_timeslice_us(const struct cgpu_sched *t, u32 slot);

/* Was it awake so lately that the others keep short timeslices? */
bool cgpu_prio_is_expected(struct cgpu_sched *t, bool awake, u64 *left_ns);
bool cgpu_prio_was_awake(const struct cgpu_sched *t);

/* High priority of @awake beside which others are frozen to see whether they delay that; slots of @low that run
 * beside high priority in a part of each second only. @left_ns is lowered to when that may change.
 */
u32 cgpu_prio_probed(const struct cgpu_sched *t, u32 awake, u64 *left_ns);
u32 cgpu_prio_kept_back(const struct cgpu_sched *t, u32 low, u64 *left_ns);

/* High-priority slots that had work lately, and how long a TSG of one may run until the quota stops several. */
u32 cgpu_prio_lively(const struct cgpu_sched *t);
u32 cgpu_prio_window_us(const struct cgpu_sched *t, u32 slot);

/* Do timeslices divide the GPU while the budget is used up? Else high priority is frozen. */
bool cgpu_prio_may_share(const struct cgpu_sched *t, u32 active, u32 steady);

/* @slot has work again after a gap in which the hardware may have run others; it worked until one began. */
void cgpu_prio_charge_handover(struct cgpu_sched *t, u32 slot, u64 gap_ns, u64 lent_ns);
void cgpu_prio_charge_burst(struct cgpu_sched *t, u32 slot, u64 len_ns);

void cgpu_prio_charge(struct cgpu_sched *t, u32 ran, u64 len_ns);
u32 cgpu_prio_ts_scale(const struct cgpu_sched *t, u32 group);
u32 cgpu_prio_timeslice_us(const struct cgpu_sched *t, u32 slot, u32 corun, u32 ts_scale);
u32 cgpu_prio_known_timeslice_us(const struct cgpu_sched *t, u32 slot, bool alternates);

#endif
