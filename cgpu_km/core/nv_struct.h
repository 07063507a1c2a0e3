/* SPDX-License-Identifier: MIT OR GPL-2.0-only */
/*
 * The structs of NVIDIA's open kernel driver that the module, the simulators and the test clients read: the one place
 * that describes them. Behind the brace is NVIDIA's name; a struct without one is a part of another. The fields have
 * NVIDIA's names, but _p…, which is padding, and …_v1, which is an older form. "before 580", "from 610": as the
 * branches until then, or from then on, have it; else all have it. "grows": not all of them have every field.
 * make test-abi compares each size and offset with each branch. Facts only; no code of theirs.
 */
#ifndef CGPU_CORE_NV_STRUCT_H
#define CGPU_CORE_NV_STRUCT_H

#include "env.h"
#include "nv_abi.h"
#include "nv_struct_control.h"

/* The offset of a field, for a struct in a copy of the caller's bytes. */
#define AT(tag, field)		offsetof(struct tag, field)

/* These are at the same place in every struct of an escape that has them. */
#define NVOS_H_ROOT		AT(nvos00, hRoot)	/* of some: hClient */
#define NVOS_H_PARENT		AT(nvos00, hObjectParent)
#define NVOS_H_NEW		AT(nvos00, hObjectOld)
#define NVOS_H_CLASS		AT(nvos21, hClass)

/* kernel-open/common/inc/nv-ioctl.h, nv-gpu-info.h */
struct nv_xfer {		/* nv_ioctl_xfer_t */
	u32 cmd, size;
	u64 ptr;
};

struct nv_os_event {		/* nv_ioctl_alloc_os_event_t */
	u32 hClient, hDevice, fd, Status;
};

struct nv_free_os_event {	/* nv_ioctl_free_os_event_t */
	u32 hClient, hDevice, fd, Status;
};

struct nv_export_dmabuf {	/* nv_ioctl_export_to_dma_buf_fd_t from 570 grows */
	s32 fd;
	u32 hClient, totalObjects, numObjects, index;
	u64 totalSize;
	u8 mappingType, bAllowMmap;
	u32 handles[NV_DMABUF_EXPORT_MAX_HANDLES];
	u64 offsets[NV_DMABUF_EXPORT_MAX_HANDLES], sizes[NV_DMABUF_EXPORT_MAX_HANDLES];
	u32 status;
};

struct nv_export_dmabuf_v1 {	/* nv_ioctl_export_to_dma_buf_fd_t before 570 */
	s32 fd;
	u32 hClient, totalObjects, numObjects, index;
	u64 totalSize;
	u32 handles[NV_DMABUF_EXPORT_MAX_HANDLES];
	u64 offsets[NV_DMABUF_EXPORT_MAX_HANDLES], sizes[NV_DMABUF_EXPORT_MAX_HANDLES];
	u32 status;
};

struct nv_gpu_pci {
	u32 domain;
	u8 bus, slot, function;
};

struct nv_gpu_info {		/* nv_gpu_info_t grows */
	u32 gpu_id;
	struct nv_gpu_pci pci_info;
	u8 needs_numa_setup;
	void *os_device_ptr;
};

/* src/common/sdk/nvidia/inc/nvos.h; the …_fd: nv-unix-nvos-params-wrappers.h */
struct nvos00 {			/* NVOS00_PARAMETERS */
	u32 hRoot, hObjectParent, hObjectOld, status;
};

struct nvos02 {			/* NVOS02_PARAMETERS */
	u32 hRoot, hObjectParent, hObjectNew, hClass, flags;
	u64 pMemory, limit;
	u32 status;
};

struct nvos02_fd {		/* nv_ioctl_nvos02_parameters_with_fd */
	struct nvos02 params;
	s32 fd;
};

struct nvos21 {			/* NVOS21_PARAMETERS */
	u32 hRoot, hObjectParent, hObjectNew, hClass;
	u64 pAllocParms;
	u32 paramsSize, status;
};

struct nvos64 {			/* NVOS64_PARAMETERS */
	u32 hRoot, hObjectParent, hObjectNew, hClass;
	u64 pAllocParms, pRightsRequested;
	u32 paramsSize, flags, status;
};

struct nvos32_size {
	u32 owner, hMemory, type, flags, attr, format, comprCovg, zcullCovg, partitionStride;
	u32 width, height;
	u64 size, alignment, offset, limit, address, rangeBegin, rangeEnd;
	u32 attr2, ctagOffset;
	s32 numaNode;
};

struct nvos32_tiled {
	u32 owner, hMemory, type, flags, height;
	s32 pitch;
	u32 attr, width, format, comprCovg, zcullCovg, partitionStride;
	u64 size, alignment, offset, limit, address, rangeBegin, rangeEnd;
	u32 attr2, ctagOffset;
	s32 numaNode;
};

struct nvos32_range {
	u32 owner, hMemory, type, flags, attr, format, comprCovg, zcullCovg, partitionStride;
	u64 size, alignment, offset, limit, rangeBegin, rangeEnd, address;
	u32 attr2, ctagOffset;
	s32 numaNode;
};

struct nvos32_osdesc {
	u32 hMemory, type, flags, attr, attr2;
	u64 descriptor, limit;
	u32 descriptorType;
};

struct nvos32_free {
	u32 owner, hMemory, flags;
};

struct nvos32_info {
	u32 attr;
	u64 offset, size, base;
};

struct nvos32 {			/* NVOS32_PARAMETERS grows */
	u32 hRoot, hObjectParent, function, hVASpace;
	s16 ivcHeapNumber;
	u32 status;
	u64 total, free;
	union {
		struct nvos32_size AllocSize;
		struct nvos32_tiled AllocTiledPitchHeight;
		struct nvos32_range AllocSizeRange;
		struct nvos32_osdesc AllocOsDesc;
		struct nvos32_free Free;
		struct nvos32_info Info;
		u8 _room[144];
	} data;
};

struct nvos33 {			/* NVOS33_PARAMETERS */
	u32 hClient, hDevice, hMemory;
	u64 offset, length, pLinearAddress;
	u32 status, flags;
};

struct nvos33_fd {		/* nv_ioctl_nvos33_parameters_with_fd */
	struct nvos33 params;
	s32 fd;
};

struct nvos34 {			/* NVOS34_PARAMETERS */
	u32 hClient, hDevice, hMemory;
	u64 pLinearAddress;
	u32 status, flags;
};

struct nvos46 {			/* NVOS46_PARAMETERS from 580 */
	u32 hClient, hDevice, hDma, hMemory;
	u64 offset, length;
	u32 flags, flags2, kindOverride;
	u64 dmaOffset;
	u32 status;
};

struct nvos46_v1 {		/* NVOS46_PARAMETERS before 580 */
	u32 hClient, hDevice, hDma, hMemory;
	u64 offset, length;
	u32 flags;
	u64 dmaOffset;
	u32 status;
};

struct nvos47 {			/* NVOS47_PARAMETERS from 550 */
	u32 hClient, hDevice, hDma, hMemory, flags;
	u64 dmaOffset, size;
	u32 status;
};

struct nvos47_v1 {		/* NVOS47_PARAMETERS before 550: all of the mapping */
	u32 hClient, hDevice, hDma, hMemory, flags;
	u64 dmaOffset;
	u32 status;
};

struct nvos54 {			/* NVOS54_PARAMETERS */
	u32 hClient, hObject, cmd, flags;
	u64 params;
	u32 paramsSize, status;
};

struct nvos55 {			/* NVOS55_PARAMETERS */
	u32 hClient, hParent, hObject, hClientSrc, hObjectSrc, flags, status;
};

struct nvos56 {			/* NVOS56_PARAMETERS */
	u32 hClient, hDevice, hMemory;
	u64 pOldCpuAddress, pNewCpuAddress;
	u32 status;
};

/* src/common/sdk/nvidia/inc/rs_access.h */
struct nv_share_policy {	/* RS_SHARE_POLICY */
	u32 target, accessMask;
	u16 type;
	u8 action;
};

struct nvos57 {			/* NVOS57_PARAMETERS */
	u32 hClient, hObject;
	struct nv_share_policy sharePolicy;
	u32 status;
};

/* src/nvidia/arch/nvalloc/unix/include/nv-kernel-rmapi-ops.h. An allocation is NVOS21 until 570: cgpu_abi has where
 * it differs.
 */
struct nv_kernel_op {		/* nvidia_kernel_rmapi_ops_t grows */
	u32 op;
	union {
		struct nvos00 free;
		struct nvos02 allocMemory64;
		struct nvos64 alloc;
		struct nvos32 *pVidHeapControl;
		struct nvos33 mapMemory;
		struct nvos34 unmapMemory;
		struct nvos46 mapMemoryDma;
		struct nvos46_v1 mapMemoryDma_v1;
		struct nvos47 unmapMemoryDma;
		struct nvos47_v1 unmapMemoryDma_v1;
		struct nvos54 control;
		struct nvos55 dupObject;
		struct nvos57 share;
		u8 _room[64];
	} params;
};

/* nvos.h, alloc/alloc_channel.h, class/cl*.h: parameters of classes */
struct nv_mem_params {		/* NV_MEMORY_ALLOCATION_PARAMS grows */
	u32 owner, type, flags, width, height;
	s32 pitch;
	u32 attr, attr2, format, comprCovg, zcullCovg;
	u64 rangeLo, rangeHi, size, alignment, offset, limit, address;
	u32 ctagOffset, hVASpace, internalflags, tag;
	s32 numaNode;
};

struct nv_memory_desc {		/* NV_MEMORY_DESC_PARAMS */
	u64 base, size;
	u32 addressSpace, cacheAttrib;
};

struct nv_chan_params {		/* NV_CHANNEL_ALLOC_PARAMS before 610 grows */
	u32 hObjectError, hObjectBuffer;
	u64 gpFifoOffset;
	u32 gpFifoEntries, flags, hContextShare, hVASpace;
	u32 hUserdMemory[8];
	u64 userdOffset[8];
	u32 engineType, cid, subDeviceId, hObjectEccError;
	struct nv_memory_desc instanceMem, userdMem, ramfcMem, mthdbufMem;
	u32 hPhysChannelGroup, internalFlags;
	struct nv_memory_desc errorNotifierMem, eccErrorNotifierMem;
	u32 ProcessID, SubProcessID, encryptIv[3], decryptIv[3], hmacNonce[8], tpcConfigID;
};

struct nv_chan_params_610 {	/* NV_CHANNEL_ALLOC_PARAMS from 610 */
	u32 hObjectError, hObjectBuffer;
	u64 gpFifoOffset;
	u32 gpFifoEntries, flags, hContextShare, hVASpace, hHandleVASpace;
	u32 hUserdMemory[8];
	u64 userdOffset[8];
	u32 engineType, cid, subDeviceId, hObjectEccError;
	struct nv_memory_desc instanceMem, userdMem, ramfcMem, mthdbufMem;
	u32 hPhysChannelGroup, internalFlags;
	struct nv_memory_desc errorNotifierMem, eccErrorNotifierMem;
	u32 ProcessID, SubProcessID, encryptIv[3], decryptIv[3], hmacNonce[8], tpcConfigID;
};

struct nv_device_params {	/* NV0080_ALLOC_PARAMETERS */
	u32 deviceId, hClientShare, hTargetClient, hTargetDevice, flags;
	u64 vaSpaceSize, vaStartInternal, vaLimitInternal;
	u32 vaMode;
};

struct nv_vaspace_params {	/* NV_VASPACE_ALLOCATION_PARAMETERS grows */
	u32 index, flags;
	u64 vaSize, vaStartInternal, vaLimitInternal;
	u32 bigPageSize;
	u64 vaBase;
	u32 pasid;
};

struct nv_virtual_params {	/* NV_MEMORY_VIRTUAL_ALLOCATION_PARAMS */
	u64 offset, limit;
	u32 hVASpace;
};

struct nv_tsg_params {		/* NV_CHANNEL_GROUP_ALLOCATION_PARAMETERS */
	u32 hObjectError, hObjectEccError, hVASpace, engineType;
	u8 bIsCallingContextVgpuPlugin;
};

struct nv_ctxshare_params {	/* NV_CTXSHARE_ALLOCATION_PARAMETERS */
	u32 hVASpace, flags, subctxId;
};

struct nv_context_dma_params {	/* NV_CONTEXT_DMA_ALLOCATION_PARAMS */
	u32 hSubDevice, flags, hMemory;
	u64 offset, limit;
};

struct nv_event_params {	/* NV0005_ALLOC_PARAMETERS */
	u32 hParentClient, hSrcResource, hClass, notifyIndex;
	u64 data;
};

struct nv_p2p_dma {		/* NV503B_BAR1_P2P_DMA_INFO */
	u64 dma_address, dma_size;
};

struct nv_peers_params {	/* NV503B_ALLOC_PARAMETERS grows */
	u32 hSubDevice, hPeerSubDevice, subDevicePeerIdMask, peerSubDevicePeerIdMask;
	u64 mailboxBar1Addr;
	u32 mailboxTotalSize, flags, subDeviceEgmPeerIdMask, peerSubDeviceEgmPeerIdMask;
	struct nv_p2p_dma l2pBar1P2PDmaInfo, p2lBar1P2PDmaInfo;
	u64 l2pFabricP2PInfo, p2lFabricP2PInfo;
};

struct nv_debugger_params {	/* NV83DE_ALLOC_PARAMETERS */
	u32 hDebuggerClient_Obsolete, hAppClient, hClass3dObject;
};

/* kernel-open/common/inc/nv_uvm_types.h: of nvUvmInterfaceRetainChannel() */
struct nv_uvm_channel {		/* UvmGpuChannelInstanceInfo before 590 */
	u64 base;
	u8 sysmem;
	u32 runlistId, chId;		/* the number on its runlist; on Turing, on the GPU */
	u8 bInSubctx;
	u32 subctxId;
	u8 bTsgChannel;
	u32 tsgId, tsgMaxSubctxCount;
	u8 resourceInfo[1040];
	u32 resourceCount, channelEngineType, clearFaultedToken;
	u64 pChramChannelRegister;	/* kernel address of the channel's word, NULL before Ampere */
	u64 pRunlistPRIBaseRegister;
	u32 smcEngineId, smcEngineVeIdOffset;
};

#endif
