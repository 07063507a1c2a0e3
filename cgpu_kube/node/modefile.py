# SPDX-License-Identifier: MIT
"""The mode and the unit of the node on disk: they survive a reboot, an API server that is away, and a label that is
gone."""

from __future__ import annotations

import json
from pathlib import Path

from cgpu_common.files import write_file
from cgpu_kube.node.host import GIB, MODES, NONE, unit_mib


class ModeFile:
    def __init__(self, path: Path) -> None:
        self.path = path

    def read(self) -> tuple[str, str]:
        """The mode and the unit. NONE and "" without a file, or with one that is damaged; "" also with one of before
        units were kept."""
        try:
            found = json.loads(self.path.read_text())
            mode, unit = found["mode"], str(found.get("unit") or "")
            unit_mib(unit or GIB)
        except (OSError, ValueError, KeyError, TypeError, AttributeError):
            return NONE, ""
        return mode if mode in MODES else NONE, unit

    def write(self, mode: str, unit: str) -> None:
        """OSError: neither changes."""
        self.path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        write_file(self.path, json.dumps({"mode": mode, "unit": unit}) + "\n")
