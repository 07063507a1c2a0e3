/* SPDX-License-Identifier: MIT OR GPL-2.0-only */
/* RM_ALLOC and RM_ALLOC_MEMORY, and the steps that all allocations share. */
#ifndef CKM_RM_ALLOC_H
#define CKM_RM_ALLOC_H

#include "intercept/rm_alloc_check.h"

struct ckm_call;
struct ckm_rm_call;

/* Handler: rm_call.h. */
long ckm_rm_run_alloc(struct ckm_rm_call *rc);

/* Set a->cls to the row of class @cls. Without one it stays CGPU_KIND_REFUSED. */
void ckm_alloc_find_class(struct ckm_alloc *a, u32 cls);
/**
 * ckm_alloc_prepare() - make the object of an allocation, check it and charge it
 * @a: the allocation, with rc, cls, handle_at and status_at set
 * @client: handle of the client
 * @parent: handle of the parent; unused for a client
 * @handle: handle of the new object; 0: not known yet, else it is inserted as PENDING
 * @params: user address of the nested parameters
 *
 * Context: Process, no lock held; sleeps. Takes rm_lock.
 * Return: an RM status. After an error too, ckm_alloc_run() must release @a.
 */
u32 ckm_alloc_prepare(struct ckm_alloc *a, u32 client, u32 parent, u32 handle, u64 params);
/* Insert a->obj into the tree as PENDING, under @handle. NV_OK, NV_ERR_INSERT_DUPLICATE_NAME,
 * NV_ERR_INVALID_OBJECT_PARENT, or NV_ERR_INSUFFICIENT_RESOURCES above max_objects or another limit (state/listed.h).
 * Takes rm_lock.
 */
u32 ckm_alloc_add_pending(struct ckm_alloc *a, u32 handle);
/**
 * ckm_alloc_run() - forward an allocation, or answer it, and release @a
 * @a: the allocation, after ckm_alloc_prepare()
 * @status: NV_OK: forward; else the answer to the tenant
 * @post: call->post of the forwarded call
 *
 * Context: Process, no lock held; sleeps.
 * Return: the ioctl's value. RM errors are in the struct's status.
 */
long ckm_alloc_run(struct ckm_alloc *a, u32 status, void (*post)(struct ckm_call *call, u8 *arg));
/* A @post of ckm_alloc_run(), or its first part. Before the tenant sees the result,
 * makes the object LIVE with the charge of its real size, or frees it again and writes
 * an error to @arg. Takes rm_lock, gpu->lock, and calls the driver.
 */
void ckm_alloc_post(struct ckm_call *call, u8 *arg);

#endif
