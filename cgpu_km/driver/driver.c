// SPDX-License-Identifier: MIT OR GPL-2.0-only
/* Owns the reference to nvidia.ko. Callers of get and put hold ckm_lock. */
#include <linux/ctype.h>
#include <linux/delay.h>
#include <linux/fs.h>
#include <linux/kprobes.h>
#include <linux/module.h>
#include <linux/pci.h>
#include <linux/slab.h>
#include <linux/string.h>

#include "core/nv_abi.h"
#include "core_ref.h"
#include "driver/driver.h"
#include "driver/redirect.h"
#include "driver/rm_ops.h"

static bool any_driver;
module_param(any_driver, bool, 0644);
MODULE_PARM_DESC(any_driver, "accept driver versions the call table was not wholly checked against, from the next first container on (default: refuse); never one without rows");

extern void nvidia_p2p_put_pages(void);

/* Written by get and put under ckm_lock only. Read without a lock between them. */
static struct nv_rm_ops rm;
static char version[64];
static u32 branch;
static u32 fb_info_size;
static u32 util_size;
static struct cgpu_abi abi;
static u32 gets;

/* Functions of nvidia.ko's Linux layer, by its nv.h and nv-modeset-interface.h. That layer alone has a GPU's minor:
 *   nv_state_t *nv_get_adapter_state(NvU32 domain, NvU8 bus, NvU8 slot)
 *   NvU32 nv_get_dev_minor(nv_state_t *)
 *   NV_STATUS nvidia_get_rm_ops(nvidia_modeset_rm_ops_t *)
 * The last one is exported, by releases such as 550.163.01 not to GPL modules alone: symbol_get() refuses it then.
 */
static void *get_adapter_state, *get_dev_minor, *get_rm_ops;

/* void rm_client_free_os_events(NvHandle) of osapi.h: takes a spinlock of the driver's only. NULL: not in this release. */
static void *free_os_events;

/* While held, nvidia.ko stays loaded. Of its exports to GPL modules this is the oldest; it is never called. */
#define PIN nvidia_p2p_put_pages

static u32 params_size(const struct cgpu_core_ops *core, u32 cmd)
{
	const struct cgpu_control *row = core->nv.control(branch, cmd);

	return row ? row->params_size : 0;
}

/* kallsyms_lookup_name() is not exported to modules, so the addresses are taken from kprobes that are registered
 * disabled and never armed. They are valid while nvidia.ko is pinned.
 */
static int find_functions(void)
{
	struct kprobe state = { .symbol_name = "nv_get_adapter_state", .flags = KPROBE_FLAG_DISABLED };
	struct kprobe minor = { .symbol_name = "nv_get_dev_minor", .flags = KPROBE_FLAG_DISABLED };
	struct kprobe ops = { .symbol_name = "nvidia_get_rm_ops", .flags = KPROBE_FLAG_DISABLED };
	struct kprobe *all[] = { &state, &minor, &ops };
	int ret = register_kprobes(all, ARRAY_SIZE(all));

	if (ret) {
		pr_err_ratelimited("%s, %s and %s of nvidia.ko are not all found (%d): are kprobes enabled?\n",
				   state.symbol_name, minor.symbol_name, ops.symbol_name, ret);
		return -ENODEV;
	}
	get_adapter_state = state.addr;
	get_dev_minor = minor.addr;
	get_rm_ops = ops.addr;
	unregister_kprobes(all, ARRAY_SIZE(all));
	return 0;
}

static void find_free_os_events(void)
{
	struct kprobe probe = { .symbol_name = "rm_client_free_os_events", .flags = KPROBE_FLAG_DISABLED };

	free_os_events = NULL;
	if (register_kprobe(&probe)) {
		pr_notice("%s of nvidia.ko is not found: OS events stay in the driver as long as the file that they were made on\n",
			  probe.symbol_name);
		return;
	}
	free_os_events = probe.addr;
	unregister_kprobe(&probe);
}

static u32 call_get_rm_ops(void)
{
	return ckm_call_original((unsigned long)&rm, 0, 0, 0, 0, 0, get_rm_ops);
}

u32 ckm_driver_minor_of(void *nv)
{
	return ckm_call_original((unsigned long)nv, 0, 0, 0, 0, 0, get_dev_minor);
}

/* What the rows are worth for a driver that they were not wholly checked against. */
static void say_unknown(const struct cgpu_branch_part *part)
{
	char some[48] = "";

	if (part->branch)
		snprintf(some, sizeof(some), ", of which %u of %u", part->compared, part->rows);
	pr_err_ratelimited("driver %s is of no branch the call table was wholly checked against; any_driver=1 accepts it with the rows of %u%s were compared with NVIDIA's sources of that branch: docs/user/support.md\n",
			   version, branch, part->branch ? some : ", which");
}

int ckm_driver_get(bool quiet)
{
	struct cgpu_branch_part part = {};
	const struct cgpu_core_ops *core;
	bool known;
	int ret;

	if (gets) {
		gets++;
		return 0;
	}
	if (!symbol_get(PIN)) {
		if (!quiet)
			pr_err_ratelimited("nvidia.ko is not loaded, or exports nothing to GPL modules (open modules from 535.146 or 550.54 on do)\n");
		return -ENODEV;
	}
	ret = find_functions();
	if (ret)
		goto err_put;
	/* Given a wrong version string the driver fails and fills in its own, which the next call passes. */
	memset(&rm, 0, sizeof(rm));
	rm.version_string = "";
	if (call_get_rm_ops() && (!rm.version_string || call_get_rm_ops())) {
		pr_err_ratelimited("nvidia.ko refused its kernel interface\n");
		ret = -ENODEV;
		goto err_put;
	}
	strscpy(version, rm.version_string, sizeof(version));
	core = ckm_core_enter_if_any();
	if (!core) {
		if (!quiet)
			pr_err_ratelimited("no core is loaded: no call table\n");
		ret = -ENODEV;
		goto err_put;
	}
	known = core->nv.knows_driver(version);
	branch = core->nv.branch(version);
	if (core->nv.part(branch))
		part = *core->nv.part(branch);
	abi = *core->nv.abi(branch);
	fb_info_size = params_size(core, NV2080_CTRL_CMD_FB_GET_INFO_V2);
	util_size = params_size(core, NV2080_CTRL_CMD_PERF_GET_GPUMON_PERFMON_UTIL_SAMPLES_V2);
	ckm_core_leave();
	ret = -EOPNOTSUPP;
	if (!branch)
		pr_err_ratelimited("driver '%s' has no rows in the call table, whose first are of 535.146 and 550.54: refused, with any_driver=1 too\n",
				   version);
	else if (!known && !any_driver)
		say_unknown(&part);
	if (!branch || (!known && !any_driver))
		goto err_put;
	find_free_os_events();
	gets = 1;
	return 0;

err_put:
	symbol_put(PIN);
	return ret;
}

void ckm_driver_put(void)
{
	if (--gets)
		return;
	memset(&rm, 0, sizeof(rm));
	symbol_put(PIN);
}

bool ckm_driver_fits(const struct cgpu_core_ops *core)
{
	if (!gets)
		return true;
	return (core->nv.knows_driver(version) || any_driver) &&
	       core->nv.branch(version) == branch &&
	       !memcmp(core->nv.abi(branch), &abi, sizeof(abi)) &&
	       params_size(core, NV2080_CTRL_CMD_FB_GET_INFO_V2) == fb_info_size &&
	       params_size(core, NV2080_CTRL_CMD_PERF_GET_GPUMON_PERFMON_UTIL_SAMPLES_V2) == util_size;
}

const char *ckm_driver_version(void)
{
	return version;
}

const struct cgpu_abi *ckm_driver_abi(void)
{
	return &abi;
}

u32 ckm_driver_branch(void)
{
	return branch;
}

u32 ckm_driver_fb_info_size(void)
{
	return fb_info_size;
}

u32 ckm_driver_util_size(void)
{
	return util_size;
}

bool ckm_driver_owns(const struct file_operations *fops)
{
	static const char * const names[] = { "nvidia", "nvidia_uvm", "nvsim" };

	return fops->owner && fops->unlocked_ioctl &&
	       match_string(names, ARRAY_SIZE(names), module_name(fops->owner)) >= 0;
}

/* The driver's state of a GPU has no reference count. Only the driver's remove() frees
 * it, which runs under the device lock, so that lock keeps the state. Do not wait for the
 * lock: remove() waits under it for as long as the GPU is open. Give up after a second.
 */
static bool lock_device(struct pci_dev *pdev)
{
	int tries;

	if (!pdev)
		return true;
	for (tries = 0; tries < 100; tries++) {
		if (device_trylock(&pdev->dev))
			return true;
		msleep(10);
	}
	return false;
}

static bool learn_minor(const struct nv_gpu_info *info, struct ckm_gpu_desc *desc)
{
	struct pci_dev *pdev;
	bool ok = false;
	void *nv;

	pdev = pci_get_domain_bus_and_slot(info->pci_info.domain, info->pci_info.bus,
					   PCI_DEVFN(info->pci_info.slot, info->pci_info.function & 7u));
	if (lock_device(pdev)) {
		nv = (void *)ckm_call_original(info->pci_info.domain, info->pci_info.bus, info->pci_info.slot,
					       0, 0, 0, get_adapter_state);
		if (nv) {
			desc->nv_minor = ckm_driver_minor_of(nv);
			ok = desc->nv_minor <= NV_MINOR_DEVICE_NUMBER_REGULAR_MAX;
		}
		if (pdev)
			device_unlock(&pdev->dev);
	}
	pci_dev_put(pdev);
	return ok;
}

static bool describe(const struct nv_gpu_info *info, struct ckm_gpu_desc *desc)
{
	memset(desc, 0, sizeof(*desc));
	desc->gpu_id = info->gpu_id;
	snprintf(desc->pci, sizeof(desc->pci), "%04x:%02x:%02x.%u", info->pci_info.domain & 0xffff,
		 info->pci_info.bus, info->pci_info.slot, info->pci_info.function & 7u);
	if (!learn_minor(info, desc)) {
		pr_warn("GPU %s: the driver has no minor for it, or is adding or removing it; left out\n",
			desc->pci);
		return false;
	}
	return true;
}

void ckm_driver_copy_uuid(char uuid[CKM_UUID_SIZE], const u8 *text, size_t size)
{
	size_t len = strnlen(text, size), i;

	uuid[0] = '\0';
	if (len >= CKM_UUID_SIZE)
		return;
	for (i = 0; i < len; i++)
		if (!isascii(text[i]) || !isgraph(text[i]))
			return;
	memcpy(uuid, text, len);
	uuid[len] = '\0';
}

/* The driver has the UUID of a GPU once the GPU was opened or one of the driver's files
 * with the UUID was read. Until then @uuid stays "".
 */
static void learn_uuids(struct ckm_gpu_desc *desc, u32 count)
{
	struct nv_uuid_from_id params;
	u32 client = 0, i;

	if (ckm_drv_alloc(0, 0, &client, NV01_ROOT_CLIENT, NULL, 0))
		return;
	for (i = 0; i < count; i++) {
		memset(&params, 0, sizeof(params));
		params.gpuId = desc[i].gpu_id;
		if (ckm_drv_control(client, client, NV0000_CTRL_CMD_GPU_GET_UUID_FROM_GPU_ID, &params,
				    sizeof(params)))
			continue;
		ckm_driver_copy_uuid(desc[i].uuid, params.gpuUuid, sizeof(params.gpuUuid));
	}
	ckm_drv_free(client, client, client);
}

int ckm_driver_enumerate(struct ckm_gpu_desc *desc)
{
	struct nv_gpu_info *info = kcalloc(CGPU_MAX_GPUS, sizeof(*info), GFP_KERNEL);
	u32 count, i, kept = 0;

	if (!info)
		return -ENOMEM;
	count = rm.enumerate_gpus(info);
	if (count > CGPU_MAX_GPUS)	/* all ones */
		count = 0;
	for (i = 0; i < count; i++)
		if (describe(&info[i], &desc[kept]))
			kept++;
	kfree(info);
	learn_uuids(desc, kept);
	return kept;
}

/* The stack for a call that gives something back, which must not fail for want of memory: try
 * for a second. On success @sp may be NULL.
 */
static bool alloc_stack_for_end(struct nvidia_stack_s **sp)
{
	u32 tries;

	for (tries = 0; tries < 100; tries++) {
		if (!rm.alloc_stack(sp))
			return true;
		msleep(10);
	}
	return false;
}

static bool run_op(struct nv_kernel_op *op)
{
	struct nvidia_stack_s *sp = NULL;

	if (op->op == NV01_FREE ? !alloc_stack_for_end(&sp) : rm.alloc_stack(&sp))
		return false;
	rm.op(sp, op);
	rm.free_stack(sp);
	return true;
}

u32 ckm_drv_alloc(u32 client, u32 parent, u32 *handle, u32 cls, void *params, u32 size)
{
	struct nv_kernel_op op = { .op = NV04_ALLOC };
	u32 status;

	op.params.alloc.hRoot = client;
	op.params.alloc.hObjectParent = parent;
	op.params.alloc.hObjectNew = *handle;
	op.params.alloc.hClass = cls;
	op.params.alloc.pAllocParms = (uintptr_t)params;
	memcpy(op.params._room + abi.op_alloc_params_size, &size, sizeof(size));
	if (!run_op(&op))
		return NV_ERR_INSUFFICIENT_RESOURCES;
	*handle = op.params.alloc.hObjectNew;
	memcpy(&status, op.params._room + abi.op_alloc_status, sizeof(status));
	return status;
}

u32 ckm_drv_free(u32 client, u32 parent, u32 handle)
{
	struct nv_kernel_op op = { .op = NV01_FREE };

	op.params.free.hRoot = client;
	op.params.free.hObjectParent = parent;
	op.params.free.hObjectOld = handle;
	return run_op(&op) ? op.params.free.status : NV_ERR_INSUFFICIENT_RESOURCES;
}

u32 ckm_drv_control(u32 client, u32 object, u32 cmd, void *params, u32 size)
{
	struct nv_kernel_op op = { .op = NV04_CONTROL };

	op.params.control.hClient = client;
	op.params.control.hObject = object;
	op.params.control.cmd = cmd;
	op.params.control.params = (uintptr_t)params;
	op.params.control.paramsSize = size;
	return run_op(&op) ? op.params.control.status : NV_ERR_INSUFFICIENT_RESOURCES;
}

bool ckm_drv_free_os_events(u32 client)
{
	if (free_os_events)
		ckm_call_original(client, 0, 0, 0, 0, 0, free_os_events);
	return free_os_events;
}

u32 ckm_rm_lend(u32 client, u32 object, u32 to, bool end)
{
	struct nv_kernel_op op = { .op = NV04_SHARE };

	op.params.share.hClient = client;
	op.params.share.hObject = object;
	op.params.share.sharePolicy.target = to;
	op.params.share.sharePolicy.accessMask = NV_SHARE_MAY_DUP;
	op.params.share.sharePolicy.type = RS_SHARE_TYPE_CLIENT;
	op.params.share.sharePolicy.action = RS_SHARE_ACTION_FLAG_COMPOSE | (end ? RS_SHARE_ACTION_FLAG_REVOKE : 0);
	return run_op(&op) ? op.params.share.status : NV_ERR_INSUFFICIENT_RESOURCES;
}

int ckm_rm_open_gpu(u32 gpu_id)
{
	struct nvidia_stack_s *sp = NULL;
	int ret;

	if (rm.alloc_stack(&sp))
		return -ENOMEM;
	ret = abi.reset_aware ? rm.open_gpu_595(gpu_id, sp, false) : rm.open_gpu(gpu_id, sp);
	rm.free_stack(sp);
	return ret ? -EIO : 0;
}

void ckm_rm_close_gpu(u32 gpu_id)
{
	struct nvidia_stack_s *sp = NULL;

	if (!alloc_stack_for_end(&sp))
		return;
	if (abi.reset_aware)
		rm.close_gpu_595(gpu_id, sp, false);
	else
		rm.close_gpu(gpu_id, sp);
	rm.free_stack(sp);
}
