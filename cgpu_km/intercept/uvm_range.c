// SPDX-License-Identifier: MIT OR GPL-2.0-only
/* Owns the charges of nvidia-uvm's ranges, range groups and address spaces. Takes rm_lock. */
#include <linux/rbtree.h>
#include <linux/sched.h>
#include <linux/slab.h>

#include "call.h"
#include "compat.h"
#include "core/nv_abi.h"
#include "intercept/backing_file.h"
#include "intercept/rm_call.h"
#include "intercept/uvm_range.h"
#include "pure/mem_estimate.h"
#include "state/container.h"
#include "state/gpu.h"
#include "state/memory.h"

/* Limit for all semaphore pools of a container, for each of its GPUs: they are system memory that the driver charges to
 * no process. libcuda makes one of 2 MiB for each context.
 */
#define POOLS_MAX	(256 * CGPU_MIB)

/* What a pool counts at least: so there are 1,024 of them for each GPU. */
#define POOL_LEAST	(256u << 10)

/* External ranges of a container, for each of its GPUs, at least, and twice as many as the card has pieces of 2 MiB:
 * libcuda makes one for an allocation of that size or more.
 */
#define EXTERNAL_LEAST	65536ull

/* Range groups of a container: libcuda makes one for a context, and one for a stream with memory of its own. */
#define GROUPS_MAX	16384u

/* Bytes of the host's memory: an external range has a tree of 56 bytes for each of 256 GPUs from 550 on
 * (uvm_va_range_external_t), an address space some arrays of the same length, a group its record and its place in a
 * radix tree.
 */
#define EXTERNAL_BYTES	(16u << 10)
#define SPACE_BYTES	(64u << 10)
#define GROUP_BYTES	(1u << 10)

/* Records that one hold of rm_lock removes. */
#define RELEASE_STEP	16

struct ckm_uvm_range {
	struct rb_node node;		/* ct->rm_lock; backing->uvm_ranges by @base, then by age, once made */
	u64 base, length;		/* as in the driver */
	u64 pt_bytes;			/* bytes charged on each slot: page tables of a pool */
	u64 host_bytes;			/* bytes charged on the container */
	u32 kind;
};

#define range_of(rb)	rb_entry((rb), struct ckm_uvm_range, node)

static void less_tables_locked(struct ckm_container *ct, u32 slots, u64 pt_bytes)
{
	while (slots--)
		ckm_slot_overhead_less_locked(&ct->slot[slots], pt_bytes);
}

static u64 external_max(const struct ckm_container *ct)
{
	u64 most = 0;
	u32 i;

	for (i = 0; i < ct->slot_count; i++)
		most += max(EXTERNAL_LEAST, READ_ONCE(ct->slot[i].gpu->total_bytes) / CGPU_MIB);
	return most;
}

static bool has_place_locked(struct ckm_call *call, const struct ckm_uvm_range *range)
{
	const struct ckm_container *ct = call->backing->ct;
	const u64 pools_max = POOLS_MAX * ct->slot_count;

	if (range->kind == CKM_UVM_EXTERNAL && ct->uvm_external >= external_max(ct)) {
		ckm_call_denied(call, "external range over the cap, uvm call",
				UVM_CREATE_EXTERNAL_RANGE);
		return false;
	}
	if (range->kind == CKM_UVM_POOL &&
	    (range->host_bytes > pools_max || ct->pool_bytes > pools_max - range->host_bytes)) {
		ckm_call_denied(call, "semaphore pool over the cap, uvm call",
				UVM_ALLOC_SEMAPHORE_POOL);
		return false;
	}
	return true;
}

static void count_locked(struct ckm_container *ct, const struct ckm_uvm_range *range, bool made)
{
	const u64 bytes = range->kind == CKM_UVM_POOL ? range->host_bytes : 0;
	const u32 external = range->kind == CKM_UVM_EXTERNAL;

	ct->pool_bytes += made ? bytes : -bytes;
	ct->uvm_external += made ? external : -external;
}

static bool charge_locked(struct ckm_call *call, const struct ckm_uvm_range *range)
{
	struct ckm_container *ct = call->backing->ct;
	u32 i;

	lockdep_assert_held(&ct->rm_lock);
	if (!has_place_locked(call, range))
		return false;
	for (i = 0; i < ct->slot_count; i++)
		if (ckm_slot_overhead_locked(&ct->slot[i], range->pt_bytes))
			goto err_tables;
	if (ckm_host_charge_locked(ct, range->host_bytes))
		goto err_tables;
	count_locked(ct, range, true);
	return true;

err_tables:
	less_tables_locked(ct, i, range->pt_bytes);
	return false;
}

static void uncharge_locked(struct ckm_container *ct, const struct ckm_uvm_range *range)
{
	lockdep_assert_held(&ct->rm_lock);
	count_locked(ct, range, false);
	ckm_host_uncharge_locked(ct, range->host_bytes);
	less_tables_locked(ct, ct->slot_count, range->pt_bytes);
}

struct ckm_uvm_range *ckm_uvm_range_charge(struct ckm_call *call, u32 kind, u64 base, u64 length)
{
	struct ckm_container *ct = call->backing->ct;
	struct ckm_uvm_range *range = kzalloc(sizeof(*range), GFP_KERNEL_ACCOUNT);
	bool charged;

	if (!range)
		return NULL;
	range->kind = kind;
	range->base = base;
	range->length = length;
	range->host_bytes = EXTERNAL_BYTES;
	if (kind == CKM_UVM_POOL) {
		range->host_bytes = max_t(u64, length, POOL_LEAST);
		range->pt_bytes = cgpu_estimate_page_tables(length);
	}
	mutex_lock(&ct->rm_lock);
	charged = charge_locked(call, range);
	mutex_unlock(&ct->rm_lock);
	if (charged)
		return range;
	kfree(range);
	return NULL;
}

static bool is_before(struct rb_node *a, const struct rb_node *b)
{
	return range_of(a)->base < range_of(b)->base;
}

static int compare_base(const void *base, const struct rb_node *node)
{
	const u64 wanted = *(const u64 *)base, has = range_of(node)->base;

	return wanted < has ? -1 : wanted > has;
}

void ckm_uvm_range_list(struct ckm_backing *backing, struct ckm_uvm_range *range)
{
	mutex_lock(&backing->ct->rm_lock);
	rb_add(&range->node, &backing->uvm_ranges, is_before);
	mutex_unlock(&backing->ct->rm_lock);
}

struct ckm_uvm_range *ckm_uvm_range_take(struct ckm_backing *backing, u64 base)
{
	struct rb_node *node;

	mutex_lock(&backing->ct->rm_lock);
	node = rb_find_first(&base, &backing->uvm_ranges, compare_base);
	if (node)
		rb_erase(node, &backing->uvm_ranges);
	mutex_unlock(&backing->ct->rm_lock);
	return node ? range_of(node) : NULL;
}

void ckm_uvm_range_drop(struct ckm_container *ct, struct ckm_uvm_range *range)
{
	mutex_lock(&ct->rm_lock);
	uncharge_locked(ct, range);
	mutex_unlock(&ct->rm_lock);
	kfree(range);
}

bool ckm_uvm_is_pool(struct ckm_backing *backing, u64 start, u64 end)
{
	const struct ckm_uvm_range *range;
	struct rb_node *node;
	bool found = false;

	mutex_lock(&backing->ct->rm_lock);
	node = rb_find_first(&start, &backing->uvm_ranges, compare_base);
	for (; node && !found && range_of(node)->base == start; node = rb_next(node)) {
		range = range_of(node);
		found = range->kind == CKM_UVM_POOL && range->length == end - start;
	}
	mutex_unlock(&backing->ct->rm_lock);
	return found;
}

int ckm_uvm_group_charge(struct ckm_call *call)
{
	struct ckm_container *ct = call->backing->ct;
	int ret = -ENOMEM;

	mutex_lock(&ct->rm_lock);
	if (ct->uvm_groups >= GROUPS_MAX)
		ckm_call_denied(call, "range group over the cap, uvm call", UVM_CREATE_RANGE_GROUP);
	else
		ret = ckm_host_charge_locked(ct, GROUP_BYTES);
	if (!ret) {
		ct->uvm_groups++;
		call->backing->uvm_groups++;
	}
	mutex_unlock(&ct->rm_lock);
	return ret;
}

static void uncharge_groups_locked(struct ckm_container *ct, struct ckm_backing *backing, u32 count)
{
	lockdep_assert_held(&ct->rm_lock);
	ct->uvm_groups -= count;
	backing->uvm_groups -= count;
	ckm_host_uncharge_locked(ct, (u64)count * GROUP_BYTES);
}

void ckm_uvm_group_uncharge(struct ckm_backing *backing)
{
	mutex_lock(&backing->ct->rm_lock);
	if (!WARN_ON_ONCE(!backing->uvm_groups))
		uncharge_groups_locked(backing->ct, backing, 1);
	mutex_unlock(&backing->ct->rm_lock);
}

int ckm_uvm_space_charge(struct ckm_call *call)
{
	struct ckm_backing *backing = call->backing;
	int ret = 0;

	mutex_lock(&backing->ct->rm_lock);
	if (!backing->uvm_space)
		ret = ckm_host_charge_locked(backing->ct, SPACE_BYTES);
	if (!ret)
		backing->uvm_space = true;
	mutex_unlock(&backing->ct->rm_lock);
	return ret;
}

/* True: nothing is left. */
static bool release_some_locked(struct ckm_container *ct, struct ckm_backing *backing)
{
	struct ckm_uvm_range *range;
	u32 steps = RELEASE_STEP;
	struct rb_node *node;

	while (steps-- && (node = rb_first(&backing->uvm_ranges))) {
		range = range_of(node);
		rb_erase(node, &backing->uvm_ranges);
		uncharge_locked(ct, range);
		kfree(range);
	}
	return RB_EMPTY_ROOT(&backing->uvm_ranges);
}

void ckm_uvm_ranges_release(struct ckm_container *ct, struct ckm_backing *backing)
{
	bool none;

	do {
		mutex_lock(&ct->rm_lock);
		none = release_some_locked(ct, backing);
		mutex_unlock(&ct->rm_lock);
		cond_resched();
	} while (!none);
	mutex_lock(&ct->rm_lock);
	uncharge_groups_locked(ct, backing, backing->uvm_groups);
	if (backing->uvm_space)
		ckm_host_uncharge_locked(ct, SPACE_BYTES);
	mutex_unlock(&ct->rm_lock);
}
