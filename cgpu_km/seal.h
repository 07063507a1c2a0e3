/* SPDX-License-Identifier: MIT OR GPL-2.0 */
/*
 * The seal: the driver copies every argument from user memory again after our
 * check. While a task is inside a call of ours, entry redirection makes the
 * driver use the copy that was checked.
 *
 *   rm_ioctl                       gets our top-level struct, and gives us its
 *                                  result before the tenant sees it
 *   os_memcpy_from_user            reads inside a sealed range get our copy
 *   nv_get_file_private            our file -> its back file
 *   nvUvmInterfaceDupMemory        uvm takes a reference: charge it
 *   nvUvmInterfaceFreeDupedHandle  uvm gives it back
 *   nvUvmInterfaceRetainChannel    uvm keeps a channel's context: the same
 *   nvUvmInterfaceReleaseChannel   and gives that back
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

void ckm_seal_exit(void);

#endif
