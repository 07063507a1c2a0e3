// SPDX-License-Identifier: MIT OR GPL-2.0
/* How long one decision of the turn engine takes: the core's own files, -O2, no sanitizer. Prints JSON lines. */
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

#include "core/turn.h"

#define MS		1000000ull
#define BATCHES		31
#define DECISIONS	20000

static u64 clock_ns(void)
{
	struct timespec ts;

	clock_gettime(CLOCK_MONOTONIC, &ts);
	return ts.tv_sec * 1000000000ull + ts.tv_nsec;
}

/* A full GPU of @count busy containers, as many of them with high priority as @high says. */
static u64 set_up(struct cgpu_turn *t, u32 policy, u32 count, u32 high)
{
	u32 slot, granted, i;
	u64 now = 1000 * MS;

	cgpu_turn_init(t, now);
	cgpu_turn_set_levers(t, CGPU_LEVER_WINDOW | CGPU_LEVER_TIMESLICE, now);
	if (cgpu_turn_set_max_inst(t, CGPU_SLOTS, now) || cgpu_turn_set_slice_us(t, 5000, now) ||
	    cgpu_turn_set_policy(t, policy, now))
		exit(2);
	for (i = 0; i < count; i++) {
		if (cgpu_turn_add(t, i + 1, 1, i < high, now, &slot, &granted))
			exit(2);
		cgpu_turn_set_channels(t, slot, 1, 1, now);
	}
	return now;
}

/* What the thread does in a turn: a plan with calls, its acknowledgement, a plan that holds. */
static u32 pass_turn(struct cgpu_turn *t, u64 *now, struct cgpu_turn_plan *plan)
{
	struct cgpu_turn_ack ack = { 0 };
	u32 decisions = 1;

	cgpu_turn_next(t, *now, plan);
	if (plan->freeze_mask | plan->thaw_mask | plan->timeslice_mask) {
		ack.begin_ns = *now;
		ack.thawed_ns = *now + 300000;
		ack.frozen_ns = *now + 600000;
		if (!plan->thaw_first) {
			ack.frozen_ns = *now + 300000;
			ack.thawed_ns = *now + 600000;
		}
		ack.run_mask = plan->run_mask;
		ack.timeslice_mask = plan->timeslice_mask;
		*now += 900000;
		cgpu_turn_ack(t, plan, &ack);
		return 2;
	}
	*now = plan->until_ns == CGPU_NEVER_NS ? *now + 5 * MS : plan->until_ns + plan->late_ns;
	return decisions;
}

static int by_size(const void *a, const void *b)
{
	double x = *(const double *)a, y = *(const double *)b;

	return x < y ? -1 : x > y;
}

static void measure(const char *name, u32 policy, u32 count, u32 high)
{
	static struct cgpu_turn t;
	static struct cgpu_turn_plan plan;
	double ns[BATCHES];
	u64 now = set_up(&t, policy, count, high), begin;
	u32 i, done;

	for (i = 0; i < BATCHES; i++) {
		begin = clock_ns();
		for (done = 0; done < DECISIONS;)
			done += pass_turn(&t, &now, &plan);
		ns[i] = (double)(clock_ns() - begin) / done;
	}
	qsort(ns, BATCHES, sizeof(ns[0]), by_size);
	printf("{\"policy\": \"%s\", \"containers\": %u, \"highprio\": %u, \"median_ns\": %.1f, \"least_ns\": %.1f}\n",
	       name, count, high, ns[BATCHES / 2], ns[0]);
}

/* The worst single decision: all but one owe a whole round, so the others are passed over again and again. */
static void measure_debts(u32 count)
{
	static struct cgpu_turn t, indebted;
	static struct cgpu_turn_plan plan;
	double ns[BATCHES];
	u64 now = set_up(&indebted, 1, count, 0), begin, sum;
	u32 i, n;

	cgpu_turn_next(&indebted, now, &plan);
	for (i = 0; i < CGPU_SLOTS; i++)
		indebted.slot[i].credit_ns = -(s64)(count * 5 * MS);
	for (n = 0; n < BATCHES; n++) {
		for (i = 0, sum = 0; i < 200; i++) {
			t = indebted;
			begin = clock_ns();
			cgpu_turn_next(&t, now + 6 * MS, &plan);
			sum += clock_ns() - begin;
		}
		ns[n] = (double)sum / 200;
	}
	qsort(ns, BATCHES, sizeof(ns[0]), by_size);
	printf("{\"policy\": \"all in debt\", \"containers\": %u, \"highprio\": 0, \"median_ns\": %.1f, \"least_ns\": %.1f}\n",
	       count, ns[BATCHES / 2], ns[0]);
}

int main(void)
{
	static const char * const name[] = { "fair", "preempt", "weighted", "fixed", "soft", "native" };
	static const u32 count[] = { 1, 5, 25 };
	u32 p, i;

	for (p = 0; p < 6; p++)
		for (i = 0; i < 3; i++)
			measure(name[p], p, count[i], 0);
	for (i = 1; i < 3; i++) {
		measure("preempt", 1, count[i], 1);
		measure("fixed", 3, count[i], 1);
		measure("soft", 4, count[i], 1);
	}
	for (i = 1; i < 3; i++)
		measure_debts(count[i]);
	return 0;
}
