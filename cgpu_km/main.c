// SPDX-License-Identifier: MIT OR GPL-2.0-only
/* Starts and ends the layers, and passes the tables of the upper ones down. Takes no lock. */
#include <linux/kernel.h>
#include <linux/module.h>

#include "admin/attach.h"
#include "admin/netlink.h"
#include "admin/proc.h"
#include "admin/sleep.h"
#include "driver/redirect.h"
#include "intercept/backing_file.h"
#include "intercept/chardev.h"
#include "intercept/rm_shared.h"
#include "intercept/uvm_charge.h"
#include "registry.h"
#include "sched/sched_thread.h"
#include "state/container.h"
#include "state/minor.h"
#include "state/nodefs.h"
#include "state/rm_object.h"

static int minors_init(void)
{
	return ckm_minors_init(&ckm_front_fops);
}

/* In the order of their starts. One whose start fails has nothing to end. */
static const struct {
	int (*init)(void);
	void (*exit)(void);
} parts[] = {
	{ ckm_backing_init,	ckm_backing_exit },
	{ ckm_shared_init,	ckm_shared_exit },
	{ ckm_objs_init,	ckm_objs_exit },
	{ ckm_nodes_init,	ckm_nodes_exit },
	{ ckm_sched_init,	ckm_sched_exit },
	{ ckm_containers_init,	ckm_containers_exit },
	{ minors_init,		ckm_minors_exit },
	{ ckm_proc_init,	ckm_proc_exit },
	{ ckm_netlink_init,	ckm_netlink_exit },
	{ ckm_gpus_init,	ckm_gpus_exit },
	{ ckm_sleep_init,	ckm_sleep_exit },
	{ ckm_nodefs_register,	ckm_nodefs_unregister },
};

static void end(u32 started)
{
	while (started)
		parts[--started].exit();
}

static int __init ckm_init(void)
{
	int ret = 0;
	u32 i;

	ckm_observer = &ckm_proc_observer;
	for (i = 0; !ret && i < ARRAY_SIZE(parts); i++)
		ret = parts[i].init();
	if (ret)
		end(i - 1);
	return ret;
}

/* Runs only when no container, file, mapping or mount is left: each pins the module. */
static void __exit ckm_exit(void)
{
	end(ARRAY_SIZE(parts));
	ckm_redirect_exit();
	ckm_uvm_charge_exit();
}

module_init(ckm_init);
module_exit(ckm_exit);

MODULE_DESCRIPTION("cgpu: several containers share one NVIDIA GPU");
MODULE_AUTHOR("The cgpu authors");
MODULE_LICENSE("Dual MIT/GPL");
MODULE_VERSION(CGPU_VERSION);
/* Only an order for modprobe: the driver's symbols are looked up with the first
 * container. Not in a file of modprobe.d, which would need a change for each version
 * and would replace this line.
 */
MODULE_SOFTDEP("pre: nvidia nvidia-uvm post: " CGPU_CORE);
