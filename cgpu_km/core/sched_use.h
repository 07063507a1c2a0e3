/* SPDX-License-Identifier: MIT OR GPL-2.0 */
/* What high priority uses, by the driver's utilisation samples. Inside the core only. */
#ifndef CGPU_CORE_SCHED_USE_H
#define CGPU_CORE_SCHED_USE_H

#include "env.h"
#include "sched_gpu.h"

enum cgpu_use {
	CGPU_USE_UNKNOWN	= 0,	/* too few samples, or none lately */
	CGPU_USE_BELOW		= 1,	/* no more than prio_ratio */
	CGPU_USE_OVER		= 2,
};

/* A sample found @on, one slot or none, on the engine. */
void cgpu_use_note(struct cgpu_sched *t, u32 on, u64 at_ns);

/* Other slots have high priority, or one has opened the GPU: the samples were of others. */
void cgpu_use_forget(struct cgpu_sched *t);

enum cgpu_use cgpu_use_of_high(const struct cgpu_sched *t);

#endif
