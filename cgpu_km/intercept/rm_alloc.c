// SPDX-License-Identifier: MIT OR GPL-2.0-only
/* Forwards allocations and inserts their objects into the tree. Takes rm_lock, gpu->lock. */
#include <linux/sched.h>

#include "call.h"
#include "core/nv_struct.h"
#include "core_ref.h"
#include "driver/driver.h"
#include "fields.h"
#include "intercept/backing_file.h"
#include "intercept/rm_alloc.h"
#include "intercept/rm_alloc_check.h"
#include "intercept/rm_alloc_context.h"
#include "intercept/rm_call.h"
#include "intercept/rm_peers.h"
#include "sched/sched_thread.h"
#include "state/container.h"
#include "state/gpu.h"
#include "state/listed.h"
#include "state/memory.h"
#include "state/rm_object.h"
#include "state/rm_tables.h"
#include "state/slot.h"

u32 ckm_alloc_add_pending(struct ckm_alloc *a, u32 handle)
{
	struct ckm_container *ct = a->rc->call->backing->ct;
	enum ckm_listed kind = ckm_listed_kind(&a->obj->core);
	int ret;

	/* Of the driver's answer this would mean that it made an object under no known handle. */
	if (handle == CKM_ALL_ONES) {
		ckm_call_denied(a->rc->call, "handle", handle);
		return NV_ERR_INVALID_ARGUMENT;
	}
	a->obj->core.hobject = handle;
	mutex_lock(&ct->rm_lock);
	if (!ckm_objs_have_room_locked(ct)) {
		mutex_unlock(&ct->rm_lock);
		ckm_call_denied(a->rc->call, "object over max_objects or host_memsize, class",
				a->obj->core.cls);
		return NV_ERR_INSUFFICIENT_RESOURCES;
	}
	if (!ckm_listed_has_room_locked(ct, kind)) {
		mutex_unlock(&ct->rm_lock);
		ckm_call_denied(a->rc->call, ckm_listed_refusal(kind), a->obj->core.cls);
		return NV_ERR_INSUFFICIENT_RESOURCES;
	}
	ret = ckm_obj_add_locked(ct, &a->obj->core, a->parent);
	a->in_tree = !ret;
	if (!ret && !a->parent)
		list_add_tail(&a->obj->bound, &a->rc->call->backing->clients);
	mutex_unlock(&ct->rm_lock);
	switch (ret) {
	case 0:
		return NV_OK;
	case -EEXIST:
		return NV_ERR_INSERT_DUPLICATE_NAME;
	case -ENOMEM:
		return NV_ERR_INSUFFICIENT_RESOURCES;
	default:
		return NV_ERR_INVALID_OBJECT_PARENT;
	}
}

/* The driver may keep an object that the tenant does not get: its charges stay with the container. */
static void keep_refused(struct ckm_alloc *a, u32 handle)
{
	struct ckm_container *ct = a->rc->call->backing->ct;
	struct cgpu_obj *obj = &a->obj->core;

	ckm_alarm(ct, "the driver may keep object 0x%x: it stays charged\n",
		handle);
	a->mem = NULL;
	a->userd = NULL;
	mutex_lock(&ct->rm_lock);
	ct->kept = true;
	obj->overhead = 0;	/* the slot's sum keeps it */
	mutex_unlock(&ct->rm_lock);
}

static u32 free_in_driver(struct ckm_alloc *a, u32 handle)
{
	struct cgpu_obj *obj = &a->obj->core;

	return ckm_drv_free(obj->hclient, a->parent ? a->parent->hobject : obj->hclient, handle);
}

static void free_refused(struct ckm_alloc *a, u32 handle)
{
	if (free_in_driver(a, handle) != NV_OK)
		keep_refused(a, handle);
}

/* Correct the charge to the size that the driver reports. False: the driver reports
 * none, or it does not fit; the object is freed again.
 */
static bool verify_size(struct ckm_alloc *a)
{
	struct cgpu_obj *obj = &a->obj->core;
	struct ckm_container *ct = a->slot->ct;
	u64 bytes = ckm_real_bytes(obj->hclient, obj->hobject);
	int ret = -EIO;

	if (bytes) {
		/* Never downwards: the driver can report less than it takes (4 KiB
		 * pages come from 64 KiB ones).
		 */
		mutex_lock(&ct->rm_lock);
		ret = ckm_mem_correct_locked(a->slot, a->mem, max(bytes, a->mem->bytes));
		mutex_unlock(&ct->rm_lock);
	}
	if (!ret)
		return true;
	ckm_say(ct, "an allocation of %llu bytes could not be verified (%d); freed\n",
		a->mem->bytes, ret);
	free_refused(a, obj->hobject);
	return false;
}

/* System memory is charged in the largest pages that its attributes permit: correct that to what
 * the driver reports. Where it reports none, the charge stays.
 */
static void correct_host_size(struct ckm_alloc *a)
{
	struct cgpu_obj *obj = &a->obj->core;
	struct ckm_container *ct = a->slot->ct;
	u64 bytes = ckm_real_bytes(obj->hclient, obj->hobject);

	if (!bytes)
		return;
	mutex_lock(&ct->rm_lock);
	ckm_mem_correct_host_locked(ct, a->mem, ckm_alloc_host_bytes(a, bytes));
	mutex_unlock(&ct->rm_lock);
}

static void schedule_handle_locked(struct ckm_slot *slot, struct ckm_obj *tsg)
{
	struct ckm_group *group = tsg->group;

	lockdep_assert_held(&slot->gpu->lock);
	list_add_tail(&tsg->sched, &group->handles);
	if (!list_empty(&group->sched))
		return;
	list_add_tail(&group->sched, &slot->tsgs);
	slot->tsg_count++;
	ckm_slot_channels_changed_locked(slot);
}

/* Timeslices are set of graphics/compute TSGs only. */
static bool is_scheduled(const struct cgpu_obj *obj)
{
	return obj->kind == CGPU_KIND_CHANNEL ? obj->engine != CGPU_ENGINE_OTHER
	     : obj->kind == CGPU_KIND_TSG && obj->engine == CGPU_ENGINE_GR;
}

static void schedule_locked(struct ckm_alloc *a)
{
	struct ckm_slot *slot = a->slot;
	struct cgpu_obj *client = &a->obj->core;

	lockdep_assert_held(&slot->ct->rm_lock);
	while (client->parent)
		client = client->parent;
	a->obj->pid = container_of(client, struct ckm_obj, core)->pid;
	spin_lock(&slot->gpu->lock);
	if (a->obj->core.kind == CGPU_KIND_TSG) {
		schedule_handle_locked(slot, a->obj);
	} else {
		a->obj->seq = ++slot->gpu->sched_seq;
		list_add_tail(&a->obj->sched, &slot->channels);
		slot->channel_count++;
		ckm_slot_channels_changed_locked(slot);
	}
	spin_unlock(&slot->gpu->lock);
}

void ckm_alloc_post(struct ckm_call *call, u8 *arg)
{
	struct ckm_alloc *a = call->post_data;
	struct ckm_container *ct = call->backing->ct;
	struct cgpu_obj *obj = &a->obj->core;
	u32 status = get32(arg, a->status_at), handle = get32(arg, a->handle_at);

	if (obj->kind == CGPU_KIND_DEVICE)	/* restore the tenant's hClientShare */
		put32(call->nested.copy, AT(nv_device_params, hClientShare), a->share);
	if (status == NV_ERR_NO_MEMORY && a->mem && a->mem->bytes)
		ckm_mem_no_room(a->slot, a->mem);
	if (status != NV_OK)
		return;
	/* A REGISTER_FD meanwhile may have bound the client to the other file. */
	if (obj->kind == CGPU_KIND_CLIENT && READ_ONCE(call->backing->registered)) {
		ckm_drv_free(handle, handle, handle);
		ckm_call_denied(call, "client on a registered file, class", obj->cls);
		status = NV_ERR_INVALID_FUNCTION;
		goto refuse;
	}
	status = NV_ERR_INVALID_ARGUMENT;
	/* The driver returned a different handle from the inserted one, or none: free the new
	 * object, which is not in the tree. It answers NV_OK for a handle that it does not have,
	 * so that proves nothing.
	 */
	if (handle == CKM_ALL_ONES || (a->in_tree && obj->hobject != handle)) {
		free_in_driver(a, handle);
		keep_refused(a, handle);
		goto refuse;
	}
	if (!a->in_tree) {
		if (!a->parent)
			obj->hclient = handle;
		status = ckm_alloc_add_pending(a, handle);
		if (status != NV_OK) {
			free_refused(a, handle);
			goto refuse;
		}
	}
	status = NV_ERR_NO_MEMORY;
	if (obj->kind == CGPU_KIND_VIDMEM && a->mem && !verify_size(a))
		goto refuse;
	if (obj->kind == CGPU_KIND_SYSMEM && a->mem && !a->is_dup && obj->cls != NV01_MEMORY_SYSTEM_OS_DESCRIPTOR)
		correct_host_size(a);
	if (!ckm_alloc_bind_channel(a)) {
		ckm_call_denied(call, "channel that the driver puts on another runlist, class", obj->cls);
		free_refused(a, handle);
		status = NV_ERR_INVALID_STATE;
		goto refuse;
	}

	mutex_lock(&ct->rm_lock);
	if (obj->state != CGPU_OBJ_PENDING) {	/* removed with its client's file */
		mutex_unlock(&ct->rm_lock);
		status = NV_ERR_INVALID_CLIENT;
		goto refuse;
	}
	obj->mem = a->mem;
	a->mem = NULL;
	obj->userd = a->userd;
	a->userd = NULL;
	obj->state = CGPU_OBJ_LIVE;
	a->obj->in_space = ckm_space_live_locked(a->obj->space, obj, a->obj->pt_bytes);
	if (is_scheduled(obj))
		schedule_locked(a);
	/* The TSG now has a channel that is not enabled. */
	if (obj->kind == CGPU_KIND_CHANNEL && a->obj->group)
		a->obj->group->changes++;
	mutex_unlock(&ct->rm_lock);
	a->done = true;
	if (a->free_before)
		ckm_alloc_measure_context(a);
	/* An enabled TSG may run its new channel at once: freeze it if its container is
	 * not scheduled.
	 */
	if (obj->kind == CGPU_KIND_CHANNEL && is_scheduled(obj) &&
	    READ_ONCE(a->obj->group->scheduled)) {
		ckm_sched_freeze_new_channel(a->slot, a->obj);
		ckm_gpu_kick(a->slot->gpu);
	}
	return;

refuse:
	put32(arg, a->status_at, status);
}

/* By the kind of the object; what it takes is charged. */
static u32 check(struct ckm_alloc *a)
{
	switch (a->cls.kind) {
	case CGPU_KIND_DEVICE:
		return ckm_alloc_check_device(a);
	case CGPU_KIND_PEERS:
		return ckm_peers_check(a);
	case CGPU_KIND_NVDEC:
	case CGPU_KIND_NVENC:
	case CGPU_KIND_NVJPG:
	case CGPU_KIND_OFA:
		return ckm_alloc_check_video(a);
	default:
		return ckm_alloc_check_params(a);
	}
}

u32 ckm_alloc_prepare(struct ckm_alloc *a, u32 client, u32 parent, u32 handle, u64 params)
{
	struct ckm_backing *backing = a->rc->call->backing;
	u32 status;

	a->obj = ckm_obj_alloc(client, handle, a->cls.cls, a->cls.kind);
	if (!a->obj)
		return NV_ERR_INSUFFICIENT_RESOURCES;
	/* The parameters of a compute object are optional and need no check, but the
	 * driver writes results to them: they need a kernel copy too.
	 */
	if (a->cls.copied_in ||
	    (a->cls.kind == CGPU_KIND_COMPUTE && params && a->cls.params_size)) {
		status = ckm_copy_in_params(a->rc->call, params, a->cls.params_size);
		if (status != NV_OK)
			return status;
		a->rc->call->nested.whole = true;
	}
	if (a->cls.kind == CGPU_KIND_CLIENT) {
		a->obj->core.owner = backing->id;
		a->obj->pid = task_tgid_nr(current);
		if (READ_ONCE(backing->registered)) {
			ckm_call_denied(a->rc->call, "client on a registered file, class",
					a->cls.cls);
			return NV_ERR_INVALID_FUNCTION;
		}
		return backing->node == CGPU_NODE_CTL ? NV_OK : NV_ERR_INVALID_FUNCTION;
	}
	/* A dup has no parameters. */
	if (a->cls.copied_in && ckm_alloc_is_event(a->cls.cls)) {
		status = ckm_alloc_event_source(a, client, &parent);
		if (status != NV_OK)
			return status;
	}
	a->parent = ckm_obj_pin(backing->ct, client, parent);
	if (!a->parent)
		return NV_ERR_INVALID_OBJECT_PARENT;
	if (a->parent->gpu != CGPU_NO_GPU)
		a->slot = ckm_container_slot_of(backing->ct, a->parent->gpu);
	status = check(a);
	if (status == NV_OK)
		status = ckm_alloc_charge_overhead(a);
	if (status == NV_OK && handle)
		status = ckm_alloc_add_pending(a, handle);
	return status;
}

/* Of an allocation that the driver refused. Those that were uncharged already are no part of the overhead. */
static void keep_tables(struct ckm_alloc *a)
{
	struct ckm_container *ct = a->rc->call->backing->ct;
	struct cgpu_obj *obj = &a->obj->core;

	if (a->done || !a->pt_bytes)
		return;
	mutex_lock(&ct->rm_lock);
	if (obj->overhead >= a->pt_bytes)
		obj->overhead -= ckm_space_refused_locked(a->obj->space, obj, a->pt_bytes);
	mutex_unlock(&ct->rm_lock);
}

static void finish(struct ckm_alloc *a)
{
	struct ckm_container *ct = a->rc->call->backing->ct;
	u32 n;

	if (a->mem)
		ckm_obj_put_mem(ct, a->mem);
	if (a->userd)
		ckm_obj_put_mem(ct, a->userd);
	if (a->in_tree) {
		mutex_lock(&ct->rm_lock);
		if (!a->done)
			ckm_obj_remove_locked(ct, &a->obj->core);
		mutex_unlock(&ct->rm_lock);
		ckm_obj_unpin(ct, &a->obj->core);	/* frees it if it was removed */
	} else if (a->obj) {
		mutex_lock(&ct->rm_lock);
		ckm_obj_overhead_less_locked(ct, &a->obj->core, a->obj->core.overhead);
		mutex_unlock(&ct->rm_lock);
		ckm_obj_free(a->obj);
	}
	for (n = 0; n < CKM_ALLOC_HELD; n++)
		ckm_obj_unpin(ct, a->held[n]);
	ckm_obj_unpin(ct, a->source);
	ckm_obj_unpin(ct, a->parent);
}

/* The driver may have made the object: leave it in the tree, PENDING and charged, until its
 * client goes with the file. Without a handle it is not in the tree, and the charge stays
 * until the container is gone.
 */
static void keep_charged(struct ckm_alloc *a)
{
	struct ckm_container *ct = a->rc->call->backing->ct;
	struct cgpu_obj *obj = &a->obj->core;

	mutex_lock(&ct->rm_lock);
	ct->kept = true;
	if (a->in_tree && obj->state == CGPU_OBJ_PENDING) {
		obj->mem = a->mem;
		obj->userd = a->userd;
		a->userd = NULL;
		a->done = true;
	}
	a->mem = NULL;
	mutex_unlock(&ct->rm_lock);
}

/* Count the calls in flight that may allocate or free video memory: measure_context()
 * is valid only for a call that runs alone.
 */
static void begin_on_card(struct ckm_alloc *a)
{
	bool alone;
	u64 used;

	if (!a->slot)
		return;
	alone = atomic_inc_return(&a->slot->gpu->mem_ops_inflight) == 1;
	a->mem_ops_seq = atomic_inc_return(&a->slot->gpu->mem_ops_seq);
	if (alone && ckm_alloc_context_of(a) != CGPU_ENGINE_OTHER &&
	    !ckm_gpu_heap(a->slot->gpu, &used, &a->free_before))
		a->free_before = 0;
}

static void end_on_card(struct ckm_alloc *a)
{
	if (a->slot)
		atomic_dec(&a->slot->gpu->mem_ops_inflight);
}

long ckm_alloc_run(struct ckm_alloc *a, u32 status, void (*post)(struct ckm_call *call, u8 *arg))
{
	struct ckm_call *call = a->rc->call;
	long ret;

	if (status != NV_OK) {
		finish(a);
		return ckm_rm_answer(a->rc, status);
	}
	call->post = post;
	call->post_data = a;
	begin_on_card(a);
	ret = ckm_rm_forward(a->rc);
	end_on_card(a);
	if (call->unseen)
		keep_charged(a);
	keep_tables(a);
	finish(a);
	return ret;
}

/* End of an allocation of shared data, which is not forwarded: the object exists in the
 * tree only, so a call that names it and is forwarded fails in the driver.
 */
static long keep_shared(struct ckm_alloc *a, u32 status)
{
	struct ckm_container *ct = a->rc->call->backing->ct;

	if (status == NV_OK && !a->in_tree)	/* the driver alone can choose a handle */
		status = NV_ERR_INVALID_ARGUMENT;
	if (status == NV_OK && a->parent->kind != CGPU_KIND_SUBDEVICE)
		status = NV_ERR_INVALID_OBJECT_PARENT;
	if (status == NV_OK) {
		mutex_lock(&ct->rm_lock);
		if (a->obj->core.state == CGPU_OBJ_PENDING) {
			a->obj->core.state = CGPU_OBJ_LIVE;
			a->done = true;
		} else {	/* removed with its client's file */
			status = NV_ERR_INVALID_CLIENT;
		}
		mutex_unlock(&ct->rm_lock);
	}
	finish(a);
	return ckm_rm_answer(a->rc, status);
}

void ckm_alloc_find_class(struct ckm_alloc *a, u32 cls)
{
	const struct cgpu_core_ops *core = ckm_core_enter();
	const struct cgpu_class *row = core->nv.class(ckm_driver_branch(), cls);

	if (row)
		a->cls = *row;
	ckm_core_leave();
}

long ckm_rm_run_alloc(struct ckm_rm_call *rc)
{
	const u8 *top = rc->call->top;
	struct ckm_alloc a = { .rc = rc, .handle_at = NVOS_H_NEW, .status_at = rc->row.status_at };
	u32 cls = get32(top, NVOS_H_CLASS), status;

	ckm_alloc_find_class(&a, cls);
	/* On a GPU's file the driver allocates events only. An OS descriptor must come
	 * from RM_ALLOC_MEMORY, which pins the pages: without that, the driver takes
	 * the tenant's pointer for its own list of pages.
	 */
	if (a.cls.kind == CGPU_KIND_REFUSED || cls == NV01_MEMORY_SYSTEM_OS_DESCRIPTOR ||
	    (rc->call->backing->node == CGPU_NODE_GPU && cls != NV01_EVENT &&
	     cls != NV01_EVENT_OS_EVENT)) {
		ckm_call_denied(rc->call, a.cls.graphics ? "graphics: class" : "class", cls);
		return ckm_rm_answer(rc, NV_ERR_INVALID_CLASS);
	}
	/* FINN_SERIALIZED: the parameters are in another form than that which is checked. The older struct has none. */
	if (rc->call->size == sizeof(struct nvos64) && get32(top, AT(nvos64, flags))) {
		ckm_call_denied(rc->call, "flags of an allocation", get32(top, AT(nvos64, flags)));
		return ckm_rm_answer(rc, NV_ERR_INVALID_ARGUMENT);
	}
	status = ckm_alloc_prepare(&a, get32(top, NVOS_H_ROOT), get32(top, NVOS_H_PARENT),
				   a.cls.kind == CGPU_KIND_CLIENT ? 0 : get32(top, NVOS_H_NEW),
				   get64(top, AT(nvos64, pAllocParms)));
	if (a.cls.kind == CGPU_KIND_SHARED_DATA)
		return keep_shared(&a, status);
	return ckm_alloc_run(&a, status, ckm_alloc_post);
}
