// SPDX-License-Identifier: MIT OR GPL-2.0-only
/* Forwards one RM call to the driver, or answers it. Takes no lock. */
#include <linux/sched.h>
#include <linux/slab.h>
#include <linux/uaccess.h>

#include "call.h"
#include "core/nv_abi.h"
#include "fields.h"
#include "intercept/backing_file.h"
#include "intercept/rm_call.h"
#include "intercept/witness.h"
#include "state/container.h"

void ckm_call_denied(struct ckm_call *call, const char *what, u32 number)
{
	struct ckm_container *ct = call->backing->ct;
	u32 i;

	/* A control file belongs to no GPU: count the call on each slot. */
	for (i = 0; i < ct->slot_count; i++)
		if (!call->backing->slot || call->backing->slot == &ct->slot[i])
			atomic64_inc(&ct->slot[i].refused_calls);
	ckm_say(ct, "%s 0x%x refused, pid %d\n",
		what, number, task_tgid_nr(current));
}

long ckm_rm_answer(struct ckm_rm_call *rc, u32 status)
{
	if (rc->row.status_at)
		put32(rc->call->top, rc->row.status_at, status);
	return copy_to_user((void __user *)rc->user, rc->call->top, rc->call->size) ? -EFAULT : 0;
}

/* The redirection was switched off after it was checked, and the driver may have run the
 * call with whatever the tenant's memory held: its state is unknown. What the call made
 * goes with the file; until then no call on the file reaches the driver.
 */
static void give_up(struct ckm_rm_call *rc)
{
	struct ckm_backing *backing = rc->call->backing;

	rc->call->unseen = true;
	WRITE_ONCE(backing->given_up, true);
	ckm_alarm(backing->ct, "the driver ran call 0x%x without its redirection; its file is given up\n",
		rc->row.nr);
}

long ckm_rm_forward(struct ckm_rm_call *rc)
{
	struct ckm_backing *backing = rc->call->backing;
	const struct ckm_range *nested = &rc->call->nested;
	bool copied_in = rc->row.verdict != CGPU_PASS;
	long ret;

	if (!ckm_witness(backing))
		return -EIO;
	rc->call->must_enter = copied_in && rc->row.verdict != CGPU_DMABUF;
	/* If the driver fails before it writes a status, the tenant must not read success. */
	if (copied_in)
		put32(rc->call->top, rc->row.status_at, NV_ERR_GENERIC);
	ret = backing->drv->unlocked_ioctl(backing->real, rc->cmd, rc->user);
	if (copied_in && !rc->call->ran && (!ret || !ckm_witness(backing))) {
		give_up(rc);
		ret = -EIO;
	}
	if (nested->answered &&
	    copy_to_user((void __user *)nested->user, nested->copy, nested->size))
		ret = ret ?: -EFAULT;
	return ret;
}

u32 ckm_copy_in_params(struct ckm_call *call, u64 user, u32 size)
{
	void *copy = call->inline_nested;

	if (!user || !size)
		return NV_ERR_INVALID_ARGUMENT;
	if (size > sizeof(call->inline_nested)) {
		copy = kvmalloc(size, GFP_KERNEL_ACCOUNT);
		if (!copy)
			return NV_ERR_INSUFFICIENT_RESOURCES;
	}
	if (copy_from_user(copy, (void __user *)user, size)) {
		if (copy != call->inline_nested)
			kvfree(copy);
		return NV_ERR_INVALID_ADDRESS;
	}
	call->nested = (struct ckm_range){ .user = user, .size = size, .copy = copy };
	return NV_OK;
}
