/* SPDX-License-Identifier: MIT OR GPL-2.0 */
/*
 * Channels that become schedulable while their container is frozen. A tenant's call asks for the freeze
 * and waits; the GPU's thread makes it, between two plans.
 */
#ifndef CKM_FREEZE_NEW_H
#define CKM_FREEZE_NEW_H

#include <linux/types.h>

struct ckm_gpu;
struct ckm_group;
struct ckm_obj;
struct ckm_slot;

/* Freeze a pinned channel, or the channels of a group, those of other clients included, if
 * @slot is frozen: to be called before they become schedulable or at once after. Called by the
 * tenant's task, which waits for the GPU's thread. Sleep; take enable_lock, gpu->lock.
 */
void ckm_sched_freeze_new_channel(struct ckm_slot *slot, const struct ckm_obj *channel);
void ckm_sched_freeze_group(struct ckm_slot *slot, const struct ckm_group *group);

/* Whether the scheduler has @slot frozen. Takes gpu->lock. The result stays valid only
 * under gpu->ctrl_lock.
 */
bool ckm_sched_is_frozen(struct ckm_slot *slot);

/* Freeze what calls wait for. The GPU's thread only, with gpu->ctrl_lock; takes gpu->lock. */
void ckm_freeze_requested(struct ckm_gpu *gpu);

#endif
