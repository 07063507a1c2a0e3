/* SPDX-License-Identifier: MIT OR GPL-2.0-only */
/*
 * How the shell sees a scheduler state, and how one core hands it to another.
 *
 * Caller serialises (the GPU's mutex).
 */
#ifndef CGPU_CORE_SCHED_STAT_H
#define CGPU_CORE_SCHED_STAT_H

#include "sched_gpu.h"

struct cgpu_sched_stat {
	u64 gpu_ns;
	u64 wait_ns;
	u64 turns;
	u64 overruns;
	u32 running;		/* may run now */
	u32 opened;
	u64 unsure_ns;
	u32 failed;
	u32 preempt_slow;
	u32 enforced;		/* 1: a control that is not in doubt holds it to the policy */
	u32 pad;
	struct cgpu_wait wait;
	u64 throttled_ns;	/* the part of wait_ns in which its ceiling was used up */
};

void cgpu_sched_stat(const struct cgpu_sched *t, u32 slot, u64 now_ns,
		     struct cgpu_sched_stat *st);

/* The part of a state that the shell sees; the layout of the state is the core's own. A core
 * swap does not change these values; all of it is ABI.
 */
struct cgpu_sched_view {
	u32 policy;
	u32 max_inst;
	u32 prio_ratio;
	u32 controls;		/* CGPU_CTRL_* */
	u32 ineffective;	/* CGPU_CTRL_* */
	u32 no_effect_count[2];	/* by control: uses in a row after which nothing moved */
	u32 opened_mask;	/* slots with channels */
	u32 run_mask;		/* slots that may run now, as acknowledged */
	u32 free_weight;	/* slices per round */
	u32 instances;
	u32 pad;
	u64 slice_ns;
};

struct cgpu_sched_entity_view {
	u64 cookie;		/* 0: the slot is free */
	u32 weight;		/* slices per round */
	u32 highprio;
	u32 channels;
	u32 preempt_slow;
	u32 ceiling;		/* slices per round, 0: none */
	u32 pad;
	u64 overruns;
	u64 turns;
	u64 gpu_ns;
};

void cgpu_sched_view(const struct cgpu_sched *t, struct cgpu_sched_view *view);
void cgpu_sched_entity_view(const struct cgpu_sched *t, u32 slot,
			    struct cgpu_sched_entity_view *view);

/* 0, or -EINVAL if @old_version cannot be carried over or a number of @old is out of range. */
int cgpu_sched_migrate(struct cgpu_sched *fresh, const void *old, u32 old_version);

#endif
