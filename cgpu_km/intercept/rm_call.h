/* SPDX-License-Identifier: MIT OR GPL-2.0-only */
/* One RM call of a tenant: to the driver and back, or answered here. */
#ifndef CKM_RM_CALL_H
#define CKM_RM_CALL_H

#include <linux/types.h>

#include "core/nv_call.h"

struct ckm_call;
struct ckm_dma_map;

/* The argument of a handler. call->top is the checked copy of the tenant's struct;
 * @user is the address at which the driver reads and writes it. A handler is called
 * without a lock, may sleep, puts RM errors into the struct's status and returns the
 * ioctl's value.
 */
struct ckm_rm_call {
	struct ckm_call *call;
	struct cgpu_escape row;	/* a copy: the core may be replaced meanwhile */
	unsigned int cmd;	/* ioctl number, unwrapped */
	unsigned long user;
	struct ckm_dma_map *map;	/* MAP_MEMORY_DMA: the mapping until it is inserted */
};

/* Forward @rc to the driver on the backing file. call->post runs before the driver
 * copies its result out. Returns the driver's value; -EIO if a redirection is not in effect
 * (call->unseen: it was switched off meanwhile, and the driver may have run the call);
 * -EFAULT if the nested parameters cannot be written. No lock held; sleeps.
 */
long ckm_rm_forward(struct ckm_rm_call *rc);

/* Answer without forwarding: put @status into the struct and copy the struct out. 0 or
 * -EFAULT.
 */
long ckm_rm_answer(struct ckm_rm_call *rc, u32 status);

/* Copy @size bytes of nested parameters from user address @user into call->nested,
 * once: the check and the driver use this copy, and ckm_call_end() frees it. NV_OK,
 * NV_ERR_INVALID_ARGUMENT without an address or size, NV_ERR_INSUFFICIENT_RESOURCES, NV_ERR_INVALID_ADDRESS.
 */
u32 ckm_copy_in_params(struct ckm_call *call, u64 user, u32 size);

/* Count a refused call on the file's slot, or on all slots if the file is of no GPU,
 * and log it, rate limited, with @what and @number.
 */
void ckm_call_denied(struct ckm_call *call, const char *what, u32 number);

#endif
