// SPDX-License-Identifier: MIT OR GPL-2.0-only
/* Owns the exported memory of control files. Takes rm_lock. */
#include <linux/file.h>
#include <linux/slab.h>
#include <linux/xarray.h>

#include "call.h"
#include "core/nv_struct.h"
#include "fields.h"
#include "intercept/backing_file.h"
#include "intercept/front_file.h"
#include "intercept/rm_call.h"
#include "intercept/rm_export.h"
#include "pure/mem_tree.h"
#include "state/container.h"
#include "state/memory.h"
#include "state/rm_object.h"

/* An exported object, at one index of a control file. */
struct export {
	struct cgpu_mem *mem;	/* a reference; NULL: nothing is charged */
	u64 bytes;		/* of system memory, if known */
	u32 cls, kind, gpu;
};

/* Offsets of the fields, which differ between the two pairs of calls. */
struct layout {
	u32 cmd;
	u32 fd_at, parent_at, objects_at;
	u32 num_at, index_at;	/* u16; 0: one object, at index 0 */
	u32 max;		/* 0: none, the call only prepares the file */
	u32 places_at;		/* u16; 0: the driver makes no table of places on the file */
};

static const struct layout *layout_of(u32 cmd)
{
	static const struct layout layouts[] = {
		{ NV0000_CTRL_CMD_OS_UNIX_EXPORT_OBJECT_TO_FD,
		  AT(nv_export_to_fd, fd), 0, AT(nv_export_to_fd, object.data.rmObject.hObject), 0, 0, 1 },
		{ NV0000_CTRL_CMD_OS_UNIX_CREATE_EXPORT_OBJECT_FD,
		  AT(nv_create_export_fd, fd), .places_at = AT(nv_create_export_fd, maxObjects) },
		{ NV0000_CTRL_CMD_OS_UNIX_EXPORT_OBJECTS_TO_FD,
		  AT(nv_exports_to_fd, fd), 0, AT(nv_exports_to_fd, objects), AT(nv_exports_to_fd, numObjects),
		  AT(nv_exports_to_fd, index), NV0000_CTRL_OS_UNIX_EXPORT_OBJECTS_TO_FD_MAX_OBJECTS,
		  AT(nv_exports_to_fd, maxObjects) },
		{ NV0000_CTRL_CMD_OS_UNIX_IMPORT_OBJECT_FROM_FD,
		  AT(nv_import_from_fd, fd), AT(nv_import_from_fd, object.data.rmObject.hParent),
		  AT(nv_import_from_fd, object.data.rmObject.hObject), 0, 0, 1 },
		{ NV0000_CTRL_CMD_OS_UNIX_IMPORT_OBJECTS_FROM_FD,
		  AT(nv_imports_from_fd, fd), AT(nv_imports_from_fd, hParent), AT(nv_imports_from_fd, objects),
		  AT(nv_imports_from_fd, numObjects), AT(nv_imports_from_fd, index),
		  NV0000_CTRL_OS_UNIX_IMPORT_OBJECTS_TO_FD_MAX_OBJECTS },
	};
	const struct layout *layout = layouts;

	while (layout->cmd != cmd && layout != &layouts[ARRAY_SIZE(layouts) - 1])
		layout++;
	return layout;
}

/* An export to a control file, the export file, or an import from it. */
struct transfer {
	struct ckm_rm_call *rc;
	struct ckm_container *ct;
	const struct layout *layout;
	struct ckm_backing *export_file;	/* kept by call->export_file */
	u32 client, num, index;
	struct cgpu_obj *parent;	/* import: pinned */
	/* export: pinned; import: PENDING and pinned */
	struct cgpu_obj *object[NV0000_CTRL_OS_UNIX_EXPORT_OBJECTS_TO_FD_MAX_OBJECTS];
	struct export *entry[NV0000_CTRL_OS_UNIX_EXPORT_OBJECTS_TO_FD_MAX_OBJECTS];	/* export: to be stored */
	bool kept;			/* the driver succeeded, and our records are updated */
};

static u8 *params(struct transfer *t)
{
	return t->rc->call->nested.copy;
}

/* One transfer at a time per export file, so that our records of it match the driver's and
 * stay so. Not a lock: the driver copies to user memory in between, and a thread that
 * the tenant stalls there must not stall another. An export goes to a file of the same
 * container only; an import may come from a container with the same IPC name.
 */
static u32 take_export_file(struct transfer *t)
{
	struct file *front = fget(get32(params(t), t->layout->fd_at));
	struct ckm_backing *backing = front ? ckm_front_get(front) : NULL;
	u32 status = NV_OK;

	if (!backing || backing->node != CGPU_NODE_CTL ||
	    !(backing->ct == t->ct ||
	      (t->layout->parent_at && ckm_container_shares(backing->ct, t->ct)))) {
		status = NV_ERR_INVALID_PARAMETER;
		goto out;
	}
	mutex_lock(&backing->ct->rm_lock);
	if (backing->in_transfer)
		status = NV_ERR_STATE_IN_USE;
	else
		backing->in_transfer = true;
	mutex_unlock(&backing->ct->rm_lock);
	if (status == NV_OK) {
		/* The driver's look-up of the fd must find the same file (seal.c). */
		t->rc->call->export_file = get_file(backing->real);
		t->export_file = backing;
	}
out:
	if (backing)
		ckm_front_put(backing);
	if (front)
		fput(front);
	return status;
}

static void leave_carrier(struct transfer *t)
{
	mutex_lock(&t->export_file->ct->rm_lock);
	t->export_file->in_transfer = false;
	mutex_unlock(&t->export_file->ct->rm_lock);
}

static struct transfer *begin(struct ckm_rm_call *rc, u32 cmd, u32 client, u32 *status)
{
	struct transfer *t = kvzalloc(sizeof(*t), GFP_KERNEL_ACCOUNT);

	*status = NV_ERR_INSUFFICIENT_RESOURCES;
	if (!t)
		return NULL;
	t->rc = rc;
	t->ct = rc->call->backing->ct;
	t->layout = layout_of(cmd);
	t->client = client;
	t->num = min(t->layout->max, 1u);
	if (t->layout->num_at) {
		t->num = get16(params(t), t->layout->num_at);
		t->index = get16(params(t), t->layout->index_at);
	}
	*status = t->num > t->layout->max ? NV_ERR_INVALID_PARAMETER : take_export_file(t);
	return t;
}

static long transfer(struct ckm_rm_call *rc, u32 cmd, u32 client,
		     u32 (*prepare)(struct transfer *), void (*post)(struct ckm_call *, u8 *),
		     void (*undo)(struct transfer *))
{
	struct transfer *t;
	u32 status;
	long ret;

	t = begin(rc, cmd, client, &status);
	if (!t)
		return ckm_rm_answer(rc, status);
	if (status == NV_OK)
		status = prepare(t);
	if (status == NV_OK) {
		rc->call->post = post;
		rc->call->post_data = t;
		ret = ckm_rm_forward(rc);
	} else {
		ret = ckm_rm_answer(rc, status);
	}
	undo(t);
	if (t->export_file)
		leave_carrier(t);
	kvfree(t);
	return ret;
}

/* ---- export ---- */

static void put_export_locked(struct ckm_container *ct, struct export *e)
{
	if (!e)
		return;
	if (e->mem)
		ckm_mem_put_locked(ct, e->mem);
	kfree(e);
}

static u32 hold_object(struct transfer *t, u32 i, u32 handle)
{
	struct export *e = kzalloc(sizeof(*e), GFP_KERNEL_ACCOUNT);
	struct cgpu_obj *obj;
	u32 status;

	if (!e)
		return NV_ERR_INSUFFICIENT_RESOURCES;
	t->entry[i] = e;
	status = ckm_obj_pin_memory(t->ct, t->client, handle, &t->object[i], &e->mem);
	if (status != NV_OK)
		return status;
	obj = t->object[i];
	e->cls = obj->cls;
	e->kind = obj->kind;
	e->gpu = obj->gpu;
	e->bytes = READ_ONCE(obj->bytes);
	return NV_OK;
}

/* The driver allocates a place for each of maxObjects, in no memory cgroup, when the file has none yet, and keeps them
 * until the file closes. It may do so before it refuses the call, so the charge stays: the largest of any call.
 */
static u32 charge_places(struct transfer *t)
{
	struct ckm_backing *file = t->export_file;
	u32 bytes, status = NV_OK;

	if (!t->layout->places_at)
		return NV_OK;
	bytes = get16(params(t), t->layout->places_at) * NV_EXPORT_BYTES;
	mutex_lock(&t->ct->rm_lock);
	if (bytes > file->export_bytes) {
		if (ckm_host_charge_locked(t->ct, bytes - file->export_bytes))
			status = NV_ERR_NO_MEMORY;
		else
			file->export_bytes = bytes;
	}
	mutex_unlock(&t->ct->rm_lock);
	return status;
}

/* Allocate before the driver acts: afterwards nothing may fail. */
static u32 prepare_export(struct transfer *t)
{
	u32 i, handle, status = charge_places(t);

	for (i = 0; i < t->num && status == NV_OK; i++) {
		if (xa_reserve(&t->export_file->exports, t->index + i, GFP_KERNEL_ACCOUNT))
			return NV_ERR_INSUFFICIENT_RESOURCES;
		handle = get32(params(t), t->layout->objects_at + i * 4);
		status = handle ? hold_object(t, i, handle) : NV_OK;
	}
	return status;
}

/* The driver exports all objects or none (cliresCtrlCmdOsUnixExportObjectsToFd). */
static void post_export(struct ckm_call *call, u8 *arg)
{
	struct transfer *t = call->post_data;
	struct export *old;
	u32 i;

	if (get32(arg, AT(nvos54, status)) != NV_OK)
		return;
	mutex_lock(&t->ct->rm_lock);
	for (i = 0; i < t->num; i++) {
		/* Reserved: cannot fail. */
		old = xa_store(&t->export_file->exports, t->index + i, t->entry[i],
			       GFP_KERNEL_ACCOUNT);
		t->entry[i] = NULL;
		put_export_locked(t->ct, old);
	}
	t->kept = true;
	mutex_unlock(&t->ct->rm_lock);
}

static void undo_export(struct transfer *t)
{
	u32 i;

	for (i = 0; i < t->num && i < t->layout->max; i++)
		ckm_obj_unpin(t->ct, t->object[i]);
	mutex_lock(&t->ct->rm_lock);
	for (i = 0; i < t->num && i < t->layout->max; i++)
		put_export_locked(t->ct, t->entry[i]);
	for (i = 0; t->export_file && !t->kept && i < t->num; i++)
		xa_release(&t->export_file->exports, t->index + i);
	mutex_unlock(&t->ct->rm_lock);
}

long ckm_rm_export(struct ckm_rm_call *rc, u32 cmd, u32 client)
{
	return transfer(rc, cmd, client, prepare_export, post_export, undo_export);
}

void ckm_exports_drop(struct ckm_container *ct, struct ckm_backing *backing)
{
	struct export *e;
	unsigned long i;

	/* The file is gone, so nothing is added; the lock is for the charges. */
	xa_for_each(&backing->exports, i, e) {
		mutex_lock(&ct->rm_lock);
		put_export_locked(ct, e);
		mutex_unlock(&ct->rm_lock);
		cond_resched();
	}
	xa_destroy(&backing->exports);
	mutex_lock(&ct->rm_lock);
	ckm_host_uncharge_locked(ct, backing->export_bytes);
	mutex_unlock(&ct->rm_lock);
}

/* ---- import ---- */

#define HANDLE_TRIES	64	/* the tenant may have objects of its own at any number of these handles */

/* If the tenant leaves the handle to the driver, choose it here: the driver would
 * return it in user memory only, which the tenant can change. 0: there was none among
 * the next HANDLE_TRIES; a later call goes on behind these.
 */
static u32 choose_handle(struct transfer *t)
{
	u32 tries, handle;

	lockdep_assert_held(&t->ct->rm_lock);
	for (tries = 0; tries < HANDLE_TRIES; tries++) {
		handle = NV_OUR_HANDLES + ++t->ct->handles % NV_OUR_HANDLES_SPAN;
		if (!ckm_obj_find_locked(t->ct, t->client, handle))
			return handle;
	}
	return 0;
}

/* A reference to the exported memory. Memory of another container is charged here as
 * well, so that neither charge depends on the other container.
 */
static struct cgpu_mem *charged_locked(struct transfer *t, const struct export *e)
{
	struct ckm_slot *slot = ckm_container_slot_of(t->ct, e->gpu);

	if (t->export_file->ct != t->ct && e->kind == CGPU_KIND_SYSMEM)
		return ckm_mem_charge_host_locked(slot, ckm_mem_host_bytes_locked(e->mem));
	if (t->export_file->ct != t->ct)
		return ckm_mem_charge_locked(slot, CKM_MEM_IMPORTED, e->mem->bytes);
	cgpu_mem_get(e->mem);
	return e->mem;
}

static u32 file_pending_locked(struct transfer *t, u32 i, const struct export *e)
{
	struct cgpu_mem *mem = NULL;
	u32 at = t->layout->objects_at + i * 4;
	struct ckm_obj *obj;
	int ret;

	if (t->parent->gpu != e->gpu)
		return NV_ERR_INVALID_OBJECT_PARENT;
	if (!ckm_objs_have_room_locked(t->ct)) {
		ckm_call_denied(t->rc->call, "object over max_objects or host_memsize, class", e->cls);
		return NV_ERR_INSUFFICIENT_RESOURCES;
	}
	obj = ckm_obj_alloc(t->client, get32(params(t), at), e->cls, e->kind);
	if (!obj)
		return NV_ERR_INSUFFICIENT_RESOURCES;
	if (!obj->core.hobject)
		obj->core.hobject = choose_handle(t);
	if (!obj->core.hobject) {
		ckm_call_denied(t->rc->call, "no free handle among the next ones, class", e->cls);
		ckm_obj_free(obj);
		return NV_ERR_INSUFFICIENT_RESOURCES;
	}
	if (e->mem)
		mem = charged_locked(t, e);
	if (IS_ERR(mem)) {
		ckm_obj_free(obj);
		return NV_ERR_NO_MEMORY;
	}
	put32(params(t), at, obj->core.hobject);
	ret = ckm_obj_add_locked(t->ct, &obj->core, t->parent);
	if (ret) {
		if (mem)
			ckm_mem_put_locked(t->ct, mem);
		ckm_obj_free(obj);
		return ret == -EEXIST ? NV_ERR_INSERT_DUPLICATE_NAME :
		       ret == -ENOMEM ? NV_ERR_INSUFFICIENT_RESOURCES : NV_ERR_INVALID_OBJECT_PARENT;
	}
	obj->core.mem = mem;
	obj->core.bytes = e->bytes;
	t->object[i] = &obj->core;
	return NV_OK;
}

static u32 prepare_import(struct transfer *t)
{
	u32 i, status = NV_OK;
	struct export *e;

	t->parent = ckm_obj_pin(t->ct, t->client, get32(params(t), t->layout->parent_at));
	if (!t->parent)
		return NV_ERR_INVALID_OBJECT_PARENT;
	mutex_lock(&t->ct->rm_lock);
	for (i = 0; i < t->num && status == NV_OK; i++) {
		e = xa_load(&t->export_file->exports, t->index + i);
		/* If the driver undoes an import, it frees the handle that an empty
		 * place names: clear it.
		 */
		if (!e)
			put32(params(t), t->layout->objects_at + i * 4, 0);
		else
			status = file_pending_locked(t, i, e);
	}
	mutex_unlock(&t->ct->rm_lock);
	return status;
}

static void post_import(struct ckm_call *call, u8 *arg)
{
	struct transfer *t = call->post_data;
	u32 i;

	if (get32(arg, AT(nvos54, status)) != NV_OK)
		return;
	mutex_lock(&t->ct->rm_lock);
	for (i = 0; i < t->num; i++)
		if (t->object[i] && t->object[i]->state == CGPU_OBJ_PENDING)
			t->object[i]->state = CGPU_OBJ_LIVE;
	t->kept = true;
	mutex_unlock(&t->ct->rm_lock);
}

static void undo_import(struct transfer *t)
{
	u32 i;

	for (i = 0; i < t->num && i < t->layout->max; i++) {
		if (!t->object[i])
			continue;
		mutex_lock(&t->ct->rm_lock);
		if (!t->kept)
			ckm_obj_remove_locked(t->ct, t->object[i]);
		mutex_unlock(&t->ct->rm_lock);
		ckm_obj_unpin(t->ct, t->object[i]);
	}
	ckm_obj_unpin(t->ct, t->parent);
}

long ckm_rm_import(struct ckm_rm_call *rc, u32 cmd, u32 client)
{
	return transfer(rc, cmd, client, prepare_import, post_import, undo_import);
}
