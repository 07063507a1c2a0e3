// SPDX-License-Identifier: MIT OR GPL-2.0-only
/* Owns the redirections in nvidia-uvm's calls. Takes rm_lock. */
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
#include "intercept/uvm_range.h"
#include "registry.h"
#include "state/container.h"
#include "state/gpu.h"
#include "state/memory.h"

enum {
	PROBE_SPACE, PROBE_REGISTER, PROBE_POOL, PROBE_EXTERNAL, PROBE_FREE, PROBE_MANAGED,
	PROBE_GROUP, PROBE_UNGROUP,	/* up to branch 595 */
	PROBES
};

#define BRANCH_WITHOUT_GROUPS	610

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

/* ---- ranges ---- */

/* @params is the driver's copy: base and length first, in all branches. */
static u32 made_range(u32 kind, u32 probe, const u64 *params, struct file *file)
{
	struct ckm_call *call = ckm_call_mine();
	struct ckm_uvm_range *range;
	u32 status;

	call->uvm_seen = true;
	range = ckm_uvm_range_charge(call, kind, params[0], params[1]);
	if (!range)
		return NV_ERR_NO_MEMORY;
	status = ckm_call_original(ARG(params), ARG(file), 0, 0, 0, 0, original(call, probe));
	if (status == NV_OK)
		ckm_uvm_range_list(call->backing, range);
	else
		ckm_uvm_range_drop(call->backing->ct, range);
	return status;
}

static u32 charged_pool(const u64 *params, struct file *file)
{
	return made_range(CKM_UVM_POOL, PROBE_POOL, params, file);
}

static u32 charged_external(const u64 *params, struct file *file)
{
	return made_range(CKM_UVM_EXTERNAL, PROBE_EXTERNAL, params, file);
}

static u32 uncharged_free(const u64 *params, struct file *file)
{
	struct ckm_call *call = ckm_call_mine();
	struct ckm_uvm_range *range = ckm_uvm_range_take(call->backing, params[0]);
	u32 status = ckm_call_original(ARG(params), ARG(file), 0, 0, 0, 0,
				       original(call, PROBE_FREE));

	if (range && status == NV_OK)
		ckm_uvm_range_drop(call->backing->ct, range);
	else if (range)
		ckm_uvm_range_list(call->backing, range);
	return status;
}

static u32 charged_group(const void *params, struct file *file)
{
	struct ckm_call *call = ckm_call_mine();
	u32 status;

	call->uvm_seen = true;
	if (ckm_uvm_group_charge(call))
		return NV_ERR_NO_MEMORY;
	status = ckm_call_original(ARG(params), ARG(file), 0, 0, 0, 0, original(call, PROBE_GROUP));
	if (status != NV_OK)
		ckm_uvm_group_uncharge(call->backing);
	return status;
}

static u32 uncharged_group(const void *params, struct file *file)
{
	struct ckm_call *call = ckm_call_mine();
	u32 status = ckm_call_original(ARG(params), ARG(file), 0, 0, 0, 0,
				       original(call, PROBE_UNGROUP));

	if (status == NV_OK)
		ckm_uvm_group_uncharge(call->backing);
	return status;
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
	if (ckm_managed_allowed(backing->ct) && !ckm_uvm_is_pool(backing, vma->vm_start, vma->vm_end))
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
	if (ckm_uvm_space_charge(call))
		return NV_ERR_NO_MEMORY;
	call->backing->space_flags = flags;
	call->backing->space_mm = current->mm;
	/* A call that finds the space finds its flags and its process. */
	smp_store_release(&call->backing->space_no_hmm, true);
	flags |= UVM_INIT_FLAGS_DISABLE_HMM | UVM_INIT_FLAGS_MULTI_PROCESS_SHARING_MODE;
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
	[PROBE_EXTERNAL]	= { "uvm_api_create_external_range", charged_external },
	[PROBE_FREE]		= { "uvm_api_free", uncharged_free },
	[PROBE_MANAGED]		= { "uvm_va_range_create_mmap", no_managed_range, in_pools_only },
	[PROBE_GROUP]		= { "uvm_api_create_range_group", charged_group },
	[PROBE_UNGROUP]		= { "uvm_api_destroy_range_group", uncharged_group },
};

int ckm_uvm_attach(bool quiet)
{
	lockdep_assert_held(&ckm_lock);
	if (ckm_uvm_is_redirected() || !ckm_driver_uvm_major())
		return 0;
	return ckm_redirect_attach(redirections,
				   ckm_driver_branch() < BRANCH_WITHOUT_GROUPS ? PROBES : PROBE_GROUP, CKM_NVIDIA_UVM,
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
