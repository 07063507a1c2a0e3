/* SPDX-License-Identifier: MIT OR GPL-2.0-only */
#ifndef CKM_RM_ALLOC_HOLD_H
#define CKM_RM_ALLOC_HOLD_H

#include <linux/types.h>

struct ckm_alloc;

/* Pin the address space @handle in a->held[@n], 0: none, for as long as the call. NV_ERR_OBJECT_NOT_FOUND: no
 * object of the client; NV_ERR_INVALID_OBJECT_PARENT: it is on another GPU than the new object will be. Takes rm_lock.
 */
u32 ckm_alloc_hold_space(struct ckm_alloc *a, u32 n, u32 handle);
/* The same for all that a channel's parameters name. Its memories become its dependencies, and a->userd its
 * USERD's. NV_ERR_INVALID_ARGUMENT: the USERD is not inside its memory. Takes rm_lock, calls the driver.
 */
u32 ckm_alloc_hold_channel(struct ckm_alloc *a);

#endif
