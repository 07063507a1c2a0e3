/* SPDX-License-Identifier: MIT OR GPL-2.0 */
/* Memory given away as a dma-buf keeps its charge until the dma-buf is gone. */
#ifndef CKM_DMABUF_H
#define CKM_DMABUF_H

#include <linux/types.h>

struct ckm_call;
struct dma_buf;

/* In place of the driver's export: @params is its own copy of the struct (nv-ioctl.h,
 * nv_ioctl_export_to_dma_buf_fd_t), @export runs the driver's. Returns the status.
 */
u32 ckm_dmabuf_export(struct ckm_call *call, void *params, u32 (*export)(void *nv, void *params),
		      void *nv);

/* The driver is about to give @buf an fd. Probe context. */
void ckm_dmabuf_seen(struct ckm_call *call, struct dma_buf *buf);

#endif
