// SPDX-License-Identifier: MIT OR GPL-2.0-only
/*
 * Channels and groups as the GSP hears of them, on the engines of ../engine; memory by the page tables that RM has
 * written. Everything but the mem_*() is called by the GSP, in a process and with RM's locks held.
 */
#include <linux/delay.h>
#include <linux/export.h>
#include <linux/ktime.h>
#include <linux/sched.h>
#include <linux/slab.h>

#include "core/nv_abi.h"
#include "simgpu.h"

#define CLASS_TSG 0xa06c
#define USERD_GET 0x88
#define USERD_PUT 0x8c
#define VF_DOORBELL 0x810090		/* in the page that clients map */
#define CHRAM 0xd0000			/* of the GSP's table of engines: runlist n at + n * CHRAM_BYTES */
#define CHRAM_BYTES 0x2000
#define BOOT_42_AMPERE 0x17		/* architecture, NV_PMC_BOOT_42 bits 28:24 and up */
#define OFF_TIMEOUT_NS (10ull * NSEC_PER_SEC)

struct sim_tsg {
	struct engine_tsg run;
	struct engine_count count;
	struct list_head link, chans;	/* simgpu.tsgs; struct sim_chan: simgpu.lock */
	u32 client, handle;
};

struct sim_chan {
	struct engine_chan run;
	struct list_head link;		/* sim_tsg.chans: simgpu.lock */
	struct gsp_card *card;
	u32 client, handle;
	void *space;			/* RM's address space, found when the channel is complete */
	struct gsp_phys root;		/* of its page tables */
	bool has_root;			/* written last, read by the engine */
};

/* ---- memory, for the engine: any context ---- */

static void *at(struct sim_chan *c, u64 va, u64 *left)
{
	struct gsp_phys p;
	gsp_u64 n;

	if (va & PUSH_PHYSICAL) {
		p.space = push_target(va) ? GSP_SYSMEM : GSP_FB;
		p.address = push_address(va);
		*left = PAGE_SIZE - (p.address & ~PAGE_MASK);
		return gsp_cpu(c->card, p, *left);
	}
	if (!smp_load_acquire(&c->has_root) || !gsp_walk(c->card, c->root, va, &p, &n)) {
		pr_info_ratelimited("simgpu: channel %x:%x: nothing is mapped at %llx, page directory at %s%llx\n", c->client,
				    c->handle, va, !c->has_root ? "none " : c->root.space == GSP_FB ? "" : "sysmem ",
				    c->root.address);
		return NULL;
	}
	*left = n;
	return gsp_cpu(c->card, p, n);
}

static bool mem_read(void *space, u64 va, void *buf, u32 len)
{
	while (len) {
		u64 left;
		void *p = at(space, va, &left);
		u32 n = min_t(u64, len, left);

		if (!p)
			return false;
		memcpy(buf, p, n);
		va += n;
		buf += n;
		len -= n;
	}
	return true;
}

static bool mem_write(void *space, u64 va, const void *buf, u32 len)
{
	while (len) {
		u64 left;
		void *p = at(space, va, &left);
		u32 n = min_t(u64, len, left);

		if (!p)
			return false;
		if (n == 4 && !(va & 3))
			WRITE_ONCE(*(u32 *)p, *(const u32 *)buf);
		else if (n == 8 && !(va & 7))
			WRITE_ONCE(*(u64 *)p, *(const u64 *)buf);
		else
			memcpy(p, buf, n);
		va += n;
		buf += n;
		len -= n;
	}
	return true;
}

static bool mem_exchange(void *space, u64 va, u64 *seen, u64 to, u32 len)
{
	u64 left;
	void *p = at(space, va, &left);

	if (!p || left < len)
		return false;
	*seen = len == 8 ? cmpxchg((u64 *)p, *seen, to) : cmpxchg((u32 *)p, (u32)*seen, (u32)to);
	return true;
}

static void fault(struct engine *e)
{
	pr_info_ratelimited("simgpu: engine %u: a channel faulted\n", e->type);
}

/* Processes that wait for an event of the engine check again. */
static void interrupt(struct engine *e)
{
	struct simgpu *g = container_of(e->card, struct simgpu, card);

	gsp_interrupt(&g->gsp, e->index ? GSP_VECTOR_COPY0 + e->index - 1 : GSP_VECTOR_GR0);
}

/* ---- objects ---- */

static struct sim_tsg *find_tsg(struct simgpu *g, u32 client, u32 handle)
{
	struct sim_tsg *t;

	list_for_each_entry(t, &g->tsgs, link)
		if (t->client == client && t->handle == handle)
			return t;
	return NULL;
}

static struct sim_chan *find_chan(struct simgpu *g, u32 client, u32 handle)
{
	struct sim_tsg *t;
	struct sim_chan *c;

	list_for_each_entry(t, &g->tsgs, link)
		list_for_each_entry(c, &t->chans, link)
			if (c->client == client && c->handle == handle)
				return c;
	return NULL;
}

/* The engine of a runlist: copy engines that share one with graphics are it. NULL: nothing is executed, as by a decoder. */
static struct engine *engine_of(struct simgpu *g, u32 type)
{
	u32 copy = type - NV2080_ENGINE_TYPE_COPY0;

	if (type <= NV2080_ENGINE_TYPE_GRAPHICS)
		return &g->eng[0];
	if (copy < g->gsp.chip->copy_engines)
		return &g->eng[1 + copy];
	return copy < gsp_copies(g->gsp.chip) ? &g->eng[0] : NULL;
}

static struct sim_tsg *add_tsg(struct simgpu *g, u32 client, u32 handle, u32 type)
{
	struct engine *e = engine_of(g, type);
	struct sim_tsg *t = e ? kzalloc(sizeof(*t), GFP_KERNEL) : NULL;

	if (!t)
		return NULL;
	t->client = client;
	t->handle = handle;
	t->count.tgid = task_tgid_nr(current);
	INIT_LIST_HEAD(&t->chans);
	list_add_tail(&t->link, &g->tsgs);
	engine_add_tsg(e, &t->run, &t->count);
	return t;
}

static void remove_chan(struct sim_chan *c)
{
	list_del(&c->link);
	engine_remove_chan(&c->run);
	engine_methods_exit(&c->run);
	kfree(c);
}

static void remove_tsg(struct sim_tsg *t)
{
	struct sim_chan *c, *next;

	list_for_each_entry_safe(c, next, &t->chans, link)
		remove_chan(c);
	list_del(&t->link);
	engine_remove_tsg(&t->run);
	kfree(t);
}

static bool has_pccsr(const struct simgpu *g)
{
	return g->gsp.chip->boot_42 >> 24 < BOOT_42_AMPERE;
}

/* The register with the state of channel @id; on Turing all runlists share the ids. */
static u32 *word_of(struct simgpu *g, struct engine *e, u32 id)
{
	if (has_pccsr(g))
		return id < NV_PCCSR_CHANNELS ? (u32 *)g->gsp.regs + NV_PCCSR / 4 + id * 2 + 1 : NULL;
	return (u32 *)g->gsp.regs + (CHRAM + e->index * CHRAM_BYTES) / 4 + id;
}

/* A channel that is no member of a group is a group of its own, by the channel's handle. */
int gsp_engine_channel(struct gsp_card *card, const struct gsp_channel *p)
{
	struct simgpu *g = simgpu_of(card);
	u8 *userd = gsp_cpu(card, p->userd, NV_RAMUSERD_CHAN_SIZE);
	struct sim_chan *c = kzalloc(sizeof(*c), GFP_KERNEL);
	struct sim_tsg *t;

	if (!engine_of(g, p->engine)) {
		kfree(c);
		return 1;
	}
	if (!c || !userd)
		goto err;
	c->card = card;
	c->client = p->client;
	c->handle = p->handle;
	c->run.space = c;
	c->run.gp_va = p->gpfifo;
	c->run.entries = p->entries;
	c->run.userd_get = (u32 *)(userd + USERD_GET);
	c->run.userd_put = (u32 *)(userd + USERD_PUT);
	mutex_lock(&g->lock);
	t = find_tsg(g, p->client, p->parent) ?: add_tsg(g, p->client, p->handle, p->engine);
	if (!t)
		goto err_lock;
	c->run.tsg = &t->run;
	if (engine_methods_init(&c->run))
		goto err_lock;
	c->run.push->privileged = p->privileged;
	c->run.chram = word_of(g, t->run.eng, p->id);
	list_add_tail(&c->link, &t->chans);
	/*
	 * A new channel's context says that nothing is queued. USERD may be memory of an earlier channel, and the engine
	 * looks at it whenever any channel rings.
	 */
	WRITE_ONCE(*c->run.userd_put, 0);
	engine_add_chan(&c->run);
	mutex_unlock(&g->lock);
	return 1;

err_lock:
	mutex_unlock(&g->lock);
err:
	kfree(c);
	return 0;
}
EXPORT_SYMBOL(gsp_engine_channel);

void gsp_engine_free(struct gsp_card *card, gsp_u32 client, gsp_u32 object)
{
	struct simgpu *g = simgpu_of(card);
	struct sim_tsg *t, *next;
	struct sim_chan *c;

	mutex_lock(&g->lock);
	c = find_chan(g, client, object);
	if (c)
		remove_chan(c);
	list_for_each_entry_safe(t, next, &g->tsgs, link)
		if (t->client == client && (t->handle == object || client == object))
			remove_tsg(t);
	mutex_unlock(&g->lock);
}
EXPORT_SYMBOL(gsp_engine_free);

/* What a channel's address space is now; RM may have made or replaced its page directory since. */
static void find_root(struct sim_chan *c)
{
	struct gsp_phys root;

	if (!c->space && !c->card->calls->space(c->card, c->client, c->handle, &c->space))
		return;
	if (!c->card->calls->directory(c->card, c->space, &root))
		return;
	if (c->has_root && c->root.space == root.space && c->root.address == root.address)
		return;
	c->root = root;
	smp_store_release(&c->has_root, true);
}

static void find_roots(struct simgpu *g)
{
	struct sim_tsg *t;
	struct sim_chan *c;

	list_for_each_entry(t, &g->tsgs, link)
		list_for_each_entry(c, &t->chans, link)
			find_root(c);
}

static void set_object(struct simgpu *g, const struct gsp_seen *s)
{
	struct sim_chan *c = find_chan(g, s->client, s->parent);
	u32 kind = s->number & 0xff;

	if (c && (kind == 0xc0 || kind == 0xb5))
		engine_set_object(&c->run, s->number, kind == 0xb5 ? ENGINE_OBJECT_COPY : ENGINE_OBJECT_COMPUTE);
}

void gsp_host_seen(struct gsp_card *card, const struct gsp_seen *s)
{
	struct simgpu *g = simgpu_of(card);

	mutex_lock(&g->lock);
	find_roots(g);
	if (s->request == GSP_ALLOC && s->number == CLASS_TSG && s->bytes >= 16)
		add_tsg(g, s->client, s->object, ((const u32 *)s->params)[3]);
	else if (s->request == GSP_ALLOC)
		set_object(g, s);
	mutex_unlock(&g->lock);
}
EXPORT_SYMBOL(gsp_host_seen);

/* ---- controls ---- */

/* Runs on the engine of a group or channel, advanced to now. Returns 0 if there is neither. */
static int on_engine(struct gsp_card *card, u32 client, u32 object,
		     void (*fn)(struct engine *e, struct sim_tsg *t, struct sim_chan *c, u64 arg), u64 arg)
{
	struct simgpu *g = simgpu_of(card);
	struct sim_chan *c;
	struct sim_tsg *t;
	struct engine *e;
	unsigned long flags;

	mutex_lock(&g->lock);
	c = find_chan(g, client, object);
	t = c ? container_of(c->run.tsg, struct sim_tsg, run) : find_tsg(g, client, object);
	if (t) {
		e = t->run.eng;
		raw_spin_lock_irqsave(&e->lock, flags);
		engine_advance(e, ktime_get_ns());
		fn(e, t, c, arg);
		engine_kick(e);
		raw_spin_unlock_irqrestore(&e->lock, flags);
	}
	mutex_unlock(&g->lock);
	return !!t;
}

static void schedule_on(struct engine *e, struct sim_tsg *t, struct sim_chan *c, u64 on)
{
	struct engine_chan *each;

	if (!on)
		return;		/* as in nvsim: without effect on work that comes by doorbell */
	list_for_each_entry(each, &t->run.chans, link)
		if (!c || each == &c->run)
			engine_enable_chan(e, each);
}

static void slice_on(struct engine *e, struct sim_tsg *t, struct sim_chan *c, u64 us)
{
	engine_set_timeslice(e, &t->run, us);
}

static void preempt_on(struct engine *e, struct sim_tsg *t, struct sim_chan *c, u64 arg)
{
	engine_preempt(e, &t->run);
}

static void restart_on(struct engine *e, struct sim_tsg *t, struct sim_chan *c, u64 arg)
{
	engine_restart(e);
}

void gsp_engine_schedule(struct gsp_card *card, gsp_u32 client, gsp_u32 object, int on)
{
	on_engine(card, client, object, schedule_on, on);
}
EXPORT_SYMBOL(gsp_engine_schedule);

void gsp_engine_timeslice(struct gsp_card *card, gsp_u32 client, gsp_u32 tsg, gsp_u64 us)
{
	on_engine(card, client, tsg, slice_on, us);
}
EXPORT_SYMBOL(gsp_engine_timeslice);

void gsp_engine_preempt(struct gsp_card *card, gsp_u32 client, gsp_u32 object)
{
	on_engine(card, client, object, preempt_on, 0);
}
EXPORT_SYMBOL(gsp_engine_preempt);

void gsp_engine_restart(struct gsp_card *card, gsp_u32 client, gsp_u32 channel)
{
	on_engine(card, client, channel, restart_on, 0);
}
EXPORT_SYMBOL(gsp_engine_restart);

/* Waits until the channel is off the engine, as the firmware does. */
void gsp_engine_disable(struct gsp_card *card, gsp_u32 client, gsp_u32 channel, int off)
{
	struct simgpu *g = simgpu_of(card);
	u64 until = ktime_get_ns() + OFF_TIMEOUT_NS;
	struct sim_chan *c;

	mutex_lock(&g->lock);
	c = find_chan(g, client, channel);
	if (c)
		engine_disable_chan(&c->run, off, true);
	while (c && off && engine_chan_is_on(&c->run) && ktime_get_ns() < until)
		usleep_range(50, 100);
	mutex_unlock(&g->lock);
}
EXPORT_SYMBOL(gsp_engine_disable);

/*
 * RM's own doorbell, by its register function. RM may have made the channel's page directory without a word to the GSP:
 * in a second start nothing comes between the mapping and the work.
 */
void gsp_engine_poll(struct gsp_card *card)
{
	struct simgpu *g = simgpu_of(card);

	mutex_lock(&g->lock);
	find_roots(g);
	mutex_unlock(&g->lock);
	atomic_inc(&g->card.ring);
}
EXPORT_SYMBOL(gsp_engine_poll);

void gsp_engine_start(struct gsp_card *card)
{
}
EXPORT_SYMBOL(gsp_engine_start);

/* RM is gone from the card, and with it what it had not freed. */
void gsp_engine_stop(struct gsp_card *card)
{
	struct simgpu *g = simgpu_of(card);
	struct sim_tsg *t, *next;

	mutex_lock(&g->lock);
	list_for_each_entry_safe(t, next, &g->tsgs, link)
		remove_tsg(t);
	mutex_unlock(&g->lock);
}
EXPORT_SYMBOL(gsp_engine_stop);

void simgpu_engines_init(struct simgpu *g)
{
	int i;

	mutex_init(&g->lock);
	INIT_LIST_HEAD(&g->tsgs);
	g->card.rules = &simgpu_rules;
	g->card.pccsr = has_pccsr(g);
	g->card.mem = (struct push_mem) { mem_read, mem_write, mem_exchange };
	g->card.doorbell = (u32 *)g->gsp.regs + VF_DOORBELL / 4;
	*g->card.doorbell = ENGINE_NOT_RUNG;
	g->card.fault = fault;
	g->card.interrupt = interrupt;
	for (i = 0; i < SIMGPU_ENGINES; i++)
		engine_init(&g->eng[i], &g->card, i, i ? NV2080_ENGINE_TYPE_COPY0 + i - 1 : NV2080_ENGINE_TYPE_GRAPHICS);
}

void simgpu_engines_exit(struct simgpu *g)
{
	int i;

	gsp_engine_stop(&g->gsp);
	for (i = 0; i < SIMGPU_ENGINES; i++)
		engine_stop(&g->eng[i]);
}
