// SPDX-License-Identifier: MIT OR GPL-2.0-only
/* Makes second handles of objects, and tracks which objects may be shared. Takes rm_lock. */
#include "call.h"
#include "core/nv_struct.h"
#include "driver/driver.h"
#include "fields.h"
#include "intercept/backing_file.h"
#include "intercept/rm_alloc.h"
#include "intercept/rm_call.h"
#include "intercept/rm_dup.h"
#include "state/rm_object.h"

/* The driver lets a client of another process dup an object only under a share policy.
 * The policy names the destination client, and only for the time of this call, because
 * a client handle can be reused. Of two concurrent calls for one object and client, one
 * may be refused.
 */
static long run_dup(struct ckm_alloc *a, struct cgpu_obj *src, u32 status)
{
	u32 to = get32(a->rc->call->top, NVOS_H_ROOT);
	bool lent = status == NV_OK && to != src->hclient &&
		    READ_ONCE(container_of(src, struct ckm_obj, core)->shared);
	long ret;

	if (lent)
		ckm_rm_lend(src->hclient, src->hobject, to, false);
	ret = ckm_alloc_run(a, status, ckm_alloc_post);
	if (lent)
		ckm_rm_lend(src->hclient, src->hobject, to, true);
	return ret;
}

/* Memory, a TSG (a client of MPS makes its channels in the server's), and objects without a
 * charge. Channels, and the objects above them, are scheduled and charged by handle, and no
 * known program needs a second one.
 */
static bool may_dup(const struct cgpu_obj *src)
{
	return src->kind == CGPU_KIND_VIDMEM || src->kind == CGPU_KIND_SYSMEM ||
	       src->kind == CGPU_KIND_PLAIN || src->kind == CGPU_KIND_TSG ||
	       src->kind == CGPU_KIND_DOORBELL;
}

/* Of the same GPU; system memory below any GPU's device, as libcuda has it for contexts on several. For the
 * driver video memory may be below another's too, and each call that names the handle then takes its
 * addresses for those of that GPU.
 */
static u32 check_parent(struct ckm_alloc *a, const struct cgpu_obj *src)
{
	if (src->kind == CGPU_KIND_TSG && a->parent->kind != CGPU_KIND_DEVICE)
		return NV_ERR_INVALID_OBJECT_PARENT;
	if (src->gpu == CGPU_NO_GPU || a->parent->gpu == src->gpu ||
	    (src->kind == CGPU_KIND_SYSMEM && a->parent->gpu != CGPU_NO_GPU))
		return NV_OK;
	ckm_call_denied(a->rc->call, "dup below another GPU's device, of class", src->cls);
	return NV_ERR_INVALID_OBJECT_PARENT;
}

long ckm_rm_run_dup(struct ckm_rm_call *rc)
{
	struct ckm_container *ct = rc->call->backing->ct;
	const u8 *top = rc->call->top;
	struct ckm_alloc a = { .rc = rc, .cls.kind = CGPU_KIND_PLAIN, .is_dup = true,
			   .handle_at = AT(nvos55, hObject), .status_at = AT(nvos55, status) };
	struct cgpu_obj *src;
	u32 status;
	long ret;

	src = ckm_obj_pin(ct, get32(top, AT(nvos55, hClientSrc)),
			  get32(top, AT(nvos55, hObjectSrc)));
	if (!src)
		return ckm_rm_answer(rc, NV_ERR_OBJECT_NOT_FOUND);
	if (!may_dup(src)) {
		ckm_call_denied(rc->call, "dup of class", src->cls);
		ckm_obj_unpin(ct, src);
		return ckm_rm_answer(rc, NV_ERR_NOT_SUPPORTED);
	}
	/* The driver keeps as much for the dup as for the first object: charge the same
	 * overhead.
	 */
	a.cls.cls = src->cls;
	a.pt_bytes = container_of(src, struct ckm_obj, core)->pt_bytes;
	status = ckm_alloc_prepare(&a, get32(top, NVOS_H_ROOT), get32(top, NVOS_H_PARENT), 0, 0);
	if (status == NV_OK)
		status = check_parent(&a, src);
	if (status == NV_OK && src->kind == CGPU_KIND_TSG) {
		a.obj->core.engine = src->engine;
		a.obj->group = container_of(src, struct ckm_obj, core)->group;
		ckm_group_get(a.obj->group);
	}
	if (status == NV_OK) {
		a.obj->core.kind = src->kind;
		if (src->kind != CGPU_KIND_SYSMEM)
			a.obj->core.gpu = src->gpu;
		a.obj->core.bytes = src->bytes;
		ckm_obj_set_space(a.obj, src);
		a.mem = ckm_obj_get_mem(ct, src);
		if (get32(top, AT(nvos55, hObject)))
			status = ckm_alloc_add_pending(&a, get32(top, AT(nvos55, hObject)));
	}
	ret = run_dup(&a, src, status);
	ckm_obj_unpin(ct, src);
	return ret;
}

/* cuIpcGetMemHandle shares its memory with all, and the driver would admit processes of
 * the host. So the policy is not forwarded but recorded, for run_dup(). A policy for
 * fewer than all changes nothing.
 */
static void note_share(struct cgpu_obj *obj, const u8 *top)
{
	if (get32(top, AT(nvos57, sharePolicy.type)) % BIT(16) != RS_SHARE_TYPE_ALL ||
	    !(get32(top, AT(nvos57, sharePolicy.accessMask)) & NV_SHARE_MAY_DUP))
		return;
	WRITE_ONCE(container_of(obj, struct ckm_obj, core)->shared,
		   !(top[AT(nvos57, sharePolicy.action)] & RS_SHARE_ACTION_FLAG_REVOKE));
}

long ckm_rm_run_share(struct ckm_rm_call *rc)
{
	struct ckm_backing *backing = rc->call->backing;
	u32 handle = get32(rc->call->top, AT(nvos57, hObject));
	struct cgpu_obj *obj = ckm_obj_pin(backing->ct, get32(rc->call->top, NVOS_H_ROOT), handle);
	u32 status = NV_ERR_OBJECT_NOT_FOUND;

	if (obj && obj->owner == backing->id) {
		note_share(obj, rc->call->top);
		status = NV_OK;
	} else {
		ckm_call_denied(rc->call, "share of object", handle);
	}
	ckm_obj_unpin(backing->ct, obj);
	return ckm_rm_answer(rc, status);
}
