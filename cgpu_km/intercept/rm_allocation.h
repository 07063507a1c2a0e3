/* SPDX-License-Identifier: MIT OR GPL-2.0-only */
/* An allocation in flight, which its checks and its end share. */
#ifndef CKM_RM_ALLOCATION_H
#define CKM_RM_ALLOCATION_H

#include <linux/types.h>

#include "core/nv_call.h"
#include "pure/mem_tree.h"

/* What parameters name: of a channel, what it depends on, and then its context share and its address spaces. */
#define CKM_ALLOC_HELD		(CGPU_DEPS + 3)

struct ckm_obj;
struct ckm_rm_call;
struct ckm_slot;

/* One allocation, from ckm_alloc_prepare() to the end of ckm_alloc_run(). */
struct ckm_alloc {
	struct ckm_rm_call *rc;
	struct cgpu_class cls;		/* a copy: the core may be replaced meanwhile */
	struct ckm_obj *obj;		/* in the tree as PENDING once the handle is known */
	struct cgpu_obj *parent;	/* pinned; NULL for a client */
	struct cgpu_obj *source;	/* pinned; of an event or debugger, or NULL */
	struct cgpu_obj *held[CKM_ALLOC_HELD];	/* pinned; what the parameters name, or NULL */
	struct ckm_slot *slot;		/* NULL above the device */
	struct cgpu_mem *mem;		/* charged; the object's once it is LIVE */
	u32 handle_at;			/* offset of the new handle in the struct */
	u32 status_at;
	struct cgpu_mem *userd;		/* the same, of a channel's USERD memory */
	u64 pt_bytes;			/* bytes of page tables that come with it */
	u64 host_bytes;			/* of system memory, if the parameters are in the top struct */
	bool contiguous;		/* system memory in one block */
	u32 share;			/* devices: hClientShare as the tenant wrote it */
	u64 free_before;		/* free bytes of the card at the start; 0: not measured */
	int mem_ops_seq;
	bool is_dup;			/* a second handle: the driver takes no context for it */
	bool in_tree;			/* and pinned, until finish() */
	bool done;			/* LIVE: the driver made it and it stays */
};

#endif
