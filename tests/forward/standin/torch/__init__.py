# SPDX-License-Identifier: MIT
"""In the place of PyTorch in a rehearsal: the loads' control flow without a tensor. What it says is no result.

A synchronisation takes two milliseconds of no processor and no GPU. The memory's totals alone are the driver's.
"""

from __future__ import annotations

import ctypes as c
import sys
import time
from pathlib import Path
from types import SimpleNamespace

sys.path.append(str(Path(__file__).resolve().parents[2]))

__version__ = "stand-in"
STEP_S = 0.002


class Anything:
    """Whatever is done with it, it is one again."""

    def __init__(self, *args: object, **more: object) -> None:
        pass

    def __getattr__(self, name: str) -> Anything:
        return Anything()

    def __call__(self, *args: object, **more: object) -> Anything:
        return Anything()

    def __matmul__(self, other: object) -> Anything:
        return Anything()

    def __enter__(self) -> Anything:
        return self

    def __exit__(self, *exc: object) -> None:
        pass


def mem_get_info() -> tuple[int, int]:
    """The driver's, in a context of its own."""
    from libcuda import Cuda

    cuda = Cuda()
    context = cuda.context()
    free, total = c.c_size_t(), c.c_size_t()
    cuda.must("cuMemGetInfo_v2", c.byref(free), c.byref(total))
    cuda.must("cuCtxDestroy_v2", context)
    return free.value, total.value


cuda = SimpleNamespace(
    is_available=lambda: True,
    synchronize=lambda: time.sleep(STEP_S),
    mem_get_info=mem_get_info,
    get_device_name=lambda: "stand-in",
    get_device_properties=lambda device: SimpleNamespace(total_memory=mem_get_info()[1]),
    CUDAGraph=Anything,
    graph=Anything,
)


class Layers(Anything):
    """torch.nn, whose Module is a base class of the loads."""

    Module = Anything


nn = Layers()


def __getattr__(name: str) -> Anything:
    return Anything()
