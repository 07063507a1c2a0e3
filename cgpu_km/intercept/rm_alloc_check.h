/* SPDX-License-Identifier: MIT OR GPL-2.0-only */
/* The checks of an allocation, and its charges. */
#ifndef CKM_RM_ALLOC_CHECK_H
#define CKM_RM_ALLOC_CHECK_H

#include <linux/types.h>

#include "intercept/rm_allocation.h"
#include "state/memory.h"

/* Charge @bytes of video memory for the object, in a->mem. NV_ERR_NO_MEMORY over the
 * limit; NV_ERR_INVALID_OBJECT_PARENT above the device. Waits for recounts of managed memory, so no
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
/* Set the slot of a device. NV_ERR_INVALID_ARGUMENT: the GPU is not the container's;
 * NV_ERR_INVALID_CLIENT: hClientShare is another client's.
 */
u32 ckm_alloc_check_device(struct ckm_alloc *a);
/* Check the kernel copy of the parameters by the object's kind, and charge memory and
 * ids. Returns an RM status. Takes rm_lock.
 */
u32 ckm_alloc_check_params(struct ckm_alloc *a);
/* Check @flags and @attr2 of an allocation of video memory, NV_ERR_INVALID_ARGUMENT for a chosen address
 * or region, and raise @bytes, its charge, to @alignment, also in bytes, if @flags align it.
 */
u32 ckm_alloc_check_place(struct ckm_alloc *a, u32 flags, u32 attr2, u64 alignment, u64 *bytes);
/* Check the page size that (@attr, @attr2) request. NV_ERR_INVALID_STATE, as from the driver, if the
 * GPU has no such pages.
 */
u32 ckm_alloc_check_page_size(struct ckm_alloc *a, u32 attr, u32 attr2);
/* Pin the source of an event in a->source, and set @parent to the handle under which
 * the driver puts the event. NV_ERR_OBJECT_NOT_FOUND: not an object of the container. Takes
 * rm_lock.
 */
u32 ckm_alloc_event_source(struct ckm_alloc *a, u32 client, u32 *parent);

bool ckm_alloc_is_event(u32 cls);
/* NV2080_ENGINE_TYPE_* that the parameters of a TSG or a channel name. */
u32 ckm_alloc_engine_type(const struct ckm_alloc *a);
/* Estimate of the page tables that a reservation of @size bytes of addresses takes, in
 * bytes.
 */
u64 ckm_reserved_tables(u32 flags, u64 size, u32 attr, u32 attr2);

#endif
