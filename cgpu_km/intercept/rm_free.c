// SPDX-License-Identifier: MIT OR GPL-2.0-only
/* Removes an object from the tree after the driver freed it. Takes rm_lock. */
#include <linux/delay.h>
#include <linux/err.h>

#include "call.h"
#include "core/nv_struct.h"
#include "driver/driver.h"
#include "fields.h"
#include "intercept/backing_file.h"
#include "intercept/rm_call.h"
#include "intercept/rm_free.h"
#include "intercept/rm_os_event.h"
#include "intercept/rm_view.h"
#include "pure/mem_tree.h"
#include "sched/sched_thread.h"
#include "state/container.h"
#include "state/rm_object.h"

struct free {
	struct cgpu_obj *obj;	/* pinned */
	u32 status_at;
	bool removed;
};

static void post_free(struct ckm_call *call, u8 *arg)
{
	struct free *f = call->post_data;

	if (get32(arg, f->status_at) != NV_OK)
		return;
	if (f->obj->kind == CGPU_KIND_CLIENT)
		ckm_os_events_of_client(call->backing->ct, f->obj->hclient);
	ckm_objs_remove(call->backing->ct, f->obj);
	f->removed = true;
}

/* Mark the object as being freed, which hides all that goes with it, and pin it. */
static u32 mark_locked(struct cgpu_obj *obj)
{
	return cgpu_tree_free_begin(obj) ? NV_ERR_STATE_IN_USE : NV_OK;
}

/* NVOS32's free takes any handle. By it the OS events of a client would stay in the driver. */
static bool may_free(const struct ckm_rm_call *rc, const struct cgpu_obj *obj)
{
	return rc->row.nr == NV_ESC_RM_FREE || obj->kind != CGPU_KIND_CLIENT;
}

static u32 begin(struct ckm_rm_call *rc, struct free *f, u32 client, u32 object)
{
	struct ckm_container *ct = rc->call->backing->ct;
	u32 status = NV_ERR_OBJECT_NOT_FOUND;

	mutex_lock(&ct->rm_lock);
	f->obj = ckm_obj_live_locked(ct, client, object);
	if (f->obj && f->obj->owner == rc->call->backing->id)
		status = may_free(rc, f->obj) ? mark_locked(f->obj) : NV_ERR_NOT_SUPPORTED;
	mutex_unlock(&ct->rm_lock);
	return status;
}

/* What depends on @obj, pinned: a channel on memory, peers on a subdevice; a channel on a notifier before the
 * notifier on its memory; NULL: nothing. NV_ERR_STATE_IN_USE:
 * the driver is freeing what it is below, and it as well. Pinned, it cannot be taken that way any more: a free
 * of a channel's TSG is refused. Its names cannot be used again before it is removed.
 */
static u32 next_dependant(struct ckm_container *ct, struct cgpu_obj *obj, struct cgpu_obj **found,
			  u32 *parent)
{
	u32 status = NV_OK;

	mutex_lock(&ct->rm_lock);
	*found = obj->dependant ? obj->dependant->of : NULL;
	while (*found && (*found)->dependant)
		*found = (*found)->dependant->of;
	if (*found && cgpu_tree_is_live((*found)->parent)) {
		*parent = (*found)->parent->hobject;
		cgpu_tree_pin(*found);
	} else if (*found) {
		*found = NULL;
		status = NV_ERR_STATE_IN_USE;
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
	if (!removed) {
		mutex_lock(&ct->rm_lock);
		cgpu_tree_free_cancel(obj);
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

/* A client that the driver refuses to free is freed again, so often for a container, after this time. */
#define END_TRIES	3
#define END_AGAIN_MS	100

/* The first client of @file, marked as being freed. NULL: none is left. ERR_PTR(-EBUSY): it cannot be marked. */
static struct cgpu_obj *first_client(struct ckm_container *ct, struct ckm_backing *file)
{
	struct ckm_obj *client;
	struct cgpu_obj *found = NULL;

	mutex_lock(&ct->rm_lock);
	client = list_first_entry_or_null(&file->clients, struct ckm_obj, bound);
	if (client)
		found = mark_locked(&client->core) == NV_OK ? &client->core : ERR_PTR(-EBUSY);
	mutex_unlock(&ct->rm_lock);
	return found;
}

/* End the first client of @file. 1: it is gone; 0: none is left; -EAGAIN: the card sleeps; -EBUSY: it is in use though no
 * call of the container runs, or the driver refused, with @status.
 */
static int end_client_of(struct ckm_container *ct, struct ckm_backing *file, u32 *status)
{
	struct cgpu_obj *client = first_client(ct, file);
	u32 handle;

	if (IS_ERR_OR_NULL(client))
		return PTR_ERR_OR_ZERO(client);
	handle = client->hobject;
	ckm_os_events_client_ends(ct, handle);
	ckm_views_end(ct, client);
	if (!ckm_sched_try_awake()) {
		end(ct, client, false);
		return -EAGAIN;
	}
	*status = free_in_driver(ct, client, handle);
	ckm_sched_may_sleep();
	end(ct, client, *status == NV_OK);
	return *status == NV_OK ? 1 : -EBUSY;
}

/* End one client. Files without one, and those that have to end it themselves, are last in the list, so that each call
 * takes the same time. 0: none is left elsewhere. Negative: try again; -EBUSY only if @more.
 */
static int end_next_client(struct ckm_container *ct, bool more)
{
	struct ckm_backing *file;
	u32 status = NV_OK;
	int ret = 0;

	mutex_lock(&ct->end_lock);
	file = list_first_entry_or_null(&ct->ctl_files, struct ckm_backing, ctl_file);
	if (file && !file->ends_itself) {
		ret = end_client_of(ct, file, &status);
		if (ret == -EBUSY && !more)
			ckm_alarm(ct, "a client %s, status 0x%x: the container ends with its last mapping\n",
				  status ? "was not freed" : "is in use without a call", status);
		if (!ret || (ret == -EBUSY && !more)) {
			file->ends_itself = true;
			list_move_tail(&file->ctl_file, &ct->ctl_files);
			ret = 1;
		}
	}
	mutex_unlock(&ct->end_lock);
	return ret;
}

bool ckm_clients_end(struct ckm_container *ct)
{
	u32 tries = END_TRIES;
	bool none;
	int ret;

	while ((ret = end_next_client(ct, tries))) {
		cond_resched();
		if (ret == -EBUSY) {
			tries--;
			msleep(END_AGAIN_MS);
		} else if (ret < 0) {
			/* Without end_lock: a process that closes a file takes it, and could not be frozen. */
			ckm_sched_stay_awake();
			ckm_sched_may_sleep();
		}
	}
	mutex_lock(&ct->rm_lock);
	none = !ct->tree.objects;
	mutex_unlock(&ct->rm_lock);
	return none;
}
