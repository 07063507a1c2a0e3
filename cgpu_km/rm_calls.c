// SPDX-License-Identifier: MIT OR GPL-2.0
#include <linux/slab.h>
#include <linux/uaccess.h>

#include "backfs.h"
#include "calls.h"
#include "container.h"
#include "core/nv_abi.h"
#include "core_link.h"
#include "driver.h"
#include "gpu.h"
#include "interpose.h"
#include "managed.h"
#include "rm_calls.h"
#include "rm_control.h"
#include "seal.h"
#include "turn_thread.h"

#define UNKNOWN_BYTES	(4ull << 30)	/* of memory whose size nobody says: 8 MiB of page tables */

void ckm_refused(struct ckm_call *call, const char *what, u32 number)
{
	struct ckm_container *ct = call->back->ct;
	u32 i;

	/* A control file belongs to no GPU: the call counts on each. */
	for (i = 0; i < ct->slot_count; i++)
		if (!call->back->slot || call->back->slot == &ct->slot[i])
			atomic64_inc(&ct->slot[i].refused_calls);
	pr_notice_ratelimited("container %s: %s 0x%x refused, pid %d\n", ct->dir, what, number,
			      task_tgid_nr(current));
}

long ckm_rm_answer(struct ckm_rm_call *rc, u32 status)
{
	if (rc->row.status_at)
		put32(rc->call->top, rc->row.status_at, status);
	return copy_to_user((void __user *)rc->user, rc->call->top, rc->call->size) ? -EFAULT : 0;
}

long ckm_rm_forward(struct ckm_rm_call *rc)
{
	struct ckm_back *back = rc->call->back;
	const struct ckm_range *nested = &rc->call->nested;
	bool sealed = rc->row.verdict != CGPU_PASS;
	long ret;

	/* A driver that gives up before it says so must not look like success. */
	if (sealed)
		put32(rc->call->top, rc->row.status_at, NV_ERR_GENERIC);
	ret = back->drv->unlocked_ioctl(back->file, rc->cmd, rc->user);
	if (!ret && sealed && !rc->call->ran) {
		pr_err_ratelimited("the driver ran call 0x%x unseen by the seal\n", rc->row.nr);
		ret = -EIO;
	}
	if (nested->answered &&
	    copy_to_user((void __user *)nested->user, nested->copy, nested->size))
		ret = ret ?: -EFAULT;
	return ret;
}

/* Nested parameters: one copy for our check and the driver's use. */
u32 ckm_seal_params(struct ckm_call *call, u64 user, u32 size)
{
	void *copy;

	if (!user || !size)
		return NV_ERR_ARGUMENT;
	copy = kvmalloc(size, GFP_KERNEL_ACCOUNT);
	if (!copy)
		return NV_ERR_RESOURCES;
	if (copy_from_user(copy, (void __user *)user, size)) {
		kvfree(copy);
		return NV_ERR_ADDRESS;
	}
	call->nested = (struct ckm_range){ .user = user, .size = size, .copy = copy };
	return NV_OK;
}

/* ---- allocation ---- */

/* One allocation on its way through the driver. */
struct alloc {
	struct ckm_rm_call *rc;
	struct cgpu_class cls;		/* a copy: the core may be replaced meanwhile */
	struct ckm_obj *obj;		/* in the tree as PENDING if the handle is known */
	struct cgpu_obj *parent;	/* held; NULL for a client */
	struct cgpu_obj *source;	/* held; whose events an event object is for, or NULL */
	struct ckm_slot *slot;		/* NULL above the device */
	struct cgpu_mem *mem;		/* charged, not yet the object's */
	u32 handle_at;			/* where the driver puts the new handle */
	u32 status_at;
	struct cgpu_mem *userd;		/* the same, of a channel's USERD */
	struct cgpu_mem *context;	/* the reserve that this object's context is charged */
	u64 tables;			/* page tables that come with it */
	u64 free_before;		/* on the card */
	int move_seq;
	bool in_tree;			/* and busy: it is ours until finish() */
	bool done;			/* the driver made it and we keep it */
};

static u32 add_pending(struct alloc *a, u32 handle)
{
	struct ckm_container *ct = a->rc->call->back->ct;
	const struct cgpu_core_ops *core;
	int ret;

	a->obj->core.hobject = handle;
	mutex_lock(&ct->rm_lock);
	if (!ckm_objs_have_room_locked(ct)) {
		mutex_unlock(&ct->rm_lock);
		ckm_refused(a->rc->call, "one more than max_objects, of class", a->obj->core.cls);
		return NV_ERR_RESOURCES;
	}
	core = ckm_core_enter();
	/* A parent whose file died meanwhile takes no children. */
	if (a->parent && a->parent->state != CGPU_OBJ_LIVE)
		ret = -EINVAL;
	else
		ret = core->tree_add(&ct->tree, &a->obj->core, a->parent);
	ckm_core_leave();
	a->in_tree = !ret;
	if (!ret)
		a->obj->core.busy++;
	if (!ret && !a->parent)
		list_add_tail(&a->obj->bound, &a->rc->call->back->clients);
	mutex_unlock(&ct->rm_lock);
	return ret == -EEXIST ? NV_ERR_DUPLICATE_NAME : ret ? NV_ERR_PARENT : NV_OK;
}

static u32 charge(struct alloc *a, u64 bytes)
{
	struct ckm_container *ct = a->rc->call->back->ct;
	struct cgpu_mem *mem;

	if (!a->slot)
		return NV_ERR_PARENT;
	ckm_managed_wait(ct);
	mutex_lock(&ct->rm_lock);
	mem = ckm_mem_charge_locked(a->slot, bytes);
	mutex_unlock(&ct->rm_lock);
	if (IS_ERR(mem))
		return NV_ERR_NO_MEMORY;
	a->mem = mem;
	return NV_OK;
}

static u32 charge_overhead(struct alloc *a)
{
	struct ckm_container *ct = a->rc->call->back->ct;
	struct cgpu_obj *obj = &a->obj->core;
	const struct cgpu_core_ops *core;
	u64 bytes;
	int ret;

	if (!a->slot)
		return NV_OK;
	core = ckm_core_enter();
	bytes = core->call_object_overhead(obj->kind, obj->cls) + a->tables;
	ckm_core_leave();
	obj->gpu = a->slot->gpu->index;
	a->obj->tables = a->tables;
	mutex_lock(&ct->rm_lock);
	ret = ckm_obj_overhead_locked(ct, obj, bytes);
	mutex_unlock(&ct->rm_lock);
	return ret ? NV_ERR_NO_MEMORY : NV_OK;
}

static u32 charge_context(struct alloc *a)
{
	return a->slot ? charge(a, ckm_gpu_context_bytes(a->slot->gpu)) : NV_ERR_PARENT;
}

/* ctrl0041.h: NV0041_CTRL_GET_SURFACE_INFO, with a kernel list; 0: it does not say */
static u64 real_bytes(u32 client, u32 memory)
{
	struct { u32 index, data; } info = { .index = NV0041_SURFACE_PHYS_SIZE };
	struct { u32 count; u32 pad; u64 list; } params = {
		.count = 1, .list = (uintptr_t)&info,
	};

	if (ckm_rm_control(client, memory, NV0041_CTRL_GET_SURFACE_INFO, &params, sizeof(params)))
		return 0;
	return (u64)info.data * NV0041_SURFACE_SIZE_UNIT;
}

/* The driver's own word on what it took. More than fits, or no word: free it. */
static bool verify_size(struct alloc *a)
{
	struct cgpu_obj *obj = &a->obj->core;
	struct ckm_container *ct = a->slot->ct;
	u64 bytes = real_bytes(obj->hclient, obj->hobject);
	int ret = -EIO;

	if (bytes) {
		/* Never down: what is reported can be less than what is taken
		 * (4 KiB pages come from 64 KiB ones).
		 */
		mutex_lock(&ct->rm_lock);
		ret = ckm_mem_correct_locked(a->slot, a->mem, max(bytes, a->mem->bytes));
		mutex_unlock(&ct->rm_lock);
	}
	if (!ret)
		return true;
	pr_notice_ratelimited("container %s: an allocation of %llu bytes could not be verified (%d); freed\n",
			      ct->dir, a->mem->bytes, ret);
	/* What cannot be freed stays charged, until the container is gone. */
	if (ckm_rm_free(obj->hclient, a->parent->hobject, obj->hobject) != NV_OK)
		a->mem = NULL;
	return false;
}

/* A context's buffers come with its first engine object and no call tells their
 * size: what the card has less of afterwards, if nobody else took anything
 * meanwhile. Later ones are charged that much from the start; this one is
 * brought up to it as far as the limit allows.
 */
static void measure_context(struct alloc *a)
{
	struct ckm_gpu *gpu = a->slot->gpu;
	struct ckm_container *ct = a->slot->ct;
	u64 used, free;

	mutex_lock(&ct->rm_lock);
	a->context->flags |= CGPU_MEM_CONTEXT_MADE;
	mutex_unlock(&ct->rm_lock);
	if (!ckm_gpu_heap(gpu, &used, &free) || free >= a->free_before ||
	    atomic_read(&gpu->moves) != 1 || atomic_read(&gpu->move_seq) != a->move_seq)
		return;
	ckm_gpu_context_seen(gpu, a->free_before - free);
	used = ckm_gpu_context_bytes(gpu);
	mutex_lock(&ct->rm_lock);
	if (used > a->context->bytes && ckm_mem_correct_locked(a->slot, a->context, used))
		pr_notice_ratelimited("container %s: its context takes %llu MiB and is charged %llu\n",
				      ct->dir, used / CGPU_MIB, a->context->bytes / CGPU_MIB);
	mutex_unlock(&ct->rm_lock);
}

static void schedule_locked(struct alloc *a)
{
	struct ckm_slot *slot = a->slot;
	struct cgpu_obj *client = &a->obj->core;

	lockdep_assert_held(&slot->ct->rm_lock);
	while (client->parent)
		client = client->parent;
	a->obj->pid = container_of(client, struct ckm_obj, core)->pid;
	mutex_lock(&slot->gpu->lock);
	a->obj->seq = ++slot->gpu->sched_seq;
	if (a->obj->core.kind == CGPU_KIND_TSG) {
		list_add_tail(&a->obj->sched, &slot->tsgs);
		slot->tsg_count++;
	} else {
		list_add_tail(&a->obj->sched, &slot->channels);
		slot->channel_count++;
	}
	ckm_gpu_channels_changed_locked(slot);
	mutex_unlock(&slot->gpu->lock);
}

/* The driver made it: it becomes LIVE, or is gone again. Before the tenant
 * sees the answer.
 */
static void post_alloc(struct ckm_call *call, u8 *arg)
{
	struct alloc *a = call->post_data;
	struct ckm_container *ct = call->back->ct;
	struct cgpu_obj *obj = &a->obj->core;
	u32 status = get32(arg, a->status_at);

	if (status != NV_OK)
		return;
	/* Registered meanwhile: the client could be the other file's by now. */
	if (obj->kind == CGPU_KIND_CLIENT && READ_ONCE(call->back->registered)) {
		ckm_rm_free(get32(arg, a->handle_at), get32(arg, a->handle_at),
			    get32(arg, a->handle_at));
		ckm_refused(call, "client on a registered file, class", obj->cls);
		status = NV_ERR_FUNCTION;
		goto refuse;
	}
	if (!a->in_tree) {
		if (!a->parent)
			obj->hclient = get32(arg, a->handle_at);
		status = add_pending(a, get32(arg, a->handle_at));
		if (status != NV_OK) {
			ckm_rm_free(obj->hclient, a->parent ? a->parent->hobject : obj->hclient,
				    obj->hobject);
			goto refuse;
		}
	}
	status = NV_ERR_ARGUMENT;
	if (obj->hobject != get32(arg, a->handle_at)) {
		/* It chose another name than the one we filed: that one is not known. */
		ckm_rm_free(obj->hclient, a->parent ? a->parent->hobject : obj->hclient,
			    get32(arg, a->handle_at));
		goto refuse;
	}
	status = NV_ERR_NO_MEMORY;
	if (obj->kind == CGPU_KIND_VIDMEM && a->mem && !verify_size(a))
		goto refuse;

	mutex_lock(&ct->rm_lock);
	if (obj->state != CGPU_OBJ_PENDING) {	/* its client's file is gone, and it too */
		mutex_unlock(&ct->rm_lock);
		status = NV_ERR_CLIENT;
		goto refuse;
	}
	obj->mem = a->mem;
	a->mem = NULL;
	obj->userd = a->userd;
	a->userd = NULL;
	obj->state = CGPU_OBJ_LIVE;
	if (obj->gr && (obj->kind == CGPU_KIND_CHANNEL || obj->kind == CGPU_KIND_TSG))
		schedule_locked(a);
	/* Its TSG is not all enabled any more. */
	if (obj->kind == CGPU_KIND_CHANNEL)
		container_of(a->parent, struct ckm_obj, core)->changes++;
	mutex_unlock(&ct->rm_lock);
	a->done = true;
	if (a->context && a->free_before)
		measure_context(a);
	/* A TSG that is enabled already may run its new channel at once. */
	if (obj->gr && obj->kind == CGPU_KIND_CHANNEL && a->parent->scheduled) {
		ckm_turn_catch_up(a->slot, obj->hclient, obj->hobject);
		ckm_gpu_kick(a->slot->gpu);
	}
	return;

refuse:
	put32(arg, a->status_at, status);
}

/* The driver keeps a channel's USERD memory, whatever happens to its handle;
 * only a channel on pinned user pages dies with them (kernel_channel_gv100.c).
 */
static void hold_userd(struct alloc *a, u32 handle)
{
	struct ckm_container *ct = a->rc->call->back->ct;
	struct cgpu_obj *userd = handle ? ckm_tenant_hold(ct, a->obj->core.hclient, handle) : NULL;

	if (!userd)
		return;
	a->userd = ckm_tenant_get_mem(ct, userd);
	if (userd->cls == NV01_MEMORY_OS_DESCRIPTOR)
		a->obj->core.hdep = handle;
	ckm_tenant_unhold(ct, userd);
}

/* Only an address space of its own: the card has some that are everybody's. */
static u32 check_vaspace(struct alloc *a)
{
	u32 index = get32(a->rc->call->nested.copy, NV_VASPACE_INDEX);

	if (index == NV_VASPACE_INDEX_NEW || index == NV_VASPACE_INDEX_DEVICE)
		return NV_OK;
	ckm_refused(a->rc->call, "address space", index);
	return NV_ERR_ARGUMENT;
}

/* What it is told of: the driver takes any client's object. */
static u32 check_event(struct alloc *a)
{
	struct ckm_call *call = a->rc->call;
	const u8 *p = call->nested.copy;
	u32 source = get32(p, NV_EVENT_H_SOURCE);

	a->source = ckm_tenant_hold(call->back->ct,
				    get32(p, NV_EVENT_H_CLIENT) ?: a->obj->core.hclient, source);
	if (a->source)
		return NV_OK;
	ckm_refused(call, "event of object", source);
	return NV_ERR_NOT_FOUND;
}

static u32 check_plain(struct alloc *a)
{
	if (!a->cls.sealed)	/* a dup has no parameters */
		return NV_OK;
	switch (a->obj->core.cls) {
	case FERMI_VASPACE_A:
		return check_vaspace(a);
	case NV01_EVENT:
	case NV01_EVENT_OS_EVENT:
		return check_event(a);
	}
	return NV_OK;
}

/* A reservation of addresses takes its page tables at once, for the smallest
 * pages whatever it asks for (gvaspaceReserveMempool of gpu_vaspace.c), unless it
 * says that they come later or are not RM's; and tables for pages of 64 KiB
 * beside them, a sixteenth.
 */
static u64 reserved_tables(u32 flags, u64 size, u32 attr, u32 attr2)
{
	const struct cgpu_core_ops *core;
	u64 bytes;

	if (flags & (NVOS32_ALLOC_FLAGS_LAZY | NVOS32_ALLOC_FLAGS_EXTERNAL))
		return 0;
	core = ckm_core_enter();
	bytes = core->call_page_tables(core->call_vidmem_bytes(size, attr, attr2));
	ckm_core_leave();
	return bytes + bytes / 16;
}

/* Parameters of the classes that matter, checked on the sealed copy. */
static u32 check_params(struct alloc *a)
{
	const struct cgpu_core_ops *core;
	struct cgpu_obj *obj = &a->obj->core;
	const u8 *p = a->rc->call->nested.copy;
	u64 bytes = 0;
	bool vidmem, gr;
	u32 engine = 0;

	if (obj->cls == NV50_MEMORY_VIRTUAL && p)
		a->tables = reserved_tables(get32(p, NV_MEM_FLAGS), get64(p, NV_MEM_SIZE),
					    get32(p, NV_MEM_ATTR), get32(p, NV_MEM_ATTR2));
	core = ckm_core_enter();
	switch (obj->kind) {
	case CGPU_KIND_VIDMEM:
	case CGPU_KIND_SYSMEM:
		if (!p)
			break;
		vidmem = core->call_is_vidmem(get32(p, NV_MEM_ATTR), get32(p, NV_MEM_FLAGS));
		bytes = core->call_vidmem_bytes(get64(p, NV_MEM_SIZE), get32(p, NV_MEM_ATTR),
						get32(p, NV_MEM_ATTR2));
		if (vidmem != (obj->kind == CGPU_KIND_VIDMEM))
			obj->kind = CGPU_KIND_REFUSED;
		obj->bytes = bytes;
		break;
	case CGPU_KIND_TSG:
		engine = get32(p, NV_TSG_ENGINE);
		break;
	case CGPU_KIND_CHANNEL:
		engine = get32(p, NV_CHANNEL_ENGINE);
		break;
	}
	gr = core->call_engine_is_gr(engine);
	ckm_core_leave();

	switch (obj->kind) {
	case CGPU_KIND_REFUSED:
		return NV_ERR_ARGUMENT;
	case CGPU_KIND_PLAIN:
		return check_plain(a);
	case CGPU_KIND_VIDMEM:
		return charge(a, bytes);
	case CGPU_KIND_TSG:
		obj->gr = gr;
		return gr ? charge_context(a) : NV_OK;
	case CGPU_KIND_CHANNEL:
		if (!a->slot)
			return NV_ERR_PARENT;
		/* Without a TSG the driver makes one, whose timeslice nobody sets. */
		if (gr && a->parent->kind != CGPU_KIND_TSG) {
			ckm_refused(a->rc->call, "channel without a group, class", obj->cls);
			return NV_ERR_PARENT;
		}
		hold_userd(a, get32(p, NV_CHANNEL_H_USERD));
		if (a->parent->kind == CGPU_KIND_TSG) {
			obj->gr = a->parent->gr;
			a->obj->htsg = a->parent->hobject;
		}
		return NV_OK;
	case CGPU_KIND_COMPUTE:
		/* Kernels run where the turns are: on a channel we count. */
		if (a->parent->kind != CGPU_KIND_CHANNEL || !a->parent->gr)
			return NV_ERR_CLASS;
		a->context = ckm_tenant_get_context(a->rc->call->back->ct, a->parent);
		return NV_OK;
	}
	return NV_OK;
}

/* Whose default address space a device has: the driver asks for no right to
 * another client's, and whoever shares with nobody gets one with all of those.
 * It looks when the space is first used, and a handle can be somebody else's by
 * then: so it is the client's own, which 0 is made too.
 */
static u32 check_share(struct alloc *a)
{
	struct ckm_call *call = a->rc->call;
	u32 share = get32(call->nested.copy, NV_DEVICE_CLIENT_SHARE);

	if (share && share != a->obj->core.hclient) {
		ckm_refused(call, "address space of client", share);
		return NV_ERR_CLIENT;
	}
	put32(call->nested.copy, NV_DEVICE_CLIENT_SHARE, a->obj->core.hclient);
	return NV_OK;
}

/* Which GPU a device object is for; only the container's own. */
static u32 check_device(struct alloc *a)
{
	struct ckm_container *ct = a->rc->call->back->ct;
	const u8 *p = a->rc->call->nested.copy;
	u32 i;

	for (i = 0; p && i < ct->slot_count; i++)
		if (ct->slot[i].gpu->instance == get32(p, NV_DEVICE_INSTANCE)) {
			a->slot = &ct->slot[i];
			a->obj->core.gpu = ct->slot[i].gpu->index;
			return check_share(a);
		}
	return NV_ERR_ARGUMENT;
}

static u32 prepare(struct alloc *a, u32 client, u32 parent, u32 handle, u64 params)
{
	struct ckm_back *back = a->rc->call->back;
	u32 status;

	a->obj = ckm_obj_alloc(client, handle, a->cls.cls, a->cls.kind);
	if (!a->obj)
		return NV_ERR_RESOURCES;
	/* Its parameters may be left out, and say nothing that counts; their answer does. */
	if (a->cls.sealed || (a->cls.kind == CGPU_KIND_COMPUTE && params && a->cls.params_size)) {
		status = ckm_seal_params(a->rc->call, params, a->cls.params_size);
		if (status != NV_OK)
			return status;
	}
	if (a->cls.kind == CGPU_KIND_CLIENT) {
		a->obj->core.owner = back->id;
		a->obj->pid = task_tgid_nr(current);
		if (READ_ONCE(back->registered)) {
			ckm_refused(a->rc->call, "client on a registered file, class", a->cls.cls);
			return NV_ERR_FUNCTION;
		}
		return back->node == CGPU_NODE_CTL ? NV_OK : NV_ERR_FUNCTION;
	}
	a->parent = ckm_tenant_hold(back->ct, client, parent);
	if (!a->parent)
		return NV_ERR_PARENT;
	if (a->parent->gpu != CGPU_NO_GPU)
		a->slot = ckm_container_slot_of(back->ct, a->parent->gpu);
	status = a->cls.kind == CGPU_KIND_DEVICE ? check_device(a) : check_params(a);
	if (status == NV_OK)
		status = charge_overhead(a);
	if (status == NV_OK && handle)
		status = add_pending(a, handle);
	return status;
}

static void finish(struct alloc *a)
{
	struct ckm_container *ct = a->rc->call->back->ct;
	const struct cgpu_core_ops *core;
	struct cgpu_obj *list;

	if (a->mem)
		ckm_tenant_put_mem(ct, a->mem);
	if (a->userd)
		ckm_tenant_put_mem(ct, a->userd);
	if (a->context)
		ckm_tenant_put_mem(ct, a->context);
	if (a->in_tree) {
		mutex_lock(&ct->rm_lock);
		if (!a->done && a->obj->core.state != CGPU_OBJ_DETACHED) {
			core = ckm_core_enter();
			list = core->tree_remove(&ct->tree, &a->obj->core);
			ckm_core_leave();
			ckm_objs_release_locked(ct, list);
		}
		mutex_unlock(&ct->rm_lock);
		ckm_tenant_unhold(ct, &a->obj->core);	/* frees it if it is out */
	} else if (a->obj) {
		mutex_lock(&ct->rm_lock);
		ckm_obj_overhead_less_locked(ct, &a->obj->core, a->obj->core.overhead);
		mutex_unlock(&ct->rm_lock);
		ckm_obj_free(a->obj);
	}
	ckm_tenant_unhold(ct, a->source);
	ckm_tenant_unhold(ct, a->parent);
}

/* What may take of the card's memory is counted while it runs, as what gives is. */
static void begin_on_card(struct alloc *a)
{
	bool alone;
	u64 used;

	if (!a->slot)
		return;
	alone = atomic_inc_return(&a->slot->gpu->moves) == 1;
	a->move_seq = atomic_inc_return(&a->slot->gpu->move_seq);
	if (alone && a->context && !(READ_ONCE(a->context->flags) & CGPU_MEM_CONTEXT_MADE) &&
	    !ckm_gpu_heap(a->slot->gpu, &used, &a->free_before))
		a->free_before = 0;
}

static void end_on_card(struct alloc *a)
{
	if (a->slot)
		atomic_dec(&a->slot->gpu->moves);
}

static long run_alloc(struct alloc *a, u32 status,
		      void (*post)(struct ckm_call *call, u8 *arg))
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
	finish(a);
	return ret;
}

/* In a core section. A class that is not in the table stays REFUSED. */
static void copy_class(struct alloc *a, const struct cgpu_class *cls)
{
	if (cls)
		a->cls = *cls;
}

static long rm_alloc(struct ckm_rm_call *rc)
{
	const u8 *top = rc->call->top;
	struct alloc a = { .rc = rc, .handle_at = NVOS_H_NEW, .status_at = rc->row.status_at };
	const struct cgpu_core_ops *core = ckm_core_enter();
	u32 cls = get32(top, NVOS_H_CLASS);

	copy_class(&a, core->call_class(ckm_driver_branch(), cls));
	ckm_core_leave();
	/* On a GPU's file the driver takes events only. What it is given of pages that
	 * were not pinned by RM_ALLOC_MEMORY it takes for its own list of them.
	 */
	if (a.cls.kind == CGPU_KIND_REFUSED || cls == NV01_MEMORY_OS_DESCRIPTOR ||
	    (rc->call->back->node == CGPU_NODE_GPU && cls != NV01_EVENT &&
	     cls != NV01_EVENT_OS_EVENT)) {
		ckm_refused(rc->call, "class", cls);
		return ckm_rm_answer(rc, NV_ERR_CLASS);
	}
	return run_alloc(&a, prepare(&a, get32(top, NVOS_H_ROOT), get32(top, NVOS_H_PARENT),
				     a.cls.kind == CGPU_KIND_CLIENT ? 0 : get32(top, NVOS_H_NEW),
				     get64(top, NVOS64_PARAMS)), post_alloc);
}

/* The old way to system memory; video memory goes by RM_ALLOC. */
static long rm_alloc_memory(struct ckm_rm_call *rc)
{
	const u8 *top = rc->call->top;
	struct alloc a = { .rc = rc, .handle_at = NVOS_H_NEW, .status_at = rc->row.status_at };
	const struct cgpu_core_ops *core = ckm_core_enter();
	u32 cls = get32(top, NVOS_H_CLASS);

	copy_class(&a, core->call_class(ckm_driver_branch(), cls));
	ckm_core_leave();
	if (a.cls.kind != CGPU_KIND_SYSMEM) {
		ckm_refused(rc->call, "RM_ALLOC_MEMORY class", cls);
		return ckm_rm_answer(rc, NV_ERR_CLASS);
	}
	a.cls.sealed = false;	/* they are in the top struct, which is sealed */
	return run_alloc(&a, prepare(&a, get32(top, NVOS_H_ROOT), get32(top, NVOS_H_PARENT),
				     get32(top, NVOS_H_NEW), 0), post_alloc);
}

/* ---- dup ---- */

static long rm_dup(struct ckm_rm_call *rc)
{
	struct ckm_container *ct = rc->call->back->ct;
	const u8 *top = rc->call->top;
	struct alloc a = { .rc = rc, .cls.kind = CGPU_KIND_PLAIN,
			   .handle_at = NVOS55_H_OBJECT, .status_at = NVOS55_STATUS };
	struct cgpu_obj *src;
	u32 status;
	long ret;

	src = ckm_tenant_hold(ct, get32(top, NVOS55_H_CLIENT_SRC),
			      get32(top, NVOS55_H_OBJECT_SRC));
	if (!src)
		return ckm_rm_answer(rc, NV_ERR_NOT_FOUND);
	/* Channels and what is above them are scheduled and charged by handle:
	 * a second name for one is not needed by anything known.
	 */
	if (src->kind != CGPU_KIND_VIDMEM && src->kind != CGPU_KIND_SYSMEM &&
	    src->kind != CGPU_KIND_PLAIN) {
		ckm_refused(rc->call, "dup of class", src->cls);
		ckm_tenant_unhold(ct, src);
		return ckm_rm_answer(rc, NV_ERR_NOT_SUPPORTED);
	}
	/* What the driver keeps for it, the dup keeps: as much as the first one. */
	a.cls.cls = src->cls;
	a.tables = container_of(src, struct ckm_obj, core)->tables;
	status = prepare(&a, get32(top, NVOS_H_ROOT), get32(top, NVOS_H_PARENT), 0, 0);
	if (status == NV_OK && src->gpu != CGPU_NO_GPU && a.parent->gpu != src->gpu)
		status = NV_ERR_PARENT;
	if (status == NV_OK) {
		a.obj->core.kind = src->kind;
		a.obj->core.gpu = src->gpu;
		a.obj->core.bytes = src->bytes;
		a.mem = ckm_tenant_get_mem(ct, src);
		if (get32(top, NVOS55_H_OBJECT))
			status = add_pending(&a, get32(top, NVOS55_H_OBJECT));
	}
	ret = run_alloc(&a, status, post_alloc);
	ckm_tenant_unhold(ct, src);
	return ret;
}

/* ---- free ---- */

struct free {
	struct cgpu_obj *obj;
	u32 status_at;
	bool settled;
};

static void post_free(struct ckm_call *call, u8 *arg)
{
	struct free *f = call->post_data;
	struct ckm_container *ct = call->back->ct;
	const struct cgpu_core_ops *core;

	mutex_lock(&ct->rm_lock);
	f->settled = true;
	if (get32(arg, f->status_at) == NV_OK) {
		ckm_objs_remove_locked(ct, f->obj);
	} else {
		core = ckm_core_enter();
		core->tree_free_cancel(&ct->tree, f->obj);
		ckm_core_leave();
	}
	mutex_unlock(&ct->rm_lock);
}

/* Caller made sure that @client is one it may free in. */
static long free_object(struct ckm_rm_call *rc, u32 client, u32 object)
{
	struct ckm_container *ct = rc->call->back->ct;
	struct free f = { .status_at = rc->row.status_at };
	const struct cgpu_core_ops *core;
	u32 status = NV_OK;
	long ret;

	mutex_lock(&ct->rm_lock);
	core = ckm_core_enter();
	f.obj = core->tree_live(&ct->tree, client, object);
	if (!f.obj || f.obj->owner != rc->call->back->id)
		status = NV_ERR_NOT_FOUND;
	else if (core->tree_free_begin(&ct->tree, f.obj))
		status = NV_ERR_STATE_IN_USE;
	ckm_core_leave();
	mutex_unlock(&ct->rm_lock);
	if (status != NV_OK)
		return ckm_rm_answer(rc, status);

	rc->call->post = post_free;
	rc->call->post_data = &f;
	ckm_container_moves_begin(ct);
	ret = ckm_rm_forward(rc);
	ckm_container_moves_end(ct);
	if (!f.settled) {	/* the driver never came to it */
		mutex_lock(&ct->rm_lock);
		core = ckm_core_enter();
		core->tree_free_cancel(&ct->tree, f.obj);
		ckm_core_leave();
		mutex_unlock(&ct->rm_lock);
	}
	return ret;
}

static long rm_free(struct ckm_rm_call *rc)
{
	return free_object(rc, get32(rc->call->top, NVOS_H_ROOT),
			   get32(rc->call->top, NVOS_H_NEW));
}

/* ---- NVOS32 ---- */

static void post_vid_heap_totals(struct ckm_call *call, u8 *arg)
{
	struct ckm_slot *slot = NULL;
	struct cgpu_obj *parent;
	u64 limit = 0, used = 0;

	parent = ckm_tenant_hold(call->back->ct, get32(arg, NVOS_H_ROOT),
				 get32(arg, NVOS_H_PARENT));
	if (parent && parent->gpu != CGPU_NO_GPU)
		slot = ckm_container_slot_of(call->back->ct, parent->gpu);
	if (slot)
		ckm_slot_limits(slot, &limit, &used);
	put64(arg, NVOS32_TOTAL, limit);
	put64(arg, NVOS32_FREE, limit > used ? limit - used : 0);
	if (get32(arg, NVOS32_FUNCTION) == NVOS32_FN_INFO) {
		put64(arg, NVOS32_INFO_SIZE_AT, limit > used ? limit - used : 0);
		put64(arg, NVOS32_INFO_OFFSET, 0);	/* where the card's free memory begins */
		put64(arg, NVOS32_INFO_BASE, 0);
	}
	ckm_tenant_unhold(call->back->ct, parent);
}

static void post_vid_heap_alloc(struct ckm_call *call, u8 *arg)
{
	post_alloc(call, arg);
	post_vid_heap_totals(call, arg);
}

static long vid_heap_alloc(struct ckm_rm_call *rc)
{
	const u8 *top = rc->call->top;
	struct alloc a = { .rc = rc, .handle_at = NVOS32_ALLOC_H_MEMORY,
			   .status_at = NVOS32_STATUS };
	u32 attr = get32(top, NVOS32_ALLOC_ATTR), flags = get32(top, NVOS32_ALLOC_FLAGS);
	u32 attr2 = get32(top, NVOS32_ALLOC_ATTR2);
	u64 size = get64(top, NVOS32_ALLOC_SIZE_AT);
	bool virtual = flags & NVOS32_ALLOC_FLAGS_VIRTUAL;
	const struct cgpu_core_ops *core = ckm_core_enter();
	bool vidmem = core->call_is_vidmem(attr, flags);
	u64 bytes = core->call_vidmem_bytes(size, attr, attr2);
	u32 status;

	ckm_core_leave();
	a.cls.cls = vidmem ? NV01_MEMORY_LOCAL_USER :
		    virtual ? NV50_MEMORY_VIRTUAL : NV01_MEMORY_SYSTEM;
	a.cls.kind = CGPU_KIND_PLAIN;
	if (virtual)
		a.tables = reserved_tables(flags, size, attr, attr2);
	/* A handle that is not said to be the caller's choice is the driver's. */
	if (!(flags & NVOS32_ALLOC_FLAGS_HANDLE))
		put32(rc->call->top, NVOS32_ALLOC_H_MEMORY, 0);
	status = prepare(&a, get32(top, NVOS_H_ROOT), get32(top, NVOS_H_PARENT), 0, 0);
	if (status == NV_OK) {
		if (!virtual)
			a.obj->core.kind = vidmem ? CGPU_KIND_VIDMEM : CGPU_KIND_SYSMEM;
		if (vidmem)
			status = charge(&a, bytes);
	}
	if (status == NV_OK && get32(top, NVOS32_ALLOC_H_MEMORY))
		status = add_pending(&a, get32(top, NVOS32_ALLOC_H_MEMORY));
	return run_alloc(&a, status, post_vid_heap_alloc);
}

static long rm_vid_heap(struct ckm_rm_call *rc)
{
	const u8 *top = rc->call->top;

	switch (get32(top, NVOS32_FUNCTION)) {
	case NVOS32_FN_ALLOC_SIZE:
		return vid_heap_alloc(rc);
	case NVOS32_FN_FREE:
		return free_object(rc, get32(top, NVOS_H_ROOT),
				   get32(top, NVOS32_FREE_H_MEMORY));
	case NVOS32_FN_INFO:
		rc->call->post = post_vid_heap_totals;
		return ckm_rm_forward(rc);
	}
	ckm_refused(rc->call, "VID_HEAP_CONTROL function", get32(top, NVOS32_FUNCTION));
	return ckm_rm_answer(rc, NV_ERR_NOT_SUPPORTED);
}

/* ---- the rest ---- */

/* The driver gives a client made on a file that is registered on a control file to
 * that one, and keeps it as long. We file it under the file it was made on: so
 * there are none. Set before the driver can know of it, whatever it answers.
 */
static long pass(struct ckm_rm_call *rc)
{
	if (rc->row.nr == NV_ESC_REGISTER_FD)
		WRITE_ONCE(rc->call->back->registered, true);
	return ckm_rm_forward(rc);
}

/* An event by a client and a number, which the driver makes and frees whoever's
 * the client is.
 */
static long os_event(struct ckm_rm_call *rc)
{
	struct ckm_container *ct = rc->call->back->ct;
	u32 handle = get32(rc->call->top, NV_OS_EVENT_H_CLIENT);
	struct cgpu_obj *client = ckm_tenant_hold(ct, handle, handle);
	long ret;

	if (!client) {
		ckm_refused(rc->call, "OS event of client", handle);
		return ckm_rm_answer(rc, NV_ERR_CLIENT);
	}
	ret = ckm_rm_forward(rc);
	ckm_tenant_unhold(ct, client);
	return ret;
}

/* The memory must be one of ours, and stays while it is used. */
static long map_memory(struct ckm_rm_call *rc)
{
	struct ckm_container *ct = rc->call->back->ct;
	struct cgpu_obj *obj = ckm_tenant_hold(ct, get32(rc->call->top, NVOS_H_ROOT),
					       get32(rc->call->top, NVOS33_H_MEMORY));
	long ret;

	if (!obj)
		return ckm_rm_answer(rc, NV_ERR_NOT_FOUND);
	ret = ckm_rm_forward(rc);
	ckm_tenant_unhold(ct, obj);
	return ret;
}

u64 ckm_page_tables_of(struct cgpu_obj *memory)
{
	u64 bytes = memory->mem ? memory->mem->bytes : READ_ONCE(memory->bytes);
	const struct cgpu_core_ops *core;

	if (!bytes) {
		bytes = real_bytes(memory->hclient, memory->hobject) ?: UNKNOWN_BYTES;
		WRITE_ONCE(memory->bytes, bytes);	/* asked once: what is taken is given back */
	}
	core = ckm_core_enter();
	bytes = core->call_page_tables(bytes);
	ckm_core_leave();
	return bytes;
}

/* ---- MAP_MEMORY_DMA ---- */

/* In NVOS46 the address, u64, is the field before the status, wherever that is. */
static u64 mapped_at(const struct ckm_rm_call *rc, const u8 *arg)
{
	return get64(arg, rc->row.status_at - sizeof(u64));
}

static void file_map_locked(struct ckm_container *ct, struct ckm_dma_map *map)
{
	lockdep_assert_held(&ct->rm_lock);
	hash_add(ct->dma_maps, &map->node, map->at);
	list_add(&map->of, &map->memory->dma_maps);
}

/* In the driver the mapping is there: from here on another thread can unmap it. */
static void post_map_dma(struct ckm_call *call, u8 *arg)
{
	struct ckm_rm_call *rc = call->post_data;
	struct ckm_container *ct = call->back->ct;
	struct ckm_dma_map *map = rc->map;

	if (get32(arg, rc->row.status_at) != NV_OK)
		return;
	map->at = mapped_at(rc, arg);
	mutex_lock(&ct->rm_lock);
	/* Else its client's file is gone, and the charge with it. */
	if (map->memory->core.state != CGPU_OBJ_DETACHED) {
		file_map_locked(ct, map);
		rc->map = NULL;
	}
	mutex_unlock(&ct->rm_lock);
}

static u32 charge_map(struct ckm_container *ct, struct ckm_dma_map *map, struct cgpu_obj *memory)
{
	int ret;

	map->memory = container_of(memory, struct ckm_obj, core);
	map->tables = ckm_page_tables_of(memory);
	mutex_lock(&ct->rm_lock);
	ret = ckm_obj_overhead_locked(ct, memory, map->tables);
	mutex_unlock(&ct->rm_lock);
	return ret ? NV_ERR_NO_MEMORY : NV_OK;
}

/* Whether the driver mapped it is in the answer, which the tenant's memory may
 * not take: the call's errno says nothing about it.
 */
static long map_dma(struct ckm_rm_call *rc)
{
	struct ckm_container *ct = rc->call->back->ct;
	const u8 *top = rc->call->top;
	struct cgpu_obj *memory;
	struct ckm_dma_map *map;
	u32 status;
	long ret;

	map = kzalloc(sizeof(*map), GFP_KERNEL_ACCOUNT);
	if (!map)
		return ckm_rm_answer(rc, NV_ERR_RESOURCES);
	map->hclient = get32(top, NVOS_H_ROOT);
	map->hdevice = get32(top, NVOS46_H_DEVICE);
	map->hdma = get32(top, NVOS46_H_DMA);
	memory = ckm_tenant_hold(ct, map->hclient, get32(top, NVOS46_H_MEMORY));
	status = memory ? charge_map(ct, map, memory) : NV_ERR_NOT_FOUND;
	if (status != NV_OK) {
		ret = ckm_rm_answer(rc, status);
		goto out;
	}
	rc->map = map;
	rc->call->post = post_map_dma;
	rc->call->post_data = rc;
	ckm_container_moves_begin(ct);	/* of page tables */
	ret = ckm_rm_forward(rc);
	ckm_container_moves_end(ct);
	map = rc->map;
	if (map) {	/* not filed */
		mutex_lock(&ct->rm_lock);
		ckm_obj_overhead_less_locked(ct, memory, map->tables);
		mutex_unlock(&ct->rm_lock);
	}
out:
	kfree(map);
	ckm_tenant_unhold(ct, memory);
	return ret;
}

/* Off the table, so that it is given back once; its memory is busy till then. */
static struct ckm_dma_map *take_map_locked(struct ckm_container *ct, const u8 *top)
{
	u64 at = get64(top, NVOS47_DMA_OFFSET);
	struct ckm_dma_map *map;

	lockdep_assert_held(&ct->rm_lock);
	hash_for_each_possible(ct->dma_maps, map, node, at) {
		if (map->at != at || map->hclient != get32(top, NVOS_H_ROOT) ||
		    map->hdevice != get32(top, NVOS47_H_DEVICE) ||
		    map->hdma != get32(top, NVOS47_H_DMA))
			continue;
		hash_del(&map->node);
		list_del(&map->of);
		map->memory->core.busy++;
		return map;
	}
	return NULL;
}

/* A taken one. What was at its address before the driver was called is there no
 * more if that unmapped what it found there, unless parts of it are elsewhere.
 */
static void settle_map(struct ckm_container *ct, struct ckm_dma_map *map, bool gone)
{
	struct cgpu_obj *memory = &map->memory->core;

	mutex_lock(&ct->rm_lock);
	if (!gone && memory->state != CGPU_OBJ_DETACHED) {
		file_map_locked(ct, map);
		map = NULL;
	} else {	/* nothing, if its memory was freed meanwhile */
		ckm_obj_overhead_less_locked(ct, memory, map->tables);
	}
	mutex_unlock(&ct->rm_lock);
	kfree(map);
	ckm_tenant_unhold(ct, memory);
}

/* A part of a mapping gives nothing back until its memory is freed; and neither
 * does any other of that address space from then on: which parts are left of
 * what is the driver's to know.
 */
static long unmap_dma(struct ckm_rm_call *rc)
{
	struct ckm_container *ct = rc->call->back->ct;
	const u8 *top = rc->call->top;
	struct cgpu_obj *held = ckm_tenant_hold(ct, get32(top, NVOS_H_ROOT),
						get32(top, NVOS47_H_DMA));
	bool whole = rc->row.status_at <= NVOS47_SIZE_AT || !get64(top, NVOS47_SIZE_AT);
	struct ckm_dma_map *map = NULL;
	struct ckm_obj *space;
	long ret;

	if (!held)
		return ckm_rm_answer(rc, NV_ERR_NOT_FOUND);
	space = container_of(held, struct ckm_obj, core);
	mutex_lock(&ct->rm_lock);
	if (whole)
		map = take_map_locked(ct, top);
	else
		WRITE_ONCE(space->parted, true);
	mutex_unlock(&ct->rm_lock);
	ckm_container_moves_begin(ct);
	ret = ckm_rm_forward(rc);
	ckm_container_moves_end(ct);
	if (map)	/* parted: for good, and before the driver was asked to */
		settle_map(ct, map, get32(top, rc->row.status_at) == NV_OK &&
			   !READ_ONCE(space->parted));
	ckm_tenant_unhold(ct, held);
	return ret;
}

long ckm_rm_dispatch(struct ckm_rm_call *rc)
{
	switch (rc->row.verdict) {
	case CGPU_PASS:
		return pass(rc);
	case CGPU_ALLOC:
		return rm_alloc(rc);
	case CGPU_ALLOC_MEMORY:
		return rm_alloc_memory(rc);
	case CGPU_FREE:
		return rm_free(rc);
	case CGPU_CONTROL:
		return ckm_rm_run_control(rc);
	case CGPU_DUP:
		return rm_dup(rc);
	case CGPU_MAP:
		return map_memory(rc);
	case CGPU_MAP_DMA:
		return map_dma(rc);
	case CGPU_UNMAP_DMA:
		return unmap_dma(rc);
	case CGPU_VID_HEAP:
		return rm_vid_heap(rc);
	case CGPU_OS_EVENT:
		return os_event(rc);
	case CGPU_DMABUF:	/* dmabuf.c, where the driver does it */
		return ckm_rm_forward(rc);
	}
	ckm_refused(rc->call, "escape", rc->row.nr);
	return ckm_rm_answer(rc, NV_ERR_NOT_SUPPORTED);
}
