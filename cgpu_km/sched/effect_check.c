// SPDX-License-Identifier: MIT OR GPL-2.0
/* Owns the effect check of each GPU. Takes open_lock, gpu->lock. */
#include <linux/ktime.h>
#include <linux/slab.h>
#include <linux/workqueue.h>

#include "core/nv_abi.h"
#include "core_ref.h"
#include "driver/driver.h"
#include "fields.h"
#include "sched/effect_check.h"
#include "state/container.h"
#include "state/gpu.h"
#include "state/notify.h"
#include "state/rm_object.h"

#define BLIND_MS	60000		/* retry interval if the driver has no samples */
#define AHEAD_NS	(5 * NSEC_PER_MSEC)	/* no sample may be this far in the future */
#define OLD_NS		(3 * NSEC_PER_SEC)	/* nor the newest older: 0.93 s seen on an H100 */

/* Changes, collected under gpu->lock and logged without it. */
struct news {
	u32 control;
	bool moved, doubted, lost, native;
};

/* Read the driver's samples to look_params, in the driver's layout. False: no samples. */
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

static const u8 *sample_at(const struct ckm_gpu *gpu, u32 i)
{
	return gpu->look_params + NV_UTIL_SAMPLES + i * ckm_driver_abi()->util_stride;
}

/* Index of the oldest sample in the ring. By the driver's header its tracker is that index; on
 * an H100 with 580.159.04 the samples from there on go back in time once. Taken in that
 * order, all samples after the newest would count as seen.
 */
static u32 oldest_sample(const struct ckm_gpu *gpu)
{
	u64 at, oldest = U64_MAX;
	u32 i, found = 0;

	for (i = 0; i < samples_max(); i++) {
		at = get64(sample_at(gpu, i), NV_UTIL_TIME);
		if (at && at < oldest) {
			oldest = at;
			found = i;
		}
	}
	return found;
}

/* Time of day and @pid of the @i-th sample from index @first on; 0: no such sample. */
static u64 sample_ns(const struct ckm_gpu *gpu, u32 first, u32 i, u32 *pid)
{
	const u8 *sample = sample_at(gpu, (first + i) % samples_max());

	*pid = get32(sample, ckm_driver_abi()->util_pid);
	return get64(sample, NV_UTIL_TIME);
}

/* The slot of the only container in which @pid has channels. CGPU_LOOK_NOBODY: the engine
 * was idle. CGPU_LOOK_STRANGER: no container, or more than one.
 */
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

/* Pass new samples to the core. Their timestamps are taken to be time of day
 * (docs/develop/hardware.md). If the newest is older than OLD_NS by that clock, the
 * driver uses another clock. False: do not evaluate.
 */
static bool feed(struct ckm_gpu *gpu, const struct cgpu_core_ops *core, u64 now)
{
	u64 to_mono = now - ktime_get_real_ns(), newest = 0, until, at;
	u32 i, pid, first = oldest_sample(gpu);

	lockdep_assert_held(&gpu->lock);
	until = core->check.until_ns(gpu->sched, now);
	for (i = 0; i < samples_max(); i++) {
		at = sample_ns(gpu, first, i, &pid);
		if (!at)
			continue;
		at += to_mono;
		newest = max(newest, at);
		if (at > gpu->look->seen_ns && at <= until)
			core->check.sample(gpu->look, gpu->sched, at, slot_of_pid(gpu, pid));
	}
	return newest <= now + AHEAD_NS && newest + OLD_NS >= now;
}

static void judge(struct ckm_gpu *gpu, const struct cgpu_core_ops *core, u64 now,
		  struct news *news)
{
	struct cgpu_sched_view before, after;
	struct cgpu_look_finding find;

	lockdep_assert_held(&gpu->lock);
	core->sched.view(gpu->sched, &before);
	core->check.judge(gpu->look, gpu->sched, now, &find);
	if (find.control) {
		u32 no_effect_count = before.no_effect_count[find.control == CGPU_CTRL_TIMESLICE];

		core->sched.control_moved(gpu->sched, find.control, find.moved, now);
		core->sched.view(gpu->sched, &after);
		news->control = find.control;
		news->moved = find.moved && no_effect_count;
		news->doubted = !find.moved && !no_effect_count;
		news->lost = before.controls != after.controls;
		news->native = before.policy != after.policy;
	}
	if (find.hold && !news->native)
		core->check.hold(gpu->look, gpu->sched, find.hold, now);
}

static void tell(struct ckm_gpu *gpu, const struct news *news)
{
	const char *control = news->control == CGPU_CTRL_FREEZE ? "freezing (DISABLE_CHANNELS)" :
							      "timeslices (SET_TIMESLICE)";

	if (news->lost)
		pr_err("GPU %u: %s moves no share: the control is taken away%s\n", gpu->index,
		       control, news->native ? ", its policy becomes 5 (native)" : "");
	else if (news->doubted)
		pr_warn("GPU %u: %s is answered and moved no share: in doubt\n", gpu->index,
			control);
	else if (news->moved)
		pr_info("GPU %u: %s moved the share\n", gpu->index, control);
}

/* End a hold, if there is one. True: containers have the GPU open and its policy uses a
 * control.
 */
static bool begin(struct ckm_gpu *gpu)
{
	const struct cgpu_core_ops *core;
	struct cgpu_sched_view view;
	bool busy = false, held;

	mutex_lock(&gpu->lock);
	core = ckm_core_enter();
	held = gpu->look->held;
	if (core) {
		if (held)
			core->check.hold(gpu->look, gpu->sched, 0, ktime_get_ns());
		core->sched.view(gpu->sched, &view);
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
	if (news.control)
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
	core->check.init(gpu->look, ktime_get_ns());
	ckm_core_leave();
	gpu->look_state = CKM_LOOK_IDLE;
	mutex_unlock(&gpu->lock);
}

void ckm_look_stop(struct ckm_gpu *gpu)
{
	cancel_delayed_work_sync(&gpu->look_work);
	begin(gpu);
}
