/* SPDX-License-Identifier: MIT OR GPL-2.0 */
/* Where the time went. Inside the core only. */
#ifndef CGPU_CORE_ACCOUNT_H
#define CGPU_CORE_ACCOUNT_H

#include "env.h"
#include "turn.h"

/* Charge everything up to @to_ns by what was in force. */
void cgpu_account_until(struct cgpu_turn *t, u64 to_ns);

/* Charge up to @to_ns an overlap of those that stop with those that begin. */
void cgpu_account_overlap(struct cgpu_turn *t, u32 before, u32 after, u64 to_ns);

/* The calls of a plan took effect: from now on @run_mask. */
void cgpu_account_switch(struct cgpu_turn *t, u32 run_mask);

#endif
