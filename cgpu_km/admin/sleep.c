// SPDX-License-Identifier: MIT OR GPL-2.0-only
/* Suspend and hibernation of the system and of the driver. Takes power_lock. */
#include <linux/limits.h>
#include <linux/module.h>
#include <linux/notifier.h>
#include <linux/rcupdate.h>
#include <linux/sched.h>
#include <linux/suspend.h>
#include <linux/workqueue.h>

#include "admin/sleep.h"
#include "core/nv_abi.h"
#include "driver/redirect.h"
#include "registry.h"
#include "sched/sched_thread.h"

/*
 * The driver saves and restores channels while the GPU sleeps: none may be frozen, and no call of
 * ours may come in between. Calls of tenants need no check. The kernel freezes user space after
 * the notifiers, before the first device sleeps; where the driver sends the GPU to sleep earlier,
 * calls of processes wait in it. The scheduler threads are the kernel's, which are not frozen.
 */

/* ---- the system ---- */

/*
 * Some releases of the driver put the GPU to sleep and wake it in a notifier of their own. The
 * kernel calls notifiers in one order both times, by priority: hence one that is the first, and
 * pauses, and one that is the last, and resumes.
 */
static bool reached_last;	/* the notifiers are called one after the other */

/* Another notifier refused the sleep: those before it are called to undo it, the last one is not. */
#define UNDO_DELAY	(2 * HZ)

static void undo_work(struct work_struct *work)
{
	ckm_sched_resume_all(CKM_SLEEP_SYSTEM);
}
static DECLARE_DELAYED_WORK(undo, undo_work);

static bool falls_asleep(unsigned long event)
{
	return event == PM_SUSPEND_PREPARE || event == PM_HIBERNATION_PREPARE ||
	       event == PM_RESTORE_PREPARE;
}

static bool wakes(unsigned long event)
{
	return event == PM_POST_SUSPEND || event == PM_POST_HIBERNATION ||
	       event == PM_POST_RESTORE;
}

static int first_event(struct notifier_block *nb, unsigned long event, void *data)
{
	if (falls_asleep(event)) {
		cancel_delayed_work_sync(&undo);
		reached_last = false;
		ckm_sched_pause_all(CKM_SLEEP_SYSTEM);
	} else if (wakes(event) && !reached_last) {
		schedule_delayed_work(&undo, UNDO_DELAY);
	}
	return NOTIFY_OK;
}

static int last_event(struct notifier_block *nb, unsigned long event, void *data)
{
	if (falls_asleep(event))
		reached_last = true;
	else if (wakes(event))
		ckm_sched_resume_all(CKM_SLEEP_SYSTEM);
	return NOTIFY_OK;
}

static struct notifier_block first = { .notifier_call = first_event, .priority = INT_MAX };
static struct notifier_block last = { .notifier_call = last_event, .priority = INT_MIN };

/* ---- the driver ---- */

/* nv.h: the last value of nv_power_state_t, NV_POWER_STATE_RUNNING */
#define POWER_RUNNING	2u

static DEFINE_MUTEX(power_lock);		/* in_original */
static struct task_struct *in_original;		/* READ_ONCE; power_lock */
static bool was_called;				/* power_lock; power_state(), at some time */

static u32 power_state(u32 state, u32 depth);

/* By ftrace the call of the original is no hit. */
static bool wants_power(struct pt_regs *regs)
{
	return READ_ONCE(in_original) != current;
}

/* NV_STATUS nv_set_system_power_state(nv_power_state_t, nv_pm_action_depth_t) of nv.c */
static struct ckm_redirection redirections[] = {
	{ "nv_set_system_power_state", power_state, wants_power },
};

/* A write to /proc/driver/nvidia/suspend, as NVIDIA's units for systemd make it before the system
 * sleeps and after; from then on calls of processes wait in the driver.
 */
static u32 power_state(u32 state, u32 depth)
{
	bool mine = try_module_get(THIS_MODULE), before = false;
	u32 status;

	mutex_lock(&power_lock);
	was_called = true;
	if (state != POWER_RUNNING)
		before = ckm_sched_pause_all(CKM_SLEEP_DRIVER);
	WRITE_ONCE(in_original, current);
	status = ckm_call_original(state, depth, 0, 0, 0, 0,
				   ckm_redirect_address(&redirections[0]));
	WRITE_ONCE(in_original, NULL);
	/* What failed while the driver sleeps already has not woken it. */
	if (state == POWER_RUNNING || (status != NV_OK && !before))
		ckm_sched_resume_all(CKM_SLEEP_DRIVER);
	mutex_unlock(&power_lock);
	if (mine)
		module_put(THIS_MODULE);
	return status;
}

int ckm_sleep_attach(void)
{
	return ckm_redirect_attach(redirections, ARRAY_SIZE(redirections), CKM_NVIDIA,
				   "containers are not thawed before the driver's own suspend");
}

void ckm_sleep_detach(void)
{
	lockdep_assert_held(&ckm_lock);
	ckm_redirect_detach(redirections);
	ckm_sched_resume_all(CKM_SLEEP_DRIVER);
}

int ckm_sleep_init(void)
{
	int ret = register_pm_notifier(&first);

	if (ret)
		return ret;
	ret = register_pm_notifier(&last);
	if (ret)
		unregister_pm_notifier(&first);
	return ret;
}

void ckm_sleep_exit(void)
{
	unregister_pm_notifier(&last);
	unregister_pm_notifier(&first);
	cancel_delayed_work_sync(&undo);
	/* A task that has put its reference in power_state() may still be there, but sleeps no more. */
	if (was_called)
		synchronize_rcu_tasks();
}
