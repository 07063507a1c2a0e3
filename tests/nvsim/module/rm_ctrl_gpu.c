// SPDX-License-Identifier: MIT OR GPL-2.0-only
/* Controls of devices, subdevices and memory: queries of tools and allocators. */
#include <linux/ktime.h>
#include <linux/math64.h>
#include <linux/pid.h>
#include <linux/pid_namespace.h>
#include <linux/sched.h>
#include <linux/sizes.h>
#include <linux/slab.h>

#include "nvsim.h"

#define FB_INFO_MAX 128
#define PIDS_MAX 950
#define PID_INFO_MAX 200
#define KIB(bytes) ((u32)((bytes) >> 10))

void nvsim_uuid_string(const struct nvgpu *gpu, char *buf)
{
	const u8 *u = gpu->uuid;

	sprintf(buf, "GPU-%02x%02x%02x%02x-%02x%02x-%02x%02x-%02x%02x-%02x%02x%02x%02x%02x%02x", u[0], u[1], u[2], u[3], u[4], u[5],
		u[6], u[7], u[8], u[9], u[10], u[11], u[12], u[13], u[14], u[15]);
}

static NV_STATUS ctl_num_subdevices(struct nvctl *c)
{
	*(u32 *)c->params = 1;
	return NV_OK;
}

/* {count, classes[]}: how many there may be goes by the branch */
static NV_STATUS ctl_classlist_v2(struct nvctl *c)
{
	u32 *p = c->params;

	p[0] = nvsim_chip_classes(p + 1, c->size / 4 - 1);
	return NV_OK;
}

static NV_STATUS ctl_classlist(struct nvctl *c)
{
	u32 n = nvsim_chip_classes(c->list, c->count);

	c->count = min(c->count, n);
	*(u32 *)c->params = n;
	return NV_OK;
}

/* {numChannels, pChannelHandleList@8, pChannelList@16}: handles in, channel numbers out */
static NV_STATUS ctl_channellist(struct nvctl *c)
{
	u32 *h = c->list, i;
	struct nvobj *o;

	for (i = 0; i < c->count; i++) {
		o = nvsim_obj_find_type(c->client, h[i], NVT_BIT(NVT_CHANNEL));
		h[i] = o ? o->chan->token : 0xffffffff;
	}
	return NV_OK;
}

static NV_STATUS ctl_name(struct nvctl *c)
{
	u32 *p = c->params;
	char *s = (char *)(p + 1);
	int i;

	memset(s, 0, c->size - sizeof(*p));
	if (p[0] & 1 && c->size > 68)
		for (i = 0; i < 63 && c->obj->gpu->name[i]; i++)
			((u16 *)s)[i] = c->obj->gpu->name[i];
	else
		strscpy(s, c->obj->gpu->name, 64);
	return NV_OK;
}

static NV_STATUS ctl_gid(struct nvctl *c)
{
	u32 *p = c->params;

	memset(p + 3, 0, 256);
	if ((p[1] & 3) == 2) {
		memcpy(p + 3, c->obj->gpu->uuid, 16);
		p[2] = 16;
	} else {
		nvsim_uuid_string(c->obj->gpu, (char *)(p + 3));
		p[2] = strlen((char *)(p + 3)) + 1;
	}
	return NV_OK;
}

static NV_STATUS ctl_short_name(struct nvctl *c)
{
	memset(c->params, 0, c->size);
	strscpy(c->params, nvsim_chip->short_name, c->size);
	return NV_OK;
}

/* NV2080_CTRL_GPU_INFO_INDEX_*: SM version, MIG (2: there, disabled), profiling and debugging allowed */
static u32 gpu_info(u32 index)
{
	switch (index) {
	case 0x2a:
		return nvsim_chip->migs > 1 ? 2 : 0;
	case 0x2c:
		return nvsim_chip->sm_version;
	case 0x36:
	case 0x37:
		return 1;
	}
	return 0;
}

/* {count, {index, value}[]} */
static NV_STATUS ctl_gpu_info_v2(struct nvctl *c)
{
	struct nvinfo *e = c->params + 4;
	u32 n = *(u32 *)c->params, i;

	if (n > (c->size - 4) / sizeof(*e))
		return NV_ERR_INVALID_ARGUMENT;
	for (i = 0; i < n; i++)
		e[i].value = gpu_info(e[i].index);
	return NV_OK;
}

#define COPIES (NVSIM_COPIES + NVSIM_GRCES)

/* The engines of the chip; returns how many there are. */
static u32 engine_types(const struct nvgpu *gpu, u32 types[NVSIM_ENGINES + NVSIM_GRCES])
{
	u32 n = 0, i;

	types[n++] = NV2080_ENGINE_TYPE_GRAPHICS;
	for (i = 0; i < COPIES; i++)
		types[n++] = NV2080_ENGINE_TYPE_COPY0 + i;
	for (i = 1 + NVSIM_COPIES; i < NVSIM_ENGINES; i++)
		if (nvsim_has_video(gpu->eng[i].type))
			types[n++] = gpu->eng[i].type;
	return n;
}

static NV_STATUS ctl_engines_v2(struct nvctl *c)
{
	u32 *p = c->params;

	p[0] = engine_types(c->obj->gpu, p + 1);
	return NV_OK;
}

static NV_STATUS ctl_engines(struct nvctl *c)
{
	u32 types[NVSIM_ENGINES + NVSIM_GRCES], n = engine_types(c->obj->gpu, types);

	c->count = min(c->count, n);
	memcpy(c->list, types, c->count * sizeof(*types));
	*(u32 *)c->params = n;
	return NV_OK;
}

/* ctrl2080fb.h NV2080_CTRL_FB_INFO_INDEX_*; sizes in KiB */
static u32 fb_info(struct nvgpu *gpu, u32 index)
{
	u64 bar1 = nvsim_bar1_size();

	switch (index) {
	case 0x05:
		return KIB(bar1);
	case 0x0b:
		return nvsim_chip->bus_width;
	case 0x0d:
		return nvsim_chip->ram_type;
	case 0x19:
		return nvsim_chip->fbps;
	case 0x1a:
		return (1u << nvsim_chip->fbps) - 1;
	case 0x1b:
		return nvsim_chip->l2_bytes;
	case 0x22:
		return nvsim_chip->ltcs;
	case 0x23:
		return nvsim_chip->ltcs * nvsim_chip->ltc_slices;
	case 0x1d:
	case 0x1f:
		return KIB(bar1 - gpu->bar1_used);
	case 0x13:
		return KIB(gpu->fb_total - nvsim_fb_free(gpu));
	case 0x07:
	case 0x08:
	case 0x09:
	case 0x0a:
	case 0x20:
		return KIB(gpu->fb_total);
	case 0x12:
	case 0x16:
		return KIB(nvsim_fb_free(gpu));
	}
	return 0;
}

static NV_STATUS ctl_fb_info_v2(struct nvctl *c)
{
	u32 *p = c->params, i;

	if (p[0] > (c->size - 4) / 8)
		return NV_ERR_INVALID_ARGUMENT;
	for (i = 0; i < p[0]; i++)
		p[2 + 2 * i] = fb_info(c->obj->gpu, p[1 + 2 * i]);
	return NV_OK;
}

/* The older form keeps its list in the caller's memory. */
static NV_STATUS ctl_fb_info(struct nvctl *c)
{
	u32 (*e)[2] = c->list, i;

	for (i = 0; i < c->count; i++)
		e[i][1] = fb_info(c->obj->gpu, e[i][0]);
	return NV_OK;
}

static u32 caller_pid(struct pid *pid)
{
	return pid_nr_ns(pid, task_active_pid_ns(current));
}

static bool client_uses(struct nvclient *cl, struct nvgpu *gpu, u32 cls)
{
	struct nvobj *o;
	unsigned long h;

	xa_for_each(&cl->objs, h, o)
		if (o->gpu == gpu && o->cls == cls)
			return true;
	return false;
}

/* {idType, id, count, pids[950]}; only processes the caller can name */
static NV_STATUS ctl_pids(struct nvctl *c)
{
	u32 *p = c->params, *tbl = p + 3, n = 0, i, pid;
	struct nvclient *cl;

	if (p[0])
		return NV_ERR_INVALID_ARGUMENT;
	list_for_each_entry(cl, &nvsim_clients, link) {
		if (cl->kernel || n == PIDS_MAX || !client_uses(cl, c->obj->gpu, p[1]))
			continue;
		pid = caller_pid(cl->pid);
		for (i = 0; i < n && tbl[i] != pid; i++)
			;
		if (pid && i == n)
			tbl[n++] = pid;
	}
	p[2] = n;
	return NV_OK;
}

struct pid_info {
	u32 pid, index, result, _p;
	u64 priv, owned, duped, prot[3];
	u32 smc[2];
};

/* Sums class 0x40 memory of the process's own clients; each allocation once, however many handles it has. */
static u64 pid_bytes(struct nvgpu *gpu, struct pid *pid)
{
	struct nvclient *cl;
	struct xarray seen;
	struct nvobj *o;
	unsigned long h;
	u64 sum = 0;

	xa_init(&seen);
	list_for_each_entry(cl, &nvsim_clients, link) {
		if (cl->kernel || cl->pid != pid)
			continue;
		xa_for_each(&cl->objs, h, o)
			if (o->type == NVT_MEMORY && o->gpu == gpu && o->mem->loc == NVLOC_FB &&
			    !xa_insert(&seen, (unsigned long)o->mem >> 3, o, GFP_KERNEL))
				sum += o->mem->size;
	}
	xa_destroy(&seen);
	return sum;
}

static NV_STATUS ctl_pid_info(struct nvctl *c)
{
	u32 n = *(u32 *)c->params, i;
	struct pid_info *e = c->params + 8;
	struct pid *pid;

	if (n > PID_INFO_MAX)
		return NV_ERR_INVALID_ARGUMENT;
	for (i = 0; i < n; i++, e++) {
		e->result = e->index ? NV_ERR_INVALID_ARGUMENT : NV_OK;
		if (e->index)
			continue;
		pid = find_get_pid(e->pid);
		e->priv = pid ? pid_bytes(c->obj->gpu, pid) : 0;
		e->owned = 0;
		e->duped = 0;
		put_pid(pid);
	}
	return NV_OK;
}

/*
 * NV2080_CTRL_PERF_GET_GPUMON_PERFMON_UTIL_SAMPLES_V2_PARAMS: type u8, bufSize@4, count@8, tracker@12, samples[72]@16:
 * timeStamp@0, then the engines' samples (util, vgpuScale, procId, subProcessID, a name), GR the second of them.
 */
#define UTIL_HEAD 16
#define UTIL_TYPE_PERFMON 2
#define UTIL_NOBODY (~0u)

/* Engines of a sample, and the bytes each has in it. */
static u32 util_engines(void)
{
	return nvsim_branch < 550 ? 4 : 6;
}

static u32 util_engine_size(void)
{
	return nvsim_branch < 580 ? 116 : 128;
}

static u32 util_sample_size(void)
{
	return 8 + util_engines() * util_engine_size();
}

/* In the caller's pid namespace; a process without a pid there is reported as UTIL_NOBODY. */
static u32 sampled_pid(pid_t tgid)
{
	u32 pid;

	rcu_read_lock();
	pid = tgid ? pid_nr_ns(find_pid_ns(tgid, &init_pid_ns), task_active_pid_ns(current)) : 0;
	rcu_read_unlock();
	return pid ?: UTIL_NOBODY;
}

static void util_sample(u8 *s, const struct engine_sample *from, u64 to_real_ns, bool global)
{
	u32 *engine, i;

	memset(s, 0, util_sample_size());
	*(u64 *)s = from->at + to_real_ns;
	for (i = 0; i < util_engines(); i++) {
		engine = (u32 *)(s + 8 + i * util_engine_size());
		engine[2] = UTIL_NOBODY;
	}
	engine = (u32 *)(s + 8 + util_engine_size());
	engine[0] = from->util;
	if (global)
		engine[2] = from->tgid ?: UTIL_NOBODY;
	else
		engine[2] = sampled_pid(from->tgid);
}

/*
 * The ring in memory order. By the header the tracker is at the oldest, or behind the newest while
 * the ring is not full. On an H100 with 580.159.04 it is elsewhere once the ring is full; nvsim
 * puts it at the newest.
 */
static NV_STATUS ctl_util_samples(struct nvctl *c)
{
	struct engine *e = &c->obj->gpu->eng[0];
	u64 to_real_ns = ktime_get_real_ns() - ktime_get_ns();
	struct engine_sampler *now = kmalloc(sizeof(*now), GFP_KERNEL);
	u32 *p = c->params, i;
	unsigned long flags;

	if (!now)
		return NV_ERR_NO_MEMORY;
	raw_spin_lock_irqsave(&e->lock, flags);
	engine_kick(e);
	*now = e->sampler;
	raw_spin_unlock_irqrestore(&e->lock, flags);
	memset(p, 0, c->size);
	*(u8 *)p = UTIL_TYPE_PERFMON;
	p[1] = util_sample_size() * ENGINE_SAMPLES;
	p[2] = ENGINE_SAMPLES;
	p[3] = (now->count < ENGINE_SAMPLES ? now->count : now->count - 1) % ENGINE_SAMPLES;
	for (i = 0; i < min_t(u32, now->count, ENGINE_SAMPLES); i++)
		util_sample(c->params + UTIL_HEAD + i * util_sample_size(), &now->ring[i], to_real_ns, c->sec->kernel);
	kfree(now);
	return NV_OK;
}

static NV_STATUS ctl_allocated_channels(struct nvctl *c)
{
	memset(c->params + 4, 0, 512);
	return NV_OK;
}

static u32 surface_info(const struct nvmem *m, u32 index)
{
	switch (index) {
	case 2:
		return (u32)m->size;
	case 3:
		return m->size >> 32;
	case 7:
		return m->size >> 12;
	case 8:
		return m->attr;
	case 9:
		return m->loc == NVLOC_FB ? 2 : m->loc == NVLOC_USERMODE ? 3 : 1;
	}
	return 0;
}

/* {size, ptr}: a list of {index, data} in the caller's memory */
static NV_STATUS ctl_surface_info(struct nvctl *c)
{
	u32 (*e)[2] = c->list, i;

	for (i = 0; i < c->count; i++)
		e[i][1] = surface_info(c->obj->mem, e[i][0]);
	return NV_OK;
}

/* NV0041_CTRL_GET_SURFACE_PHYS_ATTR_PARAMS: memOffset@0 in/out, memAperture@20, contigSegmentSize@40 */
static NV_STATUS ctl_phys_attr(struct nvctl *c)
{
	u64 *q = c->params;
	u32 *p = c->params;
	struct nvmem *m = c->obj->mem;

	if (q[0] >= m->size)
		return NV_ERR_INVALID_ARGUMENT;
	q[5] = m->page_size - (q[0] & (m->page_size - 1));
	q[0] += m->addr;
	p[2] = 0;
	p[3] = 0;
	p[4] = 0;
	p[5] = m->loc == NVLOC_FB ? 0 : 1;
	p[6] = 1;
	p[7] = 0;
	p[8] = 0;
	return NV_OK;
}

static NV_STATUS ctl_page_size(struct nvctl *c)
{
	*(u64 *)c->params = c->obj->mem->page_size;
	return NV_OK;
}

/* kfifoGetDeviceCaps() of kernel_fifo.c: push buffers in either memory, several address spaces in a group */
static NV_STATUS ctl_fifo_caps(struct nvctl *c)
{
	u8 *caps = c->params;

	caps[0] = 0x06;
	caps[1] = 0x20;
	return NV_OK;
}

#define DEV NVT_BIT(NVT_DEVICE)
#define SUB NVT_BIT(NVT_SUBDEVICE)
#define MEM NVT_BIT(NVT_MEMORY)

/* ctrl0080gpu.h, ctrl0080fifo.h, ctrl2080gpu.h, ctrl2080fb.h, ctrl2080perf.h, ctrl2080fifo.h, ctrl0041.h */
const struct nvctl_entry nvsim_ctrl_gpu[] = {
	{ 0x800201, 16, DEV, 0, ctl_classlist },
	{ 0x800280, 4, DEV, 0, ctl_num_subdevices },
	{ 0x800292, 644, DEV, 0, ctl_classlist_v2, .before = 550 },
	{ 0x800292, 700, DEV, 0, ctl_classlist_v2, .since = 550, .before = 555 },
	{ 0x800292, 404, DEV, 0, ctl_classlist_v2, .since = 555, .before = 580 },
	{ 0x800292, 804, DEV, 0, ctl_classlist_v2, .since = 580 },
	{ 0x80170d, 24, DEV, 0, ctl_channellist },
	{ 0x801713, 2, DEV, 0, ctl_fifo_caps },
	{ 0x20800102, 516, SUB, 0, ctl_gpu_info_v2, .before = 550 },
	{ 0x20800102, 524, SUB, 0, ctl_gpu_info_v2, .since = 550, .before = 580 },
	{ 0x20800102, 564, SUB, 0, ctl_gpu_info_v2, .since = 580 },
	{ 0x20800110, 132, SUB, 0, ctl_name, .before = 595 },
	{ 0x20800110, 68, SUB, 0, ctl_name, .since = 595 },	/* the name in ASCII only */
	{ 0x20800111, 64, SUB, 0, ctl_short_name },
	{ 0x20800123, 16, SUB, 0, ctl_engines },
	{ 0x2080014a, 268, SUB, 0, ctl_gid },
	{ 0x20800170, 252, SUB, 0, ctl_engines_v2, .before = 550 },
	{ 0x20800170, 260, SUB, 0, ctl_engines_v2, .since = 550, .before = 580 },
	{ 0x20800170, 340, SUB, 0, ctl_engines_v2, .since = 580 },
	{ 0x2080018d, 3812, SUB, 0, ctl_pids },
	{ 0x2080018e, 14408, SUB, 0, ctl_pid_info },
	{ 0x20801119, 516, SUB, NVCTL_PRIV, ctl_allocated_channels },
	{ 0x20801301, 16, SUB, 0, ctl_fb_info },
	{ 0x20801303, 436, SUB, 0, ctl_fb_info_v2, .before = 550 },
	{ 0x20801303, 444, SUB, 0, ctl_fb_info_v2, .since = 550, .before = 580 },
	{ 0x20801303, 1028, SUB, 0, ctl_fb_info_v2, .since = 580 },
	{ 0x20802096, 34000, SUB, 0, ctl_util_samples, .before = 550 },
	{ 0x20802096, 50704, SUB, 0, ctl_util_samples, .since = 550, .before = 580 },
	{ 0x20802096, 55888, SUB, 0, ctl_util_samples, .since = 580 },
	{ 0x410103, 48, MEM, NVCTL_PRIV, ctl_phys_attr },
	{ 0x410110, 16, MEM, 0, ctl_surface_info },
	{ 0x410118, 8, MEM, 0, ctl_page_size },
	{}
};

const struct nvctl_list nvsim_ctrl_lists[] = {
	{ 0x800201, 8, 8, 4, 256 },
	{ 0x80170d, 8, 16, 4, 4096 },
	{ 0x20800123, 8, 8, 4, 64 },
	{ 0x20801201, 8, 8, 8, 64 },
	{ 0x20801301, 8, 8, 8, FB_INFO_MAX },
	{ 0x20801802, 8, 8, 8, NVSIM_BUS_INFO_MAX },
	{ 0x410110, 8, 8, 8, 16 },
	{}
};
