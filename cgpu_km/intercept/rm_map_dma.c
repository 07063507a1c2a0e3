// SPDX-License-Identifier: MIT OR GPL-2.0-only
/* Charges the page tables of mappings for the GPU. Takes rm_lock. */
#include <linux/slab.h>

#include "call.h"
#include "compat.h"
#include "core/nv_struct.h"
#include "core_ref.h"
#include "fields.h"
#include "intercept/backing_file.h"
#include "intercept/map_name.h"
#include "intercept/rm_call.h"
#include "intercept/rm_map_dma.h"
#include "pure/mem_tree.h"
#include "state/container.h"
#include "state/gpu.h"
#include "state/memory.h"
#include "state/rm_maps.h"
#include "state/rm_object.h"
#include "state/rm_tables.h"

/* In NVOS46 the address, a u64, is the field before the status; its offset depends on
 * the branch.
 */
static u64 mapped_at(const struct ckm_rm_call *rc, const u8 *arg)
{
	return get64(arg, rc->row.status_at - sizeof(u64));
}

static struct ckm_map_name name_of(const struct ckm_dma_map *map)
{
	return (struct ckm_map_name){ map->at, map->hclient, map->hdevice, map->hdma };
}

static int compare_name(const void *key, const struct rb_node *node)
{
	const struct ckm_map_name name = name_of(rb_entry(node, struct ckm_dma_map, node));

	return ckm_map_name_compare(key, &name);
}

static bool is_before(struct rb_node *node, const struct rb_node *other)
{
	const struct ckm_map_name name = name_of(rb_entry(node, struct ckm_dma_map, node));

	return compare_name(&name, other) < 0;
}

static void file_map_locked(struct ckm_container *ct, struct ckm_dma_map *map)
{
	lockdep_assert_held(&ct->rm_lock);
	rb_add(&map->node, &ct->dma_maps, is_before);
	list_add(&map->of, &map->memory->dma_maps);
	ct->maps++;
}

/* The driver has made the mapping: from here on another thread can unmap it. */
static void post_map_dma(struct ckm_call *call, u8 *arg)
{
	struct ckm_rm_call *rc = call->post_data;
	struct ckm_container *ct = call->backing->ct;
	struct ckm_dma_map *map = rc->map;

	if (get32(arg, rc->row.status_at) != NV_OK)
		return;
	map->at = mapped_at(rc, arg);
	mutex_lock(&ct->rm_lock);
	/* DETACHED: the client's file is gone, and the charge with it. */
	if (map->memory->core.state != CGPU_OBJ_DETACHED) {
		file_map_locked(ct, map);
		rc->map = NULL;
	}
	mutex_unlock(&ct->rm_lock);
}

/* The driver sets tables aside for a mapping in a reserved range beside those of the range, and keeps them for the next
 * one: as much again at most. They go with the range (tests/rm/test_page_tables.py), and so does the charge.
 */
static int charge_range_locked(struct ckm_container *ct, struct ckm_obj *range, u64 tables)
{
	u64 most = 2 * range->pt_bytes, has = range->core.overhead;

	lockdep_assert_held(&ct->rm_lock);
	return ckm_obj_overhead_locked(ct, &range->core, has < most ? min(tables, most - has) : 0);
}

/* On the GPU of @device, which has the page tables. */
static u32 charge_map(struct ckm_container *ct, struct ckm_dma_map *map, struct cgpu_obj *memory,
		      const struct cgpu_obj *device, struct cgpu_obj *space)
{
	struct ckm_obj *range = container_of(space, struct ckm_obj, core);
	u64 tables = ckm_page_tables_of(ct, memory);
	int ret = -ENOMEM;

	map->memory = container_of(memory, struct ckm_obj, core);
	map->slot = ckm_container_slot_of(ct, device->gpu);
	if (!map->slot)
		return NV_ERR_OBJECT_NOT_FOUND;
	map->pt_bytes = range->pt_bytes ? 0 : tables;
	mutex_lock(&ct->rm_lock);
	if (ckm_objs_have_room_locked(ct))
		ret = range->pt_bytes ? charge_range_locked(ct, range, tables)
				      : ckm_slot_overhead_locked(map->slot, tables);
	mutex_unlock(&ct->rm_lock);
	return ret ? NV_ERR_NO_MEMORY : NV_OK;
}

/* Uncharge and free a mapping that is on no list. */
static void drop_locked(struct ckm_container *ct, struct ckm_dma_map *map)
{
	lockdep_assert_held(&ct->rm_lock);
	ckm_slot_overhead_less_locked(map->slot, map->pt_bytes);
	kfree(map);
}

/* Of a mapping that post_map_dma() did not insert. If the driver ran the call unseen, it may have mapped: the
 * charge stays until the memory is freed, under a name that no mapping has. If it refused, the tables may stay.
 */
static void drop_or_keep(struct ckm_container *ct, struct ckm_dma_map *map, struct cgpu_obj *space, bool unseen)
{
	mutex_lock(&ct->rm_lock);
	if (unseen && map->memory->core.state != CGPU_OBJ_DETACHED) {
		map->at = U64_MAX;
		file_map_locked(ct, map);
	} else {
		if (map->slot->gpu->index == space->gpu)
			map->pt_bytes -= ckm_space_refused_locked(container_of(space, struct ckm_obj, core)->space,
								  space, map->pt_bytes);
		drop_locked(ct, map);
	}
	mutex_unlock(&ct->rm_lock);
}

/* Pin the device and the address space of a mapping. Refuse one that the driver would make of other memory than
 * of the object that it names (core/nv_answer.c).
 */
static u32 hold_place(struct ckm_rm_call *rc, const struct cgpu_obj *memory,
		      struct cgpu_obj **device, struct cgpu_obj **space)
{
	struct ckm_container *ct = rc->call->backing->ct;
	const u8 *top = rc->call->top;
	struct cgpu_dma_map map = { .flags = get32(top, AT(nvos46, flags)), .kind = memory->kind,
				    .memory = memory->gpu };

	*device = ckm_obj_pin(ct, memory->hclient, get32(top, AT(nvos46, hDevice)));
	*space = ckm_obj_pin(ct, memory->hclient, get32(top, AT(nvos46, hDma)));
	if (!*device || !*space)
		return NV_ERR_OBJECT_NOT_FOUND;
	map.device = (*device)->gpu;
	map.space = (*space)->gpu;
	if (ckm_core_call(nv.may_map_dma(&map)))
		return NV_OK;
	ckm_call_denied(rc->call, "GPU mapping by another GPU, or with flags of a peer or the kernel, of class",
			memory->cls);
	return NV_ERR_INVALID_OBJECT_PARENT;
}

/* For a mapping of more than the memory has the driver makes the tables first and then refuses it. They stay as long as
 * the address space, as large as the length that was named (seen in 535 and 550), and in no charge.
 */
static u32 check_length(struct ckm_rm_call *rc, struct cgpu_obj *memory)
{
	u64 offset = get64(rc->call->top, AT(nvos46, offset)), length = get64(rc->call->top, AT(nvos46, length));
	/* The driver reports whole units, and compares with all that there is. */
	u64 bytes = ckm_bytes_of(rc->call->backing->ct, memory) + NV0041_CTRL_SURFACE_INFO_PHYS_SIZE_SCALE_FACTOR - 1;

	if (offset <= bytes && length <= bytes - offset)
		return NV_OK;
	ckm_call_denied(rc->call, "GPU mapping of more than there is, of class", memory->cls);
	return NV_ERR_INVALID_LIMIT;
}

/* The driver leaves the invalidation to the client that asks for it. Until one comes the GPU goes on with the old entry,
 * when the memory was freed and is another container's.
 */
static void invalidate_tlb(struct ckm_rm_call *rc, u32 flags_at, u32 defer)
{
	put32(rc->call->top, flags_at, get32(rc->call->top, flags_at) & ~defer);
}

/* Whether the driver mapped is in its status only. The errno does not show it: the copy
 * to the tenant's memory can fail after the mapping.
 */
long ckm_rm_run_map_dma(struct ckm_rm_call *rc)
{
	struct ckm_container *ct = rc->call->backing->ct;
	const u8 *top = rc->call->top;
	struct cgpu_obj *memory, *device = NULL, *space = NULL;
	struct ckm_dma_map *map;
	u32 status;
	long ret;

	map = kzalloc(sizeof(*map), GFP_KERNEL_ACCOUNT);
	if (!map)
		return ckm_rm_answer(rc, NV_ERR_INSUFFICIENT_RESOURCES);
	map->hclient = get32(top, NVOS_H_ROOT);
	map->hdevice = get32(top, AT(nvos46, hDevice));
	map->hdma = get32(top, AT(nvos46, hDma));
	memory = ckm_obj_pin(ct, map->hclient, get32(top, AT(nvos46, hMemory)));
	status = memory ? hold_place(rc, memory, &device, &space) : NV_ERR_OBJECT_NOT_FOUND;
	if (status == NV_OK)
		status = check_length(rc, memory) ?: charge_map(ct, map, memory, device, space);
	if (status != NV_OK) {
		kfree(map);
		ret = ckm_rm_answer(rc, status);
		goto out;
	}
	invalidate_tlb(rc, AT(nvos46, flags), NVOS46_FLAGS_DEFER_TLB);
	rc->map = map;
	rc->call->post = post_map_dma;
	rc->call->post_data = rc;
	ckm_mem_ops_begin(ct);		/* page tables */
	ret = ckm_rm_forward(rc);
	ckm_mem_ops_end(ct);
	if (rc->map)
		drop_or_keep(ct, rc->map, space, rc->call->unseen);
out:
	ckm_obj_unpin(ct, space);
	ckm_obj_unpin(ct, device);
	ckm_obj_unpin(ct, memory);
	return ret;
}

/* Remove the mapping from the table so that it is uncharged once; its memory is pinned
 * until then.
 */
static struct ckm_dma_map *take_map_locked(struct ckm_container *ct, const u8 *top)
{
	const struct ckm_map_name name = {
		get64(top, AT(nvos47, dmaOffset)), get32(top, NVOS_H_ROOT),
		get32(top, AT(nvos47, hDevice)), get32(top, AT(nvos47, hDma)),
	};
	struct ckm_dma_map *map;
	struct rb_node *node;

	lockdep_assert_held(&ct->rm_lock);
	node = rb_find_first(&name, &ct->dma_maps, compare_name);
	if (!node)
		return NULL;
	map = rb_entry(node, struct ckm_dma_map, node);
	rb_erase(&map->node, &ct->dma_maps);
	list_del(&map->of);
	ct->maps--;
	cgpu_tree_pin(&map->memory->core);
	return map;
}

/* End of an unmap. @gone: the driver unmapped what it found at the address, so the
 * mapping removed before the call is gone, unless parts of it are elsewhere. Otherwise
 * insert it again.
 */
static void settle_map(struct ckm_container *ct, struct ckm_dma_map *map, bool gone)
{
	struct cgpu_obj *memory = &map->memory->core;

	mutex_lock(&ct->rm_lock);
	if (!gone && memory->state != CGPU_OBJ_DETACHED)
		file_map_locked(ct, map);
	else
		drop_locked(ct, map);
	mutex_unlock(&ct->rm_lock);
	ckm_obj_unpin(ct, memory);
}

/* Unmapping a part uncharges nothing until the memory is freed. From then on no
 * unmapping in that address space does: only the driver has a record of the parts that
 * are left of each mapping.
 */
long ckm_rm_run_unmap_dma(struct ckm_rm_call *rc)
{
	struct ckm_container *ct = rc->call->backing->ct;
	const u8 *top = rc->call->top;
	struct cgpu_obj *held = ckm_obj_pin(ct, get32(top, NVOS_H_ROOT),
					    get32(top, AT(nvos47, hDma)));
	bool whole = rc->row.status_at <= AT(nvos47, size) || !get64(top, AT(nvos47, size));
	struct ckm_dma_map *map = NULL;
	struct ckm_obj *space;
	long ret;

	if (!held)
		return ckm_rm_answer(rc, NV_ERR_OBJECT_NOT_FOUND);
	space = container_of(held, struct ckm_obj, core);
	invalidate_tlb(rc, AT(nvos47, flags), NVOS47_FLAGS_DEFER_TLB);
	mutex_lock(&ct->rm_lock);
	if (whole)
		map = take_map_locked(ct, top);
	else
		WRITE_ONCE(space->parted, true);
	mutex_unlock(&ct->rm_lock);
	ckm_mem_ops_begin(ct);
	ret = ckm_rm_forward(rc);
	ckm_mem_ops_end(ct);
	if (map)	/* parted: never cleared, and set before forwarding */
		settle_map(ct, map, get32(top, rc->row.status_at) == NV_OK &&
			   !READ_ONCE(space->parted));
	ckm_obj_unpin(ct, held);
	return ret;
}
