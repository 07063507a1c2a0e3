// SPDX-License-Identifier: MIT OR GPL-2.0-only
/* The shell's views of a scheduler state; its migration to another core: docs/user/upgrade.md. */
#include "sched_stat.h"

#include "policy.h"
#include "sched_account.h"
#include "sched_hwshare.h"
#include "sched_rr.h"
#include "sched_use.h"

#include "../uapi.h"

/* The controls that the policy needs work and are not in doubt, and the last call for the
 * slot succeeded. Native enforces nothing.
 */
static bool is_enforced(const struct cgpu_sched *t, u32 slot)
{
	const struct cgpu_policy *policy = cgpu_policy_get(t->policy);
	u32 good = t->controls, need = policy->controls;

	if (t->no_effect_count[0])
		good &= ~CGPU_CTRL_FREEZE;
	if (t->no_effect_count[1])
		good &= ~CGPU_CTRL_TIMESLICE;
	if (!t->slot[slot].weight || t->slot[slot].highprio)
		need |= CGPU_CTRL_FREEZE;
	return policy->limits && !(need & ~good) &&
	       !((t->freeze_unknown_mask | t->ts_failed_mask) >> slot & 1);
}

/* May the time since the account be shown? Where several run and the state of one is known, the next
 * reading tells which of them had it.
 */
static bool is_settled(const struct cgpu_sched *t, const struct cgpu_account_now *n)
{
	return cgpu_is_one(n->awake) || !(n->awake & t->known_mask);
}

/**
 * cgpu_sched_stat() - figures of one slot
 * @t: the scheduler
 * @slot: which; a slot that is free reads as zeros
 * @now_ns: monotonic
 * @st: filled
 *
 * Context: Caller serialises. Times never go back: while calls are under way
 * they stand still until the calls are acknowledged, and gpu_ns of several that run beside each
 * other until their run state is read again, or until it is known which of them had the GPU.
 */
void cgpu_sched_stat(const struct cgpu_sched *t, u32 slot, u64 now_ns,
		     struct cgpu_sched_stat *st)
{
	const struct cgpu_sched_entity *s;
	u64 since_ns = 0;
	struct cgpu_account_now n;

	memset(st, 0, sizeof(*st));
	if (slot >= CGPU_SLOTS || !t->slot[slot].cookie)
		return;
	s = &t->slot[slot];
	if (!t->inflight && now_ns > t->last_ns)
		since_ns = now_ns - t->last_ns;
	cgpu_account_snapshot(t, &n);
	st->gpu_ns = s->gpu_ns - s->open_ns;
	if ((n.ran >> slot & 1) && is_settled(t, &n))
		st->gpu_ns += cgpu_account_got_ns(t, &n, slot, since_ns);
	st->wait_ns = s->wait_ns + ((n.waiting >> slot & 1) ? since_ns : 0);
	st->wait = s->wait;
	st->throttled_ns = s->throttled_ns;
	if ((n.waiting & t->capped_mask) >> slot & 1)
		st->throttled_ns += since_ns;
	st->turns = s->turns;
	st->overruns = s->overruns;
	st->unsure_ns = s->unsure_ns + ((t->freeze_unknown_mask >> slot & 1) ? since_ns : 0);
	st->failed = s->failed;
	st->preempt_slow = s->preempt_slow;
	st->enforced = is_enforced(t, slot);
	st->running = !cgpu_sched_is_frozen(t, slot);
	st->opened = s->channels > 0;
}

/**
 * cgpu_sched_view() - the part of a GPU's state that the shell sees
 * @t: the scheduler
 * @view: filled
 *
 * Context: Caller serialises.
 */
void cgpu_sched_view(const struct cgpu_sched *t, struct cgpu_sched_view *view)
{
	memset(view, 0, sizeof(*view));
	view->policy = t->policy;
	view->max_inst = t->max_inst;
	view->prio_ratio = t->prio_ratio;
	view->controls = t->controls;
	view->ineffective = t->ineffective;
	view->no_effect_count[0] = t->no_effect_count[0];
	view->no_effect_count[1] = t->no_effect_count[1];
	view->opened_mask = t->opened_mask;
	view->run_mask = t->run_mask;
	view->free_weight = cgpu_sched_free_weight(t);
	view->instances = cgpu_sched_instances(t);
	view->slice_ns = t->slice_ns;
}

/**
 * cgpu_sched_entity_view() - the part of a slot's state that the shell sees
 * @t: the scheduler
 * @slot: less than CGPU_SLOTS; all zeros for a free one
 * @view: filled
 *
 * Context: Caller serialises.
 */
void cgpu_sched_entity_view(const struct cgpu_sched *t, u32 slot,
			    struct cgpu_sched_entity_view *view)
{
	const struct cgpu_sched_entity *s = &t->slot[slot];

	memset(view, 0, sizeof(*view));
	view->cookie = s->cookie;
	view->weight = s->weight;
	view->highprio = s->highprio;
	view->channels = s->channels;
	view->ceiling = s->ceiling;
	view->preempt_slow = s->preempt_slow;
	view->overruns = s->overruns;
	view->turns = s->turns;
	view->gpu_ns = s->gpu_ns - s->open_ns;
}

static bool is_within(u64 value, u64 least, u64 most)
{
	return value >= least && value <= most;
}

static bool slots_are_sound(const struct cgpu_sched *t)
{
	u32 weights = 0, i;

	for (i = 0; i < CGPU_SLOTS; i++) {
		const struct cgpu_sched_entity *s = &t->slot[i];

		if (s->highprio > 1 || s->weight > t->max_inst || s->first_slice > CGPU_SLOTS ||
		    s->retries > CGPU_RETRY_DOUBLINGS)
			return false;
		if (!s->cookie && (s->weight || s->channels || s->ceiling))
			return false;
		if (s->ceiling > CGPU_MAX_INST_BURST_MAX || (s->ceiling && s->ceiling < s->weight))
			return false;
		weights += s->weight;
	}
	return weights <= t->max_inst;
}

static bool is_slot_or_none(u32 slot)
{
	return slot < CGPU_SLOTS || slot == CGPU_NO_SLOT;
}

static bool groups_are_sound(const struct cgpu_sched *t)
{
	u32 i;

	for (i = 0; i < CGPU_RR_COUNT; i++) {
		const struct cgpu_rr *r = &t->rr[i];

		if ((r->members | r->asleep | r->woken | r->ahead) >> CGPU_SLOTS || r->cursor > CGPU_SLOTS)
			return false;
		if (!is_slot_or_none(r->curr) || !is_slot_or_none(r->resume))
			return false;
	}
	return true;
}

/* Every number that selects, shifts or divides is one that this core itself could have
 * written. The masks that follow from slot[] are worked out anew.
 */
static bool is_sound(const struct cgpu_sched *t)
{
	u32 masks = t->run_mask | t->timesliced | t->planned_mask | t->freeze_unknown_mask |
		    t->new_mask | t->touched_mask | t->ts_dirty_mask | t->ts_failed_mask |
		    t->unrestarted_mask | t->part_thawed_mask |
		    t->held_mask | t->hold_mask | t->wait_mask | t->capped_mask |
		    t->known_mask | t->busy_mask | t->asleep_mask | t->dense_mask | t->on_mask;
	u32 controls = CGPU_CTRL_FREEZE | CGPU_CTRL_TIMESLICE;

	return cgpu_policy_get(t->policy) && !(masks >> CGPU_SLOTS) &&
	       (t->hold_every_ns || !t->hold_mask) &&
	       !((t->controls | t->ineffective) & ~controls) &&
	       is_within(t->max_inst, CGPU_MAX_INST_MIN, CGPU_MAX_INST_BURST_MAX) &&
	       is_within(t->prio_ratio, CGPU_PRIO_RATIO_MIN, CGPU_PRIO_RATIO_MAX) &&
	       is_within(t->slice_ns, CGPU_SLICE_US_MIN * 1000ull, CGPU_SLICE_US_MAX * 1000ull) &&
	       is_within(t->timeslice_default_us, 1, CGPU_TIMESLICE_MAX_US) &&
	       t->switch_ns <= CGPU_SWITCH_MAX_NS &&
	       t->use_credit <= CGPU_USE_MOST && t->use_little <= 1 && t->use_spread <= 1 &&
	       t->paused <= 1 && slots_are_sound(t) && groups_are_sound(t);
}

/**
 * cgpu_sched_migrate() - take over the state of another core
 * @fresh: zeros; filled
 * @old: a struct cgpu_sched of that core
 * @old_version: its CGPU_SCHED_VERSION
 *
 * A core with another layout than the one before raises CGPU_SCHED_VERSION, keeps the
 * layouts it takes over from beside this function, and gives sched.migrate_back for the way down.
 *
 * Context: Caller serialises; no plan may be under way. Atomic.
 * Return: 0; -EINVAL if @old_version is not known here or @old holds a number that is out of
 * range. @fresh is unchanged then.
 */
int cgpu_sched_migrate(struct cgpu_sched *fresh, const void *old, u32 old_version)
{
	if (old_version != CGPU_SCHED_VERSION || !is_sound(old))
		return -EINVAL;
	memcpy(fresh, old, sizeof(*fresh));
	cgpu_rr_refresh(fresh);
	return 0;
}
