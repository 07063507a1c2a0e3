// SPDX-License-Identifier: MIT OR GPL-2.0-only
/* Owns the page of zeros that is mapped for the driver's shared data. Takes rm_lock. */
#include <linux/file.h>
#include <linux/mm.h>

#include "call.h"
#include "core/nv_struct.h"
#include "fields.h"
#include "intercept/backing_file.h"
#include "intercept/front_file.h"
#include "intercept/rm_call.h"
#include "intercept/rm_shared.h"
#include "state/container.h"
#include "state/rm_object.h"

/* The driver's struct takes 2,608 bytes in 580 and grows. */
#define PAGES_MAX	4

/* The address that the driver would return, of which clients use the offset in the page:
 * none. Not 0, which is no address.
 */
#define LINEAR		PAGE_SIZE

static struct page *zeros;

bool ckm_shared_is(struct ckm_container *ct, u32 client, u32 object)
{
	struct cgpu_obj *obj = ckm_obj_pin(ct, client, object);
	bool is = obj && obj->kind == CGPU_KIND_SHARED_DATA;

	ckm_obj_unpin(ct, obj);
	return is;
}

/* The next mmap of the file that the call names shows zeros. In the driver the call leaves
 * a mapping context on that file in the same way; this one has none, so no order of calls
 * reaches the driver's page.
 */
long ckm_shared_map(struct ckm_rm_call *rc)
{
	u8 *top = rc->call->top;
	struct file *file = fget(get32(top, AT(nvos33_fd, fd)));
	struct ckm_backing *backing = file ? ckm_front_get(file) : NULL;
	u32 status = NV_ERR_INVALID_ARGUMENT;

	if (backing && backing->ct == rc->call->backing->ct && backing->node != CGPU_NODE_UVM &&
	    !get64(top, AT(nvos33, offset)) &&
	    get64(top, AT(nvos33, length)) <= PAGES_MAX * PAGE_SIZE) {
		xchg(&backing->maps_zeros, true);
		put64(top, AT(nvos33, pLinearAddress), LINEAR);
		status = NV_OK;
	}
	if (backing)
		ckm_front_put(backing);
	if (file)
		fput(file);
	return ckm_rm_answer(rc, status);
}

int ckm_shared_mmap(struct vm_area_struct *vma)
{
	unsigned long at;
	int ret = 0;

	if (vma->vm_flags & VM_WRITE)
		return -EACCES;
	if (vma_pages(vma) > PAGES_MAX)
		return -EINVAL;
	ckm_vm_flags_mod(vma, VM_DONTEXPAND | VM_DONTDUMP, VM_MAYWRITE);
	for (at = vma->vm_start; !ret && at < vma->vm_end; at += PAGE_SIZE)
		ret = vm_insert_page(vma, at, zeros);
	return ret;
}

int ckm_shared_init(void)
{
	zeros = alloc_page(GFP_KERNEL | __GFP_ZERO);
	return zeros ? 0 : -ENOMEM;
}

void ckm_shared_exit(void)
{
	__free_page(zeros);
}
