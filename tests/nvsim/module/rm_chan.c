// SPDX-License-Identifier: MIT OR GPL-2.0-only
/* Channel groups, channels, and the engine objects on them. */
#include <linux/pid.h>
#include <linux/sizes.h>
#include <linux/slab.h>

#include "nvsim.h"

#define TOKEN_INDEX 1			/* nvos.h: NV_CHANNELGPFIFO_NOTIFICATION_TYPE_WORK_SUBMIT_TOKEN */
#define MAX_ENDED 4096			/* records kept of TSGs that are gone */

static atomic_t next_tsg = ATOMIC_INIT(1);
static atomic_t next_token = ATOMIC_INIT(1);

/* The copy engines behind those with a timeline of their own belong to graphics. */
struct engine *nvsim_engine_of(struct nvgpu *gpu, u32 type)
{
	u32 first_grce = NV2080_ENGINE_TYPE_COPY0 + NVSIM_COPIES;
	int i;

	if (type >= first_grce && type < first_grce + NVSIM_GRCES)
		type = NV2080_ENGINE_TYPE_GRAPHICS;
	for (i = 0; i < NVSIM_ENGINES; i++)
		if (gpu->eng[i].type == type)
			return i <= NVSIM_COPIES || nvsim_has_video(type) ? &gpu->eng[i] : NULL;
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
	r->count.tgid = o->client->tgid;
	r->pid = get_pid(o->client->pid);
	r->timeslice_us = nvsim.rules.timeslice_us;
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
	struct engine *e = nvsim_engine_of(o->gpu, p->engineType ?: NV2080_ENGINE_TYPE_GRAPHICS);
	struct nvobj *vo = nvsim_obj_find_type(o->client, p->hVASpace, NVT_BIT(NVT_VASPACE));
	struct nvtsg *tsg;
	NV_STATUS st;

	if (!e)
		return NV_ERR_INVALID_ARGUMENT;
	if (p->hVASpace && !vo)
		return NV_ERR_OBJECT_NOT_FOUND;
	tsg = kzalloc(sizeof(*tsg), GFP_KERNEL);
	if (!tsg)
		return NV_ERR_NO_MEMORY;
	st = nvctx_of_group(e, &tsg->ctx);
	if (st != NV_OK)
		goto err_tsg;
	st = NV_ERR_NO_MEMORY;
	tsg->rec = rec_create(o, e->type);
	if (!tsg->rec)
		goto err_ctx;
	tsg->handles = 1;
	tsg->id = atomic_inc_return(&next_tsg) & 0xffff;
	if (vo) {
		tsg->as = vo->as;
		nvas_get(tsg->as);
	}
	o->tsg = tsg;
	engine_add_tsg(e, &tsg->run, &tsg->rec->count);
	return NV_OK;

err_ctx:
	nvctx_put(tsg->ctx);
err_tsg:
	kfree(tsg);
	return st;
}

void nvsim_tsg_get(struct nvtsg *tsg)
{
	tsg->handles++;
}

/* The channels below a handle go before it, so after the last one there are none. */
void nvsim_tsg_put(struct nvtsg *tsg)
{
	struct nvgpu *gpu = nvsim_gpu_of(tsg->run.eng);

	if (--tsg->handles)
		return;
	engine_remove_tsg(&tsg->run);
	rec_end(gpu, tsg->rec);
	nvctx_put(tsg->ctx);
	if (tsg->as)
		nvas_put(tsg->as);
	kfree(tsg);
}

/* Objects the channel needs; each, when freed, frees the channel first. */
static NV_STATUS resolve(struct nvobj *o, struct nvchan *c, const struct nv_chan_params *p)
{
	struct nvclient *cl = o->client;
	struct nvobj *userd = nvsim_obj_find_type(cl, p->hUserdMemory[0], NVT_BIT(NVT_MEMORY));
	struct nvobj *err = nvsim_obj_find_type(cl, p->hObjectError, NVT_BIT(NVT_MEMORY) | NVT_BIT(NVT_CONTEXT_DMA));
	struct nvobj *vo = nvsim_obj_find_type(cl, p->hVASpace, NVT_BIT(NVT_VASPACE));
	struct nvobj *cs = nvsim_obj_find_type(cl, p->hContextShare, NVT_BIT(NVT_CTXSHARE));
	u64 off = p->userdOffset[0];
	struct page *page;

	if (p->hVASpace && nvchan_tsg(c)->as && !c->own_tsg)
		return NV_ERR_INVALID_ARGUMENT;	/* its group has one */
	if (!userd || (p->hVASpace && !vo) || (p->hContextShare && !cs))
		return NV_ERR_OBJECT_NOT_FOUND;
	c->as = vo ? vo->as : cs ? cs->as : nvchan_tsg(c)->as ?: nvsim_obj_device(o)->default_as;
	if (!c->as)
		return NV_ERR_INVALID_ARGUMENT;
	if (off % NV_RAMUSERD_CHAN_SIZE || userd->mem->read_only)
		return NV_ERR_INVALID_ARGUMENT;
	if (userd->mem->size < NV_RAMUSERD_CHAN_SIZE || off > userd->mem->size - NV_RAMUSERD_CHAN_SIZE) {
		/* memdescCreateSubMem(): compared with the memory's size from 590 on */
		WARN(nvsim_branch < 590, "nvsim: USERD outside of its memory, offset %llx\n", off);
		return NV_ERR_INVALID_ARGUMENT;
	}
	page = nvpages_page(userd->mem->pages, off >> PAGE_SHIFT, GFP_KERNEL);
	if (!page)
		return NV_ERR_NO_MEMORY;
	c->run.userd_get = page_address(page) + offset_in_page(off) + NV_USERD_GPGET;
	c->run.userd_put = page_address(page) + offset_in_page(off) + NV_USERD_GPPUT;
	c->userd_mem = userd->mem;
	nvmem_get(c->userd_mem);
	nvsim_dep_add(&c->deps[0], userd, o);
	nvas_get(c->as);
	c->run.space = c->as;
	if (err) {
		c->notifier = err->type == NVT_MEMORY ? err->mem : err->context_dma->mem;
		c->notifier_at = err->type == NVT_MEMORY ? 0 : err->context_dma->offset;
		c->notifier_bytes = err->type == NVT_MEMORY ? err->mem->size : err->context_dma->bytes;
		nvmem_get(c->notifier);
		nvsim_dep_add(&c->deps[1], err, o);
	}
	if (cs)
		nvsim_dep_add(&c->deps[2], cs, o);
	return NV_OK;
}

/* A channel directly below its device gets a TSG without a handle. */
static NV_STATUS hidden_tsg(struct nvobj *o, const struct nv_chan_params *p, struct nvtsg **tsg)
{
	struct nv_tsg_params tp = { .hVASpace = p->hVASpace, .engineType = p->engineType };
	struct nvobj wrap = { .client = o->client, .gpu = o->gpu, .handle = o->handle };
	NV_STATUS st = nvsim_tsg_create(&wrap, &tp);

	if (st == NV_OK)
		*tsg = wrap.tsg;
	return st;
}

NV_STATUS nvsim_chan_create(struct nvobj *o, const struct nv_chan_params *p)
{
	bool hidden = o->parent->type == NVT_DEVICE;
	struct nvtsg *tsg = hidden ? NULL : o->parent->tsg;
	struct engine *e;
	struct nvchan *c;
	NV_STATUS st = NV_OK;
	int i;

	if (!p->gpFifoEntries || p->gpFifoEntries > SZ_1M || (p->gpFifoOffset & 7) || p->gpFifoOffset >= 1ull << 49)
		return NV_ERR_INVALID_ARGUMENT;
	if (hidden)
		st = hidden_tsg(o, p, &tsg);
	if (st != NV_OK)
		return st;
	e = tsg->run.eng;
	st = NV_ERR_INVALID_ARGUMENT;
	if (p->engineType && nvsim_engine_of(o->gpu, p->engineType) != e)
		goto err_tsg;
	st = NV_ERR_NO_MEMORY;
	c = kzalloc(sizeof(*c), GFP_KERNEL);
	if (!c)
		goto err_tsg;
	c->own_tsg = hidden;
	for (i = 0; i < NVSIM_DEPS; i++)
		INIT_LIST_HEAD(&c->deps[i].link);
	c->run.tsg = &tsg->run;
	c->obj = o;
	c->run.gp_va = p->gpFifoOffset;
	c->run.entries = p->gpFifoEntries;
	c->token = atomic_inc_return(&next_token) & 0x7ffffff;
	c->token_index = TOKEN_INDEX;
	st = NV_ERR_NO_MEMORY;
	if (engine_methods_init(&c->run))
		goto err_chan;
	st = nvctx_of_channel(e, &c->ctx);
	if (st != NV_OK)
		goto err_push;
	st = resolve(o, c, p);
	if (st != NV_OK)
		goto err_ctx;
	c->run.chram = nvctx_has_chram() ? &c->ctx->chram : NULL;
	o->chan = c;
	engine_add_chan(&c->run);
	return NV_OK;

err_ctx:
	nvctx_put(c->ctx);
err_push:
	engine_methods_exit(&c->run);
err_chan:
	kfree(c);
err_tsg:
	if (hidden)
		nvsim_tsg_put(tsg);
	return st;
}

void nvsim_chan_destroy(struct nvchan *c)
{
	int i;

	engine_remove_chan(&c->run);
	for (i = 0; i < NVSIM_DEPS; i++)
		list_del(&c->deps[i].link);
	nvmem_put(c->userd_mem);
	if (c->notifier)
		nvmem_put(c->notifier);
	nvas_put(c->as);
	nvctx_put(c->ctx);
	engine_methods_exit(&c->run);
	if (c->own_tsg)
		nvsim_tsg_put(nvchan_tsg(c));
	kfree(c);
}

void nvsim_chan_notify(struct nvchan *c, u32 index, u64 ns, u32 info)
{
	struct {
		u64 ns;
		u32 info32;
		u16 info16, status;
	} n = { ns, info, 0, 0xffff };
	u64 at = c->notifier_at + (u64)index * sizeof(n);
	struct page *page;

	if (!c->notifier || (index + 1ull) * sizeof(n) > c->notifier_bytes || at % sizeof(n))
		return;
	page = nvpages_page(c->notifier->pages, at >> PAGE_SHIFT, GFP_KERNEL);
	if (page)
		memcpy(page_address(page) + offset_in_page(at), &n, sizeof(n));
}

/* A compute or copy object. RM refuses an object of another runlist's engine (channel_descendant.c). */
NV_STATUS nvsim_engobj_create(struct nvobj *o, bool copy)
{
	struct nvchan *c = o->parent->chan;

	if (!copy && c->run.tsg->eng->type != NV2080_ENGINE_TYPE_GRAPHICS)
		return NV_ERR_INVALID_STATE;
	engine_set_object(&c->run, o->cls, copy ? ENGINE_OBJECT_COPY : ENGINE_OBJECT_COMPUTE);
	return NV_OK;
}

/* An object of a video engine; its channel's group has taken the context. RM takes the object's engine from its
 * parameters, zeros if there are none, and refuses it if the channel is on another runlist.
 */
NV_STATUS nvsim_video_create(struct nvobj *o, const struct nv_video_params *p)
{
	struct nvchan *c = o->parent->chan;

	if ((p->size && p->size != nvsim_video_params_size(o->cls)) || p->engineInstance)
		return NV_ERR_INVALID_CLASS;
	if (c->run.tsg->eng->type != nvsim_video_engine(o->cls))
		return NV_ERR_INVALID_STATE;
	engine_set_object(&c->run, o->cls, ENGINE_OBJECT_VIDEO);
	return NV_OK;
}
