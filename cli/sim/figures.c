// SPDX-License-Identifier: MIT OR GPL-2.0-only
#include "figures.h"

#include <stdlib.h>

#define STEP_BITS	6u	/* CGPU_SIM_STEPS == 1 << STEP_BITS */

/* Below CGPU_SIM_STEPS ns each has a step of its own, then each octave has so many. */
static u32 step_of(u64 ns)
{
	u32 octave;

	if (ns < CGPU_SIM_STEPS)
		return (u32)ns;
	octave = 63u - (u32)__builtin_clzll(ns) - STEP_BITS;
	if (octave + 1 >= CGPU_SIM_OCTAVES)
		return CGPU_SIM_OCTAVES * CGPU_SIM_STEPS - 1;
	return ((octave + 1) << STEP_BITS) + (u32)((ns >> octave) & (CGPU_SIM_STEPS - 1));
}

/* The middle of a step. */
static u64 ns_of(u32 step)
{
	u32 octave = step >> STEP_BITS;
	u64 low;

	if (octave < 2)
		return step;
	octave--;
	low = (u64)(CGPU_SIM_STEPS + (step & (CGPU_SIM_STEPS - 1))) << octave;
	return low + ((1ull << octave) >> 1);
}

void cgpu_sim_hist_add(struct cgpu_sim_hist *h, u64 ns)
{
	h->count++;
	h->sum_ns += ns;
	if (ns > h->max_ns)
		h->max_ns = ns;
	h->n[step_of(ns)]++;
}

u64 cgpu_sim_quantile(const struct cgpu_sim_hist *h, u32 permille)
{
	u64 rank = (h->count * permille + 999) / 1000, seen = 0, ns;
	u32 i;

	if (!h->count)
		return 0;
	for (i = 0; i < CGPU_SIM_OCTAVES * CGPU_SIM_STEPS; i++) {
		seen += h->n[i];
		if (seen >= rank && seen) {
			ns = ns_of(i);
			return ns < h->max_ns ? ns : h->max_ns;
		}
	}
	return h->max_ns;
}

void cgpu_sim_trace_add(struct cgpu_sim_trace_log *log, u32 client, u64 from_ns, u64 to_ns)
{
	struct cgpu_sim_stretch *last = log->n ? &log->stretch[log->n - 1] : NULL;

	if (from_ns < log->from_ns)
		from_ns = log->from_ns;
	if (to_ns > log->to_ns)
		to_ns = log->to_ns;
	if (from_ns >= to_ns)
		return;
	if (last && last->client == client && from_ns <= last->end_ns + log->merge_ns) {
		last->end_ns = to_ns;
		last->ran_ns += to_ns - from_ns;
		return;
	}
	if (log->n > log->most)
		return;
	if (log->n == log->room) {
		u32 room = log->room ? 2 * log->room : 256;
		struct cgpu_sim_stretch *more = realloc(log->stretch, room * sizeof(*more));

		if (!more)
			return;
		log->stretch = more;
		log->room = room;
	}
	log->stretch[log->n++] = (struct cgpu_sim_stretch){ from_ns, to_ns, to_ns - from_ns, client };
}
