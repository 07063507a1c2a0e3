// SPDX-License-Identifier: MIT OR GPL-2.0-only
/* Slots that wait for their next grant, for what their kernels took. */
#include "sched_debtors.h"

#include "sched_debt.h"
#include "sched_recent.h"
#include "sched_resist.h"
#include "sched_round.h"

#define AGAIN_NS	4000000ull	/* recent use decays in steps of this */
#define USUAL_KERNELS	3u	/* the same on average: half of one delays it */
#define LONG_KERNELS	4u	/* so many of its kernels: one more delays a slot that wakes by a fifth at most */

/* A round of all others, those that sleep as well. */
static u64 round_of_others_ns(const struct cgpu_sched *t, const struct cgpu_rr *r, u32 debtors)
{
	u64 round_ns = 0;
	u32 mask;

	for (mask = (r->members | r->asleep) & ~debtors; mask; mask &= mask - 1)
		round_ns += cgpu_round_grant_ns(t, __builtin_ctz(mask));
	return round_ns;
}

/* As if all others had their turns since its last grant. A group that begins anew has a new clock. */
static u64 wait_ns(const struct cgpu_sched *t, u32 nr, u32 slot, u64 round_ns)
{
	const struct cgpu_rr *r = &t->rr[nr];
	u64 age_ns = r->clock_ns, at_ns = t->slot[slot].granted_ns[nr == CGPU_RR_BACKGROUND];

	if (at_ns <= r->clock_ns)
		age_ns -= at_ns;
	return age_ns < round_ns ? round_ns - age_ns : 0;
}

static u32 not_due(const struct cgpu_sched *t, u32 nr, u32 mask, u32 debtors)
{
	u64 round_ns = mask ? round_of_others_ns(t, &t->rr[nr], debtors) : 0;
	u32 out = 0;

	for (; mask; mask &= mask - 1)
		if (wait_ns(t, nr, __builtin_ctz(mask), round_ns))
			out |= mask & -mask;
	return out;
}

/* All others sleep, and have for so long, or usually do, that a kernel which keeps the GPU from one that wakes costs it
 * little.
 */
static bool sleep_for_long(const struct cgpu_sched *t, const struct cgpu_rr *r, u32 slot)
{
	u64 long_ns = LONG_KERNELS * t->slot[slot].kernel_ns, usual_ns = USUAL_KERNELS * t->slot[slot].kernel_ns;
	u32 mask;

	if (!r->asleep || (r->members & ~(1u << slot)))
		return false;
	for (mask = r->asleep; mask; mask &= mask - 1)
		if (t->last_ns - t->slot[__builtin_ctz(mask)].idle_since_ns < long_ns &&
		    t->slot[__builtin_ctz(mask)].sleep_us * 1000ull < usual_ns)
			return false;
	return true;
}

/* Those whose kernels delay their preemption, unless others sleep for long. */
static u32 slow(const struct cgpu_sched *t, const struct cgpu_rr *r)
{
	u32 mask, out = 0;

	for (mask = r->members; mask; mask &= mask - 1) {
		u32 i = __builtin_ctz(mask);

		if (cgpu_resist_is_slow(t, &t->slot[i]) && !sleep_for_long(t, r, i))
			out |= 1u << i;
	}
	return out;
}

/* Of those the ones that had more than their part, while others sleep. */
static u32 over(const struct cgpu_sched *t, const struct cgpu_rr *r, u32 mask)
{
	return mask && r->asleep ? cgpu_recent_over(t, CGPU_RECENT_LONG, mask) : 0;
}

/**
 * cgpu_debtors_of() - members that are granted nothing at their place in the round
 * @t: the scheduler, accounted up to now
 * @nr: enum cgpu_rr_nr
 *
 * Those whose kernels delay their preemption, and whose debts leave no turn, while others sleep.
 * What sleepers leave costs a slot no time: in rounds without them it would pay its debt at once,
 * and its next kernel would keep the GPU from those that wake. So would one that has credit: while
 * others sleep it is granted nothing beyond its part either. Of one that was granted meanwhile
 * the next place in the round comes too soon.
 */
u32 cgpu_debtors_of(struct cgpu_sched *t, u32 nr)
{
	struct cgpu_rr *r = &t->rr[nr];
	u32 mask = slow(t, r), out = over(t, r, mask);

	for (; mask; mask &= mask - 1)
		if (*cgpu_debt_deficit(t, nr, __builtin_ctz(mask)) < (s64)(t->slice_ns / CGPU_TURN_MIN_PARTS))
			out |= mask & -mask;
	if (r->asleep)
		return out;
	out = not_due(t, nr, out & r->ahead, out);
	return out == r->members ? 0 : out;
}

/**
 * cgpu_debtors_wait_ns() - until the first of some debtors is granted again
 * @t: the scheduler, accounted up to now
 * @nr: enum cgpu_rr_nr
 * @debtors: cgpu_debtors_of() it, not 0
 */
u64 cgpu_debtors_wait_ns(const struct cgpu_sched *t, u32 nr, u32 debtors)
{
	u64 round_ns = round_of_others_ns(t, &t->rr[nr], debtors), least = CGPU_NEVER_NS, ns;
	u32 mask = debtors & ~over(t, &t->rr[nr], debtors);

	if (t->rr[nr].asleep)
		least = AGAIN_NS;
	for (; mask; mask &= mask - 1) {
		ns = wait_ns(t, nr, __builtin_ctz(mask), round_ns);
		least = ns < least ? ns : least;
	}
	return least;
}

/**
 * cgpu_debtors_due() - which of some debtors are granted now
 * @t: the scheduler, accounted up to now
 * @nr: enum cgpu_rr_nr
 * @debtors: cgpu_debtors_of() it
 *
 * Wherever the round is: at its place in it one would be passed over until its time came just then.
 */
u32 cgpu_debtors_due(const struct cgpu_sched *t, u32 nr, u32 debtors)
{
	debtors &= ~over(t, &t->rr[nr], debtors);
	return debtors & ~not_due(t, nr, debtors, debtors);
}

/**
 * cgpu_debtors_note() - a slot was granted its part of a round
 * @t: the scheduler
 * @nr: enum cgpu_rr_nr
 * @slot: which
 * @due: as one of cgpu_debtors_due(), not at its place in the round
 */
void cgpu_debtors_note(struct cgpu_sched *t, u32 nr, u32 slot, bool due)
{
	struct cgpu_rr *r = &t->rr[nr];

	t->slot[slot].granted_ns[nr == CGPU_RR_BACKGROUND] = r->clock_ns;
	r->ahead = (r->ahead & ~(1u << slot)) | (u32)due << slot;
}
