// SPDX-License-Identifier: MIT OR GPL-2.0-only
/*
 * Memory as a dma-buf (nv-dmabuf.c): it lives as long as the dma-buf, accepts no attachment and is
 * made in one call.
 */
#include <linux/delay.h>
#include <linux/dma-buf.h>
#include <linux/module.h>
#include <linux/slab.h>

#include "nvsim.h"

NVSIM_IMPORT_DMA_BUF;

struct exported {
	u32 count;
	struct nvmem *mem[];
};

static struct sg_table *exported_map(struct dma_buf_attachment *a, enum dma_data_direction dir)
{
	return ERR_PTR(-EOPNOTSUPP);
}

static void exported_unmap(struct dma_buf_attachment *a, struct sg_table *t, enum dma_data_direction dir)
{
}

static void put_exported(struct exported *e)
{
	u32 i;

	for (i = 0; i < e->count; i++)
		nvmem_put(e->mem[i]);
	kfree(e);
}

static void exported_release(struct dma_buf *buf)
{
	if (nvsim.close_ms > 0)
		msleep(nvsim.close_ms);
	put_exported(buf->priv);
}

static const struct dma_buf_ops exported_ops = {
	.map_dma_buf = exported_map,
	.unmap_dma_buf = exported_unmap,
	.release = exported_release,
};

static NV_STATUS take(struct exported *e, nv_state_t *nv, const struct nv_export_dmabuf *p)
{
	NV_STATUS st = NV_OK;
	struct nvclient *c;
	struct nvobj *o;

	down_read(&nvsim_api_lock);
	c = nvsim_client_find(p->hClient);
	if (!c)
		st = NV_ERR_INVALID_CLIENT;
	while (st == NV_OK && e->count < p->numObjects) {
		o = nvsim_obj_find_type(c, p->handles[e->count], NVT_BIT(NVT_MEMORY));
		if (!o || o->mem->gpu != nv->gpu) {
			st = NV_ERR_OBJECT_NOT_FOUND;
		} else {
			nvmem_get(o->mem);
			e->mem[e->count++] = o->mem;
		}
	}
	up_read(&nvsim_api_lock);
	return st;
}

static NV_STATUS give_fd(struct exported *e, struct nv_export_dmabuf *p)
{
	DEFINE_DMA_BUF_EXPORT_INFO(info);
	struct dma_buf *buf;

	info.ops = &exported_ops;
	info.size = p->totalSize;
	info.flags = O_RDWR | O_CLOEXEC;
	info.priv = e;
	buf = dma_buf_export(&info);
	if (IS_ERR(buf)) {
		put_exported(e);
		return NV_ERR_OPERATING_SYSTEM;
	}
	p->fd = dma_buf_fd(buf, O_RDWR | O_CLOEXEC);
	if (p->fd >= 0)
		return NV_OK;
	dma_buf_put(buf);
	return NV_ERR_OPERATING_SYSTEM;
}

noinline NV_STATUS nv_dma_buf_export(nv_state_t *nv, struct nv_export_dmabuf *p)
{
	struct exported *e;
	NV_STATUS st;

	if (!p->totalSize || offset_in_page(p->totalSize) || !p->numObjects || p->numObjects > ARRAY_SIZE(p->handles) ||
	    p->numObjects != p->totalObjects || p->index || p->fd != -1)
		return NV_ERR_INVALID_ARGUMENT;
	e = kzalloc(struct_size(e, mem, p->numObjects), GFP_KERNEL);
	if (!e)
		return NV_ERR_NO_MEMORY;
	st = take(e, nv, p);
	if (st == NV_OK)
		return give_fd(e, p);
	put_exported(e);
	return st;
}
