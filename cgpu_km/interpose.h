/* SPDX-License-Identifier: MIT OR GPL-2.0 */
/* Our device nodes: what a tenant's calls meet before the driver does. */
#ifndef CKM_INTERPOSE_H
#define CKM_INTERPOSE_H

#include <linux/types.h>

struct cgpu_mem;
struct cgpu_obj;
struct ckm_back;
struct ckm_container;
struct file;
struct file_operations;

extern const struct file_operations ckm_front_fops;

/* The back of one of our files, NULL for any other file. */
struct ckm_back *ckm_front_back(struct file *file);

/* Whether @object is LIVE and of a client that @back made. Takes no lock: true
 * is true, false may only be that another thread changed the tree just then.
 */
bool ckm_tenant_owns(struct ckm_back *back, u32 client, u32 object);

/* A LIVE object, kept from being freed until unhold; NULL if there is none. */
struct cgpu_obj *ckm_tenant_hold(struct ckm_container *ct, u32 client, u32 object);
void ckm_tenant_unhold(struct ckm_container *ct, struct cgpu_obj *obj);

/* The same of an object that is memory, with a reference to what it holds on the
 * card (NULL: system memory). Both are filled as far as it went, also with an
 * error: NV_ERR_NOT_FOUND, NV_ERR_NOT_SUPPORTED for what is no memory.
 */
u32 ckm_tenant_hold_memory(struct ckm_container *ct, u32 client, u32 object,
			   struct cgpu_obj **obj, struct cgpu_mem **mem);

/* A reference to the memory of a held object; NULL if it has none. */
struct cgpu_mem *ckm_tenant_get_mem(struct ckm_container *ct, struct cgpu_obj *obj);
/* The same of a held channel's context reserve, which may be its TSG's. */
struct cgpu_mem *ckm_tenant_get_context(struct ckm_container *ct, struct cgpu_obj *channel);
void ckm_tenant_put_mem(struct ckm_container *ct, struct cgpu_mem *mem);

#endif
