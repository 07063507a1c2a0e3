// SPDX-License-Identifier: MIT OR GPL-2.0
/*
 * Slots that sleep now and then run beside the turns of their kind, and cut other turns short.
 *
 * With requests of a few milliseconds on several slots, a freeze and a thaw for each would cost
 * more than turns are worth: the GPU waits for the thaw after each request, and one call in
 * thirty takes as long as a request. The hardware divides the GPU among such slots, and each is
 * charged what it pulls. A slot that works on, or has had more than it is due, waits for its turn.
 */
#include "sched_rr.h"

#include "sched_debt.h"
#include "sched_recent.h"

#define MOST_SLICES	4	/* so much more than it is due, and a slot waits for its turn */
#define STEADY_TURNS	2	/* used up without sleeping: a slot that always has work */
#define MOST_TSGS	2	/* of more, the hardware's round would be theirs alone */

/* It has slept before, and not worked for long since. */
static bool is_brief(const struct cgpu_sched_entity *s)
{
	return s->woken_ns && s->full_turns < CGPU_APART_TURNS && s->tsgs <= MOST_TSGS;
}

/**
 * cgpu_rr_beside() - slots that run beside the turn under way
 * @t: the scheduler, accounted up to now
 * @nr: enum cgpu_rr_nr, with an owner
 *
 * Only slots whose run state is known: the others never sleep.
 */
u32 cgpu_rr_beside(struct cgpu_sched *t, u32 nr)
{
	const struct cgpu_rr *r = &t->rr[nr];
	u32 mask = r->members & t->known_mask, over, out = 0;

	if (!(mask >> r->curr & 1) || !is_brief(&t->slot[r->curr]))
		return 0;
	over = cgpu_recent_over(t, mask);
	for (; mask; mask &= mask - 1) {
		u32 i = __builtin_ctz(mask);

		if (i != r->curr && cgpu_recent_yields(t, over, i, r->curr))
			continue;
		if (is_brief(&t->slot[i]) &&
		    *cgpu_debt_deficit(t, nr, i) > -(s64)(MOST_SLICES * t->slice_ns))
			out |= 1u << i;
	}
	return out;
}

static bool yields_to_any(const struct cgpu_sched *t, const struct cgpu_rr *r)
{
	u32 over = cgpu_recent_over(t, r->members), mask;

	for (mask = r->woken; mask; mask &= mask - 1)
		if (cgpu_recent_yields(t, over, r->curr, __builtin_ctz(mask)))
			return true;
	return false;
}

/**
 * cgpu_rr_gives_way() - does the turn under way end for slots that woke
 * @t: the scheduler, accounted up to now
 * @r: one of its round-robin groups, with an owner and with slots that woke
 * @goes_on: after them the turn goes on
 *
 * It does if its slot had more than its part lately, or if it has worked through its last turns.
 * A slot that had less than its part keeps its turn. So does one that sleeps now and then itself:
 * among slots of that kind the first to wake is the first to run.
 */
bool cgpu_rr_gives_way(const struct cgpu_sched *t, const struct cgpu_rr *r, bool *goes_on)
{
	*goes_on = !yields_to_any(t, r);
	if (!*goes_on)
		return true;
	return !r->waking && t->slot[r->curr].full_turns >= STEADY_TURNS &&
	       !cgpu_recent_under(t, 1u << r->curr);
}
