/* SPDX-License-Identifier: MIT OR GPL-2.0 */
/*
 * Which channels of a container a freeze or thaw names. Up to 64 (NV2080_DISABLE_CHANNELS_MAX) fit in
 * one call, and all of a container's are named each time. A container with more is thawed in parts, so
 * that a hand-over does not take a call for each 64 of its channels: at the begin of its turn TSGs with
 * 64 channels together, in the next turn the TSGs after them; those that are known to have no work
 * last. The others stay frozen and need no call at the end of the turn. While it is not handed over,
 * ckm_ctrl_thaw_more() thaws the rest part by part.
 *
 * A TSG is thawed as a whole: a kernel of one channel may wait for a kernel of another.
 */
#ifndef CKM_CHOOSE_H
#define CKM_CHOOSE_H

#include <linux/types.h>

struct ckm_channel_filter;
struct ckm_gpu;
struct ckm_slot;

/* Channels or TSGs of a slot, as they were at one time. */
struct ckm_snapshot {
	u32 count, room;
	struct {
		u32 client, object;
		u64 seq;		/* ckm_obj.seq of a channel; 0: a TSG */
	} list[];
};

/**
 * ckm_choose_frozen() - channels to freeze
 * @gpu: caller holds its ctrl_lock
 * @sched_id: slot
 * @filter: which of them
 *
 * All channels that may run, and, to fill the last call, some that are frozen. They are recorded as
 * frozen. What is enabled later is frozen by the call that enables it; for what is freed later the
 * driver's call fails. Sleeps; takes gpu->lock for one pass over the slot's channels.
 *
 * Return: to be freed by kvfree(); NULL: no memory.
 */
struct ckm_snapshot *ckm_choose_frozen(struct ckm_gpu *gpu, u32 sched_id,
				       const struct ckm_channel_filter *filter);

/**
 * ckm_choose_thawed() - the next part of a slot's channels that are held
 * @gpu: caller holds its ctrl_lock
 * @sched_id: slot
 * @rest: set to whether more are held
 *
 * They are recorded as thawed. Sleeps; takes gpu->lock for some passes over the slot's channels, and
 * reads up to 256 words.
 *
 * Return: as ckm_choose_frozen().
 */
struct ckm_snapshot *ckm_choose_thawed(struct ckm_gpu *gpu, u32 sched_id, bool *rest);

/**
 * ckm_choose_tsgs() - one handle of each TSG whose timeslice is to be set
 * @gpu: caller holds its ctrl_lock
 * @sched_id: slot
 * @timeslice_us: the timeslice, not 0. It is recorded for them
 *
 * All TSGs of a slot; of more than 64 those that have another timeslice. Sleeps; takes gpu->lock.
 *
 * Return: as ckm_choose_frozen().
 */
struct ckm_snapshot *ckm_choose_tsgs(struct ckm_gpu *gpu, u32 sched_id, u32 timeslice_us);

/* A call failed: what is recorded of the slot's channel @seq, 0: of all, or of its TSGs, is not known to
 * be so. Caller holds ctrl_lock; takes gpu->lock.
 */
void ckm_choose_failed(struct ckm_gpu *gpu, u32 sched_id, u64 seq);
void ckm_choose_tsgs_failed(struct ckm_gpu *gpu, u32 sched_id);

/* The slot's channels that match @filter may run: they are new, or their owner enables them. Caller
 * holds gpu->lock.
 */
void ckm_choose_enabled_locked(struct ckm_slot *slot, const struct ckm_channel_filter *filter);

#endif
