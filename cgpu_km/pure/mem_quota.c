// SPDX-License-Identifier: MIT OR GPL-2.0-only
/* How ids of channels and BAR1 are divided: a floor for each container, the rest first come. */
#include "mem_quota.h"

#define ASIDE	8	/* an eighth is the driver's own, nvidia-uvm's, and that of what runs outside */

static u64 min_u64(u64 a, u64 b)
{
	return a < b ? a : b;
}

/**
 * cgpu_quota_view() - how much of a pool a container may still take
 * @pool: the card's
 * @used: what each slot has
 * @count: of @used
 * @self: index in @used of the container that @view is for
 * @view: filled
 *
 * @floor_pct of the pool are floors, the same for each of @max_inst containers
 * whether it exists or not. The rest is given first come, first served. Only what a
 * container has above its floor counts against the rest, so no container can take
 * another container's floor.
 *
 * A floor shrinks when @max_inst grows. A container that has more than the rule allows
 * keeps it and gets nothing more.
 */
void cgpu_quota_view(const struct cgpu_quota_pool *pool, const u64 *used, u32 count, u32 self,
		     struct cgpu_quota_view *view)
{
	u64 rest, taken = 0, sum = 0;
	u32 inst = pool->max_inst ? pool->max_inst : 1;
	u32 pct = pool->floor_pct < 100 ? pool->floor_pct : 100;

	memset(view, 0, sizeof(*view));
	view->total = pool->total - pool->total / ASIDE;
	view->floor = view->total * pct / 100 / inst;
	rest = view->total - view->floor * inst;
	for (u32 i = 0; i < count; i++) {
		sum += used[i];
		taken += used[i] > view->floor ? used[i] - view->floor : 0;
		if (used[i] > view->most) {
			view->most = used[i];
			view->most_slot = i;
		}
	}
	if (used[self] < view->floor)
		view->left = view->floor - used[self];
	view->left += rest > taken ? rest - taken : 0;
	view->left = min_u64(view->left, view->total > sum ? view->total - sum : 0);
}
