// SPDX-License-Identifier: MIT OR GPL-2.0-only
/* Owns the references that nvidia-uvm takes. Takes uvm_refs_lock, rm_lock. */
#include <linux/hash.h>
#include <linux/rbtree_latch.h>
#include <linux/rcupdate.h>
#include <linux/slab.h>
#include <linux/spinlock.h>

#include "call.h"
#include "core/nv_abi.h"
#include "driver/redirect.h"
#include "intercept/backing_file.h"
#include "intercept/rm_call.h"
#include "intercept/uvm_charge.h"
#include "sched/run_state.h"
#include "state/container.h"
#include "state/gpu.h"
#include "state/memory.h"
#include "state/rm_object.h"

enum { PROBE_DUP, PROBE_UNDUP, PROBE_RETAIN, PROBE_RELEASE, PROBE_SPACE, PROBES };

static struct ckm_redirection redirections[PROBES];

/* A reference that nvidia-uvm holds in nvidia.ko, by the key with which it drops it: a
 * handle for PROBE_UNDUP, a pointer for PROBE_RELEASE.
 */
struct uvm_ref {
	struct latch_tree_node node;	/* uvm_refs_lock; readers: RCU */
	struct rcu_head rcu;
	unsigned long key;
	u32 probe;
	struct cgpu_mem *mem;		/* a reference; NULL: nothing is charged */
	struct ckm_container *ct;	/* a reference */
	struct ckm_slot *slot;		/* of @overhead; NULL: none is charged */
	u64 overhead;			/* bytes of page tables of its mapping */
	struct ckm_run_word word;	/* of a channel */
};
static_assert(sizeof(struct uvm_ref) <= 136);	/* docs/develop/bounds.md */
/* All tenants' references are here, and a tenant can take many: sorted. In trees by a hash of the
 * key, so that those of the other containers hardly make the one that is searched higher.
 */
#define TREES_BITS	8
static struct latch_tree_root uvm_refs[1 << TREES_BITS];
static DEFINE_SPINLOCK(uvm_refs_lock);	/* writers of uvm_refs */

/* The key of a look-up. */
struct uvm_ref_name {
	unsigned long key;
	u32 probe;
};

static struct uvm_ref *ref_of(struct latch_tree_node *node)
{
	return container_of(node, struct uvm_ref, node);
}

static __always_inline int compare_name(void *key, struct latch_tree_node *node)
{
	const struct uvm_ref_name *name = key;
	const struct uvm_ref *ref = ref_of(node);

	if (name->key != ref->key)
		return name->key < ref->key ? -1 : 1;
	return name->probe < ref->probe ? -1 : name->probe > ref->probe;
}

static __always_inline bool is_before(struct latch_tree_node *a, struct latch_tree_node *b)
{
	struct uvm_ref_name name = { ref_of(a)->key, ref_of(a)->probe };

	return compare_name(&name, b) < 0;
}

static const struct latch_tree_ops by_name = { .less = is_before, .comp = compare_name };

static void *original(struct ckm_call *call, u32 row)
{
	return ckm_redirect_original(call, &redirections[row]);
}

static struct latch_tree_root *tree_of(unsigned long key)
{
	return &uvm_refs[hash_long(key, TREES_BITS)];
}

static struct uvm_ref *find_uvm_ref(u32 probe, unsigned long key)
{
	struct uvm_ref_name name = { key, probe };
	struct latch_tree_node *node = latch_tree_find(&name, tree_of(key), &by_name);

	return node ? ref_of(node) : NULL;
}

static void add_uvm_ref(struct uvm_ref *ref, u32 probe, unsigned long key)
{
	ref->probe = probe;
	ref->key = key;
	ckm_container_get(ref->ct);
	spin_lock(&uvm_refs_lock);
	latch_tree_insert(&ref->node, tree_of(key), &by_name);
	spin_unlock(&uvm_refs_lock);
}

/* Remove the record before the driver drops the reference: after that the driver may
 * give the same key to another reference. A key without a record is not redirected,
 * so our own call reaches the driver.
 */
static struct uvm_ref *take_uvm_ref(u32 probe, unsigned long key)
{
	struct uvm_ref *ref;

	spin_lock(&uvm_refs_lock);
	ref = find_uvm_ref(probe, key);
	if (ref)
		latch_tree_erase(&ref->node, tree_of(key), &by_name);
	spin_unlock(&uvm_refs_lock);
	return ref;
}

static void drop_charge(struct uvm_ref *ref)
{
	mutex_lock(&ref->ct->rm_lock);
	if (ref->mem)
		ckm_mem_put_locked(ref->ct, ref->mem);
	if (ref->slot)
		ckm_slot_overhead_less_locked(ref->slot, ref->overhead);
	mutex_unlock(&ref->ct->rm_lock);
}

/* nvidia-uvm has one pointer for each GPU while any address space has the GPU registered. */
static void note_device(struct ckm_container *ct, u32 gpu, const void *device)
{
	u32 i;

	mutex_lock(&ct->rm_lock);
	for (i = 0; i < ct->slot_count; i++)
		if (ct->slot[i].gpu->index == gpu)
			ct->slot[i].uvm_device = device;
		else if (ct->slot[i].uvm_device == device)	/* an earlier one's */
			ct->slot[i].uvm_device = NULL;
	mutex_unlock(&ct->rm_lock);
}

/* The slot of the GPU in whose page tables memory is mapped: a peer's, or of system memory any. It has an
 * address space, so it was noted.
 */
static struct ckm_slot *slot_of_device_locked(struct ckm_container *ct, const void *device)
{
	u32 i;

	for (i = 0; device && i < ct->slot_count; i++)
		if (ct->slot[i].uvm_device == device)
			return &ct->slot[i];
	return NULL;
}

/* nvidia-uvm maps dup'ed memory once: charge the page tables of that mapping, on the GPU that maps. The
 * memory stays charged where it lies. False: over the limit.
 */
static bool charge_tables(struct uvm_ref *ref, const void *device, struct cgpu_obj *memory)
{
	u64 overhead = ckm_page_tables_of(ref->ct, memory);
	struct ckm_slot *slot;
	int ret = 0;

	mutex_lock(&ref->ct->rm_lock);
	slot = slot_of_device_locked(ref->ct, device) ?: ckm_container_slot_of(ref->ct, memory->gpu);
	if (slot)
		ret = ckm_slot_overhead_locked(slot, overhead);
	if (slot && !ret) {
		ref->slot = slot;
		ref->overhead = overhead;
	}
	mutex_unlock(&ref->ct->rm_lock);
	return !ret;
}

static void give_begin(struct uvm_ref *ref)
{
	if (ref)
		ckm_mem_ops_begin(ref->ct);
}

static void give_end(struct uvm_ref *ref)
{
	if (!ref)
		return;
	ckm_mem_ops_end(ref->ct);
	drop_charge(ref);
	ckm_container_put(ref->ct);
	kfree_rcu(ref, rcu);
}

/* nvidia-uvm takes a reference to memory, or to a channel's context, of a tenant, for a
 * client of its own. The handles here are the ones that the driver uses, whatever the
 * tenant's memory holds by now. The key for dropping the reference is at @key
 * afterwards.
 */
static u32 charged_take(u32 take, u32 give, unsigned long a, u32 client, u32 handle, void *key,
			void *info)
{
	struct ckm_call *call = ckm_call_mine();
	struct uvm_ref *ref = kzalloc(sizeof(*ref), GFP_KERNEL_ACCOUNT);
	struct cgpu_obj *obj;
	bool kept;
	u32 status;

	if (!ref)
		return NV_ERR_INSUFFICIENT_RESOURCES;
	ref->ct = call->backing->ct;
	obj = ckm_obj_pin(ref->ct, client, handle);
	if (!obj) {
		kfree(ref);
		return NV_ERR_OBJECT_NOT_FOUND;
	}
	ref->mem = take == PROBE_DUP ? ckm_obj_get_mem(ref->ct, obj)
				     : ckm_obj_get_context(ref->ct, obj);
	status = NV_ERR_NO_MEMORY;
	if (take != PROBE_DUP || charge_tables(ref, (const void *)a, obj))
		status = ckm_call_original(a, client, handle, ARG(key), ARG(info), 0,
					   original(call, take));
	kept = status == NV_OK && take == PROBE_RETAIN &&
	       ckm_run_word_add(&ref->word, ref->ct, obj, info);
	ckm_obj_unpin(ref->ct, obj);
	if (status == NV_OK && (ref->mem || ref->slot || kept)) {
		add_uvm_ref(ref, give, give == PROBE_UNDUP ? *(u32 *)key : *(unsigned long *)key);
		return NV_OK;
	}
	drop_charge(ref);
	kfree(ref);
	return status;
}

static u32 charged_dup_memory(void *device, u32 client, u32 memory, u32 *dup, void *info)
{
	return charged_take(PROBE_DUP, PROBE_UNDUP, ARG(device), client, memory, dup, info);
}

static u32 charged_retain_channel(void *space, u32 client, u32 channel, void **retained,
				  void *info)
{
	return charged_take(PROBE_RETAIN, PROBE_RELEASE, ARG(space), client, channel, retained,
			    info);
}

/* nvidia-uvm takes an address space by two handles, of which the driver only asks that the client is
 * the calling process's: a process may hold files of two containers. It holds no memory of its own.
 */
static u32 checked_dup_space(void *device, u32 client, u32 space, void **dup, void *info)
{
	struct ckm_call *call = ckm_call_mine();
	struct cgpu_obj *obj = ckm_obj_pin(call->backing->ct, client, space);
	u32 status;

	if (!obj) {
		ckm_call_denied(call, "another container's address space, uvm call of client",
				client);
		return NV_ERR_OBJECT_NOT_FOUND;
	}
	status = ckm_call_original(ARG(device), client, space, ARG(dup), ARG(info), 0,
				   original(call, PROBE_SPACE));
	if (status == NV_OK)	/* the driver compared the GPUs of both */
		note_device(call->backing->ct, obj->gpu, device);
	ckm_obj_unpin(call->backing->ct, obj);
	return status;
}

/* Any context in which nvidia-uvm drops a reference: a call, a process exit, a release. */
static u32 uncharged_free_dup(void *device, u32 handle)
{
	struct uvm_ref *ref = take_uvm_ref(PROBE_UNDUP, handle);
	u32 status;

	give_begin(ref);
	status = ckm_call_original(ARG(device), handle, 0, 0, 0, 0,
				   ckm_redirect_address(&redirections[PROBE_UNDUP]));
	give_end(ref);
	return status;
}

static void uncharged_release_channel(void *retained)
{
	struct uvm_ref *ref = take_uvm_ref(PROBE_RELEASE, ARG(retained));

	give_begin(ref);
	if (ref)
		ckm_run_word_remove(&ref->word);
	ckm_call_original(ARG(retained), 0, 0, 0, 0, 0,
			  ckm_redirect_address(&redirections[PROBE_RELEASE]));
	give_end(ref);
}

/* Redirected in any context: nvidia-uvm drops references of a container outside of its
 * calls too. Runs in a handler that must not sleep.
 */
static bool wants_free_dup(struct pt_regs *regs)
{
	/* second argument, a 32-bit handle */
	return find_uvm_ref(PROBE_UNDUP, (u32)regs_get_kernel_argument(regs, 1));
}

static bool wants_release_channel(struct pt_regs *regs)
{
	return find_uvm_ref(PROBE_RELEASE, regs_get_kernel_argument(regs, 0));
}

/* Signatures as in nv_uvm_interface.h of kernel-open/. */
static struct ckm_redirection redirections[PROBES] = {
	[PROBE_DUP]	= { "nvUvmInterfaceDupMemory", charged_dup_memory },
	[PROBE_UNDUP]	= { "nvUvmInterfaceFreeDupedHandle", uncharged_free_dup, wants_free_dup },
	[PROBE_RETAIN]	= { "nvUvmInterfaceRetainChannel", charged_retain_channel },
	[PROBE_RELEASE]	= { "nvUvmInterfaceReleaseChannel", uncharged_release_channel,
			    wants_release_channel },
	[PROBE_SPACE]	= { "nvUvmInterfaceDupAddressSpace", checked_dup_space },
};

int ckm_uvm_charge_attach(void)
{
	return ckm_redirect_attach(redirections, PROBES, CKM_NVIDIA, "no container can start");
}

void ckm_uvm_charge_detach(void)
{
	ckm_redirect_detach(redirections);
}

void ckm_uvm_charge_exit(void)
{
	rcu_barrier();	/* kfree_rcu() */
}
