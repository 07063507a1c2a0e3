// SPDX-License-Identifier: MIT OR GPL-2.0-only
/*
 * Channels registered with UVM, which holds a channel's context through two functions of nvidia.ko,
 * also after its owner frees it.
 */
#include <linux/module.h>
#include <linux/sched.h>
#include <linux/slab.h>

#include "nvsim.h"

/*
 * UVM's references for a channel: the context of its TSG (the driver dups the TSG into UVM's own
 * client), and its id and instance block (uvm_channel_retainer.c).
 */
struct retained {
	struct nvctx *ctx, *channel;
};

struct uvm_chan {
	struct list_head link;		/* uvm_gpu.chans: uvm_vas.lock */
	u32 hclient, hchannel;
	void *retained;
};

/*
 * A Turing GPU has the word of a channel in a register, by the channel's id. It is written from here on: nothing can
 * look for it before.
 */
static void show_word(struct nvchan *ch)
{
	u32 *word = nvctx_is_turing() ? nvsim_board_word(ch->ctx->gpu, ch->ctx->id) : NULL;

	if (word)
		engine_give_word(&ch->run, word);
}

/* nvGpuOpsRetainChannel(), as far as a channel here has it. */
static void describe(const struct nvchan *ch, struct nv_uvm_channel *info)
{
	memset(info, 0, sizeof(*info));
	info->runlistId = ch->run.tsg->eng->index;
	info->chId = ch->ctx->id;
	info->bTsgChannel = true;
	info->tsgId = nvchan_tsg(ch)->ctx->id;
	info->tsgMaxSubctxCount = 64;
	info->channelEngineType = ch->run.tsg->eng->type == NV2080_ENGINE_TYPE_GRAPHICS ? 1 : 2;	/* UVM_GPU_CHANNEL_ENGINE_TYPE_GR, _CE */
	info->clearFaultedToken = ch->token;
	info->pChramChannelRegister = (uintptr_t)nvctx_chram(ch->ctx);
}

noinline NV_STATUS nvUvmInterfaceRetainChannel(void *vaSpace, u32 hClient, u32 hChannel, void **retainedChannel,
					       void *info)
{
	struct retained *r = kzalloc(sizeof(*r), GFP_KERNEL);
	NV_STATUS st = NV_ERR_INVALID_CHANNEL;
	struct nvclient *c;
	struct nvobj *o;

	if (!r)
		return NV_ERR_NO_MEMORY;
	down_read(&nvsim_api_lock);
	c = nvsim_client_find(hClient);
	o = c ? nvsim_obj_find_type(c, hChannel, NVT_BIT(NVT_CHANNEL)) : NULL;
	if (o && c->tgid == task_tgid_nr(current) && o->chan->as == vaSpace) {
		r->ctx = nvchan_tsg(o->chan)->ctx;
		r->channel = o->chan->ctx;
		kref_get(&r->ctx->ref);
		kref_get(&r->channel->ref);
		describe(o->chan, info);
		show_word(o->chan);
		*retainedChannel = r;
		r = NULL;
		st = NV_OK;
	}
	up_read(&nvsim_api_lock);
	kfree(r);
	return st;
}
EXPORT_SYMBOL(nvUvmInterfaceRetainChannel);

noinline void nvUvmInterfaceReleaseChannel(void *retainedChannel)
{
	struct retained *r = retainedChannel;

	nvctx_put(r->channel);
	nvctx_put(r->ctx);
	kfree(r);
}
EXPORT_SYMBOL(nvUvmInterfaceReleaseChannel);

/* nvUvmInterfaceStopChannel(): the channel's owner may have freed it before. */
static void stop(const struct uvm_chan *ch)
{
	struct nvclient *c;
	struct nvobj *o;

	down_read(&nvsim_api_lock);
	c = nvsim_client_find(ch->hclient);
	o = c ? nvsim_obj_find_type(c, ch->hchannel, NVT_BIT(NVT_CHANNEL)) : NULL;
	if (o && o->chan->ctx == ((struct retained *)ch->retained)->channel)
		engine_unschedule_chan(&o->chan->run);
	up_read(&nvsim_api_lock);
}

/* By its handles alone, on any GPU of the space, as the driver does (find_user_channel()). */
static struct uvm_chan *find(struct uvm_vas *v, u32 hclient, u32 hchannel)
{
	struct uvm_chan *ch;
	struct uvm_gpu *g;

	list_for_each_entry(g, &v->gpus, link)
		list_for_each_entry(ch, &g->chans, link)
			if (ch->hclient == hclient && ch->hchannel == hchannel)
				return ch;
	return NULL;
}

NV_STATUS uvm_chan_register(struct uvm_vas *v, struct uvm_gpu *g, u32 hclient, u32 hchannel)
{
	struct nv_uvm_channel *info;
	struct uvm_chan *ch;
	NV_STATUS st;

	lockdep_assert_held(&v->lock);
	if (!g->as || find(v, hclient, hchannel))
		return NV_ERR_INVALID_CHANNEL;
	ch = kzalloc(sizeof(*ch), GFP_KERNEL);
	info = kzalloc(sizeof(*info), GFP_KERNEL);
	st = NV_ERR_NO_MEMORY;
	if (ch && info)
		st = nvUvmInterfaceRetainChannel(g->as, hclient, hchannel, &ch->retained, info);
	kfree(info);
	if (st != NV_OK) {
		kfree(ch);
		return st;
	}
	ch->hclient = hclient;
	ch->hchannel = hchannel;
	list_add(&ch->link, &g->chans);
	return NV_OK;
}

static void drop(struct uvm_chan *ch)
{
	list_del(&ch->link);
	nvUvmInterfaceReleaseChannel(ch->retained);
	kfree(ch);
}

NV_STATUS uvm_chan_unregister(struct uvm_vas *v, u32 hclient, u32 hchannel)
{
	struct uvm_chan *ch = find(v, hclient, hchannel);

	lockdep_assert_held(&v->lock);
	if (!ch)
		return NV_ERR_INVALID_CHANNEL;
	drop(ch);
	return NV_OK;
}

/* Before anything of the space is unmapped, or the unmapping would be faults (uvm_va_space_destroy()). */
void uvm_chans_stop(struct uvm_gpu *g)
{
	struct uvm_chan *ch;

	list_for_each_entry(ch, &g->chans, link)
		stop(ch);
}

void uvm_chans_drop(struct uvm_gpu *g)
{
	struct uvm_chan *ch, *next;

	list_for_each_entry_safe(ch, next, &g->chans, link)
		drop(ch);
}
