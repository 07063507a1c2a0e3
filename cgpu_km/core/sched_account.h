/* SPDX-License-Identifier: MIT OR GPL-2.0-only */
/* Charging of GPU time. Inside the core only. */
#ifndef CGPU_CORE_SCHED_ACCOUNT_H
#define CGPU_CORE_SCHED_ACCOUNT_H

#include "env.h"
#include "sched_gpu.h"

struct cgpu_account_now {
	u32 awake;		/* may run and are not known to sleep */
	u32 ran;		/* of these, those that the hardware divides the GPU among */
	u32 waiting;
};

void cgpu_account_snapshot(const struct cgpu_sched *t, struct cgpu_account_now *n);
u64 cgpu_account_got_ns(const struct cgpu_sched *t, const struct cgpu_account_now *n, u32 slot,
			u64 len_ns);

/* Charge everything up to @to_ns by what was in force. */
void cgpu_sched_update(struct cgpu_sched *t, u64 to_ns);

/* The same up to a reading, which changed busy_mask from @was_busy. */
void cgpu_account_reading(struct cgpu_sched *t, u32 was_busy, u64 to_ns);

/* Charge up to @to_ns, when the freeze of @slots took effect; @late: their kernels delayed it. */
void cgpu_account_freeze(struct cgpu_sched *t, u32 slots, bool late, u64 to_ns);

/* Charge up to @to_ns an overlap of those that stop with those that begin. */
void cgpu_account_overlap(struct cgpu_sched *t, u32 before, u32 after, u64 to_ns);

/* At @at_ns the runlist was restarted. */
void cgpu_account_restart(struct cgpu_sched *t, u64 at_ns);

/* The calls of a plan took effect: from now on @run_mask. */
void cgpu_sched_switch(struct cgpu_sched *t, u32 run_mask);

#endif
