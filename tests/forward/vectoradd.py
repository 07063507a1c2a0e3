# SPDX-License-Identifier: MIT
"""Adds two vectors by a kernel and compares with the sums: vectoradd.py. One line of JSON."""

from __future__ import annotations

import array
import ctypes as c
import json
import sys

from libcuda import Cuda

N = 50_000
THREADS = 256
PTX = b"""
.version 6.0
.target sm_50
.address_size 64
.visible .entry add(.param .u64 a, .param .u64 b, .param .u64 sum, .param .u32 n)
{
    .reg .pred %p<2>;
    .reg .f32 %f<4>;
    .reg .u32 %r<6>;
    .reg .u64 %rd<8>;
    ld.param.u64 %rd1, [a];
    ld.param.u64 %rd2, [b];
    ld.param.u64 %rd3, [sum];
    ld.param.u32 %r1, [n];
    mov.u32 %r2, %ctaid.x;
    mov.u32 %r3, %ntid.x;
    mov.u32 %r4, %tid.x;
    mad.lo.u32 %r5, %r2, %r3, %r4;
    setp.ge.u32 %p1, %r5, %r1;
    @%p1 bra DONE;
    mul.wide.u32 %rd4, %r5, 4;
    add.u64 %rd5, %rd1, %rd4;
    add.u64 %rd6, %rd2, %rd4;
    add.u64 %rd7, %rd3, %rd4;
    ld.global.f32 %f1, [%rd5];
    ld.global.f32 %f2, [%rd6];
    add.f32 %f3, %f1, %f2;
    st.global.f32 [%rd7], %f3;
DONE:
    ret;
}
"""


def main() -> int:
    """0 if CUDA works, whatever the sums."""
    cuda = Cuda()
    cuda.context()
    kernel = cuda.kernel(PTX, b"add")
    # Whole numbers, whose sums are exact.
    a, b = array.array("f", range(N)), array.array("f", (3 * one % 1000 for one in range(N)))
    size = c.c_size_t(4 * N)
    at = [cuda.alloc(4 * N) for _ in range(3)]
    for where, what in zip(at, (a, b), strict=False):
        cuda.must("cuMemcpyHtoD_v2", where, c.c_void_p(what.buffer_info()[0]), size)
    words = [*at, c.c_uint(N)]
    arguments = (c.c_void_p * len(words))(*(c.addressof(word) for word in words))
    blocks = -(-N // THREADS)
    cuda.must("cuLaunchKernel", kernel, blocks, 1, 1, THREADS, 1, 1, 0, None, arguments, None)
    cuda.must("cuCtxSynchronize")
    got = array.array("f", bytes(4 * N))
    cuda.must("cuMemcpyDtoH_v2", c.c_void_p(got.buffer_info()[0]), at[2], size)
    print(json.dumps({"added": N, "wrong": sum(x + y != z for x, y, z in zip(a, b, got, strict=True))}), flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
