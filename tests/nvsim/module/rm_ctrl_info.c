// SPDX-License-Identifier: MIT OR GPL-2.0-only
/*
 * Small queries of CUDA and NVML: a card without MIG, fabric, virtualisation or restrictions. Each
 * answer is the public driver's (580.105.08) for such a card.
 */
#include <linux/ktime.h>

#include "nvsim.h"

#define FABRIC_STATUS_SKIP 1
#define PERSISTENCE_DISABLED 1
#define REVISION_A1 0xa1
#define ARCH_STEP 0x10		/* between architectures: Turing 0x160, Ampere 0x170 */
#define CPU_CLK_OSTIME 1

static NV_STATUS ok(struct nvctl *c)
{
	return NV_OK;
}

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

/*
 * {cpuClkId u8, count u8, {cpu, gpu}[16] @8}: the source of the CPU's time is in the low four bits of the id, the time of
 * day in us, or else nanoseconds of a clock that nothing sets.
 */
static NV_STATUS ctl_time_correlation(struct nvctl *c)
{
	u8 *b = c->params;
	u64 *q = c->params;
	int i;

	if (b[1] > 16)
		return NV_ERR_INVALID_ARGUMENT;
	for (i = 0; i < b[1]; i++) {
		q[1 + 2 * i] = (b[0] & 15) == CPU_CLK_OSTIME ? ktime_get_real_ns() / 1000 : ktime_get_ns();
		q[2 + 2 * i] = ktime_get_ns();
	}
	return NV_OK;
}

/* {architecture, implementation, revision, subRevision u8}; a mixed one has the chip in all but this number */
static NV_STATUS ctl_arch(struct nvctl *c)
{
	u32 *p = c->params;

	p[0] = nvsim_chip->chip.arch + (nvsim_is_other(c->obj->gpu) ? ARCH_STEP : 0);
	p[1] = nvsim_chip->chip.impl;
	p[2] = REVISION_A1;
	p[3] = 0;
	return NV_OK;
}

#define COMPUTE_MODE_MAX 3		/* exclusive to a process */

/* {rules, flags}. No allocation is refused for them: libcuda asks for them, and keeps to them itself. */
static NV_STATUS ctl_set_compute_mode(struct nvctl *c)
{
	u32 *p = c->params;

	if (p[0] > COMPUTE_MODE_MAX)
		return NV_ERR_INVALID_ARGUMENT;
	c->obj->gpu->compute_mode = p[0];
	return NV_OK;
}

static NV_STATUS ctl_compute_mode(struct nvctl *c)
{
	*(u32 *)c->params = c->obj->gpu->compute_mode;
	return NV_OK;
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
	{ 0x288, 3076, CLIENT, 0, ctl_active_devices, .since = 550 },
	{ 0x289, 4, CLIENT, 0, ctl_attach_id, .since = 550 },
	{ 0x290, 4, CLIENT, 0, ctl_attach_id, .since = 550 },
	{ 0x800288, 4, DEV, 0, ctl_persistence },
	{ 0x800289, 4, DEV, 0, zero, .before = 555 },
	{ 0x800289, 8, DEV, 0, zero, .since = 555 },
	{ 0x80028e, 1, DEV, 0, zero },
	{ 0x800294, 4, DEV, 0, zero },
	{ 0x20800119, 4, SUB, 0, zero },
	{ 0x20800130, 8, SUB, NVCTL_PRIV, ctl_set_compute_mode },
	{ 0x20800131, 4, SUB, 0, ctl_compute_mode },
	{ 0x20800142, 4, SUB, 0, ctl_gpu_id },
	{ 0x20800145, 0, SUB, 0, ok },
	{ 0x20800146, 0, SUB, 0, ok },
	{ 0x2080018b, 40, SUB, 0, zero },
	{ 0x208001a3, 40, SUB, 0, zero, .before = 550 },
	{ 0x208001a3, 48, SUB, 0, zero, .since = 550, .before = 580 },
	{ 0x208001a3, 56, SUB, 0, zero, .since = 580 },
	{ 0x20800403, 8, SUB, 0, ctl_time },
	{ 0x20800406, 264, SUB, 0, ctl_time_correlation },
	{ 0x20801701, 16, SUB, 0, ctl_arch },
	{}
};
