/* SPDX-License-Identifier: MIT OR GPL-2.0-only */
/* The parameters of controls, in the form of nv_struct.h. */
#ifndef CGPU_CORE_NV_STRUCT_CONTROL_H
#define CGPU_CORE_NV_STRUCT_CONTROL_H

#include "env.h"
#include "nv_abi.h"

/* src/common/sdk/nvidia/inc/ctrl/ */
struct nv_addr_space {		/* NV0000_CTRL_CLIENT_GET_ADDR_SPACE_TYPE_PARAMS */
	u32 hObject, mapFlags, addrSpaceType;
};

struct nv_id_info {		/* NV0000_CTRL_GPU_GET_ID_INFO_V2_PARAMS */
	u32 gpuId, gpuFlags, deviceInstance, subDeviceInstance, sliStatus, boardId, gpuInstance;
	s32 numaId;
};

struct nv_uuid_from_id {	/* NV0000_CTRL_GPU_GET_UUID_FROM_GPU_ID_PARAMS */
	u32 gpuId, flags;
	u8 gpuUuid[256];
	u32 uuidStrLen;
};

struct nv_p2p_caps {		/* NV0000_CTRL_SYSTEM_GET_P2P_CAPS_PARAMS grows */
	u32 gpuIds[NV0000_CTRL_SYSTEM_MAX_ATTACHED_GPUS], gpuCount, p2pCaps, p2pOptimalReadCEs, p2pOptimalWriteCEs;
	u8 p2pCapsStatus[NV0000_CTRL_P2P_CAPS_INDEX_TABLE_SIZE];
	u64 busPeerIds, busEgmPeerIds;
};

struct nv_p2p_caps_v2 {		/* NV0000_CTRL_SYSTEM_GET_P2P_CAPS_V2_PARAMS grows */
	u32 gpuIds[NV0000_CTRL_SYSTEM_MAX_ATTACHED_GPUS], gpuCount, p2pCaps, p2pOptimalReadCEs, p2pOptimalWriteCEs;
	u8 p2pCapsStatus[NV0000_CTRL_P2P_CAPS_INDEX_TABLE_SIZE];
	u32 busPeerIds[1024], busEgmPeerIds[1024];
};

struct nv_p2p_matrix {		/* NV0000_CTRL_SYSTEM_GET_P2P_CAPS_MATRIX_PARAMS */
	u32 grpACount, grpBCount, gpuIdGrpA[NV0000_CTRL_SYSTEM_MAX_P2P_GROUP_GPUS];
	u32 gpuIdGrpB[NV0000_CTRL_SYSTEM_MAX_P2P_GROUP_GPUS];
	u32 p2pCaps[8][8], a2bOptimalReadCes[8][8], a2bOptimalWriteCes[8][8];
	u32 b2aOptimalReadCes[8][8], b2aOptimalWriteCes[8][8];
};

/* ctrl0000unix.h: objects on files */
struct nv_rm_object {
	u32 hDevice, hParent, hObject;
};

struct nv_export_object {	/* NV0000_CTRL_OS_UNIX_EXPORT_OBJECT */
	u32 type;
	union {
		struct nv_rm_object rmObject;
	} data;
};

struct nv_export_to_fd {	/* NV0000_CTRL_OS_UNIX_EXPORT_OBJECT_TO_FD_PARAMS */
	struct nv_export_object object;
	s32 fd;
	u32 flags;
};

struct nv_import_from_fd {	/* NV0000_CTRL_OS_UNIX_IMPORT_OBJECT_FROM_FD_PARAMS */
	s32 fd;
	struct nv_export_object object;
};

struct nv_create_export_fd {	/* NV0000_CTRL_OS_UNIX_CREATE_EXPORT_OBJECT_FD_PARAMS */
	u32 hDevice;
	u16 maxObjects;
	u8 metadata[64];
	s32 fd;
};

struct nv_exports_to_fd {	/* NV0000_CTRL_OS_UNIX_EXPORT_OBJECTS_TO_FD_PARAMS */
	s32 fd;
	u32 hDevice;
	u16 maxObjects;
	u8 metadata[64];
	u32 objects[NV0000_CTRL_OS_UNIX_EXPORT_OBJECTS_TO_FD_MAX_OBJECTS];
	u16 numObjects, index;
};

struct nv_imports_from_fd {	/* NV0000_CTRL_OS_UNIX_IMPORT_OBJECTS_FROM_FD_PARAMS */
	s32 fd;
	u32 hParent, objects[NV0000_CTRL_OS_UNIX_IMPORT_OBJECTS_TO_FD_MAX_OBJECTS];
	u8 objectTypes[NV0000_CTRL_OS_UNIX_IMPORT_OBJECTS_TO_FD_MAX_OBJECTS];
	u16 numObjects, index;
};

struct nv_surface_info {	/* NV0041_CTRL_GET_SURFACE_INFO_PARAMS */
	u32 surfaceInfoListSize;
	u64 surfaceInfoList;
};

struct nv_info {		/* NVXXXX_CTRL_XXX_INFO */
	u32 index, data;
};

struct nv_fb_info {		/* NV2080_CTRL_FB_GET_INFO_PARAMS */
	u32 fbInfoListSize;
	u64 fbInfoList;
};

struct nv_fb_info_v2 {		/* NV2080_CTRL_FB_GET_INFO_V2_PARAMS grows */
	u32 fbInfoListSize;
	struct nv_info fbInfoList[NV_FB_INFO_MAX];
};

struct nv_fifo_info {		/* NV2080_CTRL_FIFO_GET_INFO_PARAMS */
	u32 fifoInfoTblSize;
	struct nv_info fifoInfoTbl[NV2080_CTRL_FIFO_GET_INFO_MAX_ENTRIES];
	u32 engineType;
};

struct nv_disable_channels {	/* NV2080_CTRL_FIFO_DISABLE_CHANNELS_PARAMS */
	u8 bDisable;
	u32 numChannels;
	u8 bOnlyDisableScheduling, bRewindGpPut;
	u64 pRunlistPreemptEvent;
	u32 hClientList[NV2080_CTRL_FIFO_DISABLE_CHANNELS_MAX_ENTRIES];
	u32 hChannelList[NV2080_CTRL_FIFO_DISABLE_CHANNELS_MAX_ENTRIES];
};

struct nv_pids {		/* NV2080_CTRL_GPU_GET_PIDS_PARAMS */
	u32 idType, id, pidTblCount, pidTbl[950];
};

struct nv_pid_memory {		/* NV2080_CTRL_GPU_PID_INFO_VIDEO_MEMORY_USAGE_DATA */
	u64 memPrivate, memSharedOwned, memSharedDuped;
	u64 protectedMemPrivate, protectedMemSharedOwned, protectedMemSharedDuped;
};

struct nv_subscription {	/* NV2080_CTRL_SMC_SUBSCRIPTION_INFO */
	u32 computeInstanceId, gpuInstanceId;
};

struct nv_pid_info {		/* NV2080_CTRL_GPU_PID_INFO */
	u32 pid, index, result;
	struct nv_pid_memory data;
	struct nv_subscription smcSubscription;
};

struct nv_pids_info {		/* NV2080_CTRL_GPU_GET_PID_INFO_PARAMS */
	u32 pidInfoListCount;
	struct nv_pid_info pidInfoList[NV2080_CTRL_GPU_GET_PID_INFO_MAX_COUNT];
};

struct nv_gid_info {		/* NV2080_CTRL_GPU_GET_GID_INFO_PARAMS */
	u32 index, flags, length;
	u8 data[256];
};

struct nv_arch_info {		/* NV2080_CTRL_MC_GET_ARCH_INFO_PARAMS */
	u32 architecture, implementation, revision;
	u8 subRevision;
};

struct nv_ce_caps {		/* NV2080_CTRL_CE_GET_ALL_CAPS_PARAMS from 545 */
	u8 capsTbl[64][NV2080_CTRL_CE_CAPS_TBL_SIZE];
	u64 present;
};

struct nv_ctxsw_mode {		/* NV2080_CTRL_GR_SET_CTXSW_PREEMPTION_MODE_PARAMS */
	u32 flags, hChannel, gfxpPreemptMode, cilpPreemptMode;
	u64 grRouteInfo[2];
};

struct nv_thermal_op {		/* NV2080_CTRL_THERMAL_SYSTEM_INSTRUCTION from 575 */
	u32 result, executed, opcode, operands[8];
};

struct nv_thermal {		/* NV2080_CTRL_THERMAL_SYSTEM_EXECUTE_V2_PARAMS from 575 */
	u32 clientAPIVersion, clientAPIRevision, clientInstructionSizeOf, executeFlags;
	u32 successfulInstructions, instructionListSize;
	struct nv_thermal_op instructionList[NV2080_CTRL_THERMAL_SYSTEM_INSTRUCTION_MAX_COUNT];
};

struct nv_engine_util {		/* NV2080_CTRL_PERF_GPUMON_ENGINE_UTIL_SAMPLE from 570 */
	u32 util, vgpuScale, procId, subProcessID;
	char subProcessName[100];
	u64 pOsPidInfo;
};

struct nv_util_sample {		/* NV2080_CTRL_PERF_GPUMON_PERFMON_UTIL_SAMPLE from 570 */
	u64 base;
	struct nv_engine_util fb, gr, nvenc, nvdec, nvjpg, nvofa;
};

struct nv_util_samples {	/* NV2080_CTRL_PERF_GET_GPUMON_PERFMON_UTIL_SAMPLES_V2_PARAMS from 570 */
	u8 type;
	u32 bufSize, count, tracker;
	struct nv_util_sample samples[72];
};

struct nv_schedule {		/* NVA06F_CTRL_GPFIFO_SCHEDULE_PARAMS grows */
	u8 bEnable, bSkipSubmit, bSkipEnable;
};

struct nv_restart_runlist {	/* NVA06F_CTRL_RESTART_RUNLIST_PARAMS */
	u8 bForceRestart, bBypassWait;
};

#endif
