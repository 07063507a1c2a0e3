# SPDX-License-Identifier: MIT
"""The beginning of a load in PyTorch: the library with a GPU, SIGTERM, and lines of JSON."""

from __future__ import annotations

import ctypes
import json
import os
import signal
import sys
from pathlib import Path
from types import ModuleType


def say(**event: object) -> None:
    print(json.dumps(event), flush=True)


SCHED_BLOCKING_SYNC = 4  # CU_CTX_SCHED_BLOCKING_SYNC


def let_waits_block() -> int:
    """CUresult. On the first GPU a wait of this process sleeps: two that spin share one processor, not the GPU."""
    try:
        cuda, device = ctypes.CDLL("libcuda.so.1"), ctypes.c_int()
    except OSError:
        return -1
    status = cuda.cuInit(0) or cuda.cuDeviceGet(ctypes.byref(device), 0)
    return int(status or cuda.cuDevicePrimaryCtxSetFlags_v2(device, SCHED_BLOCKING_SYNC))


def load_torch() -> ModuleType | int:
    """PyTorch; or, after a line on stderr, the exit code: 1 without it, 4 without a GPU. With WAITS_BLOCK set its waits
    sleep, or the code is 5.
    """
    program = Path(sys.argv[0]).stem
    if os.environ.get("WAITS_BLOCK") == "1" and (status := let_waits_block()):
        print(f"{program}: waits do not block, CUDA says {status}", file=sys.stderr)
        return 5
    try:
        import torch
    except ImportError:
        print(f"{program}: PyTorch is not installed", file=sys.stderr)
        return 1
    if not torch.cuda.is_available():
        print(f"{program}: PyTorch sees no GPU", file=sys.stderr)
        return 4
    return torch


def stop_on_sigterm() -> list[int]:
    """A list that is empty until SIGTERM arrives."""
    stop: list[int] = []
    signal.signal(signal.SIGTERM, lambda *_: stop.append(1))
    return stop
