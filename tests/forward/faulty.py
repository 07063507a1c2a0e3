# SPDX-License-Identifier: MIT
"""A kernel that writes where nothing is mapped: faulty.py. One line of JSON with the CUresult of the wait for it."""

from __future__ import annotations

import json
import sys

from libcuda import Cuda

PTX = b"""
.version 6.0
.target sm_50
.address_size 64
.visible .entry stray()
{
    .reg .b64 %rd<2>;
    .reg .b32 %r<2>;
    mov.u64 %rd1, 64;
    mov.u32 %r1, 1;
    st.global.u32 [%rd1], %r1;
    ret;
}
"""


def main() -> int:
    """0 if CUDA works up to the kernel, whatever becomes of that."""
    cuda = Cuda()
    cuda.context()
    cuda.must("cuLaunchKernel", cuda.kernel(PTX, b"stray"), 1, 1, 1, 1, 1, 1, 0, None, None, None)
    print(json.dumps({"status": cuda.status("cuCtxSynchronize")}), flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
