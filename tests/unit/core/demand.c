// SPDX-License-Identifier: MIT OR GPL-2.0-only
/* The GPU of demandgpu.py. */
#include <stdlib.h>

#include "../../../cgpu_km/core/env.h"
#include "../../../cgpu_km/core/sched_step.h"
#include "demand.h"

#define TICK_NS		10000

static bool is_busy(const struct demand_load *l)
{
	return l->always || l->arrived != l->done;
}

/* What is due by @now_ns is waiting. */
static void arrive(struct demand_load *l, u64 now_ns)
{
	while (l->due_ns <= now_ns) {
		u64 length_ns = l->arrivals ? l->arrivals[2 * l->arrived + 1] : l->piece_ns;

		if (!is_busy(l))
			l->left_ns = length_ns;
		if (!l->arrivals && l->done % l->pieces == 0)
			l->at_ns = now_ns;
		l->arrived++;
		l->due_ns = CGPU_NEVER_NS;
		if (l->arrivals && l->arrived < l->count)
			l->due_ns = l->arrivals[2 * l->arrived];
	}
}

/* The work under way, up to @end_ns. Returns false without memory. */
static bool work(struct demand_load *l, u64 end_ns, u64 ns)
{
	u64 at_ns = l->arrivals ? l->arrivals[2 * l->done] : l->at_ns;

	if (l->left_ns > ns) {
		l->left_ns -= ns;
		return true;
	}
	l->done++;
	if (l->arrivals && is_busy(l))
		l->left_ns = l->arrivals[2 * l->done + 1];
	if (!l->arrivals) {
		l->due_ns = end_ns + (l->gaps_ns ? l->gaps_ns[l->done % l->gaps] :
				      l->done % l->pieces ? l->gap_ns : l->idle_ns);
		if (l->done % l->pieces)
			return true;
	}
	if (l->latencies == l->room) {
		u32 room = 2 * l->room + 64;
		u64 *more = realloc(l->latency_ns, room * sizeof(*more));

		if (!more)
			return false;
		l->latency_ns = more;
		l->room = room;
	}
	l->latency_ns[l->latencies++] = end_ns - at_ns;
	return true;
}

void demand_free(struct demand_load *load)
{
	free(load->latency_ns);
	load->latency_ns = NULL;
	load->latencies = load->room = 0;
}

static struct demand_load *load_of(struct demand_gpu *d, int slot)
{
	for (u32 i = 0; i < d->loads; i++)
		if ((int)d->load[i]->slot == slot)
			return d->load[i];
	return NULL;
}

/* Of the kernel under way, where it runs to its end. */
static u64 rest_ns(struct demand_gpu *d)
{
	if (!d->kernel_ns || d->on != 0)
		return 0;
	return (d->kernel_ns - load_of(d, 0)->got_ns % d->kernel_ns) % d->kernel_ns;
}

/* The one on the engine, until its timeslice or its work ends, or a kernel that runs to its end;
 * else the next in turn, with a timeslice.
 */
static struct demand_load *choose(struct demand_gpu *d)
{
	struct demand_load *on = load_of(d, d->on), *first = NULL, *later = NULL;

	if (on && d->slice_left_ns > 0 && d->real >> d->on & 1 && is_busy(on))
		return on;
	if (rest_ns(d)) {
		d->slice_left_ns = rest_ns(d);
		return on;
	}
	for (u32 i = 0; i < d->loads; i++) {
		struct demand_load *l = d->load[i];

		if (!(d->real >> l->slot & 1) || !is_busy(l))
			continue;
		if (!first)
			first = l;
		if (!later && (int)l->slot > d->on)
			later = l;
	}
	on = later ? later : first;
	if (on) {
		u64 us = d->set_us[on->slot] ? d->set_us[on->slot] : d->timeslice_us;
		u32 tsgs = on->at_once ? on->at_once : d->turn->slot[on->slot].tsgs;

		d->slice_left_ns = us * 1000 * (tsgs ? tsgs : 1);
	}
	d->on = on ? (int)on->slot : -1;
	return on;
}

/* Whole ticks to the next arrival, the end of the work under way or of its timeslice, and on. */
static bool pass_to(struct demand_gpu *d, u64 until_ns)
{
	u64 now = d->now_ns - d->began_ns, until = until_ns - d->began_ns;

	while (now < until) {
		struct demand_load *on;
		u64 first = until;
		bool any = false;
		s64 length;

		for (u32 i = 0; i < d->loads; i++) {
			arrive(d->load[i], now);
			if (d->load[i]->due_ns < first)
				first = d->load[i]->due_ns;
			any |= is_busy(d->load[i]);
		}
		on = choose(d);
		length = first - now;
		if (on && d->slice_left_ns < length)
			length = d->slice_left_ns;
		if (on && !on->always && (s64)on->left_ns < length)
			length = on->left_ns;
		length = length > TICK_NS ? (length + TICK_NS - 1) / TICK_NS * TICK_NS : TICK_NS;
		now += length;
		if (on) {
			on->got_ns += length;
			d->slice_left_ns -= length;
			if (!on->always && !work(on, now, length))
				return false;
		} else if (any) {
			d->idle_ns += length;
		}
	}
	d->now_ns = d->began_ns + now;
	return true;
}

/* The shell reads the run state. */
static void poll(struct demand_gpu *d)
{
	struct cgpu_step_event event = { .kind = CGPU_STEP_EVENT_READ, .now_ns = d->now_ns };
	u64 now = d->now_ns - d->began_ns;

	d->polls++;
	d->read_ns = d->now_ns;
	for (u32 i = 0; i < d->loads; i++) {
		arrive(d->load[i], now); /* a tick begins with what arrives in it */
		event.known |= 1u << d->load[i]->slot & d->known;
		event.busy |= (u32)is_busy(d->load[i]) << d->load[i]->slot;
		if (is_busy(d->load[i]))
			event.tsgs[d->load[i]->slot] = d->load[i]->at_once;
	}
	if (d->hides_ns && now / d->hides_ns % 2)
		event.known &= ~1u;
	if (!d->frozen_shows)
		event.busy &= d->real;
	cgpu_sched_step(d->turn, NULL, &d->step, &event);
}

/* Any of @low to @high, both included. */
static u64 random_of(struct demand_gpu *d, u64 low, u64 high)
{
	u32 found, bits = 64 - __builtin_clzll(high - low + 1);

	do {
		found = d->word[d->next_word] >> (32 - bits);
		d->next_word = (d->next_word + 1) % d->words;
	} while (found > high - low);
	return low + found;
}

/* To the plan's end or the first reading after which it does not fit. */
static bool wait_for(struct demand_gpu *d, u64 end_ns)
{
	u64 until = d->step.until_ns < end_ns ? d->step.until_ns : end_ns;

	while (d->now_ns < until && d->step.kind == CGPU_STEP_WAIT) {
		u64 poll_ns = d->step.poll_ns, at = until;

		if (poll_ns) {
			at = d->read_ns + random_of(d, poll_ns / 2, 3 * poll_ns / 2);
			if (at < d->now_ns)
				at = d->now_ns;
		}
		if (!pass_to(d, at < until ? at : until))
			return false;
		if (poll_ns && at <= until)
			poll(d);
	}
	return true;
}

/* A freeze or thaw acts in its middle; or when the kernel is over, and no other begins before. */
static bool call(struct demand_gpu *d, u32 slot, u32 kind)
{
	d->calls++;
	if (!pass_to(d, d->now_ns + d->call_ns / 2))
		return false;
	if (slot == 0 && kind == CGPU_STEP_FREEZE && !pass_to(d, d->now_ns + rest_ns(d)))
		return false;
	d->real = kind == CGPU_STEP_THAW ? d->real | 1u << slot : d->real & ~(1u << slot);
	return pass_to(d, d->now_ns + d->call_ns / 2);
}

static bool act(struct demand_gpu *d)
{
	while (d->step.mask) {
		struct cgpu_step_event event = { .kind = CGPU_STEP_EVENT_DONE, .begin_ns = d->now_ns };
		u32 kind = d->step.kind, mask = d->step.mask;

		if (kind != CGPU_STEP_RESTART) /* which it does not need */
			event.done = mask;
		if (kind == CGPU_STEP_TIMESLICE)
			event.called = mask;
		for (u32 i = 0; event.done && i < 32; i++) {
			if (!(mask >> i & 1))
				continue;
			if (kind != CGPU_STEP_TIMESLICE) {
				if (!call(d, i, kind))
					return false;
				continue;
			}
			if (!pass_to(d, d->now_ns + d->call_ns))
				return false;
			d->set_us[i] = d->step.plan.timeslice_us[i];
		}
		event.now_ns = event.end_ns = d->now_ns;
		cgpu_sched_step(d->turn, NULL, &d->step, &event);
	}
	return true;
}

int demand_run(struct demand_gpu *d, u64 end_ns)
{
	while (d->now_ns < end_ns) {
		struct cgpu_step_event event = { .kind = CGPU_STEP_EVENT_PLAN, .now_ns = d->now_ns };
		u32 opened = 0;

		cgpu_sched_step(d->turn, NULL, &d->step, &event);
		if (!d->step.mask) {
			if (d->step.plan.until_ns <= d->now_ns)
				return 1;
			if (!wait_for(d, end_ns))
				return 2;
			continue;
		}
		if (!act(d))
			return 2;
		for (u32 i = 0; i < CGPU_SLOTS; i++)
			opened |= (u32)!!d->turn->slot[i].channels << i;
		d->real |= d->step.plan.run_mask & ~opened;
	}
	return 0;
}
