// SPDX-License-Identifier: MIT OR GPL-2.0-only
/* RM_ALLOC_MEMORY: system memory that it may map at once, and pages of the process. Takes rm_lock. */
#include <linux/file.h>
#include <linux/mm.h>
#include <linux/sched.h>

#include "call.h"
#include "core/nv_struct.h"
#include "fields.h"
#include "intercept/backing_file.h"
#include "intercept/rm_alloc.h"
#include "intercept/rm_alloc_check.h"
#include "intercept/rm_alloc_memory.h"
#include "intercept/rm_call.h"
#include "intercept/rm_view.h"
#include "state/container.h"
#include "state/memory.h"
#include "state/rm_object.h"

/* What the driver keeps in no memory cgroup for each page that it pins: two pointers, an entry of a list and one of a
 * memory descriptor, and an IOMMU's entry (os_lock_user_pages(), nvos_create_alloc(), memdescCreate(); 535 to 595).
 * It allocates the first before it looks for a page, so what the process cannot have is refused here.
 */
#define PINNED_PAGE_BYTES	64

static u32 charge_pinned(struct ckm_alloc *a)
{
	u64 pages = a->host_bytes >> PAGE_SHIFT;

	if (!current->mm || pages > READ_ONCE(current->mm->total_vm)) {
		ckm_call_denied(a->rc->call, "more pages of the process than it has, class", a->obj->core.cls);
		return NV_ERR_INVALID_ADDRESS;
	}
	return ckm_alloc_charge_host(a, pages * PINNED_PAGE_BYTES);
}

/* The memory is pinned until the end of the call. */
static void post_alloc_memory(struct ckm_call *call, u8 *arg)
{
	const struct ckm_alloc *a = call->post_data;
	struct ckm_container *ct = call->backing->ct;

	if (call->no_pages && get32(arg, AT(nvos02, status)) != NV_OK)
		put32(arg, AT(nvos02, status), NV_ERR_INVALID_ADDRESS);
	ckm_alloc_post(call, arg);
	mutex_lock(&ct->rm_lock);
	if (call->shown_by && a->done && a->obj->core.state != CGPU_OBJ_DETACHED)
		ckm_view_begin_locked(call->shown_by, a->obj, NULL);
	mutex_unlock(&ct->rm_lock);
}

/* The older call for system memory; video memory is allocated by RM_ALLOC. */
long ckm_rm_run_alloc_memory(struct ckm_rm_call *rc)
{
	const u8 *top = rc->call->top;
	struct ckm_alloc a = { .rc = rc, .handle_at = NVOS_H_NEW, .status_at = rc->row.status_at };
	struct ckm_container *ct = rc->call->backing->ct;
	u32 cls = get32(top, NVOS_H_CLASS), status;
	long ret;

	ckm_alloc_find_class(&a, cls);
	if (a.cls.kind != CGPU_KIND_SYSMEM) {
		ckm_call_denied(rc->call, "RM_ALLOC_MEMORY class", cls);
		return ckm_rm_answer(rc, NV_ERR_INVALID_CLASS);
	}
	a.cls.copied_in = false;	/* they are in the top struct, already copied in */
	a.contiguous = ((get32(top, AT(nvos02, flags)) >> NVOS02_FLAGS_PHYSICALITY_SHIFT) & 0xf) ==
		       NVOS02_FLAGS_PHYSICALITY_CONTIGUOUS;
	a.host_bytes = PAGE_ALIGN(min_t(u64, get64(top, AT(nvos02, limit)), S64_MAX) + 1);
	status = ckm_alloc_prepare(&a, get32(top, NVOS_H_ROOT), get32(top, NVOS_H_PARENT),
				   get32(top, NVOS_H_NEW), 0);
	if (status == NV_OK && cls == NV01_MEMORY_SYSTEM_OS_DESCRIPTOR)
		status = charge_pinned(&a);
	/* The call maps it too, if its flags say so. */
	mutex_lock(&ct->rm_lock);
	rc->call->map_mem = ckm_mem_get_locked(ct, a.mem);
	mutex_unlock(&ct->rm_lock);
	rc->call->shows = true;
	ret = ckm_alloc_run(&a, status, post_alloc_memory);
	ckm_obj_put_mem(ct, rc->call->map_mem);	/* no file has taken it */
	if (rc->call->shown_by)
		fput(rc->call->shown_by->real);
	return ret;
}
