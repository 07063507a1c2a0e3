// SPDX-License-Identifier: MIT OR GPL-2.0-only
/* The scheduler thread asleep, with the readings of the run state between: hundred thousands of
 * them in ten seconds, too many for Python.
 */
#include "sched_step.h"

#include "engine.h"

static void spend(struct cgpu_sim *s, struct cgpu_sim_poll *p, u64 ns)
{
	p->spent_ns += ns;
	cgpu_sim_advance(s, s->now_ns + ns);
}

/* Reading a client ends at the first word that shows work; the one that did so the last
 * time is read first.
 */
static u32 read_client(struct cgpu_sim *s, struct cgpu_sim_poll *p, u32 client)
{
	u32 working = cgpu_sim_working(s, client);

	spend(s, p, p->word_ns * (working ? 1 : p->words * s->state[client].load.processes));
	return working;
}

void cgpu_sim_read(struct cgpu_sim *s, struct cgpu_sim_poll *p, struct cgpu_sched *t,
		   struct cgpu_step *step)
{
	struct cgpu_step_event event = { .kind = CGPU_STEP_EVENT_READ };
	u32 i;

	p->polls++;
	p->read_ns = s->now_ns;
	spend(s, p, p->wake_ns);
	for (i = 0; i < s->clients; i++) {
		u32 bit = 1u << p->slot[i], working;

		if (!t->slot[p->slot[i]].channels)
			continue;
		event.known |= bit;
		working = read_client(s, p, i);
		event.busy |= working ? bit : 0;
		event.tsgs[p->slot[i]] = working < 255 ? working : 255;
	}
	event.now_ns = p->began_ns + s->now_ns;
	p->step(t, NULL, step, &event);
}

void cgpu_sim_sleep(struct cgpu_sim *s, struct cgpu_sim_poll *p, struct cgpu_sched *t,
		    struct cgpu_step *step, u64 to_ns)
{
	while (step->poll_ns) {
		u64 at = p->read_ns + cgpu_sim_around(&p->rng, step->poll_ns, step->poll_ns / 2);

		if (at < s->now_ns)
			at = s->now_ns;
		at += cgpu_sim_around(&p->rng, p->late_ns, p->late_ns);
		if (at >= to_ns)
			break;
		cgpu_sim_advance(s, at);
		cgpu_sim_read(s, p, t, step);
		if (step->kind == CGPU_STEP_PLAN)
			return;
	}
	cgpu_sim_advance(s, to_ns);
}
