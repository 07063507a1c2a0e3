// SPDX-License-Identifier: MIT OR GPL-2.0
/* What the GSP says about graphics and compute: units, and the sizes of a context's buffers. */
#include "card.h"

/* ctrl0080gr.h: index of the list; what is not here is 0. The values are those of one product. */
void gsp_gr_info(struct gsp_card *card, NV2080_CTRL_INTERNAL_STATIC_GR_GET_INFO_PARAMS *p)
{
	const struct gsp_chip *chip = card->chip;
	NvU32 tpcs = chip->gpcs * chip->tpcs_per_gpc;
	const struct { NvU32 index, value; } info[] = {
		{ 0x03, 32 }, { 0x06, 4 }, { 0x07, chip->gpcs }, { 0x09, tpcs },
		{ 0x0c, chip->sm_version }, { 0x0d, 32 }, { 0x0e, 32 }, { 0x14, chip->gpcs + 1 },
		{ 0x15, chip->tpcs_per_gpc }, { 0x17, 4 }, { 0x1a, 1 }, { 0x1d, tpcs * 128 },
		{ 0x20, 2 }, { 0x22, tpcs * 2 }, { 0x23, 320 }, { 0x24, 1 }, { 0x25, 8 }, { 0x26, 4 },
		{ 0x2c, 64 }, { 0x2d, 2 }, { 0x2e, 64 }, { 0x32, 4 },
	};
	NvU32 i, n = GSP_ARRAY_SIZE(p->engineInfo[0].infoList);

	memset(p, 0, sizeof(*p));
	for (i = 0; i < n; i++)
		p->engineInfo[0].infoList[i].index = i;
	for (i = 0; i < GSP_ARRAY_SIZE(info); i++)
		if (info[i].index < n)
			p->engineInfo[0].infoList[info[i].index].data = info[i].value;
}

void gsp_gr_masks(struct gsp_card *card,
		  NV2080_CTRL_INTERNAL_STATIC_GR_GET_FLOORSWEEPING_MASKS_PARAMS *p)
{
	const struct gsp_chip *chip = card->chip;
	NV2080_CTRL_INTERNAL_STATIC_GR_FLOORSWEEPING_MASKS *m = &p->floorsweepingMasks[0];
	NvU32 i;

	memset(p, 0, sizeof(*p));
	m->gpcMask = (1u << chip->gpcs) - 1;
	m->physGpcMask = m->gpcMask;
	for (i = 0; i < chip->gpcs && i < GSP_ARRAY_SIZE(m->tpcMask); i++) {
		m->tpcMask[i] = (1u << chip->tpcs_per_gpc) - 1;
		m->tpcCount[i] = chip->tpcs_per_gpc;
		m->mmuPerGpc[i] = 1;
		m->numPesPerGpc[i] = 1;
	}
}

/*
 * The sizes are ours and small: the firmware knows the real ones. From where and when RM takes the
 * buffers is RM's.
 */
void gsp_gr_buffers(NV2080_CTRL_INTERNAL_STATIC_GR_GET_CONTEXT_BUFFERS_INFO_PARAMS *p)
{
	NV2080_CTRL_INTERNAL_ENGINE_CONTEXT_BUFFER_INFO *b = p->engineContextBuffersInfo[0].engine;
	NvU32 i;

	memset(p, 0, sizeof(*p));
	for (i = 0; i < GSP_ARRAY_SIZE(p->engineContextBuffersInfo[0].engine); i++) {
		b[i].size = i ? 64 << 10 : 1 << 20;
		b[i].alignment = 4096;
	}
}
