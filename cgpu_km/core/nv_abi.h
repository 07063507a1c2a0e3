/* SPDX-License-Identifier: MIT OR GPL-2.0-only */
/*
 * Numbers and offsets of NVIDIA's open kernel driver that cgpu_km.ko and the core read.
 * They are the same in every branch (make test-abi compares them). Those that differ are in
 * struct cgpu_abi or in the table; of sizes in the table, the _SIZE of parameters here are the
 * largest. Each block names its file in the driver. Facts only; no code of theirs.
 */
#ifndef CGPU_CORE_NV_ABI_H
#define CGPU_CORE_NV_ABI_H

/* kernel-open/common/inc/nv-chardev-numbers.h */
#define NV_MAJOR			195
#define NV_MINOR_CTL			255
#define NV_MINOR_GPU_MAX		247

/* src/common/sdk/nvidia/inc/nvstatuscodes.h */
#define NV_OK				0x00
#define NV_ERR_GENERIC			0xffff
#define NV_ERR_GPU_UUID_NOT_FOUND	0x12
#define NV_ERR_ILLEGAL_ACTION		0x16
#define NV_ERR_DUPLICATE_NAME		0x19
#define NV_ERR_RESOURCES		0x1a
#define NV_ERR_PERMISSIONS		0x1b
#define NV_ERR_ADDRESS			0x1e
#define NV_ERR_ARGUMENT			0x1f
#define NV_ERR_CLASS			0x22
#define NV_ERR_CLIENT			0x23
#define NV_ERR_FUNCTION			0x2a
#define NV_ERR_LIMIT			0x2e
#define NV_ERR_PARENT			0x36
#define NV_ERR_INVALID_PARAMETER	0x3b
#define NV_ERR_STATE			0x40
#define NV_ERR_NO_FREE_FIFOS		0x4f
#define NV_ERR_NO_MEMORY		0x51
#define NV_ERR_NOT_SUPPORTED		0x56
#define NV_ERR_NOT_FOUND		0x57
#define NV_ERR_STATE_IN_USE		0x63
#define NV_ERR_UVM_ADDRESS_IN_USE	0x68
#define NV_WARN_NOTHING_TO_DO		0x10006

/* ctrl0000client.h: NV0000_CTRL_CLIENT_GET_ADDR_SPACE_TYPE_PARAMS */
#define NV_ADDR_SPACE_H_OBJECT		0
#define NV_ADDR_SPACE_TYPE		8
#define NV_ADDR_SPACE_SYSMEM		1

/* src/nvidia/arch/nvalloc/unix/include/nv_escape.h,
 * kernel-open/common/inc/nv-ioctl-numbers.h
 */
#define NV_IOCTL_MAGIC			'F'
#define NV_ESC_RM_ALLOC_MEMORY		0x27
#define NV_ESC_RM_ALLOC_OBJECT		0x28
#define NV_ESC_RM_FREE			0x29
#define NV_ESC_RM_CONTROL		0x2a
#define NV_ESC_RM_ALLOC			0x2b
#define NV_ESC_RM_DUP_OBJECT		0x34
#define NV_ESC_RM_SHARE			0x35
#define NV_ESC_RM_IDLE_CHANNELS		0x41
#define NV_ESC_RM_VID_HEAP_CONTROL	0x4a
#define NV_ESC_RM_MAP_MEMORY		0x4e
#define NV_ESC_RM_UNMAP_MEMORY		0x4f
#define NV_ESC_RM_GET_EVENT_DATA	0x52
#define NV_ESC_RM_MAP_MEMORY_DMA	0x57
#define NV_ESC_RM_UNMAP_MEMORY_DMA	0x58
#define NV_ESC_RM_UPDATE_MAPPING_INFO	0x5e
#define NV_ESC_CARD_INFO		200
#define NV_ESC_REGISTER_FD		201
#define NV_ESC_ALLOC_OS_EVENT		206
#define NV_ESC_FREE_OS_EVENT		207
#define NV_ESC_STATUS_CODE		209
#define NV_ESC_CHECK_VERSION_STR	210
#define NV_ESC_XFER_CMD			211
#define NV_ESC_ATTACH_GPUS_TO_FD	212
#define NV_ESC_QUERY_DEVICE_INTR	213
#define NV_ESC_SYS_PARAMS		214
#define NV_ESC_WAIT_OPEN_COMPLETE	218

#define NV_OS_EVENT_H_CLIENT		0	/* nv-ioctl.h: nv_ioctl_alloc_os_event_t, free alike */
#define NV_OS_EVENT_FD			8
#define NV_OS_EVENT_STATUS		12

/* src/common/sdk/nvidia/inc/nvos.h: byte offsets in the structs of the escapes */
#define NVOS_H_ROOT			0	/* NVOS00/02/21/32/54/55/64: client */
#define NVOS_H_PARENT			4
#define NVOS_H_NEW			8
#define NVOS_H_CLASS			12
#define NVOS00_SIZE			16
#define NVOS00_STATUS			12
#define NVOS02_SIZE			56	/* with the fd of RM_ALLOC_MEMORY */
#define NVOS02_FLAGS			16
#define NVOS02_FLAGS_PHYSICALITY_SHIFT	4
#define NVOS02_FLAGS_PHYSICALITY_CONTIGUOUS	0
#define NVOS02_LIMIT			32
#define NVOS02_STATUS			40
#define NVOS21_SIZE			32
#define NVOS21_PARAMS			16
#define NVOS21_STATUS			28
#define NVOS32_SIZE			184
#define NVOS32_FUNCTION			8
#define NVOS32_H_VASPACE		12
#define NVOS32_STATUS			20
#define NVOS32_TOTAL			24
#define NVOS32_FREE			32
#define NVOS32_ALLOC_H_MEMORY		44
#define NVOS32_ALLOC_FLAGS		52
#define NVOS32_ALLOC_ATTR		56
#define NVOS32_ALLOC_SIZE_AT		88
#define NVOS32_ALLOC_ALIGNMENT		96
#define NVOS32_ALLOC_ATTR2		144
#define NVOS32_FREE_H_MEMORY		44
#define NVOS32_INFO_OFFSET		48
#define NVOS32_INFO_SIZE_AT		56
#define NVOS32_INFO_BASE		64
#define NVOS32_FN_ALLOC_SIZE		2
#define NVOS32_FN_FREE			3
#define NVOS32_FN_INFO			5
#define NVOS33_SIZE			56	/* with the fd of RM_MAP_MEMORY */
#define NVOS33_H_DEVICE			4
#define NVOS33_H_MEMORY			8
#define NVOS33_OFFSET			16
#define NVOS33_LENGTH			24
#define NVOS33_LINEAR			32
#define NVOS33_STATUS			40
#define NVOS33_FD			48
#define NVOS34_H_MEMORY			8
#define NVOS34_LINEAR			16
#define NVOS34_STATUS			24
#define NVOS56_H_MEMORY			8
#define NVOS56_OLD			16
#define NVOS56_NEW			24
#define NVOS46_H_DEVICE			4
#define NVOS46_H_DMA			8
#define NVOS46_H_MEMORY			12
#define NVOS46_OFFSET			16
#define NVOS46_LENGTH			24
#define NVOS46_FLAGS			32
#define NVOS46_FLAGS_P2P		0x0ff00000	/* P2P_ENABLE and two subdevices of SLI */
#define NVOS46_FLAGS_KERNEL_MAPPING	0x00000020
#define NVOS46_FLAGS_DEFER_TLB		0x80000000u	/* …_DEFER_TLB_INVALIDATION */
#define NVOS47_H_DEVICE			4
#define NVOS47_H_DMA			8
#define NVOS47_FLAGS			16
#define NVOS47_FLAGS_DEFER_TLB		0x00000001	/* …_DEFER_TLB_INVALIDATION */
#define NVOS47_DMA_OFFSET		24
#define NVOS47_SIZE_AT			32	/* from 550 on; 0: all of it */
#define NV_DMABUF_H_CLIENT		4	/* nv-ioctl.h: nv_ioctl_export_to_dma_buf_fd_t */
#define NV_DMABUF_NUM			12
#define NV_DMABUF_MAX			128
#define NVOS54_SIZE			32
#define NVOS54_H_OBJECT			4
#define NVOS54_CMD			8
#define NVOS54_FLAGS			12
#define NVOS54_PARAMS			16
#define NVOS54_PARAMS_SIZE		24
#define NVOS54_STATUS			28
#define NVOS55_SIZE			28
#define NVOS55_H_OBJECT			8
#define NVOS55_H_CLIENT_SRC		12
#define NVOS55_H_OBJECT_SRC		16
#define NVOS55_STATUS			24
#define NVOS57_H_OBJECT			4
#define NVOS57_ACCESS_MASK		12
#define NVOS57_TYPE			16	/* u16 */
#define NVOS57_ACTION			18	/* u8 */
#define NVOS57_STATUS			20
#define NVOS64_SIZE			48
#define NVOS64_PARAMS			16
#define NVOS64_FLAGS			36
#define NVOS64_STATUS			40

/* nvos.h: NV_MEMORY_ALLOCATION_PARAMS (128 bytes) and its fields */
#define NV_MEM_PARAMS_SIZE		128
#define NV_MEM_FLAGS			8
#define NV_MEM_ATTR			24
#define NV_MEM_ATTR2			28
#define NV_MEM_SIZE			64
#define NV_MEM_ALIGNMENT		72
#define NV_MEM_H_VASPACE		108
#define NVOS32_ATTR_LOCATION_SHIFT	25
#define NVOS32_ATTR_LOCATION_VIDMEM	0
#define NVOS32_ATTR_PAGE_SIZE_SHIFT	23
#define NVOS32_ATTR_PAGE_SIZE_BIG	2
#define NVOS32_ATTR_PAGE_SIZE_HUGE	3
#define NVOS32_ATTR_PHYSICALITY_SHIFT	27
#define NVOS32_ATTR_PHYSICALITY_DEFAULT	0
#define NVOS32_ATTR_PHYSICALITY_CONTIGUOUS	2
#define NVOS32_ATTR2_HUGE_SHIFT		20
#define NVOS32_ATTR2_HUGE_512M		2
#define NVOS32_ALLOC_FLAGS_FIXED	0x10	/* at the requested offset */
#define NVOS32_ALLOC_FLAGS_ALIGNED	0x180	/* hinted, forced */
#define NVOS32_ALLOC_FLAGS_LAZY		0x400
#define NVOS32_ALLOC_FLAGS_BEGIN_END	0x20000	/* within the requested range */
#define NVOS32_ALLOC_FLAGS_VIRTUAL	0x80000
#define NVOS32_ALLOC_FLAGS_EXTERNAL	0x400000	/* its page tables are not RM's */
#define NVOS32_ALLOC_FLAGS_SPARSE	0x4000000
#define NVOS32_ALLOC_FLAGS_WPR		0xc0000000u	/* from what RM keeps of the card */
#define NVOS32_ALLOC_FLAGS_HANDLE	0x4000	/* hMemory is the caller's choice */

#define NV_CHANNEL_H_ERROR		0	/* src/common/sdk/nvidia/inc/alloc/alloc_channel.h */
#define NV_CHANNEL_H_CONTEXT_SHARE	24
#define NV_CHANNEL_H_VASPACE		28	/* hHandleVASpace behind it from 610 on */
#define NV_CHANNEL_USERD_OFFSETS	64	/* bytes of userdOffset[], which engineType follows */
#define NV_USERD_BYTES			512	/* dev_ram.h: NV_RAMUSERD_CHAN_SIZE */
#define NV_CONTEXT_SHARE_H_VASPACE	0	/* nvos.h: NV_CTXSHARE_ALLOCATION_PARAMETERS */
#define NV_VIRTUAL_H_VASPACE		16	/* nvos.h: NV_MEMORY_VIRTUAL_ALLOCATION_PARAMS */
/* class/cl0080.h; nvos.h: NV_VASPACE_ALLOCATION_PARAMETERS and its indices */
#define NV_DEVICE_INSTANCE		0
#define NV_DEVICE_CLIENT_SHARE		4
#define NV_VASPACE_INDEX		0
#define NV_VASPACE_INDEX_NEW		0
#define NV_VASPACE_INDEX_DEVICE		3	/* the default one of the device */
#define NV_VASPACE_FLAGS_AT		4
#define NV_VASPACE_FLAGS_HEAP_TABLES	0x2200	/* …_IS_FLA, …_PTETABLE_HEAP_MANAGED */
#define NV_EVENT_H_CLIENT		0	/* class/cl0005.h; 0: the allocating client */
#define NV_PEERS_H_SUBDEVICE		0	/* class/cl503b.h */
#define NV_PEERS_H_PEER			4
#define NV_PEERS_CHOICE			8	/* numbers of peers, and the place and size of mailboxes */
#define NV_PEERS_FLAGS			28
#define NV_PEERS_EGM			32	/* two more numbers of peers */
#define NV_PEERS_ANSWERS		40	/* where the driver begins to write */
#define NV_DEBUGGER_H_CLIENT		0	/* class/cl83de.h: of an older interface, 0 */
#define NV_DEBUGGER_H_APP_CLIENT	4	/* 0: the allocating client */
#define NV_DEBUGGER_H_OBJECT		8	/* the compute object */
#define NV_TSG_PARAMS_SIZE		20
#define NV_TSG_H_ERROR			0	/* for channels that have none */
#define NV_TSG_H_ECC_ERROR		4
#define NV_TSG_H_VASPACE		8
#define NV_TSG_ENGINE			12
/* nvos.h: NV_CONTEXT_DMA_ALLOCATION_PARAMS, NVOS03_FLAGS */
#define NV_CONTEXT_DMA_H_SUBDEVICE	0
#define NV_CONTEXT_DMA_FLAGS		4
#define NV_CONTEXT_DMA_H_MEMORY		8
#define NV_CONTEXT_DMA_OFFSET		16
#define NV_CONTEXT_DMA_LIMIT		24
#define NVOS03_FLAGS_FREE		0x10000003	/* access, cache snooping: any */
#define NVOS03_FLAGS_NOTIFIER		0x20100000	/* _TYPE_NOTIFIER, and _HASH_TABLE_DISABLE, which RM demands */
#define NV2080_ENGINE_TYPE_GRAPHICS	1	/* class/cl2080.h: GR0 … GR7 = 1 … 8 */
#define NV2080_ENGINE_TYPE_GR7		8
#define NV2080_ENGINE_TYPE_COPY0	0x09	/* class/cl2080_notification.h */
#define NV2080_ENGINE_TYPE_COPY9	0x12
#define NV2080_ENGINE_TYPE_COPY10	0x34	/* from 560 on; before, no engine */
#define NV2080_ENGINE_TYPE_COPY19	0x3d
#define NV2080_ENGINE_TYPE_COMP_DECOMP_COPY0	0x40	/* from 560 on: another name of COPY0, which can decompress */
#define NV2080_ENGINE_TYPE_COMP_DECOMP_COPY19	0x53
#define NV2080_ENGINE_TYPE_NVDEC0	0x13
#define NV2080_ENGINE_TYPE_NVDEC7	0x1a
#define NV2080_ENGINE_TYPE_NVENC0	0x1b
#define NV2080_ENGINE_TYPE_NVENC2	0x1d
#define NV2080_ENGINE_TYPE_NVENC3	0x3f	/* from 570 on; before, no engine */
#define NV2080_ENGINE_TYPE_NVJPEG0	0x2b
#define NV2080_ENGINE_TYPE_NVJPEG7	0x32
#define NV2080_ENGINE_TYPE_OFA0		0x33
#define NV2080_ENGINE_TYPE_OFA1		0x3e	/* from 560 on; before, no engine */

/* src/common/sdk/nvidia/inc/class/ */
#define NV01_ROOT			0x0000
#define NV01_ROOT_NON_PRIV		0x0001
#define NV01_ROOT_CLIENT		0x0041
#define NV01_DEVICE_0			0x0080
#define NV20_SUBDEVICE_0		0x2080
#define NV01_MEMORY_SYSTEM		0x003e
#define NV01_MEMORY_LOCAL_USER		0x0040
#define NV01_MEMORY_VIRTUAL		0x0070
#define NV01_MEMORY_OS_DESCRIPTOR	0x0071
#define NV50_P2P			0x503b
#define NV50_MEMORY_VIRTUAL		0x50a0
#define HOPPER_USERMODE_A		0xc661
#define FERMI_CONTEXT_SHARE_A		0x9067
#define FERMI_VASPACE_A			0x90f1
#define NV01_EVENT			0x0005
#define NV01_EVENT_OS_EVENT		0x0079
#define NV2081_BINAPI			0x2081
#define GT200_DEBUGGER			0x83de

/* src/common/sdk/nvidia/inc/ctrl/: controls the shell or the table names */
#define NV2080_CTRL_FB_GET_INFO		0x20801301
#define NV2080_CTRL_FB_GET_INFO_V2	0x20801303
#define NV2080_CTRL_GPU_GET_GID_INFO	0x2080014a
#define NV2080_CTRL_GPU_GET_PIDS	0x2080018d
#define NV2080_CTRL_GPU_GET_PID_INFO	0x2080018e
#define NV2080_CTRL_DISABLE_CHANNELS	0x2080110b
#define NV2080_DISABLE_CHANNELS_SIZE	536
#define NV2080_DISABLE_CHANNELS_MAX	64
#define NV2080_CTRL_MC_GET_ARCH_INFO	0x20801701
#define NV_ARCH_TU100			0x160	/* ctrl2080mc.h */
#define NV_ARCH_GA100			0x170
#define NV_ARCH_GH100			0x180
#define NV2080_CTRL_PERF_UTIL_SAMPLES	0x20802096
#define NV_UTIL_BUFFER_SIZE		4
#define NV_UTIL_SAMPLES			16
#define NV_UTIL_TIME			0	/* in a sample */
#define NV_UTIL_NOBODY			0xffffffffu
#define NV_UTIL_PARAMS_MAX		55888	/* of all branches; struct cgpu_abi has the layout */
#define NV2080_CTRL_CE_GET_ALL_CAPS	0x20802a0a
#define NV_CE_CAPS_SIZE			136	/* ctrl2080ce.h: caps of each engine, then a mask of those that exist */
#define NV_CE_CAPS_BYTES		2
#define NV_CE_CAPS_GRCE			0x01	/* in the first */
#define NVA06C_CTRL_GPFIFO_SCHEDULE	0xa06c0101
#define NV_SCHEDULE_SKIPS		1	/* bSkipSubmit; from 575 on bSkipEnable behind it */
#define NVA06C_CTRL_SET_TIMESLICE	0xa06c0103
#define NVA06C_CTRL_GET_TIMESLICE	0xa06c0104
#define NVA06F_CTRL_GPFIFO_SCHEDULE	0xa06f0103
#define NVA06F_CTRL_BIND		0xa06f0104
#define NVA06F_CTRL_RESTART_RUNLIST	0xa06f0111
#define NV0041_CTRL_GET_SURFACE_INFO	0x410110
#define NV0041_SURFACE_PHYS_SIZE	7	/* in units of 4 KiB */
#define NV0041_SURFACE_SIZE_UNIT	4096
#define NV0000_CTRL_ATTACHED_IDS	0x201
#define NV0000_CTRL_ID_INFO_V2		0x205
#define NV0000_CTRL_UUID_FROM_ID	0x275
#define NV_FB_INFO_LIST			4	/* FB_GET_INFO_V2: {index, data} pairs */
#define NV_FB_INFO_V2_SIZE		1028	/* ctrl2080fb.h: 128 entries */
#define NV_FB_INFO_MAX			128

/* ctrl0000client.h, rs_access.h: CLIENT_SET_INHERITED_SHARE_POLICY, an RS_SHARE_POLICY */
#define NV_SHARE_TYPE			8	/* u16 */
#define NV_SHARE_ALL			1
#define NV_SHARE_OS_TOKEN		2	/* the same user */
#define NV_SHARE_CLIENT			3
#define NV_SHARE_PID			4	/* the same process */
#define NV_SHARE_REVOKE			1	/* actions */
#define NV_SHARE_COMPOSE		4
#define NV_SHARE_MAY_DUP		1	/* the mask of RS_ACCESS_DUP_OBJECT */

/* ctrl0000system.h: NV0000_CTRL_SYSTEM_GET_P2P_CAPS_PARAMS, _V2_, _MATRIX_; 32 GPUs */
#define NV0000_CTRL_P2P_CAPS		0x127
#define NV0000_CTRL_P2P_CAPS_V2		0x12b
#define NV0000_CTRL_FABRIC_STATUS	0x136
#define NV0000_CTRL_P2P_CAPS_MATRIX	0x13a
#define NV_P2P_GPUS			32	/* ids, at 0 */
#define NV_P2P_COUNT			128
#define NV_P2P_CAPS			132
#define NV_P2P_STATUS			144
#define NV_P2P_STATUS_COUNT		9
#define NV_P2P_STATUS_NOT_SUPPORTED	5
#define NV_P2P_PEERS			160	/* a pointer */
#define NV_P2P_V2_PEERS			156	/* the list itself */
#define NV_P2P_MATRIX_COUNT_A		0
#define NV_P2P_MATRIX_COUNT_B		4	/* 0: A among each other */
#define NV_P2P_MATRIX_A			8
#define NV_P2P_MATRIX_B			40
#define NV_P2P_MATRIX_GPUS		8
#define NV_P2P_MATRIX_CAPS		72
#define NV_FABRIC_STATUS_SKIP		1
#define NV2080_CTRL_FABRIC_PROBE	0x208001a3
#define NV2080_CTRL_NVLINK_CAPS		0x20803001
#define NV2080_CTRL_NVLINK_STATUS	0x20803002
#define NV2080_CTRL_PEERS_UNNAMED	0x20808162	/* libcuda's, in no public header */

/* ctrl2080thermal.h from 575 on: NV2080_CTRL_THERMAL_SYSTEM_EXECUTE_V2_PARAMS */
#define NV_THERMAL_SIZE			1432
#define NV_THERMAL_STRIDE_AT		8
#define NV_THERMAL_COUNT		20
#define NV_THERMAL_LIST			24
#define NV_THERMAL_STRIDE		44
#define NV_THERMAL_OPCODE		8	/* in an instruction */
#define NV_THERMAL_MAX			32

/* ctrl2080gr.h: NV2080_CTRL_GR_SET_CTXSW_PREEMPTION_MODE_PARAMS */
#define NV_CTXSW_SIZE			32
#define NV_CTXSW_FLAGS			0
#define NV_CTXSW_FLAGS_CILP_SET		1
#define NV_CTXSW_H_CHANNEL		4
#define NV_CTXSW_GFXP			8
#define NV_CTXSW_CILP			12
#define NV_CTXSW_CILP_CILP		2
#define NV_CTXSW_ROUTE			16

/* ctrl2080fifo.h: NV2080_CTRL_FIFO_GET_INFO, {index, data} pairs of an engine */
#define NV2080_CTRL_FIFO_GET_INFO	0x20801109
#define NV_FIFO_INFO_MAX		256
#define NV_FIFO_INFO_SIZE		2056
#define NV_FIFO_GROUPS_OF_ENGINE	8

/* ctrl2080fb.h: FB_INFO indices, values in KiB */
#define NV_FB_BAR1_SIZE			0x05
#define NV_FB_RAM_SIZE			0x07
#define NV_FB_TOTAL_RAM_SIZE		0x08
#define NV_FB_HEAP_SIZE			0x09
#define NV_FB_MAPPABLE_HEAP_SIZE	0x0a
#define NV_FB_TAX_SIZE			0x10
#define NV_FB_LARGEST_FREE		0x12
#define NV_FB_LARGEST_FREE_BASE		0x13
#define NV_FB_RESERVED_HEAP_SIZE	0x15
#define NV_FB_HEAP_FREE			0x16
#define NV_FB_BAR1_AVAIL		0x1d
#define NV_FB_BAR1_LARGEST_AVAIL	0x1f
#define NV_FB_USABLE_RAM_SIZE		0x20
#define NV_FB_HEAP_RECLAIMABLE		0x44	/* from 610 or 615 on */
#define NV_FB_PROTECTED_TOTAL		0x33
#define NV_FB_PROTECTED_FREE		0x34

/* src/nvidia/arch/nvalloc/unix/include/nv-kernel-rmapi-ops.h, nvos.h: op numbers */
#define NV01_FREE			0x00
#define NV04_ALLOC			0x15
#define NV04_CONTROL			0x36
#define NV04_SHARE			0x3e

/* src/common/sdk/nvidia/inc/ctrl/ctrl0000/ctrl0000unix.h: objects on files.
 * NUM, INDEX and MAX_OBJECTS are u16, the rest u32.
 */
#define NV0000_CTRL_EXPORT_OBJECT_TO_FD		0x3d05
#define NV3D05_SIZE			24
#define NV3D05_H_OBJECT			12
#define NV3D05_FD			16
#define NV0000_CTRL_IMPORT_OBJECT_FROM_FD	0x3d06
#define NV3D06_SIZE			20
#define NV3D06_FD			0
#define NV3D06_H_PARENT			12
#define NV3D06_H_OBJECT			16
#define NV0000_CTRL_GET_EXPORT_OBJECT_INFO	0x3d08
#define NV0000_CTRL_CREATE_EXPORT_OBJECT_FD	0x3d0a
#define NV3D0A_MAX_OBJECTS		4
#define NV3D0A_FD			72
#define NV0000_CTRL_EXPORT_OBJECTS_TO_FD	0x3d0b
#define NV3D0B_SIZE			2128
#define NV3D0B_FD			0
#define NV3D0B_MAX_OBJECTS		8
#define NV3D0B_OBJECTS			76
#define NV3D0B_NUM			2124
#define NV3D0B_INDEX			2126
#define NV3D0B_MAX			512
#define NV0000_CTRL_IMPORT_OBJECTS_FROM_FD	0x3d0c
#define NV3D0C_SIZE			652
#define NV3D0C_FD			0
#define NV3D0C_H_PARENT			4
#define NV3D0C_OBJECTS			8
#define NV3D0C_NUM			648
#define NV3D0C_INDEX			650
#define NV3D0C_MAX			128
#define NV_EXPORT_BYTES			4	/* of each of maxObjects (_initializeExportObjectFd()) */

/* Ours: names for imported objects, apart from those RM makes (0xcaf00000 on) */
#define NV_OUR_HANDLES			0xb6700000u
#define NV_OUR_HANDLES_SPAN		0x00100000u

/* kernel-open/nvidia-uvm/uvm_ioctl.h, uvm_linux_ioctl.h */
#define UVM_INITIALIZE			0x30000001
#define UVM_INIT_FLAGS_DISABLE_HMM	1u
#define UVM_INIT_FLAGS_MULTI_PROCESS	2u	/* …_SHARING_MODE */
#define UVM_DEINITIALIZE		0x30000002
#define UVM_CREATE_RANGE_GROUP		23	/* up to 595 */
#define UVM_DESTROY_RANGE_GROUP		24	/* up to 595 */
#define UVM_REGISTER_GPU_VASPACE	25
#define UVM_UNREGISTER_GPU_VASPACE	26
#define UVM_REGISTER_CHANNEL		27
#define UVM_UNREGISTER_CHANNEL		28
#define UVM_ENABLE_PEER_ACCESS		29
#define UVM_DISABLE_PEER_ACCESS		30
#define UVM_MAP_EXTERNAL_ALLOCATION	33
#define UVM_FREE			34
#define UVM_REGISTER_GPU		37
#define UVM_UNREGISTER_GPU		38
#define UVM_PAGEABLE_MEM_ACCESS		39
#define UVM_MAP_DYN_PARALLELISM		65
#define UVM_UNMAP_EXTERNAL		66
#define UVM_ALLOC_SEMAPHORE_POOL	68
#define UVM_PAGEABLE_MEM_ACCESS_ON_GPU	70
#define UVM_VALIDATE_VA_RANGE		72
#define UVM_CREATE_EXTERNAL_RANGE	73
#define UVM_MM_INITIALIZE		75

/* kernel-open/common/inc/nv_uvm_types.h: UvmGpuChannelInstanceInfo of nvUvmInterfaceRetainChannel() */
#define NV_UVM_CHANNEL_ID		16	/* the channel's number on its runlist; on Turing, on the GPU */
#define NV_UVM_CHANNEL_CHRAM		1096	/* kernel address of the channel's word, NULL before Ampere */

/* open-gpu-doc, manuals/ampere/ga100/dev_runlist.ref.txt: NV_CHRAM_CHANNEL */
#define NV_CHRAM_ENABLE			0x0002
#define NV_CHRAM_NEXT			0x0004
#define NV_CHRAM_BUSY			0x0008
#define NV_CHRAM_ON_PBDMA		0x0040
#define NV_CHRAM_ON_ENG			0x0080
#define NV_CHRAM_PENDING		0x0100

/* manuals/turing/tu104/dev_fifo.ref.txt: NV_PCCSR_CHANNEL */
#define NV_PCCSR			0x00800000	/* in BAR0 */
#define NV_PCCSR_CHANNELS		4096
#define NV_PCCSR_STRIDE			8
#define NV_PCCSR_CHANNEL		4		/* of a channel's eight bytes */
#define NV_PCCSR_ENABLE			0x00000001
#define NV_PCCSR_NEXT			0x00000002
#define NV_PCCSR_STATUS_SHIFT		24
#define NV_PCCSR_STATUS_LAST		14
#define NV_PCCSR_STATUS_ON_ENG		0x7bc0	/* bit n: status n has ON_ENG or AND_ENG in its name */
#define NV_PCCSR_BUSY			0x10000000

/* manuals/ampere/ga100/dev_boot.ref.txt: NV_PMC_BOOT_0, at 0 of BAR0 */
#define NV_PMC_BOOT_0			0
#define NV_PMC_BOOT_0_ARCH_SHIFT	24
#define NV_PMC_BOOT_0_ARCH_TU100	0x16

#define NV_REGISTER_REFUSED		0xbadf0000u	/* upper half of what a refused read gives */

#endif
