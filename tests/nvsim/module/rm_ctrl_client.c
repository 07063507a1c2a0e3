// SPDX-License-Identifier: MIT OR GPL-2.0-only
/* Controls of the client object. */
#include <linux/slab.h>

#include "nvsim.h"

#define GPUS_MAX 32

static bool exists(u32 id)
{
	return nvsim_gpu_by_id(id);
}

static void list_gpus(u32 *ids)
{
	int i;

	for (i = 0; i < GPUS_MAX; i++)
		ids[i] = i < nvsim.gpus ? nvsim_gpu[i]->gpu_id : 0xffffffff;
}

static NV_STATUS ctl_attached_ids(struct nvctl *c)
{
	list_gpus(c->params);
	return NV_OK;
}

/* {gpuIds[32], excludedGpuIds[32]}, and from 580 on GPUs that may be attached later */
static NV_STATUS ctl_probed_ids(struct nvctl *c)
{
	u32 *p = c->params;

	memset(p, 0, c->size);
	memset(p, 0xff, GPUS_MAX * 8);
	list_gpus(p);
	return NV_OK;
}

static NV_STATUS ctl_attach_ids(struct nvctl *c)
{
	u32 *p = c->params, i;

	p[GPUS_MAX] = 0xffffffff;
	if (p[0] == 0xffff)		/* all probed */
		return NV_OK;
	for (i = 0; i < GPUS_MAX && p[i] != 0xffffffff; i++) {
		if (!exists(p[i])) {
			p[GPUS_MAX] = p[i];
			return NV_ERR_INVALID_ARGUMENT;
		}
	}
	return NV_OK;
}

static NV_STATUS ctl_detach_ids(struct nvctl *c)
{
	return NV_OK;
}

/* Layout of both versions up to szName; @rest is the part behind it. */
static NV_STATUS id_info(u32 *p, u32 *rest)
{
	struct nvgpu *gpu = nvsim_gpu_by_id(p[0]);

	if (!gpu)
		return NV_ERR_INVALID_ARGUMENT;
	p[1] = 0;			/* gpuFlags */
	p[2] = gpu->index;		/* deviceInstance */
	p[3] = 0;			/* subDeviceInstance */
	rest[0] = 0;			/* sliStatus */
	rest[1] = gpu->gpu_id;		/* boardId */
	rest[2] = gpu->index;		/* gpuInstance */
	rest[3] = 0xffffffff;		/* numaId */
	return NV_OK;
}

static NV_STATUS ctl_id_info(struct nvctl *c)
{
	u32 *p = c->params;

	return id_info(p, p + 6);
}

static NV_STATUS after_id_info(struct nvctl *c)
{
	struct nvgpu *gpu = nvsim_gpu_by_id(*(u32 *)c->params);
	u64 name = ((u64 *)c->params)[2];

	return name && gpu ? nvsim_param_out(c->sec, name, gpu->name, sizeof(gpu->name)) : NV_OK;
}

static NV_STATUS ctl_id_info_v2(struct nvctl *c)
{
	u32 *p = c->params;

	return id_info(p, p + 4);
}

static NV_STATUS ctl_init_status(struct nvctl *c)
{
	u32 *p = c->params;

	p[1] = NV_OK;
	return exists(p[0]) ? NV_OK : NV_ERR_INVALID_ARGUMENT;
}

static NV_STATUS ctl_device_ids(struct nvctl *c)
{
	*(u32 *)c->params = (1u << nvsim.gpus) - 1;
	return NV_OK;
}

static NV_STATUS ctl_pci_info(struct nvctl *c)
{
	u32 *p = c->params;
	u16 *w = c->params;
	struct nvgpu *gpu = nvsim_gpu_by_id(p[0]);

	if (!gpu)
		return NV_ERR_INVALID_ARGUMENT;
	p[1] = 0;
	w[4] = gpu->bus;
	w[5] = 0;
	return NV_OK;
}

static NV_STATUS ctl_uuid_from_id(struct nvctl *c)
{
	u32 *p = c->params;
	struct nvgpu *gpu = nvsim_gpu_by_id(p[0]);
	char *out = (char *)(p + 2);

	if (!gpu)
		return NV_ERR_INVALID_ARGUMENT;
	memset(out, 0, 256);
	if ((p[1] & 3) == 2) {
		memcpy(out, gpu->uuid, 16);
		p[66] = 16;
	} else {
		nvsim_uuid_string(gpu, out);
		p[66] = strlen(out) + 1;
	}
	return NV_OK;
}

static NV_STATUS ctl_uuid_info(struct nvctl *c)
{
	u32 *p = c->params;
	struct nvgpu *gpu = NULL;
	char s[48];
	int i;

	for (i = 0; i < nvsim.gpus && !gpu; i++) {
		nvsim_uuid_string(nvsim_gpu[i], s);
		if ((p[64] & 3) == 2 ? !memcmp(p, nvsim_gpu[i]->uuid, 16) : !strncmp(c->params, s, sizeof(s)))
			gpu = nvsim_gpu[i];
	}
	if (!gpu)
		return NV_ERR_GPU_UUID_NOT_FOUND;
	p[65] = gpu->gpu_id;
	p[66] = gpu->index;
	p[67] = 0;
	return NV_OK;
}

static NV_STATUS ctl_build_version(struct nvctl *c)
{
	return NV_OK;
}

/* {sizeOfStrings, pDriverVersionBuffer@8, pVersionBuffer@16, pTitleBuffer@24, changelist@32, official@36} */
static NV_STATUS after_build_version(struct nvctl *c)
{
	u32 *p = c->params;
	u64 *ptr = c->params;
	char s[64] = {};
	NV_STATUS st = NV_OK;
	u32 n = min_t(u32, p[0], sizeof(s)), i;

	strscpy(s, nvsim_release(), sizeof(s));
	for (i = 1; i <= 3 && st == NV_OK && n; i++)
		if (ptr[i])
			st = nvsim_param_out(c->sec, ptr[i], s, n);
	p[0] = strlen(s) + 1;
	p[8] = 0;
	p[9] = 0;
	return st;
}

static NV_STATUS ctl_addr_space_type(struct nvctl *c)
{
	u32 *p = c->params;
	struct nvobj *o = nvsim_obj_find_type(c->client, p[0], NVT_BIT(NVT_MEMORY));

	if (!o)
		return NV_ERR_OBJECT_NOT_FOUND;
	switch (o->mem->loc) {
	case NVLOC_FB:
		p[2] = 2;
		break;
	case NVLOC_USERMODE:
		p[2] = 3;
		break;
	default:
		p[2] = 1;
	}
	return NV_OK;
}

static NV_STATUS ctl_handle_info(struct nvctl *c)
{
	u32 *p = c->params;
	struct nvobj *o = nvsim_obj_find(c->client, p[0]);

	if (!o)
		return NV_ERR_OBJECT_NOT_FOUND;
	if (p[1] != 1 && p[1] != 2)
		return NV_ERR_INVALID_ARGUMENT;
	*(u64 *)(p + 2) = p[1] == 1 ? (o->parent ? o->parent->handle : 0) : o->cls;
	return NV_OK;
}

/* RS_SHARE_POLICY {target, mask, type u16, action u8} for @o */
static NV_STATUS share(struct nvobj *o, const u32 *policy)
{
	return o ? nvsim_obj_share(o, policy[2], policy[2] >> 16, policy[0], policy[1]) : NV_ERR_OBJECT_NOT_FOUND;
}

/* The policy of the client object, which its objects inherit. */
static NV_STATUS ctl_share_client(struct nvctl *c)
{
	return share(&c->client->obj, c->params);
}

/* {hObject, policy} */
static NV_STATUS ctl_share_object(struct nvctl *c)
{
	u32 *p = c->params;

	return share(nvsim_obj_find(c->client, p[0]), p + 1);
}

#define CLIENT NVT_BIT(NVT_CLIENT)

/* ctrl0000gpu.h, ctrl0000system.h, ctrl0000client.h */
const struct nvctl_entry nvsim_ctrl_client[] = {
	{ 0x101, 40, CLIENT, 0, ctl_build_version, after_build_version },
	{ 0x201, 128, CLIENT, 0, ctl_attached_ids },
	{ 0x202, 40, CLIENT, 0, ctl_id_info, after_id_info },
	{ 0x203, 8, CLIENT, 0, ctl_init_status },
	{ 0x204, 4, CLIENT, 0, ctl_device_ids },
	{ 0x205, 32, CLIENT, 0, ctl_id_info_v2 },
	{ 0x214, 256, CLIENT, 0, ctl_probed_ids, .before = 580 },
	{ 0x214, 384, CLIENT, 0, ctl_probed_ids, .since = 580 },
	{ 0x215, 132, CLIENT, 0, ctl_attach_ids },
	{ 0x216, 128, CLIENT, 0, ctl_detach_ids },
	{ 0x21b, 12, CLIENT, 0, ctl_pci_info },
	{ 0x274, 272, CLIENT, 0, ctl_uuid_info },
	{ 0x275, 268, CLIENT, 0, ctl_uuid_from_id },
	{ 0xd01, 12, CLIENT, 0, ctl_addr_space_type },
	{ 0xd02, 16, CLIENT, 0, ctl_handle_info },
	{ 0xd04, 12, CLIENT, NVCTL_WRITE, ctl_share_client },
	{ 0xd06, 16, CLIENT, NVCTL_WRITE, ctl_share_object },
	{}
};
