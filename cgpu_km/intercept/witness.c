// SPDX-License-Identifier: MIT OR GPL-2.0-only
/* Checks the redirections before calls, and reports when one is switched off. Takes no lock. */
#include <linux/kernel.h>
#include <linux/workqueue.h>

#include "compat.h"
#include "core/nv_call.h"
#include "driver/redirect.h"
#include "intercept/backing_file.h"
#include "intercept/witness.h"
#include "registry.h"
#include "state/notify.h"

static bool watching;		/* ckm_lock for writing */
static bool reported_off;	/* of the work item; before it is started: of its starter */

static void look(struct work_struct *work);
static DECLARE_DELAYED_WORK(check_work, look);

static void look(struct work_struct *work)
{
	const char *off = ckm_redirect_off();
	char why[96] = "all redirections are in effect";

	if (off)
		snprintf(why, sizeof(why), "%s is not redirected: are kprobes switched off?", off);
	if (!off != !reported_off) {
		reported_off = off;
		if (off)
			pr_err("%s Calls of containers fail\n", why);
		else
			pr_info("%s again\n", why);
		ckm_events_redirections(off ? -EIO : 0, why);
	}
	queue_delayed_work(system_dfl_wq, &check_work, HZ);
}

bool ckm_witness(struct ckm_backing *backing)
{
	if (READ_ONCE(backing->given_up))
		return false;
	if (likely(ckm_redirect_in_effect(CKM_NVIDIA) &&
		   (backing->node != CGPU_NODE_UVM || ckm_redirect_in_effect(CKM_NVIDIA_UVM))))
		return true;
	if (!READ_ONCE(reported_off))
		mod_delayed_work(system_dfl_wq, &check_work, 0);
	return false;
}

void ckm_witness_start(void)
{
	lockdep_assert_held(&ckm_lock);
	reported_off = false;
	WRITE_ONCE(watching, true);
	queue_delayed_work(system_dfl_wq, &check_work, HZ);
}

void ckm_witness_stop(void)
{
	lockdep_assert_held(&ckm_lock);
	WRITE_ONCE(watching, false);
	cancel_delayed_work_sync(&check_work);
}

const char *ckm_witness_text(void)
{
	if (!READ_ONCE(watching))
		return "none";
	return ckm_redirect_off() ? "off" : "on";
}
