// SPDX-License-Identifier: MIT OR GPL-2.0
/* Answers that the module gives in place of the driver. */
#include "nv_answer.h"
#include "nv_abi.h"

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
	memset(params + NV_P2P_CAPS, 0, NV_P2P_STATUS - NV_P2P_CAPS);
	memset(params + NV_P2P_STATUS, NV_P2P_STATUS_NOT_SUPPORTED, NV_P2P_STATUS_COUNT);
}

/**
 * cgpu_call_not_there() - answer a question for peers and fabric: none
 * @cmd: the control
 * @params: the caller's, with its arguments; its answer afterwards
 * @size: of @params
 *
 * The objects that would be created next are refused (NV50_P2P, fabric memory,
 * multicast). With another answer a program would fail there instead of using its
 * fallback.
 */
bool cgpu_call_not_there(u32 cmd, u8 *params, u32 size)
{
	switch (cmd) {
	case NV0000_CTRL_P2P_CAPS:
		if (size < NV_P2P_PEERS)
			return false;
		no_p2p(params);
		return true;
	case NV0000_CTRL_P2P_CAPS_V2:
		if (size < NV_P2P_V2_PEERS)
			return false;
		no_p2p(params);
		memset(params + NV_P2P_V2_PEERS, 0xff, size - NV_P2P_V2_PEERS);
		return true;
	case NV0000_CTRL_P2P_CAPS_MATRIX:
		if (size < NV_P2P_MATRIX_CAPS)
			return false;
		memset(params + NV_P2P_MATRIX_CAPS, 0, size - NV_P2P_MATRIX_CAPS);
		return true;
	case NV0000_CTRL_FABRIC_STATUS:
		if (size != sizeof(u32))
			return false;
		put32(params, NV_FABRIC_STATUS_SKIP);
		return true;
	case NV2080_CTRL_FABRIC_PROBE:
	case NV2080_CTRL_NVLINK_CAPS:
	case NV2080_CTRL_NVLINK_STATUS:
		memset(params, 0, size);
		return true;
	}
	return false;
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

	if (size != NV_THERMAL_SIZE || get32(params + NV_THERMAL_STRIDE_AT) != NV_THERMAL_STRIDE)
		return false;
	count = get32(params + NV_THERMAL_COUNT);
	if (count > NV_THERMAL_MAX)
		return false;
	for (i = 0; i < count; i++)
		if (!is_thermal_read(get32(params + NV_THERMAL_LIST + i * NV_THERMAL_STRIDE +
					   NV_THERMAL_OPCODE)))
			return false;
	return true;
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
	put32(params + NV_CTXSW_FLAGS, NV_CTXSW_FLAGS_CILP_SET);
	put32(params + NV_CTXSW_GFXP, 0);
	put32(params + NV_CTXSW_CILP, NV_CTXSW_CILP_CILP);
	memset(params + NV_CTXSW_ROUTE, 0, NV_CTXSW_SIZE - NV_CTXSW_ROUTE);
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
	return type == NV_SHARE_OS_TOKEN || type == NV_SHARE_PID;
}
