# SPDX-License-Identifier: MIT
"""The beginning of a load in PyTorch: the library with a GPU, SIGTERM, and lines of JSON."""

from __future__ import annotations

import json
import signal
import sys
from pathlib import Path
from types import ModuleType


def say(**event: object) -> None:
    print(json.dumps(event), flush=True)


def load_torch() -> ModuleType | int:
    """PyTorch; or, after a line on stderr, the exit code: 1 without it, 4 without a GPU."""
    program = Path(sys.argv[0]).stem
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
