// SPDX-License-Identifier: MIT OR GPL-2.0-only
/* The GPU of checkgpu.py. */
#include "../../../cgpu_km/core/env.h"
#include "../../../cgpu_km/core/sched_check.h"
#include "../../../cgpu_km/core/sched_step.h"
#include "checked.h"

#define MS_NS		1000000.0
#define PERIOD_NS	(1000 * MS_NS / 6)
#define BURST_NS	(40 * MS_NS)
#define CALL_NS		300000
#define GAP_US		20
#define DEFAULT_US	1024

static u32 word(struct checked_gpu *g)
{
	u32 i = g->next_word++;

	return i < g->words ? g->word[i] : 0; /* checked_run() says that they were too few */
}

/* From 0 to below 1, as Python's. */
static double chance(struct checked_gpu *g)
{
	u32 high = word(g) >> 5, low = word(g) >> 6;

	return (high * 67108864.0 + low) / 9007199254740992.0;
}

static bool has_work(const struct checked_tenant *one, double at_ns)
{
	double x = (u64)(at_ns / BURST_NS) * 0.61803 + one->slot * 0.3;

	return x - (u64)x < one->work;
}

/* Whether the hardware lets it run. */
static bool is_allowed(const struct checked_gpu *g, const struct checked_tenant *one)
{
	u32 mask = g->uncommitted ? g->in_force : g->turn->run_mask;

	return g->ineffective & 1 || mask >> one->slot & 1 || g->now_ns >= one->loose_ns;
}

static u64 part_of(const struct checked_tenant *one)
{
	u64 us = one->slice_us ? one->slice_us : DEFAULT_US;

	return one->tsgs * (one->kernel_us && one->kernel_us < us ? one->kernel_us : us);
}

/* The slot on the engine, or CGPU_CHECK_IDLE. */
static u32 on_engine(struct checked_gpu *g, double at_ns)
{
	const struct checked_tenant *runs[32];
	u64 total = 0, sum = 0;
	u32 count = 0, i;
	double at;

	for (i = 0; i < g->tenants; i++)
		if (at_ns < g->tenant[i]->on_until_ns)
			return g->tenant[i]->slot;
	for (i = 0; i < g->tenants; i++)
		if (is_allowed(g, g->tenant[i]) && has_work(g->tenant[i], at_ns))
			runs[count++] = g->tenant[i];
	if (count == 1 && runs[0]->kernel_us &&
	    chance(g) * (runs[0]->kernel_us + GAP_US) < GAP_US)
		return CGPU_CHECK_IDLE;
	if (!count)
		return CGPU_CHECK_IDLE;
	/* Where in the hardware's round it is, is as good as random at six samples a second. */
	for (i = 0; i < count; i++)
		total += part_of(runs[i]);
	at = chance(g) * total;
	for (i = 0; i + 1 < count; i++) {
		sum += part_of(runs[i]);
		if (at < sum)
			break;
	}
	return runs[i]->slot;
}

/* Of its tenants, an idle engine and one that is not cgpu's. */
static u32 any_name(struct checked_gpu *g)
{
	u32 n = g->tenants + 2, bits = 32 - __builtin_clz(n), found;

	do
		found = word(g) >> (32 - bits);
	while (found >= n);
	if (found < g->tenants)
		return g->tenant[found]->slot;
	return found == g->tenants ? CGPU_CHECK_IDLE : CGPU_CHECK_FOREIGN;
}

static void take_sample(struct checked_gpu *g)
{
	u32 slot = on_engine(g, g->sample_ns), allowed = 0;

	for (u32 i = 0; i < g->tenants; i++)
		allowed += is_allowed(g, g->tenant[i]);
	if (g->switching && allowed > 1 && chance(g) < g->switching)
		slot = CGPU_CHECK_IDLE;
	if (chance(g) < g->wrong)
		slot = any_name(g);
	if (g->samples < sizeof(g->sample) / sizeof(*g->sample))
		g->sample[g->samples] = (struct checked_sample){ g->sample_ns, slot };
	g->samples++;
	g->sample_ns += PERIOD_NS * (1 - g->jitter + 2 * g->jitter * chance(g));
}

static void advance(struct checked_gpu *g, u64 to_ns)
{
	while (g->sample_ns <= to_ns)
		take_sample(g);
	for (u32 i = 0; i < g->tenants; i++)
		if (g->turn->held_mask >> g->tenant[i]->slot & 1)
			g->tenant[i]->held_ns += (double)to_ns - g->now_ns;
	g->now_ns = to_ns;
}

static void answer(struct checked_gpu *g, struct cgpu_step_event *event)
{
	u32 kind = g->step.kind, mask = g->step.mask, i;

	event->done = mask;
	if (kind == CGPU_STEP_TIMESLICE) {
		event->called = mask;
		for (i = 0; i < g->tenants && !(g->ineffective & 2); i++) {
			u32 us = g->step.plan.timeslice_us[g->tenant[i]->slot];

			if (mask >> g->tenant[i]->slot & 1)
				g->tenant[i]->commit_us = us ? us : DEFAULT_US;
		}
	} else if (kind == CGPU_STEP_RESTART) {
		advance(g, g->now_ns + CALL_NS);
		g->was = on_engine(g, g->now_ns);
		g->committed = event->done = chance(g) >= g->uncommitted;
	} else {
		advance(g, g->now_ns + __builtin_popcount(mask) * CALL_NS);
	}
}

static void act(struct checked_gpu *g)
{
	while (g->step.mask) {
		struct cgpu_step_event event = {
			.kind = CGPU_STEP_EVENT_DONE, .begin_ns = g->now_ns
		};

		answer(g, &event);
		event.now_ns = event.end_ns = g->now_ns;
		cgpu_sched_step(g->turn, g->check, &g->step, &event);
	}
	for (u32 i = 0; i < g->tenants; i++) {
		struct checked_tenant *one = g->tenant[i];
		u64 until_ns = g->now_ns + one->resists_ns;

		if (one->slot == g->was && one->resists_ns &&
		    g->step.plan.freeze_mask >> one->slot & 1 && one->on_until_ns < until_ns)
			one->on_until_ns = until_ns;
		if (g->committed && one->commit_us) {
			one->slice_us = one->commit_us;
			one->commit_us = 0;
		}
	}
	if (g->committed)
		g->in_force = g->turn->run_mask;
}

int checked_run(struct checked_gpu *g, u64 end_ns)
{
	while (g->now_ns < end_ns) {
		struct cgpu_step_event event = {
			.kind = CGPU_STEP_EVENT_PLAN, .now_ns = g->now_ns, .restarts = 1
		};
		u64 to_ns;

		cgpu_sched_step(g->turn, g->check, &g->step, &event);
		if (g->step.mask) {
			act(g);
			continue;
		}
		to_ns = g->step.plan.until_ns < end_ns ? g->step.plan.until_ns : end_ns;
		advance(g, to_ns < g->poll_ns ? to_ns : g->poll_ns);
		if (g->now_ns >= g->poll_ns)
			break;
	}
	return g->next_word > g->words || g->samples > sizeof(g->sample) / sizeof(*g->sample);
}
