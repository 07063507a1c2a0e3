// SPDX-License-Identifier: MIT OR GPL-2.0
/* Channel groups and channels, and the controls that schedule them. */
#include <linux/delay.h>
#include <linux/ktime.h>
#include <linux/math64.h>
#include <linux/pid.h>
#include <linux/sizes.h>
#include <linux/slab.h>

#include "nvsim.h"

#define MAX_ENDED 4096			/* records kept of TSGs that are gone */
#define SYNC_TIMEOUT_NS (10ull * NSEC_PER_SEC)
#define DISABLE_MAX 64

static atomic_t next_tsg = ATOMIC_INIT(1);
static atomic_t next_token = ATOMIC_INIT(1);

static struct nvengine *engine_of(struct nvgpu *gpu, u32 type)
{
	int i;

	for (i = 0; i < NVSIM_ENGINES; i++)
		if (gpu->eng[i].type == type)
			return &gpu->eng[i];
	return NULL;
}

static struct nvtsg_rec *rec_create(struct nvobj *o, u32 engine)
{
	struct nvtsg_rec *r = kzalloc(sizeof(*r), GFP_KERNEL);

	if (!r)
		return NULL;
	r->hclient = o->client->obj.handle;
	r->htsg = o->handle;
	r->engine = engine;
	r->tgid = o->client->tgid;
	r->pid = get_pid(o->client->pid);
	r->timeslice_us = nvsim.timeslice_us;
	mutex_lock(&o->gpu->rec_lock);
	list_add_tail(&r->link, &o->gpu->recs);
	mutex_unlock(&o->gpu->rec_lock);
	return r;
}

static void rec_end(struct nvgpu *gpu, struct nvtsg_rec *rec)
{
	struct nvtsg_rec *r, *next;

	mutex_lock(&gpu->rec_lock);
	rec->ended = true;
	rec->enabled = false;
	if (++gpu->nr_ended > MAX_ENDED) {
		list_for_each_entry_safe(r, next, &gpu->recs, link) {
			if (!r->ended)
				continue;
			list_del(&r->link);
			put_pid(r->pid);
			kfree(r);
			gpu->nr_ended--;
			break;
		}
	}
	mutex_unlock(&gpu->rec_lock);
}

NV_STATUS nvsim_tsg_create(struct nvobj *o, const struct nv_tsg_params *p)
{
	struct nvengine *e = engine_of(o->gpu, p->engineType ?: NV2080_ENGINE_GR0);
	struct nvobj *vo = nvsim_obj_find_type(o->client, p->hVASpace, NVT_BIT(NVT_VASPACE));
	struct nvtsg *tsg;
	unsigned long flags;

	if (!e)
		return NV_ERR_INVALID_ARGUMENT;
	if (p->hVASpace && !vo)
		return NV_ERR_OBJECT_NOT_FOUND;
	tsg = kzalloc(sizeof(*tsg), GFP_KERNEL);
	if (!tsg)
		return NV_ERR_NO_MEMORY;
	tsg->rec = rec_create(o, e->type);
	if (!tsg->rec) {
		kfree(tsg);
		return NV_ERR_NO_MEMORY;
	}
	INIT_LIST_HEAD(&tsg->chans);
	tsg->eng = e;
	tsg->id = atomic_inc_return(&next_tsg) & 0xffff;
	tsg->slice_ns = (u64)nvsim.timeslice_us * NSEC_PER_USEC;
	tsg->slice_req_ns = tsg->slice_ns;
	if (vo) {
		tsg->as = vo->as;
		nvas_get(tsg->as);
	}
	o->tsg = tsg;
	raw_spin_lock_irqsave(&e->lock, flags);
	list_add_tail(&tsg->link, &e->tsgs);
	raw_spin_unlock_irqrestore(&e->lock, flags);
	return NV_OK;
}

void nvsim_tsg_destroy(struct nvtsg *tsg)
{
	struct nvengine *e = tsg->eng;
	unsigned long flags;

	raw_spin_lock_irqsave(&e->lock, flags);
	nvengine_advance(e, ktime_get_ns());
	nvengine_forget_tsg(e, tsg);
	nvengine_kick(e);
	raw_spin_unlock_irqrestore(&e->lock, flags);
	rec_end(e->gpu, tsg->rec);
	if (tsg->ctx_bytes)
		nvsim_fb_give(e->gpu, tsg->ctx_bytes);
	if (tsg->as)
		nvas_put(tsg->as);
	kfree(tsg);
}

/* Objects the channel needs; each, when freed, frees the channel first. */
static NV_STATUS resolve(struct nvobj *o, struct nvchan *c, const struct nv_chan_params *p)
{
	struct nvclient *cl = o->client;
	struct nvobj *userd = nvsim_obj_find_type(cl, p->hUserdMemory[0], NVT_BIT(NVT_MEMORY));
	struct nvobj *err = nvsim_obj_find_type(cl, p->hObjectError, NVT_BIT(NVT_MEMORY));
	struct nvobj *vo = nvsim_obj_find_type(cl, p->hVASpace, NVT_BIT(NVT_VASPACE));
	struct nvobj *cs = nvsim_obj_find_type(cl, p->hContextShare, NVT_BIT(NVT_CTXSHARE));
	u64 off = p->userdOffset[0];
	struct page *page;

	if (!userd || (p->hVASpace && !vo) || (p->hContextShare && !cs))
		return NV_ERR_OBJECT_NOT_FOUND;
	c->as = vo ? vo->as : cs ? cs->as : c->tsg->as;
	if (!c->as)
		return NV_ERR_INVALID_ARGUMENT;
	if (off % NV_USERD_SIZE || userd->mem->size < NV_USERD_SIZE || off > userd->mem->size - NV_USERD_SIZE || userd->mem->read_only)
		return NV_ERR_INVALID_ARGUMENT;
	page = nvpages_page(userd->mem->pages, off >> PAGE_SHIFT, GFP_KERNEL);
	if (!page)
		return NV_ERR_NO_MEMORY;
	c->userd_get = page_address(page) + offset_in_page(off) + NV_USERD_GPGET;
	c->userd_put = page_address(page) + offset_in_page(off) + NV_USERD_GPPUT;
	c->userd_mem = userd->mem;
	nvmem_get(c->userd_mem);
	nvsim_dep_add(&c->deps[0], userd, o);
	nvas_get(c->as);
	if (err) {
		c->notifier = err->mem;
		nvmem_get(c->notifier);
		nvsim_dep_add(&c->deps[1], err, o);
	}
	if (cs)
		nvsim_dep_add(&c->deps[2], cs, o);
	return NV_OK;
}

NV_STATUS nvsim_chan_create(struct nvobj *o, const struct nv_chan_params *p)
{
	struct nvtsg *tsg = o->parent->tsg;
	struct nvengine *e = tsg->eng;
	struct nvchan *c;
	unsigned long flags;
	NV_STATUS st;
	int i;

	if (!p->gpFifoEntries || p->gpFifoEntries > SZ_1M || (p->gpFifoOffset & 7) || p->gpFifoOffset >= 1ull << 49)
		return NV_ERR_INVALID_ARGUMENT;
	if (p->engineType && p->engineType != e->type)
		return NV_ERR_INVALID_ARGUMENT;
	c = kzalloc(sizeof(*c), GFP_KERNEL);
	if (!c)
		return NV_ERR_NO_MEMORY;
	for (i = 0; i < NVSIM_DEPS; i++)
		INIT_LIST_HEAD(&c->deps[i].link);
	c->tsg = tsg;
	c->obj = o;
	c->gp_va = p->gpFifoOffset;
	c->entries = p->gpFifoEntries;
	c->token = atomic_inc_return(&next_token) & 0x7ffffff;
	st = resolve(o, c, p);
	if (st != NV_OK) {
		kfree(c);
		return st;
	}
	WRITE_ONCE(*c->userd_get, 0);
	o->chan = c;
	raw_spin_lock_irqsave(&e->lock, flags);
	list_add_tail(&c->link, &tsg->chans);
	raw_spin_unlock_irqrestore(&e->lock, flags);
	return NV_OK;
}

void nvsim_chan_destroy(struct nvchan *c)
{
	struct nvengine *e = c->tsg->eng;
	unsigned long flags;
	int i;

	raw_spin_lock_irqsave(&e->lock, flags);
	nvengine_advance(e, ktime_get_ns());
	list_del(&c->link);
	if (c->tsg->rr == c)
		c->tsg->rr = NULL;
	if (c->enabled)
		e->enabled_chans--;
	nvengine_forget_chan(e, c);
	nvengine_kick(e);
	raw_spin_unlock_irqrestore(&e->lock, flags);
	for (i = 0; i < NVSIM_DEPS; i++)
		list_del(&c->deps[i].link);
	nvmem_put(c->userd_mem);
	if (c->notifier)
		nvmem_put(c->notifier);
	nvas_put(c->as);
	kfree(c);
}

/* A compute or copy object. The first one of a graphics TSG brings its context buffers, which no client owns. */
NV_STATUS nvsim_engobj_create(struct nvobj *o, bool copy)
{
	struct nvchan *c = o->parent->chan;
	struct nvengine *e = c->tsg->eng;
	u64 bytes = (u64)nvsim.ctx_mib * SZ_1M, addr;
	unsigned long flags;

	if (!copy && e->type != NV2080_ENGINE_GR0)
		return NV_ERR_INVALID_CLASS;
	if (e->type == NV2080_ENGINE_GR0 && !c->tsg->ctx_bytes && bytes) {
		if (!nvsim_fb_take(o->gpu, bytes, &addr))
			return NV_ERR_NO_MEMORY;
		c->tsg->ctx_bytes = bytes;
	}
	raw_spin_lock_irqsave(&e->lock, flags);
	if (copy)
		c->copy = true;
	else
		c->compute = true;
	raw_spin_unlock_irqrestore(&e->lock, flags);
	return NV_OK;
}

/* Runs @fn on the engine, in the middle of what a call to the firmware takes. */
static NV_STATUS on_engine(struct nvengine *e, NV_STATUS (*fn)(struct nvengine *e, struct nvctl *c), struct nvctl *c)
{
	u32 left = nvsim_rpc_begin(e->gpu);
	unsigned long flags;
	NV_STATUS st;

	raw_spin_lock_irqsave(&e->lock, flags);
	nvengine_advance(e, ktime_get_ns());
	st = fn(e, c);
	nvengine_kick(e);
	raw_spin_unlock_irqrestore(&e->lock, flags);
	nvsim_rpc_end(e->gpu, left);
	return st;
}

static struct nvtsg *tsg_of(struct nvctl *c)
{
	return c->obj->type == NVT_TSG ? c->obj->tsg : c->obj->chan->tsg;
}

static bool tsg_dead(struct nvtsg *tsg)
{
	struct nvchan *ch;

	list_for_each_entry(ch, &tsg->chans, link)
		if (ch->dead)
			return true;
	return false;
}

static void enable_chan(struct nvengine *e, struct nvchan *ch)
{
	if (!ch->enabled)
		e->enabled_chans++;
	ch->enabled = true;
	ch->tsg->enabled = true;
	ch->tsg->rec->enabled = true;
}

/* bEnable = 0 is answered and does nothing to work that comes by doorbell: so it is reported of the real one. */
static NV_STATUS do_schedule(struct nvengine *e, struct nvctl *c)
{
	u8 *p = c->params;
	struct nvchan *ch;

	if (tsg_dead(tsg_of(c)))
		return NV_ERR_INVALID_STATE;
	if (!p[0])
		return NV_OK;
	if (c->obj->type == NVT_CHANNEL) {
		enable_chan(e, c->obj->chan);
		return NV_OK;
	}
	list_for_each_entry(ch, &c->obj->tsg->chans, link)
		enable_chan(e, ch);
	return NV_OK;
}

static void apply_slice(struct nvengine *e, struct nvtsg *tsg)
{
	if (nvsim.lever_inert & 1)
		return;
	tsg->slice_ns = max(tsg->slice_req_ns, (u64)NSEC_PER_USEC);
}

static NV_STATUS do_set_timeslice(struct nvengine *e, struct nvctl *c)
{
	struct nvtsg *tsg = c->obj->tsg;
	u64 us = *(u64 *)c->params;

	if (!us || us > 100 * USEC_PER_SEC)
		return NV_ERR_INVALID_ARGUMENT;
	tsg->slice_req_ns = us * NSEC_PER_USEC;
	tsg->rec->timeslice_us = us;
	if (!nvsim.commit_required || !tsg->enabled)
		apply_slice(e, tsg);
	return NV_OK;
}

static NV_STATUS do_preempt(struct nvengine *e, struct nvctl *c)
{
	if (tsg_dead(c->obj->tsg))
		return NV_ERR_INVALID_STATE;
	if (e->cur == c->obj->tsg)
		nvengine_expire(e);
	return NV_OK;
}

static NV_STATUS do_nothing(struct nvengine *e, struct nvctl *c)
{
	return NV_OK;
}

static void set_disabled(struct nvengine *e, struct nvchan *ch, bool preempt)
{
	if (nvsim.lever_inert & 2)
		return;
	ch->disabled = ch->disable_req;
	if (ch->disabled && preempt)
		nvengine_stop_chan(e, ch);
}

/* Commits what waits for it on this runlist, then starts it afresh. */
static NV_STATUS do_restart(struct nvengine *e, struct nvctl *c)
{
	struct nvtsg *tsg;
	struct nvchan *ch;

	if (c->obj->chan->dead || nvsim_chance(e->gpu, nvsim.err40_pct))
		return NV_ERR_INVALID_STATE;
	list_for_each_entry(tsg, &e->tsgs, link) {
		apply_slice(e, tsg);
		if (!nvsim.disable_needs_restart)
			continue;
		list_for_each_entry(ch, &tsg->chans, link)
			set_disabled(e, ch, true);
	}
	nvengine_expire(e);
	return NV_OK;
}

static NV_STATUS do_stop(struct nvengine *e, struct nvctl *c)
{
	nvchan_fault(e, c->obj->chan);
	nvengine_forget_chan(e, c->obj->chan);
	return NV_OK;
}

static NV_STATUS ctl_schedule(struct nvctl *c)
{
	return on_engine(tsg_of(c)->eng, do_schedule, c);
}

static NV_STATUS ctl_set_timeslice(struct nvctl *c)
{
	return on_engine(c->obj->tsg->eng, do_set_timeslice, c);
}

static NV_STATUS ctl_get_timeslice(struct nvctl *c)
{
	*(u64 *)c->params = div_u64(READ_ONCE(c->obj->tsg->slice_req_ns), NSEC_PER_USEC);
	return NV_OK;
}

/* Waits, asleep and with the GPU lock held by the caller, until @ch is off the engine. */
static NV_STATUS wait_off(struct nvengine *e, struct nvchan *ch)
{
	u64 until = ktime_get_ns() + SYNC_TIMEOUT_NS;
	unsigned long flags;
	bool on;

	for (;;) {
		raw_spin_lock_irqsave(&e->lock, flags);
		nvengine_kick(e);
		on = e->chan == ch && !nvchan_usable(ch);
		raw_spin_unlock_irqrestore(&e->lock, flags);
		if (!on)
			return NV_OK;
		if (ktime_get_ns() > until)
			return NV_ERR_TIMEOUT;
		usleep_range(50, 100);
	}
}

static NV_STATUS ctl_preempt(struct nvctl *c)
{
	return on_engine(c->obj->tsg->eng, do_preempt, c);
}

static NV_STATUS ctl_tsg_info(struct nvctl *c)
{
	*(u32 *)c->params = c->obj->tsg->id;
	return NV_OK;
}

static NV_STATUS ctl_set_interleave(struct nvctl *c)
{
	u32 level = *(u32 *)c->params;

	if (level > 2)
		return NV_ERR_INVALID_ARGUMENT;
	tsg_of(c)->interleave = level;
	return on_engine(tsg_of(c)->eng, do_nothing, c);
}

static NV_STATUS ctl_get_interleave(struct nvctl *c)
{
	*(u32 *)c->params = tsg_of(c)->interleave;
	return NV_OK;
}

static NV_STATUS ctl_inert(struct nvctl *c)
{
	return on_engine(tsg_of(c)->eng, do_nothing, c);
}

static NV_STATUS ctl_local(struct nvctl *c)
{
	return NV_OK;
}

static NV_STATUS ctl_restart(struct nvctl *c)
{
	return on_engine(c->obj->chan->tsg->eng, do_restart, c);
}

static NV_STATUS ctl_stop(struct nvctl *c)
{
	return on_engine(c->obj->chan->tsg->eng, do_stop, c);
}

static NV_STATUS ctl_token(struct nvctl *c)
{
	*(u32 *)c->params = c->obj->chan->token;
	return on_engine(c->obj->chan->tsg->eng, do_nothing, c);
}

struct disable_channels {
	u8 disable, _p0[3];
	u32 count;
	u8 only_scheduling, rewind, _p1[6];
	u64 event;
	u32 client[DISABLE_MAX], channel[DISABLE_MAX];
};

static struct nvchan *find_chan(struct nvgpu *gpu, u32 hclient, u32 hchan, NV_STATUS *st)
{
	struct nvclient *cl = nvsim_client_find(hclient);
	struct nvobj *o;

	*st = NV_ERR_INVALID_CLIENT;
	if (!cl)
		return NULL;
	*st = NV_ERR_OBJECT_NOT_FOUND;
	o = nvsim_obj_find_type(cl, hchan, NVT_BIT(NVT_CHANNEL));
	if (!o || o->gpu != gpu)
		return NULL;
	*st = NV_OK;
	return o->chan;
}

static void disable_one(struct nvchan *ch, bool disable, bool preempt)
{
	struct nvengine *e = ch->tsg->eng;
	unsigned long flags;

	raw_spin_lock_irqsave(&e->lock, flags);
	nvengine_advance(e, ktime_get_ns());
	ch->disable_req = disable;
	if (!nvsim.disable_needs_restart)
		set_disabled(e, ch, preempt);
	nvengine_kick(e);
	raw_spin_unlock_irqrestore(&e->lock, flags);
}

/*
 * The channels in the list may be anybody's: the driver hands it to the firmware unchecked. Entries before a bad one
 * have been done when it fails.
 */
static NV_STATUS ctl_disable_channels(struct nvctl *c)
{
	struct disable_channels *p = c->params;
	struct nvgpu *gpu = c->obj->gpu;
	NV_STATUS st = NV_OK;
	struct nvchan *ch;
	u32 left, i;

	if (p->count > DISABLE_MAX)
		return NV_ERR_INVALID_ARGUMENT;
	if (p->event && !c->sec->kernel)
		return NV_ERR_INSUFFICIENT_PERMISSIONS;
	left = nvsim_rpc_begin(gpu);
	for (i = 0; i < p->count && st == NV_OK; i++) {
		ch = find_chan(gpu, p->client[i], p->channel[i], &st);
		if (ch)
			disable_one(ch, p->disable, !p->only_scheduling);
	}
	for (i = 0; i < p->count && st == NV_OK && p->disable && !p->only_scheduling; i++) {
		ch = find_chan(gpu, p->client[i], p->channel[i], &st);
		if (ch)
			st = wait_off(ch->tsg->eng, ch);
	}
	nvsim_rpc_end(gpu, left);
	return st;
}

static NV_STATUS ctl_sched_policy(struct nvctl *c)
{
	nvsim_rpc_end(c->obj->gpu, nvsim_rpc_begin(c->obj->gpu));
	return NV_OK;
}

#define TSG NVT_BIT(NVT_TSG)
#define CHAN NVT_BIT(NVT_CHANNEL)

/* ctrla06c.h, ctrla06fgpfifo.h, ctrlc36f.h, ctrl906f.h, ctrl2080fifo.h */
const struct nvctl_entry nvsim_ctrl_sched[] = {
	{ 0xa06c0101, 3, TSG, 0, ctl_schedule },
	{ 0xa06c0102, 4, TSG, 0, ctl_local },
	{ 0xa06c0103, 8, TSG, 0, ctl_set_timeslice },
	{ 0xa06c0104, 8, TSG, 0, ctl_get_timeslice },
	{ 0xa06c0105, 8, TSG, 0, ctl_preempt },
	{ 0xa06c0106, 4, TSG, 0, ctl_tsg_info },
	{ 0xa06c0107, 4, TSG, NVCTL_NICE, ctl_set_interleave },
	{ 0xa06c0108, 4, TSG, 0, ctl_get_interleave },
	{ 0xa06c0110, 1, TSG, NVCTL_NICE, ctl_inert },
	{ 0xa06f0103, 3, CHAN, 0, ctl_schedule },
	{ 0xa06f0104, 4, CHAN, 0, ctl_inert },
	{ 0xa06f0109, 4, CHAN, NVCTL_NICE, ctl_set_interleave },
	{ 0xa06f0111, 2, CHAN, NVCTL_NICE, ctl_restart },
	{ 0xa06f0112, 1, CHAN, 0, ctl_stop },
	{ 0xc36f0108, 4, CHAN, 0, ctl_token },
	{ 0xc36f0101, -16, CHAN, 0, ctl_local },
	{ 0x906f0101, -24, CHAN, 0, ctl_local },
	{ 0x906f0102, -16, CHAN, 0, ctl_stop },
	{ 0x2080110b, sizeof(struct disable_channels), NVT_BIT(NVT_SUBDEVICE), 0, ctl_disable_channels },
	{ 0x20801115, 8, NVT_BIT(NVT_SUBDEVICE), NVCTL_NICE, ctl_sched_policy },
	{}
};
