# SPDX-License-Identifier: MIT
"""The structures of the driver's user ABI for the clients in Python, and the bytes of parameters by branch.

Types, order and sizes are the C headers' (nvheader.py); here are only the names that the clients use, in the order of
the fields: one struct of a header a line. The bytes are those of the module's call table.
"""

from __future__ import annotations

import ctypes
import functools
import re
from pathlib import Path

import nvheader

# fmt: off
NAMES = {
    # of the escapes
    "Alloc": "nvos64: root parent handle class_id params rights params_size flags status",
    "Free": "nvos00: root parent handle status",
    "Control": "nvos54: client object cmd flags params params_size status",
    "Dup": "nvos55: client parent handle client_src handle_src flags status",
    "MapMemory": "nvos33_fd: client device memory offset length address status flags fd",
    "UnmapMemory": "nvos34: client device memory address status flags",
    "RenameMap": "nvos56: client device memory old new status",
    "MapDma": "nvos46 nvos46_v1: client device dma memory offset length flags flags2 kind dma_offset status",
    "UnmapDma": "nvos47 nvos47_v1: client device dma memory flags dma_offset size status",
    "CardInfo": "nv_card_info: valid domain bus slot function vendor_id device_id gpu_id irq reg_address reg_size "
                "fb_address fb_size minor name",
    "Version": "nv_api_version: cmd reply text",
    "RegisterFd": "nv_register_fd: ctl_fd",
    "AllocMemory": "nvos02_fd: root parent handle class_id flags memory limit status fd",
    "Share": "nvos57: client object target mask kind action status",
    "OsEvent": "nv_os_event: client device fd status",
    "ExportDmabuf": "nv_export_dmabuf nv_export_dmabuf_v1: fd client total_objects objects index total_size "
                    "mapping_type allow_mmap handles offsets sizes status",

    # of classes
    "DeviceParams": "nv_device_params: device_id client_share target_client target_device flags va_size va_start "
                    "va_limit va_mode",
    "SubdeviceParams": "nv_subdevice_params: sub_device_id",
    "VaspaceParams": "nv_vaspace_params: index flags va_size va_start va_limit big_page_size va_base pasid",
    "MemoryParams": "nv_mem_params: owner type flags width height pitch attr attr2 format compr_covg zcull_covg "
                    "range_lo range_hi size alignment offset limit address ctag_offset vaspace internal_flags tag "
                    "numa_node",
    "TsgParams": "nv_tsg_params: error_object ecc_error_object vaspace engine vgpu",
    "ContextShareParams": "nv_ctxshare_params: vaspace flags subcontext",
    "ChannelParams": "nv_chan_params nv_chan_params_610: error_object buffer_object gpfifo_va gpfifo_entries flags "
                     "context_share vaspace handle_vaspace userd_memory userd_offset engine cid sub_device_id "
                     "ecc_error_object instance userd ramfc method_buffer phys_channel_group internal_flags "
                     "error_notifier ecc_notifier process_id sub_process_id encrypt_iv decrypt_iv nonce tpc_config_id",
    "EventParams": "nv_event_params: parent_client source class_id index data",
    "DebuggerParams": "nv_debugger_params: obsolete app_client object",
    "ContextDma": "nv_context_dma_params: subdevice flags memory offset limit",
    "OsDescParams": "nv_osdesc_params: type flags attr attr2 descriptor limit descriptor_type tag",
    "CopyParams": "nv_copy_params: version engine",

    # of controls
    "IdInfo": "nv_id_info: gpu_id flags device_instance sub_device_instance sli_status board_id gpu_instance numa_id",
    "FbInfo": "nv_fb_info_v2: count list",
    "GidInfo": "nv_gid_info: index flags length data",
    "GpuName": "nv_gpu_name: flags ascii",
    "Pids": "nv_pids: id_type id count pid",
    "PidInfo": "nv_pids_info: count list",
    "DisableChannels": "nv_disable_channels: disable count only_scheduling rewind event client channel",

    # of nvidia-uvm
    "UvmInitialize": "uvm_init: flags status",
    "UvmRegisterGpu": "uvm_reg_gpu: uuid numa_enabled numa_node ctl_fd client smc_part status",
    "UvmRegisterVaspace": "uvm_gpu_vas: uuid ctl_fd client vaspace status",
    "UvmRegisterChannel": "uvm_reg_chan: uuid ctl_fd client channel base length status",
    "UvmUnregisterChannel": "uvm_unreg_chan uvm_unreg_chan_v2: uuid client channel status",
    "UvmUuid": "uvm_uuid: uuid status",
    "UvmRange": "uvm_range: base length status",
    "UvmFree": "uvm_free uvm_free_v2: base length status",
    "UvmPool": "uvm_pool uvm_pool_v1: base length gpu gpu_count status",
    "UvmRangeGroup": "uvm_group: id status",
    "UvmSetRangeGroup": "uvm_set_group: id base length status",
    "UvmMapDyn": "uvm_map_dyn: base length uuid status",
    "UvmUnmapExternal": "uvm_unmap_ext: base length uuid status",
    "UvmPageable": "uvm_pageable: access status",
    "UvmPreferred": "uvm_pref uvm_pref_v1: base length uuid node status",
    "UvmAccessedBy": "uvm_accessed_by: base length uuid status",
    "UvmMigrate": "uvm_migrate: base length uuid flags semaphore payload node user_start user_length status",
    "UvmMmInitialize": "uvm_mm_init: uvm_fd status",
    "UvmMapExternal": "uvm_map_ext uvm_map_ext_v1: base length offset gpu gpu_count ctl_fd client memory status",
}
# fmt: on

STRUCTS = nvheader.structs(*nvheader.ALL)


def flat(ctype: type[ctypes.Structure], at: int = 0) -> list[tuple[str, type, int]]:
    """The fields and their offsets; those of a struct that is only wrapped, in place of it."""
    found = []
    for name, kind in ctype._fields_:
        here = at + getattr(ctype, name).offset
        wrapped = name in ("params", "pci_info", "sharePolicy") and hasattr(kind, "nvidia")
        found += flat(kind, here) if wrapped else [(name, kind, here)]
    return found


def structure(name: str, tag: str, words: list[str], whole: list[str]) -> type[ctypes.Structure]:
    """The struct @tag with the clients' names @words for NVIDIA's @whole, those of the longest variant."""
    named = dict(zip(whole, words, strict=True))
    ctype, fields, end = STRUCTS[tag].ctype, [], 0
    for field, kind, at in flat(ctype):
        start = -(-end // ctypes.alignment(kind)) * ctypes.alignment(kind)
        fields += [(f"_p{at}", ctypes.c_uint8 * (at - start))] if at > start else []  # behind a wrapped struct
        fields.append((named[field], kind))
        end = at + ctypes.sizeof(kind)
    made = type(name, (ctypes.Structure,), {"_fields_": fields})
    assert [getattr(made, named[field]).offset for field, _, _ in flat(ctype)] == [at for _, _, at in flat(ctype)], tag
    assert ctypes.sizeof(made) == ctypes.sizeof(ctype), tag
    return made


def fields_of(tags: list[str]) -> list[str]:
    """NVIDIA's names of the fields of all variants: those of the one with most fields."""
    return max(([name for name, _, _ in flat(STRUCTS[tag].ctype)] for tag in tags), key=len)


VARIANTS: dict[str, dict[str, type[ctypes.Structure]]] = {}  # by the clients' name and the tag
for _name, _line in NAMES.items():
    _tags, _, _words = _line.partition(": ")
    _whole = fields_of(_tags.split())
    VARIANTS[_name] = {tag: structure(_name, tag, _words.split(), _whole) for tag in _tags.split()}
STRUCTURES = {name: next(iter(variants.values())) for name, variants in VARIANTS.items()}
globals().update(STRUCTURES)
__all__ = ["bytes_of", "of_branch", "varies", *STRUCTURES]


def of_branch(name: str, branch: int) -> type[ctypes.Structure]:
    """The structure as that branch has it."""
    return next(ctype for tag, ctype in VARIANTS[name].items() if STRUCTS[tag].holds(branch))


@functools.cache
def rows() -> dict[int, list[tuple[int, int]]]:
    """Of the call table's controls and classes: since which branch the parameters have how many bytes, oldest first."""
    found: dict[int, list[tuple[int, int]]] = {}
    for path in sorted((nvheader.ROOT / "cgpu_km/core").glob("nv_table_c*.c")):
        for number, since, size in re.findall(r"^\t\{ (0x[0-9a-f]+), (\d+), (\d+),", Path(path).read_text(), re.M):
            found.setdefault(int(number, 16), []).append((int(since), int(size)))
    return found


def varies(number: int) -> bool:
    """Whether the parameters of a control or class grew, so that those of 580 are too long for older branches."""
    return len({size for _, size in rows().get(number, ())}) > 1


def bytes_of(number: int, branch: int) -> int:
    """The parameters' bytes of a class or control in that branch, as of the first branch in earlier ones."""
    sizes = rows()[number]
    return next((size for since, size in reversed(sizes) if branch >= since), sizes[0][1])
