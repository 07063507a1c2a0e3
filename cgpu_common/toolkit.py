# SPDX-License-Identifier: MIT
"""Is NVIDIA's container toolkit on this node? It brings the driver's libraries into containers; cGPU does not."""

from __future__ import annotations

import re
from pathlib import Path

PROGRAMS = ("nvidia-container-runtime", "nvidia-ctk", "nvidia-container-cli")
FOLDERS = ("usr/bin", "usr/local/bin", "usr/local/nvidia/toolkit")
SPECS = ("etc/cdi", "var/run/cdi")
MISSING = (
    "no NVIDIA container toolkit and no CDI specification of NVIDIA's: a container gets libcuda.so.1 only from its "
    "image or a mount, and one that switches cGPU off gets no GPU"
)


def found(root: Path = Path("/")) -> str | None:
    """The path of a program of the toolkit, or of a CDI specification; None: neither."""
    programs = (root / folder / program for program in PROGRAMS for folder in FOLDERS)
    specs = (path for folder in SPECS for path in sorted((root / folder).glob("*nvidia*")))
    return next((str(path) for path in (*programs, *specs) if path.is_file()), None)


#: The GPU Operator's toolkit container writes this file, and the programs beside it, anew at each of its starts.
OPERATOR = "usr/local/nvidia/toolkit/.config/nvidia-container-runtime/config.toml"
#: From this version on, mode "auto" makes CDI edits; before, NVIDIA's legacy prestart hook mounts the nodes.
AUTO_IS_CDI = (1, 18)
PACKAGES = ("nvidia-container-toolkit-base", "nvidia-container-toolkit")
_NUMBER = re.compile(r"^(?:\d+:)?(\d+)\.(\d+)(?:\.(\d+))?")
Number = tuple[int, int, int]


def version(status: str) -> Number | None:
    """The version of the installed package according to dpkg's status file; None: unknown."""
    for paragraph in status.split("\n\n"):
        fields = dict(line.split(": ", 1) for line in paragraph.splitlines() if ": " in line and line[0] != " ")
        installed = fields.get("Status", "").endswith(" installed")
        if installed and fields.get("Package") in PACKAGES and (found := _NUMBER.match(fields.get("Version", ""))):
            return int(found[1]), int(found[2]), int(found[3] or 0)
    return None


def effective_mode(mode: str, number: Number | None) -> str:
    """The mode in force: "auto", or none, is legacy where the version is known to be older than 1.18."""
    return "legacy" if mode in ("", "auto") and number is not None and number < AUTO_IS_CDI else mode
