// SPDX-License-Identifier: MIT OR GPL-2.0-only
/* CPU mappings of the nvidia nodes, as kernel-open/nvidia/nv-mmap.c does them: one validated context per file. */
#include <linux/module.h>
#include <linux/sizes.h>

#include "nvsim.h"

/*
 * As the driver, casts vma->vm_file->private_data; unlike the driver, warns about a wrong file and
 * rejects it.
 */
static struct nv_file_private *vma_private(struct vm_area_struct *vma)
{
	struct nv_file_private *fp = vma->vm_file->private_data;

	if (WARN_ONCE(!fp || fp->magic != NVFP_MAGIC, "nvsim: mapping of a file that is not the driver's"))
		return NULL;
	return fp;
}

static struct page *page_of(struct nv_file_private *fp, u64 n)
{
	return fp->mmap.pages ? nvpages_page(fp->mmap.pages, fp->mmap.first + n, GFP_KERNEL | __GFP_NORETRY | __GFP_NOWARN)
			      : nvsim_bar1_page(fp->nv->gpu, fp->mmap.window + n);
}

/* Of a control file's mappings alone: they are of system memory. */
static struct nvpages *system_pages(struct nv_file_private *fp)
{
	return fp && !fp->nv->gpu ? fp->mmap.pages : NULL;
}

static void vma_open(struct vm_area_struct *vma)
{
	struct nvpages *p = system_pages(vma_private(vma));

	if (p)
		nvpages_get(p);
}

/* The last mapping of freed memory leaves it to its file (nv_alloc_release()). */
static void vma_close(struct vm_area_struct *vma)
{
	struct nv_file_private *fp = vma_private(vma);
	struct nvpages *p = system_pages(fp);

	if (!p || refcount_dec_not_one(&p->ref.refcount))
		return;
	spin_lock(&fp->lock);
	if (WARN(p->late, "nvsim: memory that the driver frees twice\n")) {
		spin_unlock(&fp->lock);
		return;
	}
	p->late = true;
	p->next = fp->late;
	fp->late = p;
	spin_unlock(&fp->lock);
}

void nvsim_mmap_file_ends(struct nv_file_private *fp)
{
	struct nvpages *p;

	while ((p = fp->late)) {
		fp->late = p->next;
		nvpages_put(p);
	}
	if (fp->mmap.pages)
		nvpages_forget(fp->mmap.pages);
}

static vm_fault_t vma_fault(struct vm_fault *vmf)
{
	struct vm_area_struct *vma = vmf->vma;
	struct nv_file_private *fp = vma_private(vma);
	struct page *page;
	u64 idx;

	if (!fp || !fp->nv->gpu || vma->vm_pgoff || !fp->mmap.valid)
		return VM_FAULT_SIGBUS;
	idx = (vmf->address - vma->vm_start) >> PAGE_SHIFT;
	if (idx >= fp->mmap.count)
		return VM_FAULT_SIGBUS;
	page = page_of(fp, idx);
	if (!page)
		return VM_FAULT_SIGBUS;
	return vmf_insert_pfn(vma, vmf->address & PAGE_MASK, page_to_pfn(page));
}

static int vma_access(struct vm_area_struct *vma, unsigned long addr, void *buf, int len, int write)
{
	struct nv_file_private *fp = vma_private(vma);
	unsigned long off = addr - vma->vm_start;
	struct page *page;
	void *va;

	if (!fp || !fp->mmap.valid || len < 0 || off >> PAGE_SHIFT >= fp->mmap.count)
		return -EINVAL;
	if (write && fp->mmap.read_only)
		return -EACCES;
	page = page_of(fp, off >> PAGE_SHIFT);
	if (!page)
		return -ENOMEM;
	va = page_address(page) + offset_in_page(off);
	len = min_t(int, len, PAGE_SIZE - offset_in_page(off));
	if (write)
		memcpy(va, buf, len);
	else
		memcpy(buf, va, len);
	return len;
}

static const struct vm_operations_struct nv_vm_ops = {
	.open = vma_open,
	.close = vma_close,
	.fault = vma_fault,
	.access = vma_access,
};

static int insert_pages(struct nv_file_private *fp, struct vm_area_struct *vma, u64 n)
{
	unsigned long addr = vma->vm_start;
	struct page *page;
	u64 i;
	int err;

	for (i = 0; i < n; i++, addr += PAGE_SIZE) {
		page = nvpages_page(fp->mmap.pages, fp->mmap.first + i, GFP_KERNEL | __GFP_NORETRY | __GFP_NOWARN);
		if (!page)
			return -EAGAIN;
		err = vm_insert_page(vma, addr, page);
		if (err)
			return -EAGAIN;
	}
	return 0;
}

/* The driver does not ask whether the memory is still there: it would follow the pages of whatever is in its place. */
static int map_sysmem(struct nv_file_private *fp, struct vm_area_struct *vma, u64 n)
{
	struct nvpages *p = fp->mmap.pages;
	int err;

	if (WARN(READ_ONCE(p->gone), "nvsim: mmap of memory that was freed\n"))
		return -EFAULT;
	nvpages_get(p);
	err = insert_pages(fp, vma, n);
	if (err) {
		nvpages_put(p);
		return err;
	}
	vm_flags_set(vma, VM_SHARED | VM_DONTEXPAND | VM_DONTDUMP);
	return 0;
}

/* The driver fills a whole mapping in, and its fault fills in nothing of one that was split. Here pages are memory of the
 * machine, so the first ones have to do.
 */
static int map_vidmem(struct nv_file_private *fp, struct vm_area_struct *vma, u64 n)
{
	struct page *page;
	u64 i;

	for (i = 0; i < min_t(u64, n, SZ_2M >> PAGE_SHIFT); i++) {
		page = page_of(fp, i);
		if (page && remap_pfn_range(vma, vma->vm_start + (i << PAGE_SHIFT), page_to_pfn(page), PAGE_SIZE,
					    vma->vm_page_prot))
			return -EAGAIN;
	}
	vm_flags_set(vma, VM_IO | VM_PFNMAP | VM_DONTEXPAND);
	return 0;
}

int nvsim_mmap(struct file *file, struct vm_area_struct *vma)
{
	struct nv_file_private *fp = file->private_data;
	u64 n = vma_pages(vma);
	int err;

	if (fp->handles)
		return -EINVAL;
	if (!smp_load_acquire(&fp->mmap.valid) || vma->vm_pgoff)
		return -EINVAL;
	if (fp->nv->gpu) {
		if (n != fp->mmap.count)
			return -ENXIO;
		err = map_vidmem(fp, vma, n);
	} else {
		if (n > fp->mmap.count)
			return -ERANGE;
		err = map_sysmem(fp, vma, n);
	}
	if (err)
		return err;
	if (fp->mmap.read_only) {
		vma->vm_page_prot = vm_get_page_prot((vma->vm_flags & ~VM_WRITE) | VM_SHARED);
		vm_flags_clear(vma, VM_WRITE | VM_MAYWRITE);
	}
	vma->vm_ops = &nv_vm_ops;
	return 0;
}
