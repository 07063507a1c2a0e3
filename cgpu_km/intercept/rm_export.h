/* SPDX-License-Identifier: MIT OR GPL-2.0-only */
/*
 * CUDA IPC: one process exports memory to a control file, another one imports it from
 * there. Both are of one container, or of two with the same IPC name. Exported memory
 * stays charged until the file is gone. An imported object is a reference like a dup; if
 * it is from another container, it is charged again.
 */
#ifndef CKM_RM_EXPORT_H
#define CKM_RM_EXPORT_H

#include <linux/types.h>

struct ckm_backing;
struct ckm_container;
struct ckm_rm_call;

/* Run one of the calls of each direction, the parameters in call->nested. @cmd is
 * the control, @client the caller's own. Returns the ioctl's value; RM errors go into
 * the struct's status. No lock held; sleep.
 */
long ckm_rm_export(struct ckm_rm_call *rc, u32 cmd, u32 client);
long ckm_rm_import(struct ckm_rm_call *rc, u32 cmd, u32 client);

/* @backing is gone: drop the references of its exports, and the charge of their places. Takes ct->rm_lock for each; sleeps. */
void ckm_exports_drop(struct ckm_container *ct, struct ckm_backing *backing);

#endif
