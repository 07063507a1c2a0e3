// SPDX-License-Identifier: MIT OR GPL-2.0-only
/* Owns semaphore pools and the redirections in nvidia-uvm. Takes rm_lock. */
#include <linux/mm.h>
#include <linux/slab.h>

#include "call.h"
#include "compat.h"
#include "core/nv_abi.h"
#include "core_ref.h"
#include "driver/driver.h"
#include "driver/proc_devices.h"
#include "driver/redirect.h"
#include "intercept/backing_file.h"
#include "intercept/rm_call.h"
#include "intercept/uvm.h"
#include "intercept/uvm_managed.h"
#include "registry.h"
#include "state/container.h"
#include "state/gpu.h"
#include "state/memory.h"

/* Limit for all semaphore pools of a container, for each of its GPUs: they are system
 * memory that the driver charges to no process. libcuda makes one of 2 MiB for each
 * context.
 */
#define POOLS_MAX	(256 * CGPU_MIB)

/* What a pool counts at least: so there are 1,024 of them for each GPU, and the list is short. */
#define POOL_LEAST	(256u << 10)

/* A semaphore pool: charged before the driver makes it, uncharged after the driver
 * freed it.
 */
struct pool {
	struct list_head node;		/* ct->rm_lock; backing->pools, oldest first, once made */
	u64 base, length;		/* as in the driver */
	u64 pt_bytes;			/* bytes charged on each slot: its page tables */
};

enum { PROBE_SPACE, PROBE_REGISTER, PROBE_POOL, PROBE_FREE, PROBE_MANAGED, PROBES };

static struct ckm_redirection redirections[PROBES];

static void *original(struct ckm_call *call, u32 row)
{
	return ckm_redirect_original(call, &redirections[row]);
}

/* ---- GPUs ---- */

static bool has_uuid(const struct ckm_container *ct, const u8 *uuid)
{
	u32 i;

	for (i = 0; i < ct->slot_count; i++)
		if (ct->slot[i].gpu->has_uuid &&
		    !memcmp(ct->slot[i].gpu->raw_uuid.b, uuid, UUID_SIZE))
			return true;
	return false;
}

/* @uuid is the driver's copy, which it uses from here on. All other calls that name a
 * GPU find it only among the registered ones.
 */
static u32 checked_register_gpu(void *space, const u8 *uuid, void *device, void *numa,
				void *node, void *uuid_out)
{
	struct ckm_call *call = ckm_call_mine();

	call->uvm_seen = true;
	if (!has_uuid(call->backing->ct, uuid)) {
		ckm_call_denied(call, "another container's GPU, uvm call", UVM_REGISTER_GPU);
		return NV_ERR_GPU_UUID_NOT_FOUND;
	}
	return ckm_call_original(ARG(space), ARG(uuid), ARG(device), ARG(numa), ARG(node),
				 ARG(uuid_out), original(call, PROBE_REGISTER));
}

/* ---- semaphore pools ---- */

static void less_tables_locked(struct ckm_container *ct, u32 slots, u64 pt_bytes)
{
	while (slots--)
		ckm_slot_overhead_less_locked(&ct->slot[slots], pt_bytes);
}

static u64 counted_bytes(const struct pool *pool)
{
	return max_t(u64, pool->length, POOL_LEAST);
}

static bool charge_locked(struct ckm_call *call, const struct pool *pool)
{
	struct ckm_container *ct = call->backing->ct;
	const u64 max = POOLS_MAX * ct->slot_count, bytes = counted_bytes(pool);
	u32 i;

	lockdep_assert_held(&ct->rm_lock);
	if (bytes > max || ct->pool_bytes > max - bytes) {
		ckm_call_denied(call, "semaphore pool over the cap, uvm call",
				UVM_ALLOC_SEMAPHORE_POOL);
		return false;
	}
	for (i = 0; i < ct->slot_count; i++)
		if (ckm_slot_overhead_locked(&ct->slot[i], pool->pt_bytes)) {
			less_tables_locked(ct, i, pool->pt_bytes);
			return false;
		}
	if (ckm_host_charge_locked(ct, bytes)) {
		less_tables_locked(ct, ct->slot_count, pool->pt_bytes);
		return false;
	}
	ct->pool_bytes += bytes;
	return true;
}

static void uncharge_locked(struct ckm_container *ct, const struct pool *pool)
{
	lockdep_assert_held(&ct->rm_lock);
	ct->pool_bytes -= counted_bytes(pool);
	ckm_host_uncharge_locked(ct, counted_bytes(pool));
	less_tables_locked(ct, ct->slot_count, pool->pt_bytes);
}

static void drop(struct ckm_container *ct, struct pool *pool)
{
	mutex_lock(&ct->rm_lock);
	uncharge_locked(ct, pool);
	mutex_unlock(&ct->rm_lock);
	kfree(pool);
}

static struct pool *new_pool(struct ckm_call *call, u64 base, u64 length)
{
	struct ckm_container *ct = call->backing->ct;
	struct pool *pool = kzalloc(sizeof(*pool), GFP_KERNEL_ACCOUNT);
	const struct cgpu_core_ops *core;
	bool charged;

	if (!pool)
		return NULL;
	pool->base = base;
	pool->length = length;
	core = ckm_core_enter();
	pool->pt_bytes = core->mem.page_tables(length);
	ckm_core_leave();
	mutex_lock(&ct->rm_lock);
	charged = charge_locked(call, pool);
	mutex_unlock(&ct->rm_lock);
	if (charged)
		return pool;
	kfree(pool);
	return NULL;
}

static void list_pool(struct ckm_backing *backing, struct pool *pool)
{
	mutex_lock(&backing->ct->rm_lock);
	list_add_tail(&pool->node, &backing->pools);
	mutex_unlock(&backing->ct->rm_lock);
}

/* The pool is removed from the list before the driver frees it: a pool that another
 * thread makes at the same address meanwhile is another one. A tenant that races frees
 * with allocations can leave a pool charged until its file is gone, but none uncharged.
 */
static struct pool *take_pool(struct ckm_backing *backing, u64 base)
{
	struct pool *pool, *found = NULL;

	mutex_lock(&backing->ct->rm_lock);
	list_for_each_entry(pool, &backing->pools, node)
		if (pool->base == base) {
			found = pool;
			list_del(&pool->node);
			break;
		}
	mutex_unlock(&backing->ct->rm_lock);
	return found;
}

static bool is_pool(struct ckm_backing *backing, u64 start, u64 end)
{
	struct pool *pool;
	bool found = false;

	mutex_lock(&backing->ct->rm_lock);
	list_for_each_entry(pool, &backing->pools, node)
		found |= pool->base == start && pool->length == end - start;
	mutex_unlock(&backing->ct->rm_lock);
	return found;
}

/* @params is the driver's copy: base and length first, in all branches. */
static u32 charged_pool(const u64 *params, struct file *file)
{
	struct ckm_call *call = ckm_call_mine();
	struct pool *pool;
	u32 status;

	call->uvm_seen = true;
	pool = new_pool(call, params[0], params[1]);
	if (!pool)
		return NV_ERR_NO_MEMORY;
	status = ckm_call_original(ARG(params), ARG(file), 0, 0, 0, 0, original(call, PROBE_POOL));
	if (status == NV_OK)
		list_pool(call->backing, pool);
	else
		drop(call->backing->ct, pool);
	return status;
}

static u32 uncharged_free(const u64 *params, struct file *file)
{
	struct ckm_call *call = ckm_call_mine();
	struct pool *pool = take_pool(call->backing, params[0]);
	u32 status = ckm_call_original(ARG(params), ARG(file), 0, 0, 0, 0,
				       original(call, PROBE_FREE));

	if (pool && status == NV_OK)
		drop(call->backing->ct, pool);
	else if (pool)
		list_pool(call->backing, pool);
	return status;
}

void ckm_uvm_release(struct ckm_container *ct, struct ckm_backing *backing)
{
	struct pool *pool, *next;

	mutex_lock(&ct->rm_lock);
	list_for_each_entry_safe(pool, next, &backing->pools, node) {
		uncharge_locked(ct, pool);
		list_del(&pool->node);
		kfree(pool);
	}
	mutex_unlock(&ct->rm_lock);
}

/* ---- mmap ---- */

/* Replaces uvm_va_range_create_mmap(). For an address in use, the driver looks for a
 * semaphore pool of exactly this range: so pools can be mapped, and nothing else.
 */
static u32 no_managed_range(void *space, void *mm, void *vma, void *range)
{
	ckm_call_mine()->uvm_seen = true;
	return NV_ERR_UVM_ADDRESS_IN_USE;
}

static int map_pool(struct ckm_backing *backing, struct vm_area_struct *vma)
{
	struct ckm_call call;
	int ret = ckm_call_begin(&call, backing);

	if (ret)
		return ret;
	call.uvm_pools_only = true;
	vma_set_file(vma, backing->real);
	ret = backing->drv->mmap(backing->real, vma);
	ckm_call_end(&call);
	if (!ret && !call.uvm_seen) {
		/* The redirection was missed, and this may be a managed range: close
		 * it as munmap() would.
		 */
		if (vma->vm_ops && vma->vm_ops->close)
			vma->vm_ops->close(vma);
		ret = -EPERM;
	}
	/* The driver's -EINVAL, as for an address other than the offset: no pool either. */
	if (ret == -EINVAL || (ret && call.uvm_seen)) {
		ckm_say(backing->ct, "managed memory (cudaMallocManaged) refused, pid %d: uvm is deny\n",
			task_tgid_nr(current));
		ret = -EPERM;
	}
	return ret;
}

int ckm_uvm_mmap(struct ckm_backing *backing, struct vm_area_struct *vma)
{
	/* Pairs with space_without_process(): space_mm and space_flags are set. */
	if (!smp_load_acquire(&backing->space_no_hmm))
		return -EBADFD;		/* as in the driver */
	/* As the driver does where a space belongs to a process: not in another one. */
	if (backing->space_mm != current->mm)
		return -EPERM;
	if (ckm_managed_allowed(backing->ct) && !is_pool(backing, vma->vm_start, vma->vm_end))
		return ckm_managed_mmap(backing, vma);
	return map_pool(backing, vma);
}

/* ---- redirection ---- */

/* Set two flags of UVM_INITIALIZE, whatever the tenant's flags are. With HMM, a kernel that
 * touches malloc'd memory migrates its pages to video memory, and no call shows it. A space
 * that belongs to a process works only after UVM_MM_INITIALIZE, which finds the space by a
 * descriptor of the tenant, and that is our file: UVM_REGISTER_GPU_VASPACE fails with
 * NV_ERR_PAGE_TABLE_NOT_AVAIL (0x5d). In multi-process sharing mode a space belongs to none
 * (docs/decisions/0017).
 */
static u32 space_without_process(void *mapping, void *space, u64 flags)
{
	struct ckm_call *call = ckm_call_mine();

	call->uvm_seen = true;
	call->backing->space_flags = flags;
	call->backing->space_mm = current->mm;
	/* A call that finds the space finds its flags and its process. */
	smp_store_release(&call->backing->space_no_hmm, true);
	flags |= UVM_INIT_FLAGS_DISABLE_HMM | UVM_INIT_FLAGS_MULTI_PROCESS;
	return ckm_call_original(ARG(mapping), ARG(space), flags, 0, 0, 0,
				 original(call, PROBE_SPACE));
}

static bool in_pools_only(struct pt_regs *regs)
{
	struct ckm_call *call = ckm_call_mine();

	return call && call->uvm_pools_only;
}

/* Functions of nvidia-uvm.ko that are called from other files, with arguments that are
 * the same from 535 to 595 as far as they are used here.
 */
static struct ckm_redirection redirections[PROBES] = {
	[PROBE_SPACE]		= { "uvm_va_space_create", space_without_process },
	[PROBE_REGISTER]	= { "uvm_va_space_register_gpu", checked_register_gpu },
	[PROBE_POOL]		= { "uvm_api_alloc_semaphore_pool", charged_pool },
	[PROBE_FREE]		= { "uvm_api_free", uncharged_free },
	[PROBE_MANAGED]		= { "uvm_va_range_create_mmap", no_managed_range, in_pools_only },
};

int ckm_uvm_attach(bool quiet)
{
	lockdep_assert_held(&ckm_lock);
	if (ckm_uvm_is_redirected() || !ckm_driver_uvm_major())
		return 0;
	return ckm_redirect_attach(redirections, PROBES, CKM_NVIDIA_UVM,
				   quiet ? NULL : "containers get no address spaces");
}

bool ckm_uvm_is_redirected(void)
{
	return ckm_redirect_attached(CKM_NVIDIA_UVM);
}

void ckm_uvm_detach(void)
{
	ckm_redirect_detach(redirections);
}
