// SPDX-License-Identifier: MIT OR GPL-2.0-only
/* Controls about the card around the engines: bus, links, memory's health, firmware, and the firmware's own controls. */
#include "nvsim.h"

#define LANES 16

/* NV2080_CTRL_BUS_INFO_INDEX_* and the values of _TYPE and _GPU_INTERFACE_TYPE */
#define BUS_TYPE 0x00
#define BUS_GPU_LINK_CAPS 0x03
#define BUS_DOWNSTREAM_LINK_CAPS 0x06
#define BUS_GPU_LINK_STATUS 0x07
#define BUS_DOWNSTREAM_LINK_STATUS 0x0a
#define BUS_BUS_NUMBER 0x0f
#define BUS_INTERFACE_TYPE 0x13
#define BUS_GEN_INFO 0x2d
#define BUS_GPU_INTERFACE_TYPE 0x2e
#define BUS_TYPE_PCI_EXPRESS 3

static NV_STATUS ok(struct nvctl *c)
{
	return NV_OK;
}

static NV_STATUS zero(struct nvctl *c)
{
	memset(c->params, 0, c->size);
	return NV_OK;
}

static u32 bus_info(const struct nvgpu *gpu, u32 index)
{
	u32 gen = nvsim_chip->pcie_gen;

	switch (index) {
	case BUS_TYPE:
	case BUS_INTERFACE_TYPE:
	case BUS_GPU_INTERFACE_TYPE:
		return BUS_TYPE_PCI_EXPRESS;
	case BUS_GPU_LINK_CAPS ... BUS_DOWNSTREAM_LINK_CAPS:
	case BUS_GEN_INFO:	/* speed 3:0, lanes 9:4, generation 15:12, at present 19:16, the GPU's 23:20 */
		return gen | LANES << 4 | (gen - 1) << 12 | (gen - 1) << 16 | (gen - 1) << 20;
	case BUS_GPU_LINK_STATUS ... BUS_DOWNSTREAM_LINK_STATUS:	/* speed 19:16, lanes 25:20 */
		return gen << 16 | LANES << 20;
	case BUS_BUS_NUMBER:
		return gpu->bus;
	}
	return 0;
}

/* {count, {index, value}[52]} */
static NV_STATUS ctl_bus_info(struct nvctl *c)
{
	struct nvinfo *e = c->params + 4;
	u32 n = *(u32 *)c->params, i;

	if (!n || n > NVSIM_BUS_INFO_MAX)
		return NV_ERR_INVALID_ARGUMENT;
	for (i = 0; i < n; i++)
		e[i].value = bus_info(c->obj->gpu, e[i].index);
	return NV_OK;
}

/* The older form keeps its list in the caller's memory. */
static NV_STATUS ctl_bus_info_v1(struct nvctl *c)
{
	struct nvinfo *e = c->list;
	u32 i;

	if (!c->count)
		return NV_ERR_INVALID_ARGUMENT;
	for (i = 0; i < c->count; i++)
		e[i].value = bus_info(c->obj->gpu, e[i].index);
	return NV_OK;
}

/* {device, subsystem, revision, ext. device} */
static NV_STATUS ctl_pci_info(struct nvctl *c)
{
	u32 *p = c->params;

	p[0] = (u32)nvsim_chip->device_id << 16 | 0x10de;
	p[1] = nvsim_chip->subsystem_id;
	p[2] = 0xa1;
	p[3] = nvsim_chip->device_id;
	return NV_OK;
}

/* {count, {flags, MiB, bytes u64, address u64}[8] @8}: registers, framebuffer, instance memory */
static NV_STATUS ctl_pci_bars(struct nvctl *c)
{
	struct {
		u32 flags, mib;
		u64 bytes, address;
	} *bar = c->params + 8;
	u32 *p = c->params, mib[] = { 16, nvsim_chip->bar1_mib, 32 }, i;

	memset(p, 0, c->size);
	p[0] = ARRAY_SIZE(mib);
	for (i = 0; i < ARRAY_SIZE(mib); i++) {
		bar[i].mib = mib[i];
		bar[i].bytes = (u64)mib[i] << 20;
		bar[i].address = nvsim_gpu_bar(c->obj->gpu, i);
	}
	return NV_OK;
}

/* A mask of one: the highest performance */
static NV_STATUS ctl_pstate(struct nvctl *c)
{
	*(u32 *)c->params = 1;
	return NV_OK;
}

/* NV2080_CTRL_RC_GET_WATCHDOG_INFO_FLAGS_DISABLED and _INITIALIZED: a card without a display */
static NV_STATUS ctl_watchdog(struct nvctl *c)
{
	*(u32 *)c->params = 1 | 4;
	return NV_OK;
}

#define CLIENT NVT_BIT(NVT_CLIENT)
#define DEV NVT_BIT(NVT_DEVICE)
#define SUB NVT_BIT(NVT_SUBDEVICE)
#define BINAPI NVT_BIT(NVT_BINAPI)

/*
 * ctrl0000syncgpuboost.h, ctrl0080fb.h, ctrl0080host.h, ctrl0080perf.h,
 * ctrl2080bus.h, ctrl2080fb.h, ctrl2080gpu.h, ctrl2080gsp.h, ctrl2080nvlink.h, ctrl2080perf.h,
 * ctrl2080rc.h. Those with bit 15 of the number are the firmware's and in no public header: numbers
 * and sizes as in libcuda's calls on each branch.
 */
const struct nvctl_entry nvsim_ctrl_bus[] = {
	{ 0xa04, 2244, CLIENT, 0, zero },
	{ 0x801307, 3, DEV, 0, zero },
	{ 0x801402, 3, DEV, 0, zero },
	{ 0x801909, 1, DEV, 0, ok, .since = 550 },
	{ 0x809909, 1, DEV, 0, ok, .before = 550 },
	{ 0x2080012f, 984, SUB, 0, zero, .before = 550 },
	{ 0x2080012f, 1024, SUB, 0, zero, .since = 550, .before = 555 },
	{ 0x2080012f, 1224, SUB, 0, zero, .since = 555, .before = 580 },
	{ 0x2080012f, 1464, SUB, 0, zero, .since = 580, .before = 595 },
	{ 0x2080012f, 1664, SUB, 0, zero, .since = 595 },
	{ 0x20801702, 4, SUB, 0, ok },
	{ 0x20801801, 16, SUB, 0, ctl_pci_info },
	{ 0x20801802, 16, SUB, 0, ctl_bus_info_v1 },
	{ 0x20801803, 200, SUB, 0, ctl_pci_bars },
	{ 0x20801823, 420, SUB, 0, ctl_bus_info },
	{ 0x2080182a, 104, SUB, 0, zero, .before = 580 },
	{ 0x2080182a, 112, SUB, 0, zero, .since = 580 },
	{ 0x2080182b, 28, SUB, 0, zero },
	{ 0x2080200a, 8, SUB, 0, ok },
	{ 0x20802068, 4, SUB, 0, ctl_pstate, .since = 550 },
	{ 0x20802209, 4, SUB, 0, ctl_watchdog },
	{ 0x2080220c, 0, SUB, 0, ok },
	{ 0x20802210, 0, SUB, 0, ok },
	{ 0x20803002, 5896, SUB, 0, zero, .before = 555 },
	{ 0x20803002, 6152, SUB, 0, zero, .since = 555, .before = 580 },
	{ 0x20803002, 13344, SUB, 0, zero, .since = 580, .before = 595 },
	{ 0x20803002, 13864, SUB, 0, zero, .since = 595 },
	{ 0x20803601, 72, SUB, 0, zero },
	{ 0x20808159, 332, SUB, 0, ok },
	{ 0x20810108, 992, BINAPI, 0, zero },
	{}
};
