// SPDX-License-Identifier: MIT OR GPL-2.0-only
/* Charges mappings for the CPU, and keeps their names. Takes rm_lock, gpu->lock. */
#include <linux/file.h>
#include <linux/slab.h>

#include "call.h"
#include "compat.h"
#include "core/nv_abi.h"
#include "core_ref.h"
#include "fields.h"
#include "intercept/backing_file.h"
#include "intercept/map_name.h"
#include "intercept/rm_call.h"
#include "intercept/rm_map.h"
#include "intercept/rm_shared.h"
#include "intercept/rm_view.h"
#include "state/container.h"
#include "state/quota.h"
#include "state/rm_object.h"

/* A mapping in flight. */
struct mapping {
	struct ckm_rm_call *rc;
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
	ct->maps++;
}

/* The driver has made the mapping: from here on another thread can unmap it. */
static void post_map(struct ckm_call *call, u8 *arg)
{
	struct mapping *m = call->post_data;
	struct ckm_container *ct = call->backing->ct;
	struct ckm_cpu_map *map = m->map;

	put32(arg, NVOS33_H_DEVICE, m->device);
	if (get32(arg, NVOS33_STATUS) != NV_OK)
		return;
	map->linear = get64(arg, NVOS33_LINEAR);
	map->at = map->linear;
	mutex_lock(&ct->rm_lock);
	/* DETACHED: the client's file is gone, and the driver's mapping with it. */
	if (map->memory->core.state != CGPU_OBJ_DETACHED) {
		insert_map_locked(ct, map);
		ckm_view_begin_locked(call->shown_by, map);
		m->map = NULL;
	}
	mutex_unlock(&ct->rm_lock);
}

static bool has_room(struct ckm_container *ct)
{
	bool room;

	mutex_lock(&ct->rm_lock);
	room = ckm_objs_have_room_locked(ct);
	mutex_unlock(&ct->rm_lock);
	return room;
}

/* NULL: no kernel memory, max_objects, or no BAR1 space left for the slot. */
static struct ckm_cpu_map *new_map(struct ckm_slot *slot, struct cgpu_obj *memory, const u8 *top)
{
	struct ckm_cpu_map *map = kzalloc(sizeof(*map), GFP_KERNEL_ACCOUNT);
	u64 bytes = memory->mem ? memory->mem->bytes : READ_ONCE(memory->bytes);
	const struct cgpu_core_ops *core;

	if (!map || !has_room(slot->ct))
		goto err_free;
	core = ckm_core_enter();
	map->bytes = core->mem.bar1_bytes(bytes, get64(top, NVOS33_OFFSET),
					  get64(top, NVOS33_LENGTH));
	ckm_core_leave();
	if (ckm_quota_take(slot, CGPU_QUOTA_BAR1, map->bytes))
		goto err_free;
	map->slot = slot;
	map->memory = container_of(memory, struct ckm_obj, core);
	map->hclient = get32(top, NVOS_H_ROOT);
	map->hmemory = get32(top, NVOS33_H_MEMORY);
	return map;

err_free:
	kfree(map);
	return NULL;
}

/* Pin the device of a mapping. The driver takes the addresses of @memory for those of that device's GPU: with
 * another GPU's it would map what other containers have there (seen of 535 and 550). System memory has no GPU,
 * and the driver asks only that there is a device.
 */
static u32 hold_device(struct ckm_rm_call *rc, const struct cgpu_obj *memory,
		       struct cgpu_obj **device)
{
	const u8 *top = rc->call->top;

	if (memory->kind == CGPU_KIND_SYSMEM || memory->gpu == CGPU_NO_GPU)
		return NV_OK;
	*device = ckm_obj_pin(rc->call->backing->ct, get32(top, NVOS_H_ROOT),
			      get32(top, NVOS33_H_DEVICE));
	if (!*device)
		return NV_ERR_NOT_FOUND;
	if ((*device)->gpu == memory->gpu)
		return NV_OK;
	ckm_call_denied(rc->call, "CPU mapping by another GPU's device, of class", memory->cls);
	return NV_ERR_PARENT;
}

/* Let the driver map by the device above the memory. By another device or subdevice it ends the mapping when that is
 * freed, and gives the place in BAR1 to the next one, while memory and view are alive.
 */
static u32 map_by_own_device(struct ckm_rm_call *rc, const struct cgpu_obj *memory, const struct cgpu_obj *by)
{
	struct ckm_container *ct = rc->call->backing->ct;
	const struct cgpu_obj *own = memory->parent;
	u32 status = NV_ERR_PARENT;

	if (by->kind != CGPU_KIND_DEVICE && by->kind != CGPU_KIND_SUBDEVICE)
		return NV_ERR_PARENT;
	mutex_lock(&ct->rm_lock);
	while (own && own->kind != CGPU_KIND_DEVICE)
		own = own->parent;
	if (own && own->gpu == memory->gpu) {
		put32(rc->call->top, NVOS33_H_DEVICE, own->hobject);
		status = NV_OK;
	}
	mutex_unlock(&ct->rm_lock);
	return status;
}

/* Only the container's own memory may be mapped; it is pinned meanwhile. */
long ckm_rm_map_memory(struct ckm_rm_call *rc)
{
	struct ckm_container *ct = rc->call->backing->ct;
	const u8 *top = rc->call->top;
	struct cgpu_obj *obj = ckm_obj_pin(ct, get32(top, NVOS_H_ROOT),
					   get32(top, NVOS33_H_MEMORY));
	struct cgpu_obj *device = NULL;
	struct mapping m = { .rc = rc, .device = get32(top, NVOS33_H_DEVICE) };
	struct ckm_slot *slot;
	u32 status;
	long ret;

	if (!obj)
		return ckm_rm_answer(rc, NV_ERR_NOT_FOUND);
	if (obj->kind == CGPU_KIND_SHARED_DATA) {
		ret = ckm_shared_map(rc);
		goto out;
	}
	status = hold_device(rc, obj, &device);
	if (status != NV_OK) {
		ret = ckm_rm_answer(rc, status);
		goto out;
	}
	slot = obj->kind == CGPU_KIND_VIDMEM ? ckm_container_slot_of(ct, obj->gpu) : NULL;
	if (slot) {
		m.map = new_map(slot, obj, top);
		if (!m.map) {
			ret = ckm_rm_answer(rc, NV_ERR_NO_MEMORY);
			goto out;
		}
		status = map_by_own_device(rc, obj, device);
		if (status != NV_OK) {
			ckm_cpu_map_drop(m.map);
			ret = ckm_rm_answer(rc, status);
			goto out;
		}
		rc->call->post = post_map;
		rc->call->post_data = &m;
		rc->call->shows = true;
	}
	if (obj->kind == CGPU_KIND_SYSMEM)
		rc->call->map_mem = ckm_obj_get_mem(ct, obj);
	ret = ckm_rm_forward(rc);
	ckm_obj_put_mem(ct, rc->call->map_mem);	/* no file has taken it */
	if (rc->call->shown_by)
		fput(rc->call->shown_by->real);
	if (m.map)	/* not inserted */
		ckm_cpu_map_drop(m.map);
out:
	ckm_obj_unpin(ct, device);
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
	const struct cgpu_core_ops *core;
	struct ckm_cpu_map *found;
	struct rb_node *node;
	bool live;

	lockdep_assert_held(&ct->rm_lock);
	node = rb_find_first(&name, &ct->cpu_maps, compare_name);
	if (!node)
		return NULL;
	found = rb_entry(node, struct ckm_cpu_map, node);
	core = ckm_core_enter();
	live = core->mem.tree_is_live(&found->memory->core);
	if (live)
		core->mem.tree_pin(&found->memory->core);
	ckm_core_leave();
	if (!live)
		return NULL;
	rb_erase(&found->node, &ct->cpu_maps);
	list_del(&found->of);
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

	put64(arg, NVOS34_LINEAR, map->at);
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
	put64(rc->call->top, NVOS34_LINEAR, map->linear);
	rc->call->post = post_unmap;
	rc->call->post_data = map;
	ret = ckm_rm_forward(rc);
	gone = rc->call->ran && get32(rc->call->top, NVOS34_STATUS) == NV_OK;
	/* Another file's client may go with that file at the same time. */
	if (!gone && rc->call->ran && map->memory->core.owner == backing->id)
		ckm_view_end(backing->ct, map, false);
	settle(backing->ct, map, gone);
	return ret;
}

/* Of the container's own objects; CGPU_KIND_REFUSED: it has no such one. */
static u32 kind_of(struct ckm_container *ct, u32 client, u32 object)
{
	u32 kind = CGPU_KIND_REFUSED;
	struct cgpu_obj *obj;

	mutex_lock(&ct->rm_lock);
	obj = ckm_obj_live_locked(ct, client, object);
	if (obj)
		kind = obj->kind;
	mutex_unlock(&ct->rm_lock);
	return kind;
}

/* What names no mapping in the table. Those of video memory are all there, and the driver may know
 * one by that address which the tenant has renamed; the names of all others are the driver's.
 */
static long without_map(struct ckm_rm_call *rc, u32 client, u32 memory)
{
	switch (kind_of(rc->call->backing->ct, client, memory)) {
	case CGPU_KIND_SHARED_DATA:
		return ckm_rm_answer(rc, NV_OK);
	case CGPU_KIND_REFUSED:
	case CGPU_KIND_VIDMEM:
		return ckm_rm_answer(rc, NV_ERR_NOT_FOUND);
	default:
		return ckm_rm_forward(rc);
	}
}

long ckm_rm_unmap_memory(struct ckm_rm_call *rc)
{
	struct ckm_container *ct = rc->call->backing->ct;
	const u8 *top = rc->call->top;
	u32 client = get32(top, NVOS_H_ROOT), memory = get32(top, NVOS34_H_MEMORY);
	struct ckm_cpu_map *map;

	mutex_lock(&ct->rm_lock);
	map = take_locked(ct, client, memory, get64(top, NVOS34_LINEAR));
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
	u32 client = get32(top, NVOS_H_ROOT), memory = get32(top, NVOS56_H_MEMORY);
	bool found;

	mutex_lock(&ct->rm_lock);
	found = rename_locked(ct, client, memory, get64(top, NVOS56_OLD), get64(top, NVOS56_NEW));
	mutex_unlock(&ct->rm_lock);
	return found ? ckm_rm_answer(rc, NV_OK) : without_map(rc, client, memory);
}
