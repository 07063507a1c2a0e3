/* SPDX-License-Identifier: MIT OR GPL-2.0-only */
/* Resources of which a card has a fixed number, divided among containers. Caller serialises. */
#ifndef CGPU_PURE_MEM_QUOTA_H
#define CGPU_PURE_MEM_QUOTA_H

#include "../core/env.h"

enum cgpu_quota_kind {
	CGPU_QUOTA_CHANNELS,	/* channel ids */
	CGPU_QUOTA_GROUPS,	/* channel group ids */
	CGPU_QUOTA_BAR1,	/* bytes of video memory mapped for the processor */
	CGPU_QUOTA_NVDEC,	/* sessions of video engines: objects, in the order of enum cgpu_engine */
	CGPU_QUOTA_NVENC,
	CGPU_QUOTA_NVJPG,
	CGPU_QUOTA_OFA,
	CGPU_QUOTAS,
};

/* One kind on one card. Below 2^56. */
struct cgpu_quota_pool {
	u64 total;		/* of the card */
	u32 max_inst;		/* containers that may be there */
	u32 floor_pct;		/* percent of the pool that is divided into floors */
};

struct cgpu_quota_view {
	u64 total;		/* what all containers may have together */
	u64 floor;		/* what each can have, whatever the others do */
	u64 left;		/* what this one may still take */
	u64 most;		/* the most that one of them has */
	u32 most_slot;		/* index in @used of the slot that has it */
};

/* @used: what each of @count slots has, 0 for a free one; @self: index of the slot that @view is for. */
void cgpu_quota_view(const struct cgpu_quota_pool *pool, const u64 *used, u32 count, u32 self,
		     struct cgpu_quota_view *view);

#endif
