// SPDX-License-Identifier: MIT OR GPL-2.0-only
/* The end of a mapping, and of what a file shows. Takes gpu->lock. */
#include <linux/slab.h>

#include "state/quota.h"
#include "state/rm_maps.h"

void ckm_view_drop_locked(struct ckm_view *view)
{
	if (!view->memory)
		return;
	list_del(&view->node);
	if (view->map)
		view->map->view = NULL;
	else
		hlist_del(&view->of);
	view->memory = NULL;
	view->map = NULL;
}

void ckm_cpu_map_drop(struct ckm_cpu_map *map)
{
	if (map->view)
		ckm_view_drop_locked(map->view);
	if (map->slot)
		ckm_quota_give(map->slot, CGPU_QUOTA_BAR1, map->bytes);
	kfree(map);
}
