// SPDX-License-Identifier: MIT OR GPL-2.0
/* What the shell sees of a turn state, and the way from core to core: docs/upgrade.md. */
#include "turn_state.h"

#include "rota.h"

/**
 * cgpu_turn_view() - what the shell may know of a GPU's state
 * @t: the turn engine
 * @view: filled
 *
 * Context: Caller serialises.
 */
void cgpu_turn_view(const struct cgpu_turn *t, struct cgpu_turn_view *view)
{
	memset(view, 0, sizeof(*view));
	view->policy = t->policy;
	view->max_inst = t->max_inst;
	view->prio_ratio = t->prio_ratio;
	view->levers = t->levers;
	view->inert = t->inert;
	view->unmoved[0] = t->unmoved[0];
	view->unmoved[1] = t->unmoved[1];
	view->opened_mask = t->opened_mask;
	view->run_mask = t->run_mask;
	view->free_weight = cgpu_turn_free_weight(t);
	view->instances = cgpu_turn_instances(t);
	view->slice_ns = t->slice_ns;
}

/**
 * cgpu_turn_slot_view() - what the shell may know of a slot's state
 * @t: the turn engine
 * @slot: less than CGPU_SLOTS; all zeros for a free one
 * @view: filled
 *
 * Context: Caller serialises.
 */
void cgpu_turn_slot_view(const struct cgpu_turn *t, u32 slot, struct cgpu_turn_slot_view *view)
{
	const struct cgpu_turn_slot *s = &t->slot[slot];

	memset(view, 0, sizeof(*view));
	view->cookie = s->cookie;
	view->weight = s->weight;
	view->highprio = s->highprio;
	view->channels = s->channels;
	view->resisted = s->resisted;
	view->overruns = s->overruns;
	view->turns = s->turns;
	view->gpu_ns = s->gpu_ns;
}

/**
 * cgpu_turn_migrate() - take over the state of another core
 * @fresh: zeros; filled
 * @old: a struct cgpu_turn of that core
 * @old_version: its CGPU_TURN_VERSION
 *
 * A core with another layout than the one before raises CGPU_TURN_VERSION, keeps the
 * layouts it takes over from beside this function, and gives turn_back for the way down.
 *
 * Context: Caller serialises; no plan may be under way. Atomic.
 * Return: 0, or -EINVAL if @old_version is not known here.
 */
int cgpu_turn_migrate(struct cgpu_turn *fresh, const void *old, u32 old_version)
{
	if (old_version != CGPU_TURN_VERSION)
		return -EINVAL;
	memcpy(fresh, old, sizeof(*fresh));
	cgpu_rota_refresh(fresh);
	return 0;
}
