/* SPDX-License-Identifier: MIT OR GPL-2.0-only */
/* The chips that the simulated card can be. */
#ifndef GSP_CHIP_H
#define GSP_CHIP_H

#include "host.h"

/*
 * Page tables: version 2 since Pascal, version 3 since Hopper (open-gpu-doc: pascal/gp100-mmu-
 * format).
 */
enum gsp_mmu { GSP_MMU_V2, GSP_MMU_V3 };

#define GSP_GRCES 2

/* Video engines of a chip, one of a kind: bits of gsp_chip.videos. */
enum { GSP_NVDEC = 1, GSP_NVENC = 2, GSP_NVJPG = 4, GSP_OFA = 8 };

/* Of any product: nothing depends on them. */
#define GSP_FB_BUS_BITS 256
#define GSP_FBPS 8
#define GSP_L2_BYTES (4u << 20)
#define GSP_LTCS 8
#define GSP_SLICES_PER_LTC 4
#define GSP_SMS_PER_TPC 2

struct gsp_chip {
	const char *name;		/* of the chip: TU104 */
	const char *product;		/* NVML's name of a card with it */
	gsp_u32 boot_0, boot_42;	/* NV_PMC_BOOT_0, NV_PMC_BOOT_42 */
	gsp_u32 device_id, subsystem_id; /* PCI: device << 16 | vendor */
	enum gsp_mmu mmu;
	gsp_u32 fb_mib;			/* of the product */
	gsp_u32 gpcs, tpcs_per_gpc, sm_version;
	/* of each SM: what libcuda takes its limits from */
	gsp_u32 warps_per_sm, cores_per_sm, tensors_per_sm, rts_per_sm;
	gsp_u32 graphics_khz, memory_khz;
	gsp_u32 ram_type;		/* NV2080_CTRL_FB_INFO_RAM_TYPE_* */
	gsp_u32 copy_engines;		/* with a runlist each; GSP_GRCES more share the one of graphics */
	gsp_u32 videos;			/* with a runlist each: those that RM's list of the chip's classes has */
	/* classes, as GPU_GET_CLASSLIST_V2 names them */
	gsp_u32 channel_class, usermode_class, compute_class, copy_class;
};

/* Copy engines, NV2080_ENGINE_TYPE_COPY0 and up; those that share a runlist are the last. */
static inline gsp_u32 gsp_copies(const struct gsp_chip *chip)
{
	return chip->copy_engines + GSP_GRCES;
}

extern const struct gsp_chip gsp_chips[];
extern const unsigned int gsp_chips_nr;

#endif
