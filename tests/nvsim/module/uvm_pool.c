// SPDX-License-Identifier: MIT OR GPL-2.0-only
/* Semaphore pools: made by an ioctl, mapped for the CPU by the mmap() that follows it (uvm_va_range.c, uvm_mmap()). */
#include <linux/mm.h>
#include <linux/slab.h>

#include "nvsim.h"

/* System memory of the driver's, mapped in every VA space there is now; later ones get it when they are registered. */
static NV_STATUS pool_create(struct uvm_vas *v, u64 base, u64 len, u64 gpus)
{
	NV_STATUS st = NV_ERR_UVM_ADDRESS_IN_USE;
	struct uvm_gpu *g;
	struct uvm_ext *x;
	struct nvmem *m;

	if (uvm_bad_range(base, len))
		return NV_ERR_INVALID_ADDRESS;
	if (gpus > (nvsim_branch < 550 ? UVM_MAX_GPUS_V1 : UVM_MAX_GPUS))
		return NV_ERR_INVALID_ARGUMENT;
	if (len >> PAGE_SHIFT > totalram_pages())
		return NV_ERR_NO_MEMORY;
	m = nvmem_create(nvsim_gpu[0], NVLOC_SYS, len, PAGE_SIZE);
	if (!m)
		return NV_ERR_NO_MEMORY;
	mutex_lock(&v->lock);
	x = uvm_range_add(v, base, len);
	if (!x)
		goto out;
	x->pool = m;
	st = NV_OK;
	list_for_each_entry(g, &v->gpus, link)
		if (g->as && nvas_map(g->as, base, len, m, 0, NULL))
			st = NV_ERR_NO_MEMORY;
	if (st != NV_OK)
		uvm_range_drop(v, x);
	m = NULL;
out:
	mutex_unlock(&v->lock);
	if (m)
		nvmem_put(m);
	return st;
}

/* A part of a split, or a mapping moved by mremap: no memory behind it. */
static void pool_open(struct vm_area_struct *vma)
{
	vma->vm_private_data = NULL;
}

static void pool_close(struct vm_area_struct *vma)
{
	struct uvm_vas *v = vma->vm_file->private_data;
	struct uvm_ext *x;

	mutex_lock(&v->lock);
	x = uvm_range_find(v, vma->vm_start, 1);
	if (x && x->pool)
		x->pool_mapped = false;
	mutex_unlock(&v->lock);
}

static vm_fault_t pool_fault(struct vm_fault *vmf)
{
	struct vm_area_struct *vma = vmf->vma;
	struct uvm_vas *v = vma->vm_file->private_data;
	struct page *page = NULL;
	struct uvm_ext *x;

	mutex_lock(&v->lock);
	x = uvm_range_find(v, vmf->address & PAGE_MASK, 1);
	if (x && x->pool && vma->vm_mm == vma->vm_private_data)
		page = nvpages_page(x->pool->pages, (vmf->address - x->base) >> PAGE_SHIFT,
				    GFP_KERNEL | __GFP_NORETRY | __GFP_NOWARN);
	mutex_unlock(&v->lock);
	if (!page)
		return VM_FAULT_SIGBUS;
	return vmf_insert_page(vma, vmf->address & PAGE_MASK, page);
}

static const struct vm_operations_struct pool_ops = {
	.open = pool_open,
	.close = pool_close,
	.fault = pool_fault,
};

/* Of exactly a pool's range, once. Anything else is no pool's. */
int uvm_pool_mmap(struct uvm_vas *v, struct vm_area_struct *vma)
{
	u64 len = vma->vm_end - vma->vm_start;
	struct uvm_ext *x;

	lockdep_assert_held(&v->lock);
	x = uvm_range_find(v, vma->vm_start, 1);
	if (!x || !x->pool || x->base != vma->vm_start || x->len != len)
		return -EINVAL;
	if (x->pool_mapped)
		return -EINVAL;
	x->pool_mapped = true;
	vm_flags_set(vma, VM_MIXEDMAP | VM_DONTEXPAND | VM_DONTCOPY);
	vma->vm_ops = &pool_ops;
	vma->vm_private_data = vma->vm_mm;	/* compared: fork copies it */
	return 0;
}

/* Writes a semaphore in a pool of this space. */
NV_STATUS uvm_pool_release(struct uvm_vas *v, u64 at, u32 payload)
{
	NV_STATUS st = NV_ERR_INVALID_ADDRESS;
	struct page *page;
	struct uvm_ext *x;

	mutex_lock(&v->lock);
	x = IS_ALIGNED(at, sizeof(payload)) ? uvm_range_find(v, at, sizeof(payload)) : NULL;
	if (x && x->pool) {
		page = nvpages_page(x->pool->pages, (at - x->base) >> PAGE_SHIFT,
				    GFP_KERNEL | __GFP_NORETRY | __GFP_NOWARN);
		if (page)
			smp_store_release((u32 *)(page_address(page) + offset_in_page(at)), payload);
		st = page ? NV_OK : NV_ERR_NO_MEMORY;
	}
	mutex_unlock(&v->lock);
	return st;
}

/* nvidia-uvm's name for it and its arguments; both forms begin with base and length. */
noinline NV_STATUS uvm_api_alloc_semaphore_pool(void *params, struct file *file)
{
	struct uvm_vas *v = file->private_data;
	struct uvm_pool_v1 *old = params;
	struct uvm_pool *p = params;

	return pool_create(v, p->base, p->length, nvsim_branch < 550 ? old->gpuAttributesCount : p->gpuAttributesCount);
}
