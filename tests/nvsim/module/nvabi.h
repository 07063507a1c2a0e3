/* SPDX-License-Identifier: MIT OR GPL-2.0-only */
/*
 * What the simulated driver and the test clients need of NVIDIA's driver, and the module does not: the numbers and
 * structs beside those of core/nv_abi.h and core/nv_struct.h, in the same form. make test-abi compares them too. The
 * tables of calls have the sizes of each branch. Each block names its header.
 */
#ifndef NVSIM_NVABI_H
#define NVSIM_NVABI_H

#include "core/nv_struct.h"

/* nvstatuscodes.h */
#define NV_ERR_GPU_IS_LOST 0x0f
#define NV_ERR_IN_USE 0x17
#define NV_ERR_INVALID_BASE 0x20
#define NV_ERR_INVALID_CHANNEL 0x21
#define NV_ERR_INVALID_DEVICE 0x26
#define NV_ERR_INVALID_EVENT 0x28
#define NV_ERR_INVALID_FLAGS 0x29
#define NV_ERR_INVALID_OBJECT 0x31
#define NV_ERR_INVALID_OBJECT_HANDLE 0x33
#define NV_ERR_OPERATING_SYSTEM 0x59
#define NV_ERR_OTHER_DEVICE_FOUND 0x5a
#define NV_ERR_OUT_OF_RANGE 0x5b
#define NV_ERR_PAGE_TABLE_NOT_AVAIL 0x5d
#define NV_ERR_TIMEOUT 0x65

/* nv_escape.h, nv-ioctl-numbers.h, nv-ioctl-numa.h */
#define NV_ESC_RM_ACCESS_REGISTRY 0x4d
#define NV_ESC_RM_ALLOC_CONTEXT_DMA2 0x54
#define NV_ESC_RM_BIND_CONTEXT_DMA 0x59
#define NV_ESC_NUMA_INFO 215
#define NV_ESC_SET_NUMA_STATUS 216
#define NV_ESC_EXPORT_TO_DMABUF_FD 217

/* nv-ioctl.h */
struct nv_pci_info {		/* nv_pci_info_t */
	u32 domain;
	u8 bus, slot, function;
	u16 vendor_id, device_id;
};

struct nv_card_info {		/* nv_ioctl_card_info_t */
	u8 valid;
	struct nv_pci_info pci_info;
	u32 gpu_id;
	u16 interrupt_line;
	u64 reg_address, reg_size, fb_address, fb_size;
	u32 minor_number;
	u8 dev_name[10];
};

struct nv_status_code {		/* nv_ioctl_status_code_t */
	u32 domain;
	u8 bus, slot;
	u32 status;
};

struct nv_api_version {		/* nv_ioctl_rm_api_version_t */
	u32 cmd, reply;
	char versionString[64];
};

struct nv_register_fd {		/* nv_ioctl_register_fd_t */
	s32 ctl_fd;
};

struct nv_wait_open {		/* nv_ioctl_wait_open_complete_t from 550 */
	s32 rc;
	u32 adapterStatus;
};

/* nvos.h */
struct nvos05 {			/* NVOS05_PARAMETERS */
	u32 hRoot, hObjectParent, hObjectNew, hClass, status;
};

struct nvos30 {			/* NVOS30_PARAMETERS */
	u32 hClient, hDevice, hChannel, numChannels;
	u64 phClients, phDevices, phChannels;
	u32 flags, timeout, status;
};

struct nvos39 {			/* NVOS39_PARAMETERS */
	u32 hObjectParent, hSubDevice, hObjectNew, hClass, flags, selector, hMemory;
	u64 offset, limit;
	u32 status;
};

struct nvos41 {			/* NVOS41_PARAMETERS */
	u64 pEvent;
	u32 MoreEvents, status;
};

struct nvos49 {			/* NVOS49_PARAMETERS */
	u32 hClient, hChannel, hCtxDma, status;
};

#define NVOS32_FUNCTION_ALLOC_TILED_PITCH_HEIGHT 6
#define NVOS32_FUNCTION_ALLOC_SIZE_RANGE 14
#define NVOS32_FUNCTION_ALLOC_OS_DESCRIPTOR 27
#define NVOS32_ATTR_PAGE_SIZE(a) (((a) >> NVOS32_ATTR_PAGE_SIZE_SHIFT) & 3)
#define NVOS32_ATTR_LOCATION(a) (((a) >> NVOS32_ATTR_LOCATION_SHIFT) & 3)
#define NVOS32_ATTR_LOCATION_PCI 1
#define NVOS32_ATTR_LOCATION_ANY 3
#define NVOS32_ATTR2_USE_EGM 0x01000000
#define NVOS32_ATTR2_HUGE(a) (((a) >> NVOS32_ATTR2_HUGE_SHIFT) & 3)
#define NVOS33_ACCESS(f) ((f) & 3)
#define NVOS33_FLAGS_ACCESS_READ_ONLY 1
#define NVOS46_OFFSET_FIXED(f) (((f) >> 15) & 1)

/* rs_access.h */
#define RS_SHARE_TYPE_MAX 8
#define RS_ACCESS_DUP_OBJECT 0	/* its bit */

/* nv-kernel-rmapi-ops.h, nvos.h */
#define NV01_ALLOC_MEMORY 0x02
#define NV04_VID_HEAP_CONTROL 0x20
#define NV04_MAP_MEMORY 0x21
#define NV04_UNMAP_MEMORY 0x22
#define NV04_MAP_MEMORY_DMA 0x2e
#define NV04_UNMAP_MEMORY_DMA 0x2f
#define NV04_DUP_OBJECT 0x37

/* kernel-open/common/inc/os-interface.h */
#define NV_LOCK_USER_PAGES_FLAGS_WRITE_YES 1

/* nvos.h, class/cl2080.h, class/clb0b5sw.h: parameters of classes */
struct nv_osdesc_params {	/* NV_OS_DESC_MEMORY_ALLOCATION_PARAMS */
	u32 type, flags, attr, attr2;
	u64 descriptor, limit;
	u32 descriptorType, tag;
};

struct nv_video_params {	/* NV_BSP_ALLOCATION_PARAMETERS; OFA's has no instance before 545 */
	u32 size, prohibitMultipleInstances, engineInstance;
};

struct nv_subdevice_params {	/* NV2080_ALLOC_PARAMETERS */
	u32 subDeviceId;
};

struct nv_copy_params {		/* NVB0B5_ALLOCATION_PARAMETERS */
	u32 version, engineType;
};

#define NVOS32_DESCRIPTOR_TYPE_OS_PAGE_ARRAY 1
#define NV_VASPACE_ALLOCATION_INDEX_GPU_GLOBAL 2

/* class/cl*.h */
#define NV01_CONTEXT_DMA 0x2
#define RM_USER_SHARED_DATA 0xde
#define KEPLER_CHANNEL_GROUP_A 0xa06c
#define MPS_COMPUTE 0x900e

/* class/cl2080_notification.h; nvos.h: bits 31:26 of an event's index are flags */
#define NV2080_NOTIFIERS_GRAPHICS 12
#define NV2080_NOTIFIERS_CE0 23
#define NV_EVENT_INDEX 0x03ffffff

/* nvgputypes.h: what a channel's error notifier has */
struct nv_notification {	/* NvNotification */
	u64 timeStamp;
	u32 info32;
	u16 info16, status;
};

/* class/clc36f.h, class/clc361.h: in USERD and in the usermode page */
#define NV_USERD_GPGET 0x88
#define NV_USERD_GPPUT 0x8c
#define NVC361_NV_USERMODE__SIZE 0x10000
#define NVC361_NOTIFY_CHANNEL_PENDING 0x90

/* class/cl00de.h */
#define NV_RUSD_SIZE 2600
#define NV_RUSD_PMA_STAMP 16
#define NV_RUSD_PMA_TOTAL 24
#define NV_RUSD_PMA_FREE 32

/* ctrl0080gpu.h, ctrl2080gpu.h, ctrl2080perf.h, ctrla06c.h, ctrlc36f.h */
#define NV0080_CTRL_CMD_GPU_GET_CLASSLIST_V2 0x800292
#define NV2080_CTRL_CMD_GPU_GET_NAME_STRING 0x20800110
#define NVA06C_CTRL_CMD_PREEMPT 0xa06c0105
#define NVC36F_CTRL_CMD_GPFIFO_GET_WORK_SUBMIT_TOKEN 0xc36f0108
#define NV0000_CTRL_GPU_INVALID_ID 0xffffffffu
#define NV2080_GPU_CMD_GPU_GET_GID_FLAGS_FORMAT_BINARY 2

struct nv_attached_ids {	/* NV0000_CTRL_GPU_GET_ATTACHED_IDS_PARAMS */
	u32 gpuIds[32];
};

struct nv_class_list {		/* NV0080_CTRL_GPU_GET_CLASSLIST_V2_PARAMS grows */
	u32 numClasses, classList[200];
};

struct nv_gpu_name {		/* NV2080_CTRL_GPU_GET_NAME_STRING_PARAMS grows */
	u32 gpuNameStringFlags;
	u8 gpuNameString[128];
};

struct nv_engine_util_v1 {	/* NV2080_CTRL_PERF_GPUMON_ENGINE_UTIL_SAMPLE before 570 */
	u32 util, vgpuScale, procId, subProcessID;
	char subProcessName[100];
};

struct nv_preempt {		/* NVA06C_CTRL_PREEMPT_PARAMS */
	u8 bWait, bManualTimeout;
	u32 timeoutUs;
};

struct nv_token {		/* NVC36F_CTRL_CMD_GPFIFO_GET_WORK_SUBMIT_TOKEN_PARAMS */
	u32 workSubmitToken;
};

/* uvm_linux_ioctl.h, uvm_ioctl.h */
#define UVM_SET_RANGE_GROUP 31
#define UVM_SET_PREFERRED_LOCATION 42
#define UVM_UNSET_PREFERRED_LOCATION 43
#define UVM_ENABLE_READ_DUPLICATION 44
#define UVM_DISABLE_READ_DUPLICATION 45
#define UVM_SET_ACCESSED_BY 46
#define UVM_UNSET_ACCESSED_BY 47
#define UVM_MIGRATE 51
#define UVM_MIGRATE_FLAG_ASYNC 1u
#define UVM_MAX_GPUS 256
#define UVM_MAX_GPUS_V1 32	/* before 550 */

struct uvm_init {		/* UVM_INITIALIZE_PARAMS */
	u64 flags;
	u32 rmStatus;
};

struct uvm_gpu_vas {		/* UVM_REGISTER_GPU_VASPACE_PARAMS */
	u8 gpuUuid[16];
	s32 rmCtrlFd;
	u32 hClient, hVaSpace, rmStatus;
};

struct uvm_uuid {		/* UVM_UNREGISTER_GPU_VASPACE_PARAMS */
	u8 gpuUuid[16];
	u32 rmStatus;
};

struct uvm_unreg_gpu {		/* UVM_UNREGISTER_GPU_PARAMS */
	u8 gpu_uuid[16];
	u32 rmStatus;
};

struct uvm_reg_gpu {		/* UVM_REGISTER_GPU_PARAMS */
	u8 gpu_uuid[16];
	u8 numaEnabled;
	s32 numaNodeId, rmCtrlFd;
	u32 hClient, hSmcPartRef, rmStatus;
};

struct uvm_reg_chan {		/* UVM_REGISTER_CHANNEL_PARAMS */
	u8 gpuUuid[16];
	s32 rmCtrlFd;
	u32 hClient, hChannel;
	u64 base, length;
	u32 rmStatus;
};

struct uvm_unreg_chan {		/* UVM_UNREGISTER_CHANNEL_PARAMS before 590 */
	u8 gpuUuid[16];
	u32 hClient, hChannel, rmStatus;
};

struct uvm_unreg_chan_v2 {	/* UVM_UNREGISTER_CHANNEL_PARAMS from 590 */
	u32 hClient, hChannel, rmStatus;
};

struct uvm_free {		/* UVM_FREE_PARAMS before 590 */
	u64 base, length;
	u32 rmStatus;
};

struct uvm_free_v2 {		/* UVM_FREE_PARAMS from 590 */
	u64 base;
	u32 rmStatus;
};

struct uvm_range {		/* UVM_CREATE_EXTERNAL_RANGE_PARAMS; others alike */
	u64 base, length;
	u32 rmStatus;
};

struct uvm_peer {		/* UVM_ENABLE_PEER_ACCESS_PARAMS */
	u8 gpuUuidA[16], gpuUuidB[16];
	u32 rmStatus;
};

struct uvm_gpu_attr {		/* UvmGpuMappingAttributes */
	u8 gpuUuid[16];
	u32 gpuMappingType, gpuCachingType, gpuFormatType, gpuElementBits, gpuCompressionType;
};

struct uvm_map_ext {		/* UVM_MAP_EXTERNAL_ALLOCATION_PARAMS from 550 */
	u64 base, length, offset;
	struct uvm_gpu_attr perGpuAttributes[UVM_MAX_GPUS];
	u64 gpuAttributesCount;
	s32 rmCtrlFd;
	u32 hClient, hMemory, rmStatus;
};

struct uvm_map_ext_v1 {		/* UVM_MAP_EXTERNAL_ALLOCATION_PARAMS before 550 */
	u64 base, length, offset;
	struct uvm_gpu_attr perGpuAttributes[UVM_MAX_GPUS_V1];
	u64 gpuAttributesCount;
	s32 rmCtrlFd;
	u32 hClient, hMemory, rmStatus;
};

struct uvm_pool {		/* UVM_ALLOC_SEMAPHORE_POOL_PARAMS from 550 */
	u64 base, length;
	struct uvm_gpu_attr perGpuAttributes[UVM_MAX_GPUS];
	u64 gpuAttributesCount;
	u32 rmStatus;
};

struct uvm_pool_v1 {		/* UVM_ALLOC_SEMAPHORE_POOL_PARAMS before 550 */
	u64 base, length;
	struct uvm_gpu_attr perGpuAttributes[UVM_MAX_GPUS_V1];
	u64 gpuAttributesCount;
	u32 rmStatus;
};

struct uvm_group {		/* UVM_CREATE_RANGE_GROUP_PARAMS before 610 */
	u64 rangeGroupId;
	u32 rmStatus;
};

struct uvm_set_group {		/* UVM_SET_RANGE_GROUP_PARAMS before 610 */
	u64 rangeGroupId, requestedBase, length;
	u32 rmStatus;
};

struct uvm_unmap_ext {		/* UVM_UNMAP_EXTERNAL_PARAMS */
	u64 base, length;
	u8 gpuUuid[16];
	u32 rmStatus;
};

struct uvm_map_dyn {		/* UVM_MAP_DYNAMIC_PARALLELISM_REGION_PARAMS */
	u64 base, length;
	u8 gpuUuid[16];
	u32 rmStatus;
};

struct uvm_pageable {		/* UVM_PAGEABLE_MEM_ACCESS_PARAMS */
	u8 pageableMemAccess;
	u32 rmStatus;
};

struct uvm_pageable_gpu {	/* UVM_PAGEABLE_MEM_ACCESS_ON_GPU_PARAMS */
	u8 gpu_uuid[16];
	u8 pageableMemAccess;
	u32 rmStatus;
};

struct uvm_mm_init {		/* UVM_MM_INITIALIZE_PARAMS */
	s32 uvmFd;
	u32 rmStatus;
};

struct uvm_pref {		/* UVM_SET_PREFERRED_LOCATION_PARAMS from 550 */
	u64 requestedBase, length;
	u8 preferredLocation[16];
	s32 preferredCpuNumaNode;
	u32 rmStatus;
};

struct uvm_pref_v1 {		/* UVM_SET_PREFERRED_LOCATION_PARAMS before 550 */
	u64 requestedBase, length;
	u8 preferredLocation[16];
	u32 rmStatus;
};

struct uvm_accessed_by {	/* UVM_SET_ACCESSED_BY_PARAMS */
	u64 requestedBase, length;
	u8 accessedByUuid[16];
	u32 rmStatus;
};

struct uvm_migrate {		/* UVM_MIGRATE_PARAMS */
	u64 base, length;
	u8 destinationUuid[16];
	u32 flags;
	u64 semaphoreAddress;
	u32 semaphorePayload;
	s32 cpuNumaNode;
	u64 userSpaceStart, userSpaceLength;
	u32 rmStatus;
};

#endif
