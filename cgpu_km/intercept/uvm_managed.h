/* SPDX-License-Identifier: MIT OR GPL-2.0-only */
/* Managed memory (cudaMallocManaged) under uvm = account: docs/decisions/0007. */
#ifndef CKM_UVM_MANAGED_H
#define CKM_UVM_MANAGED_H

struct ckm_backing;
struct ckm_container;
struct vm_area_struct;

/* Whether every GPU of the container has uvm = account. */
bool ckm_managed_allowed(const struct ckm_container *ct);

/**
 * ckm_managed_mmap() - charge managed memory and forward its mmap
 * @backing: the backing file, of a container with ckm_managed_allowed()
 * @vma: the new mapping
 *
 * Context: Process. Caller holds mmap_lock for writing; takes rm_lock; sleeps.
 * Return: 0; -ENOMEM over the limit of a slot, or without kernel memory; or the error of
 * the notifier or the driver.
 */
int ckm_managed_mmap(struct ckm_backing *backing, struct vm_area_struct *vma);

/* Wait until the memory that this container's processes unmapped is recounted, for a
 * second at most. A fatal signal ends the wait. No lock held, mmap_lock neither.
 */
void ckm_managed_wait(struct ckm_container *ct);

/* The backing file and all its mappings are gone: uncharge them. Takes rm_lock; sleeps. */
void ckm_managed_release(struct ckm_container *ct, struct ckm_backing *backing);

#endif
