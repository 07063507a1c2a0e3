/* SPDX-License-Identifier: MIT OR GPL-2.0-only */
/* Between the files of the simulated card. */
#ifndef GSP_CARD_H
#define GSP_CARD_H

#include "engine.h"
#include "rm.h"

/* The card of a GPU object of RM. */
struct gsp_card *gsp_card_of(struct OBJGPU *gpu);

/* control.c: RM's control that reached the GSP; the answer goes into @params. */
NV_STATUS gsp_control(struct gsp_card *card, NvHandle client, NvHandle object, NvU32 cmd,
		      void *params, NvU32 bytes);
/* space.c: the engine's questions to RM. */
extern const struct gsp_calls gsp_calls;
/* static_info.c: what the GSP knows about the card. */
void gsp_static_info(struct gsp_card *card, GspStaticConfigInfo *info);
void gsp_gid(struct gsp_card *card, NV2080_CTRL_GPU_GET_GID_INFO_PARAMS *p);
/* tables.c */
/* cl2080.h: what clients call the engines. */
enum { GSP_CLIENT_GR0 = 1, GSP_CLIENT_COPY0 = 9, GSP_CLIENT_NVDEC0 = 0x13, GSP_CLIENT_NVENC0 = 0x1b,
       GSP_CLIENT_NVJPG0 = 0x2b, GSP_CLIENT_OFA0 = 0x33 };
int gsp_has_video(const struct gsp_chip *chip, NvU32 client_type);
void gsp_device_table(struct gsp_card *card, NV2080_CTRL_FIFO_GET_DEVICE_INFO_TABLE_PARAMS *p);
void gsp_device_info(struct gsp_card *card, NV2080_CTRL_INTERNAL_GET_DEVICE_INFO_TABLE_PARAMS *p);
void gsp_falcons(struct gsp_card *card, NV2080_CTRL_GPU_GET_CONSTRUCTED_FALCON_INFO_PARAMS *p);
void gsp_engine_list(struct gsp_card *card, NV2080_CTRL_GPU_GET_ENGINES_V2_PARAMS *p);
void gsp_interrupt_table(NV2080_CTRL_INTERNAL_INTR_GET_KERNEL_TABLE_PARAMS *p);
/* queries.c */
void gsp_gpu_name(struct gsp_card *card, NV2080_CTRL_GPU_GET_NAME_STRING_PARAMS *p);
void gsp_gpu_short_name(struct gsp_card *card, NV2080_CTRL_GPU_GET_SHORT_NAME_STRING_PARAMS *p);
void gsp_gpu_info(NV2080_CTRL_GPU_GET_INFO_V2_PARAMS *p);
void gsp_fb_info(struct gsp_card *card, NV2080_CTRL_FB_GET_INFO_V2_PARAMS *p);
void gsp_copy_caps(struct gsp_card *card, NV2080_CTRL_CE_GET_CAPS_V2_PARAMS *p);
void gsp_all_copy_caps(struct gsp_card *card, NV2080_CTRL_CE_GET_ALL_CAPS_PARAMS *p);
void gsp_copy_mask(NV2080_CTRL_CE_GET_CE_PCE_MASK_PARAMS *p);
/* graphics.c */
void gsp_gr_info(struct gsp_card *card, NV2080_CTRL_INTERNAL_STATIC_GR_GET_INFO_PARAMS *p);
void gsp_gr_sms(struct gsp_card *card, NV2080_CTRL_INTERNAL_STATIC_GR_GET_GLOBAL_SM_ORDER_PARAMS *p);
void gsp_gr_masks(struct gsp_card *card,
		  NV2080_CTRL_INTERNAL_STATIC_GR_GET_FLOORSWEEPING_MASKS_PARAMS *p);
void gsp_gr_buffers(NV2080_CTRL_INTERNAL_STATIC_GR_GET_CONTEXT_BUFFERS_INFO_PARAMS *p);

#define GSP_ARRAY_SIZE(a) (sizeof(a) / sizeof((a)[0]))

#endif
