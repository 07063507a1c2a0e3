// SPDX-License-Identifier: MIT OR GPL-2.0-only
/* Removes an object from the tree after the driver freed it. Takes rm_lock. */
#include "call.h"
#include "core/nv_abi.h"
#include "core_ref.h"
#include "driver/driver.h"
#include "fields.h"
#include "intercept/backing_file.h"
#include "intercept/rm_call.h"
#include "intercept/rm_free.h"
#include "intercept/rm_os_event.h"
#include "intercept/rm_view.h"
#include "state/container.h"
#include "state/rm_object.h"

struct free {
	struct cgpu_obj *obj;	/* pinned */
	u32 status_at;
	bool takes_os_events;	/* RM_FREE of a client: by NVOS32 they stay, as with its file */
	bool removed;
};

static void post_free(struct ckm_call *call, u8 *arg)
{
	struct free *f = call->post_data;

	if (get32(arg, f->status_at) != NV_OK)
		return;
	if (f->takes_os_events)
		ckm_os_events_of_client(call->backing->ct, f->obj->hclient);
	ckm_objs_remove(call->backing->ct, f->obj);
	f->removed = true;
}

/* Mark the object as being freed, which hides all that goes with it, and pin it. */
static u32 mark_locked(struct cgpu_obj *obj)
{
	const struct cgpu_core_ops *core = ckm_core_enter();
	u32 status = core->mem.tree_free_begin(obj) ? NV_ERR_STATE_IN_USE : NV_OK;

	ckm_core_leave();
	return status;
}

static u32 begin(struct ckm_rm_call *rc, struct free *f, u32 client, u32 object)
{
	struct ckm_container *ct = rc->call->backing->ct;
	u32 status = NV_ERR_NOT_FOUND;

	mutex_lock(&ct->rm_lock);
	f->obj = ckm_obj_live_locked(ct, client, object);
	if (f->obj && f->obj->owner == rc->call->backing->id)
		status = mark_locked(f->obj);
	mutex_unlock(&ct->rm_lock);
	return status;
}

/* What depends on @obj, pinned: a channel on memory, peers on a subdevice; NULL: nothing. NV_ERR_STATE_IN_USE:
 * the driver is freeing what it is below, and it as well. Pinned, it cannot be taken that way any more: a free
 * of a channel's TSG is refused. Its names cannot be used again before it is removed.
 */
static u32 next_dependant(struct ckm_container *ct, struct cgpu_obj *obj, struct cgpu_obj **found,
			  u32 *parent)
{
	const struct cgpu_core_ops *core;
	u32 status = NV_OK;

	mutex_lock(&ct->rm_lock);
	*found = obj->dependant ? obj->dependant->of : NULL;
	if (*found) {
		core = ckm_core_enter();
		if (core->mem.tree_is_live((*found)->parent)) {
			*parent = (*found)->parent->hobject;
			core->mem.tree_pin(*found);
		} else {
			*found = NULL;
			status = NV_ERR_STATE_IN_USE;
		}
		ckm_core_leave();
	}
	mutex_unlock(&ct->rm_lock);
	return status;
}

/* Free a pinned object by a call of our own. Not NV_OK: it is there. */
static u32 free_in_driver(struct ckm_container *ct, struct cgpu_obj *obj, u32 parent)
{
	u32 status;

	ckm_mem_ops_begin(ct);
	status = ckm_drv_free(obj->hclient, parent, obj->hobject);
	ckm_mem_ops_end(ct);
	if (status == NV_OK)
		ckm_objs_remove(ct, obj);
	return status;
}

/* Free what depends on the object that is being freed, which hides it from calls. None of it is
 * pinned by a call, and nothing is added. Not NV_OK: some is left.
 */
static u32 free_dependants(struct ckm_container *ct, struct cgpu_obj *obj)
{
	struct cgpu_obj *found;
	u32 parent = 0, status;

	for (;;) {
		status = next_dependant(ct, obj, &found, &parent);
		if (!found)
			return status;
		if (free_in_driver(ct, found, parent) != NV_OK)
			status = NV_ERR_STATE_IN_USE;
		ckm_obj_unpin(ct, found);
		if (status != NV_OK)
			return status;
	}
}

static void end(struct ckm_container *ct, struct cgpu_obj *obj, bool removed)
{
	const struct cgpu_core_ops *core;

	if (!removed) {
		mutex_lock(&ct->rm_lock);
		core = ckm_core_enter();
		core->mem.tree_free_cancel(obj);
		ckm_core_leave();
		mutex_unlock(&ct->rm_lock);
	}
	ckm_obj_unpin(ct, obj);
}

long ckm_rm_free_object(struct ckm_rm_call *rc, u32 client, u32 object)
{
	struct ckm_container *ct = rc->call->backing->ct;
	struct free f = { .status_at = rc->row.status_at };
	u32 status = begin(rc, &f, client, object);
	long ret;

	if (status != NV_OK)
		return ckm_rm_answer(rc, status);
	status = free_dependants(ct, f.obj);
	if (status != NV_OK) {
		ret = ckm_rm_answer(rc, status);
		goto out;
	}
	ckm_views_end(ct, f.obj);
	f.takes_os_events = rc->row.nr == NV_ESC_RM_FREE && f.obj->kind == CGPU_KIND_CLIENT;
	rc->call->post = post_free;
	rc->call->post_data = &f;
	if (f.obj->kind == CGPU_KIND_SHARED_DATA) {	/* the driver has no such object */
		put32(rc->call->top, f.status_at, NV_OK);
		post_free(rc->call, rc->call->top);
		ret = ckm_rm_answer(rc, NV_OK);
	} else {
		ckm_mem_ops_begin(ct);
		ret = ckm_rm_forward(rc);
		ckm_mem_ops_end(ct);
	}
out:
	end(ct, f.obj, f.removed);
	return ret;
}

/* No object, in any state, has that handle in this file's client. */
static bool is_unknown(struct ckm_backing *backing, u32 client, u32 object)
{
	struct ckm_container *ct = backing->ct;
	struct cgpu_obj *root;
	bool unknown;

	mutex_lock(&ct->rm_lock);
	root = ckm_obj_live_locked(ct, client, client);
	unknown = root && root->owner == backing->id && !ckm_obj_find_locked(ct, client, object);
	mutex_unlock(&ct->rm_lock);
	return unknown;
}

/* The driver answers NV_OK for a handle that it does not know (seen of an H100 with
 * 580.159.04), and libcuda frees such handles: answer the same without the driver.
 */
long ckm_rm_run_free(struct ckm_rm_call *rc)
{
	u32 client = get32(rc->call->top, NVOS_H_ROOT), object = get32(rc->call->top, NVOS_H_NEW);

	if (is_unknown(rc->call->backing, client, object))
		return ckm_rm_answer(rc, NV_OK);
	return ckm_rm_free_object(rc, client, object);
}

/* ---- the end of a container ---- */

/* The first client of @file, marked as being freed; NULL: none is left, or it cannot be marked. */
static struct cgpu_obj *first_client(struct ckm_container *ct, struct ckm_backing *file)
{
	struct ckm_obj *client;
	struct cgpu_obj *found = NULL;

	mutex_lock(&ct->rm_lock);
	client = list_first_entry_or_null(&file->clients, struct ckm_obj, bound);
	if (client && mark_locked(&client->core) == NV_OK)
		found = &client->core;
	mutex_unlock(&ct->rm_lock);
	return found;
}

static void end_clients_of(struct ckm_container *ct, struct ckm_backing *file)
{
	u32 status = NV_OK, handle;
	struct cgpu_obj *client;

	while (status == NV_OK && (client = first_client(ct, file))) {
		handle = client->hobject;
		ckm_views_end(ct, client);
		status = free_in_driver(ct, client, handle);
		end(ct, client, status == NV_OK);
		cond_resched();
	}
	if (status != NV_OK)
		ckm_alarm(ct, "client 0x%x was not freed, status 0x%x: the container ends with its last mapping\n",
			  handle, status);
}

bool ckm_clients_end(struct ckm_container *ct)
{
	struct ckm_backing *file;
	bool none;

	mutex_lock(&ct->end_lock);
	list_for_each_entry(file, &ct->ctl_files, ctl_file)
		end_clients_of(ct, file);
	mutex_unlock(&ct->end_lock);
	mutex_lock(&ct->rm_lock);
	none = !ct->tree.objects;
	mutex_unlock(&ct->rm_lock);
	return none;
}
