# SPDX-License-Identifier: MIT
"""Is NVIDIA's container toolkit on this node? It brings the driver's libraries into containers; cGPU does not."""

from __future__ import annotations

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
