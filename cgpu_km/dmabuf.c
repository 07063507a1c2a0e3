// SPDX-License-Identifier: MIT OR GPL-2.0
#include <linux/dma-buf.h>
#include <linux/file.h>
#include <linux/slab.h>

#include "calls.h"
#include "container.h"
#include "core/nv_abi.h"
#include "core_link.h"
#include "backfs.h"
#include "dmabuf.h"
#include "driver.h"
#include "interpose.h"
#include "rm_calls.h"

/* A dma-buf of the driver's with our release in its operations. */
struct carried {
	struct dma_buf_ops ops;
	const struct dma_buf_ops *driver;
	struct ckm_container *ct;	/* a reference */
	u32 count;
	struct cgpu_mem *mem[];		/* references, NULL: system memory */
};

static void put_carried(struct carried *c)
{
	u32 i;

	for (i = 0; i < c->count; i++)
		if (c->mem[i])
			ckm_tenant_put_mem(c->ct, c->mem[i]);
	ckm_container_put(c->ct);
	kfree(c);
}

static void release(struct dma_buf *buf)
{
	struct carried *c = container_of(buf->ops, struct carried, ops);

	ckm_container_moves_begin(c->ct);
	c->driver->release(buf);
	ckm_container_moves_end(c->ct);
	put_carried(c);		/* the last anyone asks of the operations */
}

void ckm_dmabuf_seen(struct ckm_call *call, struct dma_buf *buf)
{
	if (call->dmabuf_wanted && !call->dmabuf) {
		get_dma_buf(buf);
		call->dmabuf = buf;
	}
}

/* Only memory of the container's own clients; each is held in @obj while the
 * driver takes its references.
 */
static u32 hold_all(struct carried *c, u32 client, const u8 *handles, struct cgpu_obj **obj)
{
	u32 i, status = NV_OK;

	for (i = 0; status == NV_OK && i < c->count; i++)
		status = ckm_tenant_hold_memory(c->ct, client, get32(handles, i * 4), &obj[i],
						&c->mem[i]);
	return status;
}

/* No fd names it yet that was not given by the driver in this call, and we hold
 * it: nobody can have released it.
 */
static void follow(struct carried *c, struct dma_buf *buf)
{
	c->driver = buf->ops;
	c->ops = *buf->ops;
	c->ops.release = release;
	WRITE_ONCE(buf->ops, &c->ops);
}

u32 ckm_dmabuf_export(struct ckm_call *call, void *params, u32 (*export)(void *nv, void *params),
		      void *nv)
{
	u32 count = get32(params, NV_DMABUF_NUM), status = NV_ERR_RESOURCES, i;
	struct ckm_container *ct = call->back->ct;
	struct cgpu_obj **obj;
	struct carried *c;

	call->ran = true;
	/* More onto one that is there: its fd can be swapped while the driver looks. */
	if ((s32)get32(params, 0) != -1)
		return NV_ERR_NOT_SUPPORTED;
	if (!count || count > NV_DMABUF_MAX)
		return NV_ERR_ARGUMENT;
	obj = kcalloc(count, sizeof(*obj), GFP_KERNEL_ACCOUNT);
	c = kzalloc(struct_size(c, mem, count), GFP_KERNEL_ACCOUNT);
	if (!obj || !c)
		goto out;
	ckm_container_get(ct);
	c->ct = ct;
	c->count = count;
	status = hold_all(c, get32(params, NV_DMABUF_H_CLIENT),
			  params + ckm_driver_abi()->dmabuf_handles, obj);
	if (status == NV_OK) {
		call->dmabuf_wanted = true;
		status = export(nv, params);
		call->dmabuf_wanted = false;
	}
	if (status == NV_OK && call->dmabuf) {
		follow(c, call->dmabuf);
		c = NULL;
	} else if (status == NV_OK) {
		pr_err_ratelimited("container %s: a dma-buf was made unseen by the seal: its memory stays charged\n",
				   ct->dir);
		c = NULL;
	}
	if (call->dmabuf)
		fput(call->dmabuf->file);
	call->dmabuf = NULL;
	for (i = 0; i < count; i++)
		ckm_tenant_unhold(ct, obj[i]);
out:
	if (c && c->ct)
		put_carried(c);
	else
		kfree(c);
	kfree(obj);
	return status;
}
