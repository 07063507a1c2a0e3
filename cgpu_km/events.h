/* SPDX-License-Identifier: MIT OR GPL-2.0 */
/*
 * What happened that somebody should hear of: the events of uapi.h that are not
 * a container's whole state.
 *
 * Who notices writes down a few words under a lock it holds anyway and queues the
 * GPU's work; that one allocates and sends. So neither a turn nor a tenant's call
 * waits for a message, and a tenant that misbehaves all the time is told of once
 * a second.
 */
#ifndef CKM_EVENTS_H
#define CKM_EVENTS_H

#include <linux/mutex.h>
#include <linux/types.h>
#include <linux/workqueue.h>

struct ckm_gpu;
struct ckm_slot;

enum ckm_news_kind {
	CKM_NEWS_REFUSED,
	CKM_NEWS_OVERRUN,
	CKM_NEWS_LEVER,
	CKM_NEWS_KINDS,
};

/* Not told yet of a slot. Guarded by gpu->lock. */
struct ckm_slot_news {
	unsigned long due[CKM_NEWS_KINDS];	/* jiffies; not told before */
	u32 refused;			/* how many; the first of them: */
	u32 pid;
	u64 asked, limit, used;
	u32 failed;			/* lever calls; the latest of them: */
	u32 lever, status;
	u64 overruns, resisted;		/* as they were when told last */
};

/* Of a GPU. */
struct ckm_gpu_news {
	struct delayed_work work;
	struct mutex lock;		/* from what is looked at until it is sent: order; and: */
	u32 policy, levers;		/* as told last */
};

/* Before anybody else sees the GPU or slot. */
void ckm_events_init_gpu(struct ckm_gpu *gpu);
void ckm_events_init_slot(struct ckm_slot *slot);
/* Nobody notices anything any more. Waits for the work, so not under gpu->news.lock. */
void ckm_events_stop(struct ckm_gpu *gpu);

/* @bytes were over the limit, asked for by the current process. Caller holds
 * gpu->lock.
 */
void ckm_events_refused_locked(struct ckm_slot *slot, u64 bytes);
/* Turns of the slots in @mask ended; their accounts are up to date. Caller holds
 * gpu->lock.
 */
void ckm_events_turns_locked(struct ckm_gpu *gpu, u32 mask);
/* A call of @lever (CGPU_LEVER_*; both: what makes them act) for a slot failed with
 * @status. Takes gpu->lock.
 */
void ckm_events_lever_failed(struct ckm_gpu *gpu, u32 turn_slot, u32 lever, u32 status);

/* The policy in force or the set of levers may be another: what differs from what
 * was told last is told now. Sleeps; takes gpu->news.lock and gpu->lock.
 */
void ckm_events_gpu_changed(struct ckm_gpu *gpu);
/* The same soon, from any context. */
void ckm_events_kick(struct ckm_gpu *gpu);

/* CGPU_EVENT_ATTACHED or _DETACHED. Sleeps; takes gpu->news.lock. */
void ckm_netlink_gpu_event(struct ckm_gpu *gpu, u32 event);

/* CGPU_EVENT_CORE: @candidate was to be the core, @ret is 0 or an error, @running
 * (NULL: none) is the one that is. Sleeps; under ckm_lock, so that they come in order.
 */
void ckm_events_core(const char *running, const char *candidate, int ret, const char *why);

/* What is not told of a slot is told now, however soon after the last time: it
 * goes. Sleeps; takes gpu->news.lock and gpu->lock.
 */
void ckm_events_flush(struct ckm_slot *slot);

#endif
