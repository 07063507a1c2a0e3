# SPDX-License-Identifier: MIT
"""The status of all GPUs: two snapshots of the tree with an interval between them, as text or JSON."""

from __future__ import annotations

import json
import time

from . import daemon, proc, render, share
from .output import out


def show(paths: proc.Paths, interval: float, sample: bool, as_json: bool) -> None:
    """Print the status of every GPU; the body of cgpu-smi and of cgpu status."""
    before = None
    after = proc.read_tree(paths)
    if sample and any(gpu.slots for gpu in after.gpus):
        time.sleep(interval)
        before, after = after, proc.read_tree(paths)
    got = share.shares(before, after)
    seconds = interval if before else None
    drift = daemon.drift(paths)
    if as_json:
        out(json.dumps(render.status_json(after, got, seconds, drift), indent=2))
    else:
        out(render.status_text(after, got, seconds, drift or ()))
