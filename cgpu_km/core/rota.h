/* SPDX-License-Identifier: MIT OR GPL-2.0 */
/* Taking turns: one group of containers on one clock. Inside the core only. */
#ifndef CGPU_CORE_ROTA_H
#define CGPU_CORE_ROTA_H

#include "env.h"
#include "policy.h"
#include "turn.h"

/* The driver's default, kernel_fifo_gv100.c: 128 << 3 us. */
#define CGPU_DRIVER_TIMESLICE_US	1024u

/* struct cgpu_rota, running. Both while calls are under way that change nothing of it. */
#define CGPU_ROTA_PLANNED	1u	/* by the last plan */
#define CGPU_ROTA_BEFORE	2u	/* until the calls of that plan act */

/* Exactly one slot is in @mask. */
bool cgpu_is_one(u32 mask);

/* The masks of struct cgpu_turn, after a slot was changed. */
void cgpu_rota_refresh(struct cgpu_turn *t);

/* What @slot got of @len_ns in which several ran together that pull @all. */
u64 cgpu_rota_pull(const struct cgpu_turn *t, u32 mask, bool by_timeslice);
u64 cgpu_rota_split(const struct cgpu_turn *t, u64 all, u32 slot, bool by_timeslice,
		    u64 len_ns);

void cgpu_rota_reset(struct cgpu_turn *t, u32 nr);
bool cgpu_rota_in_force(const struct cgpu_turn *t, u32 nr);
void cgpu_rota_plan(struct cgpu_turn *t);
void cgpu_rota_planned(struct cgpu_turn *t);
void cgpu_rota_begin_with(struct cgpu_turn *t, u32 nr, u32 members, u64 nth);
void cgpu_rota_charge(struct cgpu_turn *t, u32 nr, u64 len_ns);
void cgpu_rota_refund_switch(struct cgpu_turn *t, u32 started);
u32 cgpu_rota_step(struct cgpu_turn *t, u32 nr, u32 members, bool fixed, u64 *left_ns);
bool cgpu_rota_thaws_first(const struct cgpu_turn *t);
u64 cgpu_rota_late_ns(const struct cgpu_turn *t, u32 slot);
s64 *cgpu_rota_credit(struct cgpu_turn *t, u32 nr, u32 slot);

#endif
