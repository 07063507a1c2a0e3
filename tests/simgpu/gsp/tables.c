// SPDX-License-Identifier: MIT OR GPL-2.0-only
/*
 * The card's engines and interrupt sources: GR0 with its copy engines, further copy engines, video engines, each with a
 * runlist and a PBDMA of its own. Fault ids and base addresses are any that RM accepts.
 */
#include "card.h"

/* NV_PTOP_DEVICE_INFO_TYPE_ENUM of the public manuals */
enum { TYPE_GRAPHICS = 0, TYPE_NVENC = 14, TYPE_NVDEC = 16, TYPE_LCE = 19, TYPE_NVJPG = 21, TYPE_OFA = 22 };

#define FAULT_GR 64
#define FAULT_CE 15
#define FAULT_PBDMA 32
#define FAULT_VIDEO 80
#define VIDEO_CONTEXT_BYTES (256u << 10)	/* of ours: no document has the engines' */

struct engine {
	const char *name;
	NvU32 desc, rm_type, runlist, fault, interrupt, type, instance;
};

/* Video engines by their bits. */
static const struct video {
	const char *name;
	NvU32 bit, class, rm_type, client_type, interrupt, type;
} videos[] = {
	{ "NVDEC0", GSP_NVDEC, ENG_CLASS_NVDEC, RM_ENGINE_TYPE_NVDEC0, GSP_CLIENT_NVDEC0, MC_NVDEC, TYPE_NVDEC },
	{ "NVENC0", GSP_NVENC, ENG_CLASS_NVENC, RM_ENGINE_TYPE_NVENC0, GSP_CLIENT_NVENC0, MC_NVENC, TYPE_NVENC },
	{ "NVJPG0", GSP_NVJPG, ENG_CLASS_NVJPG, RM_ENGINE_TYPE_NVJPEG0, GSP_CLIENT_NVJPG0, MC_NVJPG, TYPE_NVJPG },
	{ "OFA0", GSP_OFA, ENG_CLASS_OFA, RM_ENGINE_TYPE_OFA0, GSP_CLIENT_OFA0, MC_OFA, TYPE_OFA },
};

#define for_each_video(v, chip) \
	for ((v) = videos; (v) < videos + GSP_ARRAY_SIZE(videos); (v)++) \
		if ((chip)->videos & (v)->bit)

int gsp_has_video(const struct gsp_chip *chip, NvU32 client_type)
{
	const struct video *v;

	for_each_video(v, chip)
		if (v->client_type == client_type)
			return 1;
	return 0;
}

static void add(NV2080_CTRL_FIFO_GET_DEVICE_INFO_TABLE_PARAMS *p, const struct engine *e)
{
	NvU32 n = p->numEntries++, i;
	NV2080_CTRL_FIFO_DEVICE_ENTRY *d = &p->entries[n];
	NvU32 *v = d->engineData;

	v[ENGINE_INFO_TYPE_ENG_DESC] = e->desc;
	v[ENGINE_INFO_TYPE_FIFO_TAG] = n;
	v[ENGINE_INFO_TYPE_RM_ENGINE_TYPE] = e->rm_type;
	v[ENGINE_INFO_TYPE_RUNLIST] = e->runlist;
	v[ENGINE_INFO_TYPE_MMU_FAULT_ID] = e->fault;
	v[ENGINE_INFO_TYPE_RESET] = n + 1;
	v[ENGINE_INFO_TYPE_INTR] = n + 1;
	v[ENGINE_INFO_TYPE_MC] = e->interrupt;
	v[ENGINE_INFO_TYPE_DEV_TYPE_ENUM] = e->type;
	v[ENGINE_INFO_TYPE_INSTANCE_ID] = e->instance;
	v[ENGINE_INFO_TYPE_RUNLIST_PRI_BASE] = 0xc0000 + e->runlist * 0x400;
	v[ENGINE_INFO_TYPE_IS_HOST_DRIVEN_ENGINE] = 1;
	v[ENGINE_INFO_TYPE_CHRAM_PRI_BASE] = 0xd0000 + e->runlist * 0x2000;
	d->numPbdmas = 1;
	d->pbdmaIds[0] = e->runlist;
	d->pbdmaFaultIds[0] = FAULT_PBDMA + e->runlist;
	for (i = 0; e->name[i] && i < sizeof(d->engineName) - 1; i++)
		d->engineName[i] = e->name[i];
}

void gsp_device_table(struct gsp_card *card, NV2080_CTRL_FIFO_GET_DEVICE_INFO_TABLE_PARAMS *p)
{
	NvU32 base = p->baseIndex, n = card->chip->copy_engines, i;
	const struct video *v;

	memset(p, 0, sizeof(*p));
	p->baseIndex = base;
	if (base)			/* the table ends with its first part */
		return;
	add(p, &(struct engine){ "GR0", ENG(ENG_CLASS_GR, 0), RM_ENGINE_TYPE_GR0, 0, FAULT_GR,
				 MC_GR0, TYPE_GRAPHICS, 0 });
	for (i = 0; i < n; i++)
		add(p, &(struct engine){ "CE", ENG(ENG_CLASS_CE, i), RM_ENGINE_TYPE_COPY0 + i, i + 1,
					 FAULT_CE + i, MC_CE0 + i, TYPE_LCE, i });
	for (i = n; i < gsp_copies(card->chip); i++)
		add(p, &(struct engine){ "GRCE", ENG(ENG_CLASS_CE, i), RM_ENGINE_TYPE_COPY0 + i, 0,
					 FAULT_CE + i, MC_CE0 + i, TYPE_LCE, i });
	for_each_video(v, card->chip) {
		n++;
		add(p, &(struct engine){ v->name, ENG(v->class, 0), v->rm_type, n, FAULT_VIDEO + n, v->interrupt,
					 v->type, 0 });
	}
}

/* RM itself allocates the context of a video engine, by the size that its firmware names here. */
void gsp_falcons(struct gsp_card *card, NV2080_CTRL_GPU_GET_CONSTRUCTED_FALCON_INFO_PARAMS *p)
{
	const struct video *v;

	memset(p, 0, sizeof(*p));
	for_each_video(v, card->chip) {
		NV2080_CTRL_GPU_CONSTRUCTED_FALCON_INFO *f = &p->constructedFalconsTable[p->numConstructedFalcons++];

		f->engDesc = ENG(v->class, 0);
		f->ctxAttr = NV_MEMORY_UNCACHED;
		f->ctxBufferSize = VIDEO_CONTEXT_BYTES;
		f->addrSpaceList = ADDRLIST_FBMEM_PREFERRED;
	}
}

/*
 * The same card as its own table of devices shows it; from GA100 on RM looks for copy engines
 * here.
 */
void gsp_device_info(struct gsp_card *card, NV2080_CTRL_INTERNAL_GET_DEVICE_INFO_TABLE_PARAMS *p)
{
	NvU32 i;

	memset(p, 0, sizeof(*p));
	p->numEntries = gsp_copies(card->chip) + 1;
	for (i = 0; i < p->numEntries; i++) {
		NV2080_CTRL_INTERNAL_DEVICE_INFO *d = &p->deviceInfoTable[i];

		d->faultId = i ? FAULT_CE + i - 1 : FAULT_GR;
		d->instanceId = i ? i - 1 : 0;
		d->typeEnum = i ? TYPE_LCE : TYPE_GRAPHICS;
		d->isEngine = 1;
	}
}

/* RM up to 535 reads the list by this control. */
void gsp_engine_list(struct gsp_card *card, NV2080_CTRL_GPU_GET_ENGINES_V2_PARAMS *p)
{
	const struct video *v;
	NvU32 i;

	memset(p, 0, sizeof(*p));
	p->engineList[p->engineCount++] = GSP_CLIENT_GR0;
	for (i = 0; i < gsp_copies(card->chip); i++)
		p->engineList[p->engineCount++] = GSP_CLIENT_COPY0 + i;
	for_each_video(v, card->chip)
		p->engineList[p->engineCount++] = v->client_type;
}

/*
 * Vectors: 32 to a leaf, two leaves to a subtree. Those that need no service are numbered as in this table
 * (GSP_VECTOR_GR0, GSP_VECTOR_COPY0). RM wants replayable faults and access counters
 * in one leaf of the subtree that it leaves to UVM, and one subtree alone as shared with UVM.
 */
enum { SUBTREE_ENGINES = 1, SUBTREE_UVM = 2, SUBTREE_SHARED = 3 };
#define VECTOR(subtree, n) (64 * (subtree) + (n))

static const struct {
	NvU16 source;
	NvU8 subtree;
	NvBool non_stall;
} sources[] = {
	{ MC_GR0, SUBTREE_ENGINES, NV_TRUE },
	{ MC_CE0, SUBTREE_ENGINES, NV_TRUE },
	{ MC_CE0 + 1, SUBTREE_ENGINES, NV_TRUE },
	{ MC_CE0 + 2, SUBTREE_ENGINES, NV_TRUE },
	{ MC_CE0 + 3, SUBTREE_ENGINES, NV_TRUE },
	{ MC_CE0 + 4, SUBTREE_ENGINES, NV_TRUE },
	{ MC_CE0 + 5, SUBTREE_ENGINES, NV_TRUE },
	{ MC_NVDEC, SUBTREE_ENGINES, NV_TRUE },
	{ MC_NVENC, SUBTREE_ENGINES, NV_TRUE },
	{ MC_NVJPG, SUBTREE_ENGINES, NV_TRUE },
	{ MC_OFA, SUBTREE_ENGINES, NV_TRUE },
	{ MC_FIFO, SUBTREE_ENGINES, NV_FALSE },
	{ MC_TMR, SUBTREE_ENGINES, NV_FALSE },
	{ MC_GSP, SUBTREE_ENGINES, NV_FALSE },
	{ MC_REPLAYABLE_FAULT, SUBTREE_UVM, NV_FALSE },
	{ MC_NON_REPLAYABLE_FAULT, SUBTREE_SHARED, NV_FALSE },
	{ MC_INFO_FAULT, SUBTREE_SHARED, NV_FALSE },
	{ MC_ACCESS_COUNTER, SUBTREE_UVM, NV_FALSE },
	{ MC_CPU_DOORBELL, SUBTREE_ENGINES, NV_FALSE },
	{ MC_PRIV_DOORBELL, SUBTREE_ENGINES, NV_FALSE },
};

void gsp_interrupt_table(NV2080_CTRL_INTERNAL_INTR_GET_KERNEL_TABLE_PARAMS *p)
{
	/* by category: NV2080_INTR_CATEGORY, the last two are UVM_OWNED and UVM_SHARED */
	static const NvU8 subtrees[] = { 1, 1, 0, 1, 0, SUBTREE_UVM, SUBTREE_SHARED };
	NvU32 i;

	memset(p, 0, sizeof(*p));
	p->tableLen = GSP_ARRAY_SIZE(sources);
	for (i = 0; i < p->tableLen; i++) {
		p->table[i].engineIdx = sources[i].source;
		p->table[i].vectorStall = VECTOR(sources[i].subtree, i);
		p->table[i].vectorNonStall = sources[i].non_stall ? i : ~0u;
	}
	for (i = 0; i < GSP_ARRAY_SIZE(p->subtreeMap); i++) {
		p->subtreeMap[i].subtreeStart = subtrees[i];
		p->subtreeMap[i].subtreeEnd = subtrees[i];
	}
}
