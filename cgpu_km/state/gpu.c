// SPDX-License-Identifier: MIT OR GPL-2.0-only
/* Owns the state of a GPU. Takes gpu->lock; open_lock for heap queries. */
#include <linux/moduleparam.h>
#include <linux/sched.h>
#include <linux/workqueue.h>

#include "compat.h"
#include "core/nv_abi.h"
#include "core_ref.h"
#include "driver/driver.h"
#include "registry.h"
#include "state/gpu.h"

static unsigned int ctx_reserve_mib = 32;
module_param(ctx_reserve_mib, uint, 0444);
MODULE_PARM_DESC(ctx_reserve_mib, "least memory charged for each graphics/compute context, MiB (default 32)");

static u64 default_memsize = 8ull << 30;

struct ckm_gpu *ckm_gpu_by_index(u32 index)
{
	struct ckm_gpu *gpu;

	lockdep_assert_held(&ckm_lock);
	list_for_each_entry(gpu, &ckm_gpus, node)
		if (gpu->index == index)
			return gpu;
	return NULL;
}

void ckm_gpu_view_locked(struct ckm_gpu *gpu, struct cgpu_sched_view *view)
{
	lockdep_assert_held(&gpu->lock);
	ckm_core_call(sched.view(gpu->sched, view));
}

void ckm_gpu_slot_view_locked(struct ckm_gpu *gpu, u32 sched_id,
			      struct cgpu_sched_entity_view *view)
{
	lockdep_assert_held(&gpu->lock);
	ckm_core_call(sched.slot_view(gpu->sched, sched_id, view));
}

/* Start the effect check if it is idle (effect_check.c). Any context. */
static void wake_check(struct ckm_gpu *gpu)
{
	if (READ_ONCE(gpu->open))
		queue_delayed_work(system_dfl_wq, &gpu->check_work,
				   msecs_to_jiffies(CGPU_CHECK_POLL_MS));
}

void ckm_gpu_kick(struct ckm_gpu *gpu)
{
	WRITE_ONCE(gpu->kicked, true);
	wake_up(&gpu->wait);
	wake_check(gpu);
}

bool ckm_gpu_read_fb(struct ckm_gpu *gpu, const u32 *index, u32 count, u32 *kib)
{
	struct nv_fb_info_v2 fb = { .fbInfoListSize = count };	/* on the stack: a figure needs no memory */
	bool ok;
	u32 i;

	for (i = 0; i < count; i++)
		fb.fbInfoList[i].index = index[i];
	ok = !ckm_drv_control(gpu->hclient, gpu->hsubdevice, NV2080_CTRL_CMD_FB_GET_INFO_V2,
			      &fb, ckm_driver_fb_info_size());
	for (i = 0; i < count; i++) {
		kib[i] = fb.fbInfoList[i].data;
		ok &= kib[i] != CKM_ALL_ONES;
	}
	return ok;
}

bool ckm_gpu_heap(struct ckm_gpu *gpu, u64 *used, u64 *free)
{
	const u32 index[] = { NV2080_CTRL_FB_INFO_INDEX_HEAP_SIZE, NV2080_CTRL_FB_INFO_INDEX_HEAP_FREE };
	u32 kib[2];

	if (!ckm_gpu_read_fb(gpu, index, 2, kib) || kib[1] > kib[0])
		return false;
	*used = (u64)(kib[0] - kib[1]) << 10;
	*free = (u64)kib[1] << 10;
	return true;
}

static void heap_work(struct work_struct *work)
{
	struct ckm_gpu *gpu = container_of(work, struct ckm_gpu, heap.work);
	u64 used = 0, free = 0;
	bool known;

	down_read(&gpu->open_lock);
	known = gpu->open && !READ_ONCE(gpu->paused) && ckm_gpu_heap(gpu, &used, &free);
	up_read(&gpu->open_lock);
	spin_lock(&gpu->lock);
	gpu->heap.known = known;
	gpu->heap.used = used;
	gpu->heap.free = free;
	spin_unlock(&gpu->lock);
}

void ckm_gpu_heap_init(struct ckm_gpu *gpu)
{
	INIT_WORK(&gpu->heap.work, heap_work);
}

/* By a worker: a reader that its cgroup throttles in the driver would hold the lock until its next period. The end of
 * the last container, the system's sleep and, behind these, other readers would wait for it.
 * A query that waits for a worker serves each reader that comes meanwhile. Behind one that runs another is queued.
 */
bool ckm_gpu_heap_if_open(struct ckm_gpu *gpu, u64 *used, u64 *free)
{
	bool known;

	queue_work(system_dfl_wq, &gpu->heap.work);
	flush_work(&gpu->heap.work);
	spin_lock(&gpu->lock);
	known = gpu->heap.known;
	*used = gpu->heap.used;
	*free = gpu->heap.free;
	spin_unlock(&gpu->lock);
	return known;
}

u64 ckm_gpu_context_bytes(struct ckm_gpu *gpu, enum cgpu_engine engine)
{
	u64 bytes, least = engine == CGPU_ENGINE_GR ? (u64)ctx_reserve_mib * CGPU_MIB : 0;

	spin_lock(&gpu->lock);
	bytes = max(least, gpu->context_bytes[engine]);
	spin_unlock(&gpu->lock);
	return bytes;
}

void ckm_gpu_context_seen(struct ckm_gpu *gpu, enum cgpu_engine engine, u64 bytes)
{
	spin_lock(&gpu->lock);
	if (!bytes)
		gpu->context_is_free[engine] = gpu->arch >= NV2080_CTRL_MC_ARCH_INFO_ARCHITECTURE_GA100;
	else if (!gpu->context_bytes[engine] || bytes < gpu->context_bytes[engine])
		gpu->context_bytes[engine] = bytes;
	spin_unlock(&gpu->lock);
}

u64 ckm_gpu_most_bytes(const struct ckm_gpu *gpu, u32 overcommit_pct)
{
	return div_u64(gpu->total_bytes * overcommit_pct, 100);
}

bool ckm_gpu_has_room_locked(struct ckm_gpu *gpu, u64 others, u64 bytes)
{
	u64 most = ckm_gpu_most_bytes(gpu, gpu->overcommit_pct);

	lockdep_assert_held(&gpu->lock);
	return bytes <= gpu->total_bytes && others <= most && bytes <= most - others;
}

u64 ckm_default_memsize(void)
{
	return READ_ONCE(default_memsize);
}

void ckm_set_default_memsize(u64 bytes)
{
	WRITE_ONCE(default_memsize, bytes);
}

u64 ckm_gpu_default_memsize_locked(struct ckm_gpu *gpu)
{
	lockdep_assert_held(&gpu->lock);
	return gpu->default_memsize ?: ckm_default_memsize();
}
