// SPDX-License-Identifier: MIT OR GPL-2.0
#include <linux/delay.h>
#include <linux/kthread.h>
#include <linux/ktime.h>

#include "container.h"
#include "core_link.h"
#include "gpu.h"
#include "lever.h"
#include "turn_thread.h"

/* Samples before the slice follows the measured lever. */
#define SLICE_SAMPLES 32

/* What a slice is chosen from. Each hand-over is two calls, or three: the slice is half as
 * long again then, so that calls take the same part of the time. A call that keeps the
 * processor for 150 us of 350 costs 4.3 % of a core so.
 */
static u64 handover_call_ns(struct ckm_gpu *gpu)
{
	u64 call_ns = ckm_lever_latency_ns(gpu, 50);

	return ckm_lever_needs_restart(gpu) ? call_ns + call_ns / 2 : call_ns;
}

static bool make_plan(struct ckm_gpu *gpu, struct cgpu_turn_plan *plan)
{
	const struct cgpu_core_ops *core;
	u64 slice_ns, call_ns = 0;

	lockdep_assert_held(&gpu->lever_lock);
	mutex_lock(&gpu->lock);
	if (!gpu->slice_is_set && gpu->lever.samples >= SLICE_SAMPLES &&
	    gpu->turns % SLICE_SAMPLES == 0)
		call_ns = handover_call_ns(gpu);
	core = ckm_core_enter();
	if (core) {
		if (call_ns) {
			slice_ns = core->turn_auto_slice_ns(call_ns);
			core->turn_set_slice_us(gpu->turn, div_u64(slice_ns, 1000),
						ktime_get_ns());
		}
		core->turn_next(gpu->turn, ktime_get_ns(), plan);
		ckm_core_leave();
	}
	mutex_unlock(&gpu->lock);
	return core;
}

static u32 set_timeslices(struct ckm_gpu *gpu, const struct cgpu_turn_plan *plan)
{
	u32 slot, done = 0;

	for (slot = 0; slot < CGPU_SLOTS; slot++)
		if ((plan->timeslice_mask & BIT(slot)) &&
		    ckm_lever_timeslice(gpu, slot, plan->timeslice_us[slot]))
			done |= BIT(slot);
	return done;
}

static void act(struct ckm_gpu *gpu, const struct cgpu_turn_plan *plan)
{
	struct cgpu_turn_ack ack = { 0 };
	const struct cgpu_core_ops *core;
	bool committed = true;
	u64 vain_ns = 0;
	u32 frozen, thawed = 0;

	ack.timeslice_mask = set_timeslices(gpu, plan);
	/* Those that are set are no part of how long a freeze or thaw took. */
	ack.begin_ns = ktime_get_ns();
	if (plan->thaw_first)
		thawed = ckm_lever_freeze(gpu, plan->thaw_mask, false);
	ack.thawed_ns = ktime_get_ns();
	frozen = ckm_lever_freeze(gpu, plan->freeze_mask, true);
	ack.frozen_ns = ktime_get_ns();
	if (!plan->thaw_first) {
		thawed = ckm_lever_freeze(gpu, plan->thaw_mask, false);
		ack.thawed_ns = ktime_get_ns();
	}
	if (plan->timeslice_mask || ckm_lever_needs_restart(gpu))
		committed = ckm_lever_commit(gpu, plan->run_mask | plan->freeze_mask, &vain_ns);
	/* On a driver that needs it nothing of this is in force: all of it again. Where
	 * there was no channel to ask it on, there is none that could run either.
	 */
	if (!committed && vain_ns) {
		frozen = 0;
		thawed = 0;
		ack.timeslice_mask = 0;
	}
	if (!plan->freeze_mask)
		ack.frozen_ns = ack.begin_ns;
	if (!plan->thaw_mask)
		ack.thawed_ns = ack.begin_ns;
	/* Where it takes the restart, all of it came later by what was refused before. */
	if (ckm_lever_needs_restart(gpu)) {
		ack.begin_ns += vain_ns;
		ack.frozen_ns += vain_ns;
		ack.thawed_ns += vain_ns;
	}
	ack.run_mask = (plan->run_mask | (plan->freeze_mask & ~frozen)) &
		       ~(plan->thaw_mask & ~thawed);

	mutex_lock(&gpu->lock);
	core = ckm_core_enter();
	if (core) {
		core->turn_ack(gpu->turn, plan, &ack);
		core->look_acted(gpu->look, gpu->turn, plan, &ack, committed, ktime_get_ns());
		ckm_core_leave();
		ckm_events_turns_locked(gpu, plan->freeze_mask);
	}
	mutex_unlock(&gpu->lock);
	gpu->turns++;
}

static int turn_thread(void *data)
{
	struct ckm_gpu *gpu = data;
	struct cgpu_turn_plan plan;
	bool ok, acted;
	u64 now;

	while (!kthread_should_stop()) {
		WRITE_ONCE(gpu->kicked, false);
		mutex_lock(&gpu->lever_lock);
		ok = make_plan(gpu, &plan);
		acted = ok && (plan.freeze_mask || plan.thaw_mask || plan.timeslice_mask);
		if (acted)
			act(gpu, &plan);
		mutex_unlock(&gpu->lever_lock);
		/* When the turn ends is known only now that its calls took effect. */
		if (acted)
			continue;

		now = ktime_get_ns();
		if (!ok || plan.until_ns == CGPU_NEVER_NS)
			wait_event_interruptible(gpu->wait, READ_ONCE(gpu->kicked) ||
						 kthread_should_stop());
		else if (plan.until_ns > now)
			wait_event_interruptible_hrtimeout(gpu->wait,
				READ_ONCE(gpu->kicked) || kthread_should_stop(),
				ns_to_ktime(plan.until_ns - now + plan.late_ns));
		else
			usleep_range(50, 100);
	}
	return 0;
}

int ckm_turn_thread_start(struct ckm_gpu *gpu)
{
	struct task_struct *thread;

	thread = kthread_create(turn_thread, gpu, "cgpu_turn/%u", gpu->index);
	if (IS_ERR(thread))
		return PTR_ERR(thread);
	/* Late turns are paid back, but they cost latency: run before ordinary tasks. */
	sched_set_fifo_low(thread);
	gpu->thread = thread;
	wake_up_process(thread);
	return 0;
}

void ckm_turn_thread_stop(struct ckm_gpu *gpu)
{
	struct task_struct *thread;

	/* Readers of its CPU time hold the lock. */
	mutex_lock(&gpu->lock);
	thread = gpu->thread;
	gpu->thread = NULL;
	mutex_unlock(&gpu->lock);
	if (thread)
		kthread_stop(thread);
}

bool ckm_turn_is_frozen(struct ckm_slot *slot)
{
	struct ckm_gpu *gpu = slot->gpu;
	const struct cgpu_core_ops *core;
	bool frozen = true;

	mutex_lock(&gpu->lock);
	core = ckm_core_enter();
	if (core) {
		frozen = core->turn_is_frozen(gpu->turn, slot->turn_slot);
		ckm_core_leave();
	}
	mutex_unlock(&gpu->lock);
	return frozen;
}

void ckm_turn_catch_up(struct ckm_slot *slot, u32 client, u32 object)
{
	struct ckm_gpu *gpu = slot->gpu;

	/* Of a container one at a time: its threads would else stand in line before
	 * the next turn.
	 */
	mutex_lock(&slot->enable_lock);
	/* Under lever_lock no turn changes between the question and the act. */
	mutex_lock(&gpu->lever_lock);
	if (ckm_turn_is_frozen(slot))
		ckm_lever_freeze_object(gpu, slot->turn_slot, client, object);
	mutex_unlock(&gpu->lever_lock);
	mutex_unlock(&slot->enable_lock);
}
