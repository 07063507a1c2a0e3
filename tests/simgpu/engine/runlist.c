// SPDX-License-Identifier: MIT OR GPL-2.0-only
/*
 * The GPU's timeline: one runlist per engine, TSGs round robin, each for its timeslice.
 *
 * Time on the GPU is computed, not observed: engine_advance() plays the events between e->t and
 * now at their exact times, so a late timer delays the CPU's view and nothing else.
 */
#include <linux/ktime.h>
#include <linux/lockdep.h>
#include <linux/math64.h>

#include "engine.h"
#include "probed.h"

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
static void pass(struct engine *e, u64 to, bool busy)
{
	struct engine_sampler *s = &e->sampler;
	u64 from = e->t;
	struct engine_sample *one;

	if (s->next + ENGINE_SAMPLES * ENGINE_SAMPLE_NS < to && !busy)
		s->next = to - (to - s->next) % ENGINE_SAMPLE_NS - (ENGINE_SAMPLES - 1) * ENGINE_SAMPLE_NS;
	for (; s->next <= to; s->next += ENGINE_SAMPLE_NS) {
		s->busy_ns += busy && s->next > from ? s->next - from : 0;
		one = &s->ring[s->count++ % ENGINE_SAMPLES];
		one->at = s->next;
		one->tgid = busy ? e->cur->count->tgid : 0;
		one->util = min_t(u64, div_u64(s->busy_ns * 10000, ENGINE_SAMPLE_NS), 10000);
		s->busy_ns = 0;
		from = max(from, s->next);
	}
	s->busy_ns += busy ? to - from : 0;
	e->t = to;
}

bool engine_tsg_runnable(struct engine_tsg *tsg)
{
	struct engine_chan *c;

	list_for_each_entry(c, &tsg->chans, link)
		if (engine_chan_usable(c) && engine_chan_has_work(c))
			return true;
	return false;
}

/* The next runnable TSG behind the one that ran last, which comes last itself. */
static struct engine_tsg *next_runnable(struct engine *e, bool others_only)
{
	struct list_head *start = e->rr ? &e->rr->link : &e->tsgs, *pos = start->next;
	struct engine_tsg *tsg;

	for (; pos != start; pos = pos->next) {
		if (pos == &e->tsgs)
			continue;
		tsg = list_entry(pos, struct engine_tsg, link);
		if (engine_tsg_runnable(tsg))
			return tsg;
	}
	if (!others_only && e->rr && engine_tsg_runnable(e->rr))
		return e->rr;
	return NULL;
}

/* The next time after e->t at which a pause ends, U64_MAX: none is under way. */
static u64 pause_over_at(const struct engine *e)
{
	struct engine_tsg *tsg;
	struct engine_chan *c;
	u64 at = U64_MAX;

	if (e->paused_to <= e->t)
		return at;
	list_for_each_entry(tsg, &e->tsgs, link)
		list_for_each_entry(c, &tsg->chans, link)
			if (c->pause_end > e->t)
				at = min(at, c->pause_end);
	return at;
}

static void begin(struct engine *e, struct engine_tsg *tsg)
{
	e->cur = tsg;
	e->rr = tsg;
	e->chan = NULL;
	e->last_active = e->t;
	if (e->resident != tsg) {
		tsg->count->switches++;
		e->resident = tsg;
		e->phase = ENGINE_SWITCH;
		e->phase_end = e->t + (u64)max(e->card->rules->ctxsw_us, 0) * NSEC_PER_USEC;
		return;
	}
	e->phase = ENGINE_RUN;
	e->slice_end = e->t + tsg->slice_ns;
}

static void go_idle(struct engine *e)
{
	e->phase = ENGINE_IDLE;
	e->cur = NULL;
	e->chan = NULL;
}

/* When the running descriptor has to give way: later than the slice's end if it resists. */
static u64 give_way_at(struct engine *e)
{
	if (e->card->rules->no_preempt)
		return U64_MAX;
	if (e->chan->desc.flags & 1)
		return e->slice_end + (u64)max(e->card->rules->stubborn_ms, 0) * NSEC_PER_MSEC;
	return e->slice_end;
}

/* The slice is over at e->t: the next TSG's turn, or another slice. */
static void slice_over(struct engine *e)
{
	struct engine_tsg *next = next_runnable(e, true);
	bool may_stay = !e->chan || engine_chan_usable(e->chan);

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
static bool run(struct engine *e, u64 now)
{
	u64 end, stop;

	if (!e->chan) {
		if (e->slice_end <= e->t) {
			slice_over(e);
			if (e->phase != ENGINE_RUN)
				return true;
		}
		e->chan = engine_tsg_fetch(e, e->cur);
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
		e->cur->count->busy_ns += now - e->t;
		pass(e, now, true);
		return false;
	}
	e->chan->remaining -= stop - e->t;
	e->cur->count->busy_ns += stop - e->t;
	pass(e, stop, true);
	if (stop == end) {
		struct engine_chan *c = e->chan;

		e->chan = NULL;
		engine_chan_complete(e, c);
	} else {
		slice_over(e);
	}
	return true;
}

static bool step(struct engine *e, u64 now)
{
	struct engine_tsg *tsg;
	u64 at;

	switch (e->phase) {
	case ENGINE_IDLE:
		tsg = next_runnable(e, false);
		if (!tsg) {
			at = pause_over_at(e);
			pass(e, min(at, now), false);
			return at <= now;
		}
		begin(e, tsg);
		return true;
	case ENGINE_SWITCH:
		if (e->phase_end > now) {
			pass(e, now, false);
			return false;
		}
		pass(e, e->phase_end, false);
		e->phase = ENGINE_RUN;
		e->slice_end = e->t + e->cur->slice_ns;
		return true;
	case ENGINE_RUN:
		return run(e, now);
	}
	return false;
}

/* Brings the engine to @now. Caller holds e->lock. */
void engine_advance(struct engine *e, u64 now)
{
	u32 steps = 0, tiny = 0;
	u64 before;

	if (now < e->t)
		return;
	e->throttled = 0;
	if (e->phase == ENGINE_IDLE)
		pass(e, min(now, pause_over_at(e)), false);	/* work that is found now begins now */
	e->pieces = 0;
	while (steps < MAX_STEPS && tiny < MAX_TINY_STEPS + steps && !engine_methods_tired(e)) {
		before = e->t;
		engine_methods_look(e, now);
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
	if (e->phase == ENGINE_SWITCH)
		e->phase_end += now - e->t;
	else if (e->phase == ENGINE_RUN)
		e->slice_end += now - e->t;
	pass(e, now, false);
}

static u64 next_event(struct engine *e, u64 now)
{
	u32 poll;

	if (e->throttled)
		return now + e->throttled;
	if (e->phase == ENGINE_SWITCH)
		return e->phase_end;
	if (e->phase == ENGINE_RUN && e->chan)
		return min(e->t + e->chan->remaining, max(give_way_at(e), e->t));
	if (e->phase == ENGINE_RUN)
		return e->t;
	poll = now - e->last_active < RECENT_NS ? e->card->rules->poll_us : e->card->rules->idle_poll_us;
	return min(now + max(poll, 1u) * (u64)NSEC_PER_USEC, pause_over_at(e));
}

static void arm(struct engine *e, u64 now)
{
	u64 at;

	if (e->stopped || (e->phase == ENGINE_IDLE && !e->enabled_chans))
		return;
	at = next_event(e, now);
	/* Real channel RAM shows new work at once, while the engine runs other work. */
	if (e->has_chram && e->card->rules->chram_us > 0)
		at = min(at, now + e->card->rules->chram_us * (u64)NSEC_PER_USEC);
	hrtimer_start(&e->timer, ns_to_ktime(at), HRTIMER_MODE_ABS_HARD);
}

/* Did a doorbell ring since this engine last looked? The page is shared by all channels of the GPU. */
static bool rang(struct engine *e)
{
	struct engine_card *card = e->card;
	u32 n;

	if (card->doorbell && READ_ONCE(*card->doorbell) != ENGINE_NOT_RUNG) {
		xchg(card->doorbell, ENGINE_NOT_RUNG);
		atomic_inc(&card->ring);
	}
	n = atomic_read(&card->ring);
	if (n == e->ring_seen)
		return false;
	e->ring_seen = n;
	return true;
}

static enum hrtimer_restart tick(struct hrtimer *t)
{
	struct engine *e = container_of(t, struct engine, timer);
	unsigned long flags;
	u64 now;

	raw_spin_lock_irqsave(&e->lock, flags);
	now = ktime_get_ns();
	if (e->phase == ENGINE_IDLE && !e->throttled) {
		bool go = rang(e);

		if (!engine_methods_look(e, now) && !go && pause_over_at(e) > now) {
			if (engine_chram_stale(e))
				engine_chram_show(e);
			goto out;
		}
		e->last_active = now;
	}
	engine_advance(e, now);
	engine_chram_show(e);
out:
	arm(e, now);
	raw_spin_unlock_irqrestore(&e->lock, flags);
	return HRTIMER_NORESTART;
}

/* After a change made under e->lock: play its effects and set the timer. */
void engine_kick(struct engine *e)
{
	u64 now = ktime_get_ns();

	lockdep_assert_held(&e->lock);
	engine_advance(e, now);
	engine_chram_show(e);
	arm(e, now);
}

/* RESTART_RUNLIST: the current slice ends now. */
void engine_expire(struct engine *e)
{
	if (e->phase == ENGINE_RUN)
		e->slice_end = min(e->slice_end, e->t);
}

/*
 * @c may not go on (disabled): off the engine at once, unless its work resists. Caller advanced the
 * engine.
 */
void engine_stop_chan(struct engine *e, struct engine_chan *c)
{
	if (e->cur != c->tsg)
		return;
	if (e->phase == ENGINE_SWITCH) {
		if (!engine_tsg_runnable(c->tsg)) {
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
	if (!engine_tsg_runnable(c->tsg))
		go_idle(e);
	else
		e->slice_end = e->t + c->tsg->slice_ns;
}

/* @c is going away: nothing resists that. */
void engine_forget_chan(struct engine *e, struct engine_chan *c)
{
	if (e->chan == c)
		e->chan = NULL;
	if (e->cur == c->tsg && !engine_tsg_runnable(c->tsg)) {
		e->resident = NULL;
		go_idle(e);
	}
}

void engine_forget_tsg(struct engine *e, struct engine_tsg *tsg)
{
	if (e->cur == tsg)
		go_idle(e);
	if (e->resident == tsg)
		e->resident = NULL;
	if (e->rr == tsg) {
		struct list_head *prev = tsg->link.prev;

		e->rr = prev == &e->tsgs ? NULL : list_entry(prev, struct engine_tsg, link);
	}
	list_del(&tsg->link);
}

static void setup_timer(struct hrtimer *t)
{
#ifdef HAVE_HRTIMER_SETUP
	hrtimer_setup(t, tick, CLOCK_MONOTONIC, HRTIMER_MODE_ABS_HARD);
#else
	hrtimer_init(t, CLOCK_MONOTONIC, HRTIMER_MODE_ABS_HARD);
	t->function = tick;
#endif
}

void engine_init(struct engine *e, struct engine_card *card, u32 index, u32 type)
{
	e->card = card;
	e->index = index;
	e->type = type;
	raw_spin_lock_init(&e->lock);
	INIT_LIST_HEAD(&e->tsgs);
	INIT_LIST_HEAD(&e->waiting);
	setup_timer(&e->timer);
	e->t = ktime_get_ns();
	e->sampler.next = e->t + ENGINE_SAMPLE_NS;
}

void engine_stop(struct engine *e)
{
	unsigned long flags;

	raw_spin_lock_irqsave(&e->lock, flags);
	e->stopped = true;
	raw_spin_unlock_irqrestore(&e->lock, flags);
	hrtimer_cancel(&e->timer);
}
