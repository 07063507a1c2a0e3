# SPDX-License-Identifier: MIT
"""What a process gets of a GPU's memory, by libcuda: alloc.py KIND STEP_MIB [hold]. One line of JSON.

KIND: plain (cuMemAlloc), vmm (cuMemCreate), pool (cuMemAllocAsync), managed (cuMemAllocManaged). Allocates until it is
refused, frees everything, and allocates once more, since a program must be able to go on; with `hold` everything is
kept until the process is killed.
"""

from __future__ import annotations

import ctypes as c
import json
import sys
import time
from collections.abc import Callable

from libcuda import MIB, ON_DEVICE, Cuda


def ways(cuda: Cuda, kind: str, step: int) -> tuple[Callable[[object], int], Callable[[c.c_uint64], None]]:
    """How to take a piece, whose address or handle goes to the argument, and how to give it back."""
    size = c.c_size_t(step)
    if kind == "vmm":
        take = lambda at: cuda.status("cuMemCreate", at, size, c.byref(ON_DEVICE), c.c_uint64(0))  # noqa: E731
        return take, lambda at: cuda.must("cuMemRelease", at)
    if kind == "pool":
        return lambda at: cuda.status("cuMemAllocAsync", at, size, None), lambda at: cuda.must(
            "cuMemFreeAsync", at, None
        )
    if kind == "managed":
        return lambda at: cuda.status("cuMemAllocManaged", at, size, 1), cuda.free
    return lambda at: cuda.status("cuMemAlloc_v2", at, size), cuda.free


def main() -> int:
    """0 if CUDA works."""
    kind, step = sys.argv[1], int(sys.argv[2]) * MIB
    cuda = Cuda()
    context = cuda.context()
    free, total, whole = c.c_size_t(), c.c_size_t(), c.c_size_t()
    cuda.must("cuMemGetInfo_v2", c.byref(free), c.byref(total))
    cuda.must("cuDeviceTotalMem_v2", c.byref(whole), cuda.device)
    take, give = ways(cuda, kind, step)

    def fill() -> tuple[list[c.c_uint64], int, float]:
        """The pieces, the refusal, and the slowest call in us. More than there is, is enough: managed memory, which
        may be the host's, has no end on a driver that does not limit it.
        """
        taken, refusal, slowest_us = [], 0, 0.0
        while not refusal and len(taken) * step <= whole.value:
            at = c.c_uint64()
            began = time.monotonic()
            refusal = take(c.byref(at))
            slowest_us = max(slowest_us, (time.monotonic() - began) * 1e6)
            if not refusal:
                taken.append(at)
        return taken, refusal, slowest_us

    taken, refusal, slowest_us = fill()
    said = {"kind": kind, "step_mib": step // MIB, "free_mib": free.value // MIB, "total_mib": total.value // MIB}
    said |= {"device_total_mib": whole.value // MIB, "allocated_mib": len(taken) * step // MIB, "refusal": refusal}
    said["slowest_us"] = round(slowest_us)
    if sys.argv[3:] == ["hold"]:
        print(json.dumps(said), flush=True)
        while True:
            time.sleep(60)
    for at in taken:
        give(at)
    cuda.must("cuCtxSynchronize")
    again = c.c_uint64()
    said["after_refusal"] = take(c.byref(again))
    if not said["after_refusal"]:
        give(again)
    print(json.dumps(said), flush=True)
    cuda.must("cuCtxDestroy_v2", context)
    return 0


if __name__ == "__main__":
    sys.exit(main())
