/* SPDX-License-Identifier: MIT OR GPL-2.0-only */
/*
 * The events of uapi.h: recorded, rate-limited and sent.
 *
 * An event is recorded in the slot under gpu->lock, which the caller holds or takes for
 * a few stores, and the GPU's work item is queued. The work item allocates and sends. No
 * turn and no tenant's call therefore waits for a message. Events that a tenant can cause
 * at will are sent at most once a second.
 */
#ifndef CKM_NOTIFY_H
#define CKM_NOTIFY_H

#include <linux/types.h>

struct ckm_container;
struct ckm_gpu;
struct ckm_slot;
struct sk_buff;

/* Before the GPU or slot is reachable by other tasks. */
void ckm_events_init_gpu(struct ckm_gpu *gpu);
void ckm_events_init_slot(struct ckm_slot *slot);
/* When no event can be recorded any more. Waits for the work item, which takes
 * gpu->events.lock and gpu->lock: the caller must hold neither.
 */
void ckm_events_stop(struct ckm_gpu *gpu);

/* Record that an allocation of @bytes by the current process exceeded the limit; with @by_driver, that the driver
 * refused it inside the limit. @used: bytes of the slot without it. Caller holds gpu->lock.
 */
void ckm_events_refused_locked(struct ckm_slot *slot, u64 bytes, u64 used, bool by_driver);
/* Record that the current process was refused @asked of @resource (a constant), of which the
 * slot has @used and may have @limit. Caller holds gpu->lock.
 */
void ckm_events_quota_locked(struct ckm_slot *slot, const char *resource, u64 asked, u64 limit,
			     u64 used);
/* Record late or held-up ends of turns of the slots in @mask, after the core accounted
 * them. Caller holds gpu->lock.
 */
void ckm_events_turns_locked(struct ckm_gpu *gpu, u32 mask);
/* Record that a call of @control (CGPU_CTRL_*; both: the runlist restart) for a slot failed
 * with NV_STATUS @status. Takes gpu->lock.
 */
void ckm_events_control_failed(struct ckm_gpu *gpu, u32 sched_id, u32 control, u32 status);

/* Send an event for the policy and the set of controls if they differ from the last values
 * sent. Sleeps; takes gpu->events.lock and gpu->lock.
 */
void ckm_events_gpu_changed(struct ckm_gpu *gpu);

/* Send CGPU_EVENT_ATTACHED or _DETACHED. Sleeps; takes gpu->events.lock. */
void ckm_netlink_gpu_event(struct ckm_gpu *gpu, u32 event);

/**
 * ckm_events_core() - send CGPU_EVENT_CORE
 * @running: version of the active core, NULL: none
 * @candidate: version of the core that was to become active
 * @ret: 0 or a negative errno
 * @why: the reason, a sentence
 *
 * Sleeps. Caller holds ckm_lock, which keeps these events in order.
 */
void ckm_events_core(const char *running, const char *candidate, int ret, const char *why);

/* Send CGPU_EVENT_REDIRECTIONS: @ret 0, all are in effect again; else a negative errno. Sleeps.
 * The caller serialises.
 */
void ckm_events_redirections(int ret, const char *why);

/* Send the pending events of a slot that is being destroyed, ignoring the rate limit.
 * Sleeps; takes gpu->events.lock and gpu->lock.
 */
void ckm_events_flush(struct ckm_slot *slot);

/* Send an event of a container: created, dying, gone or changed. The caller guarantees
 * that the container stays. Sleeps; takes send_lock, then gpu->lock of one GPU at a time.
 * An event lost for lack of memory is reported to all listeners by ENOBUFS; one lost for
 * lack of room in a receive buffer, to its listener.
 */
void ckm_netlink_event(struct ckm_container *ct, u32 event);

/* Add the attributes of a CONTAINER message, for events and replies. 0 or -EMSGSIZE. Takes
 * gpu->lock of one GPU at a time.
 */
int ckm_netlink_put_container(struct sk_buff *skb, struct ckm_container *ct);
/* Add a GPU's constant attributes to a nest that the caller began. 0 or -EMSGSIZE. */
int ckm_netlink_put_gpu_names(struct sk_buff *skb, const struct ckm_gpu *gpu);

#endif
