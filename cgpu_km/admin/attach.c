// SPDX-License-Identifier: MIT OR GPL-2.0-only
/* Owns the list of GPUs and the attachment to the driver. Callers hold ckm_lock. */
#include <linux/module.h>
#include <linux/slab.h>
#include <linux/sort.h>
#include <linux/workqueue.h>

#include "admin/attach.h"
#include "admin/bars.h"
#include "admin/learn.h"
#include "admin/sleep.h"
#include "core/nv_abi.h"
#include "core_ref.h"
#include "driver/driver.h"
#include "driver/proc_devices.h"
#include "intercept/seal.h"
#include "intercept/uvm.h"
#include "intercept/uvm_late.h"
#include "intercept/witness.h"
#include "registry.h"
#include "sched/effect_check.h"
#include "sched/run_state.h"
#include "sched/runlist.h"
#include "sched/sched_thread.h"
#include "state/gpu.h"
#include "state/notify.h"

static bool attached;	/* ckm_lock */

static void free_gpu(struct ckm_gpu *gpu)
{
	list_del(&gpu->node);
	ckm_observer->gpu_removed(gpu);
	ckm_events_stop(gpu);
	ckm_check_free(gpu);
	kfree(gpu->sched);
	kfree(gpu);
}

static struct cgpu_sched *new_sched(void)
{
	struct cgpu_sched *sched = ckm_core_alloc_sched();
	const struct cgpu_core_ops *core;

	if (!sched)
		return NULL;
	core = ckm_core_enter();
	core->sched.init(sched, ktime_get_ns());
	/* Assume both controls until attach probes them: a policy may be set before. */
	core->sched.set_controls(sched, CGPU_CTRL_FREEZE | CGPU_CTRL_TIMESLICE, ktime_get_ns());
	ckm_core_leave();
	return sched;
}

static int add_gpu(u32 index, const struct ckm_gpu_desc *desc)
{
	struct ckm_gpu *gpu = kzalloc(sizeof(*gpu), GFP_KERNEL);
	int ret = -ENOMEM;

	if (!gpu)
		return -ENOMEM;
	gpu->sched = new_sched();
	if (!gpu->sched)
		goto err_free;
	gpu->index = index;
	gpu->desc = *desc;
	gpu->overcommit_pct = CGPU_OVERCOMMIT_MIN;
	gpu->born_ns = ktime_get_boottime_ns();
	init_rwsem(&gpu->open_lock);
	mutex_init(&gpu->ctrl_lock);
	spin_lock_init(&gpu->lock);
	init_waitqueue_head(&gpu->wait);
	ckm_gpu_heap_init(gpu);
	ckm_events_init_gpu(gpu);
	ret = ckm_check_alloc(gpu);
	if (ret)
		goto err_sched;
	ret = ckm_observer->gpu_added(gpu);
	if (ret)
		goto err_check;
	list_add_tail(&gpu->node, &ckm_gpus);
	return 0;

err_check:
	ckm_check_free(gpu);
err_sched:
	kfree(gpu->sched);
err_free:
	kfree(gpu);
	return ret;
}

void ckm_gpus_forget(void)
{
	struct ckm_gpu *gpu, *next;

	lockdep_assert_held(&ckm_lock);
	list_for_each_entry_safe(gpu, next, &ckm_gpus, node)
		free_gpu(gpu);
}

static int compare_pci(const void *a, const void *b)
{
	return strcmp(((const struct ckm_gpu_desc *)a)->pci,
		      ((const struct ckm_gpu_desc *)b)->pci);
}

/* The same cards keep their settings; the driver's numbers for them may have changed. */
static bool same_cards(const struct ckm_gpu_desc *desc, u32 count)
{
	struct ckm_gpu *gpu;
	u32 i = 0;

	list_for_each_entry(gpu, &ckm_gpus, node)
		if (i >= count || strcmp(gpu->desc.pci, desc[i++].pci))
			return false;
	return i == count;
}

static int take(const struct ckm_gpu_desc *desc, u32 count)
{
	struct ckm_gpu *gpu;
	int ret = 0;
	u32 i = 0;

	if (same_cards(desc, count)) {
		list_for_each_entry(gpu, &ckm_gpus, node)
			gpu->desc = desc[i++];
		return 0;
	}
	ckm_gpus_forget();
	for (i = 0; i < count; i++)
		if (add_gpu(i, &desc[i])) {
			pr_err("GPU %s: no memory for it\n", desc[i].pci);
			ret = -ENOMEM;
		}
	return ret;
}

/* Read the list of GPUs, if a driver is loaded. -ENOMEM: it is not complete. */
static int scan_gpus(void)
{
	struct ckm_gpu_desc *desc;
	int count, ret = 0;

	lockdep_assert_held(&ckm_lock);
	desc = kcalloc(CGPU_MAX_GPUS, sizeof(*desc), GFP_KERNEL);
	if (!desc)
		return -ENOMEM;
	if (!ckm_driver_get(true)) {
		count = ckm_driver_enumerate(desc);
		ckm_driver_put();
		sort(desc, max(count, 0), sizeof(*desc), compare_pci, NULL);
		ret = count < 0 ? count : take(desc, count);
	}
	kfree(desc);
	return ret;
}

void ckm_gpus_scan(void)
{
	lockdep_assert_held(&ckm_lock);
	if (!attached)
		scan_gpus();
}

void ckm_gpus_ask_again(void)
{
	struct ckm_gpu *gpu;

	lockdep_assert_held(&ckm_lock);
	list_for_each_entry(gpu, &ckm_gpus, node)
		if (!gpu->desc.uuid[0]) {
			ckm_gpus_scan();	/* may replace the list */
			return;
		}
}

static void set_open(struct ckm_gpu *gpu, bool open)
{
	down_write(&gpu->open_lock);
	gpu->open = open;
	up_write(&gpu->open_lock);
}

/* Our own client, device and subdevice on this GPU. */
static int open_gpu(struct ckm_gpu *gpu)
{
	u32 device_params[14] = {};	/* NV0080_ALLOC_PARAMETERS: deviceId first */
	u32 subdevice = 0;
	int ret;

	ret = ckm_rm_open_gpu(gpu->desc.gpu_id);
	if (ret)
		return ret;
	gpu->hclient = 0;
	gpu->hdevice = 0xc6700001;
	gpu->hsubdevice = 0xc6700002;
	if (ckm_drv_alloc(0, 0, &gpu->hclient, NV01_ROOT_CLIENT, NULL, 0))
		goto err_close;
	if (!ckm_gpu_learn_instance(gpu))
		goto err_client;
	device_params[0] = gpu->instance;
	if (ckm_drv_alloc(gpu->hclient, gpu->hclient, &gpu->hdevice, NV01_DEVICE_0,
			  device_params, sizeof(device_params)) ||
	    ckm_drv_alloc(gpu->hclient, gpu->hdevice, &gpu->hsubdevice, NV20_SUBDEVICE_0,
			  &subdevice, sizeof(subdevice)) ||
	    !ckm_gpu_learn(gpu))
		goto err_client;
	ckm_check_start(gpu);
	ckm_run_state_start(gpu);
	ckm_bars_claim(gpu);
	set_open(gpu, true);
	return 0;

err_client:
	ckm_drv_free(gpu->hclient, gpu->hclient, gpu->hclient);
err_close:
	ckm_rm_close_gpu(gpu->desc.gpu_id);
	return -EIO;
}

static void close_gpu(struct ckm_gpu *gpu)
{
	ckm_sched_thread_stop(gpu);
	ckm_ctrl_forget(gpu);
	set_open(gpu, false);
	ckm_check_stop(gpu);
	ckm_bars_release(gpu);
	ckm_run_state_stop(gpu);
	ckm_drv_free(gpu->hclient, gpu->hclient, gpu->hclient);
	ckm_rm_close_gpu(gpu->desc.gpu_id);
}

int ckm_gpus_attach(const char **why)
{
	struct ckm_gpu *gpu;
	int ret, uvm;

	lockdep_assert_held(&ckm_lock);
	if (attached)
		return 0;
	*why = "no core module (cgpu_core) is loaded";
	ret = ckm_core_pin();
	if (ret)
		return ret;
	*why = "out of memory";
	ret = scan_gpus();
	if (ret)
		goto err_core;
	*why = "no supported NVIDIA driver is loaded (see the kernel log)";
	ret = ckm_driver_get(false);
	if (ret)
		goto err_core;
	*why = "the driver's calls cannot be redirected (see the kernel log)";
	ret = ckm_seal_attach();
	if (ret)
		goto err_driver;
	*why = "the device numbers cannot be read (see the kernel log)";
	ret = ckm_driver_learn_uvm();
	if (ret)
		goto err_seal;
	/* Without nvidia-uvm's functions containers run, without address spaces. */
	*why = "out of memory";
	uvm = ckm_uvm_attach(false);
	ret = uvm;
	if (ret == -ENOMEM)
		goto err_seal;
	ret = ckm_sleep_attach();
	if (ret == -ENOMEM)
		goto err_uvm;
	ckm_witness_start();
	*why = "a GPU could not be opened (see the kernel log)";
	list_for_each_entry(gpu, &ckm_gpus, node) {
		ret = open_gpu(gpu);
		if (ret) {
			pr_err("GPU %u (%s): cannot be opened\n", gpu->index, gpu->desc.pci);
			goto err_gpus;
		}
		ret = ckm_sched_thread_start(gpu);
		if (ret) {
			close_gpu(gpu);
			goto err_gpus;
		}
	}
	attached = true;
	ckm_uvm_late_start(uvm);
	pr_info("attached to driver %s\n", ckm_driver_version());
	list_for_each_entry(gpu, &ckm_gpus, node) {
		ckm_netlink_gpu_event(gpu, CGPU_EVENT_ATTACHED);
		ckm_events_gpu_changed(gpu);	/* the probed controls */
	}
	return 0;

err_gpus:
	list_for_each_entry_continue_reverse(gpu, &ckm_gpus, node)
		close_gpu(gpu);
	ckm_witness_stop();
	ckm_sleep_detach();
err_uvm:
	ckm_uvm_detach();
err_seal:
	ckm_seal_detach();
err_driver:
	ckm_driver_put();
err_core:
	ckm_core_unpin();
	return ret;
}

void ckm_gpus_detach(void)
{
	struct ckm_gpu *gpu;

	lockdep_assert_held(&ckm_lock);
	list_for_each_entry(gpu, &ckm_gpus, node) {
		close_gpu(gpu);
		ckm_netlink_gpu_event(gpu, CGPU_EVENT_DETACHED);
	}
	ckm_witness_stop();
	ckm_uvm_late_stop();
	ckm_sleep_detach();
	ckm_uvm_detach();
	ckm_seal_detach();
	ckm_driver_put();
	ckm_core_unpin();
	attached = false;
	pr_info("detached\n");
}

/* A driver may have been loaded, or nvidia-uvm unloaded. A driver is identified by its symbol,
 * because any module may be it.
 */
static void scan_work(struct work_struct *work)
{
	mutex_lock(&ckm_lock);
	ckm_gpus_scan();
	ckm_uvm_late_look();
	mutex_unlock(&ckm_lock);
}
static DECLARE_WORK(scan, scan_work);

static int module_event(struct notifier_block *nb, unsigned long event, void *data)
{
	const struct module *mod = data;

	if (event == MODULE_STATE_LIVE && (!strncmp(mod->name, "nv", 2)))
		schedule_work(&scan);
	if (event == MODULE_STATE_GOING && !strcmp(mod->name, "nvidia_uvm")) {
		ckm_uvm_detach();
		schedule_work(&scan);
	}
	return NOTIFY_OK;
}

static struct notifier_block module_nb = { .notifier_call = module_event };

int ckm_gpus_init(void)
{
	return register_module_notifier(&module_nb);
}

void ckm_gpus_exit(void)
{
	unregister_module_notifier(&module_nb);
	cancel_work_sync(&scan);
	ckm_uvm_late_exit();
	mutex_lock(&ckm_lock);
	ckm_gpus_forget();
	mutex_unlock(&ckm_lock);
}
