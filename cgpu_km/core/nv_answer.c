// SPDX-License-Identifier: MIT OR GPL-2.0-only
/* Answers that the module gives in place of the driver. */
#include "nv_answer.h"
#include "nv_struct.h"
#include "nv_row.h"

static void put32(u8 *p, u32 value)
{
	memcpy(p, &value, sizeof(value));
}

static u32 get32(const u8 *p)
{
	u32 value;

	memcpy(&value, p, sizeof(value));
	return value;
}

/* GET_P2P_CAPS and its V2: which GPUs and how many stays, then no capability, each with
 * its reason. Behind them are a list of peers' ids, or a pointer to one.
 */
static void no_p2p(u8 *params)
{
	memset(params + AT(nv_p2p_caps, p2pCaps), 0, AT(nv_p2p_caps, p2pCapsStatus) - AT(nv_p2p_caps, p2pCaps));
	memset(params + AT(nv_p2p_caps, p2pCapsStatus), NV0000_P2P_CAPS_STATUS_NOT_SUPPORTED,
	       NV0000_CTRL_P2P_CAPS_INDEX_TABLE_SIZE);
}

/**
 * cgpu_call_not_there() - answer a question for peers and fabric: none
 * @cmd: the control
 * @params: the caller's, with its arguments; its answer afterwards
 * @size: of @params
 *
 * The objects that would be created next are refused (fabric memory, multicast; peers
 * without a second GPU). With another answer a program would fail there instead of using
 * its fallback.
 */
bool cgpu_call_not_there(u32 cmd, u8 *params, u32 size)
{
	switch (cmd) {
	case NV0000_CTRL_CMD_SYSTEM_GET_P2P_CAPS:
		if (size < AT(nv_p2p_caps, busPeerIds))
			return false;
		no_p2p(params);
		return true;
	case NV0000_CTRL_CMD_SYSTEM_GET_P2P_CAPS_V2:
		if (size < AT(nv_p2p_caps_v2, busPeerIds))
			return false;
		no_p2p(params);
		memset(params + AT(nv_p2p_caps_v2, busPeerIds), 0xff, size - AT(nv_p2p_caps_v2, busPeerIds));
		return true;
	case NV0000_CTRL_CMD_SYSTEM_GET_P2P_CAPS_MATRIX:
		if (size < AT(nv_p2p_matrix, p2pCaps))
			return false;
		memset(params + AT(nv_p2p_matrix, p2pCaps), 0, size - AT(nv_p2p_matrix, p2pCaps));
		return true;
	case NV0000_CTRL_CMD_SYSTEM_GET_FABRIC_STATUS:
		if (size != sizeof(u32))
			return false;
		put32(params, NV0000_CTRL_GET_SYSTEM_FABRIC_STATUS_SKIP);
		return true;
	case NV2080_CTRL_CMD_GET_GPU_FABRIC_PROBE_INFO:
	case NV2080_CTRL_CMD_NVLINK_GET_NVLINK_CAPS:
	case NV2080_CTRL_CMD_NVLINK_GET_NVLINK_STATUS:
		memset(params, 0, size);
		return true;
	}
	return false;
}

/* The @n ids at @ids, at most @max, among those of the container. */
static u32 peers_of(const u8 *ids, u32 n, u32 max, const struct cgpu_peer_gpu *own, u32 count)
{
	u32 first = 0, i, k, found = CGPU_PEERS_NONE;

	if (!n || n > max)
		return CGPU_PEERS_FOREIGN;
	for (i = 0; i < n; i++) {
		for (k = 0; k < count && own[k].gpu_id != get32(ids + i * sizeof(u32)); k++)
			;
		if (k == count)
			return CGPU_PEERS_FOREIGN;
		if (!i)
			first = k;
		if (!own[k].arch || own[k].arch != own[first].arch)
			found = CGPU_PEERS_MIXED;
		else if (k != first && found == CGPU_PEERS_NONE)
			found = CGPU_PEERS_DRIVER;
	}
	return found;
}

/* Whether two GPUs of the container can be peers at all: two of one architecture. */
static bool may_have_peers(const struct cgpu_peer_gpu *own, u32 count)
{
	u32 i, k;

	for (i = 0; i < count; i++)
		for (k = i + 1; k < count; k++)
			if (own[i].arch && own[i].arch == own[k].arch)
				return true;
	return false;
}

/* Pairs of two groups, each with an answer of its own: the driver gives those of different
 * architectures none.
 */
static u32 peers_of_groups(const u8 *params, const struct cgpu_peer_gpu *own, u32 count)
{
	u32 b = get32(params + AT(nv_p2p_matrix, grpBCount));

	if (peers_of(params + AT(nv_p2p_matrix, gpuIdGrpA), get32(params + AT(nv_p2p_matrix, grpACount)),
		     NV0000_CTRL_SYSTEM_MAX_P2P_GROUP_GPUS, own, count) == CGPU_PEERS_FOREIGN)
		return CGPU_PEERS_FOREIGN;
	if (b && peers_of(params + AT(nv_p2p_matrix, gpuIdGrpB), b, NV0000_CTRL_SYSTEM_MAX_P2P_GROUP_GPUS, own,
			  count) == CGPU_PEERS_FOREIGN)
		return CGPU_PEERS_FOREIGN;
	return CGPU_PEERS_DRIVER;
}

/**
 * cgpu_call_peers() - who answers a question for peers and NVLink
 * @cmd: the control
 * @params: the caller's, which the driver will use
 * @size: of @params
 * @own: the GPUs of the container
 * @count: of @own
 *
 * A container with one GPU sees a card without peers, whatever it asks. GPUs of different
 * architectures are no peers: for PCIe the driver says so as well, and nothing is known of others.
 * The links of a GPU are shown where the container has two of one architecture; the control does
 * not say with which GPU. Behind the capabilities libcuda makes a call of each GPU that no header names, with one byte, 0,
 * and takes an error for GPUs that cannot be peers (seen in 550). What firmware would do is not
 * known, so it is not forwarded.
 *
 * Return: enum cgpu_peers.
 */
u32 cgpu_call_peers(u32 cmd, const u8 *params, u32 size, const struct cgpu_peer_gpu *own,
		    u32 count)
{
	if (count < 2)
		return CGPU_PEERS_NONE;
	switch (cmd) {
	case NV0000_CTRL_CMD_SYSTEM_GET_P2P_CAPS:
	case NV0000_CTRL_CMD_SYSTEM_GET_P2P_CAPS_V2:
		if (size < AT(nv_p2p_caps, p2pCaps))
			return CGPU_PEERS_FOREIGN;
		return peers_of(params, get32(params + AT(nv_p2p_caps, gpuCount)),
				NV0000_CTRL_SYSTEM_MAX_ATTACHED_GPUS, own, count);
	case NV0000_CTRL_CMD_SYSTEM_GET_P2P_CAPS_MATRIX:
		if (size < AT(nv_p2p_matrix, p2pCaps))
			return CGPU_PEERS_FOREIGN;
		return peers_of_groups(params, own, count);
	case NV2080_CTRL_CMD_NVLINK_GET_NVLINK_CAPS:
	case NV2080_CTRL_CMD_NVLINK_GET_NVLINK_STATUS:
		return may_have_peers(own, count) ? CGPU_PEERS_DRIVER : CGPU_PEERS_MIXED;
	case NV2080_CTRL_PEERS_UNNAMED:
		return may_have_peers(own, count) ? CGPU_PEERS_OK : CGPU_PEERS_MIXED;
	}
	return CGPU_PEERS_FOREIGN;
}

/* ctrl2080thermal.h of 575 on: these and no others have names there, and each reads. */
static bool is_thermal_read(u32 opcode)
{
	switch (opcode) {
	case 0x0100:	/* how many targets */
	case 0x0101:	/* a target's type */
	case 0x0301:	/* a provider's type */
	case 0x0500:	/* how many sensors */
	case 0x0510:	/* a sensor's provider */
	case 0x0520:	/* a sensor's target */
	case 0x0540:	/* a sensor's range */
	case 0x1500:	/* a sensor's reading */
		return true;
	}
	return false;
}

/**
 * cgpu_call_thermal_reads() - may this list of instructions pass
 * @params: a copy that the driver will use
 * @size: of @params
 *
 * Return: false if one of them is not known to read only, or if the driver would find
 * them elsewhere than here.
 */
bool cgpu_call_thermal_reads(const u8 *params, u32 size)
{
	u32 count, i;

	if (size != sizeof(struct nv_thermal) ||
	    get32(params + AT(nv_thermal, clientInstructionSizeOf)) != sizeof(struct nv_thermal_op))
		return false;
	count = get32(params + AT(nv_thermal, instructionListSize));
	if (count > NV2080_CTRL_THERMAL_SYSTEM_INSTRUCTION_MAX_COUNT)
		return false;
	for (i = 0; i < count; i++)
		if (!is_thermal_read(get32(params + AT(nv_thermal, instructionList) + i * sizeof(struct nv_thermal_op) +
					   AT(nv_thermal_op, opcode))))
			return false;
	return true;
}

/**
 * cgpu_call_may_map_dma() - is each object of a mapping where the driver takes it to be
 * @map: what the call names
 *
 * The driver believes the device. Memory of another GPU it maps at the same addresses of the
 * device's own memory, whoever has that (seen in 535 and 550, tests/rm/test_other_gpu.py). With
 * the flags of a peer it maps the peer's, by an id that goes to the next pair of GPUs when the
 * peer object is freed, while the mapping stays. Libraries map peers through nvidia-uvm, which
 * has a peer object of its own for as long. Of a channel the driver maps the page with its USERD,
 * which has those of other channels as well. A kernel mapping takes as much of BAR1 as the memory
 * has, in no quota (virtual_mem.c).
 */
bool cgpu_call_may_map_dma(const struct cgpu_dma_map *map)
{
	if (map->kind != CGPU_KIND_VIDMEM && map->kind != CGPU_KIND_SYSMEM &&
	    map->kind != CGPU_KIND_DOORBELL)
		return false;
	if (map->space != map->device || map->flags & (NVOS46_FLAGS_P2P | NVOS46_FLAGS_KERNEL_MAPPING))
		return false;
	return map->memory == map->device || map->kind == CGPU_KIND_SYSMEM;
}

/**
 * cgpu_call_force_cilp() - compute is preempted between instructions
 * @params: NV2080_CTRL_GR_SET_CTXSW_PREEMPTION_MODE's
 *
 * A coarser mode would let a kernel outlast its turn. Graphics is left as it is, and no
 * engine but the channel's own is named.
 */
void cgpu_call_force_cilp(u8 *params)
{
	put32(params + AT(nv_ctxsw_mode, flags), NV2080_CTRL_GR_SET_CTXSW_PREEMPTION_MODE_FLAGS_CILP_SET);
	put32(params + AT(nv_ctxsw_mode, gfxpPreemptMode), 0);
	put32(params + AT(nv_ctxsw_mode, cilpPreemptMode), NV2080_CTRL_SET_CTXSW_PREEMPTION_MODE_COMPUTE_CILP);
	memset(params + AT(nv_ctxsw_mode, grRouteInfo), 0,
	       sizeof(struct nv_ctxsw_mode) - AT(nv_ctxsw_mode, grRouteInfo));
}

/**
 * cgpu_call_share_stays() - does a share policy leave the container out of it
 * @type: RS_SHARE_TYPE_* of rs_access.h
 *
 * A wider one names clients of the host: all, those of a GPU, of a partition, one.
 *
 * Return: true for the same user and for the same process.
 */
bool cgpu_call_share_stays(u16 type)
{
	return type == RS_SHARE_TYPE_OS_SECURITY_TOKEN || type == RS_SHARE_TYPE_PID;
}
