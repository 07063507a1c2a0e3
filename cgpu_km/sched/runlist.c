// SPDX-License-Identifier: MIT OR GPL-2.0-only
/* Owns the scheduling controls and their latencies. Callers hold ctrl_lock, but for figures. */
#include <linux/ktime.h>
#include <linux/moduleparam.h>
#include <linux/sort.h>

#include "core/nv_abi.h"
#include "core/sched_gpu.h"
#include "driver/driver.h"
#include "sched/runlist.h"
#include "state/container.h"
#include "state/gpu.h"
#include "state/notify.h"
#include "state/rm_object.h"

/* By the driver's documentation DISABLE_CHANNELS takes effect without another call, and it did on
 * an H100 (docs/develop/hardware.md, row 17). There a restart costs 390 us at each hand-over and a
 * context switch. Set the bit of a GPU where freezes are found to have no effect.
 */
static unsigned long freeze_restart;
module_param(freeze_restart, ulong, 0644);
MODULE_PARM_DESC(freeze_restart,
		 "bit N: on GPU N a freeze or thaw is followed by RESTART_RUNLIST, and video engines are refused (default: none)");

/* No call shows what a context switch takes. The module sees no work end, and whether a channel's word shows it on
 * the engine while its context is saved is not known (docs/develop/hardware.md, row 20).
 */
static unsigned int switch_us;
module_param(switch_us, uint, 0644);
MODULE_PARM_DESC(switch_us,
		 "microseconds that a context switch takes, at most 10000; 0: what is assumed for the architecture (switch_source of stat)");

/* Of one card each: other cards of its architecture may differ. */
static const struct {
	u32 arch;
	struct ckm_switch_cost cost;
} switch_costs[] = {
	{ NV2080_CTRL_MC_ARCH_INFO_ARCHITECTURE_GA100, { 85, "a100" } },	/* computed from the state of its SMs */
	{ NV2080_CTRL_MC_ARCH_INFO_ARCHITECTURE_GH100, { 205, "h100" } },	/* measured */
};

#define USUAL_PARTS	16	/* a running median moves by this part of itself */

/* Towards @took_us, whatever the distance: half of the calls take longer. */
static void move_usual(u32 *usual_us, u32 took_us)
{
	u32 step = *usual_us / USUAL_PARTS + 1;

	if (!*usual_us)
		*usual_us = took_us;
	else if (took_us > *usual_us)
		*usual_us += min(step, took_us - *usual_us);
	else
		*usual_us -= min(step, *usual_us - took_us);
}

static void note_latency(struct ckm_gpu *gpu, enum ckm_ctrl_kind kind, u64 took)
{
	struct ckm_ctrl_stat *st = &gpu->ctrl;

	move_usual(&st->usual_us[kind], (u32)min_t(u64, took / 1000, U32_MAX / 2));

	st->max_ns = max(st->max_ns, took);
	st->sample_us[st->samples++ % CKM_CTRL_SAMPLES] = (u32)min_t(u64, took / 1000, U32_MAX);
}

u32 ckm_ctrl_timed(struct ckm_gpu *gpu, enum ckm_ctrl_kind kind, u32 client, u32 object, u32 cmd,
		   void *params, u32 size)
{
	struct ckm_ctrl_stat *st = &gpu->ctrl;
	u64 begin = ktime_get_ns();
	u32 status;

	lockdep_assert_held(&gpu->ctrl_lock);
	status = ckm_drv_control(client, object, cmd, params, size);
	note_latency(gpu, kind, ktime_get_ns() - begin);
	st->calls++;
	st->failed += status != NV_OK;
	return status;
}

/* Channels tried per slot before all channels of @mask are. The driver refuses a channel
 * that faulted for good, and a tenant can have any number of those.
 */
#define RESTART_TRIES	4

struct restart {
	u64 begin_ns, failed_ns;
	u32 failure;		/* NV_STATUS of the latest refused call */
	bool done;
};

/* The slot's first channel on the runlist of graphics after sequence number @after; unless @all, without
 * channels that failed the last RESTART_RUNLIST. Sets @after to it. False: no such channel.
 */
static bool next_channel(struct ckm_gpu *gpu, u32 sched_id, bool all, u64 *after,
			 u32 *client, u32 *channel)
{
	struct ckm_obj *obj;
	bool found = false;

	spin_lock(&gpu->lock);
	if (gpu->slot[sched_id])
		list_for_each_entry(obj, &gpu->slot[sched_id]->channels, sched)
			if (obj->group && obj->group->on_graphics && obj->seq > *after &&
			    (all || !obj->no_restart)) {
				*after = obj->seq;
				*client = obj->core.hclient;
				*channel = obj->core.hobject;
				found = true;
				break;
			}
	spin_unlock(&gpu->lock);
	return found;
}

/* Record the result: a channel that failed is tried again only if all others fail. */
static void note_restart(struct ckm_gpu *gpu, u32 sched_id, u64 seq, bool refused)
{
	struct ckm_obj *obj;

	spin_lock(&gpu->lock);
	if (gpu->slot[sched_id])
		list_for_each_entry(obj, &gpu->slot[sched_id]->channels, sched)
			if (obj->seq == seq) {
				obj->no_restart = refused;
				break;
			}
	spin_unlock(&gpu->lock);
}

/* Try RESTART_RUNLIST on at most @tries channels of the slot after @after. */
static void restart_on(struct ckm_gpu *gpu, u32 sched_id, bool all, u64 after, u32 tries,
		       struct restart *r)
{
	struct {
		u8 force, bypass_wait;
	} params = { .force = 1 };
	u32 client, channel, status;

	while (!r->done && tries-- &&
	       next_channel(gpu, sched_id, all, &after, &client, &channel)) {
		r->failed_ns = ktime_get_ns() - r->begin_ns;
		status = ckm_ctrl_timed(gpu, CKM_CTRL_OF_RESTART, client, channel,
					NVA06F_CTRL_CMD_RESTART_RUNLIST, &params, sizeof(params));
		note_restart(gpu, sched_id, after, status != NV_OK);
		if (status == NV_OK) {
			gpu->restarted_slot = sched_id;
			gpu->restarted = after;
			r->done = true;
		} else {
			r->failure = status;
		}
	}
}

/* Try up to RESTART_TRIES channels of each slot in @mask. */
static void restart_on_few(struct ckm_gpu *gpu, u32 mask, struct restart *r)
{
	for (; !r->done && mask; mask &= mask - 1)
		restart_on(gpu, __ffs(mask), false, 0, RESTART_TRIES, r);
}

bool ckm_ctrl_needs_restart(const struct ckm_gpu *gpu)
{
	return gpu->index >= BITS_PER_LONG || (READ_ONCE(freeze_restart) & BIT(gpu->index));
}

bool ckm_ctrl_freezes_video(struct ckm_gpu *gpu)
{
	struct cgpu_sched_view view;

	spin_lock(&gpu->lock);
	ckm_gpu_view_locked(gpu, &view);
	spin_unlock(&gpu->lock);
	return (view.controls & CGPU_CTRL_FREEZE) && !ckm_ctrl_needs_restart(gpu);
}

/* The call restarts the whole runlist, whichever channel of it is named. Try the channel of the
 * last success, then channels that have not failed, of @mask and of the other slots. If
 * none succeeds, try all channels of @mask.
 */
bool ckm_ctrl_commit(struct ckm_gpu *gpu, u32 mask, u64 *failed_ns)
{
	struct restart r = { .begin_ns = ktime_get_ns() };
	u32 rest;

	lockdep_assert_held(&gpu->ctrl_lock);
	*failed_ns = 0;
	if (!mask)
		return false;
	if (gpu->restarted)
		restart_on(gpu, gpu->restarted_slot, false, gpu->restarted - 1, 1, &r);
	restart_on_few(gpu, mask, &r);
	restart_on_few(gpu, GENMASK(CGPU_SLOTS - 1, 0) & ~mask, &r);
	for (rest = mask; !r.done && rest; rest &= rest - 1)
		restart_on(gpu, __ffs(rest), true, 0, U32_MAX, &r);
	if (!r.done)
		r.failed_ns = ktime_get_ns() - r.begin_ns;
	/* The failure affects all slots of @mask; record it for one. */
	if (!r.done && r.failure != NV_OK)
		ckm_events_control_failed(gpu, __ffs(mask),
					  CGPU_CTRL_FREEZE | CGPU_CTRL_TIMESLICE, r.failure);
	*failed_ns = r.failure != NV_OK ? r.failed_ns : 0;
	return r.done;
}

void ckm_ctrl_forget(struct ckm_gpu *gpu)
{
	mutex_lock(&gpu->ctrl_lock);
	memset(gpu->ctrl.usual_us, 0, sizeof(gpu->ctrl.usual_us));
	gpu->ctrl.timeslice_us = 0;
	/* No cost that a core may have: the next plan passes them again. */
	gpu->ctrl.told_switch_us = U32_MAX;
	gpu->ctrl.told_timeslice_us = U32_MAX;
	mutex_unlock(&gpu->ctrl_lock);
}

static int compare_u32(const void *a, const void *b)
{
	return *(const u32 *)a < *(const u32 *)b ? -1 : *(const u32 *)a > *(const u32 *)b;
}

void ckm_ctrl_figures(const struct ckm_gpu *gpu, struct ckm_ctrl_figures *figures)
{
	const struct ckm_ctrl_stat *st = &gpu->ctrl;
	u32 n = min_t(u32, READ_ONCE(st->samples), CKM_CTRL_SAMPLES), i;
	u32 us[CKM_CTRL_SAMPLES] = {};

	for (i = 0; i < n; i++)
		us[i] = READ_ONCE(st->sample_us[i]);
	sort(us, n, sizeof(u32), compare_u32, NULL);
	figures->p50_us = n ? us[(n - 1) * 50 / 100] : 0;
	figures->p99_us = n ? us[(n - 1) * 99 / 100] : 0;
	figures->calls = READ_ONCE(st->calls);
	figures->failed = READ_ONCE(st->failed);
	figures->max_us = READ_ONCE(st->max_ns) / 1000;
	figures->timeslice_us = READ_ONCE(st->timeslice_us);
	for (i = 0; i < CKM_CTRL_KINDS; i++)
		figures->usual_us[i] = READ_ONCE(st->usual_us[i]);
}

u64 ckm_ctrl_handover_ns(const struct ckm_gpu *gpu)
{
	const u32 *us = gpu->ctrl.usual_us;
	u64 sum;

	lockdep_assert_held(&gpu->ctrl_lock);
	if (!us[CKM_CTRL_OF_FREEZE] || !us[CKM_CTRL_OF_THAW])
		return 0;
	sum = (u64)us[CKM_CTRL_OF_FREEZE] + us[CKM_CTRL_OF_THAW];
	if (ckm_ctrl_needs_restart(gpu))
		sum += us[CKM_CTRL_OF_RESTART];
	return sum * 1000;
}

struct ckm_switch_cost ckm_ctrl_switch_cost(const struct ckm_gpu *gpu)
{
	u32 us = min_t(u32, READ_ONCE(switch_us), CGPU_SWITCH_MAX_NS / 1000), i;

	if (us)
		return (struct ckm_switch_cost){ us, "set" };
	for (i = 0; i < ARRAY_SIZE(switch_costs); i++)
		if (switch_costs[i].arch == READ_ONCE(gpu->arch))
			return switch_costs[i].cost;
	return (struct ckm_switch_cost){ CGPU_SWITCH_NS / 1000, "between" };
}
