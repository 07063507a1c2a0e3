// SPDX-License-Identifier: MIT OR GPL-2.0-only
/* Owns the charges of slots. Takes gpu->lock; callers hold rm_lock. */
#include <linux/pid.h>
#include <linux/pid_namespace.h>
#include <linux/sched.h>
#include <linux/slab.h>

#include "core/nv_abi.h"
#include "driver/driver.h"
#include "pure/mem_estimate.h"
#include "pure/mem_ledger.h"
#include "pure/mem_tree.h"
#include "state/container.h"
#include "state/gpu.h"
#include "state/memory.h"
#include "state/notify.h"
#include "state/quota.h"
#include "state/slot.h"

#define UNKNOWN_BYTES	(4ull << 30)	/* assumed size if unknown: 8 MiB of page tables */

static int charge(struct ckm_slot *slot, enum ckm_mem_kind kind, u64 bytes)
{
	u64 used, limit;
	int ret;

	spin_lock(&slot->gpu->lock);
	ret = cgpu_ledger_charge(&slot->ledger, bytes);
	if (ret)
		ckm_events_refused_locked(slot, bytes, slot->ledger.used_bytes, false);
	else
		slot->used_by[kind] += bytes;
	used = slot->ledger.used_bytes;
	limit = slot->ledger.limit_bytes;
	spin_unlock(&slot->gpu->lock);
	if (ret)
		ckm_say_limit(slot->ct, "GPU %u: %llu bytes refused, %llu of %llu in use\n",
			      slot->gpu->index, bytes, used, limit);
	return ret;
}

void ckm_mem_no_room(struct ckm_slot *slot, const struct cgpu_mem *mem)
{
	char *text = kzalloc(CKM_HOLDERS_MAX, GFP_KERNEL);
	u64 used, limit;

	spin_lock(&slot->gpu->lock);
	used = slot->ledger.used_bytes - mem->bytes;
	limit = slot->ledger.limit_bytes;
	ckm_events_refused_locked(slot, mem->bytes, used, true);
	if (text)
		ckm_slots_holders_locked(slot->gpu, text);
	spin_unlock(&slot->gpu->lock);
	ckm_say_limit(slot->ct, "GPU %u: the driver has no room for %llu bytes, %llu of %llu in use; held by%s\n",
		      slot->gpu->index, mem->bytes, used, limit, text ?: " others");
	kfree(text);
}

static void uncharge(struct ckm_slot *slot, enum ckm_mem_kind kind, u64 bytes)
{
	spin_lock(&slot->gpu->lock);
	WARN_ON_ONCE(!cgpu_ledger_uncharge(&slot->ledger, bytes));
	slot->used_by[kind] -= bytes;
	if (slot->removed)
		slot->gpu->ended_bytes -= bytes;
	ckm_slot_less_locked(slot);
	spin_unlock(&slot->gpu->lock);
}

/* RM's own memory for @n objects and mappings: 1.9 to 3.6 KiB for an object of most classes, in no memory cgroup
 * (tests/rm/test_objects.py). A program's usual number is not charged.
 */
static u64 bytes_of_objects(u64 n)
{
	return n > CKM_HOST_OBJECTS_FREE ? (n - CKM_HOST_OBJECTS_FREE) * CKM_HOST_OBJECT_BYTES : 0;
}

u64 ckm_host_used(const struct ckm_container *ct)
{
	return READ_ONCE(ct->host_used) + bytes_of_objects(READ_ONCE(ct->tree.objects) + READ_ONCE(ct->maps));
}

static bool has_host_room_locked(struct ckm_container *ct, u64 bytes, u64 objects)
{
	u64 set = READ_ONCE(ct->host_limit), used = ckm_host_used(ct);
	u64 limit = set ?: S64_MAX;	/* what the driver is still to refuse must not wrap the sum */

	lockdep_assert_held(&ct->rm_lock);
	bytes += bytes_of_objects(ct->tree.objects + ct->maps + objects) -
		 bytes_of_objects(ct->tree.objects + ct->maps);
	if (!bytes || (used <= limit && bytes <= limit - used))
		return true;
	ct->host_refused++;
	ckm_say_limit(ct, "%llu bytes of system memory refused, %llu of %llu in use\n", bytes, used, set);
	return false;
}

bool ckm_host_has_room_locked(struct ckm_container *ct)
{
	return has_host_room_locked(ct, 0, 1);
}

int ckm_host_charge_locked(struct ckm_container *ct, u64 bytes)
{
	if (!has_host_room_locked(ct, bytes, 0))
		return -ENOMEM;
	ct->host_used += bytes;
	return 0;
}

void ckm_host_uncharge_locked(struct ckm_container *ct, u64 bytes)
{
	lockdep_assert_held(&ct->rm_lock);
	if (!WARN_ON_ONCE(bytes > ct->host_used))
		ct->host_used -= bytes;
}

static void give_back(struct ckm_container *ct, struct ckm_mem *rec)
{
	struct ckm_slot *slot = ckm_container_slot_of(ct, rec->core.gpu);
	u32 kind;

	list_del(&rec->node);
	uncharge(slot, rec->kind, rec->core.bytes);
	ckm_host_uncharge_locked(ct, rec->host_bytes);
	for (kind = 0; kind < CGPU_QUOTAS; kind++)
		if (rec->ids[kind])
			ckm_quota_give(slot, kind, rec->ids[kind]);
	put_pid(rec->opener);
	kfree(rec);
}

void ckm_slot_mems_end(struct ckm_slot *slot)
{
	struct ckm_container *ct = slot->ct;
	struct ckm_mem *rec, *next;

	mutex_lock(&ct->rm_lock);
	WARN_ON(!list_empty(&slot->mems) && !ct->kept);
	list_for_each_entry_safe(rec, next, &slot->mems, node)
		give_back(ct, rec);
	mutex_unlock(&ct->rm_lock);
}

struct cgpu_mem *ckm_mem_get_locked(struct ckm_container *ct, struct cgpu_mem *mem)
{
	lockdep_assert_held(&ct->rm_lock);
	if (mem)
		cgpu_mem_get(mem);
	return mem;
}

void ckm_mem_put_locked(struct ckm_container *ct, struct cgpu_mem *mem)
{
	struct cgpu_mem *under;

	lockdep_assert_held(&ct->rm_lock);
	for (; mem && cgpu_mem_put(mem); mem = under) {
		under = container_of(mem, struct ckm_mem, core)->under;
		give_back(ct, container_of(mem, struct ckm_mem, core));
	}
}

static void add_record_locked(struct ckm_slot *slot, struct ckm_mem *rec)
{
	rec->core.refs = 1;
	rec->core.gpu = slot->gpu->index;
	rec->core.pid = task_tgid_nr(current);
	rec->opener = get_pid(task_tgid(current));
	list_add_tail(&rec->node, &slot->mems);
}

u32 ckm_mem_pid_locked(const struct ckm_mem *mem)
{
	const struct pid *now;
	u32 pid = mem->core.pid;

	rcu_read_lock();
	now = find_pid_ns(pid, &init_pid_ns);
	if (now && now != mem->opener)
		pid = 0;
	rcu_read_unlock();
	return pid;
}

struct cgpu_mem *ckm_mem_charge_host_locked(struct ckm_slot *slot, u64 bytes)
{
	struct ckm_mem *rec = kzalloc(sizeof(*rec), GFP_KERNEL_ACCOUNT);
	int ret;

	if (!rec)
		return ERR_PTR(-ENOMEM);
	ret = ckm_host_charge_locked(slot->ct, bytes);
	if (ret) {
		kfree(rec);
		return ERR_PTR(ret);
	}
	rec->host_bytes = bytes;
	add_record_locked(slot, rec);
	return &rec->core;
}

void ckm_mem_correct_host_locked(struct ckm_container *ct, struct cgpu_mem *mem, u64 bytes)
{
	struct ckm_mem *rec = container_of(mem, struct ckm_mem, core);

	if (bytes >= rec->host_bytes)
		return;
	ckm_host_uncharge_locked(ct, rec->host_bytes - bytes);
	rec->host_bytes = bytes;
}

u64 ckm_mem_host_bytes_locked(const struct cgpu_mem *mem)
{
	return container_of(mem, struct ckm_mem, core)->host_bytes;
}

struct cgpu_mem *ckm_mem_charge_locked(struct ckm_slot *slot, enum ckm_mem_kind kind, u64 bytes)
{
	struct ckm_mem *rec = kzalloc(sizeof(*rec), GFP_KERNEL_ACCOUNT);
	int ret;

	lockdep_assert_held(&slot->ct->rm_lock);
	if (!rec)
		return ERR_PTR(-ENOMEM);
	ret = charge(slot, kind, bytes);
	if (ret) {
		kfree(rec);
		return ERR_PTR(ret);
	}
	rec->core.bytes = bytes;
	rec->kind = kind;
	add_record_locked(slot, rec);
	return &rec->core;
}

int ckm_mem_take_id_locked(struct ckm_slot *slot, struct cgpu_mem *mem, enum cgpu_quota_kind kind)
{
	int ret;

	lockdep_assert_held(&slot->ct->rm_lock);
	ret = ckm_quota_take(slot, kind, 1);
	if (!ret)
		container_of(mem, struct ckm_mem, core)->ids[kind]++;
	return ret;
}

void ckm_mem_keep_locked(struct cgpu_mem *mem, struct cgpu_mem *under)
{
	cgpu_mem_get(under);
	container_of(mem, struct ckm_mem, core)->under = under;
}

int ckm_mem_correct_locked(struct ckm_slot *slot, struct cgpu_mem *mem, u64 bytes)
{
	enum ckm_mem_kind kind = container_of(mem, struct ckm_mem, core)->kind;
	int ret = 0;

	lockdep_assert_held(&slot->ct->rm_lock);
	if (bytes > mem->bytes)
		ret = charge(slot, kind, bytes - mem->bytes);
	else if (bytes < mem->bytes)
		uncharge(slot, kind, mem->bytes - bytes);
	if (!ret)
		mem->bytes = bytes;
	return ret;
}

static int set_overhead_locked(struct ckm_slot *slot, u64 overhead)
{
	struct cgpu_mem *mem;
	u64 limit, used, bytes;
	int ret = 0;

	lockdep_assert_held(&slot->ct->rm_lock);
	ckm_slot_limits(slot, &limit, &used);
	bytes = cgpu_estimate_overhead_charge(overhead, limit);
	if (slot->overhead_mem && bytes) {
		ret = ckm_mem_correct_locked(slot, slot->overhead_mem, bytes);
	} else if (slot->overhead_mem) {
		ckm_mem_put_locked(slot->ct, slot->overhead_mem);
		slot->overhead_mem = NULL;
	} else if (bytes) {
		mem = ckm_mem_charge_locked(slot, CKM_MEM_TABLES, bytes);
		ret = PTR_ERR_OR_ZERO(mem);
		slot->overhead_mem = ret ? NULL : mem;
	}
	/* The free allowance shrinks with the limit, so the charge may rise although the
	 * estimate fell. Record the lower estimate even if charging failed.
	 */
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
	if (obj->state == CGPU_OBJ_DETACHED)	/* its overhead is uncharged already */
		return -EINVAL;
	ret = ckm_slot_overhead_locked(slot, more);
	if (!ret)
		obj->overhead += more;
	return ret;
}

void ckm_obj_overhead_less_locked(struct ckm_container *ct, struct cgpu_obj *obj, u64 less)
{
	struct ckm_slot *slot = ckm_container_slot_of(ct, obj->gpu);

	if (!slot || less > obj->overhead)	/* released meanwhile: uncharged already */
		return;
	obj->overhead -= less;
	ckm_slot_overhead_less_locked(slot, less);
}

/* ---- sizes ---- */

/* ctrl0041.h: NV0041_CTRL_CMD_GET_SURFACE_INFO; @list is a kernel address. */
u64 ckm_real_bytes(u32 client, u32 memory)
{
	struct { u32 index, data; } info = { .index = NV0041_CTRL_SURFACE_INFO_INDEX_PHYS_SIZE };
	struct { u32 count; u32 pad; u64 list; } params = {
		.count = 1, .list = (uintptr_t)&info,
	};

	if (ckm_drv_control(client, memory, NV0041_CTRL_CMD_GET_SURFACE_INFO, &params,
			    sizeof(params)) || info.data == CKM_ALL_ONES)
		return 0;
	return (u64)info.data * NV0041_CTRL_SURFACE_INFO_PHYS_SIZE_SCALE_FACTOR;
}

u64 ckm_bytes_of(struct ckm_container *ct, struct cgpu_obj *memory)
{
	u64 bytes;

	mutex_lock(&ct->rm_lock);	/* @memory is pinned, its charge goes with its control file */
	bytes = memory->mem && memory->mem->bytes ? memory->mem->bytes : READ_ONCE(memory->bytes);
	mutex_unlock(&ct->rm_lock);
	if (!bytes) {
		bytes = ckm_real_bytes(memory->hclient, memory->hobject) ?: UNKNOWN_BYTES;
		/* Read once only, so that map and unmap use the same number. */
		WRITE_ONCE(memory->bytes, bytes);
	}
	return bytes;
}

u64 ckm_page_tables_of(struct ckm_container *ct, struct cgpu_obj *memory)
{
	return cgpu_estimate_page_tables(ckm_bytes_of(ct, memory));
}
