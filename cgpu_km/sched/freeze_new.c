// SPDX-License-Identifier: MIT OR GPL-2.0
/* Owns ckm_slot.request. Takes enable_lock, gpu->lock; the GPU's thread holds ctrl_lock. */
#include <linux/ktime.h>

#include "core_ref.h"
#include "sched/choose.h"
#include "sched/freeze_new.h"
#include "sched/runlist.h"
#include "state/container.h"
#include "state/gpu.h"

static bool is_frozen_locked(struct ckm_slot *slot)
{
	struct ckm_gpu *gpu = slot->gpu;
	const struct cgpu_core_ops *core;
	bool frozen = true;

	lockdep_assert_held(&gpu->lock);
	core = ckm_core_enter();
	if (core) {
		frozen = core->sched.is_frozen(gpu->sched, slot->sched_id);
		ckm_core_leave();
	}
	return frozen;
}

bool ckm_sched_is_frozen(struct ckm_slot *slot)
{
	bool frozen;

	mutex_lock(&slot->gpu->lock);
	frozen = is_frozen_locked(slot);
	mutex_unlock(&slot->gpu->lock);
	return frozen;
}

/* The new channels may run: let the core charge and report that, and repeat the freeze. */
static void freeze_failed(struct ckm_slot *slot)
{
	struct ckm_gpu *gpu = slot->gpu;
	const struct cgpu_core_ops *core;

	lockdep_assert_held(&gpu->ctrl_lock);	/* no plan is under way */
	mutex_lock(&gpu->lock);
	core = ckm_core_enter();
	if (core) {
		core->sched.freeze_failed(gpu->sched, slot->sched_id, ktime_get_ns());
		ckm_core_leave();
	}
	mutex_unlock(&gpu->lock);
	ckm_gpu_kick(gpu);
}

/* The task that waits keeps the slot, and what its filter names. */
void ckm_freeze_requested(struct ckm_gpu *gpu)
{
	struct ckm_slot *slot;
	bool frozen;
	u32 mask;

	lockdep_assert_held(&gpu->ctrl_lock);	/* a slot stays frozen from the check to the call */
	mutex_lock(&gpu->lock);
	mask = gpu->requested;
	gpu->requested = 0;
	mutex_unlock(&gpu->lock);
	for (; mask; mask &= mask - 1) {
		mutex_lock(&gpu->lock);
		slot = gpu->slot[__ffs(mask)];
		frozen = is_frozen_locked(slot);
		mutex_unlock(&gpu->lock);
		if (frozen && !ckm_ctrl_freeze_some(gpu, slot->sched_id, &slot->request))
			freeze_failed(slot);
		complete(&slot->requested);
	}
}

/* The GPU's thread makes the calls: a tenant's task may be throttled by its cgroup, or be of a low
 * priority, and would keep ctrl_lock meanwhile, for which the next hand-over waits.
 */
static void freeze_new(struct ckm_slot *slot, struct ckm_channel_filter filter)
{
	struct ckm_gpu *gpu = slot->gpu;
	bool frozen;

	/* One call of the slot at a time, so that a plan waits for one at most. */
	mutex_lock(&slot->enable_lock);
	mutex_lock(&gpu->lock);
	/* If it is not frozen by the latest plan, the next one freezes these channels too. */
	ckm_choose_enabled_locked(slot, &filter);
	frozen = is_frozen_locked(slot);
	if (frozen) {
		slot->request = filter;
		reinit_completion(&slot->requested);
		gpu->requested |= BIT(slot->sched_id);
	}
	mutex_unlock(&gpu->lock);
	if (frozen) {
		ckm_gpu_kick(gpu);
		wait_for_completion(&slot->requested);
	}
	mutex_unlock(&slot->enable_lock);
}

void ckm_sched_freeze_new_channel(struct ckm_slot *slot, const struct ckm_obj *channel)
{
	freeze_new(slot, (struct ckm_channel_filter) { .channel = channel });
}

void ckm_sched_freeze_group(struct ckm_slot *slot, const struct ckm_group *group)
{
	freeze_new(slot, (struct ckm_channel_filter) { .group = group });
}
