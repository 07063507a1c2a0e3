/* SPDX-License-Identifier: MIT OR GPL-2.0-only */
/* The timeslices of TSGs: which one each has, and the calls that set them. */
#ifndef CKM_TIMESLICE_H
#define CKM_TIMESLICE_H

#include <linux/types.h>

struct cgpu_step;
struct ckm_gpu;

/* Set the timeslices that @s asks for, of the TSGs that have another one, in 16 calls at most. Returns
 * the slots whose TSGs all have it; @more gets those that have more of them. For the others a call
 * failed, or there is no memory; failed calls are recorded as events. @called gets the slots of which
 * a TSG was set. They take effect with ckm_ctrl_commit(). Caller holds gpu->ctrl_lock; takes gpu->lock.
 * May sleep.
 */
u32 ckm_timeslices_set(struct ckm_gpu *gpu, const struct cgpu_step *s, u32 *more, u32 *called);

#endif
