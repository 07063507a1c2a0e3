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
 * Internal controls give RM what the firmware knows. RM leaves their memory as it was allocated,
 * so that one without an answer of ours must be zeroed.
 */
static int is_question(NvU32 cmd)
{
	switch (cmd >> 8) {
	case 0x20800a:			/* internal */
	case 0x20800b:
	case 0x20802a:			/* copy engines */
		return 1;
	}
	return 0;
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
		if (is_question(cmd))
			memset(params, 0, bytes);
	}
	return NV_OK;
}
