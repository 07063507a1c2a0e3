# SPDX-License-Identifier: MIT
"""What the headers do not say themselves: the public driver's expression for a number of ours that it does not have.

Values are C expressions over its headers. Of several, each that a release has must agree with ours.
"""

from __future__ import annotations


def at(struct: str, *fields: str) -> list[str]:
    """Offset of the field; several names for one that was renamed."""
    return [f"offsetof({struct}, {f})" for f in fields]


def size(*structs: str) -> list[str]:
    return [f"sizeof({s})" for s in structs]


def low(bits: str) -> list[str]:
    """The lowest bit of a HIGH:LOW macro."""
    return [f"(0 ? {bits})"]


def engine(name: str) -> list[str]:
    """NV2080_ENGINE_TYPE_GR7, or of later releases NV2080_ENGINE_TYPE_GR(7)."""
    return [f"NV2080_ENGINE_TYPE_{name}", f"NV2080_ENGINE_TYPE_{name[:-1]}({name[-1]})"]


CHANNEL = "NV_CHANNEL_ALLOC_PARAMS"
UTIL_SAMPLE = "NV2080_CTRL_PERF_GPUMON_PERFMON_UTIL_SAMPLE"
RUSD = "NV00DE_SHARED_DATA"

# Numbers of nv_abi.h and of nvabi.h that have not NVIDIA's names: one is made of several, or a part of a macro.
NAMES = {
    "NVOS02_FLAGS_PHYSICALITY_SHIFT": low("NVOS02_FLAGS_PHYSICALITY"),
    "NVOS46_FLAGS_P2P": ["((2 << (1 ? NVOS46_FLAGS_P2P)) - 1) & ~((1 << (0 ? NVOS46_FLAGS_P2P)) - 1)"],
    "NVOS46_FLAGS_KERNEL_MAPPING": ["NVOS46_FLAGS_KERNEL_MAPPING_ENABLE << (0 ? NVOS46_FLAGS_KERNEL_MAPPING)"],
    "NVOS46_FLAGS_DEFER_TLB": [
        "(0u + NVOS46_FLAGS_DEFER_TLB_INVALIDATION_TRUE) << (0 ? NVOS46_FLAGS_DEFER_TLB_INVALIDATION)"
    ],
    "NVOS47_FLAGS_DEFER_TLB": ["NVOS47_FLAGS_DEFER_TLB_INVALIDATION_TRUE << (0 ? NVOS47_FLAGS_DEFER_TLB_INVALIDATION)"],
    "NVOS32_ATTR_LOCATION_SHIFT": low("NVOS32_ATTR_LOCATION"),
    "NVOS32_ATTR_PAGE_SIZE_SHIFT": low("NVOS32_ATTR_PAGE_SIZE"),
    "NVOS32_ATTR_PHYSICALITY_SHIFT": low("NVOS32_ATTR_PHYSICALITY"),
    "NVOS32_ATTR2_HUGE_SHIFT": low("NVOS32_ATTR2_PAGE_SIZE_HUGE"),
    "NVOS32_ATTR2_USE_EGM": ["1 << (0 ? NVOS32_ATTR2_USE_EGM)"],
    "NVOS32_ALLOC_FLAGS_ALIGNED": ["NVOS32_ALLOC_FLAGS_ALIGNMENT_HINT | NVOS32_ALLOC_FLAGS_ALIGNMENT_FORCE"],
    "NVOS32_ALLOC_FLAGS_WPR": ["NVOS32_ALLOC_FLAGS_WPR1 | NVOS32_ALLOC_FLAGS_WPR2"],
    "NV_VASPACE_FLAGS_HEAP_TABLES": [
        "NV_VASPACE_ALLOCATION_FLAGS_IS_FLA | NV_VASPACE_ALLOCATION_FLAGS_PTETABLE_HEAP_MANAGED"
    ],
    "NVOS03_FLAGS_FREE": ["3 << (0 ? NVOS03_FLAGS_ACCESS) | 1 << (0 ? NVOS03_FLAGS_CACHE_SNOOP)"],
    "NVOS03_FLAGS_NOTIFIER": [
        (
            "NVOS03_FLAGS_TYPE_NOTIFIER << (0 ? NVOS03_FLAGS_TYPE)"
            " | NVOS03_FLAGS_HASH_TABLE_DISABLE << (0 ? NVOS03_FLAGS_HASH_TABLE)"
        ),
    ],
    **{
        f"NV2080_ENGINE_TYPE_{name}": engine(name)
        for name in ("GR7", "COPY0", "COPY9", "NVDEC0", "NVDEC7", "NVENC0", "NVENC2", "NVJPEG0", "NVJPEG7")
    },
    "NV2080_ENGINE_TYPE_OFA0": ["NV2080_ENGINE_TYPE_OFA0", "NV2080_ENGINE_TYPE_OFA"],
    "NV_CE_CAPS_GRCE": ["0 ? NV2080_CTRL_CE_CAPS_CE_GRCE"],  # of "0:0x01" what follows the colon
    "NV_SHARE_MAY_DUP": ["1 << RS_ACCESS_DUP_OBJECT"],
    "NV_EXPORT_BYTES": ["sizeof(((struct nv_file_private_t *)0)->handles[0])"],
    "NV_USERD_GPGET": at("Nvc36fControl", "GPGet"),
    "NV_USERD_GPPUT": at("Nvc36fControl", "GPPut"),
    "NV_RUSD_SIZE": size(RUSD),
    "NV_RUSD_PMA_STAMP": at(RUSD, "pmaMemoryInfo"),
    "NV_RUSD_PMA_TOTAL": at(RUSD, "pmaMemoryInfo.totalPmaMemory"),
    "NV_RUSD_PMA_FREE": at(RUSD, "pmaMemoryInfo.freePmaMemory"),
    # In no header of the driver's: of a manual of the hardware, of all branches together, or ours alone.
    **{
        name: []
        for name in (
            *(f"NV_CHRAM_{name}" for name in ("ENABLE", "NEXT", "BUSY", "ON_PBDMA", "ON_ENG", "PENDING")),
            *(f"NV_PCCSR{name}" for name in ("", "_CHANNELS", "_STRIDE", "_CHANNEL", "_ENABLE", "_NEXT", "_BUSY")),
            *(f"NV_PCCSR_STATUS_{name}" for name in ("SHIFT", "LAST", "ON_ENG")),
            *(f"NV_PMC_BOOT_0{name}" for name in ("", "_ARCH_SHIFT", "_ARCH_TU100")),
            *("NV_REGISTER_REFUSED", "NV_OUR_HANDLES", "NV_OUR_HANDLES_SPAN", "NV_FB_INFO_MAX"),
            *("NV2080_CTRL_PEERS_UNNAMED", "NV_EVENT_INDEX"),
        )
    },
}

# These are as nvsim's default release has them.
OF_NVSIM = {"NV_RUSD_SIZE", "NV_RUSD_PMA_STAMP", "NV_RUSD_PMA_TOTAL", "NV_RUSD_PMA_FREE", "UVM_MAX_GPUS"}

# These offsets are at the same place in every struct that has them (nv_struct.h).
COMMON = {
    "NVOS_H_ROOT": [
        *(e for n in ("00", "02", "21", "32", "64") for e in at(f"NVOS{n}_PARAMETERS", "hRoot")),
        *(e for n in ("33", "34", "46", "47", "54", "55", "56", "57") for e in at(f"NVOS{n}_PARAMETERS", "hClient")),
    ],
    "NVOS_H_PARENT": [
        *(e for n in ("00", "02", "21", "32", "64") for e in at(f"NVOS{n}_PARAMETERS", "hObjectParent")),
        *at("NVOS55_PARAMETERS", "hParent"),
    ],
    "NVOS_H_NEW": [
        *at("NVOS00_PARAMETERS", "hObjectOld"),
        *(e for n in ("02", "21", "64") for e in at(f"NVOS{n}_PARAMETERS", "hObjectNew")),
    ],
    "NVOS_H_CLASS": [e for n in ("02", "21", "64") for e in at(f"NVOS{n}_PARAMETERS", "hClass")],
}

# struct cgpu_abi: its fields, counted from the op's union.
ABI = {
    "op_alloc_params_size": "params.alloc.paramsSize",
    "op_alloc_status": "params.alloc.status",
}

# The struct of an escape, by its name and size, with the names of its status and of its file descriptor.
ESCAPES = {
    "NV_ESC_RM_ALLOC_MEMORY": ("nv_ioctl_nvos02_parameters_with_fd", "params.status", "fd"),
    "NV_ESC_RM_ALLOC_OBJECT": ("NVOS05_PARAMETERS", "status", ""),
    "NV_ESC_RM_FREE": ("NVOS00_PARAMETERS", "status", ""),
    "NV_ESC_RM_CONTROL": ("NVOS54_PARAMETERS", "status", ""),
    ("NV_ESC_RM_ALLOC", 32): ("NVOS21_PARAMETERS", "status", ""),
    ("NV_ESC_RM_ALLOC", 40): ("NVOS64_PARAMETERS", "status", ""),
    ("NV_ESC_RM_ALLOC", 48): ("NVOS64_PARAMETERS", "status", ""),
    "NV_ESC_RM_DUP_OBJECT": ("NVOS55_PARAMETERS", "status", ""),
    "NV_ESC_RM_SHARE": ("NVOS57_PARAMETERS", "status", ""),
    "NV_ESC_RM_IDLE_CHANNELS": ("NVOS30_PARAMETERS", "status", ""),
    "NV_ESC_RM_VID_HEAP_CONTROL": ("NVOS32_PARAMETERS", "status", ""),
    "NV_ESC_RM_ACCESS_REGISTRY": ("NVOS38_PARAMETERS", "", ""),
    "NV_ESC_RM_MAP_MEMORY": ("nv_ioctl_nvos33_parameters_with_fd", "params.status", "fd"),
    "NV_ESC_RM_UNMAP_MEMORY": ("NVOS34_PARAMETERS", "status", ""),
    "NV_ESC_RM_GET_EVENT_DATA": ("NVOS41_PARAMETERS", "status", ""),
    "NV_ESC_RM_ALLOC_CONTEXT_DMA2": ("NVOS39_PARAMETERS", "status", ""),
    "NV_ESC_RM_MAP_MEMORY_DMA": ("NVOS46_PARAMETERS", "status", ""),
    "NV_ESC_RM_UNMAP_MEMORY_DMA": ("NVOS47_PARAMETERS", "status", ""),
    "NV_ESC_RM_BIND_CONTEXT_DMA": ("NVOS49_PARAMETERS", "status", ""),
    "NV_ESC_RM_UPDATE_DEVICE_MAPPING_INFO": ("NVOS56_PARAMETERS", "status", ""),
    "NV_ESC_CARD_INFO": ("", "", ""),
    "NV_ESC_REGISTER_FD": ("nv_ioctl_register_fd_t", "", "ctl_fd"),
    "NV_ESC_ALLOC_OS_EVENT": ("nv_ioctl_alloc_os_event_t", "Status", "fd"),
    "NV_ESC_FREE_OS_EVENT": ("nv_ioctl_free_os_event_t", "Status", "fd"),
    "NV_ESC_STATUS_CODE": ("nv_ioctl_status_code_t", "status", ""),
    "NV_ESC_CHECK_VERSION_STR": ("nv_ioctl_rm_api_version_t", "", ""),
    "NV_ESC_ATTACH_GPUS_TO_FD": ("", "", ""),
    "NV_ESC_QUERY_DEVICE_INTR": ("nv_ioctl_query_device_intr", "status", ""),
    "NV_ESC_SYS_PARAMS": ("nv_ioctl_sys_params_t", "", ""),
    "NV_ESC_NUMA_INFO": ("nv_ioctl_numa_info_t", "", ""),
    "NV_ESC_SET_NUMA_STATUS": ("nv_ioctl_set_numa_status_t", "", ""),
    "NV_ESC_EXPORT_TO_DMABUF_FD": ("nv_ioctl_export_to_dma_buf_fd_t", "status", "fd"),
    "NV_ESC_WAIT_OPEN_COMPLETE": ("nv_ioctl_wait_open_complete_t", "adapterStatus", ""),
}

# The file descriptor in a control's parameters.
CONTROL_FDS = {
    0x3D05: at("NV0000_CTRL_OS_UNIX_EXPORT_OBJECT_TO_FD_PARAMS", "fd"),
    0x3D06: at("NV0000_CTRL_OS_UNIX_IMPORT_OBJECT_FROM_FD_PARAMS", "fd"),
    0x3D08: at("NV0000_CTRL_OS_UNIX_GET_EXPORT_OBJECT_INFO_PARAMS", "fd"),
    0x3D0A: at("NV0000_CTRL_OS_UNIX_CREATE_EXPORT_OBJECT_FD_PARAMS", "fd"),
    0x3D0B: at("NV0000_CTRL_OS_UNIX_EXPORT_OBJECTS_TO_FD_PARAMS", "fd"),
    0x3D0C: at("NV0000_CTRL_OS_UNIX_IMPORT_OBJECTS_FROM_FD_PARAMS", "fd"),
    0x3D0D: at("NV0000_CTRL_OS_UNIX_MEMACCT_SET_LIMITS_PARAMS", "cgroupFd"),
    0x3D0E: at("NV0000_CTRL_OS_UNIX_MEMACCT_GET_LIMITS_PARAMS", "cgroupFd"),
    0xE00101: at("NV00E0_CTRL_EXPORT_MEM_PARAMS", "devDescriptor"),
    0xFD0104: at("NV00FD_CTRL_ATTACH_GPU_PARAMS", "devDescriptor"),
}

# Controls that the driver has and its headers do not name; the name is by its function.
UNNAMED = {
    0x80028B,
    0x809909,
    0x20800152,
    0x20800145,
    0x20800146,
    0x20800194,
    0x20808159,
    0x2080852A,
    0x2080852E,
    0x20808536,
    0x20809001,
    0x20809009,
    0x20809038,
    0x20809064,
}
UNNAMED |= {0x20808163, 0x20808165, 0x2080A028, 0x2080A026, 0x2080A0A7, 0x2080A612, 0x2080A618}

# Classes that only a closed driver has, or had before 595.
CLOSED_CLASSES = {"VOLTA_COMPUTE_A", "VOLTA_DMA_COPY_A", "NVA083_GRID_DISPLAYLESS"}
