// SPDX-License-Identifier: MIT OR GPL-2.0
/* Owns what is recorded of a channel's freezes by calls. Callers hold ctrl_lock; takes gpu->lock. */
#include <linux/mm.h>
#include <linux/slab.h>

#include "core/nv_abi.h"
#include "sched/choose.h"
#include "sched/run_state.h"
#include "state/container.h"
#include "state/gpu.h"
#include "state/rm_object.h"

#define PART	NV2080_DISABLE_CHANNELS_MAX	/* channels that are thawed at a time */

/* Words that one choice reads: a read of a GPU's register takes about a microsecond. */
#define WORDS_MAX	256

static bool matches(const struct ckm_channel_filter *filter, const struct ckm_obj *obj)
{
	return (!filter->channel || obj == filter->channel) &&
	       (!filter->group || obj->group == filter->group);
}

/* Room for the slot's channels, or its TSGs. */
static struct ckm_snapshot *new_snapshot(struct ckm_gpu *gpu, u32 sched_id, bool tsgs)
{
	const struct ckm_slot *slot;
	struct ckm_snapshot *snap;
	u32 room = 0;

	lockdep_assert_held(&gpu->ctrl_lock);
	mutex_lock(&gpu->lock);
	slot = gpu->slot[sched_id];
	if (slot)
		room = tsgs ? slot->tsg_count : slot->channel_count;
	mutex_unlock(&gpu->lock);
	snap = kvmalloc(struct_size(snap, list, room), GFP_KERNEL);
	if (!snap)
		return NULL;
	snap->count = 0;
	snap->room = room;
	return snap;
}

/* False: there is no room, because there are more than when @snap was allocated. */
static bool add(struct ckm_snapshot *snap, const struct ckm_obj *obj)
{
	if (snap->count == snap->room)
		return false;
	snap->list[snap->count].client = obj->core.hclient;
	snap->list[snap->count].seq = obj->seq;
	snap->list[snap->count++].object = obj->core.hobject;
	return true;
}

static void freeze_one(struct ckm_snapshot *snap, struct ckm_obj *obj)
{
	if (!add(snap, obj))
		return;
	obj->held = true;
	obj->frozen = true;
}

/* Fill the last call with channels that are frozen already, the next ones in each hand-over: should the
 * driver have enabled one by itself, it does not run for long.
 */
static void fill(struct ckm_slot *slot, struct ckm_snapshot *snap)
{
	u32 left = -snap->count % PART, named = snap->count, pass, at;
	u64 after = slot->refrozen_to;
	struct ckm_obj *obj;

	for (pass = 0; pass < 2; pass++) {
		at = 0;		/* of those that are named already, in the order of the list */
		list_for_each_entry(obj, &slot->channels, sched) {
			if (!left || snap->count == snap->room)
				return;
			while (at < named && snap->list[at].seq < obj->seq)
				at++;
			if (!obj->held || (obj->seq > after) == pass ||
			    (at < named && snap->list[at].seq == obj->seq))
				continue;
			freeze_one(snap, obj);
			slot->refrozen_to = obj->seq;
			left--;
		}
	}
}

struct ckm_snapshot *ckm_choose_frozen(struct ckm_gpu *gpu, u32 sched_id,
				       const struct ckm_channel_filter *filter)
{
	struct ckm_snapshot *snap = new_snapshot(gpu, sched_id, false);
	struct ckm_slot *slot;
	struct ckm_obj *obj;
	bool few;

	if (!snap)
		return NULL;
	mutex_lock(&gpu->lock);
	slot = gpu->slot[sched_id];
	if (slot) {
		few = slot->channel_count <= PART;
		list_for_each_entry(obj, &slot->channels, sched)
			if (matches(filter, obj) && (few || !obj->frozen))
				freeze_one(snap, obj);
		if (!few && !filter->channel && !filter->group)
			fill(slot, snap);
	}
	mutex_unlock(&gpu->lock);
	return snap;
}

/* ---- the next part ---- */

/* 0: it may have work; 1: its word shows none; 2: its owner did not enable it yet. */
static u32 urgency(struct ckm_gpu *gpu, const struct ckm_obj *obj, u32 *words)
{
	if (!READ_ONCE(obj->group->scheduled))
		return 2;
	return obj->word && *words < WORDS_MAX && ++*words &&
	       ckm_run_state_is_idle_locked(gpu, obj);
}

static u32 count_held(struct ckm_slot *slot)
{
	struct ckm_obj *obj;
	u32 held = 0;

	list_for_each_entry(obj, &slot->channels, sched)
		obj->group->held = 0;
	list_for_each_entry(obj, &slot->channels, sched)
		if (obj->held) {
			obj->group->held++;
			held++;
		}
	return held;
}

/* Mark TSGs with PART channels together, one at least. They are looked at in the order of their
 * channels, from the one after the last part on, first those that may have work. Those that are not
 * enabled come last: a part without an enabled channel would seem to contradict the thaw (run_state.c).
 */
static void mark_part(struct ckm_gpu *gpu, struct ckm_slot *slot)
{
	u64 after = slot->thawed_to;
	u32 pass, words = 0, room = PART;
	struct ckm_obj *obj;

	gpu->batch++;
	for (pass = 0; pass < 6; pass++)
		list_for_each_entry(obj, &slot->channels, sched) {
			if (!obj->held || (obj->seq > after) == pass % 2 ||
			    obj->group->batch == gpu->batch)
				continue;
			if (pass < 4 && urgency(gpu, obj, &words) > pass / 2)
				continue;
			if (obj->group->held > room && room < PART)
				return;
			obj->group->batch = gpu->batch;
			room -= min_t(u32, room, obj->group->held);
			slot->thawed_to = obj->seq;
			if (!room)
				return;
		}
}

struct ckm_snapshot *ckm_choose_thawed(struct ckm_gpu *gpu, u32 sched_id, bool *rest)
{
	struct ckm_snapshot *snap = new_snapshot(gpu, sched_id, false);
	struct ckm_slot *slot;
	struct ckm_obj *obj;
	bool few;
	u32 held;

	*rest = !snap;
	if (!snap)
		return NULL;
	mutex_lock(&gpu->lock);
	slot = gpu->slot[sched_id];
	if (slot) {
		few = slot->channel_count <= PART;
		held = count_held(slot);
		if (!few)
			mark_part(gpu, slot);
		list_for_each_entry(obj, &slot->channels, sched) {
			if (!few && (!obj->held || obj->group->batch != gpu->batch))
				continue;
			if (!add(snap, obj))
				break;
			held -= obj->held;
			obj->held = false;
			obj->frozen = false;
		}
		*rest = held;
	}
	mutex_unlock(&gpu->lock);
	return snap;
}

/* ---- records ---- */

void ckm_choose_failed(struct ckm_gpu *gpu, u32 sched_id, u64 seq)
{
	struct ckm_slot *slot;
	struct ckm_obj *obj;

	mutex_lock(&gpu->lock);
	slot = gpu->slot[sched_id];
	if (slot)
		list_for_each_entry(obj, &slot->channels, sched)
			if (!seq || obj->seq == seq) {
				obj->held = true;
				obj->frozen = false;
			}
	mutex_unlock(&gpu->lock);
}

void ckm_choose_enabled_locked(struct ckm_slot *slot, const struct ckm_channel_filter *filter)
{
	struct ckm_obj *obj;

	lockdep_assert_held(&slot->gpu->lock);
	list_for_each_entry(obj, &slot->channels, sched)
		if (matches(filter, obj))
			obj->frozen = false;
}

/* ---- TSGs ---- */

struct ckm_snapshot *ckm_choose_tsgs(struct ckm_gpu *gpu, u32 sched_id, u32 timeslice_us)
{
	struct ckm_snapshot *snap = new_snapshot(gpu, sched_id, true);
	struct ckm_group *group;
	struct ckm_slot *slot;

	if (!snap)
		return NULL;
	mutex_lock(&gpu->lock);
	slot = gpu->slot[sched_id];
	if (slot)
		list_for_each_entry(group, &slot->tsgs, sched) {
			if (slot->tsg_count > PART && group->set_us == timeslice_us)
				continue;
			if (!add(snap, list_first_entry(&group->handles, struct ckm_obj, sched)))
				break;
			group->set_us = timeslice_us;
		}
	mutex_unlock(&gpu->lock);
	return snap;
}

void ckm_choose_tsgs_failed(struct ckm_gpu *gpu, u32 sched_id)
{
	struct ckm_group *group;
	struct ckm_slot *slot;

	mutex_lock(&gpu->lock);
	slot = gpu->slot[sched_id];
	if (slot)
		list_for_each_entry(group, &slot->tsgs, sched)
			group->set_us = 0;
	mutex_unlock(&gpu->lock);
}
