// SPDX-License-Identifier: MIT OR GPL-2.0-only
/*
 * The chips. Boot words: architecture, implementation and revision as NV_PMC_BOOT_0 and
 * NV_PMC_BOOT_42 of the public manuals (open-gpu-doc); PCI ids: pci.ids. Units and memory are
 * those of one product with the chip and do not change what RM decides.
 */
#include "chip.h"

const struct gsp_chip gsp_chips[] = {
	{
		.name = "TU104", .product = "Tesla T4",
		.boot_0 = 0x164000a1, .boot_42 = 0x164a1000,
		.device_id = 0x1eb810de, .subsystem_id = 0x12a210de,
		.mmu = GSP_MMU_V2, .fb_mib = 15360,
		.gpcs = 5, .tpcs_per_gpc = 4, .sm_version = 0x705, .copy_engines = 3,
		.warps_per_sm = 32, .cores_per_sm = 64, .tensors_per_sm = 8, .rts_per_sm = 1, .ram_type = 0x11,
		.graphics_khz = 1590000, .memory_khz = 5001000,
		.videos = GSP_NVDEC | GSP_NVENC,
		.channel_class = 0xc46f, .usermode_class = 0xc461,
		.compute_class = 0xc5c0, .copy_class = 0xc5b5,
	},
	{
		.name = "GA100", .product = "NVIDIA A100-SXM4-40GB",
		.boot_0 = 0x170000a1, .boot_42 = 0x170a1000,
		.device_id = 0x20b010de, .subsystem_id = 0x144e10de,
		.mmu = GSP_MMU_V2, .fb_mib = 40960,
		.gpcs = 7, .tpcs_per_gpc = 8, .sm_version = 0x800, .copy_engines = 4,
		.warps_per_sm = 64, .cores_per_sm = 64, .tensors_per_sm = 4, .rts_per_sm = 0, .ram_type = 0xf,
		.graphics_khz = 1410000, .memory_khz = 1215000,
		.videos = GSP_NVDEC | GSP_NVJPG | GSP_OFA,
		.channel_class = 0xc56f, .usermode_class = 0xc561,
		.compute_class = 0xc6c0, .copy_class = 0xc6b5,
	},
	{
		.name = "GA102", .product = "NVIDIA A10",
		.boot_0 = 0x172000a1, .boot_42 = 0x172a1000,
		.device_id = 0x223610de, .subsystem_id = 0x148210de,
		.mmu = GSP_MMU_V2, .fb_mib = 23040,
		.gpcs = 6, .tpcs_per_gpc = 6, .sm_version = 0x806, .copy_engines = 3,
		.warps_per_sm = 48, .cores_per_sm = 128, .tensors_per_sm = 4, .rts_per_sm = 1, .ram_type = 0x11,
		.graphics_khz = 1695000, .memory_khz = 6251000,
		.videos = GSP_NVDEC | GSP_NVENC | GSP_OFA,
		.channel_class = 0xc56f, .usermode_class = 0xc561,
		.compute_class = 0xc7c0, .copy_class = 0xc7b5,
	},
	{
		.name = "AD102", .product = "NVIDIA L40",
		.boot_0 = 0x192000a1, .boot_42 = 0x192a1000,
		.device_id = 0x26b510de, .subsystem_id = 0x169d10de,
		.mmu = GSP_MMU_V2, .fb_mib = 46080,
		.gpcs = 12, .tpcs_per_gpc = 6, .sm_version = 0x809, .copy_engines = 3,
		.warps_per_sm = 48, .cores_per_sm = 128, .tensors_per_sm = 4, .rts_per_sm = 1, .ram_type = 0x11,
		.graphics_khz = 2490000, .memory_khz = 9001000,
		.videos = GSP_NVDEC | GSP_NVENC | GSP_NVJPG | GSP_OFA,
		.channel_class = 0xc56f, .usermode_class = 0xc661,
		.compute_class = 0xc9c0, .copy_class = 0xc7b5,
	},
	{
		.name = "GH100", .product = "NVIDIA H100 80GB HBM3",
		.boot_0 = 0x180000a1, .boot_42 = 0x180a1000,
		.device_id = 0x233010de, .subsystem_id = 0x16c110de,
		.mmu = GSP_MMU_V3, .fb_mib = 81920,
		.gpcs = 8, .tpcs_per_gpc = 8, .sm_version = 0x900, .copy_engines = 4,
		.warps_per_sm = 64, .cores_per_sm = 128, .tensors_per_sm = 4, .rts_per_sm = 0, .ram_type = 0x14,
		.graphics_khz = 1980000, .memory_khz = 2619000,
		.videos = GSP_NVDEC | GSP_NVJPG | GSP_OFA,
		.channel_class = 0xc86f, .usermode_class = 0xc661,
		.compute_class = 0xcbc0, .copy_class = 0xc8b5,
	},
};

const unsigned int gsp_chips_nr = sizeof(gsp_chips) / sizeof(gsp_chips[0]);

static int same(const char *a, const char *b)
{
	while (*a && *a == *b) {
		a++;
		b++;
	}
	return *a == *b;
}

const struct gsp_chip *gsp_chip_by_name(const char *name)
{
	unsigned int i;

	for (i = 0; i < gsp_chips_nr; i++)
		if (same(gsp_chips[i].name, name))
			return &gsp_chips[i];
	return 0;
}

enum { PMC_BOOT_0 = 0x0, PMC_BOOT_42 = 0xa00 };

void gsp_card_reset(struct gsp_card *card)
{
	card->bar0_window = 0;
	card->gpu = 0;
	card->regs[PMC_BOOT_0 / 4] = card->chip->boot_0;
	card->regs[PMC_BOOT_42 / 4] = card->chip->boot_42;
}
