// SPDX-License-Identifier: MIT OR GPL-2.0
#include <linux/module.h>

#include "backfs.h"
#include "container.h"
#include "gpu.h"
#include "netlink.h"
#include "proc.h"
#include "seal.h"

static int __init ckm_init(void)
{
	int ret;

	ret = ckm_backfs_init();
	if (ret)
		return ret;
	ret = ckm_containers_init();
	if (ret)
		goto err_backfs;
	ret = ckm_proc_init();
	if (ret)
		goto err_containers;
	ret = ckm_netlink_init();
	if (ret)
		goto err_proc;
	ret = ckm_gpus_init();
	if (ret)
		goto err_netlink;
	return 0;

err_netlink:
	ckm_netlink_exit();
err_proc:
	ckm_proc_exit();
err_containers:
	ckm_containers_exit();
err_backfs:
	ckm_backfs_exit();
	return ret;
}

/* Reached only when no container, file or mapping is left: each pins us. */
static void __exit ckm_exit(void)
{
	ckm_gpus_exit();
	ckm_netlink_exit();
	ckm_proc_exit();
	ckm_containers_exit();
	ckm_backfs_exit();
	ckm_seal_exit();
}

module_init(ckm_init);
module_exit(ckm_exit);

MODULE_DESCRIPTION("cgpu: several containers share one NVIDIA GPU");
MODULE_AUTHOR("The cgpu authors");
MODULE_LICENSE("Dual MIT/GPL");
MODULE_VERSION(CGPU_VERSION);
/* Only an order for modprobe: the driver's symbols are looked up when the first
 * container comes. Not in a file of modprobe.d, which would have to be written
 * anew for each version and takes the place of what stands here.
 */
MODULE_SOFTDEP("pre: nvidia nvidia-uvm post: " CGPU_CORE);
