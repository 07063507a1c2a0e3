// SPDX-License-Identifier: MIT OR GPL-2.0-only
/* Kernels of several clients at once, in one context: no timeslices and no switches. */
#include "engine.h"

static bool is_first(const struct cgpu_sim *s, u32 i)
{
	return s->client[s->tsg[i].client].first;
}

/* The TSGs of one class that can run, from the one behind the last on; returns how many. */
static u32 collect(struct cgpu_sim *s, bool first, u32 *run)
{
	u32 n = 0, i;

	for (i = 0; i < s->tsgs; i++) {
		if (is_first(s, i) == first && cgpu_sim_runnable(s, i))
			run[n++] = i;
	}
	return n;
}

/* While the blocks of the others end, only what had begun runs. */
static u32 begun(const struct cgpu_sim *s, u32 *run, u32 n)
{
	u32 kept = 0, i;

	for (i = 0; i < n; i++) {
		if (s->tsg[run[i]].started)
			run[kept++] = run[i];
	}
	return kept;
}

/* Fill run[] with what runs now. Those that are first run alone, but wait for the blocks of the
 * others that are on the engine.
 */
static u32 choose(struct cgpu_sim *s, u32 *run)
{
	u32 n = collect(s, true, run), others;

	if (!n) {
		s->leave_ns = 0;
		n = collect(s, false, run);
		s->others_run = n > 0;
		return n;
	}
	if (s->others_run && !s->leave_ns)
		s->leave_ns = s->now_ns + s->turnaround_ns;
	if (s->others_run && s->now_ns < s->leave_ns) {
		others = begun(s, run, collect(s, false, run));
		if (others)
			return others;
	}
	s->others_run = 0;
	s->leave_ns = 0;
	return collect(s, true, run);
}

static u64 next_submission(const struct cgpu_sim *s)
{
	u64 at = CGPU_SIM_NEVER_NS, one;
	u32 i;

	for (i = 0; i < s->tsgs; i++) {
		const struct tsg *tsg = &s->tsg[i];

		one = tsg->submit_ns[tsg->head];
		if (one < tsg->gate_ns)
			one = tsg->gate_ns;
		if (!tsg->frozen && !tsg->started && one > s->now_ns && one < at)
			at = one;
	}
	return at;
}

/* What each of @n has done in @ns, and the time in which it does @ns. */
static u64 done_in(const struct cgpu_sim *s, u32 n, u64 ns)
{
	return n == 1 ? ns : ns * s->overlap_pct / (100ull * n);
}

static u64 time_for(const struct cgpu_sim *s, u32 n, u64 ns)
{
	u64 whole = ns * 100ull * n;

	return n == 1 ? ns : (whole + s->overlap_pct - 1) / s->overlap_pct;
}

/* @n kernels run until @to_ns; each holds an equal part of the engine. */
static void run_all(struct cgpu_sim *s, const u32 *run, u32 n, u64 to_ns)
{
	u64 from_ns = s->now_ns, done = done_in(s, n, to_ns - from_ns);
	u32 i;

	for (i = 0; i < n; i++) {
		struct tsg *tsg = &s->tsg[run[i]];
		u64 did = done < tsg->remaining_ns ? done : tsg->remaining_ns;

		tsg->remaining_ns -= did;
		s->client[tsg->client].busy_ns += did;
		cgpu_sim_hold(s, tsg->client, from_ns + (to_ns - from_ns) * (i + 1) / n);
	}
	for (i = 0; i < n; i++) {
		if (!s->tsg[run[i]].remaining_ns)
			cgpu_sim_complete(s, &s->tsg[run[i]]);
	}
}

bool cgpu_sim_overlap_step(struct cgpu_sim *s, u64 to_ns)
{
	u64 end_ns = next_submission(s), one;
	u32 *run = s->run, n = choose(s, run), i;

	if (!n) {
		cgpu_sim_stay_idle(s, end_ns < to_ns ? end_ns : to_ns);
		return end_ns < to_ns;
	}
	for (i = 0; i < n; i++) {
		cgpu_sim_fetch(s, run[i]);
		one = s->now_ns + time_for(s, n, s->tsg[run[i]].remaining_ns);
		if (one < end_ns)
			end_ns = one;
	}
	if (s->leave_ns > s->now_ns && s->leave_ns < end_ns)
		end_ns = s->leave_ns;
	if (end_ns > to_ns)
		end_ns = to_ns;
	run_all(s, run, n, end_ns);
	return s->now_ns < to_ns;
}

void cgpu_sim_overlap(struct cgpu_sim *s, u32 overlap_pct, u64 turnaround_ns)
{
	s->overlap_pct = overlap_pct;
	s->turnaround_ns = turnaround_ns;
	s->cur = CGPU_SIM_NOBODY;
	s->resident = CGPU_SIM_NOBODY;
}
