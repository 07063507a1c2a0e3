// SPDX-License-Identifier: MIT OR GPL-2.0-only
/* Clients whose kernels come in requests: when a request's kernels are launched, when it ends. */
#include "engine.h"

#include <stdlib.h>

static const struct cgpu_sim_requests *of(const struct cgpu_sim *s, const struct tsg *tsg)
{
	return s->state[tsg->client].load.requests;
}

/* Where the sizes of request @nr are. Those of a closed loop are all the same. */
static u32 kind(const struct cgpu_sim_requests *r, u32 nr)
{
	return r->arrivals ? nr : 0;
}

static u32 kernels(const struct cgpu_sim *s, const struct tsg *tsg)
{
	const struct cgpu_sim_requests *r = of(s, tsg);

	return r->count[kind(r, tsg->request)];
}

static u64 launch(struct cgpu_sim *s, struct tsg *tsg, u64 at)
{
	if (at < tsg->last_submit_ns)
		at = tsg->last_submit_ns;
	if (at < s->held_until_ns)
		at = s->held_until_ns;
	tsg->last_submit_ns = at;
	tsg->launched++;
	return at;
}

/* The TSG is free from @from_ns on: launch the first kernels of the request that is next,
 * from the ring's @head on.
 */
static void next_request(struct cgpu_sim *s, struct tsg *tsg, u32 head, u64 from_ns)
{
	const struct cgpu_sim_requests *r = of(s, tsg);
	const struct cgpu_sim_load *load = &s->state[tsg->client].load;
	u64 at = tsg->request_ns;
	u32 i;

	tsg->launched = 0;
	tsg->done = 0;
	if (at >= load->stop_ns || (r->arrivals && tsg->request >= r->arrivals))
		at = CGPU_SIM_NEVER_NS;
	tsg->request_ns = at;
	if (at < from_ns)
		at = from_ns;
	for (i = 0; i < load->depth; i++)
		tsg->submit_ns[(head + i) % load->depth] =
			at < load->stop_ns && i < kernels(s, tsg) ? launch(s, tsg, at) :
								   CGPU_SIM_NEVER_NS;
}

bool cgpu_sim_request_start(struct cgpu_sim *s, struct tsg *tsg)
{
	const struct cgpu_sim_requests *r = of(s, tsg);
	u64 start_ns = s->state[tsg->client].load.start_ns;
	u32 i;

	for (i = 0; i < (r->arrivals ? r->arrivals : 1); i++)
		if (!r->count[i])
			return false;
	tsg->rng = r->seed + tsg->process;
	tsg->request = tsg->process;
	tsg->request_ns = start_ns;
	if (r->arrivals && tsg->request < r->arrivals)
		tsg->request_ns = r->arrival_ns[tsg->request];
	next_request(s, tsg, 0, start_ns);
	return true;
}

u64 cgpu_sim_request_length(struct cgpu_sim *s, struct tsg *tsg)
{
	const struct cgpu_sim_requests *r = of(s, tsg);
	u64 ns = r->kernel_ns[r->first[kind(r, tsg->request)] + tsg->done];

	return cgpu_sim_around(&tsg->rng, ns, s->state[tsg->client].load.spread_ns);
}

static void note(struct cgpu_sim *s, u32 client, u64 arrival_ns, bool open)
{
	struct state *st = &s->state[client];

	if (st->requests == st->room) {
		u32 room = st->room ? 2 * st->room : 256;
		struct cgpu_sim_request *more = realloc(st->request, room * sizeof(*more));

		if (!more)
			return;
		st->request = more;
		st->room = room;
	}
	st->request[st->requests++] =
		(struct cgpu_sim_request){ arrival_ns, s->now_ns, open };
}

void cgpu_sim_request_kernel_done(struct cgpu_sim *s, struct tsg *tsg)
{
	const struct cgpu_sim_requests *r = of(s, tsg);
	const struct cgpu_sim_load *load = &s->state[tsg->client].load;

	tsg->done++;
	tsg->submit_ns[tsg->head] = CGPU_SIM_NEVER_NS;
	if (tsg->launched < kernels(s, tsg)) {
		tsg->submit_ns[tsg->head] =
			launch(s, tsg, s->now_ns + cgpu_sim_around(&tsg->rng, load->gap_ns,
								   load->gap_spread_ns));
		return;
	}
	if (tsg->done < kernels(s, tsg))
		return;
	note(s, tsg->client, tsg->request_ns, false);
	tsg->request += s->state[tsg->client].load.processes;
	if (!r->arrivals) {
		u64 after_ns = s->now_ns + cgpu_sim_around(&tsg->rng, r->think_ns,
							   r->think_spread_ns);

		tsg->request_ns += r->cpu_ns;
		if (tsg->request_ns < after_ns)
			tsg->request_ns = after_ns;
	} else if (tsg->request < r->arrivals)
		tsg->request_ns = r->arrival_ns[tsg->request];
	next_request(s, tsg, (tsg->head + 1) % load->depth, s->now_ns);
}

/* How long the kernels of request @nr take without any other. */
static u64 length_ns(const struct cgpu_sim_requests *r, u32 nr)
{
	u64 sum = 0;
	u32 i;

	for (i = 0; i < r->count[kind(r, nr)]; i++)
		sum += r->kernel_ns[r->first[kind(r, nr)] + i];
	return sum;
}

void cgpu_sim_request_close(struct cgpu_sim *s, const struct tsg *tsg)
{
	const struct cgpu_sim_requests *r = of(s, tsg);
	const struct cgpu_sim_load *load = &s->state[tsg->client].load;
	u64 at = tsg->request_ns;
	u32 nr = tsg->request;

	while (at < s->now_ns && at < load->stop_ns) {
		if (s->now_ns - at >= length_ns(r, nr))
			note(s, tsg->client, at, true);
		nr += load->processes;
		if (nr >= r->arrivals)
			return;
		at = r->arrival_ns[nr];
	}
}

void cgpu_sim_request_drop(struct cgpu_sim *s, struct tsg *tsg)
{
	if (!of(s, tsg))
		return;
	cgpu_sim_request_close(s, tsg);
	tsg->request_ns = CGPU_SIM_NEVER_NS;
	tsg->request = of(s, tsg)->arrivals;
}

u32 cgpu_sim_requests_done(const struct cgpu_sim *s, u32 client,
			   const struct cgpu_sim_request **out)
{
	if (client >= s->clients)
		return 0;
	*out = s->state[client].request;
	return s->state[client].requests;
}
