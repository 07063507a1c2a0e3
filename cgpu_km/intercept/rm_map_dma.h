/* SPDX-License-Identifier: MIT OR GPL-2.0-only */
/* RM_MAP_MEMORY_DMA and RM_UNMAP_MEMORY_DMA: mappings for the GPU. */
#ifndef CKM_RM_MAP_DMA_H
#define CKM_RM_MAP_DMA_H

struct ckm_rm_call;

/* Handlers: rm_call.h. */
long ckm_rm_run_map_dma(struct ckm_rm_call *rc);
long ckm_rm_run_unmap_dma(struct ckm_rm_call *rc);

#endif
