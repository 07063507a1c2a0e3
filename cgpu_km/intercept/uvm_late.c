// SPDX-License-Identifier: MIT OR GPL-2.0-only
/* Redirects nvidia-uvm's functions after the attach. Takes ckm_lock. */
#include <linux/kernel.h>
#include <linux/workqueue.h>

#include "compat.h"
#include "driver/proc_devices.h"
#include "intercept/uvm.h"
#include "intercept/uvm_late.h"
#include "registry.h"
#include "state/notify.h"

static bool watching;	/* ckm_lock */
static int failed;	/* ckm_lock for writing; 0, or the last attempt's error */

static void try_again(struct work_struct *work);
static DECLARE_DELAYED_WORK(again, try_again);

/* No function of that name: another attempt finds none either, until nvidia-uvm is loaded
 * again. All else passes: no memory, a live patch, switches.
 */
static bool passes(int ret)
{
	return ret && ret != -ENOENT;
}

static void report(int ret)
{
	char why[96] = "nvidia-uvm's functions are redirected, or it is not loaded";

	lockdep_assert_held(&ckm_lock);
	if (ret == failed)
		return;
	WRITE_ONCE(failed, ret);
	if (ret)
		snprintf(why, sizeof(why), "nvidia-uvm's functions are not redirected (%d)%s", ret,
			 passes(ret) ? ", tried again every second" : "");
	if (ret)
		pr_err("%s: containers get no address spaces\n", why);
	else
		pr_info("%s\n", why);
	ckm_events_redirections(ret, why);
}

/* -EIO would mean that a redirection is off. */
static int attempt(void)
{
	lockdep_assert_held(&ckm_lock);
	/* Its number cannot change while they are. */
	if (ckm_uvm_is_redirected())
		return 0;
	return ckm_driver_learn_uvm() ? -EAGAIN : ckm_uvm_attach(failed);
}

void ckm_uvm_late_look(void)
{
	lockdep_assert_held(&ckm_lock);
	if (!watching)
		return;
	report(attempt());
	if (passes(failed))
		mod_delayed_work(system_dfl_wq, &again, HZ);
}

static void try_again(struct work_struct *work)
{
	mutex_lock(&ckm_lock);
	ckm_uvm_late_look();
	mutex_unlock(&ckm_lock);
}

void ckm_uvm_late_start(int ret)
{
	lockdep_assert_held(&ckm_lock);
	watching = true;
	report(ret);
	if (passes(ret))
		mod_delayed_work(system_dfl_wq, &again, HZ);
}

void ckm_uvm_late_stop(void)
{
	lockdep_assert_held(&ckm_lock);
	watching = false;
	WRITE_ONCE(failed, 0);
}

bool ckm_uvm_is_late(void)
{
	return READ_ONCE(failed);
}

void ckm_uvm_late_exit(void)
{
	cancel_delayed_work_sync(&again);
}
