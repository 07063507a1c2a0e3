// SPDX-License-Identifier: MIT OR GPL-2.0-only
/* Starts and ends the layers, and passes the tables of the upper ones down. Takes no lock. */
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

static int __init ckm_init(void)
{
	int ret;

	ret = ckm_backing_init();
	if (ret)
		return ret;
	ret = ckm_shared_init();
	if (ret)
		goto err_backing;
	ret = ckm_objs_init();
	if (ret)
		goto err_shared;
	ret = ckm_containers_init();
	if (ret)
		goto err_objs;
	ret = ckm_sched_init();
	if (ret)
		goto err_containers;
	ret = ckm_nodes_init();
	if (ret)
		goto err_sched;
	ret = ckm_minors_init(&ckm_front_fops);
	if (ret)
		goto err_nodes;
	ckm_observer = &ckm_proc_observer;
	ret = ckm_proc_init();
	if (ret)
		goto err_minors;
	ret = ckm_netlink_init();
	if (ret)
		goto err_proc;
	ret = ckm_gpus_init();
	if (ret)
		goto err_netlink;
	ret = ckm_sleep_init();
	if (ret)
		goto err_gpus;
	ret = ckm_nodefs_register();
	if (ret)
		goto err_sleep;
	return 0;

err_sleep:
	ckm_sleep_exit();
err_gpus:
	ckm_gpus_exit();
err_netlink:
	ckm_netlink_exit();
err_proc:
	ckm_proc_exit();
err_minors:
	ckm_minors_exit();
err_nodes:
	ckm_nodes_exit();
err_sched:
	ckm_sched_exit();
err_containers:
	ckm_containers_exit();
err_objs:
	ckm_objs_exit();
err_shared:
	ckm_shared_exit();
err_backing:
	ckm_backing_exit();
	return ret;
}

/* Runs only when no container, file, mapping or mount is left: each pins the module. */
static void __exit ckm_exit(void)
{
	ckm_nodefs_unregister();
	ckm_sleep_exit();
	ckm_gpus_exit();
	ckm_netlink_exit();
	ckm_proc_exit();
	ckm_minors_exit();
	ckm_containers_exit();
	ckm_sched_exit();
	ckm_nodes_exit();
	ckm_objs_exit();
	ckm_shared_exit();
	ckm_backing_exit();
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
