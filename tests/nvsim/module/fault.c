// SPDX-License-Identifier: MIT OR GPL-2.0-only
/* Calls that fail on purpose: the nth from now, or all of them because the GPU left the bus. */
#include <linux/spinlock.h>

#include "nvsim.h"

static DEFINE_SPINLOCK(fault_lock);

/* Counts calls of fault_cmd (a control, a class, or the number of another operation). */
static bool is_next(u32 cmd)
{
	bool hit = false;

	if (nvsim.fault_cmd && nvsim.fault_cmd != cmd)
		return false;
	spin_lock(&fault_lock);
	if (nvsim.fault_nth == 1) {
		hit = true;
		if (--nvsim.fault_times < 1) {
			nvsim.fault_times = 1;
			nvsim.fault_nth = 0;
		}
	} else if (nvsim.fault_nth) {
		nvsim.fault_nth--;
	}
	spin_unlock(&fault_lock);
	return hit;
}

enum nvsim_fault nvsim_fault_hit(u32 cmd, u32 *status)
{
	if (READ_ONCE(nvsim.gone)) {
		*status = NV_ERR_GPU_IS_LOST;
		return NVSIM_FAULT_FAILS;
	}
	if (!is_next(cmd))
		return NVSIM_FAULT_NONE;
	pr_info_ratelimited("fault %d in call %#x\n", nvsim.fault_kind, cmd);
	switch (nvsim.fault_kind) {
	case 1:
		*status = NV_ERR_TIMEOUT;
		return NVSIM_FAULT_FAILS;
	case 2:
		return NVSIM_FAULT_ONES;
	case 3:
		return NVSIM_FAULT_LONGER;
	default:
		*status = NV_ERR_INSUFFICIENT_RESOURCES;
		return NVSIM_FAULT_FAILS;
	}
}
