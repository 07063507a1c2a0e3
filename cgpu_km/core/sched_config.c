// SPDX-License-Identifier: MIT OR GPL-2.0-only
/* The containers of one GPU and what an administrator may change. */
#include "sched_gpu.h"

#include "sched_account.h"
#include "sched_at_work.h"
#include "policy.h"
#include "sched_ceiling.h"
#include "sched_debt.h"
#include "sched_prio.h"
#include "sched_rr.h"
#include "sched_run_state.h"
#include "sched_use.h"

#include "../uapi.h"

#define CONTROL_TIMES	20		/* a slice is 20 control calls long */
#define SLICE_MIN_NS	5000000ull
#define SLICE_MAX_NS	30000000ull
#define SLICE_NS	20000000ull	/* until the control is measured */

/* While calls are under way, time is charged when they are acknowledged: only then is it
 * known which slots ran.
 */
static void account(struct cgpu_sched *t, u64 now_ns)
{
	if (!t->inflight)
		cgpu_sched_update(t, now_ns);
}

static bool is_live(const struct cgpu_sched *t, u32 slot)
{
	return slot < CGPU_SLOTS && t->slot[slot].cookie;
}

/**
 * cgpu_rr_refresh() - work out the masks that follow from the slots
 * @t: the scheduler, of which a slot was changed
 */
void cgpu_rr_refresh(struct cgpu_sched *t)
{
	u32 i;

	t->live_mask = 0;
	t->opened_mask = 0;
	t->weighted_mask[0] = 0;
	t->weighted_mask[1] = 0;
	memset(t->least_weight, 0, sizeof(t->least_weight));
	memset(t->opened_weight, 0, sizeof(t->opened_weight));
	for (i = 0; i < CGPU_SLOTS; i++) {
		const struct cgpu_sched_entity *s = &t->slot[i];

		t->live_mask |= s->cookie ? 1u << i : 0;
		t->opened_mask |= s->channels ? 1u << i : 0;
		t->weighted_mask[s->highprio] |= s->weight ? 1u << i & ~t->held_mask : 0;
		if (s->weight && s->channels) {
			u32 *least = &t->least_weight[s->highprio];

			*least = *least && *least < s->weight ? *least : s->weight;
			t->opened_weight[s->highprio] += s->weight;
		}
	}
	cgpu_ceiling_refresh(t);
}

/* After a change of slots: work out the masks and place the slices of the fixed rounds.
 * Unassigned slices lie evenly between the others, so that a slow call delays only its
 * own slot.
 */
static void pack(struct cgpu_sched *t)
{
	const struct cgpu_policy *policy = cgpu_policy_get(t->policy);
	u32 slices[CGPU_SLOTS] = { 0 }, used = 0, owners = 0, next = 0, nr = 0, i;

	cgpu_rr_refresh(t);
	for (i = 0; policy->fixed_round && i < CGPU_SLOTS; i++) {
		slices[i] = t->slot[i].cookie ? policy->slices(&t->slot[i]) : 0;
		used += slices[i];
		owners += slices[i] > 0;
	}
	for (i = 0; i < CGPU_SLOTS; i++) {
		t->slot[i].first_slice = next;
		next += slices[i];
		if (!slices[i] || used >= t->max_inst)
			continue;
		next += (t->max_inst - used) * (nr + 1) / owners - (t->max_inst - used) * nr / owners;
		nr++;
	}
}

/* No turn is under way and all deficits are 0: another policy, another entitlement. */
static void start_over(struct cgpu_sched *t)
{
	u32 i;

	for (i = 0; i < CGPU_RR_COUNT; i++)
		cgpu_rr_reset(t, i);
	for (i = 0; i < CGPU_SLOTS; i++) {
		cgpu_debt_clear(t, i);
		t->slot[i].ts_changed_ns = 0;
		cgpu_ceiling_fill(t, i);
	}
	t->prio_period_ns = 0;
	t->prio_throttled = 0;
	cgpu_prio_fill_budget(t);
	pack(t);
}

/**
 * cgpu_sched_init() - a GPU without containers
 * @t: storage of the caller
 * @now_ns: monotonic
 *
 * Policy native, no control known, defaults of uapi.h.
 */
void cgpu_sched_init(struct cgpu_sched *t, u64 now_ns)
{
	memset(t, 0, sizeof(*t));
	t->policy = CGPU_POLICY_NATIVE;
	t->max_inst = CGPU_MAX_INST_DEFAULT;
	t->prio_ratio = CGPU_PRIO_RATIO_DEFAULT;
	t->slice_ns = SLICE_NS;
	t->switch_ns = CGPU_SWITCH_NS;
	t->timeslice_default_us = CGPU_TIMESLICE_US;
	t->last_ns = now_ns;
	cgpu_use_begin(t);
	start_over(t);
}

/**
 * cgpu_sched_instances() - how many containers there are
 * @t: the scheduler
 */
u32 cgpu_sched_instances(const struct cgpu_sched *t)
{
	u32 count = 0, i;

	for (i = 0; i < CGPU_SLOTS; i++)
		count += t->slot[i].cookie != 0;
	return count;
}

/**
 * cgpu_sched_free_weight() - unassigned slices per round
 * @t: the scheduler
 */
u32 cgpu_sched_free_weight(const struct cgpu_sched *t)
{
	u32 sum = 0, i;

	for (i = 0; i < CGPU_SLOTS; i++)
		sum += t->slot[i].weight;
	return sum < t->max_inst ? t->max_inst - sum : 0;
}

/**
 * cgpu_sched_add() - admit a container
 * @t: the scheduler
 * @cookie: its identity, not 0
 * @weight: requested slices per round, 1 .. max_inst
 * @highprio: 0 or 1
 * @now_ns: monotonic
 * @slot: its slot
 * @granted: @weight, or 0 when no slice is left: it will not run
 *
 * Context: Caller serialises.
 * Return: 0; -EINVAL for an argument out of range; -EEXIST if @cookie is here;
 * -ENOSPC if max_inst containers exist, or if 0 < unassigned slices < @weight.
 */
int cgpu_sched_add(struct cgpu_sched *t, u64 cookie, u32 weight, u32 highprio,
		   u64 now_ns, u32 *slot, u32 *granted)
{
	u32 left = cgpu_sched_free_weight(t), free_slot = CGPU_NO_SLOT, i;

	if (!cookie || !weight || weight > t->max_inst || highprio > 1)
		return -EINVAL;
	for (i = CGPU_SLOTS; i-- > 0;) {
		if (t->slot[i].cookie == cookie)
			return -EEXIST;
		if (!t->slot[i].cookie)
			free_slot = i;
	}
	if (cgpu_sched_instances(t) >= t->max_inst || free_slot >= CGPU_SLOTS)
		return -ENOSPC;
	if (left && left < weight)
		return -ENOSPC;
	account(t, now_ns);
	memset(&t->slot[free_slot], 0, sizeof(t->slot[free_slot]));
	t->slot[free_slot].cookie = cookie;
	t->slot[free_slot].weight = left ? weight : 0;
	t->slot[free_slot].highprio = (u8)highprio;
	t->slot[free_slot].probed_ns = now_ns;
	cgpu_ceiling_fill(t, free_slot);
	t->new_mask |= 1u << free_slot;
	pack(t);
	*slot = free_slot;
	*granted = t->slot[free_slot].weight;
	return 0;
}

/**
 * cgpu_sched_del() - a container is gone; its turn, if it was, ends
 * @t: the scheduler
 * @slot: its slot
 * @now_ns: monotonic
 *
 * Context: Caller serialises.
 */
void cgpu_sched_del(struct cgpu_sched *t, u32 slot, u64 now_ns)
{
	u32 gone;

	if (!is_live(t, slot))
		return;
	account(t, now_ns);
	gone = ~(1u << slot);
	cgpu_run_state_forget(t, 1u << slot);
	memset(&t->slot[slot], 0, sizeof(t->slot[slot]));
	t->run_mask &= gone;
	t->planned_mask &= gone;
	t->timesliced &= gone;
	t->freeze_unknown_mask &= gone;
	t->ts_failed_mask &= gone;
	t->ts_dirty_mask &= gone;
	t->unrestarted_mask &= gone;
	t->part_thawed_mask &= gone;
	t->held_mask &= gone;
	t->hold_mask &= gone;
	pack(t);
}

/**
 * cgpu_sched_set_weight() - change a container's slices
 * @t: the scheduler
 * @slot: its slot
 * @weight: 0 (frozen) .. max_inst
 * @now_ns: monotonic
 *
 * Context: Caller serialises. Acts at the next cgpu_sched_next().
 * Return: 0; -EINVAL out of range or above its ceiling; -ENOSPC if the sum would exceed
 * max_inst.
 */
int cgpu_sched_set_weight(struct cgpu_sched *t, u32 slot, u64 weight, u64 now_ns)
{
	if (!is_live(t, slot) || weight > t->max_inst)
		return -EINVAL;
	if (t->slot[slot].ceiling && weight > t->slot[slot].ceiling)
		return -EINVAL;
	if (weight > t->slot[slot].weight &&
	    weight - t->slot[slot].weight > cgpu_sched_free_weight(t))
		return -ENOSPC;
	account(t, now_ns);
	t->slot[slot].weight = (u32)weight;
	pack(t);
	return 0;
}

/**
 * cgpu_sched_set_ceiling() - change what a container may have at most
 * @t: the scheduler
 * @slot: its slot
 * @ceiling: in parts of max_inst, at least its weight; 0: none
 * @now_ns: monotonic
 *
 * Kept under every policy, in force under burst. Its budget is full when the container is added, and is kept
 * while it has no ceiling: neither another one nor one set again gives a new budget.
 *
 * Context: Caller serialises. Acts at the next cgpu_sched_next().
 * Return: 0 or -EINVAL.
 */
int cgpu_sched_set_ceiling(struct cgpu_sched *t, u32 slot, u64 ceiling, u64 now_ns)
{
	if (!is_live(t, slot) || ceiling > t->max_inst)
		return -EINVAL;
	if (ceiling && ceiling < t->slot[slot].weight)
		return -EINVAL;
	account(t, now_ns);
	t->slot[slot].ceiling = (u32)ceiling;
	cgpu_rr_refresh(t);
	return 0;
}

/**
 * cgpu_sched_set_highprio() - move a container into or out of high priority
 * @t: the scheduler
 * @slot: its slot
 * @highprio: 0 or 1
 * @now_ns: monotonic
 *
 * Context: Caller serialises. Acts at the next cgpu_sched_next().
 * Return: 0 or -EINVAL.
 */
int cgpu_sched_set_highprio(struct cgpu_sched *t, u32 slot, u64 highprio, u64 now_ns)
{
	if (!is_live(t, slot) || highprio > 1)
		return -EINVAL;
	if (t->slot[slot].highprio == highprio)
		return 0;
	account(t, now_ns);
	t->slot[slot].highprio = (u8)highprio;
	cgpu_debt_clear(t, slot);
	cgpu_rr_refresh(t);
	return 0;
}

static u32 most_max_inst(const struct cgpu_policy *policy)
{
	return policy->max_inst ? policy->max_inst : CGPU_MAX_INST_MAX;
}

/**
 * cgpu_sched_set_policy() - switch to another policy
 * @t: the scheduler
 * @policy: public number
 * @now_ns: monotonic
 *
 * Context: Caller serialises. Acts at the next cgpu_sched_next().
 * Return: 0; -EINVAL out of range; -EOPNOTSUPP if its control does not work; -EBUSY if
 * max_inst is more than it takes.
 */
int cgpu_sched_set_policy(struct cgpu_sched *t, u64 policy, u64 now_ns)
{
	const struct cgpu_policy *wanted = cgpu_policy_get(policy);

	if (!wanted)
		return -EINVAL;
	if (wanted->controls & ~t->controls)
		return -EOPNOTSUPP;
	/* Native divides nothing, and a lost control must always end there. */
	if (wanted->limits && t->max_inst > most_max_inst(wanted))
		return -EBUSY;
	if (policy == t->policy)
		return 0;
	account(t, now_ns);
	t->policy = (u32)policy;
	start_over(t);
	return 0;
}

/**
 * cgpu_sched_set_max_inst() - change the number of slices of this GPU
 * @t: the scheduler
 * @max_inst: 1 .. CGPU_MAX_INST_MAX, under burst .. CGPU_MAX_INST_BURST_MAX
 * @now_ns: monotonic
 *
 * Context: Caller serialises.
 * Return: 0; -EINVAL out of range; -EBUSY below live containers or weights.
 */
int cgpu_sched_set_max_inst(struct cgpu_sched *t, u64 max_inst, u64 now_ns)
{
	u32 used = t->max_inst - cgpu_sched_free_weight(t);

	if (max_inst < CGPU_MAX_INST_MIN ||
	    max_inst > most_max_inst(cgpu_policy_get(t->policy)))
		return -EINVAL;
	if (max_inst < cgpu_sched_instances(t) || max_inst < used)
		return -EBUSY;
	account(t, now_ns);
	t->max_inst = (u32)max_inst;
	pack(t);
	return 0;
}

/**
 * cgpu_sched_set_prio_ratio() - change the quota of high priority
 * @t: the scheduler
 * @prio_ratio: percent of each 100 ms
 * @now_ns: monotonic
 *
 * Context: Caller serialises.
 * Return: 0 or -EINVAL.
 */
int cgpu_sched_set_prio_ratio(struct cgpu_sched *t, u64 prio_ratio, u64 now_ns)
{
	if (prio_ratio < CGPU_PRIO_RATIO_MIN || prio_ratio > CGPU_PRIO_RATIO_MAX)
		return -EINVAL;
	account(t, now_ns);
	t->prio_ratio = (u32)prio_ratio;
	return 0;
}

/**
 * cgpu_sched_set_slice_us() - change the length of a slice
 * @t: the scheduler
 * @slice_us: microseconds
 * @now_ns: monotonic
 *
 * Context: Caller serialises. The turn under way keeps its length.
 * Return: 0 or -EINVAL.
 */
int cgpu_sched_set_slice_us(struct cgpu_sched *t, u64 slice_us, u64 now_ns)
{
	if (slice_us < CGPU_SLICE_US_MIN || slice_us > CGPU_SLICE_US_MAX)
		return -EINVAL;
	account(t, now_ns);
	t->slice_ns = slice_us * 1000;
	return 0;
}

/**
 * cgpu_sched_set_held() - freeze some out of turn, to look whether it moves the share
 * @t: the scheduler
 * @mask: slots, in place of those before
 * @now_ns: monotonic
 *
 * Context: Caller serialises. Acts at the next cgpu_sched_next().
 */
void cgpu_sched_set_held(struct cgpu_sched *t, u32 mask, u64 now_ns)
{
	account(t, now_ns);
	t->hold_mask = 0;
	t->held_mask = mask & t->live_mask;
	cgpu_rr_refresh(t);
}

/**
 * cgpu_sched_set_paused() - the system falls asleep, or has woken
 * @t: the scheduler; no plan with calls is under way
 * @paused: 1: plans thaw every slot and reset every timeslice; 0: as before
 * @now_ns: monotonic
 *
 * Slots that opened the GPU meanwhile were not frozen either: the first plan after it freezes
 * them if they have no turn.
 *
 * Context: Caller serialises. Acts at the next cgpu_sched_next().
 */
void cgpu_sched_set_paused(struct cgpu_sched *t, u32 paused, u64 now_ns)
{
	account(t, now_ns);
	if (t->paused && !paused)
		cgpu_sched_switch(t, t->run_mask | t->opened_mask);
	t->paused = paused != 0;
}

/**
 * cgpu_sched_set_channels() - a container's channels or TSGs came or went
 * @t: the scheduler
 * @slot: its slot
 * @channels: live graphics/compute channels
 * @tsgs: live graphics/compute TSGs
 * @now_ns: monotonic
 *
 * Call it even if both numbers are what they were (one went, one came): a new
 * TSG has the driver's timeslice.
 *
 * Context: Caller serialises.
 */
void cgpu_sched_set_channels(struct cgpu_sched *t, u32 slot, u32 channels, u32 tsgs, u64 now_ns)
{
	if (!is_live(t, slot))
		return;
	account(t, now_ns);
	if (t->slot[slot].channels && !channels)
		t->slot[slot].closed_ns = now_ns;
	if (t->slot[slot].highprio && !t->slot[slot].channels && channels)
		cgpu_use_opened(t, now_ns);
	if (tsgs > t->slot[slot].tsgs || (tsgs == t->slot[slot].tsgs && channels == t->slot[slot].channels))
		t->ts_dirty_mask |= 1u << slot;
	t->slot[slot].channels = channels;
	t->slot[slot].tsgs = tsgs;
	cgpu_rr_refresh(t);
	t->touched_mask |= 1u << slot;
	if (!channels) {
		t->slot[slot].timeslice_us = 0;
		t->timesliced &= ~(1u << slot);
		cgpu_run_state_forget(t, 1u << slot);
		cgpu_at_work_forget(&t->slot[slot]);
	}
}

/**
 * cgpu_sched_is_frozen() - must a new channel be frozen before its owner may
 *                         ring its doorbell
 * @t: the scheduler
 * @slot: the owner's slot
 *
 * By the last plan, acknowledged or not: a call that is under way may have
 * listed the container's channels before this one was there.
 */
bool cgpu_sched_is_frozen(const struct cgpu_sched *t, u32 slot)
{
	if (!is_live(t, slot) || !cgpu_policy_get(t->policy)->limits || t->paused)
		return false;
	return !(t->planned_mask >> slot & 1);
}

/**
 * cgpu_sched_auto_slice_ns() - slice length that keeps the control's cost small
 * @control_p50_ns: measured median of a freeze
 *
 * Return: clamp(20 x p50, 5 ms, 30 ms).
 */
u64 cgpu_sched_auto_slice_ns(u64 control_p50_ns)
{
	if (control_p50_ns >= SLICE_MAX_NS / CONTROL_TIMES)
		return SLICE_MAX_NS;
	if (control_p50_ns <= SLICE_MIN_NS / CONTROL_TIMES)
		return SLICE_MIN_NS;
	return control_p50_ns * CONTROL_TIMES;
}
