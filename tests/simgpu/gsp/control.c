// SPDX-License-Identifier: MIT OR GPL-2.0-only
/*
 * Controls that RM passes to the GSP: those that need an answer for RM to start, and those that
 * schedule. The numbers are of ctrl2080*.h, ctrla06c*.h and ctrla06f*.h of
 * open-gpu-kernel-modules.
 */
#include "card.h"
#include "clocks.h"

enum {
	GPU_GET_INFO_V2 = 0x20800102, GPU_GET_NAME_STRING = 0x20800110,
	GPU_GET_SHORT_NAME_STRING = 0x20800111, GPU_GET_GID_INFO = 0x2080014a,
	GPU_GET_ENGINES_V2 = 0x20800170, FB_GET_INFO_V2 = 0x20801303,
#if RM_BRANCH >= 550
	GPU_GET_CONSTRUCTED_FALCON_INFO = 0x208001b0,
#else
	GPU_GET_CONSTRUCTED_FALCON_INFO = 0x20800a42,
#endif
	FIFO_DISABLE_CHANNELS = 0x2080110b, FIFO_GET_DEVICE_INFO_TABLE = 0x20801112,
	BUS_GET_PCI_BAR_INFO = 0x20801803, CE_GET_CE_PCE_MASK = 0x20802a02,
	CE_GET_PHYSICAL_CAPS = 0x20802a07, CE_GET_FAULT_METHOD_BUFFER_SIZE = 0x20802a08,
	CE_GET_ALL_PHYSICAL_CAPS = 0x20802a0b,
	INTERNAL_MEMSYS_GET_STATIC_CONFIG = 0x20800a1c,
	INTERNAL_STATIC_KGR_GET_GLOBAL_SM_ORDER = 0x20800a22,
	INTERNAL_STATIC_KGR_GET_FLOORSWEEPING_MASKS = 0x20800a26,
	INTERNAL_STATIC_KGR_GET_INFO = 0x20800a2a,
	INTERNAL_STATIC_KGR_GET_CONTEXT_BUFFERS_INFO = 0x20800a32,
	INTERNAL_GPU_GET_CHIP_INFO = 0x20800a36, INTERNAL_GET_DEVICE_INFO_TABLE = 0x20800a40,
	INTERNAL_DISPLAY_GET_IP_VERSION = 0x20800a4b, INTERNAL_GMMU_GET_STATIC_INFO = 0x20800a59,
	INTERNAL_INTR_GET_KERNEL_TABLE = 0x20800a5c, INTERNAL_FIFO_GET_NUM_CHANNELS = 0x20800a61,
	INTERNAL_CONF_COMPUTE_GET_STATIC_INFO = 0x20800af3,
	INTERNAL_BUS_SETUP_P2P_MAILBOX_LOCAL = 0x20800a71,
	INTERNAL_BUS_SETUP_P2P_MAILBOX_REMOTE = 0x20800a72,
	INTERNAL_BUS_DESTROY_P2P_MAILBOX = 0x20800a73,
	/* Of these the answer is always the same: is_accepted(), is_empty(). */
	GPU_PROMOTE_CTX = 0x2080012b, GPU_GET_OEM_BOARD_INFO = 0x2080013f,
	GPU_GET_VMMU_SEGMENT_SIZE = 0x2080017e, EVENT_SET_NOTIFICATION = 0x20800301,
	INTERNAL_STATIC_KGR_GET_CAPS = 0x20800a1f, INTERNAL_FLCN_SET_VIDEO_EVENT_BUFFER_MEMORY = 0x20800a29,
	INTERNAL_STATIC_KGR_GET_ZCULL_INFO = 0x20800a2c, INTERNAL_STATIC_KGR_GET_ROP_INFO = 0x20800a2e,
	INTERNAL_STATIC_KGR_GET_PPC_MASKS = 0x20800a30,
	INTERNAL_STATIC_KGR_GET_SM_ISSUE_RATE_MODIFIER = 0x20800a34,
	INTERNAL_STATIC_KGR_GET_FECS_RECORD_SIZE = 0x20800a3d,
	INTERNAL_STATIC_KGR_GET_FECS_TRACE_DEFINES = 0x20800a3f,
	INTERNAL_GPU_GET_USER_REGISTER_ACCESS_MAP = 0x20800a41, INTERNAL_KGR_INIT_BUG4208224_WAR = 0x20800a46,
	INTERNAL_STATIC_KGR_GET_PDB_PROPERTIES = 0x20800a48, INTERNAL_GPU_GET_SMC_MODE = 0x20800a4c,
	INTERNAL_MEMSYS_SET_PARTITIONABLE_MEM = 0x20800a51, INTERNAL_KMEMSYS_GET_MIG_MEMORY_CONFIG = 0x20800a67,
	INTERNAL_PERF_GPU_BOOST_SYNC_GET_INFO = 0x20800a80, INTERNAL_HSHUB_PEER_CONN_CONFIG = 0x20800a88,
	INTERNAL_GMMU_COPY_RESERVED_SPLIT_GVASPACE_PDES = 0x20800a9f, INTERNAL_BIF_GET_STATIC_INFO = 0x20800aac,
	INTERNAL_CCU_MAP = 0x20800ab3, INTERNAL_GET_PCIE_P2P_CAPS = 0x20800ab8,
	INTERNAL_FIFO_GET_NUM_SECURE_CHANNELS = 0x20800ad8, INTERNAL_INIT_USER_SHARED_DATA = 0x20800afe,
	FIFO_RUNLIST_SET_SCHED_POLICY = 0x20801115, PERF_GET_UTIL_SAMPLES = 0x20802096,
	PMGR_GET_MODULE_INFO = 0x20802609, CE_UPDATE_PCE_LCE_MAPPINGS = 0x20802a05,
	CE_UPDATE_CLASS_DB = 0x20802a06, CE_GET_HUB_PCE_MASK = 0x20802a09, VGPU_MGR_SET_CONFIG = 0x2080400b,
	I2C_GET_PORT_INFO = 0x402c0101, DEVICE_KGR_INIT_BUG4208224_WAR = 0x802046,
	VASPACE_COPY_SERVER_RESERVED_PDES = 0x90f10106, TSG_PROMOTE_FAULT_METHOD_BUFFERS = 0xa06c010a,
	CHANNEL_BIND = 0xa06f0104, CHANNEL_STOP = 0xa06f0112,
	/* Those that only NVIDIA's kernel module and libcuda call. */
	GPU_EVICT_CTX = 0x2080012c, GPU_QUERY_ECC_STATUS = 0x2080012f, BIOS_GET_INFO_V2 = 0x20800810,
	INTERNAL_UVM_REGISTER_ACCESS_CNTR_BUFFER = 0x20800a1d,
	INTERNAL_UVM_UNREGISTER_ACCESS_CNTR_BUFFER = 0x20800a1e,
	INTERNAL_GR_GET_FECS_TRACE_HW_ENABLE = 0x20800a38, INTERNAL_MEMSYS_L2_INVALIDATE_EVICT = 0x20800a6c,
	INTERNAL_BUS_FLUSH_WITH_SYSMEMBAR = 0x20800a70, INTERNAL_PERF_BOOST_SET_2X = 0x20800a9a,
	INTERNAL_GMMU_REGISTER_FAULT_BUFFER = 0x20800a9b, INTERNAL_GMMU_UNREGISTER_FAULT_BUFFER = 0x20800a9c,
	INTERNAL_GMMU_REGISTER_CLIENT_SHADOW_FAULT_BUFFER = 0x20800a9d,
	INTERNAL_GMMU_UNREGISTER_CLIENT_SHADOW_FAULT_BUFFER = 0x20800a9e,
	INTERNAL_NVLINK_GET_NUM_ACTIVE_LINK_PER_IOCTRL = 0x20800ac7,
	INTERNAL_NVLINK_GET_TOTAL_NUM_LINK_PER_IOCTRL = 0x20800ac8,
	GR_SET_CTXSW_PREEMPTION_MODE = 0x20801210, BUS_GET_INFO_V2 = 0x20801823,
	BUS_GET_PCIE_REQ_ATOMICS_CAPS = 0x20801829, BUS_GET_PCIE_SUPPORTED_GPU_ATOMICS = 0x2080182a,
	BUS_GET_C2C_INFO = 0x2080182b, NVLINK_GET_NVLINK_DEVICE_INFO = 0x2080302c,
	NVLINK_PROGRAM_LINK_SPEED = 0x2080302e, NVLINK_GET_LINK_AND_CLOCK_INFO = 0x20803032,
	NVLINK_SYNC_LINK_MASKS_AND_VBIOS_INFO = 0x20803039, NVLINK_PROCESS_INIT_DISABLED_LINKS = 0x2080303b,
	GSP_GET_FEATURES = 0x20803601, LIBCUDA_UNNAMED = 0x20808159, GPU_GET_BRAND_CAPS = 0x800294,
	DMA_UNSET_PAGE_DIRECTORY = 0x801814,
	INTERNAL_PERF_CUDA_LIMIT_SET_CONTROL = 0x802009, DEBUG_SET_EXCEPTION_MASK = 0x83de0309,
	TSG_GPFIFO_SCHEDULE = 0xa06c0101, TSG_SET_TIMESLICE = 0xa06c0103, TSG_PREEMPT = 0xa06c0105,
	CHANNEL_GPFIFO_SCHEDULE = 0xa06f0103, CHANNEL_RESTART_RUNLIST = 0xa06f0111,
};

#define USERMODE_BASE 0x810000		/* NV_VIRTUAL_FUNCTION, of the doorbell page */
#define BAR0_BYTES (16u << 20)		/* and its alignment */
#define CHANNELS 2048			/* ids of each runlist */
#define FAULT_METHOD_BUFFER_BYTES 0x4000

static void chip_info(struct gsp_card *card, NV2080_CTRL_INTERNAL_GPU_GET_CHIP_INFO_PARAMS *p)
{
	NvU32 i;

	memset(p, 0, sizeof(*p));
	p->pciDeviceId = card->chip->device_id;
	p->pciSubDeviceId = card->chip->subsystem_id;
	p->pciRevisionId = 0xa1;
	for (i = 0; i < GSP_ARRAY_SIZE(p->regBases); i++)
		p->regBases[i] = ~0u;
	p->regBases[NV_REG_BASE_GR] = 0x400000;
	p->regBases[NV_REG_BASE_TIMER] = 0x9000;
	p->regBases[NV_REG_BASE_MASTER] = 0;
	p->regBases[NV_REG_BASE_USERMODE] = USERMODE_BASE;
}

static void bar(NV2080_CTRL_BUS_PCI_BAR_INFO *b, NvU64 address, NvU64 bytes)
{
	b->barOffset = address;
	b->barSizeBytes = bytes;
	b->barSize = (NvU32)(bytes >> 20);
}

static void bar_info(struct gsp_card *card, NV2080_CTRL_BUS_GET_PCI_BAR_INFO_PARAMS *p)
{
	memset(p, 0, sizeof(*p));
	p->pciBarCount = 3;
	bar(&p->pciBarInfo[0], card->bar0, BAR0_BYTES);
	bar(&p->pciBarInfo[1], card->bar1, card->bar1_bytes);
	bar(&p->pciBarInfo[2], card->bar2, 32 << 20);
}

static void fault_buffers(NV2080_CTRL_INTERNAL_GMMU_GET_STATIC_INFO_PARAMS *p)
{
	memset(p, 0, sizeof(*p));
	p->replayableFaultBufferSize = 0x40000;
	p->replayableShadowFaultBufferMetadataSize = 0x1000;
	p->nonReplayableFaultBufferSize = 0x20000;
	p->nonReplayableShadowFaultBufferMetadataSize = 0x1000;
}

static void memory_system(NV2080_CTRL_INTERNAL_MEMSYS_GET_STATIC_CONFIG_PARAMS *p)
{
	memset(p, 0, sizeof(*p));
	p->bDisableCompbitBacking = NV_TRUE;
	p->l2CacheSize = GSP_L2_BYTES;
	p->bFbpaPresent = NV_TRUE;
	p->comprPageSize = 64 << 10;
	p->comprPageShift = 16;
	p->ltcCount = GSP_LTCS;
	p->ltsPerLtcCount = GSP_SLICES_PER_LTC;
}

/* No encryption: RM may reach video memory through the BARs. */
static void confidential(NV2080_CTRL_INTERNAL_CONF_COMPUTE_GET_STATIC_INFO_PARAMS *p)
{
	memset(p, 0, sizeof(*p));
	p->bIsBar1Trusted = NV_TRUE;
	p->bIsPcieTrusted = NV_TRUE;
}

static void disable(struct gsp_card *card, const NV2080_CTRL_FIFO_DISABLE_CHANNELS_PARAMS *p)
{
	NvU32 i;

	for (i = 0; i < p->numChannels && i < GSP_ARRAY_SIZE(p->hChannelList); i++)
		gsp_engine_disable(card, p->hClientList[i], p->hChannelList[i], p->bDisable);
}

/* @mailbox: bus address of the other card's registers for peers, in its BAR0. */
static NV_STATUS set_peer(struct gsp_card *card, NvU32 number, NvU64 mailbox)
{
	struct gsp_card *peer = gsp_host_card(mailbox & ~(BAR0_BYTES - 1ull));

	if (number >= GSP_PEERS || !peer || peer == card)
		return NV_ERR_INVALID_ARGUMENT;
	card->peers[number] = peer;
	return NV_OK;
}

/* The call to one card, "local", and the one to the other, "remote", have the same four parameters. */
static NV_STATUS peer_of_local(struct gsp_card *card,
			       const NV2080_CTRL_CMD_INTERNAL_BUS_SETUP_P2P_MAILBOX_LOCAL_PARAMS *p)
{
	return set_peer(card, p->local2Remote, p->remoteP2PDomainLocalAddr);
}

static NV_STATUS peer_of_remote(struct gsp_card *card,
				const NV2080_CTRL_CMD_INTERNAL_BUS_SETUP_P2P_MAILBOX_REMOTE_PARAMS *p)
{
	return set_peer(card, p->remote2Local, p->localP2PDomainRemoteAddr);
}

static NV_STATUS drop_peer(struct gsp_card *card, NvU32 number)
{
	if (number >= GSP_PEERS)
		return NV_ERR_INVALID_ARGUMENT;
	card->peers[number] = 0;
	return NV_OK;
}

/*
 * Controls that set up what the card does not have, or need no step of its own: NV_OK, and the parameters stay as they
 * came. Of what RM promotes or copies to the firmware the engine reads RM's own objects.
 */
static int is_accepted(NvU32 cmd)
{
	switch (cmd) {
	case GPU_PROMOTE_CTX:
	case GPU_EVICT_CTX:
	case TSG_PROMOTE_FAULT_METHOD_BUFFERS:
	case VASPACE_COPY_SERVER_RESERVED_PDES:
	case CHANNEL_BIND:		/* the runlist is known from the allocation */
	case FIFO_RUNLIST_SET_SCHED_POLICY:	/* there is one */
	case EVENT_SET_NOTIFICATION:	/* the card has no events of its own */
	case VGPU_MGR_SET_CONFIG:	/* no virtual GPUs */
	case PERF_GET_UTIL_SAMPLES:	/* no samples: the list stays empty */
	case DEVICE_KGR_INIT_BUG4208224_WAR:	/* faults of real chips */
	case DMA_UNSET_PAGE_DIRECTORY:
	case CHANNEL_STOP:		/* RM frees it next, and the engine with it */
	/* no caches, and nothing faults or counts accesses */
	case INTERNAL_MEMSYS_L2_INVALIDATE_EVICT:
	case INTERNAL_BUS_FLUSH_WITH_SYSMEMBAR:
	case INTERNAL_UVM_REGISTER_ACCESS_CNTR_BUFFER:
	case INTERNAL_UVM_UNREGISTER_ACCESS_CNTR_BUFFER:
	case INTERNAL_GMMU_REGISTER_FAULT_BUFFER:
	case INTERNAL_GMMU_UNREGISTER_FAULT_BUFFER:
	case INTERNAL_GMMU_REGISTER_CLIENT_SHADOW_FAULT_BUFFER:
	case INTERNAL_GMMU_UNREGISTER_CLIENT_SHADOW_FAULT_BUFFER:
	/* one clock, no preemption inside a kernel, no debugger */
	case INTERNAL_PERF_BOOST_SET_2X:
	case INTERNAL_PERF_CUDA_LIMIT_SET_CONTROL:
	case GR_SET_CTXSW_PREEMPTION_MODE:
	case DEBUG_SET_EXCEPTION_MASK:
	/* no NVLink */
	case NVLINK_GET_NVLINK_DEVICE_INFO:
	case NVLINK_PROGRAM_LINK_SPEED:
	case NVLINK_GET_LINK_AND_CLOCK_INFO:
	case NVLINK_SYNC_LINK_MASKS_AND_VBIOS_INFO:
	case NVLINK_PROCESS_INIT_DISABLED_LINKS:
	/* lists of {index, data} that libcuda reads: the data stay 0 */
	case BIOS_GET_INFO_V2:
	case BUS_GET_INFO_V2:
	case BUS_GET_PCIE_REQ_ATOMICS_CAPS:
	case BUS_GET_PCIE_SUPPORTED_GPU_ATOMICS:
	case BUS_GET_C2C_INFO:
	case GPU_GET_BRAND_CAPS:
	case GSP_GET_FEATURES:
	case LIBCUDA_UNNAMED:		/* in no public header; NV_OK in recordings of cards */
		return 1;
	}
	return 0;
}

/*
 * Controls that ask for what the card has none of: NV_OK, and zeros in all parameters. RM leaves their memory as it was
 * allocated.
 */
static int is_empty(NvU32 cmd)
{
	switch (cmd) {
	/* no MIG, no partitions, no virtual GPUs */
	case GPU_GET_VMMU_SEGMENT_SIZE:
	case INTERNAL_GPU_GET_SMC_MODE:
	case INTERNAL_MEMSYS_SET_PARTITIONABLE_MEM:
	case INTERNAL_KMEMSYS_GET_MIG_MEMORY_CONFIG:
	/* no graphics pipeline: caps, Z culling, raster units, issue rates, and records of context switches */
	case INTERNAL_STATIC_KGR_GET_CAPS:
	case INTERNAL_STATIC_KGR_GET_ZCULL_INFO:
	case INTERNAL_STATIC_KGR_GET_ROP_INFO:
	case INTERNAL_STATIC_KGR_GET_PPC_MASKS:
	case INTERNAL_STATIC_KGR_GET_SM_ISSUE_RATE_MODIFIER:
	case INTERNAL_STATIC_KGR_GET_FECS_RECORD_SIZE:
	case INTERNAL_STATIC_KGR_GET_FECS_TRACE_DEFINES:
	case INTERNAL_GR_GET_FECS_TRACE_HW_ENABLE:
	case INTERNAL_STATIC_KGR_GET_PDB_PROPERTIES:
	case INTERNAL_KGR_INIT_BUG4208224_WAR:
	case INTERNAL_FLCN_SET_VIDEO_EVENT_BUFFER_MEMORY:
	/* no ECC: no unit has it, and none an error */
	case GPU_QUERY_ECC_STATUS:
	/* no registers for user space, no board with sensors or an I2C bus, no boost between GPUs */
	case INTERNAL_GPU_GET_USER_REGISTER_ACCESS_MAP:
	case GPU_GET_OEM_BOARD_INFO:
	case PMGR_GET_MODULE_INFO:
	case I2C_GET_PORT_INFO:
	case INTERNAL_PERF_GPU_BOOST_SYNC_GET_INFO:
	/* a plain PCIe link, no NVLink, no pages shared with the firmware, no secure channels */
	case INTERNAL_HSHUB_PEER_CONN_CONFIG:
	case INTERNAL_BIF_GET_STATIC_INFO:
	case INTERNAL_GET_PCIE_P2P_CAPS:
	case INTERNAL_GMMU_COPY_RESERVED_SPLIT_GVASPACE_PDES:
	case INTERNAL_CCU_MAP:
	case INTERNAL_INIT_USER_SHARED_DATA:
	case INTERNAL_FIFO_GET_NUM_SECURE_CHANNELS:
	case INTERNAL_NVLINK_GET_NUM_ACTIVE_LINK_PER_IOCTRL:
	case INTERNAL_NVLINK_GET_TOTAL_NUM_LINK_PER_IOCTRL:
	/* copy engines are as the card's own tables say: nothing is stubbed or moved */
	case CE_UPDATE_PCE_LCE_MAPPINGS:
	case CE_UPDATE_CLASS_DB:
	case CE_GET_HUB_PCE_MASK:
		return 1;
	}
	return 0;
}

/* Named once: the log shows whether a fault is the card's gap or its caller's. */
static NV_STATUS refuse(struct gsp_card *card, NvU32 cmd, NvU32 bytes)
{
	NvU32 i;

	for (i = 0; i < card->unknown_count; i++)
		if (card->unknown[i] == cmd)
			return NV_ERR_NOT_SUPPORTED;
	if (i < GSP_ARRAY_SIZE(card->unknown)) {
		card->unknown[card->unknown_count++] = cmd;
		gsp_host_log("card %u: control %#x of %u bytes is unknown: NV_ERR_NOT_SUPPORTED\n", card->index, cmd,
			     bytes);
	}
	return NV_ERR_NOT_SUPPORTED;
}

NV_STATUS gsp_control(struct gsp_card *card, NvHandle client, NvHandle object, NvU32 cmd,
		      void *params, NvU32 bytes)
{
	switch (cmd) {
	case GPU_GET_GID_INFO:		/* up to 535 */
		gsp_gid(card, params);
		break;
	case GPU_GET_ENGINES_V2:
		gsp_engine_list(card, params);
		break;
	case GPU_GET_CONSTRUCTED_FALCON_INFO:
		gsp_falcons(card, params);
		break;
	case FIFO_GET_DEVICE_INFO_TABLE:
		gsp_device_table(card, params);
		break;
	case INTERNAL_GET_DEVICE_INFO_TABLE:
		gsp_device_info(card, params);
		break;
	case INTERNAL_INTR_GET_KERNEL_TABLE:
		gsp_interrupt_table(params);
		break;
	case INTERNAL_GPU_GET_CHIP_INFO:
		chip_info(card, params);
		break;
	case INTERNAL_FIFO_GET_NUM_CHANNELS:
		((NV2080_CTRL_INTERNAL_FIFO_GET_NUM_CHANNELS_PARAMS *)params)->numChannels = CHANNELS;
		break;
	case INTERNAL_GMMU_GET_STATIC_INFO:
		fault_buffers(params);
		break;
	case INTERNAL_MEMSYS_GET_STATIC_CONFIG:
		memory_system(params);
		break;
	case INTERNAL_DISPLAY_GET_IP_VERSION:
		return NV_ERR_NOT_SUPPORTED;	/* a card without display */
	case INTERNAL_STATIC_KGR_GET_INFO:
		gsp_gr_info(card, params);
		break;
	case INTERNAL_STATIC_KGR_GET_GLOBAL_SM_ORDER:
		gsp_gr_sms(card, params);
		break;
	case INTERNAL_STATIC_KGR_GET_FLOORSWEEPING_MASKS:
		gsp_gr_masks(card, params);
		break;
	case INTERNAL_STATIC_KGR_GET_CONTEXT_BUFFERS_INFO:
		gsp_gr_buffers(params);
		break;
	case INTERNAL_CONF_COMPUTE_GET_STATIC_INFO:
		confidential(params);
		break;
	case INTERNAL_BUS_SETUP_P2P_MAILBOX_LOCAL:
		return peer_of_local(card, params);
	case INTERNAL_BUS_SETUP_P2P_MAILBOX_REMOTE:
		return peer_of_remote(card, params);
	case INTERNAL_BUS_DESTROY_P2P_MAILBOX:
		return drop_peer(card, ((NV2080_CTRL_INTERNAL_BUS_DESTROY_P2P_MAILBOX_PARAMS *)params)->peerIdx);
	case BUS_GET_PCI_BAR_INFO:
		bar_info(card, params);
		break;
	case CE_GET_FAULT_METHOD_BUFFER_SIZE:
		*(NvU32 *)params = FAULT_METHOD_BUFFER_BYTES;
		break;
	case CE_GET_CE_PCE_MASK:
		gsp_copy_mask(params);
		break;
	case CE_GET_PHYSICAL_CAPS:
		gsp_copy_caps(card, params);
		break;
	case CE_GET_ALL_PHYSICAL_CAPS:
		gsp_all_copy_caps(card, params);
		break;
	case GPU_GET_INFO_V2:
		gsp_gpu_info(params);
		break;
	case GPU_GET_NAME_STRING:
		gsp_gpu_name(card, params);
		break;
	case GPU_GET_SHORT_NAME_STRING:
		gsp_gpu_short_name(card, params);
		break;
	case FB_GET_INFO_V2:
		gsp_fb_info(card, params);
		break;
	case GSP_CLOCK_INTERNAL_DOMAINS:
	case GSP_CLOCK_DOMAINS:
	case GSP_CLOCK_MAP_DOMAINS:
	case GSP_CLOCK_RATES:
	case GSP_CLOCK_BEFORE_RATES:
		return (NV_STATUS)gsp_clocks(cmd, card->chip->graphics_khz, card->chip->memory_khz, params);
	case TSG_GPFIFO_SCHEDULE:
	case CHANNEL_GPFIFO_SCHEDULE:
		gsp_engine_schedule(card, client, object, *(NvBool *)params);
		break;
	case TSG_SET_TIMESLICE:
		gsp_engine_timeslice(card, client, object, *(NvU64 *)params);
		break;
	case TSG_PREEMPT:
		gsp_engine_preempt(card, client, object);
		break;
	case CHANNEL_RESTART_RUNLIST:
		gsp_engine_restart(card, client, object);
		break;
	case FIFO_DISABLE_CHANNELS:
		disable(card, params);
		break;
	default:
		if (is_empty(cmd))
			memset(params, 0, bytes);
		else if (!is_accepted(cmd))
			return refuse(card, cmd, bytes);
	}
	return NV_OK;
}
