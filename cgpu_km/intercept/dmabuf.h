/* SPDX-License-Identifier: MIT OR GPL-2.0-only */
/*
 * Exported dma-bufs: the memory stays charged until the dma-buf is released.
 *
 *   nv_dma_buf_export              takes a reference to each charge of the exported memory
 *   dma_buf_fd                     of the kernel: shows which dma-buf the export made
 */
#ifndef CKM_DMABUF_H
#define CKM_DMABUF_H

/* Redirect them. 0, or an error with the symbol in the log. Detach is a no-op if they are
 * not redirected. Caller holds ckm_lock.
 */
int ckm_dmabuf_attach(void);
void ckm_dmabuf_detach(void);

#endif
