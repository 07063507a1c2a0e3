# SPDX-License-Identifier: MIT
"""How long libcuda's calls take: calls.py COUNT. One line of JSON with the median of each in us."""

from __future__ import annotations

import ctypes as c
import json
import statistics
import sys
import time
from collections.abc import Callable

from libcuda import MIB, Cuda


def median_us(count: int, once: Callable[[], object]) -> float:
    took = []
    for _ in range(count):
        began = time.perf_counter()
        once()
        took.append((time.perf_counter() - began) * 1e6)
    return round(statistics.median(took), 1)


def main() -> int:
    """0 if CUDA works."""
    count = int(sys.argv[1])
    cuda = Cuda()

    def context() -> None:
        cuda.must("cuCtxDestroy_v2", cuda.context())

    said = {"context": median_us(max(1, count // 50), context)}
    cuda.context()
    at, host = cuda.alloc(2 * MIB), (c.c_ubyte * 4096)()
    free, total = c.c_size_t(), c.c_size_t()

    def copy() -> None:
        cuda.must("cuMemcpyHtoD_v2", at, host, c.c_size_t(len(host)))

    def fill() -> None:
        cuda.must("cuMemsetD32_v2", at, c.c_uint(7), c.c_size_t(1024))
        cuda.must("cuCtxSynchronize")

    said["alloc_free_2_mib"] = median_us(count, lambda: cuda.free(cuda.alloc(2 * MIB)))
    said["alloc_free_256_mib"] = median_us(count, lambda: cuda.free(cuda.alloc(256 * MIB)))
    said["copy_4_kib"] = median_us(count, copy)
    said["fill_and_wait"] = median_us(count, fill)
    said["mem_get_info"] = median_us(count, lambda: cuda.must("cuMemGetInfo_v2", c.byref(free), c.byref(total)))
    print(json.dumps(said), flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
