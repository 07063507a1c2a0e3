// SPDX-License-Identifier: MIT OR GPL-2.0-only
/* Checks context DMAs, which are known as error notifiers only. Takes rm_lock. */
#include <linux/mm.h>

#include "call.h"
#include "core/nv_struct.h"
#include "fields.h"
#include "intercept/backing_file.h"
#include "intercept/rm_alloc_notifier.h"
#include "intercept/rm_call.h"
#include "state/container.h"
#include "state/rm_object.h"

/* A context DMA, of which only an error notifier is known: libnvcuvid's channels have one. The driver frees it
 * with its memory and leaves the channel its address; so it depends on the memory, and the channel on both. The
 * firmware writes entries of the notifier without a look at the limit: at the beginning of the memory they are in its
 * first page. The kernel maps what it names, so no more than that page.
 */
u32 ckm_alloc_check_notifier(struct ckm_call *call, struct ckm_obj *obj, const struct cgpu_obj *parent,
			     struct cgpu_obj **held)
{
	const u8 *p = call->nested.copy;
	u32 flags = get32(p, AT(nv_context_dma_params, flags)) & ~NVOS03_FLAGS_FREE;
	struct cgpu_obj *memory;

	if (flags != NVOS03_FLAGS_NOTIFIER || get32(p, AT(nv_context_dma_params, hSubDevice)) ||
	    get64(p, AT(nv_context_dma_params, offset)) || get64(p, AT(nv_context_dma_params, limit)) >= PAGE_SIZE) {
		ckm_call_denied(call, "context DMA that is no notifier, flags",
				get32(p, AT(nv_context_dma_params, flags)));
		return NV_ERR_INVALID_CLASS;
	}
	if (!ckm_obj_alloc_deps(obj))
		return NV_ERR_INSUFFICIENT_RESOURCES;
	memory = ckm_obj_pin(call->backing->ct, obj->core.hclient, get32(p, AT(nv_context_dma_params, hMemory)));
	*held = memory;
	if (memory && memory->parent == parent && memory->cls == NV01_MEMORY_SYSTEM &&
	    parent->kind == CGPU_KIND_DEVICE) {
		obj->core.deps[0].on = memory;
		return NV_OK;
	}
	ckm_call_denied(call, "notifier on what is not system memory of its device, handle",
			get32(p, AT(nv_context_dma_params, hMemory)));
	return memory ? NV_ERR_INVALID_OBJECT_PARENT : NV_ERR_OBJECT_NOT_FOUND;
}
