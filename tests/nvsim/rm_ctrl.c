// SPDX-License-Identifier: MIT OR GPL-2.0
/* RM_CONTROL: who may call what, and the controls of the client object. */
#include <linux/capability.h>
#include <linux/sizes.h>
#include <linux/slab.h>

#include "nvsim.h"

#define PARAMS_MAX SZ_64K
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

static NV_STATUS ctl_probed_ids(struct nvctl *c)
{
	u32 *p = c->params;

	memset(p, 0xff, GPUS_MAX * 8);
	memset(p + 2 * GPUS_MAX, 0, GPUS_MAX * 4);
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

/* Layout of both versions up to szName; @rest is what follows it. */
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
	char s[64] = NVSIM_VERSION_STRING;
	NV_STATUS st = NV_OK;
	u32 n = min_t(u32, p[0], sizeof(s)), i;

	for (i = 1; i <= 3 && st == NV_OK && n; i++)
		if (ptr[i])
			st = nvsim_param_out(c->sec, ptr[i], s, n);
	p[0] = sizeof(NVSIM_VERSION_STRING);
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

/* {hObject, policy{target, mask, type u16, action u8}} */
static NV_STATUS ctl_share_object(struct nvctl *c)
{
	u32 *p = c->params;
	struct nvobj *o = nvsim_obj_find(c->client, p[0]);
	u16 type = p[3];
	bool revoke = (p[3] >> 16) & RS_SHARE_ACTION_REVOKE;

	if (!o)
		return NV_ERR_OBJECT_NOT_FOUND;
	if (type == RS_SHARE_TYPE_ALL)
		o->share_all = !revoke;
	else if (type == RS_SHARE_TYPE_CLIENT)
		o->share_client = revoke ? 0 : p[1];
	return NV_OK;
}

#define CLIENT NVT_BIT(NVT_CLIENT)

/* ctrl0000gpu.h, ctrl0000system.h, ctrl0000client.h */
static const struct nvctl_entry ctrl_root[] = {
	{ 0x101, 40, CLIENT, 0, ctl_build_version, after_build_version },
	{ 0x201, 128, CLIENT, 0, ctl_attached_ids },
	{ 0x202, 40, CLIENT, 0, ctl_id_info, after_id_info },
	{ 0x203, 8, CLIENT, 0, ctl_init_status },
	{ 0x204, 4, CLIENT, 0, ctl_device_ids },
	{ 0x205, 32, CLIENT, 0, ctl_id_info_v2 },
	{ 0x214, 384, CLIENT, 0, ctl_probed_ids },
	{ 0x215, 132, CLIENT, 0, ctl_attach_ids },
	{ 0x216, 128, CLIENT, 0, ctl_detach_ids },
	{ 0x21b, 12, CLIENT, 0, ctl_pci_info },
	{ 0x274, 272, CLIENT, 0, ctl_uuid_info },
	{ 0x275, 268, CLIENT, 0, ctl_uuid_from_id },
	{ 0xd01, 12, CLIENT, 0, ctl_addr_space_type },
	{ 0xd02, 16, CLIENT, 0, ctl_handle_info },
	{ 0xd04, 16, CLIENT, NVCTL_WRITE, ctl_share_object },
	{}
};

static const struct nvctl_entry *find_entry(u32 cmd)
{
	static const struct nvctl_entry *const tables[] = {
		ctrl_root, nvsim_ctrl_gpu, nvsim_ctrl_info, nvsim_ctrl_sched, nvsim_ctrl_export,
	};
	const struct nvctl_entry *e;
	size_t i;

	for (i = 0; i < ARRAY_SIZE(tables); i++)
		for (e = tables[i]; e->fn; e++)
			if (e->cmd == cmd)
				return e;
	return NULL;
}

static bool size_fits(const struct nvctl_entry *e, u32 size)
{
	return e->size >= 0 ? size == e->size : size <= -e->size;
}

static NV_STATUS check_rights(const struct nvsec *sec, const struct nvctl_entry *e)
{
	if (sec->kernel)
		return NV_OK;
	if (e->flags & NVCTL_KERNEL)
		return NV_ERR_INSUFFICIENT_PERMISSIONS;
	if ((e->flags & NVCTL_PRIV) && !sec->admin)
		return NV_ERR_INSUFFICIENT_PERMISSIONS;
	if ((e->flags & NVCTL_NICE) && !sec->admin && !capable(CAP_SYS_NICE))
		return NV_ERR_INSUFFICIENT_PERMISSIONS;
	return NV_OK;
}

static NV_STATUS call(struct nvctl *c, const struct nvctl_entry *e, const struct nvos54 *p)
{
	NV_STATUS st = NV_OK;

	c->client = nvsim_client_get(c->sec, p->hClient, &st);
	if (!c->client)
		return st;
	c->obj = nvsim_obj_find(c->client, p->hObject);
	if (!c->obj)
		return NV_ERR_OBJECT_NOT_FOUND;
	if (!e || !(e->types & NVT_BIT(c->obj->type)))
		return NV_ERR_NOT_SUPPORTED;
	if (!size_fits(e, p->paramsSize))
		return NV_ERR_INVALID_PARAM_STRUCT;
	st = check_rights(c->sec, e);
	return st == NV_OK ? e->fn(c) : st;
}

static void locked_call(struct nvctl *c, const struct nvctl_entry *e, struct nvos54 *p)
{
	if (e && (e->flags & NVCTL_WRITE)) {
		down_write(&nvsim_api_lock);
		p->status = call(c, e, p);
		up_write(&nvsim_api_lock);
	} else {
		down_read(&nvsim_api_lock);
		p->status = call(c, e, p);
		up_read(&nvsim_api_lock);
	}
}

static const struct nvctl_list *find_list(u32 cmd)
{
	const struct nvctl_list *l;

	for (l = nvsim_ctrl_lists; l->cmd; l++)
		if (l->cmd == cmd)
			return l;
	return NULL;
}

static NV_STATUS list_in(struct nvctl *c, const struct nvctl_list *l)
{
	u64 ptr = *(u64 *)(c->params + l->ptr);

	c->count = *(u32 *)c->params;
	if (c->count > l->max)
		return NV_ERR_INVALID_ARGUMENT;
	c->list = kvzalloc(max(l->max * l->elem, 8u), GFP_KERNEL);
	if (!c->list)
		return NV_ERR_NO_MEMORY;
	return ptr && c->count ? nvsim_param_in(c->sec, c->list, ptr, c->count * l->elem) : NV_OK;
}

static NV_STATUS list_out(struct nvctl *c, const struct nvctl_list *l, u64 ptr)
{
	return ptr && c->count ? nvsim_param_out(c->sec, ptr, c->list, c->count * l->elem) : NV_OK;
}

/* With everything copied in: the call, and everything copied out. */
static void control_copied(struct nvctl *c, const struct nvctl_entry *e, struct nvos54 *p)
{
	const struct nvctl_list *l = find_list(e->cmd);
	u64 out = l ? *(u64 *)(c->params + l->out) : 0;

	if (l)
		p->status = list_in(c, l);
	if (p->status == NV_OK)
		locked_call(c, e, p);
	if (p->status == NV_OK && e->after)
		p->status = e->after(c);
	if (p->status == NV_OK && l)
		p->status = list_out(c, l, out);
	if (p->status == NV_OK)
		p->status = nvsim_param_out(c->sec, p->params, c->params, p->paramsSize);
	kvfree(c->list);
}

void nvsim_op_control(const struct nvsec *sec, struct nvos54 *p)
{
	const struct nvctl_entry *e = find_entry(p->cmd);
	struct nvctl c = { .sec = sec, .cmd = p->cmd, .size = p->paramsSize };

	if (!e || !size_fits(e, p->paramsSize)) {
		locked_call(&c, e, p);		/* fails, with the reason that comes first */
		return;
	}
	p->status = NV_ERR_INVALID_ARGUMENT;
	if (!p->params || !p->paramsSize || p->paramsSize > PARAMS_MAX)
		return;
	c.params = kvzalloc(p->paramsSize, GFP_KERNEL);
	if (!c.params) {
		p->status = NV_ERR_NO_MEMORY;
		return;
	}
	p->status = nvsim_param_in(sec, c.params, p->params, p->paramsSize);
	if (p->status == NV_OK)
		control_copied(&c, e, p);
	kvfree(c.params);
}
