// SPDX-License-Identifier: MIT OR GPL-2.0
/* Small questions that CUDA and NVML ask on their way: a card without MIG, fabric, virtualisation or restrictions. Each answer
 * is what the public driver (580.105.08) gives on such a card.
 */
#include <linux/ktime.h>

#include "nvsim.h"

#define FABRIC_STATUS_SKIP 1
#define PERSISTENCE_DISABLED 1
#define REVISION_A1 0xa1

static NV_STATUS zero(struct nvctl *c)
{
	memset(c->params, 0, c->size);
	return NV_OK;
}

static NV_STATUS ctl_fabric_status(struct nvctl *c)
{
	*(u32 *)c->params = FABRIC_STATUS_SKIP;
	return NV_OK;
}

/* {gpuId, drainState, flags} */
static NV_STATUS ctl_drain_state(struct nvctl *c)
{
	u32 *p = c->params;

	if (!nvsim_gpu_by_id(p[0]))
		return NV_ERR_INVALID_ARGUMENT;
	p[1] = 0;
	p[2] = 0;
	return NV_OK;
}

/* {numDevices, {gpuId, gpuInstanceId, computeInstanceId}[256]}: no MIG, no instances */
static NV_STATUS ctl_active_devices(struct nvctl *c)
{
	u32 *p = c->params, i;

	memset(p, 0, c->size);
	p[0] = nvsim.gpus;
	for (i = 0; i < nvsim.gpus; i++) {
		p[1 + 3 * i] = nvsim_gpu[i]->gpu_id;
		p[2 + 3 * i] = 0xffffffff;
		p[3 + 3 * i] = 0xffffffff;
	}
	return NV_OK;
}

/* Asynchronous attach, and the wait for it: all GPUs are attached. */
static NV_STATUS ctl_attach_id(struct nvctl *c)
{
	return nvsim_gpu_by_id(*(u32 *)c->params) ? NV_OK : NV_ERR_INVALID_ARGUMENT;
}

static NV_STATUS ctl_persistence(struct nvctl *c)
{
	*(u32 *)c->params = PERSISTENCE_DISABLED;
	return NV_OK;
}

static NV_STATUS ctl_gpu_id(struct nvctl *c)
{
	*(u32 *)c->params = c->obj->gpu->gpu_id;
	return NV_OK;
}

static NV_STATUS ctl_time(struct nvctl *c)
{
	*(u64 *)c->params = ktime_get_ns();
	return NV_OK;
}

/* {architecture, implementation, revision, subRevision u8}: TU104, GA100, GH100 */
static NV_STATUS ctl_arch(struct nvctl *c)
{
	static const struct { u32 gpfifo, arch, impl; } chips[] = {
		{ 0xc46f, 0x160, 4 }, { 0xc56f, 0x170, 0 }, { 0xc86f, 0x180, 0 },
	};
	u32 *p = c->params;
	size_t i;

	for (i = 0; i < ARRAY_SIZE(chips); i++) {
		if (chips[i].gpfifo != nvsim_gpfifo_class())
			continue;
		p[0] = chips[i].arch;
		p[1] = chips[i].impl;
		p[2] = REVISION_A1;
		p[3] = 0;
		return NV_OK;
	}
	return NV_ERR_NOT_SUPPORTED;
}

#define CLIENT NVT_BIT(NVT_CLIENT)
#define DEV NVT_BIT(NVT_DEVICE)
#define SUB NVT_BIT(NVT_SUBDEVICE)

/* ctrl0000system.h, ctrl0000gpu.h, ctrl0080gpu.h, ctrl2080gpu.h, ctrl2080mc.h, ctrl2080tmr.h */
const struct nvctl_entry nvsim_ctrl_info[] = {
	{ 0x136, 4, CLIENT, 0, ctl_fabric_status },
	{ 0x1f0, 4, CLIENT, 0, zero },
	{ 0x279, 12, CLIENT, 0, ctl_drain_state },
	{ 0x27b, 4, CLIENT, 0, zero },
	{ 0x288, 3076, CLIENT, 0, ctl_active_devices },
	{ 0x289, 4, CLIENT, 0, ctl_attach_id },
	{ 0x290, 4, CLIENT, 0, ctl_attach_id },
	{ 0x800288, 4, DEV, 0, ctl_persistence },
	{ 0x800289, 8, DEV, 0, zero },
	{ 0x20800119, 4, SUB, 0, zero },
	{ 0x20800131, 4, SUB, 0, zero },
	{ 0x20800142, 4, SUB, 0, ctl_gpu_id },
	{ 0x20800403, 8, SUB, 0, ctl_time },
	{ 0x20801701, 16, SUB, 0, ctl_arch },
	{}
};
