// SPDX-License-Identifier: MIT OR GPL-2.0-only
/*
 * The chips of the profiles: class numbers, shape and identity. Class lists: g_gpu_class_list.c of
 * the public driver (535.261.03 to 580.105.08 have the same classes but one). Indices:
 * ctrl0080gr.h. Values without a public source are assumed, and marked so in docs/develop/nvsim.md.
 */
#include <linux/string.h>

#include "nvsim.h"

#define VOLTA_USERMODE_A 0xc361
#define KEPLER_DEVICE_VGPU 0xa080	/* in the lists from 545 on */

/* As in 550.163.01, in its order without repetitions. */
static const u32 tu104_classes[] = {
	0xc365, 0x9067, 0x902d, 0x90f1, 0x844c, 0x9072, 0x90ec, 0x90e7, 0x90e6, 0x9074, 0x9096,
	0xc076, 0xa06c, 0xa080, 0xa140, 0xc369, 0x0060, 0x0070, 0x0073, 0x007d, 0x5080, 0x50a0,
	0x503b, 0x503c, 0xa081, 0xa084, 0xc371, 0xc372, 0xc4b0, 0xc4b7, 0xc570, 0xc573, 0xc57a,
	0xc57b, 0xc57d, 0xc57e, 0x00de, 0xc597, 0xc46f, 0xc5c0, 0xc5b5, 0xc461, 0xc36f, 0xc361,
};

static const u32 ga100_classes[] = {
	0xc365, 0xc697, 0xc56f, 0xc6c0, 0xc6b5, 0xc561, 0x9067, 0x902d, 0x90f1, 0x844c, 0x90e7,
	0x90e6, 0x9074, 0x9096, 0xc076, 0xa06c, 0xa080, 0xa140, 0xc369, 0x0060, 0x0070, 0x007d,
	0x5080, 0x50a0, 0x503b, 0x503c, 0xa081, 0xa084, 0xc4d1, 0xc6b0, 0xc6fa, 0xcb33, 0x00de,
	0xc46f, 0xc461, 0xc36f, 0xc361,
};

static const u32 gh100_classes[] = {
	0xc365, 0xc56f, 0xc561, 0x9067, 0x902d, 0x90f1, 0x844c, 0x90e7, 0x90e6, 0x9074, 0x9096,
	0xc076, 0xcb97, 0xc86f, 0xcbc0, 0xc8b5, 0xcba2, 0xc661, 0xa06c, 0xa080, 0xa140, 0xc369,
	0x0060, 0x0070, 0x007d, 0x5080, 0x50a0, 0x503b, 0x503c, 0xa081, 0xa084, 0xb8b0, 0xb8d1,
	0xb8fa, 0xcb33, 0x00de, 0xc46f, 0xc461, 0xc36f, 0xc361,
};

/*
 * The source of libcuda's limits: the same on all three chips, except the fields of the struct
 * below.
 */
static const struct nvinfo gr_common[] = {
	{ 0x03, 128 }, { 0x04, 256 }, { 0x08, 1 }, { 0x0a, 4 }, { 0x0b, 512 }, { 0x0e, 32 },
	{ 0x11, 32 }, { 0x12, 32 }, { 0x1e, 2 }, { 0x20, 2 }, { 0x24, 1 }, { 0x28, 2 },
	{ 0x2c, 64 }, { 0x2d, 1 }, { 0x2e, 64 }, { 0x32, 4 },
};

static const struct nvchip chips[] = {
	{
		.arch = "turing", .short_name = "TU104-A", .chip = { 0x160, 4 },
		.gpfifo = 0xc46f, .usermode = 0xc461, .compute = 0xc5c0, .copy = 0xc5b5,
		.classes = tu104_classes, .nr_classes = ARRAY_SIZE(tu104_classes),
		.device_id = 0x1eb8, .subsystem_id = 0x12a210de,
		.sm_version = 0x705, .warps = 32, .cores_per_sm = 64, .tensor_per_sm = 8, .rt_per_sm = 1,
		.gpcs = 5, .litter_gpcs = 6, .litter_tpcs = 4, .litter_fbps = 4, .fbpas_per_fbp = 2,
		.migs = 1, .pes_per_gpc = 3,
		.fbps = 4, .ltcs = 8, .ltc_slices = 4,
		.bus_width = 256, .ram_type = 0x11, .l2_bytes = 4 << 20, .pcie_gen = 3,
		.bar1_mib = 256, .graphics_khz = 1590000, .memory_khz = 5001000,
	}, {
		.arch = "ampere", .short_name = "GA100-A", .chip = { 0x170, 0 },
		.gpfifo = 0xc56f, .usermode = 0xc561, .compute = 0xc6c0, .copy = 0xc6b5,
		.classes = ga100_classes, .nr_classes = ARRAY_SIZE(ga100_classes),
		.device_id = 0x20b0, .subsystem_id = 0x134f10de,
		.sm_version = 0x800, .warps = 64, .cores_per_sm = 64, .tensor_per_sm = 4, .rt_per_sm = 0,
		.gpcs = 7, .litter_gpcs = 8, .litter_tpcs = 8, .litter_fbps = 12, .fbpas_per_fbp = 2,
		.migs = 8, .pes_per_gpc = 3,
		.fbps = 10, .ltcs = 20, .ltc_slices = 4,
		.bus_width = 5120, .ram_type = 0x0f, .l2_bytes = 40 << 20, .pcie_gen = 4,
		.bar1_mib = 65536, .graphics_khz = 1410000, .memory_khz = 1215000,
	}, {
		.arch = "hopper", .short_name = "GH100-A", .chip = { 0x180, 0 },
		.gpfifo = 0xc86f, .usermode = 0xc661, .compute = 0xcbc0, .copy = 0xc8b5,
		.classes = gh100_classes, .nr_classes = ARRAY_SIZE(gh100_classes),
		.device_id = 0x2335, .subsystem_id = 0x18be10de,
		.sm_version = 0x900, .warps = 64, .cores_per_sm = 128, .tensor_per_sm = 4, .rt_per_sm = 0,
		.gpcs = 8, .litter_gpcs = 8, .litter_tpcs = 9, .litter_fbps = 12, .fbpas_per_fbp = 2,
		.migs = 8, .pes_per_gpc = 3,
		.fbps = 12, .ltcs = 24, .ltc_slices = 4,
		.bus_width = 6144, .ram_type = 0x14, .l2_bytes = 60 << 20, .pcie_gen = 5,
		.bar1_mib = 262144, .graphics_khz = 1980000, .memory_khz = 3201000,
	},
};

const struct nvchip *nvsim_chip = &chips[0];

/* Takes the chip of the parameter arch. */
int nvsim_chip_init(void)
{
	size_t i;

	for (i = 0; i < ARRAY_SIZE(chips); i++) {
		if (strcmp(chips[i].arch, nvsim.arch))
			continue;
		nvsim_chip = &chips[i];
		return 0;
	}
	return -EINVAL;
}

/* Older usermode classes keep working on newer GPUs; Volta's is in the lists of all chips here. */
bool nvsim_is_usermode(u32 cls)
{
	size_t i;

	if (cls == VOLTA_USERMODE_A)
		return true;
	for (i = 0; i < ARRAY_SIZE(chips); i++)
		if (chips[i].usermode == cls)
			return cls <= nvsim_chip->usermode;
	return false;
}

/* The last byte of a class is that of its engine, in every generation. */
u32 nvsim_video_engine(u32 cls)
{
	u32 i;

	for (i = 0; i < nvsim_chip->nr_classes && nvsim.video; i++) {
		if (nvsim_chip->classes[i] != cls)
			continue;
		switch (cls & 0xff) {
		case 0xb0:
			return NV2080_ENGINE_TYPE_NVDEC0;
		case 0xb7:
			return NV2080_ENGINE_TYPE_NVENC0;
		case 0xd1:
			return NV2080_ENGINE_TYPE_NVJPEG0;
		case 0xfa:
			return NV2080_ENGINE_TYPE_OFA0;
		}
	}
	return 0;
}

bool nvsim_has_video(u32 engine)
{
	u32 i;

	for (i = 0; i < nvsim_chip->nr_classes; i++)
		if (engine && nvsim_video_engine(nvsim_chip->classes[i]) == engine)
			return true;
	return false;
}

static bool is_missing(u32 cls)
{
	u32 end = cls & 0xff;

	if (cls == KEPLER_DEVICE_VGPU)
		return nvsim_branch < 550;
	return cls >= 0xb8b0 && (end == 0xb0 || end == 0xb7 || end == 0xd1 || end == 0xfa) &&
	       !nvsim_video_engine(cls);
}

/* Writes the class list to @list, which has room for @max, and returns its whole length. */
u32 nvsim_chip_classes(u32 *list, u32 max)
{
	u32 n = 0, i;

	for (i = 0; i < nvsim_chip->nr_classes; i++) {
		if (is_missing(nvsim_chip->classes[i]))
			continue;
		if (n < max)
			list[n] = nvsim_chip->classes[i];
		n++;
	}
	return n;
}

u32 nvsim_chip_tpcs(void)
{
	return max(nvsim.rules.sm_count / 2, 1);
}

/* TPCs of GPC @gpc: as even as the number of SMs allows, the first ones have one more. */
u32 nvsim_chip_gpc_tpcs(u32 gpc)
{
	u32 tpcs = nvsim_chip_tpcs(), n = nvsim_chip->gpcs;

	return gpc < n ? tpcs / n + (gpc < tpcs % n) : 0;
}

/* NV0080_CTRL_GR_INFO_INDEX_* */
u32 nvsim_chip_gr_info(u32 index)
{
	const struct nvchip *c = nvsim_chip;
	u32 sms = max(nvsim.rules.sm_count, 1);
	size_t i;

	switch (index) {
	case 0x07:
		return c->gpcs;
	case 0x09:
		return nvsim_chip_tpcs();
	case 0x0c:
		return c->sm_version;
	case 0x0d:
		return c->warps;
	case 0x13:
		return c->cores_per_sm;
	case 0x14:
		return c->litter_gpcs;
	case 0x15:
		return c->litter_fbps;
	case 0x16:
	case 0x17:
	case 0x2a:
		return c->litter_tpcs;
	case 0x1b:
		return c->litter_fbps * c->fbpas_per_fbp;
	case 0x1c:
		return c->pes_per_gpc;
	case 0x1d:
		return sms * c->cores_per_sm;
	case 0x22:
		return sms * c->rt_per_sm;
	case 0x23:
		return sms * c->tensor_per_sm;
	case 0x25:
		return c->litter_fbps * 2;
	case 0x26:
		return c->ltc_slices;
	case 0x2b:
		return c->fbpas_per_fbp;
	case 0x35:
		return c->migs;
	case 0x36:
		return c->gpcs;
	}
	for (i = 0; i < ARRAY_SIZE(gr_common); i++)
		if (gr_common[i].index == index)
			return gr_common[i].value;
	return 0;
}
