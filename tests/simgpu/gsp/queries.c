// SPDX-License-Identifier: MIT OR GPL-2.0-only
/*
 * Questions of clients that RM passes on, whole or in part: names, memory, rights, copy engines. Numbers and indices:
 * ctrl2080gpu.h, ctrl2080fb.h, ctrl2080ce.h of open-gpu-kernel-modules. What is not here is 0.
 */
#include "card.h"

/* ctrl2080gpu.h: NV2080_CTRL_GPU_GET_NAME_STRING_FLAGS_TYPE */
#define NAME_UNICODE 1
/* RM marks the entries of GPU_GET_INFO_V2 that it has left to the GSP. */
#define INDEX_FOR_GSP 0x80000000u

enum { GPU_COMPUTE_POLICY = 0x36, GPU_PROFILING = 0x37 };
enum { FB_BUS_WIDTH = 0x0b, FB_RAM_TYPE = 0x0d, FB_FBP_COUNT = 0x19, FB_FBP_MASK = 0x1a, FB_L2_BYTES = 0x1b,
       FB_LTC_COUNT = 0x22, FB_LTS_COUNT = 0x23 };

/* ctrl2080ce.h: NV2080_CTRL_CE_CAPS_*: the first byte, then the second */
enum {
	CE_GRCE = 0x01, CE_SHARED = 0x02, CE_SYSMEM_READ = 0x04, CE_SYSMEM_WRITE = 0x08, CE_SYSMEM = 0x20, CE_P2P = 0x40,
	CE_BL_ABOVE_64K = 0x80,
};
enum { CE_PIPELINED_BL = 0x02 };

void gsp_gpu_name(struct gsp_card *card, NV2080_CTRL_GPU_GET_NAME_STRING_PARAMS *p)
{
	const char *from = card->chip->product;
	NvU32 i;

	memset(&p->gpuNameString, 0, sizeof(p->gpuNameString));
	for (i = 0; from[i] && i < GSP_ARRAY_SIZE(p->gpuNameString.ascii) - 1; i++) {
		if (p->gpuNameStringFlags & NAME_UNICODE)
			p->gpuNameString.unicode[i] = (NvU16)from[i];
		else
			p->gpuNameString.ascii[i] = (NvU8)from[i];
	}
}

/* The chip and its first letter of revision. */
void gsp_gpu_short_name(struct gsp_card *card, NV2080_CTRL_GPU_GET_SHORT_NAME_STRING_PARAMS *p)
{
	const char *from = card->chip->name;
	NvU8 *to = p->gpuShortNameString;

	memset(p, 0, sizeof(*p));
	while (*from && to < p->gpuShortNameString + sizeof(p->gpuShortNameString) - 3)
		*to++ = (NvU8)*from++;
	*to++ = '-';
	*to = 'A';
}

/* Nothing is restricted to administrators. */
void gsp_gpu_info(NV2080_CTRL_GPU_GET_INFO_V2_PARAMS *p)
{
	NvU32 i;

	for (i = 0; i < p->gpuInfoListSize && i < GSP_ARRAY_SIZE(p->gpuInfoList); i++) {
		NvU32 index = p->gpuInfoList[i].index;

		if (!(index & INDEX_FOR_GSP))
			continue;
		index &= ~INDEX_FOR_GSP;
		p->gpuInfoList[i].data = index == GPU_COMPUTE_POLICY || index == GPU_PROFILING;
	}
}

static NvU32 fb_info(const struct gsp_chip *chip, NvU32 index)
{
	switch (index) {
	case FB_BUS_WIDTH:
		return GSP_FB_BUS_BITS;
	case FB_RAM_TYPE:
		return chip->ram_type;
	case FB_FBP_COUNT:
		return GSP_FBPS;
	case FB_FBP_MASK:
		return (1u << GSP_FBPS) - 1;
	case FB_L2_BYTES:
		return GSP_L2_BYTES;
	case FB_LTC_COUNT:
		return GSP_LTCS;
	case FB_LTS_COUNT:
		return GSP_LTCS * GSP_SLICES_PER_LTC;
	}
	return 0;
}

void gsp_fb_info(struct gsp_card *card, NV2080_CTRL_FB_GET_INFO_V2_PARAMS *p)
{
	NvU32 i;

	for (i = 0; i < p->fbInfoListSize && i < GSP_ARRAY_SIZE(p->fbInfoList); i++)
		p->fbInfoList[i].data = fb_info(card->chip, p->fbInfoList[i].index);
}

static void copy_caps(const struct gsp_chip *chip, NvU32 engine, NvU8 *caps)
{
	caps[0] = CE_SYSMEM_READ | CE_SYSMEM_WRITE | CE_SYSMEM | CE_P2P | CE_BL_ABOVE_64K;
	caps[1] = CE_PIPELINED_BL;
	if (engine >= chip->copy_engines)
		caps[0] |= CE_GRCE | CE_SHARED;
}

void gsp_copy_caps(struct gsp_card *card, NV2080_CTRL_CE_GET_CAPS_V2_PARAMS *p)
{
	NvU32 first = RM_ENGINE_TYPE_COPY0;

	memset(p->capsTbl, 0, sizeof(p->capsTbl));
	copy_caps(card->chip, p->ceEngineType > first ? p->ceEngineType - first : 0, p->capsTbl);
}

/* RM itself adds which of them are there. */
void gsp_all_copy_caps(struct gsp_card *card, NV2080_CTRL_CE_GET_ALL_CAPS_PARAMS *p)
{
	NvU32 i;

	memset(p, 0, sizeof(*p));
	for (i = 0; i < gsp_copies(card->chip); i++)
		copy_caps(card->chip, i, (NvU8 *)p->capsTbl + 2 * i);
}

/* Of GRCEs too: which physical engine they are is the firmware's own. */
void gsp_copy_mask(NV2080_CTRL_CE_GET_CE_PCE_MASK_PARAMS *p)
{
	NvU32 first = RM_ENGINE_TYPE_COPY0;

	p->pceMask = p->ceEngineType >= first ? 1u << (p->ceEngineType - first) : 1;
}
