// SPDX-License-Identifier: MIT OR GPL-2.0
#include "account.h"

#include "policy.h"
#include "prio.h"
#include "rota.h"

#define OVERRUN_PARTS	10	/* an overrun is a turn later than slice/10 */

static bool is_measured(const struct cgpu_turn *t)
{
	return cgpu_policy_get(t->policy)->limits;
}

/* Who runs and who waits. Pull 0, under native: nobody is measured. */
struct now {
	u32 ran;
	u32 waiting;
	u64 pull;
};

static void look(const struct cgpu_turn *t, struct now *n)
{
	n->ran = t->run_mask & t->opened_mask;
	n->waiting = t->opened_mask & ~t->run_mask &
		     (t->weighted_mask[0] | t->weighted_mask[1]);
	n->pull = is_measured(t) ? cgpu_rota_pull(t, n->ran, true) : 0;
}

/* What @slot, which ran, got of @len_ns. */
static u64 got_ns(const struct cgpu_turn *t, const struct now *n, u32 slot, u64 len_ns)
{
	return n->pull ? cgpu_rota_split(t, n->pull, slot, true, len_ns) : len_ns;
}

/**
 * cgpu_account_until() - charge the time that has passed
 * @t: the turn engine
 * @to_ns: until when; a time already accounted is nothing
 */
void cgpu_account_until(struct cgpu_turn *t, u64 to_ns)
{
	u64 len_ns, got = 0, mine, last = 0;
	struct now n;
	u32 mask;

	if (to_ns <= t->last_ns)
		return;
	len_ns = to_ns - t->last_ns;
	t->last_ns = to_ns;
	look(t, &n);
	for (mask = n.ran; mask; mask &= mask - 1) {
		u32 i = __builtin_ctz(mask);

		/* Most pull the same: no division for each. */
		mine = cgpu_rota_pull(t, 1u << i, true);
		if (mine != last)
			got = got_ns(t, &n, i, len_ns);
		last = mine;
		t->slot[i].gpu_ns += got;
	}
	for (mask = n.waiting; mask; mask &= mask - 1)
		t->slot[__builtin_ctz(mask)].wait_ns += len_ns;
	for (mask = t->unsure_mask; mask; mask &= mask - 1)
		t->slot[__builtin_ctz(mask)].unsure_ns += len_ns;
	cgpu_prio_charge(t, n.ran, len_ns);
	cgpu_rota_charge(t, CGPU_ROTA_MAIN, len_ns);
	cgpu_rota_charge(t, CGPU_ROTA_HIGH, len_ns);
	cgpu_rota_charge(t, CGPU_ROTA_BESIDE, len_ns);
}

/**
 * cgpu_account_switch() - other containers run from here on
 * @t: the turn engine, accounted up to here
 * @run_mask: who may run now
 *
 * A container that stops with more than a tenth of a slice too much, beyond
 * what its turn was to be late by, has had an overrun.
 */
void cgpu_account_switch(struct cgpu_turn *t, u32 run_mask)
{
	u32 stopped = t->run_mask & ~run_mask & t->opened_mask;
	s64 late = -(s64)(t->slice_ns / OVERRUN_PARTS);

	for (; stopped; stopped &= stopped - 1) {
		u32 i = __builtin_ctz(stopped);

		if (t->slot[i].credit_ns + (s64)cgpu_rota_late_ns(t, i) < late)
			t->slot[i].overruns++;
	}
	cgpu_rota_refund_switch(t, run_mask & ~t->run_mask & t->opened_mask);
	t->run_mask = run_mask;
}

/* By levers that are there and not in doubt, and the last call for it was
 * answered well. Native holds nobody to anything.
 */
static bool is_enforced(const struct cgpu_turn *t, u32 slot)
{
	const struct cgpu_policy *policy = cgpu_policy_get(t->policy);
	u32 good = t->levers, need = policy->levers;

	if (t->unmoved[0])
		good &= ~CGPU_LEVER_WINDOW;
	if (t->unmoved[1])
		good &= ~CGPU_LEVER_TIMESLICE;
	if (!t->slot[slot].weight || t->slot[slot].highprio)
		need |= CGPU_LEVER_WINDOW;
	return policy->limits && !(need & ~good) &&
	       !((t->unsure_mask | t->untimed_mask) >> slot & 1);
}

/**
 * cgpu_turn_stat() - figures of one slot
 * @t: the turn engine
 * @slot: which; a slot that is free reads as zeros
 * @now_ns: monotonic
 * @st: filled
 *
 * Context: Caller serialises. Times never go back: while calls are under way
 * they stand still until the calls are acknowledged.
 */
void cgpu_turn_stat(const struct cgpu_turn *t, u32 slot, u64 now_ns,
		    struct cgpu_turn_stat *st)
{
	const struct cgpu_turn_slot *s;
	u64 since_ns = 0;
	struct now n;

	memset(st, 0, sizeof(*st));
	if (slot >= CGPU_SLOTS || !t->slot[slot].cookie)
		return;
	s = &t->slot[slot];
	if (!t->inflight && now_ns > t->last_ns)
		since_ns = now_ns - t->last_ns;
	look(t, &n);
	st->gpu_ns = s->gpu_ns;
	if (n.ran >> slot & 1)
		st->gpu_ns += got_ns(t, &n, slot, since_ns);
	st->wait_ns = s->wait_ns + ((n.waiting >> slot & 1) ? since_ns : 0);
	st->turns = s->turns;
	st->overruns = s->overruns;
	st->unsure_ns = s->unsure_ns + ((t->unsure_mask >> slot & 1) ? since_ns : 0);
	st->failed = s->failed;
	st->resisted = s->resisted;
	st->enforced = is_enforced(t, slot);
	st->running = !cgpu_turn_is_frozen(t, slot);
	st->opened = s->channels > 0;
}
