// SPDX-License-Identifier: MIT OR GPL-2.0-only
/* Second handles of objects, and the share policies that allow them to other clients. */
#include <linux/slab.h>

#include "nvsim.h"

static bool includes(const struct nvshare *s, const struct nvclient *src, const struct nvclient *dst)
{
	return s->all || s->client == dst->obj.handle || (s->user && uid_eq(src->euid, dst->euid)) ||
	       (s->process && src->tgid == dst->tgid);
}

/* The policy of the nearest object above, itself included, that has one of its own (rs_access_map.c, sharing.c). */
bool nvsim_obj_shared_with(const struct nvobj *o, const struct nvclient *dst)
{
	while (o && !o->share.set)
		o = o->parent;
	return o && includes(&o->share, o->client, dst);
}

static bool may_dup(const struct nvsec *sec, const struct nvclient *dst, const struct nvclient *src, const struct nvobj *o)
{
	return sec->kernel || dst == src || dst->tgid == src->tgid || nvsim_obj_shared_with(o, dst);
}

/* Only the right to dup is kept. Unless it composes, a policy replaces those before it (rs_access.h). */
NV_STATUS nvsim_obj_share(struct nvobj *o, u16 type, u8 action, u32 target, u32 mask)
{
	bool on = !(action & RS_SHARE_ACTION_FLAG_REVOKE);

	if (type >= RS_SHARE_TYPE_MAX)
		return NV_ERR_INVALID_ARGUMENT;
	if (!(action & RS_SHARE_ACTION_FLAG_COMPOSE))
		o->share = (struct nvshare) {};
	o->share.set = true;
	if (!(mask & BIT(RS_ACCESS_DUP_OBJECT)))
		return NV_OK;
	switch (type) {
	case RS_SHARE_TYPE_ALL:
		o->share.all = on;
		break;
	case RS_SHARE_TYPE_OS_SECURITY_TOKEN:
		o->share.user = on;
		break;
	case RS_SHARE_TYPE_CLIENT:
		o->share.client = on ? target : 0;
		break;
	case RS_SHARE_TYPE_PID:
		o->share.process = on;
		break;
	}
	return NV_OK;
}

/* A new handle for the same memory, VA space or channel group. */
static NV_STATUS dup_obj(struct nvclient *c, struct nvobj *parent, u32 *handle, struct nvobj *src)
{
	struct nvobj *o;
	NV_STATUS st;

	if (!(NVT_BIT(src->type) & (NVT_BIT(NVT_MEMORY) | NVT_BIT(NVT_VASPACE) | NVT_BIT(NVT_TSG))))
		return NV_ERR_INVALID_ARGUMENT;
	if (src->type == NVT_TSG && parent->type != NVT_DEVICE)
		return NV_ERR_INVALID_OBJECT_PARENT;
	/* Memory may be another GPU's (tests/rm/test_other_gpu.py): the handle is then the new device's. */
	if (src->type != NVT_MEMORY && nvsim_obj_device(parent) && src->gpu && parent->gpu != src->gpu)
		return NV_ERR_INVALID_DEVICE;
	o = kzalloc(sizeof(*o), GFP_KERNEL);
	if (!o)
		return NV_ERR_NO_MEMORY;
	INIT_LIST_HEAD(&o->children);
	INIT_LIST_HEAD(&o->dependants);
	o->cls = src->cls;
	o->type = src->type;
	o->gpu = nvsim_obj_device(parent) ? parent->gpu : src->gpu;
	st = nvsim_obj_add(c, parent, o, handle);
	if (st != NV_OK) {
		kfree(o);
		return st;
	}
	switch (o->type) {
	case NVT_MEMORY:
		o->mem = src->mem;
		o->doorbell_in_bar1 = src->doorbell_in_bar1;
		nvmem_get(o->mem);
		break;
	case NVT_TSG:
		o->tsg = src->tsg;
		nvsim_tsg_get(o->tsg);
		break;
	default:
		o->as = src->as;
		nvas_get(o->as);
	}
	return NV_OK;
}

NV_STATUS nvsim_dup_mem(struct nvclient *c, u32 hparent, u32 *handle, struct nvmem *mem, u32 cls)
{
	struct nvobj src = { .cls = cls, .type = NVT_MEMORY, .gpu = mem->gpu, .mem = mem };
	struct nvobj *parent = nvsim_obj_find(c, hparent);

	if (!parent)
		return NV_ERR_INVALID_OBJECT_PARENT;
	return dup_obj(c, parent, handle, &src);
}

void nvsim_op_dup(const struct nvsec *sec, struct nvos55 *p)
{
	struct nvclient *dst, *src;
	struct nvobj *parent, *o;

	if (nvsim_fault(NV_ESC_RM_DUP_OBJECT, &p->status) == NVSIM_FAULT_FAILS)
		return;
	down_write(&nvsim_api_lock);
	p->status = NV_OK;
	dst = nvsim_client_get(sec, p->hClient, &p->status);
	if (!dst)
		goto out;
	src = nvsim_client_find(p->hClientSrc);
	parent = nvsim_obj_find(dst, p->hParent);
	if (!src)
		p->status = NV_ERR_INVALID_OBJECT_HANDLE;
	else if (!parent)
		p->status = NV_ERR_OBJECT_NOT_FOUND;
	if (p->status != NV_OK)
		goto out;
	o = nvsim_obj_find(src, p->hObjectSrc);
	if (!o)
		p->status = NV_ERR_OBJECT_NOT_FOUND;
	else if (!may_dup(sec, dst, src, o))
		p->status = NV_ERR_INSUFFICIENT_PERMISSIONS;
	else
		p->status = dup_obj(dst, parent, &p->hObject, o);
out:
	up_write(&nvsim_api_lock);
}

void nvsim_op_share(const struct nvsec *sec, struct nvos57 *p)
{
	struct nvclient *c;
	struct nvobj *o;

	down_write(&nvsim_api_lock);
	p->status = NV_OK;
	c = nvsim_client_get(sec, p->hClient, &p->status);
	o = c ? nvsim_obj_find(c, p->hObject) : NULL;
	if (o)
		p->status = nvsim_obj_share(o, p->sharePolicy.type, p->sharePolicy.action, p->sharePolicy.target,
					    p->sharePolicy.accessMask);
	else if (c)
		p->status = NV_ERR_OBJECT_NOT_FOUND;
	up_write(&nvsim_api_lock);
}
