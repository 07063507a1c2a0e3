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

/* What @slot got of @len_ns. Native: nobody is measured, all of it. */
static u64 got_ns(const struct cgpu_turn *t, u32 ran, u32 slot, u64 len_ns)
{
	if (!(ran >> slot & 1))
		return 0;
	return is_measured(t) ? cgpu_rota_split(t, ran, slot, true, len_ns) : len_ns;
}

static bool waits(const struct cgpu_turn *t, u32 slot)
{
	const struct cgpu_turn_slot *s = &t->slot[slot];

	return s->channels && s->weight && !(t->run_mask >> slot & 1);
}

/**
 * cgpu_account_until() - charge the time that has passed
 * @t: the turn engine
 * @to_ns: until when; a time already accounted is nothing
 */
void cgpu_account_until(struct cgpu_turn *t, u64 to_ns)
{
	u32 ran = t->run_mask & cgpu_rota_opened(t), i;
	u64 len_ns;

	if (to_ns <= t->last_ns)
		return;
	len_ns = to_ns - t->last_ns;
	t->last_ns = to_ns;
	for (i = 0; i < CGPU_SLOTS; i++) {
		t->slot[i].gpu_ns += got_ns(t, ran, i, len_ns);
		if (waits(t, i))
			t->slot[i].wait_ns += len_ns;
	}
	cgpu_prio_charge(t, ran, len_ns);
	for (i = 0; i < CGPU_ROTAS; i++)
		cgpu_rota_charge(t, i, len_ns);
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
	u32 stopped = t->run_mask & ~run_mask & cgpu_rota_opened(t), i;
	s64 late = -(s64)(t->slice_ns / OVERRUN_PARTS);

	for (i = 0; i < CGPU_SLOTS; i++) {
		if ((stopped >> i & 1) &&
		    t->slot[i].credit_ns + (s64)cgpu_rota_late_ns(t, i) < late)
			t->slot[i].overruns++;
	}
	t->run_mask = run_mask;
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
	u32 opened = cgpu_rota_opened(t), ran = t->run_mask & opened;
	const struct cgpu_turn_slot *s;
	u64 since_ns = 0;

	memset(st, 0, sizeof(*st));
	if (slot >= CGPU_SLOTS || !t->slot[slot].cookie)
		return;
	s = &t->slot[slot];
	if (!t->inflight && now_ns > t->last_ns)
		since_ns = now_ns - t->last_ns;
	st->gpu_ns = s->gpu_ns + got_ns(t, ran, slot, since_ns);
	st->wait_ns = s->wait_ns + (waits(t, slot) ? since_ns : 0);
	st->turns = s->turns;
	st->overruns = s->overruns;
	st->running = !cgpu_turn_is_frozen(t, slot);
	st->opened = s->channels > 0;
}
