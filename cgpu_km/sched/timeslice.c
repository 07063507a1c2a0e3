// SPDX-License-Identifier: MIT OR GPL-2.0-only
/* Owns which timeslice each TSG has. Takes gpu->lock. */
#include <linux/mm.h>
#include <linux/slab.h>

#include "core/nv_abi.h"
#include "core/sched_step.h"
#include "driver/driver.h"
#include "sched/runlist.h"
#include "sched/timeslice.h"
#include "state/container.h"
#include "state/gpu.h"
#include "state/notify.h"
#include "state/rm_object.h"
#include "state/slot.h"

/* Calls between two plans, of 0.3 ms each on an H100: a hand-over that is due does not wait for all
 * TSGs of a crowd.
 */
#define CALLS_MAX	16

struct tsgs {
	u32 count, set;		/* @set: of them, those that the driver has set */
	u32 failed;		/* NV_STATUS of the latest failure */
	bool more;		/* the slot has more that need it */
	struct {
		u32 client, object;
		const struct ckm_group *group;	/* only compared */
	} list[CALLS_MAX];
};

/* One handle of each TSG of a slot that has another timeslice than @timeslice_us, @most of them. Their
 * records have it from here on.
 */
static void take_tsgs(struct ckm_gpu *gpu, u32 sched_id, u32 timeslice_us, u32 most,
		      struct tsgs *tsgs)
{
	const struct ckm_obj *handle;
	struct ckm_group *group;
	struct ckm_slot *slot;

	spin_lock(&gpu->lock);
	slot = gpu->slot[sched_id];
	if (slot)
		list_for_each_entry(group, &slot->tsgs, sched) {
			if (group->set_us == timeslice_us)
				continue;
			tsgs->more = tsgs->count == most;
			if (tsgs->more)
				break;
			handle = list_first_entry(&group->handles, struct ckm_obj, sched);
			tsgs->list[tsgs->count].client = handle->core.hclient;
			tsgs->list[tsgs->count].object = handle->core.hobject;
			tsgs->list[tsgs->count++].group = group;
			group->set_us = timeslice_us;
		}
	spin_unlock(&gpu->lock);
}

/* The driver did not set that of @failed. If it is gone, a new TSG may have its place: set again, after the others: a
 * tenant can have any number of which the driver sets none, and they would be the first each time.
 */
static void forget_group(struct ckm_gpu *gpu, u32 sched_id, const struct ckm_group *failed)
{
	struct ckm_group *group;
	struct ckm_slot *slot;

	spin_lock(&gpu->lock);
	slot = gpu->slot[sched_id];
	if (slot)
		list_for_each_entry(group, &slot->tsgs, sched)
			if (group == failed) {
				group->set_us = U32_MAX;
				list_move_tail(&group->sched, &slot->tsgs);
				break;
			}
	spin_unlock(&gpu->lock);
}

/* The timeslice that the driver gives a TSG. Tenants do not set any: their calls are answered. */
static void read_default(struct ckm_gpu *gpu, u32 client, u32 tsg)
{
	u64 params = 0;
	u32 status = ckm_drv_control(client, tsg, NVA06C_CTRL_CMD_GET_TIMESLICE, &params, sizeof(params));

	if (status != NV_OK || !params || params > CGPU_TIMESLICE_MAX_US)
		params = CGPU_TIMESLICE_US;
	gpu->ctrl.timeslice_us = (u32)params;
}

static void set_timeslice(struct ckm_gpu *gpu, u32 sched_id, u32 timeslice_us, struct tsgs *tsgs)
{
	u32 i, status;
	u64 params;

	/* Before the first that the module sets: later a TSG may have that one. */
	if (tsgs->count && !gpu->ctrl.timeslice_us)
		read_default(gpu, tsgs->list[0].client, tsgs->list[0].object);
	params = timeslice_us ?: gpu->ctrl.timeslice_us;
	for (i = 0; i < tsgs->count; i++) {
		status = ckm_ctrl_timed(gpu, CKM_CTRL_OF_TIMESLICE, tsgs->list[i].client,
					tsgs->list[i].object, NVA06C_CTRL_CMD_SET_TIMESLICE,
					&params, sizeof(params));
		if (status == NV_OK) {
			tsgs->set++;
			continue;
		}
		tsgs->failed = status;
		forget_group(gpu, sched_id, tsgs->list[i].group);
	}
	if (tsgs->failed != NV_OK)
		ckm_events_control_failed(gpu, sched_id, CGPU_CTRL_TIMESLICE, tsgs->failed);
}

u32 ckm_timeslices_set(struct ckm_gpu *gpu, const struct cgpu_step *s, u32 *more, u32 *called)
{
	u32 mask, slot, timeslice_us, left = CALLS_MAX, done = 0;
	struct tsgs *tsgs = kmalloc(sizeof(*tsgs), GFP_KERNEL);

	lockdep_assert_held(&gpu->ctrl_lock);
	for (mask = tsgs ? s->mask : 0; mask; mask &= mask - 1) {
		slot = __ffs(mask);
		timeslice_us = s->plan.timeslice_us[slot];
		tsgs->count = 0;
		tsgs->set = 0;
		tsgs->failed = NV_OK;
		tsgs->more = false;
		take_tsgs(gpu, slot, timeslice_us, left, tsgs);
		set_timeslice(gpu, slot, timeslice_us, tsgs);
		left -= tsgs->count;
		*called |= tsgs->set ? BIT(slot) : 0;
		if (tsgs->failed == NV_OK && tsgs->more)
			*more |= BIT(slot);
		else if (tsgs->failed == NV_OK)
			done |= BIT(slot);
	}
	kfree(tsgs);
	return done;
}
