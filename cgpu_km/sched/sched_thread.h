/* SPDX-License-Identifier: MIT OR GPL-2.0-only */
/* One thread per GPU: it drives the core's step machine (core/sched_step.h), makes the calls and
 * reads the run state.
 */
#ifndef CKM_SCHED_THREAD_H
#define CKM_SCHED_THREAD_H

#include <linux/types.h>

struct ckm_gpu;
struct ckm_group;
struct ckm_obj;
struct ckm_slot;

/* The queue of ckm_sched_freeze_new_channel() and ckm_sched_freeze_group(). 0 or -ENOMEM; exit: no container is left. */
int ckm_sched_init(void);
void ckm_sched_exit(void);

/* 0, or an error of kthread_create(). Sleep; caller holds ckm_lock; stop waits for the thread. */
int ckm_sched_thread_start(struct ckm_gpu *gpu);
void ckm_sched_thread_stop(struct ckm_gpu *gpu);	/* no-op if it does not run */

/* What sleeps: the system, or the GPUs by the driver's own interface. */
#define CKM_SLEEP_SYSTEM	1u
#define CKM_SLEEP_DRIVER	2u

/* Before @what sleeps: thaw every container of every GPU, then neither call the driver nor read
 * registers until nothing sleeps any more. An attach or detach that is under way goes on. Sleep; take
 * threads_lock, ctrl_lock, open_lock, gpu->lock. Called again, both do no harm. True: @what sleeps
 * already.
 */
bool ckm_sched_pause_all(u32 what);
void ckm_sched_resume_all(u32 what);
bool ckm_sched_asleep(void);	/* paused for either; without a lock */

/* Around calls of the driver at the end of a container: wait until nothing sleeps, and keep ckm_sched_pause_all()
 * waiting meanwhile. No tenant may delay what is between them. Sleeps; the first two take awake_lock for reading, and
 * the second does not wait: false if something sleeps or is about to.
 */
void ckm_sched_stay_awake(void);
bool ckm_sched_try_awake(void);
void ckm_sched_may_sleep(void);

/* Freeze a pinned channel, or the channels of a group, those of other clients included, if
 * @slot is frozen: to be called before they become schedulable or at once after. Done when they
 * return. Sleep; take enable_lock; a worker takes ctrl_lock, gpu->lock.
 */
void ckm_sched_freeze_new_channel(struct ckm_slot *slot, const struct ckm_obj *channel);
void ckm_sched_freeze_group(struct ckm_slot *slot, const struct ckm_group *group);

/* Whether the scheduler has @slot frozen. Takes gpu->lock. The result stays valid only
 * under gpu->ctrl_lock.
 */
bool ckm_sched_is_frozen(struct ckm_slot *slot);

#endif
