// SPDX-License-Identifier: MIT OR GPL-2.0-only
/*
 * Channels that speak methods: push*.c with the card's memory, its engines and interrupts. All under the
 * engine's lock.
 */
#include <linux/ktime.h>
#include <linux/mm.h>
#include <linux/slab.h>

#include "engine.h"

/* A GPU with more to copy than the CPU can move falls behind, as it does with too many works. */
#define MAX_PIECES 16
/* libcuda's first segment after a restore (cuda-checkpoint) has some 150. */
#define NOP_WORDS 4096

atomic_t engine_sems = ATOMIC_INIT(0);

/* Before engine_add_chan(), which sets the memory that is read. */
int engine_methods_init(struct engine_chan *c)
{
	c->push = kvmalloc(sizeof(*c->push), GFP_KERNEL);
	if (!c->push)
		return -ENOMEM;
	push_init(c->push, &c->tsg->eng->card->mem, NULL, &c->tsg->eng->cost);
	return 0;
}

void engine_methods_exit(struct engine_chan *c)
{
	kvfree(c->push);
}

/*
 * The first word of a segment that is not 0: to the host, 0 is a header that does nothing. 0 where there is none among the
 * first NOP_WORDS. False: the segment is not mapped.
 */
static bool first_word(struct engine_chan *c, u32 *word)
{
	u32 words = min_t(u32, c->push->words, NOP_WORDS), i;

	*word = 0;
	for (i = 0; i < words && !*word; i++)
		if (!engine_read(c, c->push->va + 4ull * i, word, 4))
			return false;
	return true;
}

/* A GPFIFO entry of a channel that may speak methods. False: its segment is not mapped. */
bool engine_methods_entry(struct engine_chan *c, u32 word0, u32 word1)
{
	u32 first;

	push_entry(c->push, word0, word1);
	if (c->speaks != ENGINE_SPEAKS_UNDECIDED || !c->push->words)
		return true;
	if (!first_word(c, &first))
		return false;
	if (!first)	/* a segment that does nothing, as libnvcuvid's first: the next one may tell */
		return true;
	c->speaks = push_is_method(first) ? ENGINE_SPEAKS_METHODS : ENGINE_SPEAKS_DESCRIPTORS;
	return true;
}

static void set_cost(struct engine *e)
{
	e->cost.sm_count = e->card->rules->sm_count;
	e->cost.copy_bytes_us = max(e->card->rules->copy_mbps, 1);
	e->cost.launch_ns = max(e->card->rules->launch_ns, 0);
	e->cost.wave_ns = max(e->card->rules->wave_ns, 0);
}

static void complain(struct engine *e, struct engine_chan *c)
{
	struct push *p = c->push;

	pr_info_ratelimited("engine %u: %s, subchannel %u class %x method %x\n", e->type,
			    p->why, p->sub, p->cls[p->sub], p->method);
}

/* Reads on: the next work is one like a descriptor's, the segment's end an empty one. */
bool engine_methods_load(struct engine *e, struct engine_chan *c)
{
	set_cost(e);
	switch (push_next(c->push)) {
	case PUSH_WORK:
		c->push->why = "launch without a compute object";
		if (c->push->kind == PUSH_LAUNCH && !c->compute)
			break;
		c->desc = (struct engine_desc) { .op = ENGINE_DESC_METHODS };
		c->remaining = min(c->push->ns, ENGINE_WORK_MAX_NS);
		c->has_desc = true;
		return true;
	case PUSH_END:
		c->desc = (struct engine_desc) { .op = ENGINE_DESC_EMPTY };
		c->seg_cnt = 0;
		c->remaining = ENGINE_WORK_MIN_NS;
		c->has_desc = true;
		return true;
	case PUSH_WAIT:
		c->blocked = true;
		list_add_tail(&c->wait, &e->waiting);
		return false;
	default:
		break;
	}
	complain(e, c);
	engine_chan_fault(e, c);
	return false;
}

/* c's work is complete at e->t. False: it touched an unmapped address. */
bool engine_methods_complete(struct engine *e, struct engine_chan *c)
{
	u32 did;

	if (c->push->kind == PUSH_COPY)
		e->pieces++;
	did = push_finish(c->push, e->t);
	if (did & PUSH_BROKEN) {
		complain(e, c);
		return false;
	}
	if (did & PUSH_COUNTED)
		c->tsg->count->works++;
	if (did & PUSH_SIGNALLED)
		atomic_inc(&engine_sems);
	if (did & PUSH_INTR)
		e->card->interrupt(e);
	if (did & PUSH_YIELD)
		engine_expire(e);
	if (did & PUSH_MORE) {
		c->remaining = min(c->push->ns, ENGINE_WORK_MAX_NS);
		c->has_desc = true;
	}
	return true;
}

/*
 * Checks the waiting channels whenever an engine wrote a semaphore, and at most every poll_us for
 * writes of the CPU. Nothing else makes them runnable, so that waiting costs neither a context
 * switch nor the CPU. Returns whether one goes on.
 */
bool engine_methods_look(struct engine *e, u64 now)
{
	u32 sems = atomic_read(&engine_sems);
	struct engine_chan *c, *next;
	bool found = false;

	if (list_empty(&e->waiting) || (sems == e->sems_seen && now < e->look_at))
		return false;
	e->sems_seen = sems;
	e->look_at = now + (u64)max(e->card->rules->poll_us, 1) * NSEC_PER_USEC;
	list_for_each_entry_safe(c, next, &e->waiting, wait) {
		if (!c->dead && !push_ready(c->push))
			continue;
		list_del_init(&c->wait);
		c->blocked = false;
		found = true;
	}
	return found;
}

bool engine_methods_tired(const struct engine *e)
{
	return e->pieces >= MAX_PIECES;
}
