# SPDX-License-Identifier: MIT
"""The structures that go with the numbers of rmabi.py, once for C and Python, and their sizes by driver branch.

A layout is a list of fields, `name:kind` or `name:kind[count]`. Kinds are u8, u16, u32 (the default), s32, u64, c
(text) and the names of other layouts; padding that the compiler would not insert by itself is a field. They are those
of 580.105.08; BYTES has the sizes of parameters that changed, VARIANTS the layouts of other branches.
"""

from __future__ import annotations

import ctypes
from ctypes import c_char, c_int32, c_uint8, c_uint16, c_uint32, c_uint64

from rmabi import (
    ARCHS,
    CLASS_CONTEXT_SHARE,
    CLASS_DEVICE,
    CLASS_SUBDEVICE,
    CLASS_SYSMEM,
    CLASS_TSG,
    CLASS_VASPACE,
    CLASS_VIDMEM,
    CTRL_DISABLE_CHANNELS,
    CTRL_FB_GET_INFO_V2,
    CTRL_GET_ATTACHED_IDS,
    CTRL_GET_CLASSLIST_V2,
    CTRL_GET_GID_INFO,
    CTRL_GET_ID_INFO_V2,
    CTRL_GET_NAME_STRING,
    CTRL_GET_PID_INFO,
    CTRL_GET_PIDS,
    CTRL_GET_TOKEN,
    CTRL_GET_UTIL_SAMPLES,
    CTRL_TSG_SCHEDULE,
)

# fmt: off
LAYOUTS = {
    # of the escapes
    "Alloc": "root parent handle class_id params:u64 rights:u64 params_size flags status pad",
    "Free": "root parent handle status",
    "Control": "client object cmd flags params:u64 params_size status",
    "Dup": "client parent handle client_src handle_src flags status",
    "MapMemory": "client device memory pad0 offset:u64 length:u64 address:u64 status flags fd:s32 pad1",
    "UnmapMemory": "client device memory pad0 address:u64 status flags",
    "RenameMap": "client device memory pad0 old:u64 new:u64 status pad1",
    "MapDma": "client device dma memory offset:u64 length:u64 flags flags2 kind pad0 dma_offset:u64 status pad1",
    "MapDmaBefore580": "client device dma memory offset:u64 length:u64 flags pad0 dma_offset:u64 status pad1",
    "UnmapDma": "client device dma memory flags pad0 dma_offset:u64 size:u64 status pad1",
    "UnmapDmaBefore550": "client device dma memory flags pad0 dma_offset:u64 status pad1",
    "CardInfo": "valid:u8 pad0:u8[3] domain bus:u8 slot:u8 function:u8 pad1:u8 vendor_id:u16 device_id:u16 gpu_id "
                "irq:u16 pad2:u16 reg_address:u64 reg_size:u64 fb_address:u64 fb_size:u64 minor name:u8[10] pad3:u8[2]",
    "Version": "cmd reply text:c[64]",
    "RegisterFd": "ctl_fd:s32",
    "OsEvent": "client device fd status",
    "ExportDmabuf": "fd:s32 client total_objects objects index total_size:u64 mapping_type:u8 allow_mmap:u8 "
                    "handles[128] offsets:u64[128] sizes:u64[128] status",
    "ExportDmabufBefore570": "fd:s32 client total_objects objects index total_size:u64 "
                             "handles[128] offsets:u64[128] sizes:u64[128] status",
    "Xfer": "cmd size ptr:u64",

    # of classes
    "DeviceParams": "device_id client_share target_client target_device flags pad0 va_size:u64 va_start:u64 "
                    "va_limit:u64 va_mode pad1",
    "SubdeviceParams": "sub_device_id",
    "VaspaceParams": "index flags va_size:u64 va_start:u64 va_limit:u64 big_page_size pad0 va_base:u64 pasid pad1",
    "MemoryParams": "owner type flags width height pitch:s32 attr attr2 format compr_covg zcull_covg pad0 range_lo:u64 "
                    "range_hi:u64 size:u64 alignment:u64 offset:u64 limit:u64 address:u64 ctag_offset vaspace "
                    "internal_flags tag numa_node:s32 pad1",
    "TsgParams": "error_object ecc_error_object vaspace engine vgpu:u8 pad:u8[3]",
    "ContextShareParams": "vaspace flags subcontext",
    "ChannelParams": "error_object buffer_object gpfifo_va:u64 gpfifo_entries flags context_share vaspace "
                     "userd_memory[8] userd_offset:u64[8] engine cid sub_device_id ecc_error_object "
                     "reserved_mem:u64[12] phys_channel_group internal_flags reserved_notifier:u64[6] process_id "
                     "sub_process_id iv[6] nonce[8] tpc_config_id pad",
    "ChannelParamsSince610": "error_object buffer_object gpfifo_va:u64 gpfifo_entries flags context_share vaspace "
                     "handle_vaspace userd_memory[8] pad0 userd_offset:u64[8] engine cid sub_device_id "
                     "ecc_error_object reserved_mem:u64[12] phys_channel_group internal_flags reserved_notifier:u64[6] "
                     "process_id sub_process_id iv[6] nonce[8] tpc_config_id pad",
    "CopyParams": "version engine",
    "Notification": "time_ns:u64 info32 info16:u16 status:u16",  # an error notifier; status 0: nothing happened

    # of controls
    "AttachedIds": "gpu_id[32]",
    "IdInfo": "gpu_id flags device_instance sub_device_instance sli_status board_id gpu_instance numa_id:s32",
    "ClassList": "count class_id[200]",
    "FbInfo": "count list[256]",  # index, data, index, data, …
    "GidInfo": "index flags length data:u8[256]",
    "GpuName": "flags ascii:c[128]",
    "Pids": "id_type id count pid[950]",
    "PidInfoEntry": "pid index result pad private_bytes:u64 shared_owned:u64 shared_duped:u64 protected_bytes:u64[3] "
                    "compute_instance gpu_instance",
    "PidInfo": "count pad list:PidInfoEntry[200]",
    "DisableChannels": "disable:u8 pad0:u8[3] count only_scheduling:u8 rewind:u8 pad1:u8[6] event:u64 client[64] "
                       "channel[64]",
    "EngineUtil": "util vgpu_scale pid sub_pid name:c[100] pad os_pid:u64",  # util in 1/100 %
    "EngineUtilBefore570": "util vgpu_scale pid sub_pid name:c[100]",
    "UtilSample": "time:u64 fb:EngineUtil graphics:EngineUtil encoder:EngineUtil decoder:EngineUtil jpeg:EngineUtil "
                  "optical_flow:EngineUtil",
    "UtilSamples": "type buffer_size count tracker sample:UtilSample[72]",
    "Schedule": "enable:u8 skip_submit:u8 skip_enable:u8",
    "Preempt": "wait:u8 manual_timeout:u8 timeout_us",
    "Token": "token",

    # of nvidia-uvm
    "UvmInitialize": "flags:u64 status pad",
    "UvmRegisterGpu": "uuid:u8[16] numa_enabled:u8 pad:u8[3] numa_node:s32 ctl_fd:s32 client smc_part status",
    "UvmRegisterVaspace": "uuid:u8[16] ctl_fd:s32 client vaspace status",
    "UvmRegisterChannel": "uuid:u8[16] ctl_fd:s32 client channel pad0 base:u64 length:u64 status pad1",
    "UvmUnregisterChannel": "uuid:u8[16] client channel status",
    "UvmUnregisterChannelSince590": "client channel status",
    "UvmUuid": "uuid:u8[16] status",
    "UvmRange": "base:u64 length:u64 status pad",
    "UvmFree": "base:u64 length:u64 status pad",
    "UvmFreeSince590": "base:u64 status pad",
    "UvmPool": "base:u64 length:u64 gpu:u8[9216] gpu_count:u64 status pad",
    "UvmPoolBefore550": "base:u64 length:u64 gpu:u8[1152] gpu_count:u64 status pad",
    "UvmRangeGroup": "id:u64 status pad",
    "UvmSetRangeGroup": "id:u64 base:u64 length:u64 status pad",
    "UvmMapDyn": "base:u64 length:u64 uuid:u8[16] status pad",
    "UvmUnmapExternal": "base:u64 length:u64 uuid:u8[16] status pad",
    "UvmPageable": "access:u8 pad:u8[3] status",
    "UvmPreferred": "base:u64 length:u64 uuid:u8[16] node:s32 status",
    "UvmAccessedBy": "base:u64 length:u64 uuid:u8[16] status pad",
    "UvmMigrate": "base:u64 length:u64 uuid:u8[16] flags pad0 semaphore:u64 payload node:s32 user_start:u64 "
                  "user_length:u64 status pad1",
    "UvmMmInitialize": "uvm_fd:s32 status",
    "UvmGpuAttr": "uuid:u8[16] mapping caching format element_bits compression",
    "UvmMapExternal": "base:u64 length:u64 offset:u64 gpu:UvmGpuAttr[256] gpu_count:u64 ctl_fd:s32 client memory "
                      "status",
    "UvmMapExternalBefore550": "base:u64 length:u64 offset:u64 gpu:UvmGpuAttr[32] gpu_count:u64 ctl_fd:s32 client "
                               "memory status",

    # of the simulated GPU
    "NvsimWork": "op flags amount:u64 sem_va:u64 sem_value:u64",  # amount: ns of a kernel, bytes of a copy
    "NvsimSem": "value:u64 time_ns:u64",
}

#: The layouts of the parameters, by the number of their class or control.
PARAMS = {
    CLASS_DEVICE: "DeviceParams",
    CLASS_SUBDEVICE: "SubdeviceParams",
    CLASS_VASPACE: "VaspaceParams",
    CLASS_VIDMEM: "MemoryParams",
    CLASS_SYSMEM: "MemoryParams",
    CLASS_TSG: "TsgParams",
    CLASS_CONTEXT_SHARE: "ContextShareParams",
    **{arch[0]: "ChannelParams" for arch in ARCHS.values()},
    **{arch[3]: "CopyParams" for arch in ARCHS.values()},
    CTRL_GET_ATTACHED_IDS: "AttachedIds",
    CTRL_GET_ID_INFO_V2: "IdInfo",
    CTRL_GET_CLASSLIST_V2: "ClassList",
    CTRL_FB_GET_INFO_V2: "FbInfo",
    CTRL_GET_GID_INFO: "GidInfo",
    CTRL_GET_NAME_STRING: "GpuName",
    CTRL_GET_PIDS: "Pids",
    CTRL_GET_PID_INFO: "PidInfo",
    CTRL_GET_UTIL_SAMPLES: "UtilSamples",
    CTRL_DISABLE_CHANNELS: "DisableChannels",
    CTRL_TSG_SCHEDULE: "Schedule",
    CTRL_GET_TOKEN: "Token",
}

#: Bytes of those that changed: from each branch on, the newest first.
BYTES = {
    CTRL_GET_CLASSLIST_V2: ((580, 804), (555, 404), (550, 700), (525, 644), (0, 468)),
    CTRL_GET_NAME_STRING: ((595, 68), (0, 132)),
    CTRL_FB_GET_INFO_V2: ((580, 1028), (560, 460), (545, 444), (0, 436)),
    CTRL_GET_UTIL_SAMPLES: ((570, 55888), (550, 50704), (0, 34000)),
    CTRL_TSG_SCHEDULE: ((575, 3), (0, 2)),
    CLASS_VASPACE: ((580, 56), (0, 48)),
    CLASS_VIDMEM: ((545, 128), (0, 120)),
    CLASS_SYSMEM: ((545, 128), (0, 120)),
    **{arch[0]: ((610, 376), (570, 368), (0, 360)) for arch in ARCHS.values()},
}
# fmt: on

#: Layouts that differ: from each branch on, the newest first.
VARIANTS = {
    "MapDma": ((580, "MapDma"), (0, "MapDmaBefore580")),
    "UnmapDma": ((550, "UnmapDma"), (0, "UnmapDmaBefore550")),
    "ExportDmabuf": ((570, "ExportDmabuf"), (0, "ExportDmabufBefore570")),
    "ChannelParams": ((610, "ChannelParamsSince610"), (0, "ChannelParams")),
    "EngineUtil": ((570, "EngineUtil"), (0, "EngineUtilBefore570")),
    "UvmMapExternal": ((550, "UvmMapExternal"), (0, "UvmMapExternalBefore550")),
    "UvmPool": ((550, "UvmPool"), (0, "UvmPoolBefore550")),
    "UvmFree": ((590, "UvmFreeSince590"), (0, "UvmFree")),
    "UvmUnregisterChannel": ((590, "UvmUnregisterChannelSince590"), (0, "UvmUnregisterChannel")),
}

KINDS = {"u8": c_uint8, "u16": c_uint16, "u32": c_uint32, "s32": c_int32, "u64": c_uint64, "c": c_char}


def fields(layout: str) -> list[tuple[str, str, int]]:
    """Name, kind and count (0: no array) of each field."""
    found = []
    for item in layout.split():
        item, _, count = item.removesuffix("]").partition("[")
        name, _, kind = item.partition(":")
        found.append((name, kind or "u32", int(count or 0)))
    return found


def structure(name: str, layout: str) -> type[ctypes.Structure]:
    """A layout as a structure of ctypes; natural alignment is the ABI's."""
    members = []
    for field, kind, count in fields(layout):
        ctype = KINDS.get(kind) or STRUCTURES[kind]
        members.append((field, ctype * count if count else ctype))
    return type(name, (ctypes.Structure,), {"_fields_": members})


STRUCTURES: dict[str, type[ctypes.Structure]] = {}
for _name, _layout in LAYOUTS.items():
    STRUCTURES[_name] = structure(_name, _layout)
globals().update(STRUCTURES)
__all__ = ["BYTES", "PARAMS", "VARIANTS", "bytes_of", "of_branch", "structure", *STRUCTURES]


def of_branch(name: str, branch: int) -> type[ctypes.Structure]:
    """The structure as that branch has it."""
    for since, variant in VARIANTS.get(name, ()):
        if branch >= since:
            return STRUCTURES[variant]
    return STRUCTURES[name]


def bytes_of(number: int, branch: int) -> int:
    """The parameters' bytes of a class or control in that branch."""
    for since, size in BYTES.get(number, ()):
        if branch >= since:
            return size
    return ctypes.sizeof(STRUCTURES[PARAMS[number]])
