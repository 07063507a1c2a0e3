// SPDX-License-Identifier: MIT OR GPL-2.0-only
/* Groups and channels come and go, and the controls of the GPU's firmware that act on them. */
#include <linux/ktime.h>
#include <linux/minmax.h>

#include "engine.h"

#define COPY_SUBCHANNEL 4

void engine_add_tsg(struct engine *e, struct engine_tsg *tsg, struct engine_count *count)
{
	unsigned long flags;

	INIT_LIST_HEAD(&tsg->chans);
	tsg->eng = e;
	tsg->count = count;
	tsg->slice_ns = (u64)max(e->card->rules->timeslice_us, 1) * NSEC_PER_USEC;
	tsg->slice_req_ns = tsg->slice_ns;
	raw_spin_lock_irqsave(&e->lock, flags);
	list_add_tail(&tsg->link, &e->tsgs);
	raw_spin_unlock_irqrestore(&e->lock, flags);
}

void engine_remove_tsg(struct engine_tsg *tsg)
{
	struct engine *e = tsg->eng;
	unsigned long flags;

	raw_spin_lock_irqsave(&e->lock, flags);
	engine_advance(e, ktime_get_ns());
	engine_forget_tsg(e, tsg);
	engine_kick(e);
	raw_spin_unlock_irqrestore(&e->lock, flags);
}

void engine_add_chan(struct engine_chan *c)
{
	struct engine *e = c->tsg->eng;
	unsigned long flags;

	WRITE_ONCE(*c->userd_get, 0);
	c->push->ctx = c->space;
	INIT_LIST_HEAD(&c->wait);
	raw_spin_lock_irqsave(&e->lock, flags);
	e->has_chram = e->has_chram || c->chram;
	list_add_tail(&c->link, &c->tsg->chans);
	engine_chram_show(e);
	raw_spin_unlock_irqrestore(&e->lock, flags);
}

void engine_remove_chan(struct engine_chan *c)
{
	struct engine *e = c->tsg->eng;
	unsigned long flags;

	raw_spin_lock_irqsave(&e->lock, flags);
	engine_advance(e, ktime_get_ns());
	list_del(&c->link);
	list_del(&c->wait);
	if (c->tsg->rr == c)
		c->tsg->rr = NULL;
	if (c->enabled)
		e->enabled_chans--;
	engine_forget_chan(e, c);
	if (c->chram)
		WRITE_ONCE(*c->chram, 0);
	engine_kick(e);
	raw_spin_unlock_irqrestore(&e->lock, flags);
}

/*
 * @c has such an object from now on. On the runlist of a copy engine subchannel 4 is the
 * engine's own without SET_OBJECT: nvidia-uvm relies on it (uvm_maxwell_ce.c, uvm_hal.c).
 */
void engine_set_object(struct engine_chan *c, u32 cls, enum engine_object object)
{
	struct engine *e = c->tsg->eng;
	unsigned long flags;

	raw_spin_lock_irqsave(&e->lock, flags);
	c->compute |= object == ENGINE_OBJECT_COMPUTE;
	c->copy |= object == ENGINE_OBJECT_COPY;
	c->video |= object == ENGINE_OBJECT_VIDEO;
	if (object == ENGINE_OBJECT_COPY && e->index)
		c->push->cls[COPY_SUBCHANNEL] = cls;
	raw_spin_unlock_irqrestore(&e->lock, flags);
}

bool engine_tsg_dead(const struct engine_tsg *tsg)
{
	struct engine_chan *c;

	list_for_each_entry(c, &tsg->chans, link)
		if (c->dead)
			return true;
	return false;
}

void engine_enable_chan(struct engine *e, struct engine_chan *c)
{
	if (!c->enabled)
		e->enabled_chans++;
	c->enabled = true;
	c->tsg->enabled = true;
}

/* @c leaves the runlist: it does no work until it is enabled again. */
void engine_unschedule_chan(struct engine_chan *c)
{
	struct engine *e = c->tsg->eng;
	unsigned long flags;

	raw_spin_lock_irqsave(&e->lock, flags);
	engine_advance(e, ktime_get_ns());
	if (c->enabled) {
		e->enabled_chans--;
		c->enabled = false;
		engine_forget_chan(e, c);
	}
	engine_kick(e);
	raw_spin_unlock_irqrestore(&e->lock, flags);
}

static void apply_slice(struct engine *e, struct engine_tsg *tsg)
{
	if (e->card->rules->control_ineffective & ENGINE_NO_SLICE)
		return;
	tsg->slice_ns = max(tsg->slice_req_ns, (u64)NSEC_PER_USEC);
}

void engine_set_timeslice(struct engine *e, struct engine_tsg *tsg, u64 us)
{
	tsg->slice_req_ns = us * NSEC_PER_USEC;
	if (!e->card->rules->commit_required || !tsg->enabled)
		apply_slice(e, tsg);
}

void engine_preempt(struct engine *e, struct engine_tsg *tsg)
{
	if (e->cur == tsg)
		engine_expire(e);
}

static void set_disabled(struct engine *e, struct engine_chan *c, bool preempt)
{
	if (e->card->rules->control_ineffective & ENGINE_NO_DISABLE)
		return;
	c->disabled = c->disable_req;
	if (c->disabled && preempt)
		engine_stop_chan(e, c);
}

/* Commits pending changes of this runlist, then restarts it. */
void engine_restart(struct engine *e)
{
	struct engine_tsg *tsg;
	struct engine_chan *c;

	list_for_each_entry(tsg, &e->tsgs, link) {
		apply_slice(e, tsg);
		if (!e->card->rules->disable_needs_restart)
			continue;
		list_for_each_entry(c, &tsg->chans, link)
			set_disabled(e, c, true);
	}
	engine_expire(e);
}

/* STOP_CHANNEL: its group dies with it. */
void engine_kill_chan(struct engine *e, struct engine_chan *c)
{
	engine_chan_fault(e, c);
	engine_forget_chan(e, c);
}

/* One channel of DISABLE_CHANNELS; @preempt: off the engine as well. */
void engine_disable_chan(struct engine_chan *c, bool disable, bool preempt)
{
	struct engine *e = c->tsg->eng;
	unsigned long flags;

	raw_spin_lock_irqsave(&e->lock, flags);
	engine_advance(e, ktime_get_ns());
	c->disable_req = disable;
	if (!e->card->rules->disable_needs_restart)
		set_disabled(e, c, preempt);
	engine_kick(e);
	raw_spin_unlock_irqrestore(&e->lock, flags);
}

/* Whether @c, which may not run, is on the engine all the same. */
bool engine_chan_is_on(struct engine_chan *c)
{
	struct engine *e = c->tsg->eng;
	unsigned long flags;
	bool on;

	raw_spin_lock_irqsave(&e->lock, flags);
	engine_kick(e);
	on = e->chan == c && !engine_chan_usable(c);
	raw_spin_unlock_irqrestore(&e->lock, flags);
	return on;
}
