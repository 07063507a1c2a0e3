/* SPDX-License-Identifier: MIT OR GPL-2.0 */
/*
 * The seal: the driver copies every argument from user memory again after our
 * check. While a task is inside a call of ours, entry redirection makes the
 * driver use the copy that was checked.
 *
 *   rm_ioctl                       gets our top-level struct, and gives us its
 *                                  result before the tenant sees it
 *   os_memcpy_from_user            reads inside a sealed range get our copy
 *   os_memcpy_to_user              what is written inside it goes to our copy, and to
 *                                  the tenant when the driver has ended
 *   nv_get_file_private            our file -> its back file
 *   nvUvmInterfaceDupMemory        uvm takes a reference: charge it
 *   nvUvmInterfaceFreeDupedHandle  uvm gives it back
 *   nvUvmInterfaceRetainChannel    uvm keeps a channel's context: the same
 *   nvUvmInterfaceReleaseChannel   and gives that back
 *   nv_dma_buf_export              memory given away: its charge follows it
 *   dma_buf_fd                     of the kernel; which dma-buf that is
 *   uvm_va_space_create            of nvidia-uvm.ko; never with HMM
 *
 * No kretprobes: one that is missed fails open. A missed entry redirection
 * leaves call->ran false, and the call fails closed.
 */
#ifndef CKM_SEAL_H
#define CKM_SEAL_H

/* Symbols found, probes armed: -ENOENT names the missing one in the log. Caller
 * holds ckm_lock.
 */
int ckm_seal_attach(void);
void ckm_seal_detach(void);

/* What is redirected in nvidia-uvm.ko, which can come later than nvidia.ko, and
 * go. Without it nobody opens a uvm node. Attach and detach: caller holds ckm_lock.
 */
void ckm_seal_attach_uvm(void);
bool ckm_seal_has_uvm(void);
void ckm_seal_uvm_gone(void);

void ckm_seal_exit(void);

#endif
