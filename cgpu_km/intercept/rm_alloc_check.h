/* SPDX-License-Identifier: MIT OR GPL-2.0-only */
/* The checks of an allocation, and its charges. */
#ifndef CKM_RM_ALLOC_CHECK_H
#define CKM_RM_ALLOC_CHECK_H

#include <linux/types.h>

#include "core/mem_tree.h"
#include "core/nv_call.h"
#include "state/memory.h"

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

/* Charge @bytes of video memory for the object, in a->mem. NV_ERR_NO_MEMORY over the
 * limit; NV_ERR_PARENT above the device. Waits for recounts of managed memory, so no
 * lock may be held; takes rm_lock.
 */
u32 ckm_alloc_charge(struct ckm_alloc *a, enum ckm_mem_kind kind, u64 bytes);
/* The same for system memory, of the container; a->contiguous is set. */
u32 ckm_alloc_charge_host(struct ckm_alloc *a, u64 bytes);
/* What @bytes of system memory take: contiguous, the next power of two. */
u64 ckm_alloc_host_bytes(const struct ckm_alloc *a, u64 bytes);
/* NVOS32 attributes of system memory that the driver allocates in one block. */
bool ckm_alloc_is_contiguous(u32 attr);
/* Charge what the driver keeps for the object beside its memory, a->pt_bytes included.
 * NV_OK, or NV_ERR_NO_MEMORY over the limit. Takes rm_lock.
 */
u32 ckm_alloc_charge_overhead(struct ckm_alloc *a);
/* Set the slot of a device. NV_ERR_ARGUMENT: the GPU is not the container's;
 * NV_ERR_CLIENT: hClientShare is another client's.
 */
u32 ckm_alloc_check_device(struct ckm_alloc *a);
/* Check the kernel copy of the parameters by the object's kind, and charge memory and
 * ids. Returns an RM status. Takes rm_lock.
 */
u32 ckm_alloc_check_params(struct ckm_alloc *a);
/* Check @flags of an allocation of video memory, NV_ERR_ARGUMENT for a chosen address,
 * and raise @bytes, its charge, to @alignment, also in bytes, if @flags align it.
 */
u32 ckm_alloc_check_place(struct ckm_alloc *a, u32 flags, u64 alignment, u64 *bytes);
/* Check the page size that (@attr, @attr2) request. NV_ERR_STATE, as from the driver, if the
 * GPU has no such pages.
 */
u32 ckm_alloc_check_page_size(struct ckm_alloc *a, u32 attr, u32 attr2);
/* Pin the address space @handle in a->held[@n], 0: none, for as long as the call. NV_ERR_NOT_FOUND: no
 * object of the client; NV_ERR_PARENT: it is on another GPU than the new object will be. Takes rm_lock.
 */
u32 ckm_alloc_hold_space(struct ckm_alloc *a, u32 n, u32 handle);
/* Pin the source of an event in a->source, and set @parent to the handle under which
 * the driver puts the event. NV_ERR_NOT_FOUND: not an object of the container. Takes
 * rm_lock.
 */
u32 ckm_alloc_event_source(struct ckm_alloc *a, u32 client, u32 *parent);

bool ckm_alloc_is_event(u32 cls);
/* Estimate of the page tables that a reservation of @size bytes of addresses takes, in
 * bytes.
 */
u64 ckm_reserved_tables(u32 flags, u64 size, u32 attr, u32 attr2);

#endif
