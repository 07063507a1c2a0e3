# SPDX-License-Identifier: MIT
"""What a process gets of a GPU's memory, by libcuda: alloc.py KIND STEP_MIB [hold]. One line of JSON.

KIND: plain (cuMemAlloc), vmm (cuMemCreate), pool (cuMemAllocAsync), managed (cuMemAllocManaged). Allocates until it is
refused; then everything is freed, or, with `hold`, kept until the process is killed.
"""

from __future__ import annotations

import ctypes as c
import json
import sys
import time

MIB = 1 << 20
STEPS_MAX = 100_000


class Location(c.Structure):
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


def main() -> int:
    """0 if CUDA works."""
    kind, step = sys.argv[1], int(sys.argv[2]) * MIB
    cuda = c.CDLL("libcuda.so.1")

    def must(name: str, *args: object) -> None:
        if status := getattr(cuda, name)(*args):
            raise RuntimeError(f"{name}: {status}")

    device, context = c.c_int(), c.c_void_p()
    must("cuInit", 0)
    must("cuDeviceGet", c.byref(device), 0)
    must("cuCtxCreate_v2", c.byref(context), 0, device)
    free, total, whole = c.c_size_t(), c.c_size_t(), c.c_size_t()
    must("cuMemGetInfo_v2", c.byref(free), c.byref(total))
    must("cuDeviceTotalMem_v2", c.byref(whole), device)
    prop = AllocationProp(1, 0, Location(1, 0), None, 0)

    def one() -> tuple[int, int]:
        at = c.c_uint64()
        if kind == "vmm":
            return cuda.cuMemCreate(c.byref(at), c.c_size_t(step), c.byref(prop), c.c_uint64(0)), at.value
        if kind == "pool":
            return cuda.cuMemAllocAsync(c.byref(at), c.c_size_t(step), None), at.value
        if kind == "managed":
            return cuda.cuMemAllocManaged(c.byref(at), c.c_size_t(step), 1), at.value
        return cuda.cuMemAlloc_v2(c.byref(at), c.c_size_t(step)), at.value

    taken, refusal, slowest_us = [], 0, 0.0
    while not refusal and len(taken) < STEPS_MAX:
        began = time.monotonic()
        refusal, at = one()
        slowest_us = max(slowest_us, (time.monotonic() - began) * 1e6)
        if not refusal:
            taken.append(at)
    said = {"kind": kind, "step_mib": step // MIB, "free_mib": free.value // MIB, "total_mib": total.value // MIB}
    said |= {"device_total_mib": whole.value // MIB, "allocated_mib": len(taken) * step // MIB, "refusal": refusal}
    print(json.dumps(said | {"slowest_us": round(slowest_us)}), flush=True)
    while sys.argv[3:] == ["hold"]:
        time.sleep(60)
    for at in taken:
        if kind == "vmm":
            must("cuMemRelease", c.c_uint64(at))
        elif kind == "pool":
            must("cuMemFreeAsync", c.c_uint64(at), None)
        else:
            must("cuMemFree_v2", c.c_uint64(at))
    must("cuCtxDestroy_v2", context)
    return 0


if __name__ == "__main__":
    sys.exit(main())
