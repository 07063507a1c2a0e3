// SPDX-License-Identifier: MIT OR GPL-2.0-only
/* The engine: which TSG runs, until when. */
#include "engine.h"

bool cgpu_sim_runnable(struct cgpu_sim *s, u32 i)
{
	struct tsg *tsg = &s->tsg[i];

	if (tsg->frozen)
		return false;
	if (!tsg->started)
		cgpu_sim_admit(s, tsg);
	return tsg->started || tsg->admitted;
}

static u32 next_runnable(struct cgpu_sim *s, bool others_only)
{
	u32 n, i;

	for (n = 1; n < s->tsgs + !others_only; n++) {
		i = (s->last + n) % s->tsgs;
		if (cgpu_sim_runnable(s, i))
			return i;
	}
	return CGPU_SIM_NOBODY;
}

static u64 next_arrival(struct cgpu_sim *s)
{
	u64 at = CGPU_SIM_NEVER_NS, one;
	u32 i;

	for (i = 0; i < s->tsgs; i++) {
		struct tsg *tsg = &s->tsg[i];

		one = tsg->submit_ns[tsg->head];
		if (one < tsg->gate_ns)
			one = tsg->gate_ns;
		if (!tsg->frozen && one < at)
			at = one;
	}
	return at;
}

/* The client whose TSG was on the engine before. If one list of a container's channels
 * is frozen and the next is not yet, the container itself keeps the engine.
 */
static u32 comes_from(const struct cgpu_sim *s)
{
	if (s->resident != CGPU_SIM_NOBODY)
		return s->tsg[s->resident].client;
	return s->stopped_ns == s->now_ns ? s->stopped_client : CGPU_SIM_NOBODY;
}

static void begin(struct cgpu_sim *s, u32 i)
{
	s->cur = i;
	s->last = i;
	if (s->resident != i) {
		s->own_switch = comes_from(s) == s->tsg[i].client;
		s->client[s->tsg[i].client].switches++;
		s->resident = i;
		s->phase = SWITCH;
		s->phase_end_ns = s->now_ns + s->machine.ctxsw_ns;
		return;
	}
	s->phase = RUN;
	s->slice_end_ns = s->now_ns + s->tsg[i].slice_ns;
}

static void go_idle(struct cgpu_sim *s)
{
	s->phase = IDLE;
	s->cur = CGPU_SIM_NOBODY;
}

/* @tsg begins a kernel: record the latency if the client was idle before. */
static void note_begin(struct cgpu_sim *s, struct tsg *tsg, u64 submit_ns)
{
	struct state *st = &s->state[tsg->client];
	struct cgpu_sim_client *c = &s->client[tsg->client];

	if (submit_ns >= st->last_end_ns + CGPU_SIM_WAKE_NS)
		cgpu_sim_hist_add(st->enabled_ns > submit_ns ? &c->wake_frozen : &c->wake,
				  s->now_ns - submit_ns);
	st->left_ns = 0;
}

/* The engine switched to @tsg: record the wait if it began before another client ran out of work. */
static void note_switched(struct cgpu_sim *s, const struct tsg *tsg)
{
	u64 since = tsg->started ? tsg->ready_ns : tsg->submit_ns[tsg->head], *left_ns;
	u32 i;

	for (i = 0; i < s->clients; i++) {
		left_ns = &s->state[i].left_ns;
		if (i == tsg->client || !*left_ns)
			continue;
		if (since <= *left_ns)
			cgpu_sim_hist_add(&s->client[i].reclaim, s->now_ns - *left_ns);
		*left_ns = 0;
	}
}

bool cgpu_sim_fetch(struct cgpu_sim *s, u32 i)
{
	struct tsg *tsg = &s->tsg[i];
	const struct cgpu_sim_load *load = &s->state[tsg->client].load;
	u64 submit_ns;

	if (!cgpu_sim_runnable(s, i))
		return false;
	if (tsg->started)
		return true;
	submit_ns = tsg->submit_ns[tsg->head];
	tsg->started = 1;
	if (load->requests)
		tsg->length_ns = cgpu_sim_request_length(s, tsg);
	else
		tsg->length_ns = cgpu_sim_around(&s->rng, load->kernel_ns, load->spread_ns);
	if (!tsg->length_ns)
		tsg->length_ns = 1;
	tsg->remaining_ns = tsg->length_ns;
	tsg->ready_ns = submit_ns > tsg->last_end_ns ? submit_ns : tsg->last_end_ns;
	note_begin(s, tsg, submit_ns);
	return true;
}

void cgpu_sim_complete(struct cgpu_sim *s, struct tsg *tsg)
{
	struct cgpu_sim_client *c = &s->client[tsg->client];
	struct state *st = &s->state[tsg->client];
	u64 next;

	c->works++;
	c->done_ns += tsg->length_ns;
	cgpu_sim_hist_add(&c->wait, s->now_ns - tsg->ready_ns - tsg->length_ns);
	tsg->started = 0;
	tsg->admitted--;
	tsg->last_end_ns = s->now_ns;
	st->last_end_ns = s->now_ns;
	if (st->load.requests)
		cgpu_sim_request_kernel_done(s, tsg);
	else
		tsg->submit_ns[tsg->head] = cgpu_sim_next_submission(s, tsg, s->now_ns);
	tsg->head = (tsg->head + 1) % st->load.depth;
	next = tsg->submit_ns[tsg->head];
	if (next > s->now_ns + CGPU_SIM_WAKE_NS)
		st->left_ns = s->now_ns;
}

/* The end of the running slice; later if the client's kernels resist preemption. */
static u64 give_way_ns(const struct cgpu_sim *s)
{
	u64 at = s->slice_end_ns;

	if (s->machine.no_preempt)
		return CGPU_SIM_NEVER_NS;
	if (s->state[s->tsg[s->cur].client].load.stubborn)
		at += s->machine.stubborn_ns;
	return at > s->now_ns ? at : s->now_ns;
}

static void slice_over(struct cgpu_sim *s)
{
	u32 next = next_runnable(s, true);

	if (next != CGPU_SIM_NOBODY) {
		begin(s, next);
	} else if (!s->tsg[s->cur].frozen) {
		s->slice_end_ns = s->now_ns + s->tsg[s->cur].slice_ns;
	} else {
		s->resident = CGPU_SIM_NOBODY;
		go_idle(s);
	}
}

void cgpu_sim_hold(struct cgpu_sim *s, u32 client, u64 to_ns)
{
	u64 from = s->now_ns, end, nr;

	s->client[client].held_ns += to_ns - from;
	cgpu_sim_trace_add(&s->trace, client, from, to_ns);
	while (from < to_ns) {
		nr = (from - s->mark_ns) / CGPU_SIM_BUCKET_NS;
		end = s->mark_ns + (nr + 1) * CGPU_SIM_BUCKET_NS;
		if (end > to_ns)
			end = to_ns;
		if (nr < s->buckets)
			s->state[client].bucket[nr] += end - from;
		from = end;
	}
	s->now_ns = to_ns;
}

static void run_kernel(struct cgpu_sim *s, struct tsg *tsg, u64 to_ns)
{
	tsg->remaining_ns -= to_ns - s->now_ns;
	s->client[tsg->client].busy_ns += to_ns - s->now_ns;
	cgpu_sim_hold(s, tsg->client, to_ns);
}

static void wait_for_switch(struct cgpu_sim *s, u64 to_ns)
{
	s->switching_ns += to_ns - s->now_ns;
	if (s->own_switch)
		cgpu_sim_hold(s, s->tsg[s->cur].client, to_ns);
	s->now_ns = to_ns;
}

/* Up to the running TSG's next event; false: nothing more before @to_ns. */
static bool run(struct cgpu_sim *s, u64 to_ns)
{
	struct tsg *tsg = &s->tsg[s->cur];
	u64 end, stop;

	if (!tsg->started && s->slice_end_ns <= s->now_ns) {
		slice_over(s);
		if (s->phase != RUN)
			return true;
		tsg = &s->tsg[s->cur];
	}
	if (!tsg->started && !cgpu_sim_fetch(s, s->cur)) {
		go_idle(s);
		return true;
	}
	end = s->now_ns + tsg->remaining_ns;
	stop = give_way_ns(s);
	if (end < stop)
		stop = end;
	if (stop > to_ns) {
		run_kernel(s, tsg, to_ns);
		return false;
	}
	run_kernel(s, tsg, stop);
	if (stop == end)
		cgpu_sim_complete(s, tsg);
	else
		slice_over(s);
	return true;
}

void cgpu_sim_stay_idle(struct cgpu_sim *s, u64 to_ns)
{
	u64 from_ns = to_ns;
	u32 i;

	for (i = 0; i < s->tsgs; i++) {
		const struct tsg *tsg = &s->tsg[i];
		u64 at = tsg->started ? s->now_ns : tsg->submit_ns[tsg->head];

		if (at < from_ns)
			from_ns = at;
	}
	if (from_ns < s->now_ns)
		from_ns = s->now_ns;
	s->idle_loss_ns += to_ns - from_ns;
	s->now_ns = to_ns;
}

static bool step(struct cgpu_sim *s, u64 to_ns)
{
	u32 next;
	u64 at;

	if (s->overlap_pct)
		return cgpu_sim_overlap_step(s, to_ns);
	switch (s->phase) {
	case IDLE:
		next = s->tsgs ? next_runnable(s, false) : CGPU_SIM_NOBODY;
		if (next != CGPU_SIM_NOBODY) {
			begin(s, next);
			return true;
		}
		at = next_arrival(s);
		cgpu_sim_stay_idle(s, at < to_ns ? at : to_ns);
		return at < to_ns;
	case SWITCH:
		if (s->phase_end_ns > to_ns) {
			wait_for_switch(s, to_ns);
			return false;
		}
		wait_for_switch(s, s->phase_end_ns);
		s->phase = RUN;
		s->slice_end_ns = s->now_ns + s->tsg[s->cur].slice_ns;
		note_switched(s, &s->tsg[s->cur]);
		return true;
	case RUN:
		return run(s, to_ns);
	}
	return false;
}

void cgpu_sim_advance(struct cgpu_sim *s, u64 to_ns)
{
	while (s->now_ns < to_ns && step(s, to_ns))
		;
}

static bool on_engine(const struct cgpu_sim *s, u32 client)
{
	return s->cur != CGPU_SIM_NOBODY && s->tsg[s->cur].client == client;
}

void cgpu_sim_drain(struct cgpu_sim *s, u32 client, u64 to_ns)
{
	while (on_engine(s, client) && s->tsg[s->cur].frozen && s->now_ns < to_ns && step(s, to_ns))
		;
}

/* Take the running TSG off the engine at once, unless it resists. */
static void stop(struct cgpu_sim *s)
{
	if (s->phase == RUN) {
		if (s->slice_end_ns > s->now_ns)
			s->slice_end_ns = s->now_ns;
		if (s->tsg[s->cur].started && give_way_ns(s) > s->now_ns)
			return;
	}
	s->stopped_client = s->tsg[s->cur].client;
	s->stopped_ns = s->now_ns;
	s->resident = CGPU_SIM_NOBODY;
	go_idle(s);
}

void cgpu_sim_enable(struct cgpu_sim *s, u32 client, u32 first, u32 count, u32 enabled)
{
	u32 i, nr = 0, thawed = 0;

	if (client >= s->clients)
		return;
	for (i = 0; i < s->tsgs; i++) {
		struct tsg *tsg = &s->tsg[i];

		if (tsg->client != client)
			continue;
		if (nr >= first && nr - first < count && tsg->frozen != !enabled) {
			tsg->frozen = !enabled;
			if (tsg->frozen && s->cur == i)
				stop(s);
		}
		thawed += !tsg->frozen;
		nr++;
	}
	if (thawed && !s->client[client].enabled)
		s->state[client].enabled_ns = s->now_ns;
	s->client[client].enabled = thawed > 0;
}

void cgpu_sim_end(struct cgpu_sim *s, u32 client)
{
	u32 i, n;

	for (i = 0; i < s->tsgs; i++) {
		struct tsg *tsg = &s->tsg[i];

		if (tsg->client != client)
			continue;
		tsg->started = 0;
		tsg->admitted = 0;
		cgpu_sim_request_drop(s, tsg);
		for (n = 0; n < s->state[client].load.depth; n++)
			tsg->submit_ns[n] = CGPU_SIM_NEVER_NS;
	}
	if (on_engine(s, client)) {
		s->resident = CGPU_SIM_NOBODY;
		go_idle(s);
	}
}

void cgpu_sim_reopen(struct cgpu_sim *s, u32 client)
{
	u32 i, n;

	for (i = 0; i < s->tsgs; i++) {
		struct tsg *tsg = &s->tsg[i];

		if (tsg->client != client)
			continue;
		tsg->last_submit_ns = s->now_ns;
		tsg->arrival_ns = s->now_ns;
		for (n = 0; n < s->state[client].load.depth; n++)
			tsg->submit_ns[(tsg->head + n) % s->state[client].load.depth] =
				cgpu_sim_next_submission(s, tsg, s->now_ns);
	}
}

void cgpu_sim_timeslice(struct cgpu_sim *s, u32 client, u64 timeslice_ns)
{
	u32 i;

	for (i = 0; i < s->tsgs; i++) {
		if (s->tsg[i].client != client)
			continue;
		s->tsg[i].wanted_slice_ns = timeslice_ns ? timeslice_ns : s->machine.timeslice_ns;
		if (!s->machine.commit_required)
			s->tsg[i].slice_ns = s->tsg[i].wanted_slice_ns;
	}
}

/* RESTART_RUNLIST: timeslices come into force and the running slice ends. */
void cgpu_sim_commit(struct cgpu_sim *s)
{
	u32 i;

	for (i = 0; i < s->tsgs; i++)
		s->tsg[i].slice_ns = s->tsg[i].wanted_slice_ns;
	if (s->phase == RUN && s->slice_end_ns > s->now_ns)
		s->slice_end_ns = s->now_ns;
}

