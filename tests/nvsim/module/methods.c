// SPDX-License-Identifier: MIT OR GPL-2.0
/*
 * Channels that speak methods: push*.c with nvsim's memory, engines and interrupts. All under the
 * engine's lock.
 */
#include <linux/ktime.h>
#include <linux/slab.h>

#include "nvsim.h"

/* A GPU with more to copy than the CPU can move falls behind, as it does with too many works. */
#define MAX_PIECES 16

atomic_t nvsim_sems = ATOMIC_INIT(0);

static bool mem_read(void *ctx, u64 va, void *buf, u32 len)
{
	struct nvchan *c = ctx;

	return nvas_read(c->as, va, buf, len);
}

static bool mem_write(void *ctx, u64 va, const void *buf, u32 len)
{
	struct nvchan *c = ctx;

	return nvas_write(c->as, va, buf, len);
}

static bool mem_exchange(void *ctx, u64 va, u64 *seen, u64 to, u32 len)
{
	struct nvchan *c = ctx;

	return nvas_exchange(c->as, va, seen, to, len);
}

static const struct push_mem memory = { mem_read, mem_write, mem_exchange };

int nvmethods_init(struct nvchan *c)
{
	c->push = kvmalloc(sizeof(*c->push), GFP_KERNEL);
	if (!c->push)
		return -ENOMEM;
	push_init(c->push, &memory, c, &c->tsg->eng->cost);
	return 0;
}

void nvmethods_exit(struct nvchan *c)
{
	kvfree(c->push);
}

/* A GPFIFO entry of a channel that may speak methods. False: its segment is not mapped. */
bool nvmethods_entry(struct nvchan *c, u32 word0, u32 word1)
{
	u32 first;

	push_entry(c->push, word0, word1);
	if (c->speaks != NVCHAN_UNDECIDED || !c->push->words)
		return true;
	if (!nvas_read(c->as, c->push->va, &first, 4))
		return false;
	c->speaks = push_is_method(first) ? NVCHAN_METHODS : NVCHAN_DESCRIPTORS;
	return true;
}

static void set_cost(struct nvengine *e)
{
	e->cost.sm_count = nvsim.sm_count;
	e->cost.copy_bytes_us = max(nvsim.copy_mbps, 1);
	e->cost.launch_ns = max(nvsim.launch_ns, 0);
	e->cost.wave_ns = max(nvsim.wave_ns, 0);
}

static void complain(struct nvengine *e, struct nvchan *c)
{
	struct push *p = c->push;

	pr_info_ratelimited("nvsim: engine %u: %s, subchannel %u class %x method %x\n", e->type,
			    p->why, p->sub, p->cls[p->sub], p->method);
}

/* Reads on: the next work is one like a descriptor's, the segment's end an empty one. */
bool nvmethods_load(struct nvengine *e, struct nvchan *c)
{
	set_cost(e);
	switch (push_next(c->push)) {
	case PUSH_WORK:
		c->push->why = "launch without a compute object";
		if (c->push->kind == PUSH_LAUNCH && !c->compute)
			break;
		c->desc = (struct nvdesc) { .op = NVDESC_METHODS };
		c->remaining = min(c->push->ns, NVSIM_WORK_MAX_NS);
		c->has_desc = true;
		return true;
	case PUSH_END:
		c->desc = (struct nvdesc) { .op = NVDESC_EMPTY };
		c->seg_cnt = 0;
		c->remaining = NVSIM_WORK_MIN_NS;
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
	nvchan_fault(e, c);
	return false;
}

static void interrupt(struct nvengine *e)
{
	set_bit(e->index, &e->gpu->intr);
	schedule_work(&e->gpu->intr_work);
}

/* c's work is complete at e->t. False: it touched an unmapped address. */
bool nvmethods_complete(struct nvengine *e, struct nvchan *c)
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
		c->tsg->rec->works++;
	if (did & PUSH_SIGNALLED)
		atomic_inc(&nvsim_sems);
	if (did & PUSH_INTR)
		interrupt(e);
	if (did & PUSH_YIELD)
		nvengine_expire(e);
	if (did & PUSH_MORE) {
		c->remaining = min(c->push->ns, NVSIM_WORK_MAX_NS);
		c->has_desc = true;
	}
	return true;
}

/*
 * Checks the waiting channels whenever an engine wrote a semaphore, and at most every poll_us for
 * writes of the CPU. Nothing else makes them runnable, so that waiting costs neither a context
 * switch nor the CPU. Returns whether one goes on.
 */
bool nvmethods_look(struct nvengine *e, u64 now)
{
	u32 sems = atomic_read(&nvsim_sems);
	struct nvchan *c, *next;
	bool found = false;

	if (list_empty(&e->waiting) || (sems == e->sems_seen && now < e->look_at))
		return false;
	e->sems_seen = sems;
	e->look_at = now + (u64)max(nvsim.poll_us, 1) * NSEC_PER_USEC;
	list_for_each_entry_safe(c, next, &e->waiting, wait) {
		if (!c->dead && !push_ready(c->push))
			continue;
		list_del_init(&c->wait);
		c->blocked = false;
		found = true;
	}
	return found;
}

bool nvmethods_tired(const struct nvengine *e)
{
	return e->pieces >= MAX_PIECES;
}
