// SPDX-License-Identifier: MIT OR GPL-2.0-only
/* Maps a host file in a guest process.
 *
 * Such a process has a process of the host, whose mappings um's kernel makes. The guest's page tables are left empty
 * for these addresses, and the host's mapping is made at once, in one call with the whole length, as a driver's mmap
 * needs it: so an error of the driver is mmap()'s. What follows: the kernel of the guest cannot read or write this
 * memory for a system call (EFAULT), and a child of the process does not inherit it.
 */
#include <linux/kprobes.h>
#include <linux/mm.h>
#include <linux/module.h>
#include <linux/sched/mm.h>
#include <mm_id.h>
#include <mem_user.h>

#include "forward.h"

/* Of arch/um, without an export. */
static int (*host_map)(struct mm_id *mm, unsigned long at, unsigned long bytes, int prot, int fd,
		       unsigned long long offset);
static int (*host_unmap)(struct mm_id *mm, unsigned long at, unsigned long bytes);
static int (*host_flush)(struct mm_id *mm);
static int (*host_sync)(struct mm_struct *mm);

static void *find(const char *name)
{
	struct kprobe probe = { .symbol_name = name, .flags = KPROBE_FLAG_DISABLED };

	return cgpu_probe_find(&probe) ? NULL : probe.addr;
}

int fwd_mmap_init(void)
{
	host_map = find("map");
	host_unmap = find("unmap");
	host_flush = find("syscall_stub_flush");
	host_sync = find("um_tlb_sync");
	return host_map && host_unmap && host_flush && host_sync ? 0 : -ENOENT;
}

/* At the end of an address space its process of the host may be gone. */
static void vma_close(struct vm_area_struct *vma)
{
	struct mm_struct *mm = vma->vm_mm;

	if (mm->context.id.pid <= 0)
		return;
	host_sync(mm);
	host_unmap(&mm->context.id, vma->vm_start, vma->vm_end - vma->vm_start);
	host_flush(&mm->context.id);
}

static int vma_mremap(struct vm_area_struct *vma)
{
	return -EINVAL;
}

static int vma_mprotect(struct vm_area_struct *vma, unsigned long start, unsigned long end, unsigned long flags)
{
	return -EINVAL;
}

static vm_fault_t vma_fault(struct vm_fault *vmf)
{
	return VM_FAULT_SIGBUS;
}

static const struct vm_operations_struct vm_ops = {
	.close = vma_close,
	.mremap = vma_mremap,
	.mprotect = vma_mprotect,
	.fault = vma_fault,
};

int fwd_map(struct vm_area_struct *vma, int host_fd, u64 offset)
{
	struct mm_struct *mm = vma->vm_mm;
	int prot = (vma->vm_flags & VM_READ ? UM_PROT_READ : 0) | (vma->vm_flags & VM_WRITE ? UM_PROT_WRITE : 0);
	int ret;

	if (!(vma->vm_flags & VM_SHARED))
		return -EINVAL;
	/* What was at these addresses goes first: um unmaps it later otherwise, and the new mapping with it. */
	ret = host_sync(mm);
	if (!ret)
		ret = host_flush(&mm->context.id);
	if (ret)
		return ret;
	ret = host_map(&mm->context.id, vma->vm_start, vma->vm_end - vma->vm_start, prot, host_fd, offset);
	if (!ret)
		ret = host_flush(&mm->context.id);
	if (ret)
		return ret;
	vm_flags_set(vma, VM_IO | VM_PFNMAP | VM_DONTEXPAND | VM_DONTCOPY | VM_DONTDUMP);
	vma->vm_ops = &vm_ops;
	return 0;
}
