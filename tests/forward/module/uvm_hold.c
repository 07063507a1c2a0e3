// SPDX-License-Identifier: MIT OR GPL-2.0-only
/* What nvidia-uvm takes of nvidia.ko and drops again, by functions that are kernel-only: the host's nvidia-uvm calls
 * the host's. Here they take nothing; they are called in the driver's order, so that cgpu_km, which redirects them,
 * has its charges taken and dropped when the host's driver takes and drops the memory.
 */
#include <linux/atomic.h>
#include <linux/list.h>
#include <linux/module.h>
#include <linux/slab.h>
#include <linux/string.h>

#include "forward.h"

#define UUID_BYTES	16
#define FIRST_DUP	0xcaf00000u
#define INFO_BYTES	1120	/* of a channel's information in the largest branch; cgpu_km reads offsets in it */

struct fwd_held {
	struct list_head node;		/* uvm->lock */
	enum fwd_hold kind;
	u8 uuid[UUID_BYTES];
	u64 base, bytes;		/* of memory */
	u32 dup;
	u32 client, channel;
	void *retained;
};

static atomic_t next_dup = ATOMIC_INIT(0);
static atomic_long_t next_retained = ATOMIC_LONG_INIT(0);

noinline u32 nvUvmInterfaceDupMemory(void *device, u32 client, u32 memory, u32 *dup, void *info)
{
	*dup = FIRST_DUP + (u32)atomic_inc_return(&next_dup);
	return NV_OK;
}
EXPORT_SYMBOL(nvUvmInterfaceDupMemory);

noinline u32 nvUvmInterfaceFreeDupedHandle(void *device, u32 dup)
{
	/* Not empty: a call to a function without an effect may be left out. */
	barrier();
	return NV_OK;
}
EXPORT_SYMBOL(nvUvmInterfaceFreeDupedHandle);

noinline u32 nvUvmInterfaceDupAddressSpace(void *device, u32 client, u32 space, void **dup, void *info)
{
	*dup = NULL;
	return NV_OK;
}
EXPORT_SYMBOL(nvUvmInterfaceDupAddressSpace);

/* @info stays zero: the channel's registers are not there. */
noinline u32 nvUvmInterfaceRetainChannel(void *space, u32 client, u32 channel, void **retained, void *info)
{
	*retained = (void *)atomic_long_inc_return(&next_retained);
	return NV_OK;
}
EXPORT_SYMBOL(nvUvmInterfaceRetainChannel);

noinline void nvUvmInterfaceReleaseChannel(void *retained)
{
	barrier();
}
EXPORT_SYMBOL(nvUvmInterfaceReleaseChannel);

static void drop(struct fwd_held *h)
{
	list_del(&h->node);
	if (h->kind == FWD_HOLD_MEMORY)
		nvUvmInterfaceFreeDupedHandle(NULL, h->dup);
	else
		nvUvmInterfaceReleaseChannel(h->retained);
	kfree(h);
}

static void drop_list(struct list_head *list)
{
	struct fwd_held *h, *next;

	list_for_each_entry_safe(h, next, list, node)
		drop(h);
}

static struct fwd_held *held_new(enum fwd_hold kind, const u8 *uuid)
{
	struct fwd_held *h = kzalloc(sizeof(*h), GFP_KERNEL);

	if (h) {
		h->kind = kind;
		memcpy(h->uuid, uuid, UUID_BYTES);
	}
	return h;
}

u32 fwd_hold_memory(u32 client, u32 memory, const u8 *uuid, u64 base, u64 bytes, struct list_head *taken)
{
	struct fwd_held *h = held_new(FWD_HOLD_MEMORY, uuid);
	u32 status;

	if (!h)
		return NV_ERR_NO_MEMORY;
	h->base = base;
	h->bytes = bytes;
	status = nvUvmInterfaceDupMemory(NULL, client, memory, &h->dup, NULL);
	if (status == NV_OK)
		list_add(&h->node, taken);
	else
		kfree(h);
	return status;
}

u32 fwd_hold_channel(u32 client, u32 channel, const u8 *uuid, struct list_head *taken)
{
	struct fwd_held *h = held_new(FWD_HOLD_CHANNEL, uuid);
	void *info = kzalloc(INFO_BYTES, GFP_KERNEL);
	u32 status = NV_ERR_NO_MEMORY;

	if (h && info) {
		h->client = client;
		h->channel = channel;
		status = nvUvmInterfaceRetainChannel(NULL, client, channel, &h->retained, info);
	}
	kfree(info);
	if (status == NV_OK)
		list_add(&h->node, taken);
	else
		kfree(h);
	return status;
}

void fwd_hold_keep(struct fwd_uvm *v, struct list_head *taken)
{
	mutex_lock(&v->lock);
	list_splice_init(taken, &v->held);
	mutex_unlock(&v->lock);
}

void fwd_hold_cancel(struct list_head *taken)
{
	drop_list(taken);
}

static bool is_of(const struct fwd_held *h, const u8 *uuid)
{
	return !uuid || !memcmp(h->uuid, uuid, UUID_BYTES);
}

void fwd_hold_drop_range(struct fwd_uvm *v, const u8 *uuid, u64 base, u64 bytes)
{
	struct fwd_held *h, *next;
	LIST_HEAD(dropped);

	mutex_lock(&v->lock);
	list_for_each_entry_safe(h, next, &v->held, node)
		if (h->kind == FWD_HOLD_MEMORY && is_of(h, uuid) && h->base >= base && h->base - base < bytes &&
		    h->bytes <= bytes - (h->base - base))
			list_move(&h->node, &dropped);
	mutex_unlock(&v->lock);
	drop_list(&dropped);
}

void fwd_hold_drop_channel(struct fwd_uvm *v, u32 client, u32 channel)
{
	struct fwd_held *h, *next;
	LIST_HEAD(dropped);

	mutex_lock(&v->lock);
	list_for_each_entry_safe(h, next, &v->held, node)
		if (h->kind == FWD_HOLD_CHANNEL && h->client == client && h->channel == channel)
			list_move(&h->node, &dropped);
	mutex_unlock(&v->lock);
	drop_list(&dropped);
}

void fwd_hold_drop_gpu(struct fwd_uvm *v, const u8 *uuid, bool mappings)
{
	struct fwd_held *h, *next;
	LIST_HEAD(dropped);

	mutex_lock(&v->lock);
	list_for_each_entry_safe(h, next, &v->held, node)
		if (is_of(h, uuid) && (mappings || h->kind == FWD_HOLD_CHANNEL))
			list_move(&h->node, &dropped);
	mutex_unlock(&v->lock);
	drop_list(&dropped);
}

void fwd_hold_drop_all(struct fwd_uvm *v)
{
	LIST_HEAD(dropped);

	mutex_lock(&v->lock);
	list_splice_init(&v->held, &dropped);
	mutex_unlock(&v->lock);
	drop_list(&dropped);
}
