// SPDX-License-Identifier: MIT OR GPL-2.0-only
/* Managed ranges, made by mmap(): one for each mapping, split as mappings are (uvm_vm_open_managed of uvm.c). */
#include <linux/delay.h>
#include <linux/mm.h>
#include <linux/sched.h>
#include <linux/slab.h>

#include "nvsim.h"

/* As uvm_va_space_get(): a release build of the driver does not look at the file's operations. */
static struct uvm_vas *vma_vas(struct vm_area_struct *vma)
{
	return vma->vm_file->private_data;
}

static vm_fault_t disabled_fault(struct vm_fault *vmf)
{
	return VM_FAULT_SIGBUS;
}

/* A mapping that fork made, or mremap moved: no memory behind it. */
static const struct vm_operations_struct disabled_ops = {
	.fault = disabled_fault,
};

/* The part from @at on becomes a range of its own, with its part of the framebuffer. */
static void split(struct uvm_vas *v, struct uvm_ext *x, u64 at)
{
	struct uvm_ext *y = kzalloc(sizeof(*y), GFP_KERNEL | __GFP_NOFAIL);

	y->base = at;
	y->len = x->base + x->len - at;
	y->managed = x->managed;
	y->off = x->off + (at - x->base);
	nvmem_get(y->managed);
	x->len = at - x->base;
	if (x->fb_bytes) {
		y->fb_bytes = y->len;
		x->fb_bytes = x->len;
	}
	list_add_tail(&y->link, &v->ranges);
}

/* The old mapping is as it was: the new one is its left or its right part, or elsewhere. */
static void managed_open(struct vm_area_struct *vma)
{
	u64 len = vma->vm_end - vma->vm_start;
	struct uvm_vas *v = vma_vas(vma);
	struct uvm_ext *x;

	mutex_lock(&v->lock);
	x = vma->vm_mm == vma->vm_private_data ? uvm_range_find(v, vma->vm_start, len) : NULL;
	if (!x || !x->managed)
		vma->vm_ops = &disabled_ops;
	else if (vma->vm_start == x->base)
		split(v, x, vma->vm_end);
	else
		split(v, x, vma->vm_start);
	mutex_unlock(&v->lock);
}

static void managed_close(struct vm_area_struct *vma)
{
	struct uvm_vas *v = vma_vas(vma);
	struct uvm_ext *x;

	if (nvsim.close_ms > 0)
		msleep(nvsim.close_ms);
	/* A zombie, which lasts as long as the file: another process may still have the space. */
	if (!current->mm && v->flags & UVM_INIT_FLAGS_MULTI_PROCESS_SHARING_MODE)
		return;
	mutex_lock(&v->lock);
	x = uvm_range_find(v, vma->vm_start, 1);
	if (x && x->managed)
		uvm_range_drop(v, x);
	mutex_unlock(&v->lock);
}

static vm_fault_t managed_fault(struct vm_fault *vmf)
{
	struct vm_area_struct *vma = vmf->vma;
	struct uvm_vas *v = vma_vas(vma);
	struct page *page = NULL;
	struct uvm_ext *x;

	mutex_lock(&v->lock);
	x = uvm_range_find(v, vmf->address & PAGE_MASK, 1);
	if (x && x->managed)
		page = nvpages_page(x->managed->pages, (vmf->address - x->base + x->off) >> PAGE_SHIFT,
				    GFP_KERNEL | __GFP_NORETRY | __GFP_NOWARN);
	mutex_unlock(&v->lock);
	if (!page)
		return VM_FAULT_SIGBUS;
	return vmf_insert_page(vma, vmf->address & PAGE_MASK, page);
}

static const struct vm_operations_struct managed_ops = {
	.open = managed_open,
	.close = managed_close,
	.fault = managed_fault,
};

/* It takes its size from the first GPU's framebuffer if there is room, and is in system memory if not. */
static struct uvm_ext *make(struct uvm_vas *v, u64 base, u64 len)
{
	struct uvm_gpu *g = list_first_entry_or_null(&v->gpus, struct uvm_gpu, link);
	struct nvmem *m = nvmem_create(g ? g->gpu : nvsim_gpu[0], NVLOC_SYS, len, PAGE_SIZE);
	struct uvm_ext *x = m ? uvm_range_add(v, base, len) : NULL;

	if (!x) {
		if (m)
			nvmem_put(m);
		return NULL;
	}
	x->managed = m;
	if (g && nvsim_fb_take(m->gpu, len, &m->addr))
		x->fb_bytes = len;
	return x;
}

/* nvidia-uvm's name for it and its arguments, of which the third is the driver's wrapper of the mapping. */
noinline __noclone NV_STATUS uvm_va_range_create_mmap(struct uvm_vas *v, struct mm_struct *mm, struct vm_area_struct *vma,
						      struct uvm_ext **out)
{
	u64 len = vma->vm_end - vma->vm_start;
	struct uvm_gpu *g;
	struct uvm_ext *x;

	if (uvm_range_overlaps(v, vma->vm_start, len))
		return NV_ERR_UVM_ADDRESS_IN_USE;
	x = make(v, vma->vm_start, len);
	if (!x)
		return NV_ERR_NO_MEMORY;
	list_for_each_entry(g, &v->gpus, link)
		if (g->as)
			nvas_map(g->as, x->base, len, x->managed, 0, NULL);
	if (out)
		*out = x;
	return NV_OK;
}

/* A range first; where there is one, it may be the pool of which this is to be the mapping. */
static int map_range(struct uvm_vas *v, struct vm_area_struct *vma)
{
	switch (uvm_va_range_create_mmap(v, vma->vm_mm, vma, NULL)) {
	case NV_OK:
		vm_flags_set(vma, VM_MIXEDMAP | VM_DONTEXPAND | VM_DONTCOPY);
		vma->vm_ops = &managed_ops;
		vma->vm_private_data = vma->vm_mm;	/* compared: fork copies it */
		return 0;
	case NV_ERR_UVM_ADDRESS_IN_USE:
		return uvm_pool_mmap(v, vma);
	default:
		return -ENOMEM;
	}
}

int nvsim_uvm_mmap(struct file *file, struct vm_area_struct *vma)
{
	struct uvm_vas *v = file->private_data;
	int err;

	if (!v->initialized || (!(v->flags & UVM_INIT_FLAGS_MULTI_PROCESS_SHARING_MODE) && v->mm != current->mm))
		return -EPERM;
	if (vma->vm_start != (u64)vma->vm_pgoff << PAGE_SHIFT || !(vma->vm_flags & VM_SHARED) ||
	    (vma->vm_flags & (VM_READ | VM_WRITE)) != (VM_READ | VM_WRITE))
		return -EINVAL;
	if ((vma->vm_end - vma->vm_start) >> PAGE_SHIFT > 4 * totalram_pages())
		return -ENOMEM;
	mutex_lock(&v->lock);
	err = map_range(v, vma);
	mutex_unlock(&v->lock);
	return err;
}
