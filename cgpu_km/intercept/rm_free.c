// SPDX-License-Identifier: MIT OR GPL-2.0
/* Removes an object from the tree after the driver freed it. Takes rm_lock. */
#include "call.h"
#include "core/nv_abi.h"
#include "core_ref.h"
#include "fields.h"
#include "intercept/backing_file.h"
#include "intercept/rm_call.h"
#include "intercept/rm_free.h"
#include "state/container.h"
#include "state/rm_object.h"

struct free {
	struct cgpu_obj *obj;
	u32 status_at;
	bool settled;
};

static void post_free(struct ckm_call *call, u8 *arg)
{
	struct free *f = call->post_data;
	struct ckm_container *ct = call->backing->ct;
	const struct cgpu_core_ops *core;

	mutex_lock(&ct->rm_lock);
	f->settled = true;
	if (get32(arg, f->status_at) == NV_OK) {
		ckm_objs_remove_locked(ct, f->obj);
	} else {
		core = ckm_core_enter();
		core->mem.tree_free_cancel(&ct->tree, f->obj);
		ckm_core_leave();
	}
	mutex_unlock(&ct->rm_lock);
}

long ckm_rm_free_object(struct ckm_rm_call *rc, u32 client, u32 object)
{
	struct ckm_container *ct = rc->call->backing->ct;
	struct free f = { .status_at = rc->row.status_at };
	const struct cgpu_core_ops *core;
	u32 status = NV_OK;
	long ret;

	mutex_lock(&ct->rm_lock);
	core = ckm_core_enter();
	f.obj = core->mem.tree_live(&ct->tree, client, object);
	if (!f.obj || f.obj->owner != rc->call->backing->id)
		status = NV_ERR_NOT_FOUND;
	else if (core->mem.tree_free_begin(&ct->tree, f.obj))
		status = NV_ERR_STATE_IN_USE;
	ckm_core_leave();
	mutex_unlock(&ct->rm_lock);
	if (status != NV_OK)
		return ckm_rm_answer(rc, status);

	rc->call->post = post_free;
	rc->call->post_data = &f;
	if (f.obj->kind == CGPU_KIND_SHARED_DATA) {	/* the driver has no such object */
		put32(rc->call->top, f.status_at, NV_OK);
		post_free(rc->call, rc->call->top);
		return ckm_rm_answer(rc, NV_OK);
	}
	ckm_mem_ops_begin(ct);
	ret = ckm_rm_forward(rc);
	ckm_mem_ops_end(ct);
	if (!f.settled) {	/* post_free() did not run */
		mutex_lock(&ct->rm_lock);
		core = ckm_core_enter();
		core->mem.tree_free_cancel(&ct->tree, f.obj);
		ckm_core_leave();
		mutex_unlock(&ct->rm_lock);
	}
	return ret;
}

/* No object, in any state, has that handle in this file's client. */
static bool is_unknown(struct ckm_backing *backing, u32 client, u32 object)
{
	struct ckm_container *ct = backing->ct;
	const struct cgpu_core_ops *core;
	struct cgpu_obj *root;
	bool unknown;

	mutex_lock(&ct->rm_lock);
	core = ckm_core_enter();
	root = core->mem.tree_live(&ct->tree, client, client);
	unknown = root && root->owner == backing->id &&
		  !core->mem.tree_find(&ct->tree, client, object);
	ckm_core_leave();
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
