// SPDX-License-Identifier: MIT OR GPL-2.0-only
/* Reads from the driver what the module has to know of a GPU that it opens. Takes gpu->lock. */
#include <linux/ktime.h>
#include <linux/slab.h>
#include <linux/string.h>
#include <linux/uuid.h>

#include "admin/learn.h"
#include "core/nv_struct.h"
#include "core_ref.h"
#include "driver/driver.h"
#include "state/gpu.h"
#include "state/quota.h"

bool ckm_gpu_learn_instance(struct ckm_gpu *gpu)
{
	struct nv_id_info info = { .gpuId = gpu->desc.gpu_id };

	if (ckm_drv_control(gpu->hclient, gpu->hclient, NV0000_CTRL_CMD_GPU_GET_ID_INFO_V2,
			    &info, sizeof(info)) ||
	    info.deviceInstance == CKM_ALL_ONES)
		return false;
	gpu->instance = info.deviceInstance;
	return true;
}

/* "GPU-" and the bytes in their order, by which nvidia-uvm identifies the GPU. No
 * container can register a GPU without a UUID with nvidia-uvm, so a call that failed for a
 * passing reason (no memory, a timeout) is no answer. False: attach again later.
 */
static bool learn_uuid(struct ckm_gpu *gpu)
{
	struct nv_gid_info *gid = kzalloc(sizeof(*gid), GFP_KERNEL);
	u32 status;

	if (!gid)
		return false;
	status = ckm_drv_control(gpu->hclient, gpu->hsubdevice, NV2080_CTRL_CMD_GPU_GET_GID_INFO,
				 gid, sizeof(*gid));
	if (status == NV_OK)
		ckm_driver_copy_uuid(gpu->desc.uuid, gid->data, sizeof(gid->data));
	kfree(gid);
	gpu->has_uuid = strstarts(gpu->desc.uuid, "GPU-") &&
			!uuid_parse(gpu->desc.uuid + strlen("GPU-"), &gpu->raw_uuid);
	if (!gpu->has_uuid)
		pr_warn("GPU %u: the driver returns no UUID for it (status 0x%x)\n", gpu->index,
			status);
	return gpu->has_uuid || status == NV_ERR_NOT_SUPPORTED;
}

/* False: the call failed for a passing reason, or its answer @reply is all ones. */
static bool is_answer(u32 status, const void *reply, size_t size)
{
	return status == NV_OK ? memchr_inv(reply, 0xff, size) != NULL : status == NV_ERR_NOT_SUPPORTED;
}

/* Without it the GPU has no pages of a size that some chips lack. */
static bool learn_arch(struct ckm_gpu *gpu)
{
	struct nv_arch_info info = {};
	u32 status = ckm_drv_control(gpu->hclient, gpu->hsubdevice, NV2080_CTRL_CMD_MC_GET_ARCH_INFO, &info,
				     sizeof(info));

	if (!is_answer(status, &info.architecture, sizeof(info.architecture))) {
		pr_warn("GPU %u: the driver returns no answer for its architecture (status 0x%x)\n", gpu->index, status);
		return false;
	}
	if (status != NV_OK) {
		pr_warn("GPU %u: the driver returns no architecture for it; pages of 512 MiB are refused\n",
			gpu->index);
		info.architecture = 0;
	}
	gpu->arch = info.architecture;
	return true;
}

/* Which copy engines have a runlist of their own. Of a driver that has no such call none has: channels on all of them
 * are frozen with their container, and charged a context, as those of graphics' runlist must be.
 */
static bool learn_copies(struct ckm_gpu *gpu)
{
	u8 caps[sizeof(struct nv_ce_caps)] __aligned(8) = {};
	u32 status, size = ckm_core_call(nv.control(ckm_driver_branch(),
						    NV2080_CTRL_CMD_CE_GET_ALL_CAPS)->params_size);

	size = min_t(u32, size, sizeof(caps));
	status = ckm_drv_control(gpu->hclient, gpu->hsubdevice, NV2080_CTRL_CMD_CE_GET_ALL_CAPS, caps, size);
	if (!is_answer(status, caps, size)) {
		pr_warn("GPU %u: the driver returns no answer for its copy engines (status 0x%x)\n", gpu->index,
			status);
		return false;
	}
	gpu->async_copies = status == NV_OK ? ckm_core_call(nv.async_copies(caps, size)) : 0;
	if (!gpu->async_copies)
		pr_warn("GPU %u: the driver names no asynchronous copy engine (status 0x%x); copies stop with their container\n",
			gpu->index, status);
	return true;
}

static bool learn_total(struct ckm_gpu *gpu)
{
	const u32 index[] = { NV2080_CTRL_FB_INFO_INDEX_RAM_SIZE, NV2080_CTRL_FB_INFO_INDEX_BAR1_SIZE };
	u32 kib[2];

	if (!ckm_gpu_read_fb(gpu, index, 2, kib) || !kib[0])
		return false;
	gpu->total_bytes = (u64)kib[0] << 10;
	return ckm_quota_learn(gpu, (u64)kib[1] << 10);
}

/* Probe with an empty list of channels: a driver that returns NOT_SUPPORTED (the open
 * one without GSP) has no freeze control. Whether an accepted control moves the share
 * cannot be measured while nothing runs: effect_check.c. False: no memory for the probe.
 */
static bool probe_controls(struct ckm_gpu *gpu)
{
	u32 controls = CGPU_CTRL_FREEZE | CGPU_CTRL_TIMESLICE;
	void *empty = kzalloc(sizeof(struct nv_disable_channels), GFP_KERNEL);

	if (!empty)
		return false;
	if (ckm_drv_control(gpu->hclient, gpu->hsubdevice, NV2080_CTRL_CMD_FIFO_DISABLE_CHANNELS, empty,
			    sizeof(struct nv_disable_channels)) == NV_ERR_NOT_SUPPORTED) {
		pr_warn("GPU %u: the driver cannot freeze channels; a policy that needs it is refused\n",
			gpu->index);
		controls &= ~CGPU_CTRL_FREEZE;
	}
	kfree(empty);
	spin_lock(&gpu->lock);
	ckm_core_call(sched.set_controls(gpu->sched, controls, ktime_get_ns()));
	spin_unlock(&gpu->lock);
	return true;
}

bool ckm_gpu_learn(struct ckm_gpu *gpu)
{
	return learn_total(gpu) && learn_uuid(gpu) && probe_controls(gpu) && learn_arch(gpu) && learn_copies(gpu);
}
