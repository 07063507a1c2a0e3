// SPDX-License-Identifier: MIT OR GPL-2.0-only
/* Freezes and thaws channels. Callers hold ctrl_lock. Takes gpu->lock. */
#include <linux/mm.h>
#include <linux/slab.h>

#include "core/nv_struct.h"
#include "sched/freeze.h"
#include "sched/runlist.h"
#include "state/container.h"
#include "state/gone.h"
#include "state/gpu.h"
#include "state/notify.h"
#include "state/rm_object.h"
#include "state/slot.h"

static bool matches(const struct ckm_channel_filter *filter, const struct ckm_obj *obj)
{
	return (!filter->channel || obj == filter->channel) &&
	       (!filter->group || obj->group == filter->group);
}

/* Channels of a slot, as they were at one time. */
struct snapshot {
	u32 count;
	struct {
		u32 client, object;
		u64 seq;
	} list[];
};

static void snapshot_add(struct snapshot *snap, const struct ckm_obj *obj)
{
	snap->list[snap->count].client = obj->core.hclient;
	snap->list[snap->count].seq = obj->seq;
	snap->list[snap->count++].object = obj->core.hobject;
}

static bool is_whole(const struct ckm_channel_filter *filter)
{
	return !filter->channel && !filter->group;
}

/* A slot's channels that are to be frozen or thawed, and what the driver answers. */
struct work {
	struct ckm_gpu *gpu;
	u32 sched_id;
	const struct ckm_channel_filter *filter;
	bool freeze;
	bool some;		/* a call succeeded */
};

/* How many channels the slot has of those that the driver @refused alone, or in all. */
static u32 room_for(const struct work *w, bool refused)
{
	struct ckm_gpu *gpu = w->gpu;
	const struct ckm_obj *obj;
	struct ckm_slot *slot;
	u32 room = 0;

	spin_lock(&gpu->lock);
	slot = gpu->slot[w->sched_id];
	if (slot && !refused)
		room = slot->channel_count;
	else if (slot)
		list_for_each_entry(obj, &slot->channels, sched)
			room += obj->refused[w->freeze];
	spin_unlock(&gpu->lock);
	return room;
}

/* Copy what the filter accepts of the slot's channels, of those that the driver @refused alone or of the others, in one
 * pass: the lock is held for as many steps as the slot has of them, which its quota limits. What is added later is
 * frozen by the call that enables it, after ctrl_lock was dropped; for what is freed later the driver's call fails.
 * To be freed by kvfree(); NULL: no memory.
 */
static struct snapshot *take_snapshot(const struct work *w, bool refused, u32 room)
{
	struct ckm_gpu *gpu = w->gpu;
	const struct ckm_obj *obj;
	struct snapshot *snap;
	struct ckm_slot *slot;

	snap = kvmalloc(struct_size(snap, list, room), GFP_KERNEL);
	if (!snap)
		return NULL;
	snap->count = 0;
	spin_lock(&gpu->lock);
	slot = gpu->slot[w->sched_id];
	if (slot)
		list_for_each_entry(obj, &slot->channels, sched) {
			if (snap->count == room)
				break;
			if (obj->refused[w->freeze] == refused && matches(w->filter, obj))
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

static u32 disable_channels(struct ckm_gpu *gpu, struct nv_disable_channels *list)
{
	return ckm_ctrl_timed(gpu, list->bDisable ? CKM_CTRL_OF_FREEZE : CKM_CTRL_OF_THAW, gpu->hclient,
			      gpu->hsubdevice, NV2080_CTRL_CMD_FIFO_DISABLE_CHANNELS, list, sizeof(*list));
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
static u32 freeze_list(struct work *w, struct nv_disable_channels *list, const struct snapshot *snap, u32 at, u32 count)
{
	u32 status, i;

	list->bDisable = w->freeze;
	list->numChannels = count;
	for (i = 0; i < count; i++) {
		list->hClientList[i] = snap->list[at + i].client;
		list->hChannelList[i] = snap->list[at + i].object;
	}
	status = disable_channels(w->gpu, list);
	w->some |= status == NV_OK;
	return status;
}

/* The driver refused @count channels of @snap from @at on, or did not. Both are in the order of sequence numbers. */
static void note_refused(const struct work *w, const struct snapshot *snap, u32 at, u32 count, bool refused)
{
	struct ckm_gpu *gpu = w->gpu;
	const u32 end = at + count;
	struct ckm_slot *slot;
	struct ckm_obj *obj;

	spin_lock(&gpu->lock);
	slot = gpu->slot[w->sched_id];
	if (slot)
		list_for_each_entry(obj, &slot->channels, sched) {
			while (at < end && snap->list[at].seq < obj->seq)
				at++;
			if (at == end)
				break;
			if (snap->list[at].seq == obj->seq)
				obj->refused[w->freeze] = refused;
		}
	spin_unlock(&gpu->lock);
}

/* The driver answered @status for one channel alone: it is forgotten if the driver has it no more. Returns the failure,
 * or NV_OK.
 */
static u32 note_alone(const struct work *w, const struct snapshot *snap, u32 at, u32 status)
{
	if (status == NV_ERR_OBJECT_NOT_FOUND || status == NV_ERR_INVALID_CLIENT) {
		forget_channel(w->gpu, w->sched_id, snap->list[at].seq);
		return NV_OK;
	}
	note_refused(w, snap, at, 1, status != NV_OK);
	return status;
}

/* The driver refuses a list for one channel that was freed since the snapshot. What the slot has no more is
 * left out then, and the rest goes in halves down to the channel that is refused alone: six calls for
 * it, and as many until lists are full again. It is forgotten if the driver has it no more, and else left out of these
 * lists from then on.
 *
 * Returns the status of the latest failure, or NV_OK.
 */
static u32 freeze_snapshot(struct work *w, struct snapshot *snap, struct nv_disable_channels *list)
{
	u32 most = NV2080_CTRL_FIFO_DISABLE_CHANNELS_MAX_ENTRIES, failure = NV_OK, at = 0, count, status;

	while (at < snap->count) {
		count = min(snap->count - at, most);
		status = freeze_list(w, list, snap, at, count);
		if (status != NV_OK && count > 1) {
			snapshot_drop_ended(w->gpu, w->sched_id, snap, at);
			most = count / 2;
			continue;
		}
		if (status == NV_OK)
			most = min_t(u32, 2 * most, NV2080_CTRL_FIFO_DISABLE_CHANNELS_MAX_ENTRIES);
		else
			failure = note_alone(w, snap, at, status) ?: failure;
		at += count;
	}
	return failure;
}

/* The next one after that tried last, of this slot and for the same call: were these counted together, one that the
 * driver accepts again could be passed over each time.
 */
static u32 next_alone(const struct work *w, const struct snapshot *snap)
{
	u64 *last = &w->gpu->alone_seq[w->freeze][w->sched_id];
	u32 at = 0;

	while (at < snap->count && snap->list[at].seq <= *last)
		at++;
	if (at == snap->count)
		at = 0;
	*last = snap->list[at].seq;
	return at;
}

/* Channels that the driver refused alone: a tenant can have any number of them, that faulted, and the driver may
 * refuse them for good. So no list is taken apart for them: of those of a slot one is tried alone, another one each
 * time, and the others only in full lists.
 */
static u32 freeze_refused(struct work *w, struct snapshot *snap, struct nv_disable_channels *list)
{
	u32 failure = NV_OK, at, count, status;

	for (at = 0; at < snap->count; at += count) {
		count = min_t(u32, snap->count - at, NV2080_CTRL_FIFO_DISABLE_CHANNELS_MAX_ENTRIES);
		status = freeze_list(w, list, snap, at, count);
		if (count == 1)
			status = note_alone(w, snap, at, status);
		else if (status == NV_OK)
			note_refused(w, snap, at, count, false);
		failure = status ?: failure;
	}
	if (failure == NV_OK || snap->count == 1 || !is_whole(w->filter))
		return failure;
	at = next_alone(w, snap);
	note_alone(w, snap, at, freeze_list(w, list, snap, at, 1));
	return failure;
}

/* Those that the driver refused alone, or the others. */
static u32 freeze_part(struct work *w, bool refused)
{
	u32 room = room_for(w, refused), failure = NV_ERR_NO_MEMORY;
	struct nv_disable_channels *list;
	struct snapshot *snap;

	if (!room)
		return NV_OK;
	list = kzalloc(sizeof(*list), GFP_KERNEL);
	snap = take_snapshot(w, refused, room);
	if (list && snap)
		failure = refused ? freeze_refused(w, snap, list) : freeze_snapshot(w, snap, list);
	kvfree(snap);
	kfree(list);
	return failure;
}

/* False: a call failed, and @w->some says whether another one succeeded. */
static bool freeze_slot(struct work *w)
{
	u32 failure = freeze_part(w, false);

	failure = freeze_part(w, true) ?: failure;
	if (failure != NV_OK)
		ckm_events_control_failed(w->gpu, w->sched_id, CGPU_CTRL_FREEZE, failure);
	return failure == NV_OK;
}

u32 ckm_ctrl_set_frozen(struct ckm_gpu *gpu, u32 mask, bool frozen, u32 *part)
{
	const struct ckm_channel_filter all = {};
	struct work w = { .gpu = gpu, .filter = &all, .freeze = frozen };
	u32 done = 0;

	lockdep_assert_held(&gpu->ctrl_lock);
	for (; mask; mask &= mask - 1) {
		w.sched_id = __ffs(mask);
		w.some = false;
		if (freeze_slot(&w))
			done |= BIT(w.sched_id);
		else if (w.some)
			*part |= BIT(w.sched_id);
	}
	return done;
}

bool ckm_ctrl_freeze_some(struct ckm_gpu *gpu, u32 sched_id,
			  const struct ckm_channel_filter *filter)
{
	struct work w = { .gpu = gpu, .sched_id = sched_id, .filter = filter, .freeze = true };
	u64 failed_ns = 0;
	bool done;

	lockdep_assert_held(&gpu->ctrl_lock);
	done = freeze_slot(&w);
	if (ckm_ctrl_needs_restart(gpu) &&
	    !ckm_ctrl_commit(gpu, BIT(sched_id), &failed_ns) && failed_ns)
		done = false;
	return done;
}
