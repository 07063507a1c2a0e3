// SPDX-License-Identifier: MIT OR GPL-2.0-only
/* Freezes and thaws channels. Callers hold ctrl_lock. Takes gpu->lock. */
#include <linux/mm.h>
#include <linux/slab.h>

#include "core/nv_abi.h"
#include "sched/freeze.h"
#include "sched/runlist.h"
#include "state/container.h"
#include "state/gone.h"
#include "state/gpu.h"
#include "state/notify.h"
#include "state/rm_object.h"
#include "state/slot.h"

/* ctrl2080fifo.h: NV2080_CTRL_FIFO_DISABLE_CHANNELS_PARAMS */
struct disable_channels {
	u8 disable;
	u8 pad0[3];
	u32 count;
	u8 only_disable_scheduling;
	u8 rewind_gp_put;
	u8 pad1[6];
	u64 preempt_event;
	u32 client[NV2080_DISABLE_CHANNELS_MAX];
	u32 channel[NV2080_DISABLE_CHANNELS_MAX];
};
static_assert(sizeof(struct disable_channels) == NV2080_DISABLE_CHANNELS_SIZE);

static bool matches(const struct ckm_channel_filter *filter, const struct ckm_obj *obj)
{
	return (!filter->channel || obj == filter->channel) &&
	       (!filter->group || obj->group == filter->group);
}

/* Channels of a slot, as they were at one time. */
struct snapshot {
	u32 count, room;
	struct {
		u32 client, object;
		u64 seq;
	} list[];
};

/* Room for the slot's channels. To be freed by kvfree(); NULL: no memory. */
static struct snapshot *new_snapshot(struct ckm_gpu *gpu, u32 sched_id)
{
	struct snapshot *snap;
	u32 room = 0;

	spin_lock(&gpu->lock);
	if (gpu->slot[sched_id])
		room = gpu->slot[sched_id]->channel_count;
	spin_unlock(&gpu->lock);
	snap = kvmalloc(struct_size(snap, list, room), GFP_KERNEL);
	if (!snap)
		return NULL;
	snap->count = 0;
	snap->room = room;
	return snap;
}

static void snapshot_add(struct snapshot *snap, const struct ckm_obj *obj)
{
	snap->list[snap->count].client = obj->core.hclient;
	snap->list[snap->count].seq = obj->seq;
	snap->list[snap->count++].object = obj->core.hobject;
}

/* Copy what @filter accepts of the slot's channels, of those that the driver @refused alone or of the others, in one
 * pass: the lock is held for as many steps as the slot has of them, which its quota limits. What is added later is
 * frozen by the call that enables it, after ctrl_lock was dropped; for what is freed later the driver's call fails.
 */
static struct snapshot *take_snapshot(struct ckm_gpu *gpu, u32 sched_id,
				      const struct ckm_channel_filter *filter, bool refused)
{
	struct snapshot *snap = new_snapshot(gpu, sched_id);
	const struct ckm_obj *obj;
	struct ckm_slot *slot;

	if (!snap)
		return NULL;
	spin_lock(&gpu->lock);
	slot = gpu->slot[sched_id];
	if (slot)
		list_for_each_entry(obj, &slot->channels, sched) {
			if (snap->count == snap->room)
				break;
			if (obj->refused == refused && matches(filter, obj))
				snapshot_add(snap, obj);
		}
	spin_unlock(&gpu->lock);
	return snap;
}

/* The driver has no such channel (any more): do not schedule it. By its sequence number: its
 * handle may be that of a new channel by now, which the tenant made since the driver's answer.
 */
static void forget_channel(struct ckm_gpu *gpu, u32 sched_id, u64 seq)
{
	struct ckm_slot *slot;
	struct ckm_obj *obj;

	spin_lock(&gpu->lock);
	slot = gpu->slot[sched_id];
	if (slot)
		list_for_each_entry(obj, &slot->channels, sched)
			if (obj->seq == seq) {
				list_del_init(&obj->sched);
				slot->channel_count--;
				ckm_gone_note_locked(slot, obj->pid);
				ckm_slot_channels_changed_locked(slot);
				break;
			}
	spin_unlock(&gpu->lock);
}

static u32 disable_channels(struct ckm_gpu *gpu, struct disable_channels *list)
{
	return ckm_ctrl_timed(gpu, list->disable ? CKM_CTRL_OF_FREEZE : CKM_CTRL_OF_THAW, gpu->hclient,
			      gpu->hsubdevice, NV2080_CTRL_DISABLE_CHANNELS, list, sizeof(*list));
}

/* Remove from @snap what the slot has no more, from @at on. Both are in the order of sequence numbers. */
static void snapshot_drop_ended(struct ckm_gpu *gpu, u32 sched_id, struct snapshot *snap, u32 at)
{
	u32 from = at, to = at;
	const struct ckm_obj *obj;
	struct ckm_slot *slot;

	spin_lock(&gpu->lock);
	slot = gpu->slot[sched_id];
	if (slot)
		list_for_each_entry(obj, &slot->channels, sched) {
			while (from < snap->count && snap->list[from].seq < obj->seq)
				from++;
			if (from == snap->count)
				break;
			if (snap->list[from].seq == obj->seq)
				snap->list[to++] = snap->list[from++];
		}
	spin_unlock(&gpu->lock);
	snap->count = to;
}

/* Freeze or thaw @count channels of @snap from @at on, by one call. */
static u32 freeze_list(struct ckm_gpu *gpu, struct disable_channels *list,
		       const struct snapshot *snap, u32 at, u32 count, bool freeze)
{
	u32 i;

	list->disable = freeze;
	list->count = count;
	for (i = 0; i < count; i++) {
		list->client[i] = snap->list[at + i].client;
		list->channel[i] = snap->list[at + i].object;
	}
	return disable_channels(gpu, list);
}

/* The driver refused @seq alone, or did not. */
static void note_refused(struct ckm_gpu *gpu, u32 sched_id, u64 seq, bool refused)
{
	struct ckm_obj *obj;

	spin_lock(&gpu->lock);
	if (gpu->slot[sched_id])
		list_for_each_entry(obj, &gpu->slot[sched_id]->channels, sched)
			if (obj->seq == seq) {
				obj->refused = refused;
				break;
			}
	spin_unlock(&gpu->lock);
}

/* The driver refuses a list for one channel that was freed since the snapshot. What the slot has no more is
 * left out then, and the rest goes in halves down to the channel that is refused alone: six calls for
 * it, and as many until lists are full again. It is forgotten if the driver has it no more, and else left out of these
 * lists from then on.
 *
 * Returns the status of the latest failure, or NV_OK. @some becomes true if a call succeeded.
 */
static u32 freeze_snapshot(struct ckm_gpu *gpu, u32 sched_id, struct snapshot *snap,
			   struct disable_channels *list, bool freeze, bool *some)
{
	u32 most = NV2080_DISABLE_CHANNELS_MAX, failure = NV_OK, at = 0, count, status;

	while (at < snap->count) {
		count = min(snap->count - at, most);
		status = freeze_list(gpu, list, snap, at, count, freeze);
		if (status != NV_OK && count > 1) {
			snapshot_drop_ended(gpu, sched_id, snap, at);
			most = count / 2;
			continue;
		}
		if (status == NV_OK) {
			*some = true;
			most = min_t(u32, 2 * most, NV2080_DISABLE_CHANNELS_MAX);
		} else if (status == NV_ERR_NOT_FOUND || status == NV_ERR_CLIENT) {
			forget_channel(gpu, sched_id, snap->list[at].seq);
		} else {
			note_refused(gpu, sched_id, snap->list[at].seq, true);
			failure = status;
		}
		at += count;
	}
	return failure;
}

/* Channels that the driver refused alone: a tenant can have any number of them, that faulted, and the driver may
 * refuse them for good. So no list is taken apart for them: one of them is tried alone, another one each time, and
 * the others only in full lists.
 */
static u32 freeze_refused(struct ckm_gpu *gpu, u32 sched_id, struct snapshot *snap,
			  struct disable_channels *list, bool freeze, bool *some)
{
	u32 failure = NV_OK, at, count, status, i;

	for (at = 0; at < snap->count; at += count) {
		count = min_t(u32, snap->count - at, NV2080_DISABLE_CHANNELS_MAX);
		status = freeze_list(gpu, list, snap, at, count, freeze);
		*some |= status == NV_OK;
		failure = status == NV_OK ? failure : status;
		for (i = at; status == NV_OK && i < at + count; i++)
			note_refused(gpu, sched_id, snap->list[i].seq, false);
	}
	if (failure == NV_OK || snap->count == 1)
		return failure;
	at = gpu->refused_next++ % snap->count;
	status = freeze_list(gpu, list, snap, at, 1, freeze);
	if (status == NV_OK)
		note_refused(gpu, sched_id, snap->list[at].seq, false);
	else if (status == NV_ERR_NOT_FOUND || status == NV_ERR_CLIENT)
		forget_channel(gpu, sched_id, snap->list[at].seq);
	return failure;
}

/* Freeze or thaw what @filter accepts, of the channels that the driver refused alone or of the others. */
static u32 freeze_part(struct ckm_gpu *gpu, u32 sched_id, const struct ckm_channel_filter *filter,
		       bool refused, bool freeze, bool *some)
{
	struct disable_channels *list = kzalloc(sizeof(*list), GFP_KERNEL);
	struct snapshot *snap = take_snapshot(gpu, sched_id, filter, refused);
	u32 failure = NV_ERR_NO_MEMORY;

	if (list && snap)
		failure = (refused ? freeze_refused : freeze_snapshot)(gpu, sched_id, snap, list, freeze, some);
	kvfree(snap);
	kfree(list);
	return failure;
}

/* False: a call failed, and @some says whether another one succeeded. */
static bool freeze_slot(struct ckm_gpu *gpu, u32 sched_id, const struct ckm_channel_filter *filter,
			bool freeze, bool *some)
{
	u32 failure = freeze_part(gpu, sched_id, filter, false, freeze, some);

	failure = freeze_part(gpu, sched_id, filter, true, freeze, some) ?: failure;
	if (failure != NV_OK)
		ckm_events_control_failed(gpu, sched_id, CGPU_CTRL_FREEZE, failure);
	return failure == NV_OK;
}

u32 ckm_ctrl_freeze(struct ckm_gpu *gpu, u32 mask, bool freeze, u32 *part)
{
	const struct ckm_channel_filter all = {};
	u32 done = 0, slot;
	bool some;

	lockdep_assert_held(&gpu->ctrl_lock);
	for (; mask; mask &= mask - 1) {
		slot = __ffs(mask);
		some = false;
		if (freeze_slot(gpu, slot, &all, freeze, &some))
			done |= BIT(slot);
		else if (some)
			*part |= BIT(slot);
	}
	return done;
}

bool ckm_ctrl_freeze_some(struct ckm_gpu *gpu, u32 sched_id,
			  const struct ckm_channel_filter *filter)
{
	u64 failed_ns = 0;
	bool done, some = false;

	lockdep_assert_held(&gpu->ctrl_lock);
	done = freeze_slot(gpu, sched_id, filter, true, &some);
	if (ckm_ctrl_needs_restart(gpu) &&
	    !ckm_ctrl_commit(gpu, BIT(sched_id), &failed_ns) && failed_ns)
		done = false;
	return done;
}
