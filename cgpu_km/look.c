// SPDX-License-Identifier: MIT OR GPL-2.0
#include <linux/ktime.h>
#include <linux/slab.h>
#include <linux/workqueue.h>

#include "container.h"
#include "core/nv_abi.h"
#include "core_link.h"
#include "gpu.h"
#include "look.h"
#include "rm_calls.h"

#define BLIND_MS	60000		/* what was not supported is asked for again after */
#define AHEAD_NS	(5 * NSEC_PER_MSEC)	/* no sample is newer than now */
#define OLD_NS		NSEC_PER_SEC	/* nor is the newest this old */

/* What changed, to be said without a lock. */
struct news {
	u32 lever;
	bool moved, doubted, lost, native;
};

/* The driver's samples, as it lays them out. False: it does not tell. */
static bool read_samples(struct ckm_gpu *gpu)
{
	u32 size = ckm_driver_util_size(), status = NV_ERR_NOT_SUPPORTED;
	u8 *params = gpu->look_params;

	memset(params, 0, NV_UTIL_PARAMS_MAX);
	put32(params, NV_UTIL_BUFFER_SIZE, size - NV_UTIL_SAMPLES);
	mutex_lock(&gpu->open_lock);
	if (gpu->open && size > NV_UTIL_SAMPLES && size <= NV_UTIL_PARAMS_MAX)
		status = ckm_rm_control(gpu->hclient, gpu->hsubdevice,
					NV2080_CTRL_PERF_UTIL_SAMPLES, params, size);
	mutex_unlock(&gpu->open_lock);
	return status == NV_OK;
}

static u32 samples_max(void)
{
	return (ckm_driver_util_size() - NV_UTIL_SAMPLES) / ckm_driver_abi()->util_stride;
}

/* The @i-th sample from the oldest on; 0: there is none. */
static u64 sample_ns(struct ckm_gpu *gpu, u32 i, u32 *pid)
{
	u32 count = samples_max(), at = get32(gpu->look_params, NV_UTIL_TRACKER);
	u8 *sample;

	if (i >= count || at >= count)
		return 0;
	sample = gpu->look_params + NV_UTIL_SAMPLES +
		 (at + i) % count * ckm_driver_abi()->util_stride;
	*pid = get32(sample, ckm_driver_abi()->util_pid);
	return get64(sample, NV_UTIL_TIME);
}

/* The container whose channels @pid made, if there is exactly one. */
static u32 slot_of_pid(struct ckm_gpu *gpu, u32 pid)
{
	u32 found = CGPU_LOOK_STRANGER, slot;
	struct ckm_obj *obj;

	lockdep_assert_held(&gpu->lock);
	if (pid == NV_UTIL_NOBODY)
		return CGPU_LOOK_NOBODY;
	for (slot = 0; slot < CGPU_SLOTS; slot++) {
		if (!gpu->slot[slot])
			continue;
		list_for_each_entry(obj, &gpu->slot[slot]->channels, sched) {
			if (obj->pid != pid)
				continue;
			if (found != CGPU_LOOK_STRANGER)
				return CGPU_LOOK_STRANGER;
			found = slot;
			break;
		}
	}
	return found;
}

/* Samples bear the time of day (docs/hardware.md). A clock by which the newest is not of
 * the last second is another one.
 */
static bool feed(struct ckm_gpu *gpu, const struct cgpu_core_ops *core, u64 now)
{
	u64 to_mono = now - ktime_get_real_ns(), newest = 0, until, at;
	u32 i, pid;

	lockdep_assert_held(&gpu->lock);
	until = core->look_until_ns(gpu->turn, now);
	for (i = 0; i < samples_max(); i++) {
		at = sample_ns(gpu, i, &pid);
		if (!at)
			continue;
		at += to_mono;
		newest = max(newest, at);
		if (at > gpu->look->seen_ns && at <= until)
			core->look_sample(gpu->look, gpu->turn, at, slot_of_pid(gpu, pid));
	}
	return newest <= now + AHEAD_NS && newest + OLD_NS >= now;
}

static void judge(struct ckm_gpu *gpu, const struct cgpu_core_ops *core, u64 now,
		  struct news *news)
{
	struct cgpu_turn_view before, after;
	struct cgpu_look_finding find;

	lockdep_assert_held(&gpu->lock);
	core->turn_view(gpu->turn, &before);
	core->look_judge(gpu->look, gpu->turn, now, &find);
	if (find.lever) {
		u32 unmoved = before.unmoved[find.lever == CGPU_LEVER_TIMESLICE];

		core->turn_lever_moved(gpu->turn, find.lever, find.moved, now);
		core->turn_view(gpu->turn, &after);
		news->lever = find.lever;
		news->moved = find.moved && unmoved;
		news->doubted = !find.moved && !unmoved;
		news->lost = before.levers != after.levers;
		news->native = before.policy != after.policy;
	}
	if (find.hold && !news->native)
		core->look_hold(gpu->look, gpu->turn, find.hold, now);
}

static void tell(struct ckm_gpu *gpu, const struct news *news)
{
	const char *lever = news->lever == CGPU_LEVER_WINDOW ? "freezing (DISABLE_CHANNELS)" :
							      "timeslices (SET_TIMESLICE)";

	if (news->lost)
		pr_err("GPU %u: %s moves no share: the lever is taken away%s\n", gpu->index,
		       lever, news->native ? ", its policy becomes 5 (native)" : "");
	else if (news->doubted)
		pr_warn("GPU %u: %s is answered and moved no share: in doubt\n", gpu->index,
			lever);
	else if (news->moved)
		pr_info("GPU %u: %s moved the share\n", gpu->index, lever);
}

/* True if there is something to look at. Who was held is let go first. */
static bool begin(struct ckm_gpu *gpu)
{
	const struct cgpu_core_ops *core;
	struct cgpu_turn_view view;
	bool busy = false, held;

	mutex_lock(&gpu->lock);
	core = ckm_core_enter();
	held = gpu->look->held;
	if (core) {
		if (held)
			core->look_hold(gpu->look, gpu->turn, 0, ktime_get_ns());
		core->turn_view(gpu->turn, &view);
		busy = view.policy != CGPU_POLICY_NATIVE && view.opened_mask;
		ckm_core_leave();
	}
	mutex_unlock(&gpu->lock);
	if (held)
		ckm_gpu_kick(gpu);
	return busy;
}

static u32 look(struct ckm_gpu *gpu)
{
	const struct cgpu_core_ops *core;
	bool told = read_samples(gpu);
	struct news news = {};
	u32 delay = told ? CGPU_LOOK_POLL_MS : BLIND_MS;

	mutex_lock(&gpu->lock);
	gpu->look_state = CKM_LOOK_BLIND;
	core = ckm_core_enter();
	if (core) {
		u64 now = ktime_get_ns();

		if (told && feed(gpu, core, now)) {
			judge(gpu, core, now, &news);
			gpu->look_state = gpu->look->held ? CKM_LOOK_HOLDING : CKM_LOOK_WATCHING;
			delay = gpu->look->held ? CGPU_LOOK_HOLD_MS : delay;
		}
		ckm_core_leave();
	}
	mutex_unlock(&gpu->lock);
	tell(gpu, &news);
	if (news.lever)
		ckm_events_gpu_changed(gpu);
	if (news.lost || delay == CGPU_LOOK_HOLD_MS)
		ckm_gpu_kick(gpu);
	return delay;
}

static void look_work(struct work_struct *work)
{
	struct ckm_gpu *gpu = container_of(work, struct ckm_gpu, look_work.work);
	u32 delay;

	if (!begin(gpu)) {
		WRITE_ONCE(gpu->look_state, CKM_LOOK_IDLE);
		return;
	}
	delay = look(gpu);
	if (READ_ONCE(gpu->open))
		mod_delayed_work(system_unbound_wq, &gpu->look_work, msecs_to_jiffies(delay));
}

void ckm_look_wake(struct ckm_gpu *gpu)
{
	if (READ_ONCE(gpu->open))
		queue_delayed_work(system_unbound_wq, &gpu->look_work,
				   msecs_to_jiffies(CGPU_LOOK_POLL_MS));
}

int ckm_look_alloc(struct ckm_gpu *gpu)
{
	INIT_DELAYED_WORK(&gpu->look_work, look_work);
	gpu->look = kvzalloc(sizeof(*gpu->look), GFP_KERNEL);
	gpu->look_params = kvzalloc(NV_UTIL_PARAMS_MAX, GFP_KERNEL);
	if (gpu->look && gpu->look_params)
		return 0;
	ckm_look_free(gpu);
	return -ENOMEM;
}

void ckm_look_free(struct ckm_gpu *gpu)
{
	cancel_delayed_work_sync(&gpu->look_work);
	kvfree(gpu->look_params);
	kvfree(gpu->look);
	gpu->look_params = NULL;
	gpu->look = NULL;
}

void ckm_look_start(struct ckm_gpu *gpu)
{
	const struct cgpu_core_ops *core;

	mutex_lock(&gpu->lock);
	core = ckm_core_enter();
	core->look_init(gpu->look, ktime_get_ns());
	ckm_core_leave();
	gpu->look_state = CKM_LOOK_IDLE;
	mutex_unlock(&gpu->lock);
}

void ckm_look_stop(struct ckm_gpu *gpu)
{
	cancel_delayed_work_sync(&gpu->look_work);
	begin(gpu);
}
