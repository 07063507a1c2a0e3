/* SPDX-License-Identifier: MIT OR GPL-2.0 */
/* A tenant's RM calls, verdict by verdict. */
#ifndef CKM_RM_CALLS_H
#define CKM_RM_CALLS_H

#include <linux/types.h>

#include "compat.h"
#include "core/nv_call.h"

struct ckm_call;
struct ckm_dma_map;

/* What a handler is given: call->top is the checked copy of the tenant's
 * struct; @user is where the driver will read and write it.
 */
struct ckm_rm_call {
	struct ckm_call *call;
	struct cgpu_escape row;	/* a copy: the core may be replaced meanwhile */
	unsigned int cmd;	/* ioctl number, unwrapped */
	unsigned long user;
	struct ckm_dma_map *map;	/* MAP_MEMORY_DMA: of what is being mapped, until it is filed */
};

/* Fields of the driver's structs, at the offsets of nv_abi.h. */
static inline u32 get32(const u8 *s, u32 at)
{
	return get_unaligned((const u32 *)(s + at));
}

static inline u64 get64(const u8 *s, u32 at)
{
	return get_unaligned((const u64 *)(s + at));
}

static inline void put32(u8 *s, u32 at, u32 value)
{
	put_unaligned(value, (u32 *)(s + at));
}

static inline void put64(u8 *s, u32 at, u64 value)
{
	put_unaligned(value, (u64 *)(s + at));
}

/* The ioctl's return value. RM errors go into the struct's status, as the
 * driver does it.
 */
long ckm_rm_dispatch(struct ckm_rm_call *rc);

/* Forward @rc to the driver; call->post runs in between. */
long ckm_rm_forward(struct ckm_rm_call *rc);

/* Answer without forwarding: @status into the struct, the struct to the tenant. */
long ckm_rm_answer(struct ckm_rm_call *rc, u32 status);

/* Copy @size bytes of nested parameters once, for our check and the driver's
 * use; freed with the call. Returns an RM status.
 */
u32 ckm_seal_params(struct ckm_call *call, u64 user, u32 size);

/* Count, name and (rate limited) log a call that is refused. */
void ckm_refused(struct ckm_call *call, const char *what, u32 number);

/* Estimate of the page tables that one mapping of a held memory object needs. May
 * ask the driver: no locks.
 */
u64 ckm_page_tables_of(struct cgpu_obj *memory);

#endif
