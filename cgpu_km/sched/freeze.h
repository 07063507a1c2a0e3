/* SPDX-License-Identifier: MIT OR GPL-2.0-only */
/* Freezing and thawing of channels. */
#ifndef CKM_FREEZE_H
#define CKM_FREEZE_H

#include <linux/types.h>

struct ckm_gpu;
struct ckm_group;
struct ckm_obj;

/* Which channels of a slot: all, one, or those of one TSG. The object or group that is named
 * is only compared.
 */
struct ckm_channel_filter {
	const struct ckm_obj *channel;
	const struct ckm_group *group;
};

/* Freeze (@frozen) or thaw all graphics/compute and video channels of the slots in @mask. Returns
 * the mask of slots for which all calls succeeded; @part gets those for which some did. A channel
 * that the driver no longer has is not a failure, and a slot without channels is included. Caller
 * holds gpu->ctrl_lock; takes gpu->lock.
 */
u32 ckm_ctrl_set_frozen(struct ckm_gpu *gpu, u32 mask, bool frozen, u32 *part);

/* Freeze the slot's channels that match @filter, and restart the runlist if the GPU needs
 * that. Errors are recorded as events. False: some may run. Caller holds gpu->ctrl_lock; takes
 * gpu->lock.
 */
bool ckm_ctrl_freeze_some(struct ckm_gpu *gpu, u32 sched_id,
			  const struct ckm_channel_filter *filter);

#endif
