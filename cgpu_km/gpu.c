// SPDX-License-Identifier: MIT OR GPL-2.0
#include <linux/module.h>
#include <linux/slab.h>
#include <linux/sort.h>

#include "container.h"
#include "core/nv_abi.h"
#include "core_link.h"
#include "gpu.h"
#include "proc.h"
#include "seal.h"
#include "turn_thread.h"

LIST_HEAD(ckm_gpus);
static bool attached;	/* ckm_lock */

static unsigned int ctx_reserve_mib = 32;
module_param(ctx_reserve_mib, uint, 0444);
MODULE_PARM_DESC(ctx_reserve_mib, "least memory charged for each graphics/compute context, MiB (default 32)");

struct ckm_gpu *ckm_gpu_by_index(u32 index)
{
	struct ckm_gpu *gpu;

	lockdep_assert_held(&ckm_lock);
	list_for_each_entry(gpu, &ckm_gpus, node)
		if (gpu->index == index)
			return gpu;
	return NULL;
}

void ckm_gpu_view_locked(struct ckm_gpu *gpu, struct cgpu_turn_view *view)
{
	const struct cgpu_core_ops *core;

	lockdep_assert_held(&gpu->lock);
	memset(view, 0, sizeof(*view));
	core = ckm_core_enter();
	if (core) {
		core->turn_view(gpu->turn, view);
		ckm_core_leave();
	}
}

void ckm_gpu_slot_view_locked(struct ckm_gpu *gpu, u32 turn_slot,
			      struct cgpu_turn_slot_view *view)
{
	const struct cgpu_core_ops *core;

	lockdep_assert_held(&gpu->lock);
	memset(view, 0, sizeof(*view));
	core = ckm_core_enter();
	if (core) {
		core->turn_slot_view(gpu->turn, turn_slot, view);
		ckm_core_leave();
	}
}

void ckm_gpu_kick(struct ckm_gpu *gpu)
{
	WRITE_ONCE(gpu->kicked, true);
	wake_up(&gpu->wait);
	ckm_look_wake(gpu);
}

void ckm_gpu_channels_changed_locked(struct ckm_slot *slot)
{
	struct ckm_gpu *gpu = slot->gpu;
	const struct cgpu_core_ops *core;

	lockdep_assert_held(&gpu->lock);
	core = ckm_core_enter();
	if (core) {
		u64 now = ktime_get_ns();

		core->turn_set_channels(gpu->turn, slot->turn_slot, slot->channel_count,
					slot->tsg_count, now);
		core->look_touched(gpu->look, gpu->turn, slot->turn_slot, now);
		ckm_core_leave();
	}
	ckm_gpu_kick(gpu);
}

static void free_gpu(struct ckm_gpu *gpu)
{
	list_del(&gpu->node);
	ckm_proc_remove_gpu(gpu);
	ckm_events_stop(gpu);
	ckm_look_free(gpu);
	kfree(gpu->turn);
	kfree(gpu);
}

static struct cgpu_turn *new_turn(void)
{
	struct cgpu_turn *turn = ckm_core_alloc_turn();
	const struct cgpu_core_ops *core;

	if (!turn)
		return NULL;
	core = ckm_core_enter();
	core->turn_init(turn, ktime_get_ns());
	/* Until attach finds otherwise: a policy may be set before. */
	core->turn_set_levers(turn, CGPU_LEVER_WINDOW | CGPU_LEVER_TIMESLICE, ktime_get_ns());
	ckm_core_leave();
	return turn;
}

static int add_gpu(u32 index, const struct ckm_gpu_desc *desc)
{
	struct ckm_gpu *gpu = kzalloc(sizeof(*gpu), GFP_KERNEL);
	int ret = -ENOMEM;

	if (!gpu)
		return -ENOMEM;
	gpu->turn = new_turn();
	if (!gpu->turn)
		goto err_free;
	gpu->index = index;
	gpu->desc = *desc;
	gpu->overcommit_pct = CGPU_OVERCOMMIT_MIN;
	gpu->born_ns = ktime_get_boottime_ns();
	mutex_init(&gpu->open_lock);
	mutex_init(&gpu->lever_lock);
	mutex_init(&gpu->lock);
	init_waitqueue_head(&gpu->wait);
	ckm_events_init_gpu(gpu);
	ret = ckm_look_alloc(gpu);
	if (ret)
		goto err_turn;
	ret = ckm_proc_add_gpu(gpu);
	if (ret)
		goto err_look;
	list_add_tail(&gpu->node, &ckm_gpus);
	return 0;

err_look:
	ckm_look_free(gpu);
err_turn:
	kfree(gpu->turn);
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

/* The same cards as before keep their settings; what the driver calls them may
 * have changed.
 */
static bool same_cards(const struct ckm_gpu_desc *desc, u32 count)
{
	struct ckm_gpu *gpu;
	u32 i = 0;

	list_for_each_entry(gpu, &ckm_gpus, node)
		if (i >= count || strcmp(gpu->desc.pci, desc[i++].pci))
			return false;
	return i == count;
}

static void take(const struct ckm_gpu_desc *desc, u32 count)
{
	struct ckm_gpu *gpu;
	u32 i = 0;

	if (same_cards(desc, count)) {
		list_for_each_entry(gpu, &ckm_gpus, node)
			gpu->desc = desc[i++];
		return;
	}
	ckm_gpus_forget();
	for (i = 0; i < count; i++)
		if (add_gpu(i, &desc[i]))
			pr_err("GPU %s: no memory for it\n", desc[i].pci);
}

void ckm_gpus_scan(void)
{
	struct ckm_gpu_desc *desc;
	u32 count;

	lockdep_assert_held(&ckm_lock);
	if (attached)
		return;
	desc = kcalloc(CGPU_MAX_GPUS, sizeof(*desc), GFP_KERNEL);
	if (!desc)
		return;
	if (!ckm_driver_get(true)) {
		count = ckm_driver_enumerate(desc);
		ckm_driver_put();
		sort(desc, count, sizeof(*desc), compare_pci, NULL);
		take(desc, count);
	}
	kfree(desc);
}

/* ctrl2080gpu.h: NV2080_CTRL_GPU_GET_GID_INFO_PARAMS */
struct gid_info {
	u32 index, flags, length;
	u8 data[256];
};

/* ctrl0000gpu.h: NV0000_CTRL_GPU_GET_ID_INFO_V2_PARAMS */
struct id_info {
	u32 gpu_id, gpu_flags, device_instance, subdevice_instance;
	u32 sli_status, board_id, gpu_instance, numa_id;
};

struct fb_info {
	u32 count;
	struct { u32 index, data; } list[NV_FB_INFO_MAX];
};
static_assert(sizeof(struct fb_info) == NV_FB_INFO_V2_SIZE);

static void learn_uuid(struct ckm_gpu *gpu)
{
	struct gid_info *gid = kzalloc(sizeof(*gid), GFP_KERNEL);

	if (gid && !ckm_rm_control(gpu->hclient, gpu->hsubdevice,
				   NV2080_CTRL_GPU_GET_GID_INFO, gid, sizeof(*gid))) {
		gid->data[sizeof(gid->data) - 1] = '\0';
		strscpy(gpu->desc.uuid, (char *)gid->data, sizeof(gpu->desc.uuid));
	}
	kfree(gid);
}

/* Values of FB_GET_INFO indexes, at most three, in KiB. */
static bool read_fb(struct ckm_gpu *gpu, const u32 *index, u32 count, u32 *kib)
{
	struct fb_info *fb = kzalloc(sizeof(*fb), GFP_KERNEL);
	bool ok;
	u32 i;

	if (!fb)
		return false;
	fb->count = count;
	for (i = 0; i < count; i++)
		fb->list[i].index = index[i];
	ok = !ckm_rm_control(gpu->hclient, gpu->hsubdevice, NV2080_CTRL_FB_GET_INFO_V2,
			     fb, ckm_driver_fb_info_size());
	for (i = 0; i < count; i++)
		kib[i] = fb->list[i].data;
	kfree(fb);
	return ok;
}

static bool learn_total(struct ckm_gpu *gpu)
{
	const u32 index = NV_FB_RAM_SIZE;
	u32 kib;

	if (!read_fb(gpu, &index, 1, &kib) || !kib)
		return false;
	gpu->total_bytes = (u64)kib << 10;
	return true;
}

bool ckm_gpu_heap(struct ckm_gpu *gpu, u64 *used, u64 *free)
{
	const u32 index[] = { NV_FB_HEAP_SIZE, NV_FB_HEAP_FREE };
	u32 kib[2];

	if (!read_fb(gpu, index, 2, kib) || kib[1] > kib[0])
		return false;
	*used = (u64)(kib[0] - kib[1]) << 10;
	*free = (u64)kib[1] << 10;
	return true;
}

bool ckm_gpu_heap_if_open(struct ckm_gpu *gpu, u64 *used, u64 *free)
{
	bool known;

	mutex_lock(&gpu->open_lock);
	known = gpu->open && ckm_gpu_heap(gpu, used, free);
	mutex_unlock(&gpu->open_lock);
	return known;
}

static void set_open(struct ckm_gpu *gpu, bool open)
{
	mutex_lock(&gpu->open_lock);
	gpu->open = open;
	mutex_unlock(&gpu->open_lock);
}

u64 ckm_gpu_context_bytes(struct ckm_gpu *gpu)
{
	u64 bytes;

	mutex_lock(&gpu->lock);
	bytes = max((u64)ctx_reserve_mib * CGPU_MIB, gpu->context_bytes);
	mutex_unlock(&gpu->lock);
	return bytes;
}

void ckm_gpu_context_seen(struct ckm_gpu *gpu, u64 bytes)
{
	mutex_lock(&gpu->lock);
	if (!gpu->context_bytes || bytes < gpu->context_bytes)
		gpu->context_bytes = bytes;
	mutex_unlock(&gpu->lock);
}

static bool learn_instance(struct ckm_gpu *gpu)
{
	struct id_info info = { .gpu_id = gpu->desc.gpu_id };

	if (ckm_rm_control(gpu->hclient, gpu->hclient, NV0000_CTRL_ID_INFO_V2,
			   &info, sizeof(info)))
		return false;
	gpu->instance = info.device_instance;
	return true;
}

/* An empty list of channels: a driver that answers NOT_SUPPORTED (the open one
 * without GSP) has no window lever. That a lever which is accepted moves the
 * share is not known from this, nor can it be where nothing runs yet: look.c.
 */
static void ask_for_levers(struct ckm_gpu *gpu)
{
	const struct cgpu_core_ops *core;
	u32 levers = CGPU_LEVER_WINDOW | CGPU_LEVER_TIMESLICE;
	void *empty = kzalloc(NV2080_DISABLE_CHANNELS_SIZE, GFP_KERNEL);

	if (!empty || ckm_rm_control(gpu->hclient, gpu->hsubdevice, NV2080_CTRL_DISABLE_CHANNELS,
				     empty, NV2080_DISABLE_CHANNELS_SIZE) == NV_ERR_NOT_SUPPORTED) {
		pr_warn("GPU %u: the driver cannot freeze channels; policies 0 to 3 are not enforced\n",
			gpu->index);
		levers &= ~CGPU_LEVER_WINDOW;
	}
	kfree(empty);
	mutex_lock(&gpu->lock);
	core = ckm_core_enter();
	core->turn_set_levers(gpu->turn, levers, ktime_get_ns());
	ckm_core_leave();
	mutex_unlock(&gpu->lock);
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
	if (ckm_rm_alloc(0, 0, &gpu->hclient, NV01_ROOT_CLIENT, NULL, 0))
		goto err_close;
	if (!learn_instance(gpu))
		goto err_client;
	device_params[0] = gpu->instance;
	if (ckm_rm_alloc(gpu->hclient, gpu->hclient, &gpu->hdevice, NV01_DEVICE_0,
			 device_params, sizeof(device_params)) ||
	    ckm_rm_alloc(gpu->hclient, gpu->hdevice, &gpu->hsubdevice, NV20_SUBDEVICE_0,
			 &subdevice, sizeof(subdevice)) ||
	    !learn_total(gpu))
		goto err_client;
	if (!gpu->desc.uuid[0])
		learn_uuid(gpu);
	ask_for_levers(gpu);
	ckm_look_start(gpu);
	set_open(gpu, true);
	return 0;

err_client:
	ckm_rm_free(gpu->hclient, gpu->hclient, gpu->hclient);
err_close:
	ckm_rm_close_gpu(gpu->desc.gpu_id);
	return -EIO;
}

static void close_gpu(struct ckm_gpu *gpu)
{
	ckm_turn_thread_stop(gpu);
	set_open(gpu, false);
	ckm_look_stop(gpu);
	ckm_rm_free(gpu->hclient, gpu->hclient, gpu->hclient);
	ckm_rm_close_gpu(gpu->desc.gpu_id);
}

int ckm_gpus_attach(const char **why)
{
	struct ckm_gpu *gpu;
	int ret;

	lockdep_assert_held(&ckm_lock);
	if (attached)
		return 0;
	*why = "no core module (cgpu_core) is loaded";
	ret = ckm_core_pin();
	if (ret)
		return ret;
	ckm_gpus_scan();
	*why = "no supported NVIDIA driver is loaded (see the kernel log)";
	ret = ckm_driver_get(false);
	if (ret)
		goto err_core;
	*why = "the driver's calls cannot be sealed (see the kernel log)";
	ret = ckm_seal_attach();
	if (ret)
		goto err_driver;
	ckm_driver_learn_uvm();
	ckm_seal_attach_uvm();
	*why = "a GPU could not be opened (see the kernel log)";
	list_for_each_entry(gpu, &ckm_gpus, node) {
		ret = open_gpu(gpu);
		if (ret) {
			pr_err("GPU %u (%s): cannot be opened\n", gpu->index, gpu->desc.pci);
			goto err_gpus;
		}
		ret = ckm_turn_thread_start(gpu);
		if (ret) {
			close_gpu(gpu);
			goto err_gpus;
		}
	}
	attached = true;
	pr_info("attached to driver %s\n", ckm_driver_version());
	list_for_each_entry(gpu, &ckm_gpus, node) {
		ckm_netlink_gpu_event(gpu, CGPU_EVENT_ATTACHED);
		ckm_events_gpu_changed(gpu);	/* what probing found */
	}
	return 0;

err_gpus:
	list_for_each_entry_continue_reverse(gpu, &ckm_gpus, node)
		close_gpu(gpu);
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
	ckm_seal_detach();
	ckm_driver_put();
	ckm_core_unpin();
	attached = false;
	pr_info("detached\n");
}

/* A driver was loaded, maybe: any module can be it, it is known by its symbol. */
static void scan_work(struct work_struct *work)
{
	mutex_lock(&ckm_lock);
	ckm_gpus_scan();
	if (attached) {
		ckm_driver_learn_uvm();
		ckm_seal_attach_uvm();
	}
	mutex_unlock(&ckm_lock);
}
static DECLARE_WORK(scan, scan_work);

static int module_event(struct notifier_block *nb, unsigned long event, void *data)
{
	const struct module *mod = data;

	if (event == MODULE_STATE_LIVE && (!strncmp(mod->name, "nv", 2)))
		schedule_work(&scan);
	if (event == MODULE_STATE_GOING && !strcmp(mod->name, "nvidia_uvm"))
		ckm_seal_uvm_gone();
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
	mutex_lock(&ckm_lock);
	ckm_gpus_forget();
	mutex_unlock(&ckm_lock);
}
