// SPDX-License-Identifier: MIT OR GPL-2.0-only
/* RM_ALLOC: one row per class, and the constructors and destructors behind the rows. */
#include <linux/delay.h>
#include <linux/slab.h>

#include "nvsim.h"

/* nvos.h: NVOS03_FLAGS_ACCESS 1:0 (3 is none), _HASH_TABLE 29:29; NVOS32_ALLOC_FLAGS_FIXED_ADDRESS_ALLOCATE */
#define DMA_ACCESS 3
#define DMA_HASH_TABLE_DISABLE (1u << 29)
#define RANGE_FIXED 0x10
#define RANGE_NO_TABLES 0x400400	/* LAZY, EXTERNALLY_MANAGED */
#define VASPACE_REQUIRE_FIXED 0x1000

#define PARAMS_MAX 512
#define ON_GPU (NVT_BIT(NVT_DEVICE) | NVT_BIT(NVT_SUBDEVICE))

struct nvclass {
	u32 cls;
	enum nvtype type;
	u32 parents;		/* NVT_BIT()s */
	u32 size;		/* of the parameters; 0: none read */
	bool optional;		/* pAllocParms may be NULL */
	NV_STATUS (*ctor)(const struct nvsec *sec, struct nvobj *o, void *params);
	u16 since, before;	/* branches of the driver, see nvsim_in_branch() */
};

static struct nvas *global_as(struct nvgpu *gpu)
{
	if (!gpu->global_as)
		gpu->global_as = nvas_create(gpu);
	return gpu->global_as;
}

/*
 * hClientShare: 0 is the card's space, the own client a new one, another client its space
 * (unchecked).
 */
static NV_STATUS share_as(struct nvobj *o, u32 hshare)
{
	struct nvclient *other = nvsim_client_find(hshare);
	struct nvobj *dev;

	if (hshare == o->client->obj.handle) {
		o->default_as = nvas_create(o->gpu);
		return o->default_as ? NV_OK : NV_ERR_NO_MEMORY;
	}
	if (hshare && !other)
		return NV_ERR_INVALID_OBJECT;
	if (!hshare)
		o->default_as = global_as(o->gpu);
	else
		list_for_each_entry(dev, &other->obj.children, sibling)
			if (dev->type == NVT_DEVICE && dev->gpu == o->gpu)
				o->default_as = dev->default_as;
	if (!o->default_as)
		return NV_ERR_OBJECT_NOT_FOUND;
	nvas_get(o->default_as);
	return NV_OK;
}

/* RM gives a client one device of a GPU, and a device one subdevice. */
static bool has_another(const struct nvobj *o)
{
	const struct nvobj *other;

	list_for_each_entry(other, &o->parent->children, sibling)
		if (other != o && other->type == o->type && other->gpu == o->gpu)
			return true;
	return false;
}

static NV_STATUS ctor_device(const struct nvsec *sec, struct nvobj *o, void *params)
{
	struct nv_device_params *p = params;

	if (p->deviceId >= nvsim.gpus)
		return NV_ERR_INVALID_CLASS;
	if (!sec->kernel && !nv_is_gpu_accessible(&nvsim_gpu[p->deviceId]->nv))
		return NV_ERR_INSUFFICIENT_PERMISSIONS;
	o->gpu = nvsim_gpu[p->deviceId];
	if (has_another(o))
		return NV_ERR_INSUFFICIENT_RESOURCES;
	return share_as(o, p->hClientShare);
}

static NV_STATUS ctor_subdevice(const struct nvsec *sec, struct nvobj *o, void *params)
{
	if (*(u32 *)params)
		return NV_ERR_INVALID_DEVICE;
	return has_another(o) ? NV_ERR_INSUFFICIENT_RESOURCES : NV_OK;
}

static NV_STATUS ctor_vaspace(const struct nvsec *sec, struct nvobj *o, void *params)
{
	struct nv_vaspace_params *p = params;

	switch (p->index) {
	case NV_VASPACE_ALLOCATION_INDEX_GPU_NEW:
		o->as = nvas_create(o->gpu);
		if (o->as)
			o->as->fixed_only = p->flags & VASPACE_REQUIRE_FIXED;
		return o->as ? NV_OK : NV_ERR_NO_MEMORY;
	case NV_VASPACE_ALLOCATION_INDEX_GPU_GLOBAL:
		o->as = global_as(o->gpu);
		break;
	case NV_VASPACE_ALLOCATION_INDEX_GPU_DEVICE:
		o->as = o->parent->default_as;
		break;
	default:
		return NV_ERR_INVALID_ARGUMENT;
	}
	if (!o->as)
		return NV_ERR_INVALID_STATE;
	nvas_get(o->as);
	return NV_OK;
}

/*
 * RM_ALLOC_MEMORY pins pages. RM_ALLOC takes the caller's pointer for the kernel's list of pages.
 * The driver would follow it; nvsim does not read it.
 */
static NV_STATUS ctor_osdesc(const struct nvsec *sec, struct nvobj *o, void *params)
{
	struct nv_osdesc_params *p = params;
	struct nv_mem_params mp = { .size = p->limit + 1, .attr = NVOS32_ATTR_LOCATION_PCI << 25 };

	if (p->descriptorType != NVOS32_DESCRIPTOR_TYPE_OS_PAGE_ARRAY)
		return NV_ERR_NOT_SUPPORTED;
	return nvsim_mem_create(o->parent, NV01_MEMORY_SYSTEM, &mp, &o->mem);
}

/* context_dma.c: below the device of its memory, within it. Display alone has those of video memory here. */
static NV_STATUS ctor_context_dma(const struct nvsec *sec, struct nvobj *o, void *params)
{
	struct nv_context_dma_params *p = params;
	struct nvobj *m = nvsim_obj_find(o->client, p->hMemory);

	if (!m)
		return NV_ERR_OBJECT_NOT_FOUND;
	if (m->parent != o->parent)
		return NV_ERR_INVALID_OBJECT_PARENT;
	if ((p->flags & DMA_ACCESS) == 3 || !(p->flags & DMA_HASH_TABLE_DISABLE))
		return NV_ERR_INVALID_FLAGS;
	if (m->type != NVT_MEMORY || m->mem->loc != NVLOC_SYS || p->hSubDevice)
		return NV_ERR_NOT_SUPPORTED;
	if (p->limit >= m->mem->size || p->offset >= m->mem->size - p->limit)
		return NV_ERR_INVALID_LIMIT;
	o->context_dma = kzalloc(sizeof(*o->context_dma), GFP_KERNEL);
	if (!o->context_dma)
		return NV_ERR_NO_MEMORY;
	o->context_dma->mem = m->mem;
	o->context_dma->offset = p->offset;
	o->context_dma->bytes = p->limit + 1;
	nvmem_get(m->mem);
	nvsim_dep_add(&o->context_dma->dep, m, o);
	return NV_OK;
}

static void free_context_dma(struct nvcontext_dma *d)
{
	list_del(&d->dep.link);
	nvmem_put(d->mem);
	kfree(d);
}

static NV_STATUS ctor_memory(const struct nvsec *sec, struct nvobj *o, void *params)
{
	return nvsim_mem_create(o->parent, o->cls, params, &o->mem);
}

/* An NV50_MEMORY_VIRTUAL has addresses of its own, where the caller wants them or where there is room. */
static void place_range(struct nvobj *o, struct nv_mem_params *p)
{
	if (!(p->flags & RANGE_FIXED)) {
		p->offset = o->as->next_va;
		o->as->next_va = ALIGN(p->offset + min(p->size, 1ull << 40), SZ_2M);
	}
	o->va = p->offset;
	p->limit = p->size - 1;
}

/* NV01_MEMORY_VIRTUAL and NV50_MEMORY_VIRTUAL: a window on a VA space that MAP_MEMORY_DMA can target. */
static NV_STATUS ctor_virtual(const struct nvsec *sec, struct nvobj *o, void *params)
{
	struct nv_mem_params *p = params;
	/* NV_MEMORY_VIRTUAL_ALLOCATION_PARAMS {offset, limit, hVASpace} for class 0x70 */
	u32 hvas = o->cls == NV01_MEMORY_VIRTUAL ? ((u32 *)params)[4] : p->hVASpace;
	struct nvobj *vo = nvsim_obj_find_type(o->client, hvas, NVT_BIT(NVT_VASPACE));

	if (hvas && !vo)
		return NV_ERR_OBJECT_NOT_FOUND;
	if (o->cls != NV01_MEMORY_VIRTUAL && nvsim_check_page_size(p->attr, p->attr2, false) != NV_OK)
		return NV_ERR_INVALID_STATE;
	/* RM has set tables aside when it looks for addresses, and leaves them there (vaspaceReserveMempool()). */
	if (vo && vo->as->fixed_only && o->cls != NV01_MEMORY_VIRTUAL && !(p->flags & RANGE_FIXED)) {
		nvas_pool(vo->as, p->flags & RANGE_NO_TABLES ? 0 : p->size / SZ_2M * SZ_4K);
		return NV_ERR_INVALID_ARGUMENT;
	}
	o->as = vo ? vo->as : o->parent->default_as;
	nvas_get(o->as);
	if (o->cls != NV01_MEMORY_VIRTUAL)
		place_range(o, p);
	return NV_OK;
}

/* NV_HOPPER_USERMODE_A_PARAMS: bBar1Mapping, bPriv (usermode_api.c). */
static NV_STATUS ctor_usermode(const struct nvsec *sec, struct nvobj *o, void *params)
{
	const u8 *p = params;

	o->doorbell_in_bar1 = p && p[0];
	if (p && p[1])
		return p[0] ? NV_ERR_INSUFFICIENT_PERMISSIONS : NV_ERR_INVALID_ARGUMENT;
	o->mem = o->gpu->usermode;
	nvmem_get(o->mem);
	return NV_OK;
}

static NV_STATUS ctor_rusd(const struct nvsec *sec, struct nvobj *o, void *params)
{
	o->mem = o->gpu->rusd;
	nvmem_get(o->mem);
	return NV_OK;
}

static NV_STATUS ctor_tsg(const struct nvsec *sec, struct nvobj *o, void *params)
{
	return nvsim_tsg_create(o, params);
}

static NV_STATUS ctor_channel(const struct nvsec *sec, struct nvobj *o, void *params)
{
	return nvsim_chan_create(o, params);
}

/* From 610 on hHandleVASpace stands behind hVASpace, and what follows 4 or, aligned, 8 later. */
static NV_STATUS ctor_channel_since_610(const struct nvsec *sec, struct nvobj *o, void *params)
{
	const size_t userd = offsetof(struct nv_chan_params, hUserdMemory);
	const size_t offsets = offsetof(struct nv_chan_params, userdOffset);
	struct nv_chan_params p;
	u8 *to = (u8 *)&p, *at = params;

	memcpy(to, at, userd);
	memcpy(to + userd, at + userd + 4, offsets - userd);
	memcpy(to + offsets, at + offsets + 8, sizeof(p) - offsets);
	return nvsim_chan_create(o, &p);
}

static NV_STATUS ctor_ctxshare(const struct nvsec *sec, struct nvobj *o, void *params)
{
	struct nv_ctxshare_params *p = params;
	struct nvobj *vo = nvsim_obj_find_type(o->client, p->hVASpace, NVT_BIT(NVT_VASPACE));

	if (p->hVASpace && !vo)
		return NV_ERR_OBJECT_NOT_FOUND;
	o->as = vo ? vo->as : o->parent->tsg->as;
	if (!o->as)
		return NV_ERR_INVALID_ARGUMENT;
	nvas_get(o->as);
	p->subctxId = 0;
	return NV_OK;
}

static NV_STATUS ctor_compute(const struct nvsec *sec, struct nvobj *o, void *params)
{
	return nvsim_engobj_create(o, false);
}

static NV_STATUS ctor_copy(const struct nvsec *sec, struct nvobj *o, void *params)
{
	return nvsim_engobj_create(o, true);
}

static NV_STATUS ctor_video(const struct nvsec *sec, struct nvobj *o, void *params)
{
	return nvsim_video_create(o, params);
}

static NV_STATUS ctor_event(const struct nvsec *sec, struct nvobj *o, void *params)
{
	struct nv_event_params *p = params;

	if (p->hClass != NV01_EVENT_OS_EVENT)
		return NV_ERR_INVALID_CLASS;
	if (o->parent->type == NVT_DEVICE || o->parent->type == NVT_MEMORY)
		return NV_ERR_INVALID_OBJECT;	/* nothing happens to them */
	if (!p->hSrcResource)	/* seen of an H100: rmapi_specific.c fills it in */
		p->hSrcResource = o->parent->handle;
	o->cls = p->hClass;
	return nvsim_event_create(o, p->notifyIndex, p->data);
}

/* Has controls, but no state in nvsim. */
static NV_STATUS ctor_plain(const struct nvsec *sec, struct nvobj *o, void *params)
{
	return NV_OK;
}

static NV_STATUS ctor_peers(const struct nvsec *sec, struct nvobj *o, void *params)
{
	return nvsim_peers_create(o, params);
}

/* A session on a compute object: of the caller's own client, or shared with it (kernel_sm_debugger_session.c). */
static NV_STATUS ctor_debugger(const struct nvsec *sec, struct nvobj *o, void *params)
{
	struct nv_debugger_params *p = params;
	struct nvclient *app = p->hAppClient ? nvsim_client_find(p->hAppClient) : o->client;
	struct nvobj *object;

	if (p->hDebuggerClient_Obsolete)
		return NV_ERR_INVALID_ARGUMENT;
	if (!app)
		return NV_ERR_INVALID_CLIENT;
	object = nvsim_obj_find(app, p->hClass3dObject);
	if (!object)
		return NV_ERR_INVALID_OBJECT_PARENT;
	if (app != o->client && !nvsim_obj_shared_with(object, o->client))
		return NV_ERR_INSUFFICIENT_PERMISSIONS;
	if (object->type != NVT_ENGOBJ)
		return NV_ERR_INVALID_OBJECT;
	return object->gpu == o->gpu ? NV_OK : NV_ERR_INVALID_ARGUMENT;
}

/*
 * The source of an event is the parent in the client that the parameters name, of any owner;
 * hSrcResource is ignored. If that is not the event's own client, the event is below its own client
 * (rmapi_specific.c).
 */
static struct nvobj *event_parent(struct nvclient *c, u32 handle, const struct nv_event_params *p)
{
	struct nvclient *source = p->hParentClient ? nvsim_client_find(p->hParentClient) : c;
	struct nvobj *of = source ? nvsim_obj_find(source, handle) : NULL;

	return of && source != c ? &c->obj : of;
}

static const struct nvclass classes[] = {
	{ NV01_DEVICE_0, NVT_DEVICE, NVT_BIT(NVT_CLIENT), sizeof(struct nv_device_params), false, ctor_device },
	{ NV01_CONTEXT_DMA, NVT_CONTEXT_DMA, ~0u, sizeof(struct nv_context_dma_params), false, ctor_context_dma },
	{ NV20_SUBDEVICE_0, NVT_SUBDEVICE, NVT_BIT(NVT_DEVICE), 4, true, ctor_subdevice },
	{ FERMI_VASPACE_A, NVT_VASPACE, NVT_BIT(NVT_DEVICE), 48, false, ctor_vaspace, .before = 580 },
	{ FERMI_VASPACE_A, NVT_VASPACE, NVT_BIT(NVT_DEVICE), sizeof(struct nv_vaspace_params), false, ctor_vaspace, .since = 580 },
	{ NV01_MEMORY_LOCAL_USER, NVT_MEMORY, ON_GPU, 120, false, ctor_memory, .before = 550 },
	{ NV01_MEMORY_LOCAL_USER, NVT_MEMORY, ON_GPU, sizeof(struct nv_mem_params), false, ctor_memory, .since = 550 },
	{ NV01_MEMORY_SYSTEM, NVT_MEMORY, ON_GPU, 120, false, ctor_memory, .before = 550 },
	{ NV01_MEMORY_SYSTEM, NVT_MEMORY, ON_GPU, sizeof(struct nv_mem_params), false, ctor_memory, .since = 550 },
	{ NV01_MEMORY_SYSTEM_OS_DESCRIPTOR, NVT_MEMORY, NVT_BIT(NVT_DEVICE), sizeof(struct nv_osdesc_params), false, ctor_osdesc },
	{ NV50_MEMORY_VIRTUAL, NVT_VIRTUAL, NVT_BIT(NVT_DEVICE), 120, false, ctor_virtual, .before = 550 },
	{ NV50_MEMORY_VIRTUAL, NVT_VIRTUAL, NVT_BIT(NVT_DEVICE), sizeof(struct nv_mem_params), false, ctor_virtual, .since = 550 },
	{ NV01_MEMORY_VIRTUAL, NVT_VIRTUAL, NVT_BIT(NVT_DEVICE), 24, true, ctor_virtual },
	{ RM_USER_SHARED_DATA, NVT_MEMORY, NVT_BIT(NVT_SUBDEVICE), 4, false, ctor_rusd, .before = 550 },
	{ RM_USER_SHARED_DATA, NVT_MEMORY, NVT_BIT(NVT_SUBDEVICE), 8, true, ctor_rusd, .since = 550 },
	{ KEPLER_CHANNEL_GROUP_A, NVT_TSG, NVT_BIT(NVT_DEVICE), sizeof(struct nv_tsg_params), false, ctor_tsg },
	{ FERMI_CONTEXT_SHARE_A, NVT_CTXSHARE, NVT_BIT(NVT_TSG), sizeof(struct nv_ctxshare_params), false, ctor_ctxshare },
	{ NV01_EVENT, NVT_EVENT, ~0u, sizeof(struct nv_event_params), false, ctor_event },
	{ NV01_EVENT_OS_EVENT, NVT_EVENT, ~0u, sizeof(struct nv_event_params), false, ctor_event },
	{ NV2081_BINAPI, NVT_BINAPI, NVT_BIT(NVT_SUBDEVICE), 4, true, ctor_plain },
	{ GT200_DEBUGGER, NVT_DEBUGGER, NVT_BIT(NVT_DEVICE), sizeof(struct nv_debugger_params), false, ctor_debugger },
	{ MPS_COMPUTE, NVT_MPS, NVT_BIT(NVT_CLIENT), 0, true, ctor_plain },
	{ NV50_P2P, NVT_PEERS, NVT_BIT(NVT_CLIENT), 72, false, ctor_peers, .before = 590 },
	{ NV50_P2P, NVT_PEERS, NVT_BIT(NVT_CLIENT), 88, false, ctor_peers, .since = 590 },
};

static u32 channel_params_size(void)
{
	if (nvsim_branch < 580)
		return 360;
	return nvsim_branch < 610 ? sizeof(struct nv_chan_params) : 376;
}

/* The classes with a number that depends on the architecture. */
static bool arch_class(u32 cls, struct nvclass *k)
{
	const struct nvchip *c = nvsim_chip;

	if (cls == c->gpfifo)
		*k = (struct nvclass) { cls, NVT_CHANNEL, NVT_BIT(NVT_TSG) | NVT_BIT(NVT_DEVICE), channel_params_size(), false,
				       nvsim_branch < 610 ? ctor_channel : ctor_channel_since_610 };
	else if (nvsim_is_usermode(cls))
		*k = (struct nvclass) { cls, NVT_MEMORY, NVT_BIT(NVT_SUBDEVICE), cls >= HOPPER_USERMODE_A ? 2 : 0, true,
				       ctor_usermode };
	else if (cls == c->compute)
		*k = (struct nvclass) { cls, NVT_ENGOBJ, NVT_BIT(NVT_CHANNEL), 0, true, ctor_compute };
	else if (cls == c->copy)
		*k = (struct nvclass) { cls, NVT_ENGOBJ, NVT_BIT(NVT_CHANNEL), 0, true, ctor_copy };
	else if (nvsim_video_engine(cls))
		*k = (struct nvclass) { cls, NVT_VIDEO, NVT_BIT(NVT_CHANNEL), nvsim_video_params_size(cls), true, ctor_video };
	else
		return false;
	return true;
}

static bool find_class(u32 cls, struct nvclass *k)
{
	size_t i;

	for (i = 0; i < ARRAY_SIZE(classes); i++) {
		if (classes[i].cls == cls && nvsim_in_branch(classes[i].since, classes[i].before)) {
			*k = classes[i];
			return true;
		}
	}
	return arch_class(cls, k);
}

static NV_STATUS alloc_obj(const struct nvsec *sec, struct nvos64 *p, const struct nvclass *k, void *params)
{
	NV_STATUS st = NV_OK;
	struct nvclient *c = nvsim_client_get(sec, p->hRoot, &st);
	struct nvobj *parent, *o;
	u32 handle = p->hObjectNew;

	if (!c)
		return st;
	parent = k->type == NVT_EVENT ? event_parent(c, p->hObjectParent, params) : nvsim_obj_find(c, p->hObjectParent);
	if (!parent)
		return NV_ERR_OBJECT_NOT_FOUND;
	if (!(k->parents & NVT_BIT(parent->type)))
		return NV_ERR_INVALID_OBJECT_PARENT;
	o = kzalloc(sizeof(*o), GFP_KERNEL);
	if (!o)
		return NV_ERR_NO_MEMORY;
	INIT_LIST_HEAD(&o->children);
	INIT_LIST_HEAD(&o->dependants);
	o->cls = k->cls;
	o->type = k->type;
	o->gpu = parent->gpu;
	st = nvsim_obj_add(c, parent, o, &handle);
	if (st != NV_OK) {
		kfree(o);
		return st;
	}
	st = k->ctor(sec, o, params);
	if (st != NV_OK) {
		xa_erase(&c->objs, handle);
		list_del(&o->sibling);
		kfree(o);
		return st;
	}
	p->hObjectNew = handle;
	return NV_OK;
}

/* A range of addresses requested by VID_HEAP_CONTROL: made as by RM_ALLOC of the class. */
NV_STATUS nvsim_alloc_virtual(const struct nvsec *sec, u32 hroot, u32 hparent, u32 *handle,
			      struct nv_mem_params *mp)
{
	struct nvos64 p = { .hRoot = hroot, .hObjectParent = hparent, .hObjectNew = *handle };
	struct nvclass k;
	NV_STATUS st;

	if (!find_class(NV50_MEMORY_VIRTUAL, &k))
		return NV_ERR_INVALID_CLASS;
	down_write(&nvsim_api_lock);
	st = alloc_obj(sec, &p, &k, mp);
	up_write(&nvsim_api_lock);
	*handle = p.hObjectNew;
	return st;
}

static void op_alloc(const struct nvsec *sec, struct nvos64 *p, u32 longer);

void nvsim_op_alloc(const struct nvsec *sec, struct nvos64 *p)
{
	enum nvsim_fault fault = nvsim_fault(p->hClass, &p->status);

	if (fault == NVSIM_FAULT_FAILS)
		return;
	op_alloc(sec, p, fault == NVSIM_FAULT_LONGER ? 8 : 0);
	if (fault == NVSIM_FAULT_ONES)
		p->hObjectNew = 0xffffffff;
}

/* As in NVIDIA's driver the size of parameters is the class's: the one in the call counts for nothing. */
static void op_alloc(const struct nvsec *sec, struct nvos64 *p, u32 longer)
{
	u8 *params;
	struct nvclass k;

	if (p->hClass == NV01_ROOT_CLIENT || p->hClass == NV01_ROOT || p->hClass == NV01_ROOT_NON_PRIV) {
		down_write(&nvsim_api_lock);
		p->status = nvsim_client_alloc(sec, p);
		up_write(&nvsim_api_lock);
		return;
	}
	p->status = NV_ERR_INVALID_CLASS;
	if (!find_class(p->hClass, &k)) {
		pr_info_ratelimited("class %#x is unknown, %u bytes of parameters\n", p->hClass,
				    p->paramsSize);
		return;
	}
	if (k.size && p->paramsSize && p->paramsSize != k.size)
		pr_info_ratelimited("class %#x has %u bytes of parameters here, %u are given\n",
				    p->hClass, k.size, p->paramsSize);
	p->status = NV_ERR_INVALID_ARGUMENT;
	if (!p->pAllocParms && !k.optional)
		return;
	params = kzalloc(PARAMS_MAX, GFP_KERNEL);
	if (!params) {
		p->status = NV_ERR_NO_MEMORY;
		return;
	}
	p->status = NV_OK;
	if (k.size && p->pAllocParms)
		p->status = nvsim_param_in(sec, params, p->pAllocParms, k.size + longer);
	if (p->status == NV_OK) {
		down_write(&nvsim_api_lock);
		p->status = alloc_obj(sec, p, &k, params);
		up_write(&nvsim_api_lock);
		if (k.cls == KEPLER_CHANNEL_GROUP_A && nvsim.ctx_ms > 0)
			msleep(nvsim.ctx_ms);
		if (p->status == NV_OK && k.size && p->pAllocParms)
			p->status = nvsim_param_out(sec, p->pAllocParms, params, k.size);
	}
	kfree(params);
}

/* Called with @o childless, without dependants, and out of its client's tables. */
/*
 * A mapping by MAP_MEMORY_DMA ends with the memory's handle, and with the handle it was mapped
 * through.
 */
static void forget_dma_maps(struct nvobj *o)
{
	struct nvobj *space;
	unsigned long handle;

	if (!o->dma_mapped)
		return;
	if (o->type != NVT_MEMORY) {
		nvas_forget(o->as, o);
		return;
	}
	xa_for_each(&o->client->objs, handle, space)
		if (space->type == NVT_VASPACE || space->type == NVT_VIRTUAL)
			nvas_forget(space->as, o);
}

void nvsim_obj_destroy(struct nvobj *o)
{
	forget_dma_maps(o);
	switch (o->type) {
	case NVT_CLIENT:
		nvsim_client_destroy(o->client);
		return;
	case NVT_VASPACE:
	case NVT_VIRTUAL:
	case NVT_CTXSHARE:
		nvas_put(o->as);
		break;
	case NVT_MEMORY:
		if (o->mem->loc == NVLOC_FB || o->doorbell_in_bar1)
			nvsim_bar1_forget(o->mem->gpu, o);
		nvmem_put(o->mem);
		break;
	case NVT_TSG:
		nvsim_tsg_put(o->tsg);
		break;
	case NVT_CHANNEL:
		nvsim_chan_destroy(o->chan);
		break;
	case NVT_DEVICE:
		nvsim_bar1_forget(o->gpu, o);
		nvas_put(o->default_as);
		break;
	case NVT_SUBDEVICE:
		nvsim_bar1_forget(o->gpu, o);
		break;
	case NVT_EVENT:
		nvsim_event_destroy(o);
		break;
	case NVT_PEERS:
		nvsim_peers_destroy(o->peers);
		break;
	case NVT_CONTEXT_DMA:
		free_context_dma(o->context_dma);
		break;
	case NVT_VIDEO:
	case NVT_ENGOBJ:
	case NVT_BINAPI:
	case NVT_DEBUGGER:
	case NVT_MPS:
		break;
	}
	kfree(o);
}
