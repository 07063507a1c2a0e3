// SPDX-License-Identifier: MIT OR GPL-2.0-only
/*
 * The cost of a scheduler decision: N containers under a policy, a plan and its acknowledgement at
 * each end of a turn. Prints "containers ns" lines; ns is the best of several runs, per decision,
 * on a processor of 3 GHz. A chain of multiplications of 64 bits, 3 cycles each on every current
 * x86, runs beside it and measures the processor's present speed, which a host with other tenants
 * does not report.
 */
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

#include "sched_step.h"

#define DECISIONS 4000u
#define RUNS 25
#define STEPS 400000u	/* of the chain, a nanosecond each */

static u64 clock_ns(void)
{
	struct timespec ts;

	clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &ts);
	return (u64)ts.tv_sec * 1000000000u + (u64)ts.tv_nsec;
}

static void set_up(struct cgpu_sched *t, u32 policy, u32 containers, u64 now_ns)
{
	u32 i, slot, granted;

	cgpu_sched_init(t, now_ns);
	cgpu_sched_set_controls(t, CGPU_CTRL_FREEZE | CGPU_CTRL_TIMESLICE, now_ns);
	cgpu_sched_set_max_inst(t, CGPU_SLOTS, now_ns);
	cgpu_sched_set_slice_us(t, 5000, now_ns);
	if (cgpu_sched_set_policy(t, policy, now_ns))
		abort();
	for (i = 0; i < containers; i++) {
		if (cgpu_sched_add(t, i + 1, 1, 0, now_ns, &slot, &granted))
			abort();
		cgpu_sched_set_channels(t, slot, 1, 1, now_ns);
	}
}

/* One decision: a plan, and its calls, of which a freeze or thaw takes 0.3 ms. */
static u64 decide(struct cgpu_sched *t, u64 now_ns)
{
	struct cgpu_step_event event = { .kind = CGPU_STEP_EVENT_PLAN, .now_ns = now_ns };
	struct cgpu_step step = { 0 };

	cgpu_sched_step(t, NULL, &step, &event);
	if (!step.mask)
		return step.plan.until_ns == CGPU_NEVER_NS ? now_ns + 5000000 : step.plan.until_ns;
	event.kind = CGPU_STEP_EVENT_DONE;
	while (step.mask) {
		event.begin_ns = event.now_ns;
		if (step.kind == CGPU_STEP_FREEZE || step.kind == CGPU_STEP_THAW)
			event.now_ns += 300000;
		event.end_ns = event.now_ns;
		event.done = step.mask;
		event.called = step.mask;
		cgpu_sched_step(t, NULL, &step, &event);
	}
	return event.now_ns;
}

static u64 chain_ns(void)
{
	u64 x = 3, began = clock_ns();
	u32 i;

	for (i = 0; i < STEPS; i++) {
		x *= x;
		__asm__ volatile("" : "+r"(x));
	}
	return clock_ns() - began;
}

static double best_ns(u32 policy, u32 containers)
{
	u64 best = ~0ull, chain = ~0ull, now_ns = 1000000000u, began;
	struct cgpu_sched t;
	u32 run, i;

	set_up(&t, policy, containers, now_ns);
	for (run = 0; run < RUNS; run++) {
		began = clock_ns();
		for (i = 0; i < DECISIONS; i++)
			now_ns = decide(&t, now_ns);
		began = clock_ns() - began;
		if (began < best)
			best = began;
		began = chain_ns();
		if (began < chain)
			chain = began;
	}
	return (double)best / DECISIONS * STEPS / (double)chain;
}

int main(int argc, char **argv)
{
	static const u32 sizes[] = { 1, 2, 5, 10, 25 };
	u32 i;

	for (i = 0; i < sizeof(sizes) / sizeof(sizes[0]); i++)
		printf("%u %.1f\n", sizes[i], best_ns(argc > 1 ? (u32)atoi(argv[1]) : 2, sizes[i]));
	return 0;
}
