// SPDX-License-Identifier: MIT OR GPL-2.0-only
/* The load of the simulated clients: when they submit, how long their kernels are. */
#include "engine.h"

/* splitmix64 */
static u64 random_u64(u64 *rng)
{
	u64 z = (*rng += 0x9e3779b97f4a7c15ull);

	z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9ull;
	z = (z ^ (z >> 27)) * 0x94d049bb133111ebull;
	return z ^ (z >> 31);
}

u64 cgpu_sim_around(u64 *rng, u64 middle_ns, u64 spread_ns)
{
	if (spread_ns > middle_ns)
		spread_ns = middle_ns;
	return spread_ns ? middle_ns - spread_ns + random_u64(rng) % (2 * spread_ns + 1) : middle_ns;
}

u64 cgpu_sim_next_submission(struct cgpu_sim *s, struct tsg *tsg, u64 end_ns)
{
	const struct cgpu_sim_load *load = &s->state[tsg->client].load;
	u64 at = end_ns, in;

	if (end_ns > load->start_ns)
		at += cgpu_sim_around(&s->rng, load->gap_ns, load->gap_spread_ns);
	if (load->period_ns) {
		if (at < tsg->arrival_ns)
			at = tsg->arrival_ns;
		tsg->arrival_ns += load->period_ns;
	}
	if (at < tsg->last_submit_ns)
		at = tsg->last_submit_ns;
	if (at < s->held_until_ns)
		at = s->held_until_ns;
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

static void not_before(u64 *at_ns, u64 from_ns, u64 to_ns)
{
	if (*at_ns > from_ns && *at_ns < to_ns)
		*at_ns = to_ns;
}

void cgpu_sim_hold_clients(struct cgpu_sim *s, u64 to_ns)
{
	u32 i, n;

	s->held_until_ns = to_ns;
	for (i = 0; i < s->tsgs; i++) {
		struct tsg *tsg = &s->tsg[i];

		for (n = 0; n < s->state[tsg->client].load.depth; n++)
			not_before(&tsg->submit_ns[n], s->now_ns, to_ns);
		not_before(&tsg->last_submit_ns, s->now_ns, to_ns);
	}
}

u32 cgpu_sim_working(const struct cgpu_sim *s, u32 client)
{
	u32 i, found = 0;

	for (i = 0; i < s->tsgs; i++) {
		const struct tsg *tsg = &s->tsg[i];

		if (tsg->client == client &&
		    (tsg->started || tsg->submit_ns[tsg->head] <= s->now_ns))
			found++;
	}
	return found;
}

void cgpu_sim_admit(struct cgpu_sim *s, struct tsg *tsg)
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
