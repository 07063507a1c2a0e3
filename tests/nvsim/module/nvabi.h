/* SPDX-License-Identifier: MIT OR GPL-2.0-only */
/*
 * The numbers and layouts of NVIDIA's driver that nvsim implements: those of 580.105.08; a
 * different one of an older branch is named _v1 or has the branch in its name. The tables of calls
 * have the sizes of each branch. Each block names the header of the public driver it was checked
 * with.
 */
#ifndef NVSIM_NVABI_H
#define NVSIM_NVABI_H

#include <linux/types.h>
#include <linux/build_bug.h>

/* nvtypes.h */
typedef u32 NvU32;
typedef s32 NvS32;
typedef u64 NvU64;
typedef u8 NvU8;
typedef u16 NvU16;
typedef u8 NvBool;
typedef u32 NvHandle;
typedef u64 NvP64;
typedef u32 NV_STATUS;

#define NVSIM_VERSION_DEFAULT "580.105.08"

/* nv-chardev-numbers.h */
#define NV_MAJOR 195
#define NV_MINOR_MAX 247
#define NV_MINOR_CTL 255

/* nvstatuscodes.h */
#define NV_OK 0x00
#define NV_ERR_GPU_IS_LOST 0x0f
#define NV_ERR_GPU_UUID_NOT_FOUND 0x12
#define NV_ERR_ILLEGAL_ACTION 0x16
#define NV_ERR_IN_USE 0x17
#define NV_ERR_INSERT_DUPLICATE_NAME 0x19
#define NV_ERR_INSUFFICIENT_RESOURCES 0x1a
#define NV_ERR_INSUFFICIENT_PERMISSIONS 0x1b
#define NV_ERR_INVALID_ADDRESS 0x1e
#define NV_ERR_INVALID_ARGUMENT 0x1f
#define NV_ERR_INVALID_BASE 0x20
#define NV_ERR_INVALID_CHANNEL 0x21
#define NV_ERR_INVALID_CLASS 0x22
#define NV_ERR_INVALID_CLIENT 0x23
#define NV_ERR_INVALID_DEVICE 0x26
#define NV_ERR_INVALID_EVENT 0x28
#define NV_ERR_INVALID_FLAGS 0x29
#define NV_ERR_INVALID_LIMIT 0x2e
#define NV_ERR_INVALID_OBJECT 0x31
#define NV_ERR_INVALID_OBJECT_HANDLE 0x33
#define NV_ERR_INVALID_OBJECT_PARENT 0x36
#define NV_ERR_INVALID_PARAMETER 0x3b
#define NV_ERR_INVALID_STATE 0x40
#define NV_ERR_NO_FREE_FIFOS 0x4f
#define NV_ERR_NO_MEMORY 0x51
#define NV_ERR_NOT_SUPPORTED 0x56
#define NV_ERR_OPERATING_SYSTEM 0x59
#define NV_ERR_OBJECT_NOT_FOUND 0x57
#define NV_ERR_OTHER_DEVICE_FOUND 0x5a
#define NV_ERR_OUT_OF_RANGE 0x5b
#define NV_ERR_PAGE_TABLE_NOT_AVAIL 0x5d
#define NV_ERR_STATE_IN_USE 0x63
#define NV_ERR_TIMEOUT 0x65
#define NV_ERR_UVM_ADDRESS_IN_USE 0x68
#define NV_WARN_NOTHING_TO_DO 0x10006
#define NV_ERR_GENERIC 0xffff

/* nv_escape.h, nv-ioctl-numbers.h, nv-ioctl-numa.h */
#define NV_ESC_RM_ALLOC_MEMORY 0x27
#define NV_ESC_RM_ALLOC_OBJECT 0x28
#define NV_ESC_RM_FREE 0x29
#define NV_ESC_RM_CONTROL 0x2a
#define NV_ESC_RM_ALLOC 0x2b
#define NV_ESC_RM_DUP_OBJECT 0x34
#define NV_ESC_RM_SHARE 0x35
#define NV_ESC_RM_IDLE_CHANNELS 0x41
#define NV_ESC_RM_VID_HEAP_CONTROL 0x4a
#define NV_ESC_RM_MAP_MEMORY 0x4e
#define NV_ESC_RM_UNMAP_MEMORY 0x4f
#define NV_ESC_RM_GET_EVENT_DATA 0x52
#define NV_ESC_RM_ALLOC_CONTEXT_DMA2 0x54
#define NV_ESC_RM_MAP_MEMORY_DMA 0x57
#define NV_ESC_RM_UNMAP_MEMORY_DMA 0x58
#define NV_ESC_RM_BIND_CONTEXT_DMA 0x59
#define NV_ESC_RM_UPDATE_DEVICE_MAPPING_INFO 0x5e
#define NV_ESC_CARD_INFO 200
#define NV_ESC_REGISTER_FD 201
#define NV_ESC_ALLOC_OS_EVENT 206
#define NV_ESC_FREE_OS_EVENT 207
#define NV_ESC_STATUS_CODE 209
#define NV_ESC_CHECK_VERSION_STR 210
#define NV_ESC_IOCTL_XFER_CMD 211
#define NV_ESC_ATTACH_GPUS_TO_FD 212
#define NV_ESC_QUERY_DEVICE_INTR 213
#define NV_ESC_SYS_PARAMS 214
#define NV_ESC_NUMA_INFO 215
#define NV_ESC_SET_NUMA_STATUS 216
#define NV_ESC_EXPORT_TO_DMABUF_FD 217
#define NV_ESC_WAIT_OPEN_COMPLETE 218
#define NV_MAX_IOCTL_SIZE 16384

/* nv-ioctl.h */
struct nv_xfer {
	u32 cmd, size;
	u64 ptr;
};

struct nv_card_info {
	u8 valid;
	u8 _p0[3];
	u32 domain;
	u8 bus, slot, function, _p1;
	u16 vendor_id, device_id;
	u32 gpu_id;
	u16 irq, _p2;
	u64 reg_address, reg_size, fb_address, fb_size;
	u32 minor;
	u8 dev_name[10];
	u8 _p3[2];
};

struct nv_os_event {
	u32 hClient, hDevice, fd, status;
};

struct nv_status_code {
	u32 domain;
	u8 bus, slot, _p[2];
	u32 status;
};

struct nv_api_version {
	u32 cmd, reply;
	char str[64];
};

struct nv_wait_open {
	s32 rc;
	u32 adapter_status;
};

/* nvos.h */
struct nvos00 {
	u32 hRoot, hParent, hOld, status;
};

struct nvos02 {
	u32 hRoot, hParent, hNew, hClass, flags, _p0;
	u64 pMemory, limit;
	u32 status, _p1;
};

struct nvos02_fd {
	struct nvos02 p;
	s32 fd, _p;
};

struct nvos05 {
	u32 hRoot, hParent, hNew, hClass, status;
};

struct nvos21 {
	u32 hRoot, hParent, hNew, hClass;
	u64 pAllocParms;
	u32 paramsSize, status;
};

struct nvos64 {
	u32 hRoot, hParent, hNew, hClass;
	u64 pAllocParms, pRights;
	u32 paramsSize, flags, status, _p;
};

struct nvos30 {
	u32 hClient, hDevice, hChannel, numChannels;
	u64 phClients, phDevices, phChannels;
	u32 flags, timeout, status, _p;
};

struct nvos32_size {
	u32 owner, hMemory, type, flags, attr, format, comprCovg, zcullCovg, partitionStride, width, height, _p0;
	u64 size, alignment, offset, limit, address, rangeBegin, rangeEnd;
	u32 attr2, ctagOffset;
	s32 numaNode;
	u32 _p1;
};

struct nvos32_tiled {
	u32 owner, hMemory, type, flags, height;
	s32 pitch;
	u32 attr, width, format, comprCovg, zcullCovg, partitionStride;
	u64 size, alignment, offset, limit, address, rangeBegin, rangeEnd;
	u32 attr2, ctagOffset;
	s32 numaNode;
	u32 _p1;
};

struct nvos32_range {
	u32 owner, hMemory, type, flags, attr, format, comprCovg, zcullCovg, partitionStride, _p0;
	u64 size, alignment, offset, limit, rangeBegin, rangeEnd, address;
	u32 attr2, ctagOffset;
	s32 numaNode;
	u32 _p1;
};

struct nvos32_osdesc {
	u32 hMemory, type, flags, attr, attr2, _p0;
	u64 descriptor, limit;
	u32 descriptorType, _p1;
};

struct nvos32 {
	u32 hRoot, hParent, function, hVASpace;
	s16 ivc;
	u16 _p0;
	u32 status;
	u64 total, free;
	union {
		struct nvos32_size alloc;
		struct nvos32_tiled tiled;
		struct nvos32_range range;
		struct nvos32_osdesc osdesc;
		struct {
			u32 owner, hMemory, flags;
		} free_;
		struct {
			u32 attr, _p;
			u64 offset, size, base;
		} info;
		u8 raw[144];
	} d;
};

#define NVOS32_ALLOC_SIZE 2
#define NVOS32_FREE 3
#define NVOS32_INFO 5
#define NVOS32_ALLOC_TILED 6
#define NVOS32_ALLOC_SIZE_RANGE 14
#define NVOS32_ALLOC_OS_DESC 27
#define NVOS32_FLAG_VIRTUAL 0x80000
#define NVOS32_FLAG_HANDLE_PROVIDED 0x4000
#define NVOS32_ATTR_PAGE_SIZE(a) (((a) >> 23) & 3)
#define NVOS32_ATTR_LOCATION(a) (((a) >> 25) & 3)
#define NVOS32_LOC_VIDMEM 0
#define NVOS32_LOC_PCI 1
#define NVOS32_LOC_ANY 3
#define NVOS32_ATTR2_USE_EGM 0x01000000
#define NVOS32_ATTR2_HUGE(a) (((a) >> 20) & 3)

struct nvos33 {
	u32 hClient, hDevice, hMemory, _p0;
	u64 offset, length, pLinear;
	u32 status, flags;
};

struct nvos33_fd {
	struct nvos33 p;
	s32 fd, _p;
};

#define NVOS33_ACCESS(f) ((f) & 3)
#define NVOS33_ACCESS_RO 1

struct nvos34 {
	u32 hClient, hDevice, hMemory, _p0;
	u64 pLinear;
	u32 status, flags;
};

struct nvos39 {
	u32 hParent, hSubDevice, hNew, hClass, flags, selector, hMemory, _p0;
	u64 offset, limit;
	u32 status, _p1;
};

struct nvos41 {
	u64 pEvent;
	u32 more, status;
};

struct nvos46 {
	u32 hClient, hDevice, hDma, hMemory;
	u64 offset, length;
	u32 flags, flags2, kind, _p0;
	u64 dmaOffset;
	u32 status, _p1;
};

/* before 580 */
struct nvos46_v1 {
	u32 hClient, hDevice, hDma, hMemory;
	u64 offset, length;
	u32 flags, _p0;
	u64 dmaOffset;
	u32 status, _p1;
};

#define NVOS46_OFFSET_FIXED(f) (((f) >> 15) & 1)

struct nvos47 {
	u32 hClient, hDevice, hDma, hMemory, flags, _p0;
	u64 dmaOffset, size;
	u32 status, _p1;
};

/* before 550: all of the mapping */
struct nvos47_v1 {
	u32 hClient, hDevice, hDma, hMemory, flags, _p0;
	u64 dmaOffset;
	u32 status, _p1;
};

struct nvos49 {
	u32 hClient, hChannel, hCtxDma, status;
};

struct nvos54 {
	u32 hClient, hObject, cmd, flags;
	u64 params;
	u32 paramsSize, status;
};

struct nvos55 {
	u32 hClient, hParent, hObject, hClientSrc, hObjectSrc, flags, status;
};

struct nvos56 {
	u32 hClient, hDevice, hMemory, _p0;
	u64 pOld, pNew;
	u32 status, _p1;
};

struct nvos57 {
	u32 hClient, hObject, target, mask;
	u16 type;
	u8 action, _p;
	u32 status;
};

/* rs_access.h */
#define RS_SHARE_TYPE_ALL 1
#define RS_SHARE_TYPE_OS_SECURITY_TOKEN 2
#define RS_SHARE_TYPE_CLIENT 3
#define RS_SHARE_TYPE_PID 4
#define RS_SHARE_TYPE_MAX 8
#define RS_SHARE_ACTION_REVOKE 1
#define RS_SHARE_ACTION_COMPOSE 4
#define RS_ACCESS_DUP_OBJECT 0	/* its bit */

/* nv-kernel-rmapi-ops.h, nvos.h */
#define NV01_FREE 0x00
#define NV01_ALLOC_MEMORY 0x02
#define NV04_ALLOC 0x15
#define NV04_VID_HEAP_CONTROL 0x20
#define NV04_MAP_MEMORY 0x21
#define NV04_UNMAP_MEMORY 0x22
#define NV04_MAP_MEMORY_DMA 0x2e
#define NV04_UNMAP_MEMORY_DMA 0x2f
#define NV04_CONTROL 0x36
#define NV04_DUP_OBJECT 0x37
#define NV04_SHARE 0x3e

struct nv_kernel_op {
	u32 op, _p;
	union {
		struct nvos00 free;
		struct nvos02 alloc_memory;
		struct nvos64 alloc;
		struct nvos32 *vid_heap;
		struct nvos33 map;
		struct nvos34 unmap;
		struct nvos46 map_dma;
		struct nvos46_v1 map_dma_v1;
		struct nvos47 unmap_dma;
		struct nvos47_v1 unmap_dma_v1;
		struct nvos54 control;
		struct nvos55 dup;
		struct nvos57 share;
	} u;
};

/* nvos.h: NV_MEMORY_ALLOCATION_PARAMS */
struct nv_mem_params {
	u32 owner, type, flags, width, height;
	s32 pitch;
	u32 attr, attr2, format, comprCovg, zcullCovg, _p0;
	u64 rangeLo, rangeHi, size, alignment, offset, limit, address;
	u32 ctagOffset, hVASpace, internalflags, tag;
	s32 numaNode;
	u32 _p1;
};

/* alloc/alloc_channel.h */
struct nv_chan_params {
	u32 hObjectError, hObjectBuffer;
	u64 gpFifoOffset;
	u32 gpFifoEntries, flags, hContextShare, hVASpace;
	u32 hUserdMemory[8];
	u64 userdOffset[8];
	u32 engineType, cid, subDeviceId, hObjectEccError;
	u8 mem_desc[4][24];
	u32 hPhysChannelGroup, internalFlags;
	u8 notifier_desc[2][24];
	u32 ProcessID, SubProcessID, iv[6], nonce[8], tpcConfigID, _p;
};

/* class/cl0080.h, class/cl2080.h, class/cla06c.h, nvos.h, class/cl0005.h */
struct nv_device_params {
	u32 deviceId, hClientShare, hTargetClient, hTargetDevice, flags, _p0;
	u64 vaSpaceSize, vaStartInternal, vaLimitInternal;
	u32 vaMode, _p1;
};

struct nv_vaspace_params {
	u32 index, flags;
	u64 vaSize, vaStart, vaLimit;
	u32 bigPageSize, _p0;
	u64 vaBase;
	u32 pasid, _p1;
};

struct nv_tsg_params {
	u32 hObjectError, hObjectEccError, hVASpace, engineType;
	u8 vgpu, _p[3];
};

struct nv_ctxshare_params {
	u32 hVASpace, flags, subctxId;
};

struct nv_event_params {
	u32 hParentClient, hSrcResource, hClass, notifyIndex;
	u64 data;
};

/* nvos.h: NV_OS_DESC_MEMORY_ALLOCATION_PARAMS */
struct nv_osdesc_params {
	u32 type, flags, attr, attr2;
	u64 descriptor, limit;
	u32 descriptorType, tag;
};

#define NVOS32_DESCRIPTOR_OS_PAGE_ARRAY 1

/* class/cl83de.h */
struct nv_debugger_params {
	u32 hDebuggerClient, hAppClient, hClass3dObject;
};

struct nv_context_dma_params {
	u32 hSubDevice, flags, hMemory, _p;
	u64 offset, limit;
};

/* nvos.h: NV_VASPACE_ALLOCATION_INDEX_GPU_* */
#define NV_VASPACE_NEW 0
#define NV_VASPACE_GLOBAL 2
#define NV_VASPACE_DEVICE 3

/* class ids: class/cl*.h */
#define NV01_ROOT 0x0
#define NV01_ROOT_NON_PRIV 0x1
#define NV01_CONTEXT_DMA 0x2
#define NV01_EVENT 0x5
#define NV01_MEMORY_SYSTEM 0x3e
#define NV01_MEMORY_LOCAL_USER 0x40
#define NV01_ROOT_CLIENT 0x41
#define NV01_MEMORY_VIRTUAL 0x70
#define NV01_MEMORY_SYSTEM_OS_DESCRIPTOR 0x71
#define NV01_EVENT_OS_EVENT 0x79
#define NV01_DEVICE_0 0x80
#define RM_USER_SHARED_DATA 0xde
#define NV20_SUBDEVICE_0 0x2080
#define NV50_MEMORY_VIRTUAL 0x50a0
#define FERMI_VASPACE_A 0x90f1
#define FERMI_CONTEXT_SHARE_A 0x9067
#define KEPLER_CHANNEL_GROUP_A 0xa06c
#define NV2081_BINAPI 0x2081
#define GT200_DEBUGGER 0x83de
#define MPS_COMPUTE 0x900e
#define NV50_P2P 0x503b

/* nv2080 engine types: class/cl2080_notification.h */
/* class/cl2080_notification.h; nvos.h: bits 31:26 of an event's index are flags */
#define NV2080_NOTIFIERS_GRAPHICS 12
#define NV2080_NOTIFIERS_CE0 23
#define NV_EVENT_INDEX 0x03ffffff

#define NV2080_ENGINE_GR0 1
#define NV2080_ENGINE_COPY0 9
#define NV2080_ENGINE_NVDEC0 0x13
#define NV2080_ENGINE_NVENC0 0x1b
#define NV2080_ENGINE_NVJPEG0 0x2b
#define NV2080_ENGINE_OFA0 0x33

/* nvos.h: NV_BSP_ALLOCATION_PARAMETERS and those of the others; OFA's without an instance before 545 */
struct nv_video_params {
	u32 size, exclusive, instance;
};

/* USERD and usermode page: class/clc36f.h, class/clc361.h */
#define NV_USERD_SIZE 512
#define NV_USERD_GPGET 0x88
#define NV_USERD_GPPUT 0x8c
#define HOPPER_USERMODE_A 0xc661
#define NVOS47_DEFER_TLB 1
#define NV_USERMODE_SIZE 0x10000
#define NV_USERMODE_DOORBELL 0x90

/* class/cl00de.h */
#define NV_RUSD_SIZE 2600
#define NV_RUSD_PMA_STAMP 16
#define NV_RUSD_PMA_TOTAL 24
#define NV_RUSD_PMA_FREE 32

/* uvm_linux_ioctl.h, uvm_ioctl.h */
#define UVM_INITIALIZE 0x30000001
#define UVM_DEINITIALIZE 0x30000002
#define UVM_CREATE_RANGE_GROUP 23
#define UVM_DESTROY_RANGE_GROUP 24
#define UVM_REGISTER_GPU_VASPACE 25
#define UVM_UNREGISTER_GPU_VASPACE 26
#define UVM_REGISTER_CHANNEL 27
#define UVM_UNREGISTER_CHANNEL 28
#define UVM_ENABLE_PEER_ACCESS 29
#define UVM_DISABLE_PEER_ACCESS 30
#define UVM_SET_RANGE_GROUP 31
#define UVM_MAP_EXTERNAL_ALLOCATION 33
#define UVM_FREE 34
#define UVM_REGISTER_GPU 37
#define UVM_UNREGISTER_GPU 38
#define UVM_PAGEABLE_MEM_ACCESS 39
#define UVM_SET_PREFERRED_LOCATION 42
#define UVM_UNSET_PREFERRED_LOCATION 43
#define UVM_ENABLE_READ_DUPLICATION 44
#define UVM_DISABLE_READ_DUPLICATION 45
#define UVM_SET_ACCESSED_BY 46
#define UVM_UNSET_ACCESSED_BY 47
#define UVM_MIGRATE 51
#define UVM_MAP_DYNAMIC_PARALLELISM_REGION 65
#define UVM_UNMAP_EXTERNAL 66
#define UVM_ALLOC_SEMAPHORE_POOL 68
#define UVM_PAGEABLE_MEM_ACCESS_ON_GPU 70
#define UVM_VALIDATE_VA_RANGE 72
#define UVM_CREATE_EXTERNAL_RANGE 73
#define UVM_MM_INITIALIZE 75
#define UVM_INIT_FLAGS_MULTI_PROCESS 2ull
#define UVM_INIT_DISABLE_HMM 1
#define UVM_INIT_MULTI_PROCESS 2
#define UVM_MAX_GPUS 256

struct uvm_init {
	u64 flags;
	u32 status, _p;
};

struct uvm_gpu_vas {
	u8 uuid[16];
	s32 rmCtrlFd;
	u32 hClient, hVaSpace, status;
};

struct uvm_uuid {
	u8 uuid[16];
	u32 status;
};

struct uvm_reg_gpu {
	u8 uuid[16];
	u8 numaEnabled, _p[3];
	s32 numaNode, rmCtrlFd;
	u32 hClient, hSmc, status;
};

struct uvm_reg_chan {
	u8 uuid[16];
	s32 rmCtrlFd;
	u32 hClient, hChannel, _p0;
	u64 base, length;
	u32 status, _p1;
};

/* nv_uvm_types.h: UvmGpuChannelInstanceInfo, the same in all four branches. The resources and their number stay 0. */
struct uvm_channel_info {
	u64 base;
	u8 sysmem;
	u32 runlistId, chId;
	u8 bInSubctx;
	u32 subctxId;
	u8 bTsgChannel;
	u32 tsgId, tsgMaxSubctxCount;
	u8 resourceInfo[1040];
	u32 resourceCount, channelEngineType, clearFaultedToken;
	u64 pChramChannelRegister, pRunlistPRIBaseRegister;
	u32 smcEngineId, smcEngineVeIdOffset;
};

struct uvm_unreg_chan {
	u8 uuid[16];
	u32 hClient, hChannel, status;
};

/* From 590 on without what it does not read. */
struct uvm_unreg_chan_v2 {
	u32 hClient, hChannel, status;
};

struct uvm_free_v2 {
	u64 base;
	u32 status, _p;
};

struct uvm_peer {
	u8 a[16], b[16];
	u32 status;
};

struct nv_export_dmabuf {
	s32 fd;
	u32 hClient, totalObjects, numObjects, index;
	u64 totalSize;
	u8 mappingType, bAllowMmap;
	u32 handles[128];
	u64 offsets[128], sizes[128];
	u32 status;
};

/* before 580 */
struct nv_export_dmabuf_v1 {
	s32 fd;
	u32 hClient, totalObjects, numObjects, index, _p;
	u64 totalSize;
	u32 handles[128];
	u64 offsets[128], sizes[128];
	u32 status;
};

struct uvm_range {
	u64 base, length;
	u32 status, _p;
};

struct uvm_gpu_attr {
	u8 uuid[16];
	u32 mapping, caching, format, elem_bits, compression;
};

struct uvm_map_ext {
	u64 base, length, offset;
	struct uvm_gpu_attr attr[UVM_MAX_GPUS];
	u64 count;
	s32 rmCtrlFd;
	u32 hClient, hMemory, status;
};

/* before 545: 32 GPUs at most */
#define UVM_MAX_GPUS_V1 32
struct uvm_map_ext_v1 {
	u64 base, length, offset;
	struct uvm_gpu_attr attr[UVM_MAX_GPUS_V1];
	u64 count;
	s32 rmCtrlFd;
	u32 hClient, hMemory, status;
};

struct uvm_pool {
	u64 base, length;
	struct uvm_gpu_attr attr[UVM_MAX_GPUS];
	u64 count;
	u32 status, _p;
};

struct uvm_pool_v1 {
	u64 base, length;
	struct uvm_gpu_attr attr[UVM_MAX_GPUS_V1];
	u64 count;
	u32 status, _p;
};

struct uvm_set_group {
	u64 id, base, length;
	u32 status, _p;
};

struct uvm_unmap_ext {
	u64 base, length;
	u8 uuid[16];
	u32 status, _p;
};

struct uvm_map_dyn {
	u64 base, length;
	u8 uuid[16];
	u32 status, _p;
};

struct uvm_pageable {
	u8 access, _p[3];
	u32 status;
};

struct uvm_pageable_gpu {
	u8 uuid[16];
	u8 access, _p[3];
	u32 status;
};

struct uvm_mm_init {
	s32 fd;
	u32 status;
};

struct uvm_pref {
	u64 base, length;
	u8 uuid[16];
	s32 node;
	u32 status;
};

struct uvm_accessed_by {
	u64 base, length;
	u8 uuid[16];
	u32 status, _p;
};

#define UVM_MIGRATE_FLAG_ASYNC 1u
struct uvm_migrate {
	u64 base, length;
	u8 uuid[16];
	u32 flags, _p0;
	u64 sem_address;
	u32 sem_payload;
	s32 node;
	u64 user_space_start, user_space_length;
	u32 status, _p1;
};

struct uvm_group {
	u64 id;
	u32 status, _p;
};

/* ctrl2080fifo.h */
#define NV2080_CTRL_CMD_FIFO_DISABLE_CHANNELS 0x2080110b

/* nv-gpu-info.h, nv-modeset-interface.h */
typedef struct nvidia_stack_s nvidia_stack_t;

struct nv_gpu_info {
	u32 gpu_id;
	struct {
		u32 domain;
		u8 bus, slot, function;
	} pci;
	u8 needs_numa_setup;
	void *os_device_ptr;
};

struct nv_rm_ops {
	const char *version_string;
	struct {
		NvBool allow_write_combining;
	} system_info;
	int (*alloc_stack)(nvidia_stack_t **sp);
	void (*free_stack)(nvidia_stack_t *sp);
	u32 (*enumerate_gpus)(struct nv_gpu_info *info);
	union {
		int (*open_gpu)(u32 gpu_id, nvidia_stack_t *sp);
		int (*open_gpu_595)(u32 gpu_id, nvidia_stack_t *sp, NvBool reset_aware);
	};
	union {
		void (*close_gpu)(u32 gpu_id, nvidia_stack_t *sp);
		void (*close_gpu_595)(u32 gpu_id, nvidia_stack_t *sp, NvBool reset_aware);
	};
	void (*op)(nvidia_stack_t *sp, void *cmd);
	int (*set_callbacks)(const void *cb);
};

static inline void nvabi_build_checks(void)
{
	BUILD_BUG_ON(sizeof(struct nv_card_info) != 72);
	BUILD_BUG_ON(sizeof(struct nvos02_fd) != 56);
	BUILD_BUG_ON(sizeof(struct nvos21) != 32);
	BUILD_BUG_ON(sizeof(struct nvos64) != 48);
	BUILD_BUG_ON(sizeof(struct nvos32) != 184);
	BUILD_BUG_ON(sizeof(struct nvos33_fd) != 56);
	BUILD_BUG_ON(sizeof(struct nvos46) != 64);
	BUILD_BUG_ON(sizeof(struct nvos46_v1) != 56);
	BUILD_BUG_ON(sizeof(struct nvos47) != 48);
	BUILD_BUG_ON(sizeof(struct nvos47_v1) != 40);
	BUILD_BUG_ON(sizeof(struct nvos54) != 32);
	BUILD_BUG_ON(sizeof(struct nvos55) != 28);
	BUILD_BUG_ON(sizeof(struct nvos57) != 24);
	BUILD_BUG_ON(sizeof(struct nv_kernel_op) != 72);
	BUILD_BUG_ON(sizeof(struct nv_mem_params) != 128);
	BUILD_BUG_ON(sizeof(struct nv_chan_params) != 368);
	BUILD_BUG_ON(sizeof(struct nv_device_params) != 56);
	BUILD_BUG_ON(sizeof(struct nv_vaspace_params) != 56);
	BUILD_BUG_ON(sizeof(struct nv_osdesc_params) != 40);
	BUILD_BUG_ON(sizeof(struct nv_tsg_params) != 20);
	BUILD_BUG_ON(sizeof(struct nv_event_params) != 24);
	BUILD_BUG_ON(sizeof(struct uvm_reg_chan) != 56);
	BUILD_BUG_ON(sizeof(struct uvm_reg_gpu) != 40);
	BUILD_BUG_ON(sizeof(struct uvm_map_ext) != 9264);
	BUILD_BUG_ON(sizeof(struct uvm_map_ext_v1) != 1200);
	BUILD_BUG_ON(sizeof(struct uvm_pool) != 9248);
	BUILD_BUG_ON(sizeof(struct uvm_pool_v1) != 1184);
	BUILD_BUG_ON(sizeof(struct uvm_set_group) != 32);
	BUILD_BUG_ON(sizeof(struct uvm_unmap_ext) != 40);
	BUILD_BUG_ON(sizeof(struct uvm_map_dyn) != 40);
	BUILD_BUG_ON(sizeof(struct uvm_unreg_chan) != 28);
	BUILD_BUG_ON(sizeof(struct uvm_unreg_chan_v2) != 12);
	BUILD_BUG_ON(sizeof(struct uvm_free_v2) != 16);
	BUILD_BUG_ON(sizeof(struct uvm_channel_info) != 1120);
	BUILD_BUG_ON(sizeof(struct nv_export_dmabuf) != 2608);
	BUILD_BUG_ON(sizeof(struct nv_export_dmabuf_v1) != 2600);
}

#endif
