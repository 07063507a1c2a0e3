// SPDX-License-Identifier: MIT OR GPL-2.0-only
/* Owns the charges of exported dma-bufs. Takes rm_lock. */
#include <linux/dma-buf.h>
#include <linux/file.h>
#include <linux/slab.h>

#include "call.h"
#include "core/nv_struct.h"
#include "driver/driver.h"
#include "driver/redirect.h"
#include "fields.h"
#include "intercept/backing_file.h"
#include "intercept/dmabuf.h"
#include "intercept/rm_call.h"
#include "state/container.h"
#include "state/gpu.h"
#include "state/rm_object.h"

enum { PROBE_EXPORT, PROBE_FD, PROBES };

static struct ckm_redirection redirections[PROBES];

/* A dma-buf of the driver, with our release in its operations. */
struct exported_buf {
	struct dma_buf_ops ops;
	const struct dma_buf_ops *driver;
	struct ckm_container *ct;	/* a reference */
	u32 count;
	struct cgpu_mem *mem[];		/* references; NULL: system memory */
};

static void put_exported_buf(struct exported_buf *c)
{
	u32 i;

	for (i = 0; i < c->count; i++)
		if (c->mem[i])
			ckm_obj_put_mem(c->ct, c->mem[i]);
	ckm_container_put(c->ct);
	kfree(c);
}

static void release(struct dma_buf *buf)
{
	struct exported_buf *c = container_of(buf->ops, struct exported_buf, ops);

	ckm_mem_ops_begin(c->ct);
	c->driver->release(buf);
	ckm_mem_ops_end(c->ct);
	put_exported_buf(c);	/* buf->ops is not used any more */
}

/* Pin each object in @obj while the driver takes its references. Only memory of the
 * container's own clients can be exported, and video memory by the file of its own GPU: the
 * buffer shows addresses of that GPU. Returns an RM status.
 */
static u32 hold_all(struct exported_buf *c, struct ckm_call *call, u32 client, const u8 *handles,
		    struct cgpu_obj **obj)
{
	const struct ckm_slot *slot = call->backing->slot;
	u32 i, status = NV_OK;

	for (i = 0; status == NV_OK && i < c->count; i++) {
		status = ckm_obj_pin_memory(c->ct, client, get32(handles, i * 4), &obj[i],
					    &c->mem[i]);
		if (status != NV_OK || obj[i]->kind != CGPU_KIND_VIDMEM ||
		    (slot && slot->gpu->index == obj[i]->gpu))
			continue;
		ckm_call_denied(call, "dma-buf of another GPU's memory, handle", obj[i]->hobject);
		status = NV_ERR_INVALID_OBJECT_PARENT;
	}
	return status;
}

/* At most the fd that the driver made in this call names the dma-buf yet, and call->dmabuf
 * is a reference: the old release cannot have run.
 */
static void hook_release(struct exported_buf *c, struct dma_buf *buf)
{
	c->driver = buf->ops;
	c->ops = *buf->ops;
	c->ops.release = release;
	WRITE_ONCE(buf->ops, &c->ops);
}

static void *original(struct ckm_call *call, u32 row)
{
	return ckm_redirect_original(call, &redirections[row]);
}

/* Replaces the driver's export. @params is the driver's copy of the struct (nv-ioctl.h,
 * nv_ioctl_export_to_dma_buf_fd_t).
 */
static u32 charged_dmabuf_export(void *nv, void *params)
{
	struct ckm_call *call = ckm_call_mine();
	u32 count = get32(params, AT(nv_export_dmabuf, numObjects)), status = NV_ERR_INSUFFICIENT_RESOURCES, i;
	struct ckm_container *ct = call->backing->ct;
	struct cgpu_obj **obj;
	struct exported_buf *c;

	call->ran = true;	/* in place of rm_ioctl(), which this call does not reach */
	/* Refuse to add to an existing dma-buf: its fd can be replaced before the
	 * driver looks it up.
	 */
	if ((s32)get32(params, 0) != -1)
		return NV_ERR_NOT_SUPPORTED;
	if (!count || count > NV_DMABUF_EXPORT_MAX_HANDLES)
		return NV_ERR_INVALID_ARGUMENT;
	obj = kcalloc(count, sizeof(*obj), GFP_KERNEL_ACCOUNT);
	c = kzalloc(struct_size(c, mem, count), GFP_KERNEL_ACCOUNT);
	if (!obj || !c)
		goto out;
	ckm_container_get(ct);
	c->ct = ct;
	c->count = count;
	status = hold_all(c, call, get32(params, AT(nv_export_dmabuf, hClient)),
			  params + ckm_driver_abi()->dmabuf_handles, obj);
	if (status == NV_OK) {
		call->dmabuf_wanted = true;
		status = ckm_call_original(ARG(nv), ARG(params), 0, 0, 0, 0,
					   original(call, PROBE_EXPORT));
		call->dmabuf_wanted = false;
	}
	/* Also where no fd could be made: the driver has the memory until the release, which the last
	 * fput() leaves to this task's return to user mode.
	 */
	if (call->dmabuf) {
		hook_release(c, call->dmabuf);
		c = NULL;
	} else if (status == NV_OK) {
		ckm_alarm(ct, "a dma-buf was made unseen by the redirection: its memory stays charged\n");
		c = NULL;
	}
	if (call->dmabuf)
		fput(call->dmabuf->file);
	call->dmabuf = NULL;
	for (i = 0; i < count; i++)
		ckm_obj_unpin(ct, obj[i]);
out:
	if (c && c->ct)
		put_exported_buf(c);
	else
		kfree(c);
	kfree(obj);
	return status;
}

/* The driver's export makes an fd for its new dma-buf: take a reference. In a handler;
 * never redirects.
 */
static bool dmabuf_seen(struct pt_regs *regs)
{
	struct dma_buf *buf = (void *)regs_get_kernel_argument(regs, 0);
	struct ckm_call *call = ckm_call_mine();

	if (call && call->dmabuf_wanted && !call->dmabuf) {
		get_dma_buf(buf);
		call->dmabuf = buf;
	}
	return false;
}

static struct ckm_redirection redirections[PROBES] = {
	[PROBE_EXPORT]	= { "nv_dma_buf_export", charged_dmabuf_export },
	[PROBE_FD]	= { "dma_buf_fd", NULL, dmabuf_seen },	/* of the kernel */
};

int ckm_dmabuf_attach(void)
{
	return ckm_redirect_attach(redirections, PROBES, CKM_NVIDIA, "no container can start");
}

void ckm_dmabuf_detach(void)
{
	ckm_redirect_detach(redirections);
}
