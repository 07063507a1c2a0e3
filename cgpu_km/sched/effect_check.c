// SPDX-License-Identifier: MIT OR GPL-2.0-only
/* Owns the effect check of each GPU. Takes open_lock, gpu->lock. */
#include <linux/ktime.h>
#include <linux/slab.h>
#include <linux/workqueue.h>

#include "compat.h"
#include "core/nv_struct.h"
#include "core_ref.h"
#include "driver/driver.h"
#include "fields.h"
#include "sched/effect_check.h"
#include "state/container.h"
#include "state/gone.h"
#include "state/gpu.h"
#include "state/notify.h"
#include "state/rm_object.h"

#define BLIND_MS	60000		/* retry interval if the driver has no samples */
#define AHEAD_NS	(5 * NSEC_PER_MSEC)	/* no sample may be this far in the future */
#define OLD_NS		(3 * NSEC_PER_SEC)	/* nor the newest older: 0.93 s seen on an H100 */

/* Changes, collected under gpu->lock and logged without it. */
struct finding {
	u32 control;
	bool moved, unverified, lost, native;
	char loose[CGPU_DIR_LEN + 1];	/* a container that freezes do not reach, newly; "": none */
};

/* Read the driver's samples to check_params, in the driver's layout. False: no samples. */
static bool read_samples(struct ckm_gpu *gpu)
{
	u32 size = ckm_driver_util_size(), status = NV_ERR_NOT_SUPPORTED;
	u8 *params = gpu->check_params;

	memset(params, 0, sizeof(struct nv_util_samples));
	put32(params, AT(nv_util_samples, bufSize), size - AT(nv_util_samples, samples));
	down_read(&gpu->open_lock);
	if (gpu->open && size > AT(nv_util_samples, samples) && size <= sizeof(struct nv_util_samples))
		status = ckm_drv_control(gpu->hclient, gpu->hsubdevice,
					 NV2080_CTRL_CMD_PERF_GET_GPUMON_PERFMON_UTIL_SAMPLES_V2, params, size);
	up_read(&gpu->open_lock);
	return status == NV_OK;
}

static u32 samples_max(void)
{
	return (ckm_driver_util_size() - AT(nv_util_samples, samples)) / ckm_driver_abi()->util_stride;
}

static const u8 *sample_at(const struct ckm_gpu *gpu, u32 i)
{
	return gpu->check_params + AT(nv_util_samples, samples) + i * ckm_driver_abi()->util_stride;
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
		at = get64(sample_at(gpu, i), AT(nv_util_sample, base));
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
	return get64(sample, AT(nv_util_sample, base));
}

static bool has_channels_of(const struct ckm_slot *slot, u32 pid)
{
	struct ckm_obj *obj;

	list_for_each_entry(obj, &slot->channels, sched)
		if (obj->pid == pid)
			return true;
	return false;
}

/* The slot of the only container in which @pid has, or at @at had, channels. CGPU_CHECK_IDLE: the engine
 * was idle. CGPU_CHECK_FOREIGN: no container, or several of which one has high priority, which
 * could else hide its work behind a channel in another one. CGPU_CHECK_LOW: several without: a tenant
 * that has two containers could else spend a neighbour's high priority. Which of its channels was on
 * the engine no sample tells. A process whose channels are all gone is taken for several of its
 * container's priority.
 */
static u32 slot_of_pid(struct ckm_gpu *gpu, const struct cgpu_core_ops *core, u32 pid, u64 at)
{
	u32 found = CGPU_CHECK_FOREIGN, only = CGPU_NO_SLOT, count = 0, gone, slot;
	struct cgpu_sched_entity_view view;
	bool high = false;

	lockdep_assert_held(&gpu->lock);
	if (pid == NV2080_GPUMON_PID_INVALID)
		return CGPU_CHECK_IDLE;
	for (slot = 0; slot < CGPU_SLOTS; slot++) {
		if (!gpu->slot[slot] || !has_channels_of(gpu->slot[slot], pid))
			continue;
		core->sched.slot_view(gpu->sched, slot, &view);
		high |= view.highprio;
		found = count++ ? CGPU_CHECK_LOW : slot;
		only = slot;
	}
	gone = ckm_gone_look_locked(gpu, pid, at, only);
	if (gone)
		found = CGPU_CHECK_LOW;
	high |= gone & CKM_GONE_HIGH;
	return high && (count > 1 || gone) ? CGPU_CHECK_FOREIGN : found;
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
		if (at > gpu->check->seen_ns && at <= until)
			core->check.sample(gpu->check, gpu->sched, at, slot_of_pid(gpu, core, pid, at));
	}
	return newest <= now + AHEAD_NS && newest + OLD_NS >= now;
}

/* The first of @mask that was not there at the last finding. */
static void note_loose(struct ckm_gpu *gpu, u32 mask, struct finding *finding)
{
	u32 fresh = mask & ~gpu->check_loose;

	lockdep_assert_held(&gpu->lock);
	if (fresh && gpu->slot[__ffs(fresh)])
		strscpy(finding->loose, gpu->slot[__ffs(fresh)]->ct->dir, sizeof(finding->loose));
	gpu->check_loose = mask;
}

static void evaluate(struct ckm_gpu *gpu, const struct cgpu_core_ops *core, u64 now,
		     struct finding *finding)
{
	struct cgpu_sched_view before, after;
	struct cgpu_check_finding find;

	lockdep_assert_held(&gpu->lock);
	core->sched.view(gpu->sched, &before);
	core->check.evaluate(gpu->check, gpu->sched, now, &find);
	if (find.control) {
		u32 no_effect_count = before.no_effect_count[find.control == CGPU_CTRL_TIMESLICE];

		core->sched.control_moved(gpu->sched, find.control, find.moved, now);
		core->sched.view(gpu->sched, &after);
		finding->control = find.control;
		finding->moved = find.moved && no_effect_count;
		finding->unverified = !find.moved && !no_effect_count;
		finding->lost = before.controls != after.controls;
		finding->native = before.policy != after.policy;
		note_loose(gpu, find.loose, finding);
	}
	if (find.hold && !finding->native)
		core->check.hold(gpu->check, gpu->sched, find.hold, now);
}

static void log_finding(struct ckm_gpu *gpu, const struct finding *finding)
{
	const char *control = finding->control == CGPU_CTRL_FREEZE ? "freezing (DISABLE_CHANNELS)" :
							      "timeslices (SET_TIMESLICE)";

	if (finding->lost)
		pr_err("GPU %u: %s moves no share: the control is taken away%s\n", gpu->index,
		       control, finding->native ? ", its policy becomes 5 (native)" : "");
	else if (finding->unverified)
		pr_warn("GPU %u: %s is answered and moved no share: in doubt\n", gpu->index,
			control);
	else if (finding->moved)
		pr_info("GPU %u: %s moved the share\n", gpu->index, control);
	if (finding->loose[0])
		pr_warn("GPU %u: container %s runs while it is frozen; the others do not\n",
			gpu->index, finding->loose);
}

/* End a hold, if there is one. True: containers have the GPU open and its policy uses a
 * control.
 */
static bool begin(struct ckm_gpu *gpu)
{
	const struct cgpu_core_ops *core;
	struct cgpu_sched_view view;
	bool busy, held;

	spin_lock(&gpu->lock);
	core = ckm_core_enter();
	held = gpu->check->held;
	if (held)
		core->check.hold(gpu->check, gpu->sched, 0, ktime_get_ns());
	core->sched.view(gpu->sched, &view);
	busy = view.policy != CGPU_POLICY_NATIVE && view.opened_mask;
	ckm_core_leave();
	spin_unlock(&gpu->lock);
	if (held)
		ckm_gpu_kick(gpu);
	return busy;
}

static u32 check_once(struct ckm_gpu *gpu)
{
	const struct cgpu_core_ops *core;
	bool has_samples = read_samples(gpu);
	struct finding finding = {};
	u32 delay = has_samples ? CGPU_CHECK_POLL_MS : BLIND_MS;
	u64 now;

	spin_lock(&gpu->lock);
	gpu->check_state = CKM_CHECK_BLIND;
	core = ckm_core_enter();
	now = ktime_get_ns();
	if (has_samples && feed(gpu, core, now)) {
		evaluate(gpu, core, now, &finding);
		if (gpu->check->held)
			gpu->check_state = CKM_CHECK_HOLDING;
		else if (!core->check.is_blind(gpu->check))
			gpu->check_state = CKM_CHECK_WATCHING;
		delay = gpu->check->held ? CGPU_CHECK_HOLD_MS : delay;
	}
	ckm_core_leave();
	spin_unlock(&gpu->lock);
	log_finding(gpu, &finding);
	if (finding.control)
		ckm_events_gpu_changed(gpu);
	if (finding.lost || delay == CGPU_CHECK_HOLD_MS)
		ckm_gpu_kick(gpu);
	return delay;
}

static void check_work(struct work_struct *work)
{
	struct ckm_gpu *gpu = container_of(work, struct ckm_gpu, check_work.work);
	u32 delay;

	if (READ_ONCE(gpu->paused) || !begin(gpu)) {
		WRITE_ONCE(gpu->check_state, CKM_CHECK_IDLE);
		return;
	}
	delay = check_once(gpu);
	if (READ_ONCE(gpu->open))
		mod_delayed_work(system_dfl_wq, &gpu->check_work, msecs_to_jiffies(delay));
}

int ckm_check_alloc(struct ckm_gpu *gpu)
{
	INIT_DELAYED_WORK(&gpu->check_work, check_work);
	gpu->check = kvzalloc(sizeof(*gpu->check), GFP_KERNEL);
	gpu->check_params = kvzalloc(sizeof(struct nv_util_samples), GFP_KERNEL);
	if (gpu->check && gpu->check_params)
		return 0;
	ckm_check_free(gpu);
	return -ENOMEM;
}

void ckm_check_free(struct ckm_gpu *gpu)
{
	cancel_delayed_work_sync(&gpu->check_work);
	kvfree(gpu->check_params);
	kvfree(gpu->check);
	gpu->check_params = NULL;
	gpu->check = NULL;
}

void ckm_check_start(struct ckm_gpu *gpu)
{
	spin_lock(&gpu->lock);
	ckm_core_call(check.init(gpu->check, ktime_get_ns()));
	gpu->check_state = CKM_CHECK_IDLE;
	spin_unlock(&gpu->lock);
}

void ckm_check_stop(struct ckm_gpu *gpu)
{
	cancel_delayed_work_sync(&gpu->check_work);
	begin(gpu);
}
