// SPDX-License-Identifier: MIT OR GPL-2.0-only
/* What the GSP knows about the card when RM asks for the first time: memory, names, units. */
#include "card.h"

#define MIB (1ull << 20)
#define RESERVED_BYTES (512 * MIB)	/* at the end of video memory, the firmware's own */

/*
 * Two regions: what RM may use and what the firmware keeps. RM puts page tables of BAR1 and BAR2 to
 * addresses that the firmware names; they lie in its region.
 */
static void memory(struct gsp_card *card, GspStaticConfigInfo *info)
{
	NV2080_CTRL_CMD_FB_GET_FB_REGION_INFO_PARAMS *r = &info->fbRegionInfoParams;

	info->fb_length = card->fb_bytes;
	info->fb_bus_width = GSP_FB_BUS_BITS;
	info->fbio_mask = 0xff;
	info->fbp_mask = (1u << GSP_FBPS) - 1;
	info->l2_cache_size = GSP_L2_BYTES;
	r->numFBRegions = 2;
	r->fbRegion[0].limit = card->fb_bytes - RESERVED_BYTES - 1;
	r->fbRegion[0].performance = 100;
	r->fbRegion[0].supportCompressed = NV_TRUE;
	r->fbRegion[0].supportISO = NV_TRUE;
	r->fbRegion[1].base = card->fb_bytes - RESERVED_BYTES;
	r->fbRegion[1].limit = card->fb_bytes - 1;
	r->fbRegion[1].reserved = RESERVED_BYTES;
	info->bar1PdeBase = card->fb_bytes - 64 * MIB;
	info->bar2PdeBase = card->fb_bytes - 63 * MIB;
}

static void name(NvU8 *to, NvU32 bytes, const char *from)
{
	while (--bytes && *from)
		*to++ = (NvU8)*from++;
	*to = 0;
}

static NvU8 gid_byte(struct gsp_card *card, NvU32 i)
{
	return (NvU8)(0x10 * (card->index + 1) + i);
}

/* ctrl2080gpu.h: bit 1 of the flags asks for bytes, otherwise text: GPU- and five groups. */
#define GID_BINARY 2
#define GID_BYTES 16

void gsp_gid(struct gsp_card *card, NV2080_CTRL_GPU_GET_GID_INFO_PARAMS *p)
{
	static const char digits[] = "0123456789abcdef", prefix[] = "GPU-";
	NvU8 *to = p->data;
	NvU32 i;

	memset(p->data, 0, sizeof(p->data));
	for (i = 0; !(p->flags & GID_BINARY) && prefix[i]; i++)
		*to++ = (NvU8)prefix[i];
	for (i = 0; i < GID_BYTES; i++) {
		NvU8 byte = gid_byte(card, i);

		if (p->flags & GID_BINARY) {
			*to++ = byte;
			continue;
		}
		if (i == 4 || i == 6 || i == 8 || i == 10)
			*to++ = '-';
		*to++ = (NvU8)digits[byte >> 4];
		*to++ = (NvU8)digits[byte & 15];
	}
	p->length = (NvU32)(to - p->data) + !(p->flags & GID_BINARY);
}

/*
 * A bit for each NV2080_ENGINE_TYPE_*. The table of engines decides about most; a copy engine and a video engine are there
 * by their bits alone, and nvidia-uvm makes channels on every copy engine.
 */
static void engine_caps(struct gsp_card *card, GspStaticConfigInfo *info)
{
	NvU32 i;

	for (i = 0; i < GSP_ARRAY_SIZE(info->engineCaps); i++)
		info->engineCaps[i] = ~0u;
	for (i = GSP_CLIENT_COPY0 + gsp_copies(card->chip); i <= GSP_CLIENT_OFA0; i++)
		if (!gsp_has_video(card->chip, i))
			info->engineCaps[i / 32] &= ~(1u << i % 32);
}

void gsp_static_info(struct gsp_card *card, GspStaticConfigInfo *info)
{
	memset(info, 0, sizeof(*info));
	memory(card, info);
	name(info->gpuNameString, sizeof(info->gpuNameString), card->chip->product);
	name(info->gpuShortNameString, sizeof(info->gpuShortNameString), card->chip->name);
	info->bIsTesla = NV_TRUE;
#if RM_BRANCH < 550
	info->computeBranding = COMPUTE_BRANDING_TYPE_TESLA;	/* others need a module parameter */
#endif
	info->bVbiosValid = NV_TRUE;
	info->SKUInfo.BoardID = 1;
	info->gidInfo.flags = GID_BINARY;
	gsp_gid(card, &info->gidInfo);
	info->gidInfo.flags = 0;
	/* Handles by which RM names the firmware's own objects. */
	info->hInternalClient = 0xc2000000;
	info->hInternalDevice = 0xabcd0080;
	info->hInternalSubdevice = 0xabcd2080;
	engine_caps(card, info);
	info->bSplitVasBetweenServerClientRm = NV_TRUE;
}
