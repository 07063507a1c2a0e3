/* SPDX-License-Identifier: MIT OR GPL-2.0 */
/* One thread per GPU: gets a plan from the core's scheduler, makes the calls, and
 * acknowledges to the core when each took effect.
 */
#ifndef CKM_SCHED_THREAD_H
#define CKM_SCHED_THREAD_H

#include <linux/types.h>

struct ckm_gpu;
struct ckm_slot;

/* 0, or an error of kthread_create(). Sleeps. stop waits for the thread. */
int ckm_sched_thread_start(struct ckm_gpu *gpu);
void ckm_sched_thread_stop(struct ckm_gpu *gpu);	/* no-op if it does not run */

/* Freeze the channel, or the channels of the TSG, with handle @object if @slot is frozen:
 * to be called before they become schedulable or at once after. Runs in the tenant's call,
 * before that returns. Sleeps; takes enable_lock, ctrl_lock, gpu->lock.
 */
void ckm_sched_freeze_new_channel(struct ckm_slot *slot, u32 client, u32 object);

/* Whether the scheduler has @slot frozen. Takes gpu->lock. The result stays valid only
 * under gpu->ctrl_lock.
 */
bool ckm_sched_is_frozen(struct ckm_slot *slot);

#endif
