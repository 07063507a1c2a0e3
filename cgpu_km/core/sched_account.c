// SPDX-License-Identifier: MIT OR GPL-2.0-only
/* Charges the time since the last update to the slots that ran. */
#include "sched_account.h"

#include "policy.h"
#include "sched_ceiling.h"
#include "sched_hwshare.h"
#include "sched_on.h"
#include "sched_prio.h"
#include "sched_recent.h"
#include "sched_rr.h"

#define OVERRUN_PARTS	10	/* an overrun is a turn later than slice/10 */
#define OVERLAP_SLICES_MAX	16	/* timeslices of an overlap that are accounted one by one */

static bool is_measured(const struct cgpu_sched *t)
{
	return cgpu_policy_get(t->policy)->limits;
}

/**
 * cgpu_account_snapshot() - which containers run and which wait
 * @t: the scheduler
 * @n: filled
 */
void cgpu_account_snapshot(const struct cgpu_sched *t, struct cgpu_account_now *n)
{
	n->awake = t->run_mask & t->opened_mask & ~t->asleep_mask;
	n->ran = cgpu_hw_with_work(t, n->awake, t->busy_mask);
	n->waiting = t->opened_mask & ~t->run_mask & ~t->asleep_mask &
		     (t->weighted_mask[0] | t->weighted_mask[1]);
	/* The driver sleeps: nothing runs, and nothing waits for a turn. */
	if (t->paused)
		n->awake = n->ran = n->waiting = 0;
}

/**
 * cgpu_account_got_ns() - the part of a time that one container had
 * @t: the scheduler
 * @n: from cgpu_account_snapshot()
 * @slot: in @n->ran
 * @len_ns: the time
 */
u64 cgpu_account_got_ns(const struct cgpu_sched *t, const struct cgpu_account_now *n, u32 slot,
			u64 len_ns)
{
	return is_measured(t) ? cgpu_hw_share(t, cgpu_hw_weight(t, n->ran, true), slot, true, len_ns) : len_ns;
}

/* @awake ran, of which those of @has_work had work. */
static void charge(struct cgpu_sched *t, u32 awake, u32 has_work, u64 len_ns)
{
	u32 ran = cgpu_on_of(t, cgpu_hw_with_work(t, awake, has_work)), mask;
	u64 all = is_measured(t) ? cgpu_hw_weight(t, ran, true) : 0, got = 0, mine, last = 0;

	for (mask = ran; mask; mask &= mask - 1) {
		u32 i = __builtin_ctz(mask);

		/* Most pull the same: no division for each. */
		mine = cgpu_hw_weight(t, 1u << i, true);
		if (mine != last)
			got = all ? cgpu_hw_share(t, all, i, true, len_ns) : len_ns;
		last = mine;
		t->slot[i].gpu_ns += got;
		cgpu_recent_note(t, i, got);
		cgpu_ceiling_charge(t, i, ran, got, len_ns);
		t->slot[i].open_ns += cgpu_on_is_open(t, i) ? got : 0;
	}
	cgpu_rr_charge(t, CGPU_RR_NORMAL, has_work, len_ns);
	cgpu_rr_charge(t, CGPU_RR_PRIO, has_work, len_ns);
	cgpu_rr_charge(t, CGPU_RR_BACKGROUND, has_work, len_ns);
}

/**
 * cgpu_account_reading() - charge the time up to a reading of the run state
 * @t: the scheduler, with what was read
 * @was_busy: busy_mask before it
 * @to_ns: when it was read; a time already accounted is nothing
 */
void cgpu_account_reading(struct cgpu_sched *t, u32 was_busy, u64 to_ns)
{
	u64 len_ns, from_ns, until_ns;
	struct cgpu_account_now n;
	bool wait;
	u32 mask;

	if (to_ns <= t->last_ns)
		return;
	len_ns = to_ns - t->last_ns;
	from_ns = t->last_ns;
	t->last_ns = to_ns;
	cgpu_account_snapshot(t, &n);
	until_ns = cgpu_on_until_ns(t, was_busy, from_ns);
	wait = n.waiting & ~t->capped_mask;
	cgpu_ceiling_charge_before(t, was_busy, n.ran, wait, len_ns);
	if (until_ns > from_ns)
		charge(t, n.awake, was_busy, until_ns - from_ns);
	cgpu_on_find(t, was_busy, until_ns);
	if (until_ns < to_ns)
		charge(t, n.awake, t->busy_mask, to_ns - until_ns);
	cgpu_ceiling_charge_after(t, was_busy, n.ran, wait, len_ns);
	/* Else each slot would have had less than its part. */
	if (!t->paused)
		cgpu_recent_pass(t, len_ns);
	cgpu_ceiling_grow(t, len_ns);
	/* One that sleeps, or closed the GPU, does not wait any more. */
	for (mask = t->wait_mask & ~n.waiting; mask; mask &= mask - 1)
		t->slot[__builtin_ctz(mask)].wait.so_far_ns = 0;
	t->wait_mask = n.waiting;
	for (mask = n.waiting; mask; mask &= mask - 1) {
		u32 i = __builtin_ctz(mask);
		struct cgpu_sched_entity *s = &t->slot[i];

		s->wait_ns += len_ns;
		if (t->capped_mask >> i & 1)
			s->throttled_ns += len_ns;
		s->wait.so_far_ns += len_ns;
	}
	for (mask = t->freeze_unknown_mask; mask; mask &= mask - 1)
		t->slot[__builtin_ctz(mask)].unsure_ns += len_ns;
	if (!t->paused)
		cgpu_prio_charge(t, n.ran, len_ns);
}

/**
 * cgpu_sched_update() - charge the time that has passed
 * @t: the scheduler
 * @to_ns: until when; a time already accounted is nothing
 */
void cgpu_sched_update(struct cgpu_sched *t, u64 to_ns)
{
	cgpu_account_reading(t, t->busy_mask, to_ns);
}

/**
 * cgpu_sched_switch() - other containers run from here on
 * @t: the scheduler, accounted up to here
 * @run_mask: slots that may run now
 *
 * A container that stops with more than a tenth of a slice too much, beyond
 * what its turn was to be late by, has had an overrun.
 */
void cgpu_sched_switch(struct cgpu_sched *t, u32 run_mask)
{
	u32 stopped = t->run_mask & ~run_mask & t->opened_mask;
	u32 waited = t->wait_mask & run_mask & ~t->run_mask;
	u32 started = run_mask & ~t->run_mask & t->opened_mask;
	s64 late = -(s64)(t->slice_ns / OVERRUN_PARTS);

	for (; stopped; stopped &= stopped - 1) {
		u32 i = __builtin_ctz(stopped);

		if (t->slot[i].deficit_ns + (s64)cgpu_rr_late_ns(t, i) < late)
			t->slot[i].overruns++;
	}
	t->wait_mask &= ~waited;
	for (; waited; waited &= waited - 1)
		cgpu_wait_end(&t->slot[__builtin_ctz(waited)].wait);
	cgpu_rr_compensate_switch(t, started);
	for (; started; started &= started - 1)
		t->slot[__builtin_ctz(started)].on_gpu_ns = t->last_ns + t->switch_ns;
	t->run_mask = run_mask;
}

/**
 * cgpu_account_restart() - the timeslice under way ends
 * @t: the scheduler, accounted up to the calls before the restart
 * @at_ns: when the runlist was restarted
 *
 * With several TSGs the next of them goes on.
 */
void cgpu_account_restart(struct cgpu_sched *t, u64 at_ns)
{
	u32 mask;

	cgpu_on_forget(t);
	for (mask = t->run_mask & t->opened_mask; mask; mask &= mask - 1) {
		struct cgpu_sched_entity *s = &t->slot[__builtin_ctz(mask)];
		u64 step_ns = cgpu_hw_timeslice_ns(t, s) + t->switch_ns, had = 0;

		if (s->on_gpu_ns >= at_ns)
			continue;
		if (s->tsgs > 1)
			had = ((at_ns - s->on_gpu_ns) / step_ns + 1) % s->tsgs;
		s->on_gpu_ns = at_ns - had * step_ns;
		if (s->tsgs > 1)
			s->on_gpu_ns += t->switch_ns;
	}
}

/* How long a container goes on once it is the hardware's turn: each of its TSGs has a
 * timeslice, and a switch lies between two.
 */
static u64 block_ns(const struct cgpu_sched *t, const struct cgpu_sched_entity *s)
{
	u64 slice_ns = cgpu_hw_timeslice_ns(t, s);

	return s->tsgs > 1 ? s->tsgs * (slice_ns + t->switch_ns) - t->switch_ns : slice_ns;
}

/* How long one that runs goes on when another one can run too: to the end of its timeslice, if it
 * has several TSGs to that of the last of them. Its timeslices follow each other from when it came
 * on the GPU, while it is alone too. A mean over all places in a timeslice is right on average only,
 * and the errors of 25 slots in 10 s would add up to 2 %.
 */
static u64 rest_ns(const struct cgpu_sched *t, const struct cgpu_sched_entity *s)
{
	u64 block = block_ns(t, s), round = s->tsgs > 1 ? block + t->switch_ns : block;
	u64 in_round = t->last_ns > s->on_gpu_ns ? (t->last_ns - s->on_gpu_ns) % round : 0;

	return in_round < block ? block - in_round : 0;
}

/**
 * cgpu_account_freeze() - charge the time until slots are off the GPU
 * @t: the scheduler, accounted up to where the call began
 * @slots: those that it froze
 * @late: kernels of theirs delayed it
 * @to_ns: when they were off the GPU
 *
 * Kernels that delay it keep the GPU from all others: by timeslices one that woke beside them would
 * be charged too.
 */
void cgpu_account_freeze(struct cgpu_sched *t, u32 slots, bool late, u64 to_ns)
{
	u32 all = t->run_mask;

	t->run_mask = late ? slots : all;
	cgpu_sched_update(t, to_ns);
	t->run_mask = all;
}

/**
 * cgpu_account_overlap() - charge the time in which two could run
 * @t: the scheduler, accounted up to where the overlap began
 * @before: slots that could run before it
 * @after: slots that can run when it ends
 * @to_ns: its end
 *
 * The one that ran goes on to the end of its timeslice, if it has several TSGs to that
 * of the last of them; then they alternate, a timeslice for each TSG. With more than two
 * it is split by what each one pulls.
 */
void cgpu_account_overlap(struct cgpu_sched *t, u32 before, u32 after, u64 to_ns)
{
	u32 opened = t->opened_mask, all = t->run_mask, i;
	u32 pair[2] = { before & ~after & opened, after & ~before & opened };
	struct cgpu_sched_entity *s[2];
	u64 end_ns, len_ns, had_ns[2];

	if (!cgpu_is_one(pair[0]) || !cgpu_is_one(pair[1]) || (before & after & opened) ||
	    to_ns <= t->last_ns) {
		cgpu_sched_update(t, to_ns);
		return;
	}
	len_ns = to_ns - t->last_ns;
	for (i = 0; i < 2; i++) {
		s[i] = &t->slot[__builtin_ctz(pair[i])];
		had_ns[i] = s[i]->gpu_ns;
	}
	end_ns = t->last_ns + rest_ns(t, s[0]);
	for (i = 0; i < OVERLAP_SLICES_MAX && t->last_ns < to_ns; i++) {
		t->run_mask = pair[i % 2];
		if (i)
			s[i % 2]->on_gpu_ns = t->last_ns + t->switch_ns;
		if (i > 1)
			cgpu_rr_compensate_switch(t, t->run_mask);
		cgpu_sched_update(t, end_ns < to_ns ? end_ns : to_ns);
		end_ns += t->switch_ns + block_ns(t, s[(i + 1) % 2]);
	}
	/* The other one keeps the GPU if it has it. */
	if (i % 2)
		s[1]->on_gpu_ns = to_ns + t->switch_ns;
	t->run_mask = all;
	cgpu_sched_update(t, to_ns);
	for (i = 0; i < 2; i++)
		cgpu_ceiling_charge_rest(t, __builtin_ctz(pair[i]), pair[0] | pair[1],
					 len_ns - (s[i]->gpu_ns - had_ns[i]));
}
