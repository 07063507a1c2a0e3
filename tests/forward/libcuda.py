# SPDX-License-Identifier: MIT
"""libcuda.so.1 by ctypes: a context on the first GPU, and a call that must succeed."""

from __future__ import annotations

import ctypes as c

MIB = 1 << 20
OUT_OF_MEMORY = 2


class Location(c.Structure):
    """CUmemLocation"""

    _fields_ = (("type", c.c_int), ("id", c.c_int))


class AllocationProp(c.Structure):
    """CUmemAllocationProp"""

    _fields_ = (
        ("type", c.c_int),
        ("handle_types", c.c_int),
        ("location", Location),
        ("win32", c.c_void_p),
        ("flags", c.c_uint64),
    )


#: Pinned memory of device 0.
ON_DEVICE = AllocationProp(1, 0, Location(1, 0), None, 0)


class ArrayDescriptor(c.Structure):
    """CUDA_ARRAY_DESCRIPTOR"""

    _fields_ = (("width", c.c_size_t), ("height", c.c_size_t), ("format", c.c_int), ("channels", c.c_uint))


class ArrayDescriptor3d(c.Structure):
    """CUDA_ARRAY3D_DESCRIPTOR"""

    _fields_ = (
        ("width", c.c_size_t),
        ("height", c.c_size_t),
        ("depth", c.c_size_t),
        ("format", c.c_int),
        ("channels", c.c_uint),
        ("flags", c.c_uint),
    )


class IpcHandle(c.Structure):
    """CUipcMemHandle, which is passed by value."""

    _fields_ = (("bytes", c.c_ubyte * 64),)


class Cuda:
    """The library after cuInit, and device 0."""

    def __init__(self) -> None:
        self.lib = c.CDLL("libcuda.so.1")
        self.device = c.c_int()
        self.must("cuInit", 0)
        self.must("cuDeviceGet", c.byref(self.device), 0)

    def status(self, name: str, *args: object) -> int:
        """CUresult of a call."""
        return int(getattr(self.lib, name)(*args))

    def must(self, name: str, *args: object) -> None:
        """RuntimeError with the CUresult unless it is 0."""
        if status := self.status(name, *args):
            raise RuntimeError(f"{name}: {status}")

    def context(self) -> c.c_void_p:
        """Made and current."""
        made = c.c_void_p()
        self.must("cuCtxCreate_v2", c.byref(made), 0, self.device)
        return made

    def kernel(self, ptx: bytes, name: bytes) -> c.c_void_p:
        """Of a module that is loaded for it, and stays."""
        module, kernel = c.c_void_p(), c.c_void_p()
        self.must("cuModuleLoadData", c.byref(module), ptx)
        self.must("cuModuleGetFunction", c.byref(kernel), module, name)
        return kernel

    def alloc(self, size: int) -> c.c_uint64:
        at = c.c_uint64()
        self.must("cuMemAlloc_v2", c.byref(at), c.c_size_t(size))
        return at

    def free(self, at: c.c_uint64) -> None:
        self.must("cuMemFree_v2", at)
