/* SPDX-License-Identifier: MIT OR GPL-2.0-only */
/* Round robin: one group of slots on one clock. Inside the core only. */
#ifndef CGPU_CORE_SCHED_RR_H
#define CGPU_CORE_SCHED_RR_H

#include "env.h"
#include "policy.h"
#include "sched_gpu.h"
#include "sched_round.h"

/* struct cgpu_rr, running. Both while calls are under way that change nothing of it. */
#define CGPU_RR_PLANNED		1u	/* by the last plan */
#define CGPU_RR_BEFORE		2u	/* until the calls of that plan act */

/* So many turns used up without sleeping, and a slot has its turns to itself. */
#define CGPU_APART_TURNS	3

#define CGPU_RR_STEPS_MAX	(4 * CGPU_SLOTS)

/* The masks of struct cgpu_sched, after a slot was changed. */
void cgpu_rr_refresh(struct cgpu_sched *t);

void cgpu_rr_reset(struct cgpu_sched *t, u32 nr);
bool cgpu_rr_in_force(const struct cgpu_sched *t, u32 nr);
void cgpu_rr_plan(struct cgpu_sched *t);
void cgpu_rr_planned(struct cgpu_sched *t);
void cgpu_rr_begin_with(struct cgpu_sched *t, u32 nr, u32 members, u64 nth);
u32 cgpu_rr_lent(const struct cgpu_sched *t, u32 nr);
void cgpu_rr_charge(struct cgpu_sched *t, u32 nr, u32 has_work, u64 len_ns);
void cgpu_rr_compensate_switch(struct cgpu_sched *t, u32 started);
u32 cgpu_rr_beside(struct cgpu_sched *t, u32 nr, u64 *left_ns);
s64 cgpu_rr_missing_ns(const struct cgpu_sched *t, u32 nr, u32 slot);
u64 cgpu_rr_stay_ns(const struct cgpu_sched *t, const struct cgpu_rr *r);
u32 cgpu_rr_naps(const struct cgpu_sched *t);
u32 cgpu_rr_restless(const struct cgpu_sched *t);
u64 cgpu_rr_timeslice_wait_ns(const struct cgpu_sched *t, u32 slot);
u32 cgpu_rr_beside_timeslice_us(const struct cgpu_sched *t, u32 restless, u32 slot);
bool cgpu_rr_gives_way(const struct cgpu_sched *t, const struct cgpu_rr *r, bool *goes_on);
u32 cgpu_rr_enter(struct cgpu_sched *t, u32 nr, u32 members, u32 asleep, bool fixed);
u32 cgpu_rr_step(struct cgpu_sched *t, u32 nr, u32 members, u32 asleep, u64 *left_ns);
u32 cgpu_rr_step_fixed(struct cgpu_sched *t, u32 nr, u32 members, u64 *left_ns);

/* One turn; for the two kinds of round. */
bool cgpu_turn_begin(struct cgpu_sched *t, u32 nr, u32 slot, const struct cgpu_round *whole);
bool cgpu_turn_over(struct cgpu_sched *t, u32 nr);
u64 cgpu_turn_left_ns(struct cgpu_sched *t, u32 nr);
void cgpu_turn_end(struct cgpu_sched *t, u32 nr);

bool cgpu_rr_thaws_first(const struct cgpu_sched *t);
u64 cgpu_rr_late_ns(const struct cgpu_sched *t, u32 slot);

#endif
