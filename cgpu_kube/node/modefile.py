# SPDX-License-Identifier: MIT
"""The mode of the node on disk: it survives a reboot, an API server that is away, and a label that was removed."""

from __future__ import annotations

import json
from pathlib import Path

from cgpu_common.files import write_file
from cgpu_kube.node.host import MODES, NONE


class ModeFile:
    def __init__(self, path: Path) -> None:
        self._path = path

    def read(self) -> str:
        """NONE without a file, or with one that is damaged."""
        try:
            mode = json.loads(self._path.read_text())["mode"]
        except (OSError, ValueError, KeyError, TypeError):
            return NONE
        return mode if mode in MODES else NONE

    def write(self, mode: str) -> None:
        """OSError: the mode does not change."""
        self._path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        write_file(self._path, json.dumps({"mode": mode}) + "\n")
