// SPDX-License-Identifier: MIT OR GPL-2.0
/*
 * The GPU's timeline: one runlist per engine, TSGs round robin, each for its timeslice.
 *
 * Time on the GPU is computed, not observed: nvengine_advance() plays the events between e->t and
 * now at their exact times, so a late timer delays the CPU's view and nothing else.
 */
#include <linux/ktime.h>
#include <linux/math64.h>

#include "nvsim.h"

/*
 * Events played at once; beyond that the GPU's clock slips, so that the CPU does not stall. Only a
 * stress test makes works of almost no time; the other events are the backlog of a late timer.
 */
#define MAX_TINY_STEPS 256
#define MAX_STEPS 8192
#define TINY_NS NSEC_PER_USEC
#define THROTTLE_NS 20000
#define RECENT_NS (5 * NSEC_PER_MSEC)

/* Advances time to @to with the engine unchanged: a work of e->cur runs if @busy. */
static void pass(struct nvengine *e, u64 to, bool busy)
{
	struct nvsampler *s = &e->sampler;
	u64 from = e->t;
	struct nvsample *one;

	if (s->next + NVSIM_SAMPLES * NVSIM_SAMPLE_NS < to && !busy)
		s->next = to - (to - s->next) % NVSIM_SAMPLE_NS - (NVSIM_SAMPLES - 1) * NVSIM_SAMPLE_NS;
	for (; s->next <= to; s->next += NVSIM_SAMPLE_NS) {
		s->busy_ns += busy && s->next > from ? s->next - from : 0;
		one = &s->ring[s->count++ % NVSIM_SAMPLES];
		one->at = s->next;
		one->tgid = busy ? e->cur->rec->tgid : 0;
		one->util = min_t(u64, div_u64(s->busy_ns * 10000, NVSIM_SAMPLE_NS), 10000);
		s->busy_ns = 0;
		from = max(from, s->next);
	}
	s->busy_ns += busy ? to - from : 0;
	e->t = to;
}

bool nvtsg_runnable(struct nvtsg *tsg)
{
	struct nvchan *c;

	list_for_each_entry(c, &tsg->chans, link)
		if (nvchan_usable(c) && nvchan_has_work(c))
			return true;
	return false;
}

/* The next runnable TSG behind the one that ran last, which comes last itself. */
static struct nvtsg *next_runnable(struct nvengine *e, bool others_only)
{
	struct list_head *start = e->rr ? &e->rr->link : &e->tsgs, *pos = start->next;
	struct nvtsg *tsg;

	for (; pos != start; pos = pos->next) {
		if (pos == &e->tsgs)
			continue;
		tsg = list_entry(pos, struct nvtsg, link);
		if (nvtsg_runnable(tsg))
			return tsg;
	}
	if (!others_only && e->rr && nvtsg_runnable(e->rr))
		return e->rr;
	return NULL;
}

static void begin(struct nvengine *e, struct nvtsg *tsg)
{
	e->cur = tsg;
	e->rr = tsg;
	e->chan = NULL;
	e->last_active = e->t;
	if (e->resident != tsg) {
		tsg->rec->switches++;
		e->resident = tsg;
		e->phase = NVPH_SWITCH;
		e->phase_end = e->t + (u64)max(nvsim.ctxsw_us, 0) * NSEC_PER_USEC;
		return;
	}
	e->phase = NVPH_RUN;
	e->slice_end = e->t + tsg->slice_ns;
}

static void go_idle(struct nvengine *e)
{
	e->phase = NVPH_IDLE;
	e->cur = NULL;
	e->chan = NULL;
}

/* When the running descriptor has to give way: later than the slice's end if it resists. */
static u64 give_way_at(struct nvengine *e)
{
	if (nvsim.no_preempt)
		return U64_MAX;
	if (e->chan->desc.flags & 1)
		return e->slice_end + (u64)max(nvsim.stubborn_ms, 0) * NSEC_PER_MSEC;
	return e->slice_end;
}

/* The slice is over at e->t: the next TSG's turn, or another slice. */
static void slice_over(struct nvengine *e)
{
	struct nvtsg *next = next_runnable(e, true);
	bool may_stay = !e->chan || nvchan_usable(e->chan);

	if (next) {
		begin(e, next);
	} else if (may_stay) {
		e->slice_end = e->t + e->cur->slice_ns;
	} else {
		e->resident = NULL;
		e->chan = NULL;
	}
}

/* Plays the running TSG up to its next event or @now. Returns false when nothing more happens before @now. */
static bool run(struct nvengine *e, u64 now)
{
	u64 end, stop;

	if (!e->chan) {
		if (e->slice_end <= e->t) {
			slice_over(e);
			if (e->phase != NVPH_RUN)
				return true;
		}
		e->chan = nvtsg_fetch(e, e->cur);
		if (!e->chan) {
			go_idle(e);
			return true;
		}
	}
	end = e->t + e->chan->remaining;
	stop = min(end, max(give_way_at(e), e->t));
	e->last_active = min(stop, now);
	if (stop > now) {
		e->chan->remaining -= now - e->t;
		e->cur->rec->busy_ns += now - e->t;
		pass(e, now, true);
		return false;
	}
	e->chan->remaining -= stop - e->t;
	e->cur->rec->busy_ns += stop - e->t;
	pass(e, stop, true);
	if (stop == end) {
		struct nvchan *c = e->chan;

		e->chan = NULL;
		nvchan_complete(e, c);
	} else {
		slice_over(e);
	}
	return true;
}

static bool step(struct nvengine *e, u64 now)
{
	struct nvtsg *tsg;

	switch (e->phase) {
	case NVPH_IDLE:
		tsg = next_runnable(e, false);
		if (!tsg) {
			pass(e, now, false);
			return false;
		}
		begin(e, tsg);
		return true;
	case NVPH_SWITCH:
		if (e->phase_end > now) {
			pass(e, now, false);
			return false;
		}
		pass(e, e->phase_end, false);
		e->phase = NVPH_RUN;
		e->slice_end = e->t + e->cur->slice_ns;
		return true;
	case NVPH_RUN:
		return run(e, now);
	}
	return false;
}

/* Brings the engine to @now. Caller holds e->lock. */
void nvengine_advance(struct nvengine *e, u64 now)
{
	u32 steps = 0, tiny = 0;
	u64 before;

	if (now < e->t)
		return;
	e->throttled = 0;
	if (e->phase == NVPH_IDLE)
		pass(e, now, false);	/* work that is found now begins now */
	e->pieces = 0;
	while (steps < MAX_STEPS && tiny < MAX_TINY_STEPS + steps && !nvmethods_tired(e)) {
		before = e->t;
		nvmethods_look(e, now);
		if (!step(e, now))
			return;
		if (e->t - before < TINY_NS)
			tiny++;
		else
			steps++;
	}
	/* more than can be played: the GPU falls behind, and leaves the CPU four fifths of its time */
	e->slips++;
	e->throttled = max_t(u64, THROTTLE_NS, 4 * (ktime_get_ns() - now));
	if (e->phase == NVPH_SWITCH)
		e->phase_end += now - e->t;
	else if (e->phase == NVPH_RUN)
		e->slice_end += now - e->t;
	pass(e, now, false);
}

static u64 next_event(struct nvengine *e, u64 now)
{
	u32 poll;

	if (e->throttled)
		return now + e->throttled;
	if (e->phase == NVPH_SWITCH)
		return e->phase_end;
	if (e->phase == NVPH_RUN && e->chan)
		return min(e->t + e->chan->remaining, max(give_way_at(e), e->t));
	if (e->phase == NVPH_RUN)
		return e->t;
	poll = now - e->last_active < RECENT_NS ? nvsim.poll_us : nvsim.idle_poll_us;
	return now + max(poll, 1u) * (u64)NSEC_PER_USEC;
}

static void arm(struct nvengine *e, u64 now)
{
	u64 at;

	if (e->stopped || (e->phase == NVPH_IDLE && !e->enabled_chans))
		return;
	at = next_event(e, now);
	/* Real channel RAM shows new work at once, while the engine runs other work. */
	if (nvchram_has() && nvsim.chram_us > 0)
		at = min(at, now + nvsim.chram_us * (u64)NSEC_PER_USEC);
	hrtimer_start(&e->timer, ns_to_ktime(at), HRTIMER_MODE_ABS_HARD);
}

/* Did a doorbell ring since this engine last looked? The page is shared by all channels of the GPU. */
static bool rang(struct nvengine *e)
{
	struct nvgpu *gpu = e->gpu;
	u32 n;

	if (READ_ONCE(*gpu->doorbell)) {
		xchg(gpu->doorbell, 0);
		atomic_inc(&gpu->ring);
	}
	n = atomic_read(&gpu->ring);
	if (n == e->ring_seen)
		return false;
	e->ring_seen = n;
	return true;
}

static enum hrtimer_restart tick(struct hrtimer *t)
{
	struct nvengine *e = container_of(t, struct nvengine, timer);
	unsigned long flags;
	u64 now;

	raw_spin_lock_irqsave(&e->lock, flags);
	now = ktime_get_ns();
	if (e->phase == NVPH_IDLE && !e->throttled) {
		bool go = rang(e);

		if (!nvmethods_look(e, now) && !go) {
			if (nvchram_stale(e))
				nvchram_show(e);
			goto out;
		}
		e->last_active = now;
	}
	nvengine_advance(e, now);
	nvchram_show(e);
out:
	arm(e, now);
	raw_spin_unlock_irqrestore(&e->lock, flags);
	return HRTIMER_NORESTART;
}

/* After a change made under e->lock: play its effects and set the timer. */
void nvengine_kick(struct nvengine *e)
{
	u64 now = ktime_get_ns();

	lockdep_assert_held(&e->lock);
	nvengine_advance(e, now);
	nvchram_show(e);
	arm(e, now);
}

/* RESTART_RUNLIST: the current slice ends now. */
void nvengine_expire(struct nvengine *e)
{
	if (e->phase == NVPH_RUN)
		e->slice_end = min(e->slice_end, e->t);
}

/*
 * @c may not go on (disabled): off the engine at once, unless its work resists. Caller advanced the
 * engine.
 */
void nvengine_stop_chan(struct nvengine *e, struct nvchan *c)
{
	if (e->cur != c->tsg)
		return;
	if (e->phase == NVPH_SWITCH) {
		if (!nvtsg_runnable(c->tsg)) {
			e->resident = NULL;
			go_idle(e);
		}
		return;
	}
	if (e->chan != c)
		return;
	e->slice_end = min(e->slice_end, e->t);
	if (give_way_at(e) > e->t)
		return;
	e->resident = NULL;
	e->chan = NULL;
	if (!nvtsg_runnable(c->tsg))
		go_idle(e);
	else
		e->slice_end = e->t + c->tsg->slice_ns;
}

/* @c is going away: nothing resists that. */
void nvengine_forget_chan(struct nvengine *e, struct nvchan *c)
{
	if (e->chan == c)
		e->chan = NULL;
	if (e->cur == c->tsg && !nvtsg_runnable(c->tsg)) {
		e->resident = NULL;
		go_idle(e);
	}
}

void nvengine_forget_tsg(struct nvengine *e, struct nvtsg *tsg)
{
	if (e->cur == tsg)
		go_idle(e);
	if (e->resident == tsg)
		e->resident = NULL;
	if (e->rr == tsg) {
		struct list_head *prev = tsg->link.prev;

		e->rr = prev == &e->tsgs ? NULL : list_entry(prev, struct nvtsg, link);
	}
	list_del(&tsg->link);
}

void nvengine_init(struct nvengine *e, struct nvgpu *gpu, u32 index, u32 type)
{
	e->gpu = gpu;
	e->index = index;
	e->type = type;
	raw_spin_lock_init(&e->lock);
	INIT_LIST_HEAD(&e->tsgs);
	INIT_LIST_HEAD(&e->waiting);
	nvsim_hrtimer_setup(&e->timer, tick);
	e->t = ktime_get_ns();
	e->sampler.next = e->t + NVSIM_SAMPLE_NS;
}

void nvengine_stop(struct nvengine *e)
{
	unsigned long flags;

	raw_spin_lock_irqsave(&e->lock, flags);
	e->stopped = true;
	raw_spin_unlock_irqrestore(&e->lock, flags);
	hrtimer_cancel(&e->timer);
}
