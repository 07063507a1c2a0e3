// SPDX-License-Identifier: MIT OR GPL-2.0-only
/* Owns the objects of containers and their mappings. Takes rm_lock, gpu->lock. */
#include <linux/moduleparam.h>
#include <linux/rhashtable.h>
#include <linux/sched.h>
#include <linux/slab.h>

#include "core/nv_abi.h"
#include "pure/mem_tree.h"
#include "state/container.h"
#include "state/gone.h"
#include "state/gpu.h"
#include "state/listed.h"
#include "state/memory.h"
#include "state/quota.h"
#include "state/rm_maps.h"
#include "state/rm_object.h"
#include "state/rm_tables.h"
#include "state/slot.h"

/* Bounds the kernel memory of a container, and how long its end takes. */
static unsigned int max_objects = 1 << 18;
module_param(max_objects, uint, 0644);
MODULE_PARM_DESC(max_objects, "RM objects and mappings that a container may have at once (default 262144)");

/* Objects and mappings removed under rm_lock at a time: a reader of meminfo waits for so many. */
#define REMOVE_STEP	16

static struct kmem_cache *obj_cache;

/* ---- names ---- */

static_assert(offsetof(struct cgpu_obj, hobject) == offsetof(struct cgpu_obj, hclient) + sizeof(u32));

/* The part of an object that is its key. */
struct name {
	u32 hclient, hobject;
};

static int compare_name(struct rhashtable_compare_arg *arg, const void *obj)
{
	const struct name *name = arg->key;
	const struct cgpu_obj *core = &((const struct ckm_obj *)obj)->core;

	return name->hclient != core->hclient || name->hobject != core->hobject;
}

/* Keyed with a random number, so a tenant cannot choose handles that make a chain long; the
 * table grows and shrinks in a work item, bucket by bucket.
 */
static const struct rhashtable_params names = {
	.key_len		= sizeof(struct name),
	.key_offset		= offsetof(struct ckm_obj, core.hclient),
	.head_offset		= offsetof(struct ckm_obj, node),
	.obj_cmpfn		= compare_name,
	.automatic_shrinking	= true,
};

int ckm_objs_init_names(struct ckm_container *ct)
{
	return rhashtable_init(&ct->objs, &names);
}

void ckm_objs_exit_names(struct ckm_container *ct)
{
	rhashtable_destroy(&ct->objs);
}

/* Caller is in an RCU read section. */
static struct cgpu_obj *find_name(struct ckm_container *ct, u32 client, u32 object)
{
	const struct name name = { client, object };
	struct ckm_obj *obj = rhashtable_lookup(&ct->objs, &name, names);

	return obj ? &obj->core : NULL;
}

struct cgpu_obj *ckm_obj_find_locked(struct ckm_container *ct, u32 client, u32 object)
{
	struct cgpu_obj *obj;

	lockdep_assert_held(&ct->rm_lock);
	rcu_read_lock();
	obj = find_name(ct, client, object);
	rcu_read_unlock();
	return obj;
}

struct cgpu_obj *ckm_obj_live_locked(struct ckm_container *ct, u32 client, u32 object)
{
	struct cgpu_obj *obj = ckm_obj_find_locked(ct, client, object);

	return obj && cgpu_tree_is_live(obj) ? obj : NULL;
}

int ckm_obj_add_locked(struct ckm_container *ct, struct cgpu_obj *core, struct cgpu_obj *parent)
{
	struct ckm_obj *obj = container_of(core, struct ckm_obj, core);
	int ret;

	lockdep_assert_held(&ct->rm_lock);
	/* A parent that is being removed with its file takes no children. */
	if (parent && !cgpu_tree_is_live(parent))
		return -EINVAL;
	ret = cgpu_tree_add(&ct->tree, core, parent);
	if (ret)
		return ret;
	/* Found by others from here on, so after the tree. */
	ret = rhashtable_lookup_insert_fast(&ct->objs, &obj->node, names);
	if (!ret) {
		cgpu_tree_pin(core);
		ckm_listed_take_locked(ct, ckm_listed_kind(core));
		return 0;
	}
	cgpu_tree_detach(&ct->tree, core);
	core->state = CGPU_OBJ_PENDING;
	return ret == -EEXIST ? ret : -ENOMEM;
}

/* ---- end ---- */

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

bool ckm_obj_alloc_deps(struct ckm_obj *obj)
{
	obj->core.deps = kcalloc(CGPU_DEPS, sizeof(*obj->core.deps), GFP_KERNEL_ACCOUNT);
	return obj->core.deps;
}

bool ckm_obj_new_space(struct ckm_obj *obj)
{
	obj->space = ckm_space_alloc();
	return obj->space;
}

void ckm_obj_set_space(struct ckm_obj *obj, const struct cgpu_obj *from)
{
	struct ckm_space *space = container_of(from, struct ckm_obj, core)->space;

	if (space)
		ckm_space_get(space);
	ckm_space_put(obj->space);
	obj->space = space;
}

static void free_obj(struct rcu_head *rcu)
{
	struct ckm_obj *obj = container_of(rcu, struct ckm_obj, rcu);

	kfree(obj->core.deps);
	kmem_cache_free(obj_cache, obj);
}

void ckm_obj_free(struct ckm_obj *obj)
{
	if (obj->group)
		kref_put(&obj->group->ref, free_group);
	ckm_space_put(obj->space);
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
	spin_lock(&slot->gpu->lock);
	if (!list_empty(&obj->sched)) {
		list_del_init(&obj->sched);
		if (obj->core.kind == CGPU_KIND_TSG) {
			unschedule_handle_locked(slot, obj->group);
		} else {
			slot->channel_count--;
			ckm_gone_note_locked(slot, obj->pid);
			ckm_slot_channels_changed_locked(slot);
		}
	}
	if (obj->word)
		obj->word->obj = NULL;
	obj->word = NULL;
	spin_unlock(&slot->gpu->lock);
}

/* The driver unmaps memory that it frees, and no file shows it any more. Takes from @budget; true: none is left. */
static bool forget_maps_locked(struct ckm_container *ct, struct ckm_obj *memory, u32 *budget)
{
	struct ckm_dma_map *dma;
	struct ckm_cpu_map *cpu;

	lockdep_assert_held(&ct->rm_lock);
	for (; *budget; --*budget) {
		dma = list_first_entry_or_null(&memory->dma_maps, struct ckm_dma_map, of);
		cpu = list_first_entry_or_null(&memory->cpu_maps, struct ckm_cpu_map, of);
		if (!dma && !cpu && hlist_empty(&memory->views))
			return true;
		if (!dma && !cpu) {
			ckm_view_drop_locked(hlist_entry(memory->views.first, struct ckm_view, of));
			continue;
		}
		ct->maps--;
		if (dma) {
			rb_erase(&dma->node, &ct->dma_maps);
			list_del(&dma->of);
			ckm_slot_overhead_less_locked(dma->slot, dma->pt_bytes);
			kfree(dma);
		} else {
			rb_erase(&cpu->node, &ct->cpu_maps);
			memory->cpu_map_count--;
			list_del(&cpu->of);
			ckm_cpu_map_drop(cpu);
		}
	}
	return list_empty(&memory->dma_maps) && list_empty(&memory->cpu_maps) && hlist_empty(&memory->views);
}

static void leave_space_locked(struct ckm_container *ct, struct ckm_obj *obj)
{
	u64 bytes = obj->in_space ? ckm_space_gone_locked(obj->space, &obj->core, obj->pt_bytes) : 0;

	if (bytes)
		ckm_slot_overhead_less_locked(ckm_container_slot_of(ct, obj->core.gpu), bytes);
}

/* Take a leaf without mappings out, and uncharge it. */
static void release_leaf_locked(struct ckm_container *ct, struct ckm_obj *obj)
{
	struct cgpu_obj *leaf = &obj->core;

	lockdep_assert_held(&ct->rm_lock);
	rhashtable_remove_fast(&ct->objs, &obj->node, names);
	cgpu_tree_detach(&ct->tree, leaf);
	ckm_listed_give_locked(ct, ckm_listed_kind(leaf));
	unschedule(ct, obj);
	list_del_init(&obj->bound);
	if (leaf->mem)
		ckm_mem_put_locked(ct, leaf->mem);
	if (leaf->userd)
		ckm_mem_put_locked(ct, leaf->userd);
	leaf->mem = NULL;
	leaf->userd = NULL;
	leave_space_locked(ct, obj);
	ckm_obj_overhead_less_locked(ct, leaf, leaf->overhead);
	if (!leaf->pin_count)	/* else freed by the last unpin */
		ckm_obj_free(obj);
}

void ckm_obj_remove_locked(struct ckm_container *ct, struct cgpu_obj *obj)
{
	if (obj->state != CGPU_OBJ_DETACHED)
		release_leaf_locked(ct, container_of(obj, struct ckm_obj, core));
}

/* One step. True: @root is out. Caller has @root pinned, or in the tree and kept there by rm_lock. */
static bool remove_some_locked(struct ckm_container *ct, struct cgpu_obj *root)
{
	u32 budget = REMOVE_STEP;
	struct cgpu_obj *leaf;
	struct ckm_obj *obj;

	lockdep_assert_held(&ct->rm_lock);
	/* Removed with its client's file meanwhile, and kept by the caller's pin. */
	if (root->state == CGPU_OBJ_DETACHED)
		return true;
	/* Hides all of it between the steps: nothing can be found in it, or added to it. */
	root->state = CGPU_OBJ_FREEING;
	while (budget) {
		leaf = cgpu_tree_leaf(root);
		obj = container_of(leaf, struct ckm_obj, core);
		if (!forget_maps_locked(ct, obj, &budget))
			return false;
		release_leaf_locked(ct, obj);
		if (leaf == root)
			return true;
		budget -= budget > 0;
	}
	return false;
}

void ckm_objs_remove(struct ckm_container *ct, struct cgpu_obj *root)
{
	bool done;

	do {
		mutex_lock(&ct->rm_lock);
		done = remove_some_locked(ct, root);
		mutex_unlock(&ct->rm_lock);
		cond_resched();
	} while (!done);
}

void ckm_clients_remove(struct ckm_container *ct, struct list_head *clients)
{
	struct ckm_obj *client;

	do {
		mutex_lock(&ct->rm_lock);
		client = list_first_entry_or_null(clients, struct ckm_obj, bound);
		if (client)
			remove_some_locked(ct, &client->core);
		mutex_unlock(&ct->rm_lock);
		cond_resched();
	} while (client);
}

bool ckm_objs_have_room_locked(struct ckm_container *ct)
{
	lockdep_assert_held(&ct->rm_lock);
	return ct->tree.objects + ct->maps < READ_ONCE(max_objects) && ckm_host_has_room_locked(ct);
}

/* ---- objects in use ---- */

struct cgpu_obj *ckm_obj_pin(struct ckm_container *ct, u32 client, u32 object)
{
	struct cgpu_obj *obj;

	mutex_lock(&ct->rm_lock);
	obj = ckm_obj_live_locked(ct, client, object);
	if (obj)
		cgpu_tree_pin(obj);
	mutex_unlock(&ct->rm_lock);
	return obj;
}

bool ckm_obj_is_owned(struct ckm_container *ct, u64 owner, u32 client, u32 object)
{
	struct cgpu_obj *obj;
	bool owns;

	rcu_read_lock();
	obj = find_name(ct, client, object);
	owns = obj && obj->owner == owner && cgpu_tree_is_live(obj);
	rcu_read_unlock();
	return owns;
}

void ckm_obj_unpin(struct ckm_container *ct, struct cgpu_obj *obj)
{
	if (!obj)
		return;
	mutex_lock(&ct->rm_lock);
	if (cgpu_tree_unpin(obj))	/* it was removed while it was pinned */
		ckm_obj_free(container_of(obj, struct ckm_obj, core));
	mutex_unlock(&ct->rm_lock);
}

struct cgpu_mem *ckm_obj_get_mem(struct ckm_container *ct, struct cgpu_obj *obj)
{
	struct cgpu_mem *mem;

	mutex_lock(&ct->rm_lock);
	mem = ckm_mem_get_locked(ct, obj->mem);
	mutex_unlock(&ct->rm_lock);
	return mem;
}

u32 ckm_obj_pin_memory(struct ckm_container *ct, u32 client, u32 object,
		       struct cgpu_obj **obj, struct cgpu_mem **mem)
{
	*obj = ckm_obj_pin(ct, client, object);
	if (!*obj)
		return NV_ERR_OBJECT_NOT_FOUND;
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
	mem = ckm_mem_get_locked(ct, mem);
	mutex_unlock(&ct->rm_lock);
	return mem;
}

void ckm_obj_put_mem(struct ckm_container *ct, struct cgpu_mem *mem)
{
	mutex_lock(&ct->rm_lock);
	ckm_mem_put_locked(ct, mem);
	mutex_unlock(&ct->rm_lock);
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
