// SPDX-License-Identifier: MIT OR GPL-2.0-only
/* What the GSP says about graphics and compute: units, and the sizes of a context's buffers. */
#include "card.h"

/* ctrl0080gr.h: index of the list; what is not here is 0. The values are those of one product. */
void gsp_gr_info(struct gsp_card *card, NV2080_CTRL_INTERNAL_STATIC_GR_GET_INFO_PARAMS *p)
{
	const struct gsp_chip *chip = card->chip;
	NvU32 tpcs = chip->gpcs * chip->tpcs_per_gpc, sms = tpcs * GSP_SMS_PER_TPC;
	const struct { NvU32 index, value; } info[] = {
		{ 0x03, 128 }, { 0x04, 256 }, { 0x06, 4 }, { 0x07, chip->gpcs }, { 0x08, 1 },
		{ 0x09, tpcs }, { 0x0a, 4 }, { 0x0b, 512 }, { 0x0c, chip->sm_version },
		{ 0x0d, chip->warps_per_sm }, { 0x0e, 32 }, { 0x11, 32 }, { 0x12, 32 },
		{ 0x13, chip->cores_per_sm }, { 0x14, chip->gpcs + 1 }, { 0x15, GSP_FBPS },
		{ 0x16, chip->tpcs_per_gpc }, { 0x17, chip->tpcs_per_gpc }, { 0x1a, 1 },
		{ 0x1b, GSP_FBPS }, { 0x1c, 3 }, { 0x1d, sms * chip->cores_per_sm }, { 0x1e, 2 },
		{ 0x20, GSP_SMS_PER_TPC }, { 0x22, sms * chip->rts_per_sm },
		{ 0x23, sms * chip->tensors_per_sm }, { 0x24, 1 }, { 0x25, GSP_LTCS },
		{ 0x26, GSP_SLICES_PER_LTC }, { 0x28, 1 }, { 0x2a, chip->tpcs_per_gpc }, { 0x2b, 1 },
		{ 0x2c, 64 }, { 0x2d, 2 }, { 0x2e, 64 }, { 0x32, GSP_SLICES_PER_LTC }, { 0x35, 1 },
		{ 0x36, chip->gpcs },
	};
	NvU32 i, n = GSP_ARRAY_SIZE(p->engineInfo[0].infoList);

	memset(p, 0, sizeof(*p));
	for (i = 0; i < n; i++)
		p->engineInfo[0].infoList[i].index = i;
	for (i = 0; i < GSP_ARRAY_SIZE(info); i++)
		if (info[i].index < n)
			p->engineInfo[0].infoList[info[i].index].data = info[i].value;
}

/* TPCs are counted round the GPCs; the second SMs of all of them come after the first ones. */
void gsp_gr_sms(struct gsp_card *card, NV2080_CTRL_INTERNAL_STATIC_GR_GET_GLOBAL_SM_ORDER_PARAMS *p)
{
	NV2080_CTRL_INTERNAL_STATIC_GR_GLOBAL_SM_ORDER *order = &p->globalSmOrder[0];
	const struct gsp_chip *chip = card->chip;
	NvU32 tpcs = chip->gpcs * chip->tpcs_per_gpc, i;

	memset(p, 0, sizeof(*p));
	order->numTpc = (NvU16)tpcs;
	order->numSm = (NvU16)(tpcs * GSP_SMS_PER_TPC);
	for (i = 0; i < order->numSm && i < GSP_ARRAY_SIZE(order->globalSmId); i++) {
		NvU16 tpc = (NvU16)(i % tpcs), gpc = (NvU16)(tpc % chip->gpcs);

		order->globalSmId[i].gpcId = gpc;
		order->globalSmId[i].localTpcId = (NvU16)(tpc / chip->gpcs);
		order->globalSmId[i].localSmId = (NvU16)(i / tpcs);
		order->globalSmId[i].globalTpcId = tpc;
		order->globalSmId[i].virtualGpcId = gpc;
		order->globalSmId[i].migratableTpcId = (NvU16)(tpc / chip->gpcs);
	}
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
