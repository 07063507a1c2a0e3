// SPDX-License-Identifier: MIT OR GPL-2.0-only
/* Pins what the parameters of a channel name for as long as the call, and checks it. Takes rm_lock. */
#include "call.h"
#include "core/nv_struct.h"
#include "driver/driver.h"
#include "fields.h"
#include "intercept/backing_file.h"
#include "intercept/rm_alloc_hold.h"
#include "intercept/rm_allocation.h"
#include "intercept/rm_call.h"
#include "state/memory.h"
#include "state/rm_object.h"
#include "state/rm_tables.h"

/* The driver takes an address space of any GPU of the client (seen in 535 and 550). A channel would then walk
 * page tables that lie at those addresses in the memory of the other GPU, whoever has them here. The space
 * stays pinned: another one of this name must not take its place during the call.
 */
u32 ckm_alloc_hold_space(struct ckm_alloc *a, u32 n, u32 handle)
{
	if (!handle)
		return NV_OK;
	a->held[n] = ckm_obj_pin(a->rc->call->backing->ct, a->obj->core.hclient, handle);
	if (!a->held[n]) {
		ckm_call_denied(a->rc->call, "address space that is not there, handle", handle);
		return NV_ERR_OBJECT_NOT_FOUND;
	}
	ckm_obj_set_space(a->obj, a->held[n]);
	if (a->held[n]->gpu == a->parent->gpu)
		return NV_OK;
	ckm_call_denied(a->rc->call, "address space of another GPU, class", a->obj->core.cls);
	return NV_ERR_INVALID_OBJECT_PARENT;
}

static u32 hold_channel_spaces(struct ckm_alloc *a)
{
	const u8 *p = a->rc->call->nested.copy;
	u32 at = AT(nv_chan_params, hContextShare), n, status = NV_OK;

	for (n = CGPU_DEPS; at < ckm_driver_abi()->channel_h_userd && status == NV_OK; n++, at += sizeof(u32))
		status = ckm_alloc_hold_space(a, n, get32(p, at));
	return status;
}

/* The driver's heap takes a channel's USERD back with its handle and gives it to the next allocation,
 * another container's too, while the GPU reads and writes it on (seen in 535 and 550; only a channel on
 * pinned user pages ends with them there, kernel_channel_gv100.c). So a channel depends on its memory:
 * rm_free.c frees the channel first. Both are below one device, so that whatever else takes the memory
 * along takes the channel too. It stays pinned until the channel is in the tree.
 */
static u32 hold_memory(struct ckm_alloc *a, u32 n, u32 handle)
{
	struct ckm_container *ct = a->rc->call->backing->ct;
	const struct cgpu_obj *device = a->parent->kind == CGPU_KIND_TSG ? a->parent->parent : a->parent;
	struct cgpu_obj *memory;

	if (!handle)
		return NV_OK;
	memory = ckm_obj_pin(ct, a->obj->core.hclient, handle);
	/* Not LIVE: another thread frees or makes it, so the driver may find it. */
	if (!memory) {
		ckm_call_denied(a->rc->call, "channel on memory that is not there, handle", handle);
		return NV_ERR_OBJECT_NOT_FOUND;
	}
	a->held[n] = memory;
	if (memory->parent != device || (memory->kind != CGPU_KIND_VIDMEM && memory->kind != CGPU_KIND_SYSMEM &&
					 !(n && memory->kind == CGPU_KIND_NOTIFIER))) {
		ckm_call_denied(a->rc->call, "channel on what is not memory of its device, class",
				memory->cls);
		return NV_ERR_INVALID_OBJECT_PARENT;
	}
	a->obj->core.deps[n].on = memory;
	return NV_OK;
}

/* Up to 580 the driver adds the offset of the USERD to the address of its memory and compares it with nothing
 * (memdescCreateSubMem()): GPU and driver then read and write at any address of the card or of the host. The
 * size is the driver's own, rounded down to pages; the charge can be more.
 */
static u32 check_userd(struct ckm_alloc *a)
{
	const struct cgpu_obj *memory = a->held[0];
	u32 userd_at = ckm_driver_abi()->channel_engine - sizeof_field(struct nv_chan_params, userdOffset);
	u64 at = get64(a->rc->call->nested.copy, userd_at);
	u64 bytes;

	if (!memory)
		return NV_OK;
	bytes = ckm_real_bytes(memory->hclient, memory->hobject);
	if (at % NV_RAMUSERD_CHAN_SIZE == 0 && bytes >= NV_RAMUSERD_CHAN_SIZE && at <= bytes - NV_RAMUSERD_CHAN_SIZE)
		return NV_OK;
	ckm_call_denied(a->rc->call, "USERD outside of its memory, class", memory->cls);
	return NV_ERR_INVALID_ARGUMENT;
}

/* The driver looks a channel's error notifiers up once, takes those of the TSG's handle for a channel
 * that names none, and keeps their address: it and the card's firmware write there on each fault and each
 * token, whatever has the page by then. A handle that it does not find leaves it a NULL pointer, which it
 * follows on a card with firmware (kernel_channel.c, 535 to 580). So a channel depends on them as well.
 */
static u32 hold_memories(struct ckm_alloc *a)
{
	const struct ckm_obj *parent = container_of(a->parent, struct ckm_obj, core);
	const u8 *p = a->rc->call->nested.copy;
	const u32 handles[CGPU_DEPS] = {
		get32(p, ckm_driver_abi()->channel_h_userd),
		get32(p, AT(nv_chan_params, hObjectError)) ?: parent->notifiers[0],
		get32(p, ckm_driver_abi()->channel_h_ecc) ?: parent->notifiers[1],
	};
	u32 n, status = NV_OK;

	if (!ckm_obj_alloc_deps(a->obj))
		return NV_ERR_INSUFFICIENT_RESOURCES;
	for (n = 0; n < CGPU_DEPS && status == NV_OK; n++)
		status = hold_memory(a, n, handles[n]);
	if (status == NV_OK)
		status = check_userd(a);
	if (status == NV_OK && a->held[0])
		a->userd = ckm_obj_get_mem(a->rc->call->backing->ct, a->held[0]);
	return status;
}

u32 ckm_alloc_hold_channel(struct ckm_alloc *a)
{
	return hold_channel_spaces(a) ?: hold_memories(a);
}
