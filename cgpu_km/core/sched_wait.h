/* SPDX-License-Identifier: MIT OR GPL-2.0-only */
/* How long a slot waited for each of its turns: a histogram. */
#ifndef CGPU_CORE_SCHED_WAIT_H
#define CGPU_CORE_SCHED_WAIT_H

#include "env.h"

#define CGPU_WAIT_BUCKETS	18	/* below 100 us, 200 us, … 13.1072 s */
#define CGPU_WAIT_FIRST_NS	100000u

struct cgpu_wait {
	u64 so_far_ns;		/* of the wait under way */
	u64 count;		/* waits that ended with a turn */
	u64 sum_ns;		/* of these */
	u64 bucket[CGPU_WAIT_BUCKETS];	/* those in no smaller bucket; longer ones are in none */
};

/* The wait under way ended with a turn. */
void cgpu_wait_end(struct cgpu_wait *w);

u64 cgpu_wait_below_ns(u32 i);

#endif
