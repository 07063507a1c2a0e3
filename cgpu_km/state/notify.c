// SPDX-License-Identifier: MIT OR GPL-2.0
/* Owns pending events of GPUs and slots. Takes tell_lock, gpu->news.lock, gpu->lock. */
#include <net/genetlink.h>

#include "registry.h"
#include "state/container.h"
#include "state/gpu.h"
#include "state/minor.h"
#include "state/netlink_send.h"
#include "state/notify.h"
#include "state/slot.h"

#define EVERY	HZ	/* minimum interval of a kind of event for a container and GPU */

/* The due events of one slot, copied under gpu->lock. */
struct note {
	char id[CGPU_ID_MAX + 1];
	char dir[CGPU_DIR_LEN + 1];
	u64 cookie;
	struct ckm_slot_news news;
	u64 overruns, preempt_slow;	/* now; news has the values of the last event */
	bool is_due[CKM_NEWS_KINDS];
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

static int put_names(struct sk_buff *skb, const struct ckm_gpu *gpu, const struct note *note)
{
	if (nla_put_string(skb, CGPU_A_ID, note->id) ||
	    nla_put_u64_64bit(skb, CGPU_A_COOKIE, note->cookie, CGPU_A_PAD) ||
	    nla_put_string(skb, CGPU_A_DIR, note->dir))
		return -EMSGSIZE;
	return put_gpu(skb, gpu);
}

static int put_refused(struct sk_buff *skb, const struct note *note)
{
	const struct ckm_slot_news *news = &note->news;

	return nla_put_u32(skb, CGPU_A_PID, news->pid) ?:
	       nla_put_u64_64bit(skb, CGPU_A_ASKED, news->asked, CGPU_A_PAD) ?:
	       nla_put_u64_64bit(skb, CGPU_A_LIMIT, news->limit, CGPU_A_PAD) ?:
	       nla_put_u64_64bit(skb, CGPU_A_USED, news->used, CGPU_A_PAD) ?:
	       nla_put_u32(skb, CGPU_A_SUPPRESSED, news->refused - 1);
}

/* One turn can be both late and held up, so the suppressed number is the larger count. */
static int put_overrun(struct sk_buff *skb, const struct note *note)
{
	u64 more = max(note->overruns - note->news.overruns, note->preempt_slow - note->news.preempt_slow);

	return nla_put_u64_64bit(skb, CGPU_A_OVERRUNS, note->overruns, CGPU_A_PAD) ?:
	       nla_put_u64_64bit(skb, CGPU_A_PREEMPT_SLOW, note->preempt_slow, CGPU_A_PAD) ?:
	       nla_put_u32(skb, CGPU_A_SUPPRESSED, min_t(u64, more - 1, U32_MAX));
}

static int put_control(struct sk_buff *skb, const struct note *note)
{
	return nla_put_u32(skb, CGPU_A_CONTROL, note->news.control) ?:
	       nla_put_u32(skb, CGPU_A_STATUS, note->news.status) ?:
	       nla_put_u32(skb, CGPU_A_SUPPRESSED, note->news.failed - 1);
}

static const struct {
	u32 event;
	int (*put)(struct sk_buff *skb, const struct note *note);
} kinds[CKM_NEWS_KINDS] = {
	[CKM_NEWS_REFUSED]	= { CGPU_EVENT_REFUSED, put_refused },
	[CKM_NEWS_OVERRUN]	= { CGPU_EVENT_OVERRUN, put_overrun },
	[CKM_NEWS_CONTROL]	= { CGPU_EVENT_CONTROL_FAILED, put_control },
};

/* Move the due events of @slot, or with @all every pending one, to @note. Lower @wait to
 * the jiffies until the first of the others is due.
 */
static void take_note(struct ckm_slot *slot, bool all, struct note *note, unsigned long *wait)
{
	struct ckm_slot_news *news = &slot->news;
	struct cgpu_sched_entity_view sched;
	bool is_there[CKM_NEWS_KINDS];
	u32 kind;

	lockdep_assert_held(&slot->gpu->lock);
	ckm_gpu_slot_view_locked(slot->gpu, slot->sched_id, &sched);
	is_there[CKM_NEWS_REFUSED] = news->refused;
	is_there[CKM_NEWS_CONTROL] = news->failed;
	is_there[CKM_NEWS_OVERRUN] = sched.overruns != news->overruns ||
				     sched.preempt_slow != news->preempt_slow;
	note->news = *news;
	note->overruns = sched.overruns;
	note->preempt_slow = sched.preempt_slow;
	for (kind = 0; kind < CKM_NEWS_KINDS; kind++) {
		note->is_due[kind] = is_there[kind] &&
				     (all || time_after_eq(jiffies, news->due[kind]));
		if (note->is_due[kind])
			news->due[kind] = jiffies + EVERY;
		else if (is_there[kind])
			*wait = min(*wait, news->due[kind] - jiffies);
	}
	if (note->is_due[CKM_NEWS_REFUSED])
		news->refused = 0;
	if (note->is_due[CKM_NEWS_CONTROL])
		news->failed = 0;
	if (note->is_due[CKM_NEWS_OVERRUN]) {
		news->overruns = sched.overruns;
		news->preempt_slow = sched.preempt_slow;
	}
	strscpy(note->id, slot->ct->id, sizeof(note->id));
	strscpy(note->dir, slot->ct->dir, sizeof(note->dir));
	note->cookie = slot->ct->cookie;
}

static void tell_slot(struct ckm_gpu *gpu, u32 sched_id, bool all, unsigned long *wait)
{
	struct ckm_slot *slot;
	struct sk_buff *skb;
	struct note note;
	void *head;
	u32 kind;

	lockdep_assert_held(&gpu->news.lock);
	mutex_lock(&gpu->lock);
	slot = gpu->slot[sched_id];
	if (slot)
		take_note(slot, all, &note, wait);
	mutex_unlock(&gpu->lock);
	for (kind = 0; slot && kind < CKM_NEWS_KINDS; kind++) {
		skb = note.is_due[kind] ? ckm_netlink_begin(kinds[kind].event, &head) : NULL;
		if (skb)
			ckm_netlink_send(skb, head, put_names(skb, gpu, &note) ?:
						    kinds[kind].put(skb, &note));
	}
}

static void tell_change(struct ckm_gpu *gpu, u32 event, u32 old, u32 new, u32 ineffective)
{
	void *head;
	struct sk_buff *skb = ckm_netlink_begin(event, &head);

	if (skb)
		ckm_netlink_send(skb, head, put_gpu(skb, gpu) ?:
			nla_put_u32(skb, CGPU_A_OLD, old) ?:
			nla_put_u32(skb, CGPU_A_NEW, new) ?:
			(event == CGPU_EVENT_CONTROLS ? nla_put_u32(skb, CGPU_A_INEFFECTIVE, ineffective) : 0));
}

void ckm_events_gpu_changed(struct ckm_gpu *gpu)
{
	struct cgpu_sched_view view;

	mutex_lock(&gpu->news.lock);
	mutex_lock(&gpu->lock);
	ckm_gpu_view_locked(gpu, &view);
	mutex_unlock(&gpu->lock);
	/* Losing a control can change the policy: send the cause first. */
	if (view.controls != gpu->news.controls)
		tell_change(gpu, CGPU_EVENT_CONTROLS, gpu->news.controls, view.controls, view.ineffective);
	if (view.policy != gpu->news.policy)
		tell_change(gpu, CGPU_EVENT_POLICY, gpu->news.policy, view.policy, 0);
	gpu->news.controls = view.controls;
	gpu->news.policy = view.policy;
	mutex_unlock(&gpu->news.lock);
}

static void news_work(struct work_struct *work)
{
	struct ckm_gpu *gpu = container_of(to_delayed_work(work), struct ckm_gpu, news.work);
	unsigned long wait = ULONG_MAX;
	u32 slot;

	ckm_events_gpu_changed(gpu);
	mutex_lock(&gpu->news.lock);
	for (slot = 0; slot < CGPU_SLOTS; slot++)
		tell_slot(gpu, slot, false, &wait);
	mutex_unlock(&gpu->news.lock);
	if (wait != ULONG_MAX)
		queue_delayed_work(system_unbound_wq, &gpu->news.work, wait);
}

void ckm_events_flush(struct ckm_slot *slot)
{
	unsigned long wait = ULONG_MAX;

	mutex_lock(&slot->gpu->news.lock);
	tell_slot(slot->gpu, slot->sched_id, true, &wait);
	mutex_unlock(&slot->gpu->news.lock);
}

void ckm_netlink_gpu_event(struct ckm_gpu *gpu, u32 event)
{
	struct sk_buff *skb;
	void *head;

	mutex_lock(&gpu->news.lock);
	skb = ckm_netlink_begin(event, &head);
	if (skb)
		ckm_netlink_send(skb, head, put_gpu(skb, gpu));
	mutex_unlock(&gpu->news.lock);
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
static DEFINE_MUTEX(tell_lock);

static int put_slot(struct sk_buff *skb, struct ckm_slot *slot)
{
	struct nlattr *nest = nla_nest_start(skb, CGPU_A_SLOT);
	struct cgpu_sched_entity_view view;
	u64 limit, used;

	if (!nest)
		return -EMSGSIZE;
	ckm_slot_limits(slot, &limit, &used);
	mutex_lock(&slot->gpu->lock);
	ckm_gpu_slot_view_locked(slot->gpu, slot->sched_id, &view);
	mutex_unlock(&slot->gpu->lock);
	if (nla_put_u32(skb, CGPU_S_GPU, slot->gpu->index) ||
	    nla_put_u32(skb, CGPU_S_MINOR, slot->minor) ||
	    nla_put_u32(skb, CGPU_S_NV_MINOR, slot->gpu->desc.nv_minor) ||
	    nla_put_u64_64bit(skb, CGPU_S_LIMIT, limit, CGPU_S_PAD) ||
	    nla_put_u64_64bit(skb, CGPU_S_USED, used, CGPU_S_PAD) ||
	    nla_put_u32(skb, CGPU_S_WEIGHT, view.weight) ||
	    nla_put_u8(skb, CGPU_S_HIGHPRIO, view.highprio))
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

	mutex_lock(&tell_lock);
	skb = ckm_netlink_begin(event, &head);
	if (skb)
		ckm_netlink_send(skb, head, ckm_netlink_put_container(skb, ct));
	mutex_unlock(&tell_lock);
}

/* ---- recording ---- */

void ckm_events_kick(struct ckm_gpu *gpu)
{
	mod_delayed_work(system_unbound_wq, &gpu->news.work, 0);
}

/* Queue the work: at once, or when EVERY has passed since the last event of this kind. */
static void noticed(struct ckm_slot *slot, enum ckm_news_kind kind)
{
	unsigned long due = slot->news.due[kind];

	if (time_after_eq(jiffies, due))
		ckm_events_kick(slot->gpu);
	else
		queue_delayed_work(system_unbound_wq, &slot->gpu->news.work, due - jiffies);
}

void ckm_events_refused_locked(struct ckm_slot *slot, u64 bytes)
{
	struct ckm_slot_news *news = &slot->news;

	lockdep_assert_held(&slot->gpu->lock);
	if (!news->refused) {
		news->pid = task_tgid_nr(current);
		news->asked = bytes;
		news->limit = slot->ledger.limit_bytes;
		news->used = slot->ledger.used_bytes;
		noticed(slot, CKM_NEWS_REFUSED);
	}
	if (news->refused != U32_MAX)
		news->refused++;
}

void ckm_events_turns_locked(struct ckm_gpu *gpu, u32 mask)
{
	struct cgpu_sched_entity_view sched;
	struct ckm_slot *slot;

	lockdep_assert_held(&gpu->lock);
	for (; mask; mask &= mask - 1) {
		slot = gpu->slot[__ffs(mask)];
		ckm_gpu_slot_view_locked(gpu, __ffs(mask), &sched);
		if (slot && (sched.overruns != slot->news.overruns ||
			     sched.preempt_slow != slot->news.preempt_slow))
			noticed(slot, CKM_NEWS_OVERRUN);
	}
}

void ckm_events_control_failed(struct ckm_gpu *gpu, u32 sched_id, u32 control, u32 status)
{
	struct ckm_slot *slot;

	mutex_lock(&gpu->lock);
	slot = gpu->slot[sched_id];
	if (slot) {
		slot->news.control = control;
		slot->news.status = status;
		if (!slot->news.failed)
			noticed(slot, CKM_NEWS_CONTROL);
		if (slot->news.failed != U32_MAX)
			slot->news.failed++;
	}
	mutex_unlock(&gpu->lock);
}

/* ---- init and stop ---- */

void ckm_events_init_gpu(struct ckm_gpu *gpu)
{
	struct cgpu_sched_view view;

	INIT_DELAYED_WORK(&gpu->news.work, news_work);
	mutex_init(&gpu->news.lock);
	mutex_lock(&gpu->lock);
	ckm_gpu_view_locked(gpu, &view);
	mutex_unlock(&gpu->lock);
	gpu->news.policy = view.policy;
	gpu->news.controls = view.controls;
}

void ckm_events_init_slot(struct ckm_slot *slot)
{
	u32 kind;

	for (kind = 0; kind < CKM_NEWS_KINDS; kind++)
		slot->news.due[kind] = jiffies;
}

void ckm_events_stop(struct ckm_gpu *gpu)
{
	cancel_delayed_work_sync(&gpu->news.work);
}
