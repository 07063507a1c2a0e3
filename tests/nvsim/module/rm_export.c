// SPDX-License-Identifier: MIT OR GPL-2.0-only
/* Export of objects on control files and import from them (the kernel half of CUDA IPC): controls 0x3d05 to 0x3d0c. */
#include <linux/slab.h>

#include "nvsim.h"

#define EXPORT_MAX 512
#define IMPORT_MAX 128
#define OBJECT_TYPE_RM 1
#define NO_DEVICE 32

struct unix_object {
	u32 type, hDevice, hParent, hObject;
};

/* Prepares @fp to carry @max objects. */
static NV_STATUS carrier_init(struct nvclient *c, nv_file_private_t *fp, u32 hdevice, u16 max, const u8 *metadata)
{
	struct nvobj *dev = NULL;

	if (fp->handles)
		return NV_ERR_STATE_IN_USE;
	if (hdevice) {
		dev = nvsim_obj_find(c, hdevice);
		if (!dev)
			return NV_ERR_OBJECT_NOT_FOUND;
		if (dev->type != NVT_DEVICE)
			return NV_ERR_INVALID_PARAMETER;
	}
	fp->handles = kcalloc(max, sizeof(*fp->handles), GFP_KERNEL);
	if (!fp->handles)
		return NV_ERR_NO_MEMORY;
	fp->max_handles = max;
	fp->device_instance = dev ? dev->gpu->index : NO_DEVICE;
	if (metadata)
		memcpy(fp->metadata, metadata, sizeof(fp->metadata));
	return NV_OK;
}

static void slot_clear(struct nvexport *x)
{
	if (x->mem)
		nvmem_put(x->mem);
	x->mem = NULL;
}

static NV_STATUS slot_fill(struct nvclient *c, u32 hobject, struct nvexport *x)
{
	struct nvobj *o = nvsim_obj_find(c, hobject);

	if (!o)
		return NV_ERR_OBJECT_NOT_FOUND;
	if (o->type != NVT_MEMORY)
		return NV_ERR_NOT_SUPPORTED;
	x->mem = o->mem;
	x->cls = o->cls;
	nvmem_get(x->mem);
	return NV_OK;
}

void nvsim_export_drop(nv_file_private_t *nvfp)
{
	u32 i;

	for (i = 0; i < nvfp->max_handles; i++)
		slot_clear(&nvfp->handles[i]);
	kfree(nvfp->handles);
	nvfp->handles = NULL;
	nvfp->max_handles = 0;
}

/* 0x3d05 {object, fd@16, flags@20} */
static NV_STATUS ctl_export_object(struct nvctl *c)
{
	struct unix_object *u = c->params;
	s32 fd = ((s32 *)c->params)[4];
	u32 flags = ((u32 *)c->params)[5];
	struct nvexport x = {};
	nv_file_private_t *fp;
	NV_STATUS st;
	void *priv;

	if ((flags & 1) || u->type != OBJECT_TYPE_RM || fd == -1)
		return NV_ERR_INVALID_PARAMETER;
	st = slot_fill(c->client, u->hObject, &x);
	if (st != NV_OK)
		return st;
	fp = nv_get_file_private(fd, true, &priv);
	st = NV_ERR_INVALID_PARAMETER;
	if (fp) {
		st = carrier_init(c->client, fp, u->hDevice, 1, NULL);
		if (st == NV_OK)
			fp->handles[0] = x;
		nv_put_file_private(priv);
	}
	if (st != NV_OK)
		slot_clear(&x);
	return st;
}

/* 0x3d06 {fd, object@4} */
static NV_STATUS ctl_import_object(struct nvctl *c)
{
	struct unix_object *u = c->params + 4;
	s32 fd = *(s32 *)c->params;
	NV_STATUS st = NV_ERR_INVALID_PARAMETER;
	nv_file_private_t *fp;
	void *priv;

	if (u->type != OBJECT_TYPE_RM || fd == -1)
		return st;
	fp = nv_get_file_private(fd, true, &priv);
	if (!fp)
		return st;
	if (fp->handles && fp->handles[0].mem)
		st = nvsim_dup_mem(c->client, u->hParent, &u->hObject, fp->handles[0].mem, fp->handles[0].cls);
	nv_put_file_private(priv);
	return st;
}

/* 0x3d08 {fd, deviceInstance, gpuInstanceId, maxObjects u16, metadata@14} */
static NV_STATUS ctl_export_info(struct nvctl *c)
{
	u32 *p = c->params;
	nv_file_private_t *fp;
	void *priv;
	NV_STATUS st = NV_ERR_INVALID_PARAMETER;

	fp = nv_get_file_private(p[0], true, &priv);
	if (!fp)
		return st;
	if (fp->handles) {
		p[1] = fp->device_instance;
		if (nvsim_branch >= 550)	/* the number of the GPU's instance came between */
			p++[2] = 0xffffffff;
		*(u16 *)(p + 2) = fp->max_handles;
		memcpy((u16 *)(p + 2) + 1, fp->metadata, sizeof(fp->metadata));
		st = NV_OK;
	}
	nv_put_file_private(priv);
	return st;
}

/* 0x3d0a {hDevice, maxObjects@4 u16, metadata@6, fd@72} */
static NV_STATUS ctl_create_carrier(struct nvctl *c)
{
	u32 *p = c->params;
	u16 max = *(u16 *)(p + 1);
	nv_file_private_t *fp;
	NV_STATUS st;
	void *priv;

	if (!max)
		return NV_ERR_INVALID_PARAMETER;
	fp = nv_get_file_private(p[18], true, &priv);
	if (!fp)
		return NV_ERR_INVALID_PARAMETER;
	st = carrier_init(c->client, fp, p[0], max, c->params + 6);
	nv_put_file_private(priv);
	return st;
}

/* All of them or none. */
static NV_STATUS export_list(struct nvctl *c, nv_file_private_t *fp, const u32 *objects, u32 num, u32 index)
{
	struct nvexport *made = kcalloc(num, sizeof(*made), GFP_KERNEL);
	NV_STATUS st = NV_OK;
	u32 i;

	if (num && !made)
		return NV_ERR_NO_MEMORY;
	for (i = 0; i < num && st == NV_OK; i++) {
		if (!objects[i])
			continue;
		st = slot_fill(c->client, objects[i], &made[i]);
		if (st == NV_OK && made[i].mem->gpu->index != fp->device_instance)
			st = NV_ERR_INVALID_PARAMETER;
	}
	for (i = 0; i < num; i++) {
		if (st == NV_OK)
			swap(fp->handles[index + i], made[i]);
		slot_clear(&made[i]);
	}
	kfree(made);
	return st;
}

/* 0x3d0b {fd, hDevice, maxObjects@8 u16, metadata@10, objects@76[512], num@2124 u16, index@2126 u16} */
static NV_STATUS ctl_export_objects(struct nvctl *c)
{
	u32 *p = c->params;
	u16 *w = c->params;
	u32 num = w[1062], index = w[1063];
	nv_file_private_t *fp;
	NV_STATUS st = NV_OK;
	bool made = false;
	void *priv;

	fp = nv_get_file_private(p[0], true, &priv);
	if (!fp)
		return NV_ERR_INVALID_PARAMETER;
	if (!fp->handles) {
		st = w[4] ? carrier_init(c->client, fp, p[1], w[4], c->params + 10) : NV_ERR_INVALID_PARAMETER;
		made = st == NV_OK;
	}
	if (st == NV_OK && num > EXPORT_MAX)
		st = NV_ERR_INVALID_PARAMETER;
	if (st == NV_OK && num + index > fp->max_handles)
		st = NV_ERR_OUT_OF_RANGE;
	if (st == NV_OK)
		st = export_list(c, fp, p + 19, num, index);
	if (st != NV_OK && made)
		nvsim_export_drop(fp);
	nv_put_file_private(priv);
	return st;
}

static NV_STATUS import_list(struct nvctl *c, nv_file_private_t *fp, u32 hparent, u32 *objects, u8 *types, u32 num, u32 index)
{
	NV_STATUS st;
	u32 i;

	for (i = 0; i < num; i++) {
		struct nvexport *x = &fp->handles[index + i];

		types[i] = 0;
		if (!x->mem) {
			objects[i] = 0;
			continue;
		}
		st = nvsim_dup_mem(c->client, hparent, &objects[i], x->mem, x->cls);
		if (st != NV_OK)
			goto undo;
		types[i] = x->mem->loc == NVLOC_FB ? 1 : 2;
	}
	return NV_OK;

undo:
	while (i--)
		if (objects[i])
			nvsim_obj_free(nvsim_obj_find(c->client, objects[i]));
	return st;
}

/* 0x3d0c {fd, hParent, objects@8[128], types@520[128] u8, num@648 u16, index@650 u16} */
static NV_STATUS ctl_import_objects(struct nvctl *c)
{
	u32 *p = c->params;
	u16 *w = c->params;
	u32 num = w[324], index = w[325];
	nv_file_private_t *fp;
	NV_STATUS st;
	void *priv;

	fp = nv_get_file_private(p[0], true, &priv);
	if (!fp)
		return NV_ERR_INVALID_PARAMETER;
	if (!fp->handles || num > IMPORT_MAX)
		st = NV_ERR_INVALID_PARAMETER;
	else if (num + index > fp->max_handles)
		st = NV_ERR_OUT_OF_RANGE;
	else
		st = import_list(c, fp, p[1], p + 2, c->params + 520, num, index);
	nv_put_file_private(priv);
	return st;
}

#define CLIENT NVT_BIT(NVT_CLIENT)

/* ctrl0000unix.h */
const struct nvctl_entry nvsim_ctrl_export[] = {
	{ 0x3d05, 24, CLIENT, NVCTL_WRITE, ctl_export_object },
	{ 0x3d06, 20, CLIENT, NVCTL_WRITE, ctl_import_object },
	{ 0x3d08, 76, CLIENT, NVCTL_WRITE, ctl_export_info, .before = 550 },
	{ 0x3d08, 80, CLIENT, NVCTL_WRITE, ctl_export_info, .since = 550 },
	{ 0x3d0a, 76, CLIENT, NVCTL_WRITE, ctl_create_carrier },
	{ 0x3d0b, 2128, CLIENT, NVCTL_WRITE, ctl_export_objects },
	{ 0x3d0c, 652, CLIENT, NVCTL_WRITE, ctl_import_objects },
	{}
};
