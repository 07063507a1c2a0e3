// SPDX-License-Identifier: MIT OR GPL-2.0
/* Owns the objects of containers and their mappings. Takes rm_lock, gpu->lock. */
#include <linux/moduleparam.h>
#include <linux/rcupdate.h>
#include <linux/sched.h>
#include <linux/slab.h>

#include "core/nv_abi.h"
#include "core_ref.h"
#include "driver/driver.h"
#include "state/container.h"
#include "state/gpu.h"
#include "state/memory.h"
#include "state/quota.h"
#include "state/rm_object.h"
#include "state/slot.h"

/* The tree has a fixed number of hash buckets, so more objects would slow down every call. */
static unsigned int max_objects = 1 << 18;
module_param(max_objects, uint, 0644);
MODULE_PARM_DESC(max_objects, "RM objects that a container may have at once (default 262144)");

#define UNKNOWN_BYTES	(4ull << 30)	/* assumed size if unknown: 8 MiB of page tables */

static struct kmem_cache *obj_cache;

struct ckm_obj *ckm_obj_alloc(u32 hclient, u32 hobject, u32 cls, u32 kind)
{
	struct ckm_obj *obj = kmem_cache_zalloc(obj_cache, GFP_KERNEL_ACCOUNT);

	if (!obj)
		return NULL;
	obj->core.hclient = hclient;
	obj->core.hobject = hobject;
	obj->core.cls = cls;
	obj->core.kind = kind;
	obj->core.gpu = CGPU_NO_GPU;
	obj->core.state = CGPU_OBJ_PENDING;
	INIT_LIST_HEAD(&obj->sched);
	INIT_LIST_HEAD(&obj->bound);
	INIT_LIST_HEAD(&obj->dma_maps);
	INIT_LIST_HEAD(&obj->cpu_maps);
	return obj;
}

struct ckm_group *ckm_group_alloc(void)
{
	struct ckm_group *group = kzalloc(sizeof(*group), GFP_KERNEL_ACCOUNT);

	if (!group)
		return NULL;
	kref_init(&group->ref);
	INIT_LIST_HEAD(&group->sched);
	INIT_LIST_HEAD(&group->handles);
	return group;
}

void ckm_group_get(struct ckm_group *group)
{
	kref_get(&group->ref);
}

static void free_group(struct kref *ref)
{
	kfree(container_of(ref, struct ckm_group, ref));
}

static void free_obj(struct rcu_head *rcu)
{
	kmem_cache_free(obj_cache, container_of(rcu, struct ckm_obj, rcu));
}

void ckm_obj_free(struct ckm_obj *obj)
{
	if (obj->group)
		kref_put(&obj->group->ref, free_group);
	call_rcu(&obj->rcu, free_obj);
}

/* A TSG is scheduled as long as it has a handle. */
static void unschedule_handle_locked(struct ckm_slot *slot, struct ckm_group *group)
{
	lockdep_assert_held(&slot->gpu->lock);
	if (!list_empty(&group->handles))
		return;
	list_del_init(&group->sched);
	slot->tsg_count--;
	ckm_slot_channels_changed_locked(slot);
}

static void unschedule(struct ckm_container *ct, struct ckm_obj *obj)
{
	struct ckm_slot *slot = ckm_container_slot_of(ct, obj->core.gpu);

	if (!slot)
		return;
	mutex_lock(&slot->gpu->lock);
	if (!list_empty(&obj->sched)) {
		list_del_init(&obj->sched);
		if (obj->core.kind == CGPU_KIND_TSG) {
			unschedule_handle_locked(slot, obj->group);
		} else {
			slot->channel_count--;
			ckm_slot_channels_changed_locked(slot);
		}
	}
	if (obj->word)
		obj->word->obj = NULL;
	obj->word = NULL;
	mutex_unlock(&slot->gpu->lock);
}

/* The driver unmaps memory that it frees. The charge is part of the object's overhead,
 * which the caller uncharges.
 */
static void forget_dma_maps(struct ckm_obj *obj)
{
	struct ckm_dma_map *map, *next;

	list_for_each_entry_safe(map, next, &obj->dma_maps, of) {
		hash_del(&map->node);
		list_del(&map->of);
		kfree(map);
	}
}

void ckm_cpu_map_drop(struct ckm_cpu_map *map)
{
	ckm_quota_give(map->slot, CGPU_QUOTA_BAR1, map->bytes);
	kfree(map);
}

static void forget_cpu_maps_locked(struct ckm_container *ct, struct ckm_obj *memory)
{
	struct ckm_cpu_map *map, *next;

	lockdep_assert_held(&ct->rm_lock);
	list_for_each_entry_safe(map, next, &memory->cpu_maps, of) {
		hash_del(&map->node);
		list_del(&map->of);
		ckm_cpu_map_drop(map);
	}
}

void ckm_objs_release_locked(struct ckm_container *ct, struct cgpu_obj *list)
{
	struct cgpu_obj *core, *next;
	struct ckm_obj *obj;

	lockdep_assert_held(&ct->rm_lock);
	for (core = list; core; core = next) {
		next = core->hash_next;
		core->hash_next = NULL;
		obj = container_of(core, struct ckm_obj, core);
		unschedule(ct, obj);
		list_del_init(&obj->bound);
		if (core->mem)
			ckm_mem_put_locked(ct, core->mem);
		if (core->userd)
			ckm_mem_put_locked(ct, core->userd);
		core->mem = NULL;
		core->userd = NULL;
		forget_dma_maps(obj);
		forget_cpu_maps_locked(ct, obj);
		ckm_obj_overhead_less_locked(ct, core, core->overhead);
		if (!core->pin_count)	/* else freed by the last unpin */
			ckm_obj_free(obj);
	}
}

void ckm_objs_remove_locked(struct ckm_container *ct, struct cgpu_obj *root)
{
	const struct cgpu_core_ops *core;
	struct cgpu_obj *obj, *list;
	bool last;

	lockdep_assert_held(&ct->rm_lock);
	do {
		for (obj = root; obj->child; obj = obj->child)
			;
		last = obj == root;
		core = ckm_core_enter();
		list = core->mem.tree_remove(&ct->tree, obj);
		ckm_core_leave();
		ckm_objs_release_locked(ct, list);
		cond_resched();
	} while (!last);
}

bool ckm_objs_have_room_locked(const struct ckm_container *ct)
{
	lockdep_assert_held(&ct->rm_lock);
	return ct->tree.objects < READ_ONCE(max_objects);
}

/* ---- objects in use ---- */

struct cgpu_obj *ckm_obj_pin(struct ckm_container *ct, u32 client, u32 object)
{
	const struct cgpu_core_ops *core;
	struct cgpu_obj *obj;

	mutex_lock(&ct->rm_lock);
	core = ckm_core_enter();
	obj = core->mem.tree_live(&ct->tree, client, object);
	if (obj)
		obj->pin_count++;
	ckm_core_leave();
	mutex_unlock(&ct->rm_lock);
	return obj;
}

bool ckm_obj_is_owned(struct ckm_container *ct, u64 owner, u32 client, u32 object)
{
	const struct cgpu_core_ops *core;
	struct cgpu_obj *obj;
	bool owns;

	core = ckm_core_enter();
	rcu_read_lock();
	obj = core->mem.tree_live(&ct->tree, client, object);
	owns = obj && obj->owner == owner;
	rcu_read_unlock();
	ckm_core_leave();
	return owns;
}

void ckm_obj_unpin(struct ckm_container *ct, struct cgpu_obj *obj)
{
	if (!obj)
		return;
	mutex_lock(&ct->rm_lock);
	/* Released while it was pinned, with its client's file: this was the last pin. */
	if (!--obj->pin_count && obj->state == CGPU_OBJ_DETACHED)
		ckm_obj_free(container_of(obj, struct ckm_obj, core));
	mutex_unlock(&ct->rm_lock);
}

static struct cgpu_mem *get_ref_locked(struct ckm_container *ct, struct cgpu_mem *mem)
{
	const struct cgpu_core_ops *core;

	lockdep_assert_held(&ct->rm_lock);
	if (!mem)
		return NULL;
	core = ckm_core_enter();
	core->mem.get(mem);
	ckm_core_leave();
	return mem;
}

struct cgpu_mem *ckm_obj_get_mem(struct ckm_container *ct, struct cgpu_obj *obj)
{
	struct cgpu_mem *mem;

	mutex_lock(&ct->rm_lock);
	mem = get_ref_locked(ct, obj->mem);
	mutex_unlock(&ct->rm_lock);
	return mem;
}

u32 ckm_obj_pin_memory(struct ckm_container *ct, u32 client, u32 object,
		       struct cgpu_obj **obj, struct cgpu_mem **mem)
{
	*obj = ckm_obj_pin(ct, client, object);
	if (!*obj)
		return NV_ERR_NOT_FOUND;
	if ((*obj)->kind != CGPU_KIND_VIDMEM && (*obj)->kind != CGPU_KIND_SYSMEM)
		return NV_ERR_NOT_SUPPORTED;
	*mem = ckm_obj_get_mem(ct, *obj);
	return NV_OK;
}

struct cgpu_mem *ckm_obj_get_context(struct ckm_container *ct, struct cgpu_obj *channel)
{
	struct cgpu_mem *mem;

	mutex_lock(&ct->rm_lock);
	mem = channel->mem;
	if (!mem && channel->parent && channel->parent->kind == CGPU_KIND_TSG)
		mem = channel->parent->mem;
	mem = get_ref_locked(ct, mem);
	mutex_unlock(&ct->rm_lock);
	return mem;
}

void ckm_obj_put_mem(struct ckm_container *ct, struct cgpu_mem *mem)
{
	mutex_lock(&ct->rm_lock);
	ckm_mem_put_locked(ct, mem);
	mutex_unlock(&ct->rm_lock);
}

/* ---- sizes ---- */

/* ctrl0041.h: NV0041_CTRL_GET_SURFACE_INFO; @list is a kernel address. */
u64 ckm_real_bytes(u32 client, u32 memory)
{
	struct { u32 index, data; } info = { .index = NV0041_SURFACE_PHYS_SIZE };
	struct { u32 count; u32 pad; u64 list; } params = {
		.count = 1, .list = (uintptr_t)&info,
	};

	if (ckm_drv_control(client, memory, NV0041_CTRL_GET_SURFACE_INFO, &params, sizeof(params)))
		return 0;
	return (u64)info.data * NV0041_SURFACE_SIZE_UNIT;
}

u64 ckm_page_tables_of(struct cgpu_obj *memory)
{
	u64 bytes = memory->mem ? memory->mem->bytes : READ_ONCE(memory->bytes);
	const struct cgpu_core_ops *core;

	if (!bytes) {
		bytes = ckm_real_bytes(memory->hclient, memory->hobject) ?: UNKNOWN_BYTES;
		/* Read once only, so that map and unmap use the same number. */
		WRITE_ONCE(memory->bytes, bytes);
	}
	core = ckm_core_enter();
	bytes = core->mem.page_tables(bytes);
	ckm_core_leave();
	return bytes;
}

int ckm_objs_init(void)
{
	obj_cache = KMEM_CACHE(ckm_obj, SLAB_ACCOUNT);
	return obj_cache ? 0 : -ENOMEM;
}

void ckm_objs_exit(void)
{
	rcu_barrier();	/* waits for free_obj() */
	kmem_cache_destroy(obj_cache);
}
