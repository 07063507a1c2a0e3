/* SPDX-License-Identifier: MIT OR GPL-2.0-only */
/*
 * nvidia-uvm.ko: the redirections in it, and what depends on them. It can be loaded later
 * than nvidia.ko, and unloaded. Its arguments are not copied in like nvidia.ko's: they
 * are checked where the driver has its own copy.
 *
 *   uvm_va_space_create            an address space never has HMM
 *   uvm_va_space_register_gpu      only the container's GPUs
 *   uvm_api_alloc_semaphore_pool   charged, up to a limit (uvm_range.h)
 *   uvm_api_create_external_range  the same
 *   uvm_api_free                   and uncharged
 *   uvm_va_range_create_mmap       makes no range in an mmap that may map only pools
 *   uvm_api_create_range_group     charged, up to a limit
 *   uvm_api_destroy_range_group    and uncharged
 */
#ifndef CKM_UVM_H
#define CKM_UVM_H

#include <linux/types.h>

struct ckm_backing;
struct ckm_container;
struct vm_area_struct;

/* Redirect them, or end it. Attach is a no-op without nvidia-uvm, or if they are redirected;
 * an error is as of ckm_redirect_attach(), and logged unless @quiet. Caller of attach holds
 * ckm_lock. Detach takes no lock of the module; the module notifier calls it too, while nvidia-uvm is
 * being unloaded.
 */
int ckm_uvm_attach(bool quiet);
void ckm_uvm_detach(void);
/* Whether they are redirected; otherwise no uvm node can be opened. Any context. */
bool ckm_uvm_is_redirected(void);

/* The mmap of a front file of uvm: a semaphore pool, or managed memory if each GPU of
 * the container has uvm = account. -EPERM for any other mapping, -EBADFD without an
 * address space, -ENOMEM over the limit, or the driver's error. The caller holds
 * mmap_lock for writing; takes rm_lock.
 */
int ckm_uvm_mmap(struct ckm_backing *backing, struct vm_area_struct *vma);

#endif
