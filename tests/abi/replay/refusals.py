# SPDX-License-Identifier: MIT
"""Refused calls of each recorded program in a container, by the number of the control, class or call, and the effect on
the program. The table's own reason is in the trace, before each call."""

_LIBCUDA = {
    0xD7: "NUMA_INFO: no NUMA node of the card's memory, as on most machines",
    0x20810108: "of NV2081_BINAPI, not public: cuInit goes on",
    0x20808161: "not public, 535: cuInit goes on",
    0x2080A084: "not public: cuDeviceGetAttribute goes on",
}

#: nvidia-smi shows N/A for each.
_NVIDIA_SMI = {
    0xD7: "NUMA_INFO: no NUMA node",
    0x73: "NV04_DISPLAY_COMMON: displays",
    0xA083: "NVA083_GRID_DISPLAYLESS: displays, 535",
    0x90E7: "GF100_SUBDEVICE_INFOROM: the image's versions",
    0x20800152: "not public",
    0x2080016D: "sessions of the encoder",
    0x2080017B: "sessions of the frame buffer capture",
    0x208001A4: "GPU_GET_CHIP_DETAILS: part number",
    0x20800802: "BIOS_GET_INFO",
    0x20801322: "retired pages",
    0x20801344: "remapped rows",
    0x20801813: "PCIe replays",
    0x20801819: "PCIe throughput",
    0x20801829: "PCIe atomics",
    0x20802087: "load of the video engines",
    0x2080852A: "not public",
    0x2080852E: "not public",
    0x20808536: "not public",
    0x20808161: "not public, 535",
    0x20808546: "not public",
    0x20809004: "not public",
    0x20809038: "not public",
    0x2080A068: "not public, 535",
    0x2080A080: "not public",
    0x2080A084: "not public",
    0x2080A087: "not public, 535",
    0x2080A097: "not public",
    0x2080A0A7: "clocks",
    0x2080A612: "power",
    0x2080A618: "power",
    0x20810108: "of NV2081_BINAPI, not public",
    0x20810110: "of NV2081_BINAPI, not public",
    0x20810111: "of NV2081_BINAPI, not public",
}

LIVES_WITHOUT = {"walk": _LIBCUDA, "nvidia-smi": _NVIDIA_SMI}

#: On a card: run there with these refused, and with a page of zeros for RM_USER_SHARED_DATA.
_LIBCUDA_580 = {
    0xD7: "NUMA_INFO: no NUMA node of the card's memory",
    0x20809038: "not public: cuCtxCreate goes on",
    0x20810108: "of NV2081_BINAPI, not public: cuInit goes on",
}

_NVML_580 = {
    0xC639: "AMPERE_SMC_CONFIG_SESSION: MIG cannot be set up",
    0xC640: "AMPERE_SMC_MONITOR_SESSION: no figures of other instances",
}

_TORCH_580 = {
    **_LIBCUDA_580,
    **_NVML_580,
    0x2080A084: "not public: torch.cuda goes on",
}

_NVIDIA_SMI_580 = {
    **_NVML_580,
    0xD7: "NUMA_INFO: no NUMA node",
    0x73: "NV04_DISPLAY_COMMON: displays",
    0xDE0001: "of RM_USER_SHARED_DATA: power and utilisation are N/A",
    0x2080852E: "not public",
    0x2080852F: "not public: the driver does not support it either",
    0x2080A612: "power",
    0x2080A618: "power",
    0x20810110: "of NV2081_BINAPI, not public",
}

LIVES_WITHOUT_ON_A_CARD = {
    "managed": _LIBCUDA_580,
    "torch": _TORCH_580,
    "nvidia-smi": _NVIDIA_SMI_580,
    "mps": _LIBCUDA_580,
}
