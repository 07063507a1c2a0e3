// SPDX-License-Identifier: MIT OR GPL-2.0-only
/* Passes or refuses the ioctls of nvidia-uvm, and charges their page tables. Takes rm_lock. */
#include <linux/pagemap.h>
#include <linux/uaccess.h>

#include "call.h"
#include "compat.h"
#include "core/nv_abi.h"
#include "core_ref.h"
#include "driver/driver.h"
#include "intercept/backing_file.h"
#include "intercept/rm_call.h"
#include "intercept/uvm_ioctl.h"
#include "intercept/uvm_managed.h"
#include "intercept/witness.h"
#include "pure/mem_estimate.h"
#include "state/container.h"
#include "state/memory.h"

/* The driver would compare with the flags that uvm.c changed: compare with the tenant's. */
static long initialize_again(struct ckm_backing *backing, const struct cgpu_uvm_call *row,
			     unsigned long user)
{
	u64 flags;

	if (get_user(flags, (u64 __user *)user))
		return -EFAULT;
	return put_user(flags == backing->space_flags ? NV_OK : NV_ERR_INVALID_ARGUMENT,
			(u32 __user *)(user + row->status_at));
}

/* Charge @more bytes of page tables on each GPU of the container, until the backing
 * file is gone. Used for mappings of calls that have the addresses in user memory,
 * which the tenant can change. -ENOMEM: nothing changed.
 */
static int charge_tables(struct ckm_backing *backing, u64 more)
{
	struct ckm_container *ct = backing->ct;
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
		backing->pt_bytes += more;
	mutex_unlock(&ct->rm_lock);
	return ret;
}

/* Ranges of nvidia-uvm's own appear neither as a dup of memory nor as a mapping: charge
 * their page tables, estimated as those of a mapping of one page. A call that unmaps
 * them has the addresses in user memory too, so the charge stays until the file is gone.
 * Programs make a few ranges for each GPU.
 */
static int charge_uvm_tables(struct ckm_backing *backing)
{
	return charge_tables(backing, cgpu_estimate_page_tables(0));
}

/* Whether the call may allocate or free video memory, of page tables, channels or
 * managed memory. Queries and a range without mappings do not.
 */
static bool is_mem_op(u32 nr)
{
	switch (nr) {
	case UVM_PAGEABLE_MEM_ACCESS:
	case UVM_PAGEABLE_MEM_ACCESS_ON_GPU:
	case UVM_VALIDATE_VA_RANGE:
	case UVM_CREATE_EXTERNAL_RANGE:
		return false;
	}
	return true;
}

/* Calls that must reach a redirection in uvm.c. */
static bool uvm_call_is_checked(u32 nr)
{
	return nr == UVM_REGISTER_GPU || nr == UVM_ALLOC_SEMAPHORE_POOL ||
	       nr == UVM_CREATE_EXTERNAL_RANGE || nr == UVM_CREATE_RANGE_GROUP;
}

/* A redirection was missed, or switched off while the call ran: the driver's state is
 * unknown. Without space_no_hmm later calls fail, as on a file without an address space.
 */
static void taint_space(struct ckm_backing *backing, u32 nr)
{
	WRITE_ONCE(backing->space_no_hmm, false);
	ckm_alarm(backing->ct, "uvm call %u ran without a redirection; its address space is given up\n",
		nr);
}

/* nvidia-uvm's structs are not copied in. The memory that a call takes or gives back is
 * charged where the driver takes it or gives it back (uvm_charge.c, uvm.c).
 */
long ckm_uvm_ioctl(struct ckm_call *call, unsigned int cmd, unsigned long user)
{
	struct ckm_backing *backing = call->backing;
	const struct cgpu_core_ops *core = ckm_core_enter();
	const struct cgpu_uvm_call *found = core->nv.uvm(ckm_driver_branch(), cmd);
	struct cgpu_uvm_call row = { .verdict = CGPU_REFUSE };
	bool mem_op, checked, has_space;
	long ret;

	if (found)
		row = *found;
	ckm_core_leave();
	if (row.verdict == CGPU_REFUSE ||
	    (row.verdict == CGPU_UVM_MANAGED && !ckm_managed_allowed(backing->ct))) {
		ckm_call_denied(call, "uvm call", cmd);
		return -EINVAL;
	}
	/* Nothing is there: zeros, and the status behind them. */
	if (row.verdict == CGPU_ANSWER_OK && clear_user((void __user *)user, row.status_at))
		return -EFAULT;
	if (row.verdict == CGPU_ANSWER_OK || row.verdict == CGPU_ANSWER_NOTHING)
		return put_user(row.verdict == CGPU_ANSWER_OK ? NV_OK : NV_WARN_NOTHING_TO_DO,
				(u32 __user *)(user + row.status_at));
	/* Pairs with space_without_process() in uvm.c. */
	has_space = smp_load_acquire(&backing->space_no_hmm);
	if (row.nr == UVM_INITIALIZE) {
		if (has_space)
			return initialize_again(backing, &row, user);
	} else if (row.status_at && !has_space) {
		/* As the driver answers for a file without an address space. One that
		 * was made while the probe was missed counts as none.
		 */
		return put_user(NV_ERR_ILLEGAL_ACTION, (u32 __user *)(user + row.status_at));
	}
	if (row.nr == UVM_MAP_DYNAMIC_PARALLELISM_REGION && charge_uvm_tables(backing))
		return put_user(NV_ERR_NO_MEMORY, (u32 __user *)(user + row.status_at));
	checked = uvm_call_is_checked(row.nr);
	/* If the driver cannot read the struct, it does not reach the redirection: fail
	 * here, so that this is not taken for a missed probe.
	 */
	if (checked && fault_in_readable((void __user *)user, row.size))
		return -EFAULT;
	if (!ckm_witness(backing))
		return -EIO;
	/* A query must not write a cache line that all CPUs share. */
	mem_op = is_mem_op(row.nr);
	if (mem_op)
		ckm_mem_ops_begin(backing->ct);
	ret = backing->drv->unlocked_ioctl(backing->real, cmd, user);
	if (mem_op)
		ckm_mem_ops_end(backing->ct);
	if ((checked && !call->uvm_seen && (!ret || ret == -EFAULT)) || !ckm_witness(backing))
		taint_space(backing, row.nr);
	return ret;
}

void ckm_uvm_tables_release(struct ckm_container *ct, struct ckm_backing *backing)
{
	u32 i;

	mutex_lock(&ct->rm_lock);
	for (i = 0; i < ct->slot_count; i++)
		ckm_slot_overhead_less_locked(&ct->slot[i], backing->pt_bytes);
	mutex_unlock(&ct->rm_lock);
}
