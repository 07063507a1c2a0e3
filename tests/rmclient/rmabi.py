# SPDX-License-Identifier: MIT
"""The numbers of the driver's user ABI, under NVIDIA's names, for the clients in Python: those of the C headers."""

from __future__ import annotations

import re
from pathlib import Path

import nvheader

HEADER = Path(__file__).with_name("rm_abi.h")
NUMBERS = nvheader.defines(*nvheader.ALL, HEADER)
globals().update(NUMBERS)

#: Classes of each GPU generation: gpfifo, usermode, compute, copy; newest first.
ARCHS = {
    name: tuple(int(one, 16) for one in classes.split(", "))
    for name, classes in re.findall(r'\{ "(\w+)", ([0-9a-fx, ]+) \}', HEADER.read_text())
}

#: Low byte of the classes of a video engine's objects, in every generation.
VIDEO = {
    NUMBERS["NV2080_ENGINE_TYPE_NVDEC0"]: 0xB0,
    NUMBERS["NV2080_ENGINE_TYPE_NVENC0"]: 0xB7,
    NUMBERS["NV2080_ENGINE_TYPE_NVJPEG0"]: 0xD1,
    NUMBERS["NV2080_ENGINE_TYPE_OFA0"]: 0xFA,
}
FIRST_VIDEO_CLASS = 0xB8B0
__all__ = ["ARCHS", "FIRST_VIDEO_CLASS", "VIDEO", *NUMBERS]
