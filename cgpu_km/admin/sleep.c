// SPDX-License-Identifier: MIT OR GPL-2.0
/* Suspend and hibernation of the system. Takes ckm_lock. */
#include <linux/limits.h>
#include <linux/notifier.h>
#include <linux/suspend.h>
#include <linux/workqueue.h>

#include "admin/sleep.h"
#include "registry.h"
#include "sched/sched_thread.h"

/*
 * The driver saves and restores channels while the GPU sleeps: none may be frozen, and no call of
 * ours may come in between. The kernel freezes user space after these notifiers and thaws it before
 * they are called again. So a tenant's call ends before the first device sleeps, or begins when all
 * are awake: it needs no check. The scheduler threads are the kernel's, which are not frozen.
 *
 * Some releases of the driver put the GPU to sleep and wake it in a notifier of their own. The
 * kernel calls notifiers in one order both times, by priority: hence one that is the first, and
 * pauses, and one that is the last, and resumes.
 */
static bool reached_last;	/* the notifiers are called one after the other */

/* Another notifier refused the sleep: those before it are called to undo it, the last one is not. */
#define UNDO_DELAY	(2 * HZ)

static void resume(struct work_struct *work)
{
	mutex_lock(&ckm_lock);
	ckm_sched_resume_all();
	mutex_unlock(&ckm_lock);
}
static DECLARE_DELAYED_WORK(undo, resume);

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
		mutex_lock(&ckm_lock);
		ckm_sched_pause_all();
		mutex_unlock(&ckm_lock);
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
		resume(NULL);
	return NOTIFY_OK;
}

static struct notifier_block first = { .notifier_call = first_event, .priority = INT_MAX };
static struct notifier_block last = { .notifier_call = last_event, .priority = INT_MIN };

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
}
