// SPDX-License-Identifier: MIT OR GPL-2.0-only
/*
 * From GPFIFO entries to work descriptors and semaphores: the engine's accesses to the client's
 * memory.
 */
#include <linux/math64.h>
#include <linux/printk.h>

#include "engine.h"

#define DESC_SIZE 32
#define OP_KERNEL 1
#define OP_COPY 2
#define OP_RELEASE 3
#define OP_FRAME 4
#define FLAG_PAUSE_SHIFT 8
#define MIN_NS ENGINE_WORK_MIN_NS
#define MAX_NS ENGINE_WORK_MAX_NS

bool engine_chan_usable(const struct engine_chan *c)
{
	return c->enabled && !c->disabled && !c->dead;
}

bool engine_chan_has_work(struct engine_chan *c)
{
	return !c->blocked && c->pause_end <= c->tsg->eng->t &&
	       (c->has_desc || c->has_seg || READ_ONCE(*c->userd_put) != c->get);
}

/* The channel is dead and takes its TSG off the runlist. */
void engine_chan_fault(struct engine *e, struct engine_chan *c)
{
	struct engine_chan *o;

	list_for_each_entry(o, &c->tsg->chans, link)
		o->dead = true;
	e->card->fault(e);
}

static bool set_duration(const struct engine *e, struct engine_chan *c)
{
	struct engine_desc *d = &c->desc;

	switch (d->op) {
	case OP_KERNEL:
	case OP_FRAME:
		if (d->op == OP_FRAME ? !c->video : !c->compute)
			return false;
		c->remaining = clamp(d->amount, (u64)MIN_NS, MAX_NS);
		return true;
	case OP_COPY:
		if (!c->copy && !c->compute)
			return false;
		c->remaining = div_u64(min(d->amount, 1ull << 50) * NSEC_PER_USEC, max(e->card->rules->copy_mbps, 1));
		c->remaining = clamp(c->remaining, (u64)MIN_NS, MAX_NS);
		return true;
	case OP_RELEASE:
		c->remaining = MIN_NS;
		return true;
	}
	return false;
}

/* Next GPFIFO entry. Returns false when the ring is empty or the channel died. */
static bool next_segment(struct engine *e, struct engine_chan *c)
{
	u32 put = READ_ONCE(*c->userd_put), words;
	u32 w[2];

	if (put == c->get)
		return false;
	if (put >= c->entries || !engine_read(c, c->gp_va + 8ull * c->get, w, 8)) {
		pr_info_ratelimited("engine %u: no GPFIFO entry %u of %u at %llx\n", e->type, put, c->entries, c->gp_va);
		engine_chan_fault(e, c);
		return false;
	}
	if (c->speaks != ENGINE_SPEAKS_DESCRIPTORS && !engine_methods_entry(c, w[0], w[1])) {
		engine_chan_fault(e, c);
		return false;
	}
	words = (w[1] >> 10) & 0x1fffff;
	c->seg_va = (w[0] & ~3u) | ((u64)(w[1] & 0xff) << 32);
	if (c->speaks == ENGINE_SPEAKS_METHODS) {
		c->has_seg = true;
		return true;
	}
	if (c->speaks == ENGINE_SPEAKS_UNDECIDED)
		words = 0;
	if (words % (DESC_SIZE / 4)) {
		u32 first = 0;

		engine_read(c, c->seg_va, &first, 4);
		pr_info_ratelimited("engine %u: segment of %u words at %llx begins with %x: no methods, no descriptors\n", e->type,
				    words, c->seg_va, first);
		engine_chan_fault(e, c);
		return false;
	}
	c->seg_cnt = words / (DESC_SIZE / 4);
	c->seg_idx = 0;
	c->has_seg = true;
	return true;
}

/* Gets @c a descriptor to execute, if it has one. */
static bool load(struct engine *e, struct engine_chan *c)
{
	struct engine_desc *d = &c->desc;

	if (c->has_desc)
		return true;
	if (!c->has_seg && !next_segment(e, c))
		return false;
	if (c->speaks == ENGINE_SPEAKS_METHODS)
		return engine_methods_load(e, c);
	if (!c->seg_cnt) {
		*d = (struct engine_desc) { .op = ENGINE_DESC_EMPTY };
		c->remaining = MIN_NS;
	} else if (!engine_read(c, c->seg_va + (u64)c->seg_idx * DESC_SIZE, d, DESC_SIZE) || (d->sem_va & 15) || !set_duration(e, c)) {
		engine_chan_fault(e, c);
		return false;
	}
	c->has_desc = true;
	return true;
}

/* A channel of @tsg with a descriptor to execute; the TSG's channels take turns descriptor by descriptor. */
struct engine_chan *engine_tsg_fetch(struct engine *e, struct engine_tsg *tsg)
{
	struct list_head *start = tsg->rr ? &tsg->rr->link : &tsg->chans, *pos = start;
	struct engine_chan *c;

	do {
		pos = pos->next;
		if (pos == &tsg->chans)
			continue;
		c = list_entry(pos, struct engine_chan, link);
		if (engine_chan_usable(c) && !c->blocked && c->pause_end <= e->t && load(e, c)) {
			tsg->rr = c;
			return c;
		}
	} while (pos != start);
	return NULL;
}

/* c's descriptor is complete at e->t. */
void engine_chan_complete(struct engine *e, struct engine_chan *c)
{
	struct engine_desc *d = &c->desc;
	u64 sem[2] = { d->sem_value, e->t };

	c->has_desc = false;
	if (d->op == ENGINE_DESC_METHODS) {
		if (!engine_methods_complete(e, c))
			engine_chan_fault(e, c);
		return;
	}
	if (d->op != ENGINE_DESC_EMPTY) {
		c->tsg->count->works++;
		c->pause_end = e->t + (u64)(d->flags >> FLAG_PAUSE_SHIFT) * NSEC_PER_USEC;
		e->paused_to = max(e->paused_to, c->pause_end);
	}
	if (d->sem_va) {
		/* time first: a reader that sees the value finds the time */
		if (!engine_write(c, d->sem_va + 8, &sem[1], 8) || !engine_write(c, d->sem_va, &sem[0], 8)) {
			engine_chan_fault(e, c);
			return;
		}
	}
	if (++c->seg_idx < c->seg_cnt)
		return;
	c->has_seg = false;
	c->get = c->get + 1 == c->entries ? 0 : c->get + 1;
	WRITE_ONCE(*c->userd_get, c->get);
}
