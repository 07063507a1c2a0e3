/* SPDX-License-Identifier: MIT OR GPL-2.0-only */
/*
 * NVIDIA's resource manager (RM) as the simulated card sees it. rm_types.h is generated from the
 * debug information of the object that is linked (types), so structures are always that object's
 * own; what debug information does not hold, macros, is here, with the name it has in
 * open-gpu-kernel-modules.
 */
#ifndef GSP_RM_H
#define GSP_RM_H

#include "rm_types.h"
#include "chip.h"

#ifndef RM_BRANCH
#error RM_BRANCH: major number of the driver whose object is linked
#endif

/* nvtypes.h */
enum { NV_FALSE, NV_TRUE };

/* g_mem_desc_nvoc.h */
enum { ADDR_SYSMEM = 1, ADDR_FBMEM = 2 };

/* g_kern_bus_nvoc.h: flags of kbusMapFbAperture */
enum { BUS_MAP_FB_FLAGS_MAP_OFFSET_FIXED = 1 << 6 };

/* g_gpu_nvoc.h: index of regBases */
enum { NV_REG_BASE_GR = 1, NV_REG_BASE_TIMER, NV_REG_BASE_MASTER, NV_REG_BASE_USERMODE };

/* rpc_global_enums.h: functions of the RPCs to the GSP */
enum {
	RPC_SET_GUEST_SYSTEM_INFO = 1, RPC_FREE = 10, RPC_GET_GSP_STATIC_INFO = 65,
	RPC_UPDATE_BAR_PDE = 70, RPC_CONTINUATION_RECORD = 71, RPC_GSP_RM_CONTROL = 76,
	RPC_GSP_RM_ALLOC = 103,
};

/* g_eng_desc_nvoc.h: class of an engine, instance in the low byte */
#define ENG(class, instance) ((NvU32)(class) << 8 | (instance))
enum { ENG_CLASS_GR = 0xd334df, ENG_CLASS_CE = 0x793ceb, ENG_CLASS_NVDEC = 0x8f99e1,
       ENG_CLASS_NVENC = 0xe97b6c, ENG_CLASS_NVJPG = 0x2b3a54, ENG_CLASS_OFA = 0xdd7bab };

/* engine_idx.h: interrupt sources. The numbers change between branches. */
enum {
	MC_TMR = 1, MC_FIFO = 4, MC_CE0 = 15, MC_NVENC = 38,
#if RM_BRANCH >= 550
	MC_GSP = 50, MC_REPLAYABLE_FAULT = 59, MC_ACCESS_COUNTER = 60, MC_NON_REPLAYABLE_FAULT = 61,
	MC_INFO_FAULT = 64, MC_NVDEC = 65, MC_CPU_DOORBELL = 73, MC_PRIV_DOORBELL = 74, MC_GR0 = 84,
	MC_NVJPG = 51, MC_OFA = 81,
#else
	MC_GSP = 49, MC_REPLAYABLE_FAULT = 58, MC_ACCESS_COUNTER = 59, MC_NON_REPLAYABLE_FAULT = 60,
	MC_INFO_FAULT = 63, MC_NVDEC = 64, MC_CPU_DOORBELL = 72, MC_PRIV_DOORBELL = 73, MC_GR0 = 82,
	MC_NVJPG = 50, MC_OFA = 80,
#endif
};

#if RM_BRANCH < 550
enum { RM_ENGINE_TYPE_OFA0 = RM_ENGINE_TYPE_OFA };
typedef NV2080_CTRL_INTERNAL_GET_CONSTRUCTED_FALCON_INFO_PARAMS NV2080_CTRL_GPU_GET_CONSTRUCTED_FALCON_INFO_PARAMS;
typedef NV2080_CTRL_INTERNAL_CONSTRUCTED_FALCON_INFO NV2080_CTRL_GPU_CONSTRUCTED_FALCON_INFO;
#endif

/* nv_memory_type.h; mem_desc.c: memdescU32ToAddrSpaceList() */
enum { NV_MEMORY_UNCACHED = 1, ADDRLIST_FBMEM_PREFERRED = 1 };

/* rmapi.h: who takes a lock */
enum { RM_LOCK_INIT = 0x4000 << 8 };

/* functions of RM */
NV_STATUS rmGpuGroupLockAcquire(NvU32 gpu, NvU32 group, NvU32 flags, NvU32 module, NvU32 *mask);
NvU32 rmGpuGroupLockRelease(NvU32 mask, NvU32 flags);
NV_STATUS RmRpcSetGuestSystemInfo(struct OBJGPU *gpu, struct OBJRPC *rpc);
NV_STATUS rpcGetGspStaticInfo_v14_00(struct OBJGPU *gpu, struct OBJRPC *rpc);
NV_STATUS serverGetClientUnderLock(void *server, NvHandle client, struct RsClient **out);
NV_STATUS CliGetKernelChannel(struct RsClient *client, NvHandle channel, struct KernelChannel **out);
RmPhysAddr memdescGetPhysAddr(MEMORY_DESCRIPTOR *memory, NvU32 translation, NvU64 offset);
NvU32 memdescGetAddressSpace(MEMORY_DESCRIPTOR *memory);
extern struct RsServer g_resServ;

/* The compiler makes calls of these itself; RM has its own. */
void *memset(void *to, int c, NvLength n);
void *memcpy(void *to, const void *from, NvLength n);

#endif
