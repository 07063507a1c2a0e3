// SPDX-License-Identifier: MIT OR GPL-2.0-only
/* Scheduler threads, queue of freezes. Takes awake_lock, threads_lock, enable_lock, ctrl_lock, gpu->lock. */
#include <linux/delay.h>
#include <linux/kthread.h>
#include <linux/ktime.h>
#include <linux/random.h>
#include <linux/rwsem.h>
#include <linux/wait.h>
#include <linux/workqueue.h>

#include "core_ref.h"
#include "sched/effect_check.h"
#include "sched/freeze.h"
#include "sched/run_state.h"
#include "sched/runlist.h"
#include "sched/sched_thread.h"
#include "sched/timeslice.h"
#include "state/container.h"
#include "state/gpu.h"
#include "state/notify.h"

#define SLICE_SAMPLES	32	/* of latency, before the slice is derived from them; turns between updates */

/* Between two readings lies this many times what one takes: gpu->lock is held for at most a
 * fifth of the time, however many channels tenants make.
 */
#define COST_PARTS	4
#define POLL_MIN_NS	(10 * NSEC_PER_USEC)	/* between two readings of the run state, whatever the core plans */

/* Plans until a pause is given up on: a failed call is repeated after 1 ms, then 2, up to 64. */
#define PAUSE_PLANS	16

/* The GPUs with a thread and whether they are paused. A lock of its own: while the driver sleeps, an open of a GPU waits
 * in the driver with ckm_lock held, and the end of the sleep must not wait for it.
 */
static DEFINE_MUTEX(threads_lock);
static struct workqueue_struct *freezes;	/* struct freeze_new */
static LIST_HEAD(threads);	/* threads_lock; ckm_gpu.thread_node */
static u32 asleep;	/* threads_lock, READ_ONCE; CKM_SLEEP_*; not 0: every GPU is paused */

static DECLARE_RWSEM(awake_lock);		/* held for reading while a container ends in the driver */
static DECLARE_WAIT_QUEUE_HEAD(awake);		/* woken once @asleep is 0 */

/* What was learnt of this GPU, or is assumed. No plan with calls is under way. */
static void tell_costs(struct ckm_gpu *gpu, const struct cgpu_core_ops *core)
{
	struct ckm_ctrl_stat *st = &gpu->ctrl;
	u32 switch_us = ckm_ctrl_switch_cost(gpu).us;

	if (st->told_switch_us == switch_us && st->told_timeslice_us == st->timeslice_us)
		return;
	core->sched.set_costs(gpu->sched, switch_us * 1000ull, st->timeslice_us, ktime_get_ns());
	st->told_switch_us = switch_us;
	st->told_timeslice_us = st->timeslice_us;
}

/* A slice that is not the administrator's follows what a hand-over takes. No plan with calls is under way. */
static void follow_control(struct ckm_gpu *gpu, const struct cgpu_core_ops *core)
{
	u64 handover_ns = 0, slice_ns;

	if (!gpu->slice_is_set && gpu->ctrl.samples >= SLICE_SAMPLES &&
	    gpu->turns % SLICE_SAMPLES == 0)
		handover_ns = ckm_ctrl_handover_ns(gpu);
	if (!handover_ns)
		return;
	slice_ns = core->sched.auto_slice_ns(handover_ns / 2);
	core->sched.set_slice_us(gpu->sched, div_u64(slice_ns, 1000), ktime_get_ns());
}

/* @core was entered under gpu->lock. */
static void step_locked(struct ckm_gpu *gpu, const struct cgpu_core_ops *core, struct cgpu_step *s,
			struct cgpu_step_event *event)
{
	lockdep_assert_held(&gpu->lock);
	event->now_ns = ktime_get_ns();
	core->sched.step(gpu->sched, gpu->check, s, event);
}

static void make_plan(struct ckm_gpu *gpu, struct cgpu_step *s)
{
	struct cgpu_step_event unread = { .kind = CGPU_STEP_EVENT_READ };
	struct cgpu_step_event event = { .kind = CGPU_STEP_EVENT_PLAN,
				    .restarts = ckm_ctrl_needs_restart(gpu) };
	const struct cgpu_core_ops *core;

	lockdep_assert_held(&gpu->ctrl_lock);
	spin_lock(&gpu->lock);
	core = ckm_core_enter();
	tell_costs(gpu, core);
	follow_control(gpu, core);
	if (!ckm_run_state_usable_locked(gpu) && gpu->run.core_knows) {
		step_locked(gpu, core, s, &unread);
		gpu->run.core_knows = false;
	}
	step_locked(gpu, core, s, &event);
	ckm_run_state_moving_locked(gpu, s->plan.freeze_mask | s->plan.thaw_mask);
	ckm_core_leave();
	spin_unlock(&gpu->lock);
}

/* Make the call that the step asks for. */
static void make_call(struct ckm_gpu *gpu, const struct cgpu_step *s, struct cgpu_step_event *event)
{
	event->begin_ns = ktime_get_ns();
	if (s->kind == CGPU_STEP_TIMESLICE)
		event->done = ckm_timeslices_set(gpu, s, &event->more, &event->called);
	else if (s->kind == CGPU_STEP_RESTART)
		event->done = ckm_ctrl_commit(gpu, s->mask, &event->refused_ns);
	else
		event->done = ckm_ctrl_set_frozen(gpu, s->mask, s->kind == CGPU_STEP_FREEZE, &event->part);
	event->end_ns = ktime_get_ns();
}

/* The last call of the plan was answered, and the core told. */
static void acted_locked(struct ckm_gpu *gpu, const struct cgpu_step *s)
{
	const struct cgpu_sched_plan *plan = &s->plan;

	ckm_run_state_moved_locked(gpu, (plan->freeze_mask & ~s->ack.run_mask) |
				   (plan->thaw_mask & s->thawed), ktime_get_ns());
	ckm_events_turns_locked(gpu, plan->freeze_mask);
}

/* Make the calls of a plan. */
static void act(struct ckm_gpu *gpu, struct cgpu_step *s)
{
	const struct cgpu_core_ops *core;

	while (s->mask) {
		struct cgpu_step_event event = { .kind = CGPU_STEP_EVENT_DONE };

		make_call(gpu, s, &event);
		spin_lock(&gpu->lock);
		core = ckm_core_enter();
		step_locked(gpu, core, s, &event);
		if (!s->mask)
			acted_locked(gpu, s);
		ckm_core_leave();
		spin_unlock(&gpu->lock);
	}
	gpu->turns++;
}

/* Read the run state and pass it to the core. */
static void poll_run_state(struct ckm_gpu *gpu, struct cgpu_step *s)
{
	struct cgpu_step_event event = { .kind = CGPU_STEP_EVENT_READ };
	const struct cgpu_core_ops *core;
	u64 began;

	spin_lock(&gpu->lock);
	core = ckm_core_enter();
	began = ktime_get_ns();
	ckm_run_state_read_locked(gpu, core, &event.known, &event.busy, event.tsgs);
	step_locked(gpu, core, s, &event);
	gpu->run.core_knows = event.known;
	gpu->run.read_ns = ktime_get_ns();
	gpu->run.cost_ns = gpu->run.read_ns - began;
	ckm_core_leave();
	spin_unlock(&gpu->lock);
}

/* Between half of @mean_ns and one and a half, drawn for each reading. At equal intervals the
 * readings would keep in step with kernels of that length, and each of them, or none, would find
 * the gap between two. A tenant cannot predict them.
 */
static u64 draw_interval_ns(u64 mean_ns)
{
	return mean_ns / 2 + (u64)reciprocal_scale(get_random_u32(), (u32)min_t(u64, mean_ns, U32_MAX));
}

/* When the run state must be read again: plans in between do not put it off. */
static u64 reading_due_ns(struct ckm_gpu *gpu, const struct cgpu_step *s, u64 now)
{
	u64 due = CGPU_NEVER_NS;

	if (!s->poll_ns)
		return due;
	spin_lock(&gpu->lock);
	/* A source that went out of use is read once more: the plan that follows clears the
	 * core's run state.
	 */
	if (ckm_run_state_usable_locked(gpu) || gpu->run.core_knows)
		due = max(gpu->run.read_ns + max(draw_interval_ns(s->poll_ns),
						 COST_PARTS * gpu->run.cost_ns),
			  now + POLL_MIN_NS);
	spin_unlock(&gpu->lock);
	return due;
}

static bool is_woken(const struct ckm_gpu *gpu)
{
	return READ_ONCE(gpu->kicked) || kthread_should_stop();
}

/* Sleep until the wait is over, the run state must be read, or the state changed. */
static void sleep_on(struct ckm_gpu *gpu, struct cgpu_step *s)
{
	u64 now = ktime_get_ns(), due = reading_due_ns(gpu, s, now), end = min(s->until_ns, due);

	if (end == CGPU_NEVER_NS)
		wait_event_interruptible(gpu->wait, is_woken(gpu));
	else if (end > now)
		wait_event_interruptible_hrtimeout(gpu->wait, is_woken(gpu),
						   ns_to_ktime(end - now));
	if (!is_woken(gpu) && due <= s->until_ns && end != CGPU_NEVER_NS)
		poll_run_state(gpu, s);
	else
		s->kind = CGPU_STEP_PLAN;
}

static int sched_thread(void *data)
{
	struct ckm_gpu *gpu = data;
	struct cgpu_step s = {};
	bool paused;

	/* The default of 50 us is longer than the shortest interval between two readings, and would
	 * move them to the time of other timers. Since Linux 6.3 that of real-time tasks is not
	 * used.
	 */
	current->timer_slack_ns = 1;
	while (!kthread_should_stop()) {
		WRITE_ONCE(gpu->kicked, false);
		mutex_lock(&gpu->ctrl_lock);
		paused = gpu->paused;
		if (!paused)
			make_plan(gpu, &s);
		if (!paused && s.mask)
			act(gpu, &s);
		mutex_unlock(&gpu->ctrl_lock);
		if (paused)
			wait_event_interruptible(gpu->wait, is_woken(gpu));
		while (!paused && s.kind == CGPU_STEP_WAIT)
			sleep_on(gpu, &s);
	}
	return 0;
}

static void set_paused(struct ckm_gpu *gpu, bool paused)
{
	lockdep_assert_held(&gpu->ctrl_lock);	/* no plan is under way */
	spin_lock(&gpu->lock);
	WRITE_ONCE(gpu->paused, paused);
	ckm_core_call(sched.set_paused(gpu->sched, paused, ktime_get_ns()));
	spin_unlock(&gpu->lock);
}

/* False: a container may still be frozen. */
static bool thaw_all(struct ckm_gpu *gpu)
{
	struct cgpu_step s = {};
	u32 plans;

	for (plans = 0; plans < PAUSE_PLANS; plans++) {
		make_plan(gpu, &s);
		if (s.mask) {
			act(gpu, &s);
			continue;
		}
		if (s.until_ns == CGPU_NEVER_NS)
			return true;
		usleep_range(1000, 2000);
	}
	return false;
}

/* A driver that does not thaw a container must not keep the system awake: a tenant's channel
 * that faulted is refused for good.
 */
static void pause_gpu(struct ckm_gpu *gpu)
{
	bool thawed;

	mutex_lock(&gpu->ctrl_lock);
	set_paused(gpu, true);
	thawed = thaw_all(gpu);
	mutex_unlock(&gpu->ctrl_lock);
	ckm_check_stop(gpu);
	/* A query of video memory that began before has ended. */
	down_write(&gpu->open_lock);
	up_write(&gpu->open_lock);
	if (!thawed)
		pr_warn("GPU %u: the driver does not thaw all containers; they are frozen while the system sleeps\n",
			gpu->index);
}

static void resume_gpu(struct ckm_gpu *gpu)
{
	mutex_lock(&gpu->ctrl_lock);
	set_paused(gpu, false);
	mutex_unlock(&gpu->ctrl_lock);
	ckm_gpu_kick(gpu);
}

bool ckm_sched_pause_all(u32 what)
{
	struct ckm_gpu *gpu;
	u32 before;

	mutex_lock(&threads_lock);
	before = asleep;
	WRITE_ONCE(asleep, before | what);
	/* Once only: a thaw that failed would be repeated, and wait in a driver that sleeps. */
	if (!before)
		list_for_each_entry(gpu, &threads, thread_node)
			pause_gpu(gpu);
	mutex_unlock(&threads_lock);
	/* What began before has ended, and what begins now waits. */
	down_write(&awake_lock);
	up_write(&awake_lock);
	return before & what;
}

void ckm_sched_resume_all(u32 what)
{
	struct ckm_gpu *gpu;

	mutex_lock(&threads_lock);
	WRITE_ONCE(asleep, asleep & ~what);
	if (!asleep)
		list_for_each_entry(gpu, &threads, thread_node)
			resume_gpu(gpu);
	mutex_unlock(&threads_lock);
	wake_up_all(&awake);
}

bool ckm_sched_asleep(void)
{
	return READ_ONCE(asleep);
}

void ckm_sched_stay_awake(void)
{
	for (;;) {
		wait_event_idle(awake, !ckm_sched_asleep());
		down_read(&awake_lock);
		if (!ckm_sched_asleep())
			return;
		up_read(&awake_lock);
	}
}

bool ckm_sched_try_awake(void)
{
	if (!down_read_trylock(&awake_lock))
		return false;
	if (!ckm_sched_asleep())
		return true;
	up_read(&awake_lock);
	return false;
}

void ckm_sched_may_sleep(void)
{
	up_read(&awake_lock);
}

int ckm_sched_thread_start(struct ckm_gpu *gpu)
{
	struct task_struct *thread;

	thread = kthread_create(sched_thread, gpu, "cgpu_sched/%u", gpu->index);
	if (IS_ERR(thread))
		return PTR_ERR(thread);
	/* A late turn is compensated, but adds latency: run before ordinary tasks. */
	sched_set_fifo_low(thread);
	mutex_lock(&threads_lock);
	mutex_lock(&gpu->ctrl_lock);
	set_paused(gpu, asleep);
	mutex_unlock(&gpu->ctrl_lock);
	list_add_tail(&gpu->thread_node, &threads);
	mutex_unlock(&threads_lock);
	gpu->thread = thread;
	wake_up_process(thread);
	return 0;
}

void ckm_sched_thread_stop(struct ckm_gpu *gpu)
{
	struct task_struct *thread;

	/* Readers of the thread's CPU time hold gpu->lock. */
	spin_lock(&gpu->lock);
	thread = gpu->thread;
	gpu->thread = NULL;
	spin_unlock(&gpu->lock);
	if (!thread)
		return;
	mutex_lock(&threads_lock);
	list_del(&gpu->thread_node);
	mutex_unlock(&threads_lock);
	kthread_stop(thread);
}

bool ckm_sched_is_frozen(struct ckm_slot *slot)
{
	struct ckm_gpu *gpu = slot->gpu;
	bool frozen;

	spin_lock(&gpu->lock);
	frozen = ckm_core_call(sched.is_frozen(gpu->sched, slot->sched_id));
	spin_unlock(&gpu->lock);
	return frozen;
}

/* The new channels may run: let the core charge and report that, and repeat the freeze. */
static void freeze_failed(struct ckm_slot *slot)
{
	struct ckm_gpu *gpu = slot->gpu;

	lockdep_assert_held(&gpu->ctrl_lock);	/* no plan is under way */
	spin_lock(&gpu->lock);
	ckm_core_call(sched.freeze_failed(gpu->sched, slot->sched_id, ktime_get_ns()));
	spin_unlock(&gpu->lock);
	ckm_gpu_kick(gpu);
}

/* On the stack of the tenant's task, which waits for it and keeps what it names. */
struct freeze_new {
	struct work_struct work;
	struct ckm_slot *slot;
	const struct ckm_channel_filter *filter;
};

static void freeze_new_work(struct work_struct *work)
{
	struct freeze_new *f = container_of(work, struct freeze_new, work);
	struct ckm_gpu *gpu = f->slot->gpu;

	/* Under ctrl_lock the slot stays frozen between the check and the call. */
	mutex_lock(&gpu->ctrl_lock);
	if (ckm_sched_is_frozen(f->slot) &&
	    !ckm_ctrl_freeze_some(gpu, f->slot->sched_id, f->filter))
		freeze_failed(f->slot);
	mutex_unlock(&gpu->ctrl_lock);
}

/* By a worker: a tenant's task may be throttled with ctrl_lock held, and hand-overs wait for it. */
static void freeze_new(struct ckm_slot *slot, const struct ckm_channel_filter *filter)
{
	struct freeze_new f = { .slot = slot, .filter = filter };

	INIT_WORK_ONSTACK(&f.work, freeze_new_work);
	/* One call of a slot at a time: its threads do not queue ahead of the scheduler thread. */
	mutex_lock(&slot->enable_lock);
	queue_work(freezes, &f.work);
	flush_work(&f.work);
	mutex_unlock(&slot->enable_lock);
	destroy_work_on_stack(&f.work);
}

void ckm_sched_freeze_new_channel(struct ckm_slot *slot, const struct ckm_obj *channel)
{
	freeze_new(slot, &(struct ckm_channel_filter) { .channel = channel });
}

void ckm_sched_freeze_group(struct ckm_slot *slot, const struct ckm_group *group)
{
	freeze_new(slot, &(struct ckm_channel_filter) { .group = group });
}

int ckm_sched_init(void)
{
	freezes = alloc_workqueue("cgpu_freeze", WQ_UNBOUND | WQ_HIGHPRI, 0);
	return freezes ? 0 : -ENOMEM;
}

void ckm_sched_exit(void)
{
	destroy_workqueue(freezes);
}
