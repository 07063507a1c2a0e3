// SPDX-License-Identifier: MIT OR GPL-2.0
#include "timeline.h"

#include <stdlib.h>

#include "figures.h"

#define DEPTH_MAX	4096u
#define PROCESSES_MAX	256u

enum phase { IDLE, SWITCH, RUN };

struct tsg {
	u32 client;
	u32 started;		/* a kernel is under way, on the engine or preempted */
	u64 remaining_ns;
	u64 length_ns;
	u64 ready_ns;		/* when it could have begun */
	u64 slice_ns, wanted_slice_ns;
	u64 arrival_ns;		/* next submission of a periodic load */
	u64 last_submit_ns;
	u64 last_end_ns;
	u64 gate_ns;		/* the gate was shut: looks again then */
	u64 *submit_ns;		/* ring of @depth, nondecreasing from @head on */
	u32 head, admitted;
};

struct state {
	struct cgpu_sim_load load;
	u64 enabled_ns;		/* since when */
	u64 last_end_ns;
	u64 left_ns;		/* when it ran out of work, until somebody else runs */
	u64 *bucket;
};

struct cgpu_sim {
	struct cgpu_sim_machine machine;
	u64 now_ns, rng;
	enum phase phase;
	u64 phase_end_ns, slice_end_ns;
	struct tsg *tsg;
	u32 tsgs, clients;
	u32 cur, resident, last;	/* TSGs; last: round robin goes on behind it */
	u32 own_switch;		/* the switch under way is between TSGs of one client */
	u32 buckets;
	u64 mark_ns;
	struct cgpu_sim_trace_log trace;
	struct cgpu_sim_client client[CGPU_SIM_CLIENTS];
	struct state state[CGPU_SIM_CLIENTS];
};

/* splitmix64 */
static u64 random_u64(struct cgpu_sim *s)
{
	u64 z = (s->rng += 0x9e3779b97f4a7c15ull);

	z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9ull;
	z = (z ^ (z >> 27)) * 0x94d049bb133111ebull;
	return z ^ (z >> 31);
}

static u64 around(struct cgpu_sim *s, u64 middle_ns, u64 spread_ns)
{
	if (spread_ns > middle_ns)
		spread_ns = middle_ns;
	return spread_ns ? middle_ns - spread_ns + random_u64(s) % (2 * spread_ns + 1) : middle_ns;
}

/* When the kernel that follows one that ended at @end_ns is submitted. */
static u64 next_submission(struct cgpu_sim *s, struct tsg *tsg, u64 end_ns)
{
	const struct cgpu_sim_load *load = &s->state[tsg->client].load;
	u64 at = end_ns, in;

	if (end_ns > load->start_ns)
		at += around(s, load->gap_ns, load->gap_spread_ns);
	if (load->period_ns) {
		if (at < tsg->arrival_ns)
			at = tsg->arrival_ns;
		tsg->arrival_ns += load->period_ns;
	}
	if (at < tsg->last_submit_ns)
		at = tsg->last_submit_ns;
	if (load->off_ns && at < load->stop_ns) {
		in = (at - load->start_ns) % (load->on_ns + load->off_ns);
		if (in >= load->on_ns)
			at += load->on_ns + load->off_ns - in;
	}
	if (at >= load->stop_ns)
		at = CGPU_SIM_NEVER_NS;
	tsg->last_submit_ns = at;
	return at;
}

/* Let what has been submitted by now into the queue, as far as the gate does. */
static void admit(struct cgpu_sim *s, struct tsg *tsg)
{
	struct cgpu_sim_client *c = &s->client[tsg->client];
	u32 depth = s->state[tsg->client].load.depth;

	while (tsg->admitted < depth) {
		if (tsg->submit_ns[(tsg->head + tsg->admitted) % depth] > s->now_ns)
			return;
		if (c->gate_poll_ns) {
			if (s->now_ns < tsg->gate_ns)
				return;
			if (c->tokens < 0) {
				tsg->gate_ns = s->now_ns + c->gate_poll_ns;
				return;
			}
			c->tokens -= (s64)c->token_cost;
		}
		tsg->admitted++;
	}
}

static bool runnable(struct cgpu_sim *s, u32 i)
{
	struct tsg *tsg = &s->tsg[i];

	if (!s->client[tsg->client].enabled)
		return false;
	if (!tsg->started)
		admit(s, tsg);
	return tsg->started || tsg->admitted;
}

static u32 next_runnable(struct cgpu_sim *s, bool others_only)
{
	u32 n, i;

	for (n = 1; n < s->tsgs + !others_only; n++) {
		i = (s->last + n) % s->tsgs;
		if (runnable(s, i))
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
		if (s->client[tsg->client].enabled && one < at)
			at = one;
	}
	return at;
}

static void begin(struct cgpu_sim *s, u32 i)
{
	s->cur = i;
	s->last = i;
	if (s->resident != i) {
		s->own_switch = s->resident != CGPU_SIM_NOBODY &&
				s->tsg[s->resident].client == s->tsg[i].client;
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

/* @tsg begins a kernel: was that a waking? */
static void note_begin(struct cgpu_sim *s, struct tsg *tsg, u64 submit_ns)
{
	struct state *st = &s->state[tsg->client];
	struct cgpu_sim_client *c = &s->client[tsg->client];

	if (submit_ns >= st->last_end_ns + CGPU_SIM_WAKE_NS)
		cgpu_sim_hist_add(st->enabled_ns > submit_ns ? &c->wake_frozen : &c->wake,
				  s->now_ns - submit_ns);
	st->left_ns = 0;
}

/* @tsg has been switched to: has it waited for somebody who left? */
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

static bool fetch(struct cgpu_sim *s, struct tsg *tsg)
{
	const struct cgpu_sim_load *load = &s->state[tsg->client].load;
	u64 submit_ns;

	if (!runnable(s, s->cur))
		return false;
	if (tsg->started)
		return true;
	submit_ns = tsg->submit_ns[tsg->head];
	tsg->started = 1;
	tsg->length_ns = around(s, load->kernel_ns, load->spread_ns);
	if (!tsg->length_ns)
		tsg->length_ns = 1;
	tsg->remaining_ns = tsg->length_ns;
	tsg->ready_ns = submit_ns > tsg->last_end_ns ? submit_ns : tsg->last_end_ns;
	note_begin(s, tsg, submit_ns);
	return true;
}

static void complete(struct cgpu_sim *s, struct tsg *tsg)
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
	tsg->submit_ns[tsg->head] = next_submission(s, tsg, s->now_ns);
	tsg->head = (tsg->head + 1) % st->load.depth;
	next = tsg->submit_ns[tsg->head];
	if (next > s->now_ns + CGPU_SIM_WAKE_NS)
		st->left_ns = s->now_ns;
}

/* When what runs has to give way: later than the slice's end if it resists. */
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
	} else if (s->client[s->tsg[s->cur].client].enabled) {
		s->slice_end_ns = s->now_ns + s->tsg[s->cur].slice_ns;
	} else {
		s->resident = CGPU_SIM_NOBODY;
		go_idle(s);
	}
}

/* @client has the engine until @to_ns. */
static void hold(struct cgpu_sim *s, u32 client, u64 to_ns)
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
	hold(s, tsg->client, to_ns);
}

static void wait_for_switch(struct cgpu_sim *s, u64 to_ns)
{
	if (s->own_switch)
		hold(s, s->tsg[s->cur].client, to_ns);
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
	if (!tsg->started && !fetch(s, tsg)) {
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
		complete(s, tsg);
	else
		slice_over(s);
	return true;
}

static bool step(struct cgpu_sim *s, u64 to_ns)
{
	u32 next;
	u64 at;

	switch (s->phase) {
	case IDLE:
		next = s->tsgs ? next_runnable(s, false) : CGPU_SIM_NOBODY;
		if (next != CGPU_SIM_NOBODY) {
			begin(s, next);
			return true;
		}
		at = next_arrival(s);
		s->now_ns = at < to_ns ? at : to_ns;
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
	while (on_engine(s, client) && s->now_ns < to_ns && step(s, to_ns))
		;
}

/* It may not go on: off the engine at once, unless what it runs resists. */
static void stop(struct cgpu_sim *s, u32 client)
{
	if (!on_engine(s, client))
		return;
	if (s->phase == RUN) {
		if (s->slice_end_ns > s->now_ns)
			s->slice_end_ns = s->now_ns;
		if (s->tsg[s->cur].started && give_way_ns(s) > s->now_ns)
			return;
	}
	s->resident = CGPU_SIM_NOBODY;
	go_idle(s);
}

void cgpu_sim_enable(struct cgpu_sim *s, u32 client, u32 enabled)
{
	if (client >= s->clients || s->client[client].enabled == !!enabled)
		return;
	s->client[client].enabled = !!enabled;
	if (enabled)
		s->state[client].enabled_ns = s->now_ns;
	else
		stop(s, client);
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
		for (n = 0; n < s->state[client].load.depth; n++)
			tsg->submit_ns[n] = CGPU_SIM_NEVER_NS;
	}
	if (on_engine(s, client)) {
		s->resident = CGPU_SIM_NOBODY;
		go_idle(s);
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

struct cgpu_sim *cgpu_sim_new(const struct cgpu_sim_machine *machine, u64 length_ns)
{
	struct cgpu_sim *s = calloc(1, sizeof(*s));

	if (!s)
		return NULL;
	s->machine = *machine;
	s->rng = machine->seed;
	s->cur = CGPU_SIM_NOBODY;
	s->resident = CGPU_SIM_NOBODY;
	s->buckets = (u32)(length_ns / CGPU_SIM_BUCKET_NS) + 1;
	return s;
}

void cgpu_sim_free(struct cgpu_sim *s)
{
	u32 i;

	if (!s)
		return;
	for (i = 0; i < s->tsgs; i++)
		free(s->tsg[i].submit_ns);
	for (i = 0; i < CGPU_SIM_CLIENTS; i++)
		free(s->state[i].bucket);
	free(s->trace.stretch);
	free(s->tsg);
	free(s);
}

u64 cgpu_sim_now(const struct cgpu_sim *s)
{
	return s->now_ns;
}

static bool add_tsg(struct cgpu_sim *s, u32 client)
{
	const struct cgpu_sim_load *load = &s->state[client].load;
	struct tsg *tsg = realloc(s->tsg, (s->tsgs + 1) * sizeof(*tsg));
	u32 i;

	if (!tsg)
		return false;
	s->tsg = tsg;
	tsg += s->tsgs;
	memset(tsg, 0, sizeof(*tsg));
	tsg->client = client;
	tsg->slice_ns = s->machine.timeslice_ns;
	tsg->wanted_slice_ns = s->machine.timeslice_ns;
	tsg->arrival_ns = load->start_ns;
	tsg->submit_ns = calloc(load->depth, sizeof(u64));
	if (!tsg->submit_ns)
		return false;
	s->tsgs++;
	for (i = 0; i < load->depth; i++)
		tsg->submit_ns[i] = next_submission(s, tsg, load->start_ns);
	return true;
}

u32 cgpu_sim_add(struct cgpu_sim *s, const struct cgpu_sim_load *load)
{
	u32 client = s->clients, i;

	if (client >= CGPU_SIM_CLIENTS || !load->kernel_ns || !load->depth ||
	    load->depth > DEPTH_MAX || !load->processes || load->processes > PROCESSES_MAX ||
	    (load->off_ns && !load->on_ns))
		return CGPU_SIM_NOBODY;
	s->state[client].load = *load;
	s->state[client].bucket = calloc(s->buckets, sizeof(u64));
	if (!s->state[client].bucket)
		return CGPU_SIM_NOBODY;
	s->clients++;
	s->client[client].enabled = 1;
	for (i = 0; i < load->processes; i++) {
		if (!add_tsg(s, client))
			return CGPU_SIM_NOBODY;
	}
	return client;
}

struct cgpu_sim_client *cgpu_sim_client(struct cgpu_sim *s, u32 client)
{
	return client < s->clients ? &s->client[client] : NULL;
}

void cgpu_sim_mark(struct cgpu_sim *s)
{
	u32 i;

	s->mark_ns = s->now_ns;
	for (i = 0; i < s->clients; i++) {
		struct cgpu_sim_client *c = &s->client[i];

		c->busy_ns = c->held_ns = c->done_ns = c->works = c->switches = 0;
		memset(&c->wait, 0, sizeof(c->wait));
		memset(&c->wake, 0, sizeof(c->wake));
		memset(&c->wake_frozen, 0, sizeof(c->wake_frozen));
		memset(&c->reclaim, 0, sizeof(c->reclaim));
		memset(s->state[i].bucket, 0, s->buckets * sizeof(u64));
	}
}

void cgpu_sim_close(struct cgpu_sim *s)
{
	u32 i;

	for (i = 0; i < s->tsgs; i++) {
		struct tsg *tsg = &s->tsg[i];
		u64 submit_ns = tsg->submit_ns[tsg->head], since, ran = 0;

		since = submit_ns > tsg->last_end_ns ? submit_ns : tsg->last_end_ns;
		if (tsg->started)
			ran = tsg->length_ns - tsg->remaining_ns;
		if (since != CGPU_SIM_NEVER_NS && since + ran < s->now_ns)
			cgpu_sim_hist_add(&s->client[tsg->client].wait, s->now_ns - since - ran);
	}
}

void cgpu_sim_buckets(const struct cgpu_sim *s, u32 client, u64 *out, u32 n)
{
	u32 i;

	for (i = 0; i < n; i++)
		out[i] = client < s->clients && i < s->buckets ? s->state[client].bucket[i] : 0;
}

void cgpu_sim_trace(struct cgpu_sim *s, u64 from_ns, u64 to_ns, u64 merge_ns)
{
	s->trace.from_ns = from_ns;
	s->trace.to_ns = to_ns;
	s->trace.merge_ns = merge_ns;
	s->trace.n = 0;
}

u32 cgpu_sim_traced(const struct cgpu_sim *s, const struct cgpu_sim_stretch **out)
{
	*out = s->trace.stretch;
	return s->trace.n;
}
