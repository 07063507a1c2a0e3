/* SPDX-License-Identifier: MIT OR GPL-2.0 */
/* The chips that the simulated card can be. */
#ifndef GSP_CHIP_H
#define GSP_CHIP_H

#include "host.h"

/*
 * Page tables: version 2 since Pascal, version 3 since Hopper (open-gpu-doc: pascal/gp100-mmu-
 * format).
 */
enum gsp_mmu { GSP_MMU_V2, GSP_MMU_V3 };

struct gsp_chip {
	const char *name;		/* of the chip: TU104 */
	const char *product;		/* NVML's name of a card with it */
	gsp_u32 boot_0, boot_42;	/* NV_PMC_BOOT_0, NV_PMC_BOOT_42 */
	gsp_u32 device_id, subsystem_id; /* PCI: device << 16 | vendor */
	enum gsp_mmu mmu;
	gsp_u32 fb_mib;			/* of the product */
	gsp_u32 gpcs, tpcs_per_gpc, sm_version;
	gsp_u32 copy_engines;
	/* classes, as GPU_GET_CLASSLIST_V2 names them */
	gsp_u32 channel_class, usermode_class, compute_class, copy_class;
};

extern const struct gsp_chip gsp_chips[];
extern const unsigned int gsp_chips_nr;

#endif
