/* SPDX-License-Identifier: MIT OR GPL-2.0 */
/*
 * CUDA IPC: memory put on a control file by one process and taken from it by
 * another of the same container. What a file carries stays charged until the
 * file is gone, and every object imported from it is a reference like a dup.
 */
#ifndef CKM_RM_EXPORT_H
#define CKM_RM_EXPORT_H

#include <linux/types.h>

struct ckm_back;
struct ckm_container;
struct ckm_rm_call;

/* One of the two calls in either direction, its parameters sealed; @client is
 * the caller's own. The ioctl's return value.
 */
long ckm_rm_export(struct ckm_rm_call *rc, u32 cmd, u32 client);
long ckm_rm_import(struct ckm_rm_call *rc, u32 cmd, u32 client);

/* @back is gone, and with it what it carried. Caller holds ct->rm_lock. */
void ckm_exports_drop_locked(struct ckm_container *ct, struct ckm_back *back);

#endif
