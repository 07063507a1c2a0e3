// SPDX-License-Identifier: MIT OR GPL-2.0-only
/* Sessions of video engines, and the measured size of contexts. Takes rm_lock, gpu->lock. */
#include "call.h"
#include "core/nv_abi.h"
#include "core_ref.h"
#include "driver/driver.h"
#include "fields.h"
#include "intercept/backing_file.h"
#include "intercept/rm_alloc_check.h"
#include "intercept/rm_alloc_context.h"
#include "intercept/rm_call.h"
#include "sched/runlist.h"
#include "state/container.h"
#include "state/gpu.h"
#include "state/memory.h"
#include "state/quota.h"
#include "state/rm_object.h"

/* A session: an object of a video engine. Its channel must be of that engine, as only those are
 * frozen with the container, and the freeze must be one that stops it. The buffers of the engine's
 * context are charged with the channel's TSG.
 */
u32 ckm_alloc_check_video(struct ckm_alloc *a)
{
	struct ckm_container *ct = a->rc->call->backing->ct;
	enum cgpu_engine engine = ckm_core_call(nv.engine_of_kind(a->obj->core.kind));
	enum cgpu_quota_kind quota = CGPU_QUOTA_NVDEC + (engine - CGPU_ENGINE_NVDEC);
	u32 status, cls = a->obj->core.cls;
	int ret;

	if (a->parent->kind != CGPU_KIND_CHANNEL || a->parent->engine != engine || !a->slot) {
		ckm_call_denied(a->rc->call, "object on a channel of another engine, class", cls);
		return NV_ERR_INVALID_CLASS;
	}
	if (!ckm_quota_has(quota)) {
		ckm_call_denied(a->rc->call, "session, of which the module's parameter allows none, class", cls);
		return NV_ERR_INVALID_CLASS;
	}
	if (!ckm_ctrl_freezes_video(a->slot->gpu)) {
		ckm_call_denied(a->rc->call, "session on a GPU where freezes do not stop video engines, class", cls);
		return NV_ERR_INVALID_CLASS;
	}
	status = ckm_alloc_charge(a, CKM_MEM_CONTEXT, 0);
	if (status != NV_OK)
		return status;
	mutex_lock(&ct->rm_lock);
	ret = ckm_mem_take_id_locked(a->slot, a->mem, quota);
	mutex_unlock(&ct->rm_lock);
	return ret ? NV_ERR_INSUFFICIENT_RESOURCES : NV_OK;
}

/* The driver keeps a group's engine where each runlist has channel ids of its own (a host of SR-IOV). Elsewhere a
 * channel goes where it is first bound, or where its first object belongs, else, on Turing, to graphics' runlist when
 * it is scheduled (kfifoRunlistSetId_GM107(), kfifoGetDefaultRunlist_GM107(); seen in 535 and 550:
 * test_the_runlist_of_a_channel_is_that_of_its_first_object). Once it is bound, the driver refuses any other runlist.
 * So a copy channel is bound, which could come to graphics' runlist and is never frozen, and a channel of graphics,
 * which a first object of a copy engine would take away: by such a one graphics' runlist cannot be restarted.
 */
bool ckm_alloc_bind_channel(const struct ckm_alloc *a)
{
	const struct cgpu_obj *obj = &a->obj->core;
	const struct ckm_group *group = a->obj->group;
	bool graphics = group && group->on_graphics;
	u32 type;

	if (obj->kind != CGPU_KIND_CHANNEL || (obj->engine != CGPU_ENGINE_OTHER && !graphics))
		return true;
	/* Whatever the type: the chip may lack that engine. */
	type = graphics ? NV2080_ENGINE_TYPE_GRAPHICS : group ? group->type : ckm_alloc_engine_type(a);
	return ckm_drv_control(obj->hclient, obj->hobject, NVA06F_CTRL_CMD_BIND, &type, sizeof(type)) == NV_OK;
}

/* The engine whose context the driver makes with this object; CGPU_ENGINE_OTHER: none. For a
 * channel without a TSG the driver makes one. Of a TSG on another engine of graphics' runlist it makes
 * none: measured, that would be the least that a context was seen to take.
 */
enum cgpu_engine ckm_alloc_context_of(const struct ckm_alloc *a)
{
	bool group = a->obj->core.kind == CGPU_KIND_TSG ||
		     (a->obj->core.kind == CGPU_KIND_CHANNEL && a->parent->kind != CGPU_KIND_TSG);

	if (!group || a->is_dup ||
	    (a->obj->core.engine == CGPU_ENGINE_GR && ckm_alloc_engine_type(a) > NV2080_ENGINE_TYPE_GR7))
		return CGPU_ENGINE_OTHER;
	return a->obj->core.engine;
}

/* From Ampere on, the driver takes a context's buffers when its TSG is made
 * (ctxBufPoolReserve() of kernel_channel_group_api.c), and no call reports their size.
 * The size is measured as the decrease of the card's free memory, which is valid only
 * if no other operation was in flight on this GPU. Later contexts are charged that size
 * from the start; the charge of this one is raised to it if the limit allows. On Turing
 * the buffers come from memory that the driver reserved for itself: the free memory
 * does not decrease, and the size stays ctx_reserve_mib, of a video engine 0.
 */
void ckm_alloc_measure_context(struct ckm_alloc *a)
{
	struct ckm_gpu *gpu = a->slot->gpu;
	struct ckm_container *ct = a->slot->ct;
	enum cgpu_engine engine = ckm_alloc_context_of(a);
	struct cgpu_mem *mem;
	u64 used, free;

	if (!ckm_gpu_heap(gpu, &used, &free) || free > a->free_before ||
	    atomic_read(&gpu->mem_ops_inflight) != 1 ||
	    atomic_read(&gpu->mem_ops_seq) != a->mem_ops_seq)
		return;
	ckm_gpu_context_seen(gpu, engine, a->free_before - free);
	used = ckm_gpu_context_bytes(gpu, engine);
	mutex_lock(&ct->rm_lock);
	mem = a->obj->core.mem;		/* NULL: removed with its file */
	if (mem && used > mem->bytes && ckm_mem_correct_locked(a->slot, mem, used))
		ckm_say(ct, "its context takes %llu MiB and is charged %llu\n",
			used / CGPU_MIB, mem->bytes / CGPU_MIB);
	mutex_unlock(&ct->rm_lock);
}
