// SPDX-License-Identifier: MIT OR GPL-2.0-only
/*
 * The GSP: RM's remote procedure calls end here instead of in firmware. The message buffer of a
 * call is also its answer, so there is no queue: sending does nothing and receiving computes the
 * answer in place. Calls and layout: rpc_global_enums.h, rpc.c and kernel_gsp.c of
 * open-gpu-kernel-modules.
 */
#include "card.h"

struct gsp_card *gsp_card_of(struct OBJGPU *gpu)
{
	return gpu ? gsp_host_card(gpu->busInfo.gpuPhysAddr) : 0;
}

static rpc_message_header_v *header_of(struct OBJRPC *rpc)
{
	return (rpc_message_header_v *)rpc->message_buffer;
}

static void seen(struct gsp_card *card, enum gsp_request request, NvU32 client, NvU32 parent,
		 NvU32 object, NvU32 number, const void *params, NvU32 bytes)
{
	struct gsp_seen s = { request, client, parent, object, number, bytes, params };

	gsp_host_seen(card, &s);
}

static enum gsp_space space_of(NvU32 address_space)
{
	return address_space == ADDR_FBMEM ? GSP_FB : GSP_SYSMEM;
}

/* alloc_channel.h: NV_KERNELCHANNEL_ALLOC_INTERNALFLAGS_PRIVILEGE */
enum { PRIVILEGE = 3, PRIVILEGE_KERNEL = 2 };

/*
 * alloc_channel.h: RM has chosen the channel's number, and passes it as the page of its USERD (NVOS04_FLAGS_CHANNEL_
 * USERD_INDEX_PAGE_VALUE, 20:12) and the place there (USERD_INDEX_VALUE, 10:8). cid counts all channels of all GPUs.
 */
static gsp_u32 channel_id(NvU32 flags)
{
	return (flags >> 12 & 0x1ff) << 3 | (flags >> 8 & 7);
}

/* cl*6f.h: all GPFIFO classes end in 6f and have these parameters. */
static NV_STATUS new_channel(struct gsp_card *card, const rpc_gsp_rm_alloc_v03_00 *a)
{
	const NV_CHANNEL_ALLOC_PARAMS *p = (const void *)a->params;
	struct gsp_channel c = {
		.client = a->hClient, .parent = a->hParent, .handle = a->hObject, .class = a->hClass,
		.engine = p->engineType, .id = channel_id(p->flags),
		.privileged = (p->internalFlags & PRIVILEGE) == PRIVILEGE_KERNEL,
		.gpfifo = p->gpFifoOffset, .entries = p->gpFifoEntries,
		.userd = { space_of(p->userdMem.addressSpace), p->userdMem.base },
		.instance = { space_of(p->instanceMem.addressSpace), p->instanceMem.base },
	};

	return gsp_engine_channel(card, &c) ? NV_OK : NV_ERR_NO_MEMORY;
}

static void alloc(struct gsp_card *card, rpc_gsp_rm_alloc_v03_00 *a)
{
	seen(card, GSP_ALLOC, a->hClient, a->hParent, a->hObject, a->hClass, a->params, a->paramsSize);
	a->status = NV_OK;
	if ((a->hClass & 0xff) != 0x6f)
		return;
	a->status = a->paramsSize < sizeof(NV_CHANNEL_ALLOC_PARAMS) ? NV_ERR_INVALID_PARAM_STRUCT :
		    new_channel(card, a);
}

static void release(struct gsp_card *card, const rpc_free_v03_00 *f)
{
	seen(card, GSP_FREE, f->params.hRoot, f->params.hObjectParent, f->params.hObjectOld, 0, 0, 0);
	gsp_engine_free(card, f->params.hRoot, f->params.hObjectOld);
}

static void control(struct gsp_card *card, rpc_gsp_rm_control_v03_00 *c)
{
	seen(card, GSP_CONTROL, c->hClient, 0, c->hObject, c->cmd, c->params, c->paramsSize);
	c->status = gsp_control(card, c->hClient, c->hObject, c->cmd, c->params, c->paramsSize);
}

static void answer(struct gsp_card *card, rpc_message_header_v *h)
{
	rpc_generic_union *m = h->rpc_message_data;

	h->rpc_result = NV_OK;
	h->rpc_result_private = NV_OK;
	switch (h->function) {
	case RPC_GET_GSP_STATIC_INFO:
		gsp_static_info(card, (GspStaticConfigInfo *)m);
		break;
	case RPC_GSP_RM_CONTROL:
		control(card, &m->gsp_rm_control_v03_00);
		break;
	case RPC_GSP_RM_ALLOC:
		alloc(card, &m->gsp_rm_alloc_v03_00);
		break;
	case RPC_FREE:
		release(card, &m->free_v03_00);
		break;
	default:
		seen(card, GSP_OTHER, 0, 0, 0, h->function, 0, h->length);
	}
}

/*
 * A call that is longer than the buffer comes as one piece with a header and pieces of its own
 * function. They are put together here and answered as a whole; the answer leaves in the same
 * pieces.
 */
static NV_STATUS keep_piece(struct gsp_card *card, const rpc_message_header_v *h, NvU32 from)
{
	NvU32 bytes = h->length - from;
	char *all = gsp_host_alloc(card->message_bytes + bytes);

	if (!all)
		return NV_ERR_NO_MEMORY;
	if (card->message_bytes)
		memcpy(all, card->message, card->message_bytes);
	memcpy(all + card->message_bytes, (const char *)h + from, bytes);
	gsp_host_free(card->message);
	card->message = all;
	card->message_bytes += bytes;
	card->message_at = 0;
	return NV_OK;
}

static NV_STATUS send(struct OBJGPU *gpu, struct OBJRPC *rpc)
{
	struct gsp_card *card = gsp_card_of(gpu);
	rpc_message_header_v *h = header_of(rpc);

	if (h->function == RPC_CONTINUATION_RECORD)
		return keep_piece(card, h, sizeof(*h));
	card->message_bytes = 0;
	if (h->length < rpc->maxRpcSize)
		return NV_OK;
	return keep_piece(card, h, 0);
}

static NV_STATUS next_piece(struct gsp_card *card, struct OBJRPC *rpc)
{
	rpc_message_header_v *h = header_of(rpc);
	NvU32 from = card->message_at ? sizeof(*h) : 0, left = card->message_bytes - card->message_at;
	NvU32 bytes = rpc->maxRpcSize - from;

	if (bytes > left)
		bytes = left;
	memcpy((char *)h + from, (char *)card->message + card->message_at, bytes);
	h->length = from + bytes;
	card->message_at += bytes;
	return NV_OK;
}

static NV_STATUS receive(struct OBJGPU *gpu, struct OBJRPC *rpc, NvU32 function)
{
	struct gsp_card *card = gsp_card_of(gpu);

	if (function == RPC_CONTINUATION_RECORD)
		return next_piece(card, rpc);
	if (!card->message_bytes) {
		answer(card, header_of(rpc));
		return NV_OK;
	}
	answer(card, card->message);
	return next_piece(card, rpc);
}

/*
 * In place of the function that extracts the VBIOS, prepares and boots the firmware. What RM does
 * before (queues) and after (everything) is its own.
 */
NV_STATUS kgspInitRm_IMPL(struct OBJGPU *gpu, struct KernelGsp *gsp, GSP_FIRMWARE *firmware)
{
	struct gsp_card *card = gsp_card_of(gpu);
	NvU32 locked = 0;
	NV_STATUS status;

	(void)firmware;
	if (!card)
		return NV_ERR_INVALID_STATE;
	card->gpu = gpu;
	card->calls = &gsp_calls;
	card->message_bytes = 0;
	gsp->pRpc->obj.__rpcSendMessage__ = send;
	gsp->pRpc->obj.__rpcRecvPoll__ = receive;
	gsp_engine_start(card);
	status = rmGpuGroupLockAcquire(gpu->gpuInstance, GPU_LOCK_GRP_SUBDEVICE, 0, RM_LOCK_INIT, &locked);
	if (status != NV_OK)
		return status;
	status = RmRpcSetGuestSystemInfo(gpu, gsp->pRpc);
	if (status == NV_OK)
		status = rpcGetGspStaticInfo_v14_00(gpu, gsp->pRpc);
	rmGpuGroupLockRelease(locked, 0);
	return status;
}

NV_STATUS kgspUnloadRm_IMPL(struct OBJGPU *gpu, struct KernelGsp *gsp)
{
	struct gsp_card *card = gsp_card_of(gpu);
	NvU32 number;

	(void)gsp;
	if (!card)
		return NV_OK;
	gsp_engine_stop(card);
	gsp_host_free(card->message);
	card->message = 0;
	card->message_bytes = 0;
	card->gpu = 0;
	for (number = 0; number < GSP_PEERS; number++)
		card->peers[number] = 0;
	return NV_OK;
}
