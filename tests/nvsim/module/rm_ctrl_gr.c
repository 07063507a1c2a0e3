// SPDX-License-Identifier: MIT OR GPL-2.0-only
/* Controls of the graphics and copy engines: their shape, their capabilities, and the knobs of a context. */
#include "nvsim.h"

#define FS_QUERIES_MAX 96
#define FS_QUERY_SIZE 20
#define COPY_ENGINES (NVSIM_COPIES + NVSIM_GRCES)
#define SM_PER_TPC 2

/* NV2080_CTRL_CE_CAPS_*, first byte */
#define CE_GRCE 0x01
#define CE_SHARED 0x02
#define CE_SYSMEM_READ 0x04
#define CE_SYSMEM_WRITE 0x08
#define CE_SYSMEM 0x20
#define CE_BL_ABOVE_64K 0x80
/* second byte */
#define CE_PIPELINED_BL 0x02

static NV_STATUS ok(struct nvctl *c)
{
	return NV_OK;
}

/* {route 16 bytes, result}: all zero */
static NV_STATUS zero_behind_route(struct nvctl *c)
{
	memset(c->params + 16, 0, c->size - 16);
	return NV_OK;
}

static NV_STATUS ctl_info(struct nvctl *c)
{
	struct nvinfo *e = c->list;
	u32 i;

	for (i = 0; i < c->count; i++)
		e[i].value = nvsim_chip_gr_info(e[i].index);
	return NV_OK;
}

/* {hChannel, totalBufferSize u64} */
static NV_STATUS ctl_ctx_size(struct nvctl *c)
{
	u32 *p = c->params;

	if (!nvsim_obj_find_type(c->client, p[0], NVT_BIT(NVT_CHANNEL)))
		return NV_ERR_OBJECT_NOT_FOUND;
	((u64 *)c->params)[1] = (u64)nvsim.ctx_mib << 20;
	return NV_OK;
}

/*
 * {sm[n] {gpc, local TPC, local SM, global TPC, virtual GPC, migratable TPC} u16, numSm u16, numTpc u16, route @8 16 bytes}.
 * TPCs are counted GPC by GPC; the second SMs of all of them come after the first ones.
 */
static NV_STATUS ctl_sm_order(struct nvctl *c)
{
	u32 tpcs = nvsim_chip_tpcs(), local, gpc, sm, tpc = 0;
	u16 *tail = c->params + c->size - 24, *s;

	memset(c->params, 0, c->size - 16);
	for (local = 0; tpc < tpcs; local++) {
		for (gpc = 0; gpc < nvsim_chip->gpcs; gpc++) {
			if (local >= nvsim_chip_gpc_tpcs(gpc))
				continue;
			for (sm = 0; sm < SM_PER_TPC; sm++) {
				s = (u16 *)c->params + 6 * (sm * tpcs + tpc);
				s[0] = gpc;
				s[1] = local;
				s[2] = sm;
				s[3] = tpc;
				s[4] = gpc;
				s[5] = local;
			}
			tpc++;
		}
	}
	tail[0] = SM_PER_TPC * tpcs;
	tail[1] = tpcs;
	return NV_OK;
}

/* {capsTbl[23] u8, route @24, populated u8 @40}: none of the deprecated capabilities */
static NV_STATUS ctl_caps(struct nvctl *c)
{
	u8 *p = c->params;

	memset(p, 0, 23);
	p[40] = 1;
	return NV_OK;
}

/* {route 16 bytes, gpcMask} */
static NV_STATUS ctl_gpc_mask(struct nvctl *c)
{
	((u32 *)c->params)[4] = (1u << nvsim_chip->gpcs) - 1;
	return NV_OK;
}

static u32 tpc_mask(u32 gpc)
{
	return (1u << nvsim_chip_gpc_tpcs(gpc)) - 1;
}

/* {route 16 bytes, gpcId, tpcMask} */
static NV_STATUS ctl_tpc_mask(struct nvctl *c)
{
	u32 *p = c->params;

	p[5] = tpc_mask(p[4]);
	return NV_OK;
}

/* NV2080_CTRL_GRMGR_GR_FS_INFO_QUERY_*: @d is the query's data. */
static NV_STATUS fs_query(u16 type, u32 *d)
{
	switch (type) {
	case 1:		/* {gpcCount} */
		d[0] = nvsim_chip->gpcs;
		return NV_OK;
	case 6:		/* {chipletSyspipeMask} */
		d[0] = 1;
		return NV_OK;
	case 2:		/* {gpcId, chipletGpcMap} */
	case 3:		/* {gpcId, tpcMask} */
	case 4:		/* {gpcId, ppcMask} */
	case 10:	/* {gpcId, ropMask} */
		if (d[0] >= nvsim_chip->gpcs)
			return NV_ERR_INVALID_ARGUMENT;
		break;
	default:	/* of partitions, which there are none of */
		return NV_ERR_NOT_SUPPORTED;
	}
	if (type == 2)
		d[1] = d[0];
	else if (type == 3)
		d[1] = tpc_mask(d[0]);
	else
		d[1] = (1u << nvsim_chip->pes_per_gpc) - 1;
	return NV_OK;
}

/* {numQueries u16, queries[96] @8 {type u16, status @4, data[6] @8}} */
static NV_STATUS ctl_fs_info(struct nvctl *c)
{
	u16 n = *(u16 *)c->params, i;

	if (!n || n > FS_QUERIES_MAX)
		return NV_ERR_INVALID_ARGUMENT;
	for (i = 0; i < n; i++) {
		u32 *q = c->params + 8 + i * FS_QUERY_SIZE;

		q[1] = fs_query(*(u16 *)q, q + 2);
	}
	return NV_OK;
}

/* {caps[n][2] u8, present}: 32 engines and a mask of 32 bits before 545, 64 of both since then */
static NV_STATUS ctl_ce_caps(struct nvctl *c)
{
	u32 mask = (1u << COPY_ENGINES) - 1, i;
	u8 *p = c->params;

	if (nvsim.no_ce_caps)
		return NV_ERR_NOT_SUPPORTED;
	memset(p, 0, c->size);
	for (i = 0; i < COPY_ENGINES; i++) {
		p[2 * i] = CE_SYSMEM_READ | CE_SYSMEM_WRITE | CE_SYSMEM | CE_BL_ABOVE_64K;
		if (i >= NVSIM_COPIES)
			p[2 * i] |= CE_GRCE | CE_SHARED;
		p[2 * i + 1] = CE_PIPELINED_BL;
	}
	*(u32 *)(p + (nvsim_branch < 550 ? 64 : 128)) = mask;
	return NV_OK;
}

/* {hObject, classEngineID, classID, engineID} */
static NV_STATUS ctl_class_engine(struct nvctl *c)
{
	u32 *p = c->params;
	struct nvobj *o = nvsim_obj_find_type(c->client, p[0], NVT_BIT(NVT_ENGOBJ) | NVT_BIT(NVT_VIDEO));

	if (!o || o->parent != c->obj)
		return NV_ERR_OBJECT_NOT_FOUND;
	p[1] = o->cls;
	p[2] = o->cls;
	p[3] = c->obj->chan->run.tsg->eng->type;
	return NV_OK;
}

/* Of a decoder and a JPEG decoder {capsTbl u8[], instance}: none, as no public source says which a chip has. */
static NV_STATUS ctl_video_caps(struct nvctl *c)
{
	memset(c->params, 0, c->size - 4);
	return NV_OK;
}

#define CHAN NVT_BIT(NVT_CHANNEL)
#define DEV NVT_BIT(NVT_DEVICE)
#define SUB NVT_BIT(NVT_SUBDEVICE)
#define DBG NVT_BIT(NVT_DEBUGGER)

/* ctrl0080gr.h, ctrl2080gr.h, ctrl2080grmgr.h, ctrl2080ce.h, ctrl906f.h, ctrlc36f.h, ctrl83dedebug.h */
const struct nvctl_entry nvsim_ctrl_gr[] = {
	{ 0x801108, 32, DEV, 0, ok },		/* TPC partition mode: MPS */
	{ 0x801109, 48, DEV, 0, ctl_caps },
	{ 0x801c02, 12, DEV, 0, ctl_video_caps },	/* BSP: NVDEC */
	{ 0x801f02, 16, DEV, 0, ctl_video_caps },	/* NVJPG */
	{ 0x20801201, 32, SUB, 0, ctl_info },
	{ 0x20801218, 16, SUB, 0, ctl_ctx_size },
	{ 0x2080121b, 6168, SUB, 0, ctl_sm_order, .before = 580 },
	{ 0x2080121b, 9240, SUB, 0, ctl_sm_order, .since = 580 },
	{ 0x20801227, 48, SUB, 0, ctl_caps },
	{ 0x2080122a, 24, SUB, 0, ctl_gpc_mask },
	{ 0x2080122b, 24, SUB, 0, ctl_tpc_mask },
	{ 0x20801230, 32, SUB, 0, zero_behind_route },	/* issue rate modifiers: full speed */
	{ 0x20802a0a, 68, SUB, 0, ctl_ce_caps, .before = 550 },
	{ 0x20802a0a, 136, SUB, 0, ctl_ce_caps, .since = 550 },
	{ 0x20803801, 1928, SUB, 0, ctl_fs_info },
	{ 0x83de0309, 4, DBG, 0, ok },		/* exception mask */
	{ 0x906f0101, 16, CHAN, 0, ctl_class_engine },
	{ 0xc36f0101, 16, CHAN, 0, ctl_class_engine },
	{}
};
