// SPDX-License-Identifier: MIT OR GPL-2.0-only
/* NVOS32: one call with many functions for memory. Takes rm_lock, gpu->lock. */
#include "call.h"
#include "core/nv_struct.h"
#include "core_ref.h"
#include "fields.h"
#include "intercept/backing_file.h"
#include "intercept/rm_alloc.h"
#include "intercept/rm_alloc_check.h"
#include "intercept/rm_alloc_hold.h"
#include "intercept/rm_call.h"
#include "intercept/rm_free.h"
#include "intercept/rm_vid_heap.h"
#include "pure/mem_estimate.h"
#include "state/container.h"
#include "state/rm_object.h"
#include "state/slot.h"

/* From 550 to 590 the driver makes memory of class 0x42 of it, which the call table refuses, wherever the memory is to
 * be (rmapi_deprecated_vidheapctrl.c). In other branches it has no meaning.
 */
#define ATTR2_USE_EGM			0x01000000
#define NV_MEMORY_EXTENDED_USER		0x0042

static void post_vid_heap_totals(struct ckm_call *call, u8 *arg)
{
	struct ckm_slot *slot = NULL;
	struct cgpu_obj *parent;
	u64 limit = 0, used = 0;

	parent = ckm_obj_pin(call->backing->ct, get32(arg, NVOS_H_ROOT),
			     get32(arg, NVOS_H_PARENT));
	if (parent && parent->gpu != CGPU_NO_GPU)
		slot = ckm_container_slot_of(call->backing->ct, parent->gpu);
	if (slot)
		ckm_slot_limits(slot, &limit, &used);
	put64(arg, AT(nvos32, total), limit);
	put64(arg, AT(nvos32, free), limit > used ? limit - used : 0);
	if (get32(arg, AT(nvos32, function)) == NVOS32_FUNCTION_INFO) {
		put64(arg, AT(nvos32, data.Info.size), limit > used ? limit - used : 0);
		put64(arg, AT(nvos32, data.Info.offset), 0);	/* hides where free memory begins */
		put64(arg, AT(nvos32, data.Info.base), 0);
	}
	ckm_obj_unpin(call->backing->ct, parent);
}

static void post_vid_heap_alloc(struct ckm_call *call, u8 *arg)
{
	ckm_alloc_post(call, arg);
	post_vid_heap_totals(call, arg);
}

static long vid_heap_alloc(struct ckm_rm_call *rc)
{
	const u8 *top = rc->call->top;
	struct ckm_alloc a = { .rc = rc, .handle_at = AT(nvos32, data.AllocSize.hMemory),
			   .status_at = AT(nvos32, status) };
	u32 attr = get32(top, AT(nvos32, data.AllocSize.attr)), flags = get32(top, AT(nvos32, data.AllocSize.flags));
	u32 attr2 = get32(top, AT(nvos32, data.AllocSize.attr2));
	u64 size = get64(top, AT(nvos32, data.AllocSize.size));
	bool virtual = flags & NVOS32_ALLOC_FLAGS_VIRTUAL;
	bool vidmem = ckm_core_call(nv.is_vidmem(attr, flags));
	u64 bytes = cgpu_estimate_vidmem_bytes(size, attr, attr2);
	u32 status;

	if (!virtual && attr2 & ATTR2_USE_EGM) {
		ckm_call_denied(rc->call, "class", NV_MEMORY_EXTENDED_USER);
		return ckm_rm_answer(rc, NV_ERR_INVALID_CLASS);
	}
	a.cls.cls = vidmem ? NV01_MEMORY_LOCAL_USER :
		    virtual ? NV50_MEMORY_VIRTUAL : NV01_MEMORY_SYSTEM;
	a.cls.kind = CGPU_KIND_PLAIN;
	a.contiguous = ckm_alloc_is_contiguous(attr);
	if (virtual)
		a.pt_bytes = ckm_reserved_tables(flags, size, attr, attr2);
	/* Without this flag the tenant's handle does not count: the driver chooses one. */
	if (!(flags & NVOS32_ALLOC_FLAGS_MEMORY_HANDLE_PROVIDED))
		put32(rc->call->top, AT(nvos32, data.AllocSize.hMemory), 0);
	status = ckm_alloc_prepare(&a, get32(top, NVOS_H_ROOT), get32(top, NVOS_H_PARENT), 0, 0);
	if (status == NV_OK) {
		if (!virtual)
			a.obj->core.kind = vidmem ? CGPU_KIND_VIDMEM : CGPU_KIND_SYSMEM;
		status = ckm_alloc_check_page_size(&a, attr, attr2);
		if (status == NV_OK && virtual)
			status = ckm_alloc_hold_space(&a, 0, get32(top, AT(nvos32, hVASpace)));
		if (status == NV_OK && !vidmem && !virtual)
			status = ckm_alloc_charge_host(&a, bytes);
		if (status == NV_OK && vidmem)
			status = ckm_alloc_check_place(&a, flags, attr2,
						       get64(top, AT(nvos32, data.AllocSize.alignment)), &bytes) ?:
				 ckm_alloc_charge(&a, CKM_MEM_DATA, bytes);
	}
	if (status == NV_OK && get32(top, AT(nvos32, data.AllocSize.hMemory)))
		status = ckm_alloc_add_pending(&a, get32(top, AT(nvos32, data.AllocSize.hMemory)));
	return ckm_alloc_run(&a, status, post_vid_heap_alloc);
}

long ckm_rm_run_vid_heap(struct ckm_rm_call *rc)
{
	const u8 *top = rc->call->top;

	switch (get32(top, AT(nvos32, function))) {
	case NVOS32_FUNCTION_ALLOC_SIZE:
		return vid_heap_alloc(rc);
	case NVOS32_FUNCTION_FREE:
		return ckm_rm_free_object(rc, get32(top, NVOS_H_ROOT),
					  get32(top, AT(nvos32, data.Free.hMemory)));
	case NVOS32_FUNCTION_INFO:
		rc->call->post = post_vid_heap_totals;
		return ckm_rm_forward(rc);
	}
	ckm_call_denied(rc->call, "VID_HEAP_CONTROL function", get32(top, AT(nvos32, function)));
	return ckm_rm_answer(rc, NV_ERR_NOT_SUPPORTED);
}
