// SPDX-License-Identifier: MIT OR GPL-2.0
#include <linux/cdev.h>
#include <linux/idr.h>
#include <linux/module.h>
#include <linux/moduleparam.h>
#include <linux/random.h>
#include <linux/slab.h>

#include "backfs.h"
#include "compat.h"
#include "container.h"
#include "core_link.h"
#include "gpu.h"
#include "interpose.h"
#include "managed.h"
#include "netlink.h"
#include "proc.h"
#include "rm_export.h"
#include "settings.h"

DEFINE_MUTEX(ckm_lock);
LIST_HEAD(ckm_containers);
static u64 last_serial;			/* ckm_lock */

/* Minors go round and are not handed out again while a file may remember them. */
#define MINORS (1u << MINORBITS)
static DEFINE_IDR(minors);	/* -> struct minor_entry; minors_lock */
static DEFINE_MUTEX(minors_lock);

struct minor_entry {
	struct ckm_container *ct;
	struct ckm_slot *slot;
	u32 node;
};

/* The tree has a fixed number of buckets: more objects would make each call slow. */
static unsigned int max_objects = 1 << 18;
module_param(max_objects, uint, 0644);
MODULE_PARM_DESC(max_objects, "RM objects that a container may have at once (default 262144)");

static dev_t first_dev;
static struct cdev cdev;
static struct class *class;
static struct workqueue_struct *workqueue;
/* Of its own: what a tenant can keep waiting (managed.c) must not keep others from ending. */
static struct workqueue_struct *end_queue;
static struct kmem_cache *obj_cache;

u32 ckm_major(void)
{
	return MAJOR(first_dev);
}

/* ---- minors and device nodes ---- */

static int add_minor(struct ckm_container *ct, struct ckm_slot *slot, u32 node, u32 *minor)
{
	struct minor_entry *entry = kmalloc(sizeof(*entry), GFP_KERNEL);
	int ret;

	if (!entry)
		return -ENOMEM;
	*entry = (struct minor_entry){ ct, slot, node };
	mutex_lock(&minors_lock);
	ret = idr_alloc_cyclic(&minors, entry, 0, MINORS, GFP_KERNEL);
	mutex_unlock(&minors_lock);
	if (ret < 0) {
		kfree(entry);
		return ret;
	}
	*minor = ret;
	return 0;
}

static void remove_minor(u32 minor)
{
	struct minor_entry *entry;

	mutex_lock(&minors_lock);
	entry = idr_remove(&minors, minor);
	mutex_unlock(&minors_lock);
	kfree(entry);
}

struct ckm_container *ckm_container_by_minor(u32 minor, u32 *node, struct ckm_slot **slot)
{
	struct ckm_container *ct = NULL;
	struct minor_entry *entry;

	mutex_lock(&minors_lock);
	entry = idr_find(&minors, minor);
	if (entry && !READ_ONCE(entry->ct->dying) && kref_get_unless_zero(&entry->ct->ref)) {
		ct = entry->ct;
		*node = entry->node;
		*slot = entry->slot;
	}
	mutex_unlock(&minors_lock);
	return ct;
}

static int make_node(struct ckm_container *ct, u32 minor, const char *name)
{
	struct device *dev = device_create(class, NULL, MKDEV(MAJOR(first_dev), minor), NULL,
					   "cgpu!%s!%s", ct->dir, name);

	return PTR_ERR_OR_ZERO(dev);
}

static void remove_nodes(struct ckm_container *ct)
{
	u32 i;

	/* Unknown ones are ignored. */
	device_destroy(class, MKDEV(MAJOR(first_dev), ct->ctl_minor));
	device_destroy(class, MKDEV(MAJOR(first_dev), ct->uvm_minor));
	for (i = 0; i < ct->slot_count; i++)
		device_destroy(class, MKDEV(MAJOR(first_dev), ct->slot[i].minor));
}

static int make_nodes(struct ckm_container *ct)
{
	char name[16];
	int ret;
	u32 i;

	ret = make_node(ct, ct->ctl_minor, "nvidiactl");
	if (!ret)
		ret = make_node(ct, ct->uvm_minor, "nvidia-uvm");
	for (i = 0; !ret && i < ct->slot_count; i++) {
		snprintf(name, sizeof(name), "nvidia%u", ct->slot[i].gpu->desc.nv_minor);
		ret = make_node(ct, ct->slot[i].minor, name);
	}
	if (ret)
		remove_nodes(ct);
	return ret;
}

static void remove_minors(struct ckm_container *ct, u32 slots)
{
	while (slots--)
		remove_minor(ct->slot[slots].minor);
	remove_minor(ct->uvm_minor);
	remove_minor(ct->ctl_minor);
}

static int add_minors(struct ckm_container *ct)
{
	u32 i;
	int ret;

	ret = add_minor(ct, NULL, CGPU_NODE_CTL, &ct->ctl_minor);
	if (ret)
		return ret;
	ret = add_minor(ct, NULL, CGPU_NODE_UVM, &ct->uvm_minor);
	if (ret)
		goto err_ctl;
	for (i = 0; i < ct->slot_count; i++) {
		ret = add_minor(ct, &ct->slot[i], CGPU_NODE_GPU, &ct->slot[i].minor);
		if (ret)
			goto err_slots;
	}
	return 0;

err_slots:
	while (i--)
		remove_minor(ct->slot[i].minor);
	remove_minor(ct->uvm_minor);
err_ctl:
	remove_minor(ct->ctl_minor);
	return ret;
}

/* ---- slots ---- */

static int add_slot(struct ckm_slot *slot, const struct ckm_slot_request *req,
		    u64 cookie, const char **why)
{
	struct ckm_gpu *gpu = slot->gpu;
	const struct cgpu_core_ops *core;
	u64 limit;
	int ret;

	mutex_lock(&gpu->lock);
	limit = req->limit_bytes ?: ckm_gpu_default_memsize_locked(gpu);
	*why = "the memory limits of this GPU's containers would exceed its memory";
	ret = -EINVAL;
	if (limit < CGPU_MIB || limit > S64_MAX) {
		*why = "a memory limit is 1 MiB at least";
		goto out;
	}
	ret = -ENOSPC;
	if (!ckm_gpu_has_room_locked(gpu, gpu->limits_bytes, limit))
		goto out;
	*why = "this GPU has no free instance (max_inst) or weight (free_weight) left";
	core = ckm_core_enter();
	ret = core->turn_add(gpu->turn, cookie, req->weight, req->highprio, ktime_get_ns(),
			     &slot->turn_slot, &slot->granted_weight);
	if (!ret)
		core->ledger_init(&slot->ledger, limit);
	ckm_core_leave();
	if (ret == -EINVAL)
		*why = "weight must be 1 to max_inst and highprio 0 or 1";
	if (ret)
		goto out;
	gpu->slot[slot->turn_slot] = slot;
	gpu->limits_bytes += limit;
	if (!slot->granted_weight)
		pr_warn("container %s: GPU %u has no free weight; it gets weight 0 and no compute\n",
			slot->ct->dir, gpu->index);
out:
	mutex_unlock(&gpu->lock);
	return ret;
}

static void remove_slot(struct ckm_slot *slot)
{
	struct ckm_gpu *gpu = slot->gpu;
	const struct cgpu_core_ops *core;

	mutex_lock(&gpu->lock);
	core = ckm_core_enter();
	core->turn_del(gpu->turn, slot->turn_slot, ktime_get_ns());
	core->look_touched(gpu->look, gpu->turn, slot->turn_slot, ktime_get_ns());
	ckm_core_leave();
	gpu->slot[slot->turn_slot] = NULL;
	gpu->limits_bytes -= slot->ledger.limit_bytes;
	mutex_unlock(&gpu->lock);
	ckm_gpu_kick(gpu);
}

static int charge(struct ckm_slot *slot, u64 bytes)
{
	const struct cgpu_core_ops *core;
	u64 used, limit;
	int ret;

	mutex_lock(&slot->gpu->lock);
	core = ckm_core_enter();
	ret = core->ledger_charge(&slot->ledger, bytes);
	ckm_core_leave();
	if (ret)
		ckm_events_refused_locked(slot, bytes);
	used = slot->ledger.used_bytes;
	limit = slot->ledger.limit_bytes;
	mutex_unlock(&slot->gpu->lock);
	if (ret)
		pr_info_ratelimited("container %s: GPU %u: %llu bytes refused, %llu of %llu in use\n",
				    slot->ct->dir, slot->gpu->index, bytes, used, limit);
	return ret;
}

static void uncharge(struct ckm_slot *slot, u64 bytes)
{
	const struct cgpu_core_ops *core;

	mutex_lock(&slot->gpu->lock);
	core = ckm_core_enter();
	WARN_ON_ONCE(!core->ledger_uncharge(&slot->ledger, bytes));
	ckm_core_leave();
	mutex_unlock(&slot->gpu->lock);
}

void ckm_slot_limits(struct ckm_slot *slot, u64 *limit, u64 *used)
{
	mutex_lock(&slot->gpu->lock);
	*limit = slot->ledger.limit_bytes;
	*used = slot->ledger.used_bytes;
	mutex_unlock(&slot->gpu->lock);
}

struct ckm_slot *ckm_container_slot(struct ckm_container *ct, const struct ckm_gpu *gpu)
{
	u32 i;

	for (i = 0; i < ct->slot_count; i++)
		if (ct->slot[i].gpu == gpu)
			return &ct->slot[i];
	return NULL;
}

void ckm_container_moves_begin(struct ckm_container *ct)
{
	u32 i;

	for (i = 0; i < ct->slot_count; i++) {
		atomic_inc(&ct->slot[i].gpu->moves);
		atomic_inc(&ct->slot[i].gpu->move_seq);
	}
}

void ckm_container_moves_end(struct ckm_container *ct)
{
	u32 i;

	for (i = 0; i < ct->slot_count; i++)
		atomic_dec(&ct->slot[i].gpu->moves);
}

/* ---- who shares with whom ---- */

static DEFINE_SPINLOCK(ipc_lock);	/* every container's ipc */

bool ckm_container_shares(struct ckm_container *a, struct ckm_container *b)
{
	bool same;

	spin_lock(&ipc_lock);
	same = a->ipc[0] && !strcmp(a->ipc, b->ipc);
	spin_unlock(&ipc_lock);
	return same;
}

int ckm_container_set_ipc(struct ckm_container *ct, const char *name, size_t len)
{
	const struct cgpu_core_ops *core = ckm_core_enter();
	int ret = -ENODEV;

	if (core) {
		ret = len ? core->parse_check_id(name, len) : 0;
		ckm_core_leave();
	}
	if (ret)
		return ret;
	spin_lock(&ipc_lock);
	memcpy(ct->ipc, name, len);
	ct->ipc[len] = 0;
	spin_unlock(&ipc_lock);
	return 0;
}

void ckm_container_ipc(struct ckm_container *ct, char *name)
{
	spin_lock(&ipc_lock);
	strscpy(name, ct->ipc, sizeof(ct->ipc));
	spin_unlock(&ipc_lock);
}

/* ---- objects and memory ---- */

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
	return obj;
}

static void free_obj(struct rcu_head *rcu)
{
	kmem_cache_free(obj_cache, container_of(rcu, struct ckm_obj, rcu));
}

void ckm_obj_free(struct ckm_obj *obj)
{
	call_rcu(&obj->rcu, free_obj);
}

struct ckm_slot *ckm_container_slot_of(struct ckm_container *ct, u32 index)
{
	u32 i;

	for (i = 0; i < ct->slot_count; i++)
		if (ct->slot[i].gpu->index == index)
			return &ct->slot[i];
	return NULL;
}

void ckm_mem_put_locked(struct ckm_container *ct, struct cgpu_mem *mem)
{
	const struct cgpu_core_ops *core;
	struct ckm_mem *rec;
	bool last;

	lockdep_assert_held(&ct->rm_lock);
	core = ckm_core_enter();
	last = core->mem_put(mem);
	ckm_core_leave();
	if (!last)
		return;
	rec = container_of(mem, struct ckm_mem, core);
	list_del(&rec->node);
	uncharge(ckm_container_slot_of(ct, mem->gpu), mem->bytes);
	kfree(rec);
}

struct cgpu_mem *ckm_mem_charge_locked(struct ckm_slot *slot, u64 bytes)
{
	struct ckm_mem *rec = kzalloc(sizeof(*rec), GFP_KERNEL_ACCOUNT);
	int ret;

	lockdep_assert_held(&slot->ct->rm_lock);
	if (!rec)
		return ERR_PTR(-ENOMEM);
	ret = charge(slot, bytes);
	if (ret) {
		kfree(rec);
		return ERR_PTR(ret);
	}
	rec->core.bytes = bytes;
	rec->core.refs = 1;
	rec->core.gpu = slot->gpu->index;
	rec->core.pid = task_tgid_nr(current);
	list_add_tail(&rec->node, &slot->mems);
	return &rec->core;
}

int ckm_mem_correct_locked(struct ckm_slot *slot, struct cgpu_mem *mem, u64 bytes)
{
	int ret = 0;

	lockdep_assert_held(&slot->ct->rm_lock);
	if (bytes > mem->bytes)
		ret = charge(slot, bytes - mem->bytes);
	else if (bytes < mem->bytes)
		uncharge(slot, mem->bytes - bytes);
	if (!ret)
		mem->bytes = bytes;
	return ret;
}

static int set_overhead_locked(struct ckm_slot *slot, u64 overhead)
{
	const struct cgpu_core_ops *core;
	struct cgpu_mem *mem;
	u64 limit, used, bytes;
	int ret = 0;

	lockdep_assert_held(&slot->ct->rm_lock);
	ckm_slot_limits(slot, &limit, &used);
	core = ckm_core_enter();
	bytes = core->call_overhead_charge(overhead, limit);
	ckm_core_leave();
	if (slot->overhead_mem && bytes) {
		ret = ckm_mem_correct_locked(slot, slot->overhead_mem, bytes);
	} else if (slot->overhead_mem) {
		ckm_mem_put_locked(slot->ct, slot->overhead_mem);
		slot->overhead_mem = NULL;
	} else if (bytes) {
		mem = ckm_mem_charge_locked(slot, bytes);
		ret = PTR_ERR_OR_ZERO(mem);
		slot->overhead_mem = ret ? NULL : mem;
	}
	/* Under a limit that was lowered less can cost more: it is less all the same. */
	if (!ret || overhead < slot->overhead)
		slot->overhead = overhead;
	return ret;
}

int ckm_slot_overhead_locked(struct ckm_slot *slot, u64 more)
{
	return more ? set_overhead_locked(slot, slot->overhead + more) : 0;
}

void ckm_slot_overhead_less_locked(struct ckm_slot *slot, u64 less)
{
	if (!WARN_ON_ONCE(less > slot->overhead) && less)
		set_overhead_locked(slot, slot->overhead - less);
}

int ckm_obj_overhead_locked(struct ckm_container *ct, struct cgpu_obj *obj, u64 more)
{
	struct ckm_slot *slot = ckm_container_slot_of(ct, obj->gpu);
	int ret;

	if (!slot)
		return 0;
	if (obj->state == CGPU_OBJ_DETACHED)	/* what it had is given back already */
		return -EINVAL;
	ret = ckm_slot_overhead_locked(slot, more);
	if (!ret)
		obj->overhead += more;
	return ret;
}

void ckm_obj_overhead_less_locked(struct ckm_container *ct, struct cgpu_obj *obj, u64 less)
{
	struct ckm_slot *slot = ckm_container_slot_of(ct, obj->gpu);

	if (!slot || less > obj->overhead)	/* out of the tree meanwhile: it has none left */
		return;
	obj->overhead -= less;
	ckm_slot_overhead_less_locked(slot, less);
}

static void unschedule(struct ckm_container *ct, struct ckm_obj *obj)
{
	struct ckm_slot *slot = ckm_container_slot_of(ct, obj->core.gpu);

	if (!slot)
		return;
	mutex_lock(&slot->gpu->lock);
	if (!list_empty(&obj->sched)) {
		list_del_init(&obj->sched);
		if (obj->core.kind == CGPU_KIND_TSG)
			slot->tsg_count--;
		else
			slot->channel_count--;
		ckm_gpu_channels_changed_locked(slot);
	}
	mutex_unlock(&slot->gpu->lock);
}

/* The driver unmaps memory that it frees; what was charged is the object's overhead. */
static void forget_dma_maps(struct ckm_obj *obj)
{
	struct ckm_dma_map *map, *next;

	list_for_each_entry_safe(map, next, &obj->dma_maps, of) {
		hash_del(&map->node);
		list_del(&map->of);
		kfree(map);
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
		ckm_obj_overhead_less_locked(ct, core, core->overhead);
		if (!core->busy)	/* else its last user frees it */
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
		list = core->tree_remove(&ct->tree, obj);
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

int ckm_back_tables(struct ckm_back *back, u64 more)
{
	struct ckm_container *ct = back->ct;
	u32 i, done = 0;
	int ret = 0;

	mutex_lock(&ct->rm_lock);
	while (!ret && done < ct->slot_count) {
		ret = ckm_slot_overhead_locked(&ct->slot[done], more);
		done += !ret;
	}
	for (i = 0; ret && i < done; i++)
		ckm_slot_overhead_less_locked(&ct->slot[i], more);
	if (!ret)
		back->tables += more;
	mutex_unlock(&ct->rm_lock);
	return ret;
}

static void give_tables(struct ckm_container *ct, struct ckm_back *back)
{
	u32 i;

	mutex_lock(&ct->rm_lock);
	for (i = 0; i < ct->slot_count; i++)
		ckm_slot_overhead_less_locked(&ct->slot[i], back->tables);
	mutex_unlock(&ct->rm_lock);
}

void ckm_container_settle(struct ckm_container *ct, struct ckm_back *back)
{
	struct ckm_obj *client, *next;

	if (back->node == CGPU_NODE_UVM) {
		ckm_managed_settle(ct, back);
		give_tables(ct, back);
	}
	if (back->node != CGPU_NODE_CTL)
		return;
	mutex_lock(&ct->rm_lock);
	list_for_each_entry_safe(client, next, &back->clients, bound)
		ckm_objs_remove_locked(ct, &client->core);
	ckm_exports_drop_locked(ct, back);
	mutex_unlock(&ct->rm_lock);
}

/* ---- life ---- */

void ckm_container_get(struct ckm_container *ct)
{
	kref_get(&ct->ref);
}

static void after_last_ref(struct kref *ref)
{
	struct ckm_container *ct = container_of(ref, struct ckm_container, ref);

	/* In a work: the last reference may go anywhere, and this removes proc
	 * files and takes ckm_lock.
	 */
	queue_work(end_queue, &ct->gone);
}

bool ckm_queue_work(struct work_struct *work)
{
	return queue_work(workqueue, work);
}

void ckm_container_put(struct ckm_container *ct)
{
	kref_put(&ct->ref, after_last_ref);
}

static void gone_work(struct work_struct *work)
{
	struct ckm_container *ct = container_of(work, struct ckm_container, gone);
	struct ckm_mem *mem, *next;
	u32 i;

	ckm_proc_remove_container(ct);
	mutex_lock(&ckm_lock);
	for (i = 0; i < ct->slot_count; i++) {
		ckm_events_flush(&ct->slot[i]);
		remove_slot(&ct->slot[i]);
	}
	list_del(&ct->node);
	ckm_netlink_event(ct, CGPU_EVENT_GONE);
	if (list_empty(&ckm_containers))
		ckm_gpus_detach();
	mutex_unlock(&ckm_lock);
	remove_minors(ct, ct->slot_count);
	WARN_ON(ct->tree.objects);
	for (i = 0; i < ct->slot_count; i++)
		list_for_each_entry_safe(mem, next, &ct->slot[i].mems, node)
			kfree(mem);	/* what the driver would not free */
	kvfree(ct);
	module_put(THIS_MODULE);
}

struct ckm_container *ckm_container_find(const char *id)
{
	struct ckm_container *ct;

	lockdep_assert_held(&ckm_lock);
	list_for_each_entry(ct, &ckm_containers, node)
		if (!strcmp(ct->id, id))
			return ct;
	return NULL;
}

static bool dir_taken(const char *dir)
{
	struct ckm_container *ct;

	list_for_each_entry(ct, &ckm_containers, node)
		if (!strcmp(ct->dir, dir))
			return true;
	return false;
}

static int check_request(const struct ckm_create *req, const char **why)
{
	const struct cgpu_core_ops *core = ckm_core_enter();
	u32 i, j;
	int ret;

	*why = "no core module (cgpu_core) is loaded";
	if (!core)
		return -ENODEV;
	ret = core->parse_check_id(req->id, strlen(req->id));
	ckm_core_leave();
	*why = "an id is 1 to 128 printable characters without blanks, '/' and '='";
	if (ret)
		return ret;
	*why = "a container with this id is there";
	if (ckm_container_find(req->id))
		return -EEXIST;
	*why = "a container needs 1 to 32 GPUs, each once";
	if (!req->slots || req->slots > CGPU_MAX_GPUS)
		return -EINVAL;
	for (i = 0; i < req->slots; i++)
		for (j = 0; j < i; j++)
			if (req->slot[i].gpu == req->slot[j].gpu)
				return -EINVAL;
	return 0;
}

static struct ckm_container *alloc_container(const struct ckm_create *req)
{
	struct ckm_container *ct = kvzalloc(struct_size(ct, slot, req->slots),
					    GFP_KERNEL_ACCOUNT);
	const struct cgpu_core_ops *core;
	u32 i;

	if (!ct)
		return NULL;
	kref_init(&ct->ref);
	INIT_LIST_HEAD(&ct->node);
	mutex_init(&ct->rm_lock);
	INIT_WORK(&ct->gone, gone_work);
	INIT_LIST_HEAD(&ct->managed);
	init_waitqueue_head(&ct->recounted);
	strscpy(ct->id, req->id, sizeof(ct->id));
	core = ckm_core_enter();
	core->parse_dir(ct->id, strlen(ct->id), false, ct->dir);
	if (dir_taken(ct->dir))
		core->parse_dir(ct->id, strlen(ct->id), true, ct->dir);
	ckm_core_leave();
	ct->cookie = req->cookie;
	while (!ct->cookie)	/* never one of cgpud's, which have their mark in the upper 16 bits */
		ct->cookie = get_random_u64() >> 16;
	ct->slot_count = req->slots;
	for (i = 0; i < req->slots; i++) {
		ct->slot[i].ct = ct;
		ct->slot[i].gpu = ckm_gpu_by_index(req->slot[i].gpu);
		mutex_init(&ct->slot[i].enable_lock);
		INIT_LIST_HEAD(&ct->slot[i].channels);
		INIT_LIST_HEAD(&ct->slot[i].tsgs);
		INIT_LIST_HEAD(&ct->slot[i].mems);
		ckm_events_init_slot(&ct->slot[i]);
	}
	return ct;
}

static int add_slots(struct ckm_container *ct, const struct ckm_create *req, const char **why)
{
	u32 i;
	int ret;

	for (i = 0; i < ct->slot_count; i++) {
		*why = "no such GPU";
		ret = ct->slot[i].gpu ? add_slot(&ct->slot[i], &req->slot[i], ct->cookie, why)
				      : -ENODEV;
		if (ret) {
			while (i--)
				remove_slot(&ct->slot[i]);
			return ret;
		}
	}
	return 0;
}

struct ckm_container *ckm_container_create(const struct ckm_create *req, const char **why)
{
	struct ckm_container *ct;
	u32 i;
	int ret;

	lockdep_assert_held(&ckm_lock);
	ret = check_request(req, why);
	if (ret)
		return ERR_PTR(ret);
	ret = ckm_gpus_attach(why);
	if (ret)
		return ERR_PTR(ret);
	*why = "out of memory";
	ret = -ENOMEM;
	ct = alloc_container(req);
	if (!ct)
		goto err_detach;
	*why = "its directory name is taken twice over";
	ret = -EEXIST;
	if (dir_taken(ct->dir))
		goto err_free;
	ret = add_slots(ct, req, why);
	if (ret)
		goto err_free;
	*why = "out of device minors";
	ret = add_minors(ct);
	if (ret)
		goto err_slots;
	*why = "its device nodes cannot be made";
	ret = make_nodes(ct);
	if (ret)
		goto err_minors;
	*why = "its proc directory cannot be made";
	ret = ckm_proc_add_container(ct);
	if (ret)
		goto err_nodes;
	ct->serial = ++last_serial;
	list_add_tail(&ct->node, &ckm_containers);
	__module_get(THIS_MODULE);
	for (i = 0; i < ct->slot_count; i++)
		ckm_gpu_kick(ct->slot[i].gpu);
	ckm_netlink_event(ct, CGPU_EVENT_CREATED);
	return ct;

err_nodes:
	remove_nodes(ct);
err_minors:
	remove_minors(ct, ct->slot_count);
err_slots:
	for (i = 0; i < ct->slot_count; i++)
		remove_slot(&ct->slot[i]);
err_free:
	kvfree(ct);
err_detach:
	if (list_empty(&ckm_containers))
		ckm_gpus_detach();
	return ERR_PTR(ret);
}

int ckm_container_destroy(const char *id, u64 cookie)
{
	struct ckm_container *ct;

	lockdep_assert_held(&ckm_lock);
	ct = ckm_container_find(id);
	if (!ct || (cookie && cookie != ct->cookie))
		return -ENOENT;
	if (ct->dying)
		return 0;
	WRITE_ONCE(ct->dying, true);
	remove_nodes(ct);
	if (kref_read(&ct->ref) > 1)
		ckm_netlink_event(ct, CGPU_EVENT_DYING);
	ckm_container_put(ct);
	return 0;
}

static char *node_mode(CKM_DEVNODE_DEV *dev, umode_t *mode)
{
	if (mode)
		*mode = 0600;
	return NULL;
}

int ckm_containers_init(void)
{
	int ret = -ENOMEM;

	obj_cache = KMEM_CACHE(ckm_obj, SLAB_ACCOUNT);
	if (!obj_cache)
		return -ENOMEM;
	workqueue = alloc_workqueue("cgpu", WQ_UNBOUND, 0);
	if (!workqueue)
		goto err_cache;
	end_queue = alloc_workqueue("cgpu_end", WQ_UNBOUND, 0);
	if (!end_queue)
		goto err_workqueue;
	class = ckm_class_create("cgpu");
	if (IS_ERR(class)) {
		ret = PTR_ERR(class);
		goto err_end_queue;
	}
	class->devnode = node_mode;
	ret = alloc_chrdev_region(&first_dev, 0, MINORS, "cgpu");
	if (ret)
		goto err_class;
	cdev_init(&cdev, &ckm_front_fops);
	cdev.owner = THIS_MODULE;
	ret = cdev_add(&cdev, first_dev, MINORS);
	if (ret)
		goto err_region;
	return 0;

err_region:
	unregister_chrdev_region(first_dev, MINORS);
err_class:
	class_destroy(class);
err_end_queue:
	destroy_workqueue(end_queue);
err_workqueue:
	destroy_workqueue(workqueue);
err_cache:
	kmem_cache_destroy(obj_cache);
	return ret;
}

void ckm_containers_exit(void)
{
	cdev_del(&cdev);
	unregister_chrdev_region(first_dev, MINORS);
	destroy_workqueue(workqueue);	/* its works may drop the last reference */
	destroy_workqueue(end_queue);	/* waits for the last gone_work() */
	class_destroy(class);
	idr_destroy(&minors);
	rcu_barrier();	/* free_obj() */
	kmem_cache_destroy(obj_cache);
}
