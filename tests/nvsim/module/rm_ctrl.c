// SPDX-License-Identifier: MIT OR GPL-2.0-only
/* RM_CONTROL: look-up of the row, and the rights of the caller. */
#include <linux/capability.h>
#include <linux/sizes.h>
#include <linux/slab.h>

#include "nvsim.h"

#define PARAMS_MAX SZ_64K

static const struct nvctl_entry *find_entry(u32 cmd)
{
	static const struct nvctl_entry *const tables[] = {
		nvsim_ctrl_client, nvsim_ctrl_gpu, nvsim_ctrl_info, nvsim_ctrl_gr, nvsim_ctrl_bus, nvsim_ctrl_peers,
		nvsim_ctrl_smi, nvsim_ctrl_clock, nvsim_ctrl_sched, nvsim_ctrl_export,
	};
	const struct nvctl_entry *e;
	size_t i;

	for (i = 0; i < ARRAY_SIZE(tables); i++)
		for (e = tables[i]; e->fn; e++)
			if (e->cmd == cmd && nvsim_in_branch(e->since, e->before))
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
		return NV_ERR_INVALID_ARGUMENT;
	st = check_rights(c->sec, e);
	return st == NV_OK ? e->fn(c) : st;
}

/* The log shows whether the gap is nvsim's or its caller's. */
static void log_refusal(const struct nvctl_entry *e, const struct nvos54 *p)
{
	if (e)
		pr_info_ratelimited("control %#x has %d bytes here, %u are given\n", p->cmd,
				    e->size, p->paramsSize);
	else
		pr_info_ratelimited("control %#x of %u bytes is unknown\n", p->cmd,
				    p->paramsSize);
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
	if (c->ones) {
		memset(c->params, 0xff, p->paramsSize);
		if (l)
			memset(c->list, 0xff, c->count * l->elem);
	}
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
	enum nvsim_fault fault = nvsim_fault(p->cmd, &p->status);

	if (fault == NVSIM_FAULT_FAILS)
		return;
	c.ones = fault == NVSIM_FAULT_ONES;
	if (!e || !size_fits(e, p->paramsSize)) {
		locked_call(&c, e, p);		/* fails, with the reason that comes first */
		log_refusal(e, p);
		return;
	}
	if (!e->size) {
		locked_call(&c, e, p);
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
