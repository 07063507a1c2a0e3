/* SPDX-License-Identifier: MIT OR GPL-2.0-only */
/* The ioctls of nvidia-uvm. */
#ifndef CKM_UVM_IOCTL_H
#define CKM_UVM_IOCTL_H

struct ckm_backing;
struct ckm_call;
struct ckm_container;

/* Check, charge and forward an ioctl of nvidia-uvm; @user is the argument. Returns the
 * ioctl's value; RM errors go into the struct's status; -EINVAL: refused; -EFAULT. No
 * lock held; sleeps.
 */
long ckm_uvm_ioctl(struct ckm_call *call, unsigned int cmd, unsigned long user);

/* The backing file is gone: uncharge the page tables that its calls were charged. Takes
 * rm_lock.
 */
void ckm_uvm_tables_release(struct ckm_container *ct, struct ckm_backing *backing);

#endif
