// SPDX-License-Identifier: MIT OR GPL-2.0-only
/* Making a simulated engine and its clients, and reading their figures. */
#include "engine.h"

#include <stdlib.h>

#define DEPTH_MAX	4096u
#define PROCESSES_MAX	256u

struct cgpu_sim *cgpu_sim_new(const struct cgpu_sim_machine *machine, u64 length_ns)
{
	struct cgpu_sim *s = calloc(1, sizeof(*s));

	if (!s)
		return NULL;
	s->machine = *machine;
	s->rng = machine->seed;
	s->cur = CGPU_SIM_NOBODY;
	s->resident = CGPU_SIM_NOBODY;
	s->stopped_client = CGPU_SIM_NOBODY;
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
	for (i = 0; i < CGPU_SIM_CLIENTS; i++) {
		free(s->state[i].bucket);
		free(s->state[i].request);
	}
	free(s->trace.stretch);
	free(s->tsg);
	free(s->run);
	free(s);
}

const u64 *cgpu_sim_clock(const struct cgpu_sim *s)
{
	return &s->now_ns;
}

u32 cgpu_sim_on_engine(const struct cgpu_sim *s)
{
	return s->cur == CGPU_SIM_NOBODY ? CGPU_SIM_NOBODY : s->tsg[s->cur].client;
}

static bool add_tsg(struct cgpu_sim *s, u32 client, u32 process)
{
	const struct cgpu_sim_load *load = &s->state[client].load;
	struct tsg *tsg = realloc(s->tsg, (s->tsgs + 1) * sizeof(*tsg));
	u32 *run, i;

	if (!tsg)
		return false;
	s->tsg = tsg;
	run = realloc(s->run, (s->tsgs + 1) * sizeof(*run));
	if (!run)
		return false;
	s->run = run;
	tsg += s->tsgs;
	memset(tsg, 0, sizeof(*tsg));
	tsg->client = client;
	tsg->process = process;
	tsg->slice_ns = s->machine.timeslice_ns;
	tsg->wanted_slice_ns = s->machine.timeslice_ns;
	tsg->arrival_ns = load->start_ns;
	tsg->submit_ns = calloc(load->depth, sizeof(u64));
	if (!tsg->submit_ns)
		return false;
	s->tsgs++;
	if (load->requests)
		return cgpu_sim_request_start(s, tsg);
	for (i = 0; i < load->depth; i++)
		tsg->submit_ns[i] = cgpu_sim_next_submission(s, tsg, load->start_ns);
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
		if (!add_tsg(s, client, i))
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
	s->idle_loss_ns = 0;
	s->switching_ns = 0;
	for (i = 0; i < s->clients; i++) {
		struct cgpu_sim_client *c = &s->client[i];

		c->busy_ns = c->held_ns = c->done_ns = c->works = c->switches = 0;
		memset(&c->wait, 0, sizeof(c->wait));
		memset(&c->wake, 0, sizeof(c->wake));
		memset(&c->wake_frozen, 0, sizeof(c->wake_frozen));
		memset(&c->reclaim, 0, sizeof(c->reclaim));
		s->state[i].requests = 0;
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
		if (s->state[tsg->client].load.requests)
			cgpu_sim_request_close(s, tsg);
	}
}

u64 cgpu_sim_idle_loss_ns(const struct cgpu_sim *s)
{
	return s->idle_loss_ns;
}

u64 cgpu_sim_switching_ns(const struct cgpu_sim *s)
{
	return s->switching_ns;
}

void cgpu_sim_buckets(const struct cgpu_sim *s, u32 client, u64 *out, u32 n)
{
	u32 i;

	for (i = 0; i < n; i++)
		out[i] = client < s->clients && i < s->buckets ? s->state[client].bucket[i] : 0;
}

void cgpu_sim_trace(struct cgpu_sim *s, u64 from_ns, u64 to_ns, u64 merge_ns, u32 most)
{
	s->trace.from_ns = from_ns;
	s->trace.to_ns = to_ns;
	s->trace.merge_ns = merge_ns;
	s->trace.most = most;
	s->trace.n = 0;
}

u32 cgpu_sim_traced(const struct cgpu_sim *s, const struct cgpu_sim_stretch **out)
{
	*out = s->trace.stretch;
	return s->trace.n;
}
