// SPDX-License-Identifier: MIT OR GPL-2.0-only
/* Charges mappings for the CPU, and keeps their names. Takes rm_lock, gpu->lock. */
#include <linux/file.h>
#include <linux/slab.h>

#include "call.h"
#include "compat.h"
#include "core/nv_struct.h"
#include "fields.h"
#include "intercept/backing_file.h"
#include "intercept/map_name.h"
#include "intercept/rm_call.h"
#include "intercept/rm_map.h"
#include "intercept/rm_shared.h"
#include "intercept/rm_view.h"
#include "pure/mem_estimate.h"
#include "pure/mem_tree.h"
#include "state/container.h"
#include "state/quota.h"
#include "state/rm_maps.h"
#include "state/rm_object.h"

/* Mappings of one memory: the driver walks their list in an unmap, under the locks of the client and of the GPU
 * (refFindCpuMappingWithFilter()), and keeps a record of each in no memory cgroup. One more is counted as a refused
 * call.
 */
#define MAPS_OF_ONE_MAX	4096

/* A mapping in flight. */
struct mapping {
	struct ckm_cpu_map *map;	/* until it is inserted */
	u32 device;			/* by the tenant's call */
};

/* Without a device: the driver only requires that there is one. */
static struct ckm_map_name name_of(const struct ckm_cpu_map *map)
{
	return (struct ckm_map_name){ map->at, map->hclient, 0, map->hmemory };
}

static int compare_name(const void *key, const struct rb_node *node)
{
	const struct ckm_map_name name = name_of(rb_entry(node, struct ckm_cpu_map, node));

	return ckm_map_name_compare(key, &name);
}

/* By name, and of equal names the smallest first. */
static bool is_before(struct rb_node *node, const struct rb_node *other)
{
	const struct ckm_cpu_map *map = rb_entry(node, struct ckm_cpu_map, node);
	const struct ckm_map_name name = name_of(map);
	int order = compare_name(&name, other);

	return order ? order < 0 : map->bytes < rb_entry(other, struct ckm_cpu_map, node)->bytes;
}

static void insert_map_locked(struct ckm_container *ct, struct ckm_cpu_map *map)
{
	lockdep_assert_held(&ct->rm_lock);
	rb_add(&map->node, &ct->cpu_maps, is_before);
	list_add(&map->of, &map->memory->cpu_maps);
	map->memory->cpu_map_count++;
	ct->maps++;
}

/* The driver has made the mapping: from here on another thread can unmap it. */
static void post_map(struct ckm_call *call, u8 *arg)
{
	struct mapping *m = call->post_data;
	struct ckm_container *ct = call->backing->ct;
	struct ckm_cpu_map *map = m->map;

	put32(arg, AT(nvos33, hDevice), m->device);
	if (get32(arg, AT(nvos33, status)) != NV_OK)
		return;
	mutex_lock(&ct->rm_lock);
	/* DETACHED: the client's file is gone, and the driver's mapping with it. */
	if (map->memory->core.state != CGPU_OBJ_DETACHED) {
		map->linear = get64(arg, AT(nvos33, pLinearAddress));
		map->at = map->linear;
		insert_map_locked(ct, map);
		if (call->shown_by)
			ckm_view_begin_locked(call->shown_by, map->memory, map->slot ? map : NULL);
		m->map = NULL;
	}
	mutex_unlock(&ct->rm_lock);
}

/* Whether @memory may have one more mapping; @bytes: its size. */
static bool has_room(struct ckm_call *call, const struct ckm_obj *memory, u64 *bytes)
{
	struct ckm_container *ct = call->backing->ct;
	const struct cgpu_mem *mem;
	bool full, room;

	mutex_lock(&ct->rm_lock);
	full = memory->cpu_map_count >= MAPS_OF_ONE_MAX;
	room = !full && ckm_objs_have_room_locked(ct);
	mem = memory->core.mem;
	*bytes = mem ? mem->bytes : READ_ONCE(memory->core.bytes);
	mutex_unlock(&ct->rm_lock);
	if (full)
		ckm_call_denied(call, "mappings of one memory over the cap, class", memory->core.cls);
	return room;
}

/* @slot: NULL if it takes no part of BAR1. NULL: no kernel memory, max_objects, too many of this memory, or no BAR1
 * space left for the slot.
 */
static struct ckm_cpu_map *new_map(struct ckm_call *call, struct ckm_slot *slot, struct cgpu_obj *obj)
{
	struct ckm_obj *memory = container_of(obj, struct ckm_obj, core);
	struct ckm_cpu_map *map = kzalloc(sizeof(*map), GFP_KERNEL_ACCOUNT);
	const u8 *top = call->top;
	u64 bytes;

	if (!map || !has_room(call, memory, &bytes))
		goto err_free;
	if (slot) {
		map->bytes = cgpu_estimate_bar1_bytes(bytes, get64(top, AT(nvos33, offset)),
						  get64(top, AT(nvos33, length)));
		if (ckm_quota_take(slot, CGPU_QUOTA_BAR1, map->bytes))
			goto err_free;
	}
	map->slot = slot;
	map->memory = memory;
	map->hclient = get32(top, NVOS_H_ROOT);
	map->hmemory = get32(top, AT(nvos33, hMemory));
	return map;

err_free:
	kfree(map);
	return NULL;
}

/* Whether its mappings take a part of BAR1. A doorbell's do from Hopper on, where the allocation asked for that:
 * the driver has it as memory then (usermode_api.c). All from Hopper on count as such.
 */
static bool is_in_bar1(const struct cgpu_obj *obj)
{
	return obj->kind == CGPU_KIND_VIDMEM ||
	       (obj->kind == CGPU_KIND_DOORBELL && obj->cls >= HOPPER_USERMODE_A);
}

/* All else that the driver maps are registers, or a page that it keeps for channels of several processes: the USERD of
 * a channel that names none is the next channel's while the mapping stays (tests/rm/test_other_maps.py).
 */
static bool may_map(const struct cgpu_obj *obj)
{
	return obj->kind == CGPU_KIND_VIDMEM || obj->kind == CGPU_KIND_SYSMEM ||
	       obj->kind == CGPU_KIND_DOORBELL;
}

/* Let the driver map @obj, pinned, by the device above it. By another device or subdevice it ends the mapping when that
 * is freed, and gives the place in BAR1 to the next one, while memory and view are alive. With another GPU's it takes
 * the addresses for those of that GPU, where other containers have their memory (both seen in 535 and 550), so the
 * device that the call names must be of the same GPU. System memory has no GPU, and the driver asks only that there
 * is a device.
 */
static u32 map_by_own_device(struct ckm_rm_call *rc, const struct cgpu_obj *obj)
{
	struct ckm_container *ct = rc->call->backing->ct;
	const struct cgpu_obj *named, *own = obj;
	u32 status = NV_ERR_INVALID_OBJECT_PARENT;
	u8 *top = rc->call->top;

	if (obj->kind == CGPU_KIND_SYSMEM)
		return NV_OK;
	mutex_lock(&ct->rm_lock);
	named = ckm_obj_live_locked(ct, get32(top, NVOS_H_ROOT), get32(top, AT(nvos33, hDevice)));
	while (own && own->kind != CGPU_KIND_DEVICE)
		own = own->parent;
	if (!named) {
		status = NV_ERR_OBJECT_NOT_FOUND;
	} else if ((named->kind == CGPU_KIND_DEVICE || named->kind == CGPU_KIND_SUBDEVICE) &&
		   named->gpu == obj->gpu && own && own->gpu == obj->gpu) {
		put32(top, AT(nvos33, hDevice), own->hobject);
		status = NV_OK;
	}
	mutex_unlock(&ct->rm_lock);
	if (status == NV_ERR_INVALID_OBJECT_PARENT)
		ckm_call_denied(rc->call, "CPU mapping by another GPU's device or another object, of class",
				obj->cls);
	return status;
}

/* Prepare and forward the mapping of @obj, pinned. */
static long map_own(struct ckm_rm_call *rc, struct cgpu_obj *obj)
{
	struct ckm_container *ct = rc->call->backing->ct;
	struct mapping m = { .device = get32(rc->call->top, AT(nvos33, hDevice)) };
	struct ckm_slot *slot = is_in_bar1(obj) ? ckm_container_slot_of(ct, obj->gpu) : NULL;
	u32 status = map_by_own_device(rc, obj);
	long ret;

	if (status != NV_OK)
		return ckm_rm_answer(rc, status);
	m.map = new_map(rc->call, slot, obj);
	if (!m.map)
		return ckm_rm_answer(rc, NV_ERR_NO_MEMORY);
	rc->call->post = post_map;
	rc->call->post_data = &m;
	rc->call->shows = true;
	if (obj->kind == CGPU_KIND_SYSMEM)
		rc->call->map_mem = ckm_obj_get_mem(ct, obj);
	ret = ckm_rm_forward(rc);
	ckm_obj_put_mem(ct, rc->call->map_mem);	/* no file has taken it */
	if (rc->call->shown_by)
		fput(rc->call->shown_by->real);
	if (m.map)	/* not inserted */
		ckm_cpu_map_drop(m.map);
	return ret;
}

/* Only the container's own memory and doorbells may be mapped; they are pinned meanwhile. */
long ckm_rm_map_memory(struct ckm_rm_call *rc)
{
	struct ckm_container *ct = rc->call->backing->ct;
	const u8 *top = rc->call->top;
	struct cgpu_obj *obj = ckm_obj_pin(ct, get32(top, NVOS_H_ROOT),
					   get32(top, AT(nvos33, hMemory)));
	long ret;

	if (!obj)
		return ckm_rm_answer(rc, NV_ERR_OBJECT_NOT_FOUND);
	if (obj->kind == CGPU_KIND_SHARED_DATA) {
		ret = ckm_shared_map(rc);
	} else if (may_map(obj)) {
		ret = map_own(rc, obj);
	} else {
		ckm_call_denied(rc->call, "CPU mapping of class", obj->cls);
		ret = ckm_rm_answer(rc, NV_ERR_NOT_SUPPORTED);
	}
	ckm_obj_unpin(ct, obj);
	return ret;
}

/* Remove the mapping from the table so that it is uncharged once; its memory is pinned until then.
 * Of several mappings that the tenant gave one name it is the smallest. Not of memory that is being freed: the
 * driver unmaps it with the memory, and an unmap that it refuses for that would show the place again.
 */
static struct ckm_cpu_map *take_locked(struct ckm_container *ct, u32 client, u32 memory, u64 at)
{
	const struct ckm_map_name name = { at, client, 0, memory };
	struct ckm_cpu_map *found;
	struct rb_node *node;

	lockdep_assert_held(&ct->rm_lock);
	node = rb_find_first(&name, &ct->cpu_maps, compare_name);
	if (!node)
		return NULL;
	found = rb_entry(node, struct ckm_cpu_map, node);
	if (!cgpu_tree_is_live(&found->memory->core))
		return NULL;
	cgpu_tree_pin(&found->memory->core);
	rb_erase(&found->node, &ct->cpu_maps);
	list_del(&found->of);
	found->memory->cpu_map_count--;
	ct->maps--;
	return found;
}

/* End of an unmap. What the driver did not unmap is inserted again, unless its memory
 * is gone.
 */
static void settle(struct ckm_container *ct, struct ckm_cpu_map *map, bool gone)
{
	struct cgpu_obj *memory = &map->memory->core;

	mutex_lock(&ct->rm_lock);
	if (!gone && memory->state != CGPU_OBJ_DETACHED)
		insert_map_locked(ct, map);
	else
		ckm_cpu_map_drop(map);
	mutex_unlock(&ct->rm_lock);
	ckm_obj_unpin(ct, memory);
}

/* The tenant reads the name that it gave. */
static void post_unmap(struct ckm_call *call, u8 *arg)
{
	const struct ckm_cpu_map *map = call->post_data;

	put64(arg, AT(nvos34, pLinearAddress), map->at);
}

/* The driver gets the address that it returned itself, so it unmaps the mapping of the record and
 * no other one.
 */
static long unmap(struct ckm_rm_call *rc, struct ckm_cpu_map *map)
{
	struct ckm_backing *backing = rc->call->backing;
	bool gone;
	long ret;

	ckm_view_end(backing->ct, map, true);
	put64(rc->call->top, AT(nvos34, pLinearAddress), map->linear);
	rc->call->post = post_unmap;
	rc->call->post_data = map;
	ret = ckm_rm_forward(rc);
	gone = rc->call->ran && get32(rc->call->top, AT(nvos34, status)) == NV_OK;
	/* Another file's client may go with that file at the same time. */
	if (!gone && rc->call->ran && map->memory->core.owner == backing->id)
		ckm_view_end(backing->ct, map, false);
	settle(backing->ct, map, gone);
	return ret;
}

/* No record has this name. Every mapping by MAP_MEMORY has one, so the call fails: after a rename the driver still has
 * the old name. A mapping that RM_ALLOC_MEMORY made has no record: forward.
 */
static long without_map(struct ckm_rm_call *rc, u32 client, u32 handle)
{
	struct ckm_container *ct = rc->call->backing->ct;
	const struct cgpu_obj *obj;
	bool shared, forward;

	mutex_lock(&ct->rm_lock);
	obj = ckm_obj_live_locked(ct, client, handle);
	shared = obj && obj->kind == CGPU_KIND_SHARED_DATA;
	forward = obj && obj->kind == CGPU_KIND_SYSMEM;
	mutex_unlock(&ct->rm_lock);
	if (forward)
		return ckm_rm_forward(rc);
	return ckm_rm_answer(rc, shared ? NV_OK : NV_ERR_OBJECT_NOT_FOUND);
}

long ckm_rm_unmap_memory(struct ckm_rm_call *rc)
{
	struct ckm_container *ct = rc->call->backing->ct;
	const u8 *top = rc->call->top;
	u32 client = get32(top, NVOS_H_ROOT), memory = get32(top, AT(nvos34, hMemory));
	struct ckm_cpu_map *map;

	mutex_lock(&ct->rm_lock);
	map = take_locked(ct, client, memory, get64(top, AT(nvos34, pLinearAddress)));
	mutex_unlock(&ct->rm_lock);
	return map ? unmap(rc, map) : without_map(rc, client, memory);
}

static bool rename_locked(struct ckm_container *ct, u32 client, u32 memory, u64 old, u64 at)
{
	const struct ckm_map_name name = { old, client, 0, memory };
	struct ckm_cpu_map *map;
	struct rb_node *node;

	lockdep_assert_held(&ct->rm_lock);
	node = rb_find_first(&name, &ct->cpu_maps, compare_name);
	if (!node)
		return false;
	map = rb_entry(node, struct ckm_cpu_map, node);
	rb_erase(node, &ct->cpu_maps);
	map->at = at;
	rb_add(node, &ct->cpu_maps, is_before);
	return true;
}

/* Of a charged mapping the name is kept here: renamed in the driver too, two could get one name
 * there, and an unmap could take one for the other. The driver uses it as a name only.
 */
long ckm_rm_rename_map(struct ckm_rm_call *rc)
{
	struct ckm_container *ct = rc->call->backing->ct;
	const u8 *top = rc->call->top;
	u32 client = get32(top, NVOS_H_ROOT), memory = get32(top, AT(nvos56, hMemory));
	bool found;

	mutex_lock(&ct->rm_lock);
	found = rename_locked(ct, client, memory, get64(top, AT(nvos56, pOldCpuAddress)),
			      get64(top, AT(nvos56, pNewCpuAddress)));
	mutex_unlock(&ct->rm_lock);
	return found ? ckm_rm_answer(rc, NV_OK) : without_map(rc, client, memory);
}
