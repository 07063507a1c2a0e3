// SPDX-License-Identifier: MIT OR GPL-2.0-only
/* Checks an allocation class by class, and charges it. Takes rm_lock. */
#include <linux/log2.h>

#include "call.h"
#include "core/nv_struct.h"
#include "core_ref.h"
#include "driver/driver.h"
#include "fields.h"
#include "intercept/backing_file.h"
#include "intercept/rm_alloc_check.h"
#include "intercept/rm_alloc_hold.h"
#include "intercept/rm_alloc_notifier.h"
#include "intercept/rm_call.h"
#include "intercept/uvm_managed.h"
#include "pure/mem_estimate.h"
#include "state/container.h"
#include "state/gpu.h"
#include "state/memory.h"
#include "state/rm_object.h"
#include "state/slot.h"

u32 ckm_alloc_charge(struct ckm_alloc *a, enum ckm_mem_kind kind, u64 bytes)
{
	struct ckm_container *ct = a->rc->call->backing->ct;
	struct cgpu_mem *mem;

	if (!a->slot)
		return NV_ERR_INVALID_OBJECT_PARENT;
	ckm_managed_wait(ct);
	mutex_lock(&ct->rm_lock);
	mem = ckm_mem_charge_locked(a->slot, kind, bytes);
	mutex_unlock(&ct->rm_lock);
	if (IS_ERR(mem))
		return NV_ERR_NO_MEMORY;
	a->mem = mem;
	return NV_OK;
}

/* nv_alloc_contig_pages() allocates 2^order pages, and the driver reports those that were asked for. */
u64 ckm_alloc_host_bytes(const struct ckm_alloc *a, u64 bytes)
{
	return a->contiguous && bytes && bytes <= S64_MAX ? roundup_pow_of_two(bytes) : bytes;
}

/* sysmemAllocResources() of system_mem.c. What may be noncontiguous is. */
bool ckm_alloc_is_contiguous(u32 attr)
{
	u32 physicality = (attr >> NVOS32_ATTR_PHYSICALITY_SHIFT) & 3;
	u32 page_size = (attr >> NVOS32_ATTR_PAGE_SIZE_SHIFT) & 3;

	return physicality == NVOS32_ATTR_PHYSICALITY_CONTIGUOUS ||
	       (physicality == NVOS32_ATTR_PHYSICALITY_DEFAULT && page_size >= NVOS32_ATTR_PAGE_SIZE_BIG);
}

u32 ckm_alloc_charge_host(struct ckm_alloc *a, u64 bytes)
{
	struct ckm_container *ct = a->rc->call->backing->ct;
	struct cgpu_mem *mem;

	if (!a->slot)
		return NV_ERR_INVALID_OBJECT_PARENT;
	mutex_lock(&ct->rm_lock);
	mem = ckm_mem_charge_host_locked(a->slot, ckm_alloc_host_bytes(a, bytes));
	mutex_unlock(&ct->rm_lock);
	if (IS_ERR(mem))
		return NV_ERR_NO_MEMORY;
	a->mem = mem;
	return NV_OK;
}

u32 ckm_alloc_charge_overhead(struct ckm_alloc *a)
{
	struct ckm_container *ct = a->rc->call->backing->ct;
	struct cgpu_obj *obj = &a->obj->core;
	u64 bytes;
	int ret;

	if (!a->slot)
		return NV_OK;
	/* Of a dup those for mappings are charged at once (charge_range_locked() of rm_map_dma.c). */
	bytes = cgpu_estimate_object_overhead(obj->kind, obj->cls) + (a->is_dup ? 2 : 1) * a->pt_bytes;
	obj->gpu = a->slot->gpu->index;
	a->obj->pt_bytes = a->pt_bytes;
	mutex_lock(&ct->rm_lock);
	ret = ckm_obj_overhead_locked(ct, obj, bytes);
	mutex_unlock(&ct->rm_lock);
	return ret ? NV_ERR_NO_MEMORY : NV_OK;
}

static u32 take_id(struct ckm_alloc *a, enum cgpu_quota_kind kind)
{
	struct ckm_container *ct = a->rc->call->backing->ct;
	int ret;

	mutex_lock(&ct->rm_lock);
	ret = ckm_mem_take_id_locked(a->slot, a->mem, kind);
	mutex_unlock(&ct->rm_lock);
	return ret ? NV_ERR_NO_FREE_FIFOS : NV_OK;
}

/* The buffers of the context of a graphics, compute or video engine. */
static u32 charge_context(struct ckm_alloc *a)
{
	enum cgpu_engine engine = a->obj->core.engine;

	return ckm_alloc_charge(a, CKM_MEM_CONTEXT, engine == CGPU_ENGINE_OTHER ? 0 :
				ckm_slot_context_bytes(a->slot, engine));
}

u32 ckm_alloc_engine_type(const struct ckm_alloc *a)
{
	return get32(a->rc->call->nested.copy, a->obj->core.kind == CGPU_KIND_TSG ? AT(nv_tsg_params, engineType) :
		     ckm_driver_abi()->channel_engine);
}

/* The record of a TSG: of the caller's, or of the one that the driver makes for a channel without. */
static bool new_group(struct ckm_alloc *a)
{
	u32 type = ckm_alloc_engine_type(a);

	a->obj->group = ckm_group_alloc();
	if (!a->obj->group)
		return false;
	a->obj->group->type = min_t(u32, type, U8_MAX);
	a->obj->group->on_graphics = a->slot && ckm_core_call(nv.on_graphics(ckm_driver_branch(), type,
									     a->slot->gpu->async_copies));
	return true;
}

/* A TSG takes the buffers of its engine's context at creation, and an id. */
static u32 charge_group(struct ckm_alloc *a)
{
	u32 status = a->slot ? charge_context(a) : NV_ERR_INVALID_OBJECT_PARENT;

	if (!new_group(a))
		return NV_ERR_INSUFFICIENT_RESOURCES;
	return status == NV_OK ? take_id(a, CGPU_QUOTA_GROUPS) : status;
}

/* A channel takes an id. nvidia-uvm can keep the id longer than the channel exists, so
 * the channel's record keeps its TSG's record. For a channel without a TSG the driver
 * makes one, which takes its engine's context and an id too.
 */
static u32 charge_channel(struct ckm_alloc *a)
{
	struct ckm_container *ct = a->rc->call->backing->ct;
	bool own_group = a->parent->kind != CGPU_KIND_TSG;
	u32 status = own_group ? charge_context(a) : ckm_alloc_charge(a, CKM_MEM_DATA, 0);

	if (status == NV_OK)
		status = take_id(a, CGPU_QUOTA_CHANNELS);
	if (status == NV_OK && own_group)
		return take_id(a, CGPU_QUOTA_GROUPS);
	mutex_lock(&ct->rm_lock);
	if (status == NV_OK && a->parent->mem)
		ckm_mem_keep_locked(a->mem, a->parent->mem);
	mutex_unlock(&ct->rm_lock);
	return status;
}

/* The group of a channel: its TSG's, or where the driver makes the TSG one without a handle. None if
 * it is neither below a TSG nor scheduled.
 */
static u32 find_group(struct ckm_alloc *a)
{
	if (a->parent->kind == CGPU_KIND_TSG) {
		a->obj->core.engine = a->parent->engine;
		a->obj->group = container_of(a->parent, struct ckm_obj, core)->group;
		ckm_group_get(a->obj->group);
		return NV_OK;
	}
	if (a->obj->core.engine == CGPU_ENGINE_OTHER)
		return NV_OK;
	return new_group(a) ? NV_OK : NV_ERR_INSUFFICIENT_RESOURCES;
}

/* Only a new address space or the device's: the driver has others that all clients share. And not with the flags by
 * which its page tables come from what the driver keeps of the card for the contexts of all (vaspaceapiConstruct()).
 */
static u32 check_vaspace(struct ckm_alloc *a)
{
	const u8 *p = a->rc->call->nested.copy;
	u32 index = get32(p, AT(nv_vaspace_params, index)), flags = get32(p, AT(nv_vaspace_params, flags));

	if (flags & NV_VASPACE_FLAGS_HEAP_TABLES) {
		ckm_call_denied(a->rc->call, "page tables of the driver's own heap, flags", flags);
		return NV_ERR_INVALID_ARGUMENT;
	}
	if (index == NV_VASPACE_ALLOCATION_INDEX_GPU_NEW)
		return ckm_obj_new_space(a->obj) ? NV_OK : NV_ERR_INSUFFICIENT_RESOURCES;
	if (index == NV_VASPACE_ALLOCATION_INDEX_GPU_DEVICE)	/* keeps no tables of the container's: rm_tables.h */
		return NV_OK;
	ckm_call_denied(a->rc->call, "address space", index);
	return NV_ERR_INVALID_ARGUMENT;
}

bool ckm_alloc_is_event(u32 cls)
{
	return cls == NV01_EVENT || cls == NV01_EVENT_OS_EVENT;
}

/* The source of an event is the object with the parent's handle in the client that the
 * parameters name (rmapi_specific.c: hSrcResource is overwritten with the parent's
 * handle). If that client is not the event's, the driver makes the event a child of its
 * own client.
 */
u32 ckm_alloc_event_source(struct ckm_alloc *a, u32 client, u32 *parent)
{
	struct ckm_call *call = a->rc->call;
	u32 source = get32(call->nested.copy, AT(nv_event_params, hParentClient)) ?: client;

	a->source = ckm_obj_pin(call->backing->ct, source, *parent);
	if (!a->source) {
		ckm_call_denied(call, "event of object", *parent);
		return NV_ERR_OBJECT_NOT_FOUND;
	}
	if (source != client)
		*parent = client;
	return NV_OK;
}

/* The driver limits a debugger on its own client to that client's objects, but also
 * accepts any other client that granted debugging: refuse those.
 */
static u32 check_debugger(struct ckm_alloc *a)
{
	struct ckm_call *call = a->rc->call;
	const u8 *p = call->nested.copy;
	u32 client = get32(p, AT(nv_debugger_params, hAppClient)) ?: a->obj->core.hclient;
	u32 object = get32(p, AT(nv_debugger_params, hClass3dObject));

	if (client == a->obj->core.hclient && !get32(p, AT(nv_debugger_params, hDebuggerClient_Obsolete)))
		a->source = ckm_obj_pin(call->backing->ct, client, object);
	if (a->source && a->source->kind == CGPU_KIND_COMPUTE && a->source->gpu == a->parent->gpu)
		return NV_OK;
	ckm_call_denied(call, "debugger of object", object);
	return NV_ERR_OBJECT_NOT_FOUND;
}

static u32 check_plain(struct ckm_alloc *a)
{
	const u8 *p = a->rc->call->nested.copy;

	if (!a->cls.copied_in)	/* a dup has no parameters */
		return NV_OK;
	switch (a->obj->core.cls) {
	case NV01_MEMORY_VIRTUAL:
		return ckm_alloc_hold_space(a, 0, get32(p, AT(nv_virtual_params, hVASpace)));
	case NV50_MEMORY_VIRTUAL:
		return ckm_alloc_hold_space(a, 0, get32(p, AT(nv_mem_params, hVASpace)));
	case FERMI_CONTEXT_SHARE_A:
		return ckm_alloc_hold_space(a, 0, get32(p, AT(nv_ctxshare_params, hVASpace)));
	case FERMI_VASPACE_A:
		return check_vaspace(a);
	case GT200_DEBUGGER:
		return check_debugger(a);
	}
	return NV_OK;
}

/* A reservation of addresses takes its page tables at once, and for the smallest pages
 * whatever page size is requested (gvaspaceReserveMempool() of gpu_vaspace.c), unless
 * its flags delay the tables or leave them to another allocator than RM. A sparse one
 * has its tables in any case: from 555 on the driver clears the flag that delays them
 * (stdmemValidateParams()). Tables for pages of 64 KiB come on top, a sixteenth.
 */
u64 ckm_reserved_tables(u32 flags, u64 size, u32 attr, u32 attr2)
{
	u64 bytes;

	if (!(flags & NVOS32_ALLOC_FLAGS_SPARSE) &&
	    flags & (NVOS32_ALLOC_FLAGS_LAZY | NVOS32_ALLOC_FLAGS_EXTERNALLY_MANAGED))
		return 0;
	bytes = cgpu_estimate_page_tables(cgpu_estimate_vidmem_bytes(size, attr, attr2));
	return bytes + bytes / 16;
}

/* Before 565 the highest bit of SMMU_ON_GPU, which has no value with it. */
#define ATTR2_USE_SCANOUT_CARVEOUT	0x400

/* The driver chooses the place of video memory. Blocks of 64 KiB at chosen addresses
 * would each break a frame of 2 MiB, and the other containers would get no pages of
 * that size. An alignment can do the same, so an aligned allocation is charged at least
 * its alignment. Virtual addresses are not checked here: they take no video memory.
 * With the flags of a protected region, and from 590 on with the attribute of a carveout, the memory comes from what
 * RM keeps of the card for the contexts of all, where the administrator has disabled scrubbing (vidmemConstruct();
 * RMDisableScrubOnFree).
 */
u32 ckm_alloc_check_place(struct ckm_alloc *a, u32 flags, u32 attr2, u64 alignment, u64 *bytes)
{
	if (attr2 & ATTR2_USE_SCANOUT_CARVEOUT) {
		ckm_call_denied(a->rc->call, "place of video memory, attr2", attr2);
		return NV_ERR_INVALID_ARGUMENT;
	}
	if (flags & (NVOS32_ALLOC_FLAGS_FIXED_ADDRESS_ALLOCATE | NVOS32_ALLOC_FLAGS_USE_BEGIN_END |
		     NVOS32_ALLOC_FLAGS_WPR)) {
		ckm_call_denied(a->rc->call, "place of video memory, flags", flags);
		return NV_ERR_INVALID_ARGUMENT;
	}
	if (flags & NVOS32_ALLOC_FLAGS_ALIGNED)
		*bytes = max(*bytes, alignment);
	return NV_OK;
}

u32 ckm_alloc_check_page_size(struct ckm_alloc *a, u32 attr, u32 attr2)
{
	if (ckm_core_call(nv.has_page_size(a->slot ? a->slot->gpu->arch : 0, attr, attr2)))
		return NV_OK;
	ckm_call_denied(a->rc->call, "pages that the GPU does not have, attr2", attr2);
	return NV_ERR_INVALID_STATE;
}

static bool is_memory(const struct cgpu_obj *obj)
{
	return obj->kind == CGPU_KIND_VIDMEM || obj->kind == CGPU_KIND_SYSMEM ||
	       obj->cls == NV50_MEMORY_VIRTUAL;
}

u32 ckm_alloc_check_params(struct ckm_alloc *a)
{
	const struct cgpu_core_ops *core;
	struct cgpu_obj *obj = &a->obj->core;
	const u8 *p = a->rc->call->nested.copy;
	u64 bytes = 0, copies = a->slot ? a->slot->gpu->async_copies : 0;
	bool vidmem;
	u32 status = NV_OK;

	if (p && is_memory(obj))
		status = ckm_alloc_check_page_size(a, get32(p, AT(nv_mem_params, attr)),
						   get32(p, AT(nv_mem_params, attr2)));
	if (status != NV_OK)
		return status;
	if (obj->cls == NV50_MEMORY_VIRTUAL && p)
		a->pt_bytes = ckm_reserved_tables(get32(p, AT(nv_mem_params, flags)), get64(p, AT(nv_mem_params, size)),
						  get32(p, AT(nv_mem_params, attr)), get32(p, AT(nv_mem_params, attr2)));
	core = ckm_core_enter();
	switch (obj->kind) {
	case CGPU_KIND_VIDMEM:
	case CGPU_KIND_SYSMEM:
		if (!p)
			break;
		vidmem = core->nv.is_vidmem(get32(p, AT(nv_mem_params, attr)), get32(p, AT(nv_mem_params, flags)));
		bytes = cgpu_estimate_vidmem_bytes(get64(p, AT(nv_mem_params, size)), get32(p, AT(nv_mem_params, attr)),
						   get32(p, AT(nv_mem_params, attr2)));
		a->contiguous = ckm_alloc_is_contiguous(get32(p, AT(nv_mem_params, attr)));
		if (vidmem != (obj->kind == CGPU_KIND_VIDMEM))
			obj->kind = CGPU_KIND_REFUSED;
		obj->bytes = bytes;
		break;
	case CGPU_KIND_TSG:
		obj->engine = core->nv.engine(ckm_driver_branch(), get32(p, AT(nv_tsg_params, engineType)), copies);
		break;
	case CGPU_KIND_CHANNEL:
		obj->engine = core->nv.engine(ckm_driver_branch(),
					      get32(p, ckm_driver_abi()->channel_engine), copies);
		break;
	}
	ckm_core_leave();

	switch (obj->kind) {
	case CGPU_KIND_REFUSED:
		return NV_ERR_INVALID_ARGUMENT;
	case CGPU_KIND_PLAIN:
		return check_plain(a);
	case CGPU_KIND_NOTIFIER:
		return ckm_alloc_check_notifier(a->rc->call, a->obj, a->parent, &a->held[0]);
	case CGPU_KIND_VIDMEM:
		status = p ? ckm_alloc_check_place(a, get32(p, AT(nv_mem_params, flags)),
						   get32(p, AT(nv_mem_params, attr2)),
						   get64(p, AT(nv_mem_params, alignment)), &bytes) : NV_OK;
		return status ?: ckm_alloc_charge(a, CKM_MEM_DATA, bytes);
	case CGPU_KIND_SYSMEM:
		/* Pages of the process are its memory cgroup's already (rm_alloc_memory.c). */
		return obj->cls == NV01_MEMORY_SYSTEM_OS_DESCRIPTOR ? NV_OK :
		       ckm_alloc_charge_host(a, p ? bytes : a->host_bytes);
	case CGPU_KIND_TSG:
		a->obj->notifiers[0] = get32(p, AT(nv_tsg_params, hObjectError));
		a->obj->notifiers[1] = get32(p, AT(nv_tsg_params, hObjectEccError));
		status = ckm_alloc_hold_space(a, 0, get32(p, AT(nv_tsg_params, hVASpace)));
		return status ?: charge_group(a);
	case CGPU_KIND_CHANNEL:
		if (!a->slot)
			return NV_ERR_INVALID_OBJECT_PARENT;
		/* Without a TSG the driver makes one, and its timeslice would never be
		 * set. Of a video engine none is.
		 */
		if (obj->engine == CGPU_ENGINE_GR && a->parent->kind != CGPU_KIND_TSG) {
			ckm_call_denied(a->rc->call, "channel without a group, class", obj->cls);
			return NV_ERR_INVALID_OBJECT_PARENT;
		}
		status = ckm_alloc_hold_channel(a);
		if (status != NV_OK)
			return status;
		status = find_group(a);
		return status ?: charge_channel(a);
	case CGPU_KIND_COMPUTE:
		/* Kernels must run on a channel of a graphics/compute engine: it is scheduled. */
		if (a->parent->kind != CGPU_KIND_CHANNEL || a->parent->engine != CGPU_ENGINE_GR)
			return NV_ERR_INVALID_CLASS;
		return NV_OK;
	}
	return NV_OK;
}

/* A device uses the default address space of the client that hClientShare names. The
 * driver checks no right to another client's, and with 0 the device shares one space
 * with all other devices that have 0. The handle is resolved when the space is first
 * used, and may be another client's by then. So only the device's own client is
 * accepted, and 0 is replaced by it.
 */
static u32 check_share(struct ckm_alloc *a)
{
	struct ckm_call *call = a->rc->call;

	a->share = get32(call->nested.copy, AT(nv_device_params, hClientShare));
	if (a->share && a->share != a->obj->core.hclient) {
		ckm_call_denied(call, "address space of client", a->share);
		return NV_ERR_INVALID_CLIENT;
	}
	put32(call->nested.copy, AT(nv_device_params, hClientShare), a->obj->core.hclient);
	return NV_OK;
}

u32 ckm_alloc_check_device(struct ckm_alloc *a)
{
	struct ckm_container *ct = a->rc->call->backing->ct;
	const u8 *p = a->rc->call->nested.copy;
	u32 i;

	for (i = 0; p && i < ct->slot_count; i++)
		if (ct->slot[i].gpu->instance == get32(p, AT(nv_device_params, deviceId))) {
			a->slot = &ct->slot[i];
			a->obj->core.gpu = ct->slot[i].gpu->index;
			return check_share(a);
		}
	return NV_ERR_INVALID_ARGUMENT;
}
