# SPDX-License-Identifier: MIT
"""The engines that a test starts containers with, and their versions, for build/engines.json (harness/suite.py)."""

from __future__ import annotations

import functools
import re
import subprocess
from pathlib import Path

CONF = Path("/etc/cgpu/runtime.conf")

#: Commands that print a version. Docker's is the daemon's, which DOCKER_HOST may name.
VERSION = {
    "containerd": ("containerd", "--version"),
    "crun": ("crun", "--version"),
    "docker": ("docker", "version", "--format", "{{.Server.Version}}"),
    "podman": ("podman", "--version"),
    "runc": ("runc", "--version"),
}

_used: set[tuple[str, str]] = set()  # with the version: a test may end the engine


def note(*engines: str) -> None:
    """The running test starts a container with these, and with the runtime that cgpu-runtime hands over to."""
    found = re.search(r"^next = (\S+)", CONF.read_text(), re.MULTILINE) if CONF.exists() else None
    below = Path(found[1]).name if found else "runc"
    _used.update((engine, version(engine)) for engine in (*engines, below) if engine in VERSION)


def taken() -> list[tuple[str, str]]:
    """Engine and version of all that was noted since the last call."""
    found = sorted(_used)
    _used.clear()
    return found


@functools.cache
def version(engine: str) -> str:
    """As the program prints it: `4.3.1`, `20.10.24+dfsg1`."""
    said = subprocess.run(VERSION[engine], capture_output=True, text=True, timeout=60, check=False).stdout
    found = re.search(r"\b\d+\.\d+[^\s,]*", said)
    return found[0] if found else ""
