// SPDX-License-Identifier: MIT OR GPL-2.0-only
/* Owns the quotas of ids, BAR1 and sessions of each slot. Takes gpu->lock. */
#include <linux/moduleparam.h>
#include <linux/slab.h>

#include "core/nv_struct.h"
#include "driver/driver.h"
#include "pure/mem_quota.h"
#include "state/container.h"
#include "state/gpu.h"
#include "state/notify.h"
#include "state/quota.h"

#define USUAL_IDS	2048	/* chips from Turing on; used if the driver does not report it */

static unsigned int quota_floor_pct = 50;
module_param(quota_floor_pct, uint, 0644);
MODULE_PARM_DESC(quota_floor_pct,
		 "percent of channel ids, BAR1 and sessions kept for containers that have little, 0 to 100 (default 50)");

/* The driver has a number of its own for encoders only: it lists so many sessions of a GPU
 * (NV2080_CTRL_GPU_NVENC_SESSION_INFO_MAX_COPYOUT_ENTRIES).
 */
#define USUAL_SESSIONS	512

#define SESSIONS(parameter, objects)					\
	static unsigned int parameter = USUAL_SESSIONS;			\
	module_param(parameter, uint, 0644);				\
	MODULE_PARM_DESC(parameter, "objects of " objects " on a GPU, 1/8 kept back; 0: none (default 512)")

SESSIONS(nvdec_sessions, "decoders");
SESSIONS(nvenc_sessions, "encoders");
SESSIONS(nvjpg_sessions, "JPEG decoders");
SESSIONS(ofa_sessions, "optical flow accelerators");

/* @sessions: the total of every GPU; NULL: each GPU has its own. @stat: the name in N/C/stat. */
static const struct {
	const char *stat, *words;
	const unsigned int *sessions;
} kinds[CGPU_QUOTAS] = {
	[CGPU_QUOTA_CHANNELS]	= { "channels", "channels" },
	[CGPU_QUOTA_GROUPS]	= { "groups", "channel groups" },
	[CGPU_QUOTA_BAR1]	= { "bar1_bytes", "bytes of BAR1" },
	[CGPU_QUOTA_NVDEC]	= { "nvdec", "sessions of NVDEC", &nvdec_sessions },
	[CGPU_QUOTA_NVENC]	= { "nvenc", "sessions of NVENC", &nvenc_sessions },
	[CGPU_QUOTA_NVJPG]	= { "nvjpg", "sessions of NVJPG", &nvjpg_sessions },
	[CGPU_QUOTA_OFA]	= { "ofa", "sessions of OFA", &ofa_sessions },
};

bool ckm_quota_has(enum cgpu_quota_kind kind)
{
	return !kinds[kind].sessions || READ_ONCE(*kinds[kind].sessions);
}

const char *ckm_quota_name(enum cgpu_quota_kind kind)
{
	return kinds[kind].stat;
}

/* Number of channel ids of the graphics/compute runlist. On Ampere and later each runlist
 * has ids of its own, on Turing all runlists share one set. All channels of a container
 * are counted against one runlist's ids. On Ampere that counts too many, which is safe:
 * no runlist ever has more channels than that count. 0: no memory for the question, which
 * is no answer.
 */
static u32 ask_for_ids(struct ckm_gpu *gpu)
{
	struct nv_fifo_info *fifo = kzalloc(sizeof(*fifo), GFP_KERNEL);
	u32 ids = 0;

	if (!fifo)
		return 0;
	fifo->fifoInfoTblSize = 1;
	fifo->fifoInfoTbl[0].index = NV2080_CTRL_FIFO_INFO_INDEX_MAX_CHANNEL_GROUPS_PER_ENGINE;
	fifo->engineType = NV2080_ENGINE_TYPE_GRAPHICS;
	if (!ckm_drv_control(gpu->hclient, gpu->hsubdevice, NV2080_CTRL_CMD_FIFO_GET_INFO, fifo,
			     sizeof(*fifo)))
		ids = fifo->fifoInfoTbl[0].data;
	kfree(fifo);
	return ids && ids != CKM_ALL_ONES ? ids : USUAL_IDS;
}

bool ckm_quota_learn(struct ckm_gpu *gpu, u64 bar1_bytes)
{
	u32 ids = ask_for_ids(gpu);

	if (!ids)
		return false;
	spin_lock(&gpu->lock);
	gpu->quota[CGPU_QUOTA_CHANNELS] = ids;
	gpu->quota[CGPU_QUOTA_GROUPS] = ids;
	gpu->quota[CGPU_QUOTA_BAR1] = bar1_bytes;
	spin_unlock(&gpu->lock);
	return true;
}

static void view_locked(struct ckm_slot *slot, enum cgpu_quota_kind kind,
			struct cgpu_quota_view *view)
{
	struct ckm_gpu *gpu = slot->gpu;
	struct cgpu_quota_pool pool = {
		.total = kinds[kind].sessions ? READ_ONCE(*kinds[kind].sessions) : gpu->quota[kind],
		.floor_pct = READ_ONCE(quota_floor_pct),
	};
	struct cgpu_sched_view sched;
	u64 used[CGPU_SLOTS];
	u32 i;

	lockdep_assert_held(&gpu->lock);
	pool.total -= min(pool.total, gpu->ended_quota[kind]);
	for (i = 0; i < CGPU_SLOTS; i++)
		used[i] = gpu->slot[i] ? gpu->slot[i]->quota[kind] : 0;
	ckm_gpu_view_locked(gpu, &sched);
	/* Under burst max_inst counts parts of the GPU's time, and there are no more slots. */
	pool.max_inst = min_t(u32, sched.max_inst, CGPU_SLOTS);
	cgpu_quota_view(&pool, used, CGPU_SLOTS, slot->sched_id, view);
}

static void say_refused(struct ckm_slot *slot, enum cgpu_quota_kind kind, u64 amount, u64 has,
			const struct cgpu_quota_view *view, const char *holder)
{
	atomic64_inc(&slot->refused_calls);
	ckm_say_limit(slot->ct, "GPU %u: %llu %s refused, it has %llu and may have %llu more; %llu are each one's of %llu, container %s has most, %llu\n",
		      slot->gpu->index, amount, kinds[kind].words, has, view->left, view->floor, view->total,
		      holder, view->most);
}

int ckm_quota_take(struct ckm_slot *slot, enum cgpu_quota_kind kind, u64 amount)
{
	struct ckm_gpu *gpu = slot->gpu;
	struct cgpu_quota_view view;
	char holder[CGPU_DIR_LEN + 1] = "none";
	u64 has;
	bool fits;

	spin_lock(&gpu->lock);
	/* Its number is another slot's by now, or none's: what it took would be in no sum. */
	if (WARN_ON_ONCE(slot->removed)) {
		spin_unlock(&gpu->lock);
		return -ENOSPC;
	}
	view_locked(slot, kind, &view);
	fits = amount <= view.left;
	if (fits)
		slot->quota[kind] += amount;
	has = slot->quota[kind];
	if (!fits)
		ckm_events_quota_locked(slot, kinds[kind].stat, amount, has + view.left, has);
	if (!fits && view.most)
		strscpy(holder, gpu->slot[view.most_slot]->ct->dir, sizeof(holder));
	spin_unlock(&gpu->lock);
	if (fits)
		return 0;
	say_refused(slot, kind, amount, has, &view, holder);
	return -ENOSPC;
}

void ckm_quota_give(struct ckm_slot *slot, enum cgpu_quota_kind kind, u64 amount)
{
	spin_lock(&slot->gpu->lock);
	if (!WARN_ON_ONCE(amount > slot->quota[kind]))
		slot->quota[kind] -= amount;
	if (slot->removed)
		slot->gpu->ended_quota[kind] -= amount;
	spin_unlock(&slot->gpu->lock);
}

u64 ckm_quota_view(struct ckm_slot *slot, enum cgpu_quota_kind kind,
		   struct cgpu_quota_view *view)
{
	u64 has;

	spin_lock(&slot->gpu->lock);
	view_locked(slot, kind, view);
	has = slot->quota[kind];
	spin_unlock(&slot->gpu->lock);
	return has;
}
