/* SPDX-License-Identifier: MIT OR GPL-2.0-only */
/*
 * The seal: the driver copies each argument from user memory again after our check.
 * While a task is inside a call of ours, entry redirection makes the driver use the
 * checked copy.
 *
 *   rm_ioctl                       gets our copy of the struct; call->post runs on its
 *                                  result before the tenant sees it
 *   os_memcpy_from_user            a read of copied-in parameters gets our copy
 *   os_memcpy_to_user              a write to them goes to our copy, and to the tenant
 *                                  when the driver has returned
 *   nv_get_file_private            front file -> backing file
 *   nv_is_gpu_accessible           whether the container has that GPU
 *
 * Also of nvidia.ko: uvm_charge.h, dmabuf.h. Of nvidia-uvm.ko: uvm.h.
 *
 * witness.h checks before each call that all of them are in effect. The redirection of
 * rm_ioctl is a kprobe and can be switched off between that check and the driver's call of
 * it. Then call->entered stays false, os_memcpy_from_user fails, and after the call
 * ckm_rm_forward() gives the file up.
 */
#ifndef CKM_SEAL_H
#define CKM_SEAL_H

/* Redirect the functions of this table and those of uvm_charge.h and dmabuf.h. 0, or an
 * error with the symbol in the log. Caller holds ckm_lock.
 */
int ckm_seal_attach(void);
void ckm_seal_detach(void);

#endif
