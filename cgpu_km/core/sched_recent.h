/* SPDX-License-Identifier: MIT OR GPL-2.0-only */
/* What slots got lately, against their parts. Inside the core only. */
#ifndef CGPU_CORE_SCHED_RECENT_H
#define CGPU_CORE_SCHED_RECENT_H

#include "env.h"
#include "sched_gpu.h"

/* @slot ran for @got_ns; and after that was noted of each: so much time passed for all. */
void cgpu_recent_note(struct cgpu_sched *t, u32 slot, u64 got_ns);
void cgpu_recent_pass(struct cgpu_sched *t, u64 len_ns);

/* @slot ran for @more_ns more, or less, than was noted lately. */
void cgpu_recent_correct(struct cgpu_sched *t, u32 slot, s64 more_ns);

/* Those of @group, slots of one group, that had more than their part of @span. */
u32 cgpu_recent_over(const struct cgpu_sched *t, enum cgpu_recent_span span, u32 group);

/* Had @slot so many eighths of its part? */
bool cgpu_recent_is_beyond(const struct cgpu_sched *t, u32 slot, u32 eighths);

/* Had @slot three quarters of its part over some seconds? */
bool cgpu_recent_is_near(const struct cgpu_sched *t, u32 slot);

/* What @slot had less than its part. */
u64 cgpu_recent_missing_ns(const struct cgpu_sched *t, u32 slot);

/* The part of @slot, times the number of those that it is a part of, times @of. */
u64 cgpu_recent_part_of(const struct cgpu_sched *t, u32 slot, u64 of);

/* @slot, one of @over of @span, waits for @other: that one had less than its part, or less of it. */
bool cgpu_recent_yields(const struct cgpu_sched *t, enum cgpu_recent_span span, u32 over, u32 slot,
			u32 other);

/* Slots that have opened the GPU, or had it open in about the last 0.4 s. */
u32 cgpu_recent_opened(const struct cgpu_sched *t);

#endif
