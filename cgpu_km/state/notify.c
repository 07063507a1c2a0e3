// SPDX-License-Identifier: MIT OR GPL-2.0-only
/* Owns pending events of GPUs and slots. Takes send_lock, gpu->events.lock, gpu->lock. */
#include <linux/slab.h>
#include <linux/string.h>
#include <net/genetlink.h>

#include "compat.h"
#include "registry.h"
#include "state/container.h"
#include "state/gpu.h"
#include "state/minor.h"
#include "state/netlink_send.h"
#include "state/notify.h"
#include "state/slot.h"

#define EVERY	HZ	/* minimum interval of a kind of event for a container and GPU */

/* The due events of one slot, copied under gpu->lock. */
struct due_events {
	char id[CGPU_ID_MAX + 1];
	char dir[CGPU_DIR_LEN + 1];
	u64 cookie;
	struct ckm_gpu *gpu;
	struct ckm_slot_events pending;
	u64 overruns, preempt_slow;	/* now; pending has the values of the last event */
	bool is_due[CKM_EVENT_KINDS];
};

int ckm_netlink_put_gpu_names(struct sk_buff *skb, const struct ckm_gpu *gpu)
{
	return nla_put_u32(skb, CGPU_G_INDEX, gpu->index) ?:
	       nla_put_string(skb, CGPU_G_UUID, gpu->desc.uuid) ?:
	       nla_put_string(skb, CGPU_G_PCI, gpu->desc.pci) ?:
	       nla_put_u32(skb, CGPU_G_NV_MINOR, gpu->desc.nv_minor) ?:
	       nla_put_u64_64bit(skb, CGPU_G_TOTAL, gpu->total_bytes, CGPU_G_PAD);
}

static int put_gpu(struct sk_buff *skb, const struct ckm_gpu *gpu)
{
	struct nlattr *nest = nla_nest_start(skb, CGPU_A_GPU);

	if (!nest || ckm_netlink_put_gpu_names(skb, gpu))
		return -EMSGSIZE;
	nla_nest_end(skb, nest);
	return 0;
}

static int put_names(struct sk_buff *skb, const struct ckm_gpu *gpu, const struct due_events *due)
{
	if (nla_put_string(skb, CGPU_A_ID, due->id) ||
	    nla_put_u64_64bit(skb, CGPU_A_COOKIE, due->cookie, CGPU_A_PAD) ||
	    nla_put_string(skb, CGPU_A_DIR, due->dir))
		return -EMSGSIZE;
	return put_gpu(skb, gpu);
}

/* Without memory for the text the event goes without it. */
static int put_holders(struct sk_buff *skb, struct ckm_gpu *gpu)
{
	char *text = kzalloc(CKM_HOLDERS_MAX, GFP_KERNEL);
	int ret;

	if (!text)
		return 0;
	spin_lock(&gpu->lock);
	ckm_slots_holders_locked(gpu, text);
	spin_unlock(&gpu->lock);
	ret = nla_put_string(skb, CGPU_A_WHY, skip_spaces(text));
	kfree(text);
	return ret;
}

static int put_refusal(struct sk_buff *skb, const struct ckm_refusal *first, u32 count)
{
	return nla_put_u32(skb, CGPU_A_PID, first->pid) ?:
	       nla_put_u64_64bit(skb, CGPU_A_ASKED, first->asked, CGPU_A_PAD) ?:
	       nla_put_u64_64bit(skb, CGPU_A_LIMIT, first->limit, CGPU_A_PAD) ?:
	       nla_put_u64_64bit(skb, CGPU_A_USED, first->used, CGPU_A_PAD) ?:
	       nla_put_u32(skb, CGPU_A_SUPPRESSED, count - 1);
}

static int put_refused(struct sk_buff *skb, const struct due_events *due)
{
	const struct ckm_slot_events *pending = &due->pending;

	return put_refusal(skb, &pending->memory, pending->count[CKM_EVENT_REFUSED]) ?:
	       (pending->by_driver ? put_holders(skb, due->gpu) : 0);
}

/* One turn can be both late and held up, so the suppressed number is the larger count. */
static int put_overrun(struct sk_buff *skb, const struct due_events *due)
{
	u64 more = max(due->overruns - due->pending.overruns,
		       due->preempt_slow - due->pending.preempt_slow);

	return nla_put_u64_64bit(skb, CGPU_A_OVERRUNS, due->overruns, CGPU_A_PAD) ?:
	       nla_put_u64_64bit(skb, CGPU_A_PREEMPT_SLOW, due->preempt_slow, CGPU_A_PAD) ?:
	       nla_put_u32(skb, CGPU_A_SUPPRESSED, min_t(u64, more - 1, U32_MAX));
}

static int put_control(struct sk_buff *skb, const struct due_events *due)
{
	return nla_put_u32(skb, CGPU_A_CONTROL, due->pending.control) ?:
	       nla_put_u32(skb, CGPU_A_STATUS, due->pending.status) ?:
	       nla_put_u32(skb, CGPU_A_SUPPRESSED, due->pending.count[CKM_EVENT_CONTROL] - 1);
}

static int put_quota(struct sk_buff *skb, const struct due_events *due)
{
	const struct ckm_slot_events *pending = &due->pending;

	return nla_put_string(skb, CGPU_A_RESOURCE, pending->resource) ?:
	       put_refusal(skb, &pending->quota, pending->count[CKM_EVENT_QUOTA]);
}

static const struct {
	u32 event;
	int (*put)(struct sk_buff *skb, const struct due_events *due);
} kinds[CKM_EVENT_KINDS] = {
	[CKM_EVENT_REFUSED]	= { CGPU_EVENT_REFUSED, put_refused },
	[CKM_EVENT_OVERRUN]	= { CGPU_EVENT_OVERRUN, put_overrun },
	[CKM_EVENT_CONTROL]	= { CGPU_EVENT_CONTROL_FAILED, put_control },
	[CKM_EVENT_QUOTA]	= { CGPU_EVENT_QUOTA, put_quota },
};

/* Move the due events of @slot, or with @all every pending one, to @due. Lower @wait to
 * the jiffies until the first of the others is due.
 */
static void take_due(struct ckm_slot *slot, bool all, struct due_events *due, unsigned long *wait)
{
	struct ckm_slot_events *pending = &slot->pending;
	struct cgpu_sched_entity_view sched;
	u32 kind;

	lockdep_assert_held(&slot->gpu->lock);
	ckm_gpu_slot_view_locked(slot->gpu, slot->sched_id, &sched);
	pending->count[CKM_EVENT_OVERRUN] = sched.overruns != pending->overruns ||
					    sched.preempt_slow != pending->preempt_slow;
	due->pending = *pending;
	due->overruns = sched.overruns;
	due->preempt_slow = sched.preempt_slow;
	for (kind = 0; kind < CKM_EVENT_KINDS; kind++) {
		due->is_due[kind] = pending->count[kind] &&
				     (all || time_after_eq(jiffies, pending->next_allowed[kind]));
		if (due->is_due[kind]) {
			pending->next_allowed[kind] = jiffies + EVERY;
			pending->count[kind] = 0;
		} else if (pending->count[kind]) {
			*wait = min(*wait, pending->next_allowed[kind] - jiffies);
		}
	}
	if (due->is_due[CKM_EVENT_OVERRUN]) {
		pending->overruns = sched.overruns;
		pending->preempt_slow = sched.preempt_slow;
	}
	strscpy(due->id, slot->ct->id, sizeof(due->id));
	strscpy(due->dir, slot->ct->dir, sizeof(due->dir));
	due->cookie = slot->ct->cookie;
	due->gpu = slot->gpu;
}

static void send_slot_events(struct ckm_gpu *gpu, u32 sched_id, bool all, unsigned long *wait)
{
	struct ckm_slot *slot;
	struct sk_buff *skb;
	struct due_events due;
	void *head;
	u32 kind;

	lockdep_assert_held(&gpu->events.lock);
	spin_lock(&gpu->lock);
	slot = gpu->slot[sched_id];
	if (slot)
		take_due(slot, all, &due, wait);
	spin_unlock(&gpu->lock);
	for (kind = 0; slot && kind < CKM_EVENT_KINDS; kind++) {
		skb = due.is_due[kind] ? ckm_netlink_begin(kinds[kind].event, &head) : NULL;
		if (skb)
			ckm_netlink_send(skb, head, put_names(skb, gpu, &due) ?:
						    kinds[kind].put(skb, &due));
	}
}

static void send_change(struct ckm_gpu *gpu, u32 event, u32 old, u32 new, u32 ineffective)
{
	void *head;
	struct sk_buff *skb = ckm_netlink_begin(event, &head);

	if (skb)
		ckm_netlink_send(skb, head, put_gpu(skb, gpu) ?:
			nla_put_u32(skb, CGPU_A_OLD, old) ?:
			nla_put_u32(skb, CGPU_A_NEW, new) ?:
			(event == CGPU_EVENT_CONTROLS ?
			 nla_put_u32(skb, CGPU_A_INEFFECTIVE, ineffective) : 0));
}

void ckm_events_gpu_changed(struct ckm_gpu *gpu)
{
	struct cgpu_sched_view view;

	mutex_lock(&gpu->events.lock);
	spin_lock(&gpu->lock);
	ckm_gpu_view_locked(gpu, &view);
	spin_unlock(&gpu->lock);
	/* Losing a control can change the policy: send the cause first. */
	if (view.controls != gpu->events.controls)
		send_change(gpu, CGPU_EVENT_CONTROLS, gpu->events.controls, view.controls,
			    view.ineffective);
	if (view.policy != gpu->events.policy)
		send_change(gpu, CGPU_EVENT_POLICY, gpu->events.policy, view.policy, 0);
	gpu->events.controls = view.controls;
	gpu->events.policy = view.policy;
	mutex_unlock(&gpu->events.lock);
}

static void events_work(struct work_struct *work)
{
	struct ckm_gpu *gpu = container_of(to_delayed_work(work), struct ckm_gpu, events.work);
	unsigned long wait = ULONG_MAX;
	u32 slot;

	ckm_events_gpu_changed(gpu);
	mutex_lock(&gpu->events.lock);
	for (slot = 0; slot < CGPU_SLOTS; slot++)
		send_slot_events(gpu, slot, false, &wait);
	mutex_unlock(&gpu->events.lock);
	if (wait != ULONG_MAX)
		queue_delayed_work(system_dfl_wq, &gpu->events.work, wait);
}

void ckm_events_flush(struct ckm_slot *slot)
{
	unsigned long wait = ULONG_MAX;

	mutex_lock(&slot->gpu->events.lock);
	send_slot_events(slot->gpu, slot->sched_id, true, &wait);
	mutex_unlock(&slot->gpu->events.lock);
}

void ckm_netlink_gpu_event(struct ckm_gpu *gpu, u32 event)
{
	struct sk_buff *skb;
	void *head;

	mutex_lock(&gpu->events.lock);
	skb = ckm_netlink_begin(event, &head);
	if (skb)
		ckm_netlink_send(skb, head, put_gpu(skb, gpu));
	mutex_unlock(&gpu->events.lock);
}

void ckm_events_core(const char *running, const char *candidate, int ret, const char *why)
{
	void *head;
	struct sk_buff *skb;

	lockdep_assert_held(&ckm_lock);
	skb = ckm_netlink_begin(CGPU_EVENT_CORE, &head);
	if (skb)
		ckm_netlink_send(skb, head,
			(running ? nla_put_string(skb, CGPU_A_CORE, running) : 0) ?:
			nla_put_string(skb, CGPU_A_CANDIDATE, candidate) ?:
			nla_put_u32(skb, CGPU_A_ERRNO, -ret) ?:
			nla_put_string(skb, CGPU_A_WHY, why));
}

void ckm_events_redirections(int ret, const char *why)
{
	void *head;
	struct sk_buff *skb = ckm_netlink_begin(CGPU_EVENT_REDIRECTIONS, &head);

	if (skb)
		ckm_netlink_send(skb, head, nla_put_u32(skb, CGPU_A_ERRNO, -ret) ?:
					    nla_put_string(skb, CGPU_A_WHY, why));
}

/* ---- containers ---- */

/* Held from reading a container's values until they are sent, so the last event has the
 * latest values. Taken inside ckm_lock and outside gpu->lock.
 */
static DEFINE_MUTEX(send_lock);

static int put_slot(struct sk_buff *skb, struct ckm_slot *slot)
{
	struct nlattr *nest = nla_nest_start(skb, CGPU_A_SLOT);
	struct cgpu_sched_entity_view view;
	u64 limit, used;

	if (!nest)
		return -EMSGSIZE;
	ckm_slot_limits(slot, &limit, &used);
	spin_lock(&slot->gpu->lock);
	ckm_gpu_slot_view_locked(slot->gpu, slot->sched_id, &view);
	spin_unlock(&slot->gpu->lock);
	if (nla_put_u32(skb, CGPU_S_GPU, slot->gpu->index) ||
	    nla_put_u32(skb, CGPU_S_MINOR, slot->minor) ||
	    nla_put_u32(skb, CGPU_S_NV_MINOR, slot->gpu->desc.nv_minor) ||
	    nla_put_u64_64bit(skb, CGPU_S_LIMIT, limit, CGPU_S_PAD) ||
	    nla_put_u64_64bit(skb, CGPU_S_USED, used, CGPU_S_PAD) ||
	    nla_put_u32(skb, CGPU_S_WEIGHT, view.weight) ||
	    nla_put_u8(skb, CGPU_S_HIGHPRIO, view.highprio) ||
	    nla_put_u32(skb, CGPU_S_CEILING, view.ceiling) ||
	    nla_put_u64_64bit(skb, CGPU_S_HOST_LIMIT, READ_ONCE(slot->ct->host_limit), CGPU_S_PAD))
		return -EMSGSIZE;
	nla_nest_end(skb, nest);
	return 0;
}

int ckm_netlink_put_container(struct sk_buff *skb, struct ckm_container *ct)
{
	struct nlattr *nest;
	u32 i;

	if (nla_put_string(skb, CGPU_A_ID, ct->id) ||
	    nla_put_u64_64bit(skb, CGPU_A_COOKIE, ct->cookie, CGPU_A_PAD) ||
	    nla_put_string(skb, CGPU_A_DIR, ct->dir) ||
	    nla_put_u32(skb, CGPU_A_MAJOR, ckm_major()) ||
	    nla_put_u32(skb, CGPU_A_CTL_MINOR, ct->ctl_minor) ||
	    nla_put_u32(skb, CGPU_A_UVM_MINOR, ct->uvm_minor) ||
	    nla_put_u8(skb, CGPU_A_STATE, ct->dying))
		return -EMSGSIZE;
	nest = nla_nest_start(skb, CGPU_A_SLOTS);
	if (!nest)
		return -EMSGSIZE;
	for (i = 0; i < ct->slot_count; i++)
		if (put_slot(skb, &ct->slot[i]))
			return -EMSGSIZE;
	nla_nest_end(skb, nest);
	return 0;
}

void ckm_netlink_event(struct ckm_container *ct, u32 event)
{
	struct sk_buff *skb;
	void *head;

	mutex_lock(&send_lock);
	skb = ckm_netlink_begin(event, &head);
	if (skb)
		ckm_netlink_send(skb, head, ckm_netlink_put_container(skb, ct));
	mutex_unlock(&send_lock);
}

/* ---- recording ---- */

/* Queue the work: at once, or when EVERY has passed since the last event of this kind. */
static void queue_event(struct ckm_slot *slot, enum ckm_event_kind kind)
{
	unsigned long next_allowed = slot->pending.next_allowed[kind];

	if (time_after_eq(jiffies, next_allowed))
		mod_delayed_work(system_dfl_wq, &slot->gpu->events.work, 0);
	else
		queue_delayed_work(system_dfl_wq, &slot->gpu->events.work,
				   next_allowed - jiffies);
}

/* One more of this kind. True: the first since one was sent. */
static bool count_locked(struct ckm_slot *slot, enum ckm_event_kind kind)
{
	u32 *count = &slot->pending.count[kind];

	lockdep_assert_held(&slot->gpu->lock);
	if (!*count)
		queue_event(slot, kind);
	if (*count != U32_MAX)
		++*count;
	return *count == 1;
}

void ckm_events_refused_locked(struct ckm_slot *slot, u64 bytes, u64 used, bool by_driver)
{
	if (!count_locked(slot, CKM_EVENT_REFUSED))
		return;
	slot->pending.memory = (struct ckm_refusal){ task_tgid_nr(current), bytes, slot->ledger.limit_bytes, used };
	slot->pending.by_driver = by_driver;
}

void ckm_events_quota_locked(struct ckm_slot *slot, const char *resource, u64 asked, u64 limit,
			     u64 used)
{
	if (!count_locked(slot, CKM_EVENT_QUOTA))
		return;
	slot->pending.quota = (struct ckm_refusal){ task_tgid_nr(current), asked, limit, used };
	slot->pending.resource = resource;
}

void ckm_events_turns_locked(struct ckm_gpu *gpu, u32 mask)
{
	struct cgpu_sched_entity_view sched;
	struct ckm_slot *slot;

	lockdep_assert_held(&gpu->lock);
	for (; mask; mask &= mask - 1) {
		slot = gpu->slot[__ffs(mask)];
		ckm_gpu_slot_view_locked(gpu, __ffs(mask), &sched);
		if (slot && (sched.overruns != slot->pending.overruns ||
			     sched.preempt_slow != slot->pending.preempt_slow))
			queue_event(slot, CKM_EVENT_OVERRUN);
	}
}

void ckm_events_control_failed(struct ckm_gpu *gpu, u32 sched_id, u32 control, u32 status)
{
	struct ckm_slot *slot;

	spin_lock(&gpu->lock);
	slot = gpu->slot[sched_id];
	if (slot) {
		slot->pending.control = control;
		slot->pending.status = status;
		count_locked(slot, CKM_EVENT_CONTROL);
	}
	spin_unlock(&gpu->lock);
}

/* ---- init and stop ---- */

void ckm_events_init_gpu(struct ckm_gpu *gpu)
{
	struct cgpu_sched_view view;

	INIT_DELAYED_WORK(&gpu->events.work, events_work);
	mutex_init(&gpu->events.lock);
	spin_lock(&gpu->lock);
	ckm_gpu_view_locked(gpu, &view);
	spin_unlock(&gpu->lock);
	gpu->events.policy = view.policy;
	gpu->events.controls = view.controls;
}

void ckm_events_init_slot(struct ckm_slot *slot)
{
	u32 kind;

	for (kind = 0; kind < CKM_EVENT_KINDS; kind++)
		slot->pending.next_allowed[kind] = jiffies;
}

void ckm_events_stop(struct ckm_gpu *gpu)
{
	cancel_delayed_work_sync(&gpu->events.work);
}
