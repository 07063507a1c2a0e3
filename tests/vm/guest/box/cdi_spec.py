# SPDX-License-Identifier: MIT
"""A CDI specification as `nvidia-ctk cdi generate` writes it: the devices `0` and `all` of nvidia.com/gpu."""

from __future__ import annotations

import json
from pathlib import Path

PATH = Path("/etc/cdi/nvidia.json")
GPU = {"deviceNodes": [{"path": "/dev/nvidia0"}]}
#: A hook reads the container's state, as NVIDIA's does: for one that ends before, crun 1.8 may fail the start.
HOOK = ["nvidia-cdi-hook", "-c", "while read -r line; do :; done"]
SPEC = {
    "cdiVersion": "0.5.0",
    "kind": "nvidia.com/gpu",
    "devices": [{"name": name, "containerEdits": GPU} for name in ("0", "all")],
    "containerEdits": {
        "deviceNodes": [{"path": "/dev/nvidiactl"}, {"path": "/dev/nvidia-uvm"}],
        "env": ["CDI_WAS_HERE=1", "NVIDIA_VISIBLE_DEVICES=void"],
        "hooks": [{"hookName": "createContainer", "path": "/bin/sh", "args": HOOK}],
    },
}


def lay() -> None:
    """Where every engine looks for it."""
    PATH.parent.mkdir(parents=True, exist_ok=True)
    PATH.write_text(json.dumps(SPEC))
