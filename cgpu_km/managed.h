/* SPDX-License-Identifier: MIT OR GPL-2.0 */
/* Managed memory (cudaMallocManaged) under uvm = account: docs/decisions/0007. */
#ifndef CKM_MANAGED_H
#define CKM_MANAGED_H

struct ckm_back;
struct ckm_container;
struct vm_area_struct;

/* Whether every GPU of the container has uvm = account. */
bool ckm_managed_allowed(const struct ckm_container *ct);

/* The driver's mmap of uvm's file, charged. -EPERM where uvm is deny, -ENOMEM
 * over the limit. Called as .mmap is, with the caller's mmap_lock for writing.
 */
int ckm_managed_mmap(struct ckm_back *back, struct vm_area_struct *vma);

/* Until what this container's processes unmapped is counted, a second at most.
 * Not with a lock held, nor mmap_lock.
 */
void ckm_managed_wait(struct ckm_container *ct);

/* R is gone, and so are all its mappings. Takes rm_lock; sleeps. */
void ckm_managed_settle(struct ckm_container *ct, struct ckm_back *back);

#endif
