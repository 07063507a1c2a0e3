// SPDX-License-Identifier: MIT OR GPL-2.0-only
/* The controls that schedule channel groups and channels: each a call to the GPU's firmware. */
#include <linux/delay.h>
#include <linux/ktime.h>
#include <linux/math64.h>

#include "nvsim.h"

#define SYNC_TIMEOUT_NS (10ull * NSEC_PER_SEC)
#define PREEMPTION_CILP_SET 1
#define DISABLE_MAX 64

/* Runs @fn on the engine, in the middle of the time of a call to the firmware. */
static NV_STATUS on_engine(struct engine *e, NV_STATUS (*fn)(struct engine *e, struct nvctl *c), struct nvctl *c)
{
	u32 left = nvsim_rpc_begin(nvsim_gpu_of(e));
	unsigned long flags;
	NV_STATUS st;

	raw_spin_lock_irqsave(&e->lock, flags);
	engine_advance(e, ktime_get_ns());
	st = fn(e, c);
	engine_kick(e);
	raw_spin_unlock_irqrestore(&e->lock, flags);
	nvsim_rpc_end(nvsim_gpu_of(e), left);
	return st;
}

static struct nvtsg *tsg_of(struct nvctl *c)
{
	return c->obj->type == NVT_TSG ? c->obj->tsg : nvchan_tsg(c->obj->chan);
}

/* ch's group is scheduled from now on. */
static void enable_chan(struct engine *e, struct engine_chan *ch)
{
	engine_enable_chan(e, ch);
	container_of(ch->tsg, struct nvtsg, run)->rec->enabled = true;
}

/* bEnable = 0 is answered and does nothing to work that comes by doorbell: so it is reported of the real one. */
static NV_STATUS do_schedule(struct engine *e, struct nvctl *c)
{
	u8 *p = c->params;
	struct engine_chan *ch;

	if (engine_tsg_dead(&tsg_of(c)->run))
		return NV_ERR_INVALID_STATE;
	if (!p[0] || p[1])	/* bSkipSubmit: not on the runlist yet */
		return NV_OK;
	if (c->obj->type == NVT_CHANNEL) {
		enable_chan(e, &c->obj->chan->run);
		return NV_OK;
	}
	list_for_each_entry(ch, &c->obj->tsg->run.chans, link)
		enable_chan(e, ch);
	return NV_OK;
}

static NV_STATUS do_set_timeslice(struct engine *e, struct nvctl *c)
{
	struct nvtsg *tsg = c->obj->tsg;
	u64 us = *(u64 *)c->params;

	if (!us || us > 100 * USEC_PER_SEC)
		return NV_ERR_INVALID_ARGUMENT;
	tsg->rec->timeslice_us = us;
	engine_set_timeslice(e, &tsg->run, us);
	return NV_OK;
}

static NV_STATUS do_preempt(struct engine *e, struct nvctl *c)
{
	if (engine_tsg_dead(&c->obj->tsg->run))
		return NV_ERR_INVALID_STATE;
	engine_preempt(e, &c->obj->tsg->run);
	return NV_OK;
}

static NV_STATUS do_nothing(struct engine *e, struct nvctl *c)
{
	return NV_OK;
}

static NV_STATUS do_restart(struct engine *e, struct nvctl *c)
{
	if (c->obj->chan->run.dead || nvsim_chance(nvsim_gpu_of(e), nvsim.err40_pct))
		return NV_ERR_INVALID_STATE;
	engine_restart(e);
	return NV_OK;
}

static NV_STATUS do_stop(struct engine *e, struct nvctl *c)
{
	engine_kill_chan(e, &c->obj->chan->run);
	return NV_OK;
}

static NV_STATUS ctl_schedule(struct nvctl *c)
{
	return on_engine(tsg_of(c)->run.eng, do_schedule, c);
}

static NV_STATUS ctl_set_timeslice(struct nvctl *c)
{
	return on_engine(c->obj->tsg->run.eng, do_set_timeslice, c);
}

static NV_STATUS ctl_get_timeslice(struct nvctl *c)
{
	*(u64 *)c->params = div_u64(READ_ONCE(c->obj->tsg->run.slice_req_ns), NSEC_PER_USEC);
	return NV_OK;
}

/* Waits, asleep and with the GPU lock held by the caller, until @ch is off the engine. */
static NV_STATUS wait_off(struct nvchan *ch)
{
	u64 until = ktime_get_ns() + SYNC_TIMEOUT_NS;

	while (engine_chan_is_on(&ch->run)) {
		if (ktime_get_ns() > until)
			return NV_ERR_TIMEOUT;
		usleep_range(50, 100);
	}
	return NV_OK;
}

static NV_STATUS ctl_preempt(struct nvctl *c)
{
	return on_engine(c->obj->tsg->run.eng, do_preempt, c);
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
	return on_engine(tsg_of(c)->run.eng, do_nothing, c);
}

static NV_STATUS ctl_get_interleave(struct nvctl *c)
{
	*(u32 *)c->params = tsg_of(c)->interleave;
	return NV_OK;
}

static NV_STATUS ctl_ineffective(struct nvctl *c)
{
	return on_engine(tsg_of(c)->run.eng, do_nothing, c);
}

/* {engineType}. Group and channel are on a runlist from their beginning. */
static NV_STATUS ctl_bind(struct nvctl *c)
{
	struct nvtsg *tsg = tsg_of(c);
	u32 type = *(u32 *)c->params;
	struct engine *e = nvsim_engine_of(c->obj->gpu, type);

	if (!e)
		return NV_ERR_INVALID_ARGUMENT;
	if (e != tsg->run.eng)
		return NV_ERR_INVALID_STATE;
	tsg->rec->bound = type;
	return c->obj->type == NVT_CHANNEL ? on_engine(e, do_nothing, c) : NV_OK;
}

static NV_STATUS ctl_restart(struct nvctl *c)
{
	return on_engine(c->obj->chan->run.tsg->eng, do_restart, c);
}

static NV_STATUS ctl_stop(struct nvctl *c)
{
	return on_engine(c->obj->chan->run.tsg->eng, do_stop, c);
}

static NV_STATUS ctl_token(struct nvctl *c)
{
	*(u32 *)c->params = c->obj->chan->token;
	nvsim_chan_notify(c->obj->chan, c->obj->chan->token_index, 0, c->obj->chan->token);
	return on_engine(c->obj->chan->run.tsg->eng, do_nothing, c);
}

/* The entry of the notifier in which the next call of ctl_token() shows the token too; 0 is that of errors. */
static NV_STATUS ctl_token_index(struct nvctl *c)
{
	struct nvchan *chan = c->obj->chan;
	u32 index = *(u32 *)c->params;

	if (!index)
		return NV_ERR_INVALID_ARGUMENT;
	if (!chan->notifier)
		return NV_ERR_OBJECT_NOT_FOUND;
	if ((index + 1ull) * 16 > chan->notifier_bytes)
		return NV_ERR_OUT_OF_RANGE;
	chan->token_index = index;
	return NV_OK;
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

/*
 * The channels in the list may be of any client: the driver passes it to the firmware unchecked.
 * Entries before a bad one have taken effect when it fails.
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
		if (ch && ch->run.dead && nvsim.refuse_dead)
			st = NV_ERR_INVALID_STATE;
		else if (ch)
			engine_disable_chan(&ch->run, p->disable, !p->only_scheduling);
	}
	for (i = 0; i < p->count && st == NV_OK && p->disable && !p->only_scheduling; i++) {
		ch = find_chan(gpu, p->client[i], p->channel[i], &st);
		if (ch)
			st = wait_off(ch);
	}
	nvsim_rpc_end(gpu, left);
	return st;
}

static NV_STATUS ctl_sched_policy(struct nvctl *c)
{
	nvsim_rpc_end(c->obj->gpu, nvsim_rpc_begin(c->obj->gpu));
	return NV_OK;
}

/* {flags, hChannel, gfxp, cilp}: of a channel or group of the client's own. Kept, and shown; nvsim preempts anywhere. */
static NV_STATUS ctl_preemption_mode(struct nvctl *c)
{
	u32 *p = c->params;
	struct nvobj *o = nvsim_obj_find_type(c->client, p[1], NVT_BIT(NVT_TSG) | NVT_BIT(NVT_CHANNEL));

	if (!o)
		return NV_ERR_OBJECT_NOT_FOUND;
	if (p[0] & PREEMPTION_CILP_SET)
		(o->type == NVT_TSG ? o->tsg : nvchan_tsg(o->chan))->rec->preempt = p[3];
	return NV_OK;
}

#define TSG NVT_BIT(NVT_TSG)
#define CHAN NVT_BIT(NVT_CHANNEL)

/* ctrla06c.h, ctrla06fgpfifo.h, ctrlc36f.h, ctrl906f.h, ctrl2080fifo.h, ctrl2080gr.h */
const struct nvctl_entry nvsim_ctrl_sched[] = {
	{ 0xa06c0101, 2, TSG, 0, ctl_schedule, .before = 580 },
	{ 0xa06c0101, 3, TSG, 0, ctl_schedule, .since = 580 },
	{ 0xa06c0102, 4, TSG, 0, ctl_bind },
	{ 0xa06c0103, 8, TSG, 0, ctl_set_timeslice },
	{ 0xa06c0104, 8, TSG, 0, ctl_get_timeslice },
	{ 0xa06c0105, 8, TSG, 0, ctl_preempt },
	{ 0xa06c0106, 4, TSG, 0, ctl_tsg_info },
	{ 0xa06c0107, 4, TSG, NVCTL_NICE, ctl_set_interleave },
	{ 0xa06c0108, 4, TSG, 0, ctl_get_interleave },
	{ 0xa06c0110, 1, TSG, NVCTL_NICE, ctl_ineffective },
	{ 0xa06f0103, 2, CHAN, 0, ctl_schedule, .before = 580 },
	{ 0xa06f0103, 3, CHAN, 0, ctl_schedule, .since = 580 },
	{ 0xa06f0104, 4, CHAN, 0, ctl_bind },
	{ 0xa06f0109, 4, CHAN, NVCTL_NICE, ctl_set_interleave },
	{ 0xa06f0111, 2, CHAN, NVCTL_NICE, ctl_restart },
	{ 0xa06f0112, 1, CHAN, 0, ctl_stop },
	{ 0xc36f0108, 4, CHAN, 0, ctl_token },
	{ 0xc36f010a, 4, CHAN, NVCTL_WRITE, ctl_token_index },
	{ 0x906f0102, 12, CHAN, 0, ctl_stop, .before = 550 },
	{ 0x906f0102, 16, CHAN, 0, ctl_stop, .since = 550 },
	{ 0x2080110b, sizeof(struct disable_channels), NVT_BIT(NVT_SUBDEVICE), 0, ctl_disable_channels },
	{ 0x20801109, 2056, NVT_BIT(NVT_SUBDEVICE), 0, nvsim_ctl_fifo_info },
	{ 0x20801115, 8, NVT_BIT(NVT_SUBDEVICE), NVCTL_NICE, ctl_sched_policy },
	{ 0x20801210, 32, NVT_BIT(NVT_SUBDEVICE), NVCTL_WRITE, ctl_preemption_mode },
	{}
};
