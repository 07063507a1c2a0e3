# SPDX-License-Identifier: MIT
"""In the machine: what the tutorial assumes of a host, an image and the runtime `nvidia`. Prints the shell's variables
of it: IMAGE and LOAD, an image with a program that uses the GPU."""

from __future__ import annotations

import shlex
import sys
from pathlib import Path

REPO = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(REPO / "tests/vm/guest/box"))

import docker_box as d  # noqa: E402

#: A client of the simulated driver: kernels of a millisecond without end, 1 GiB.
LOAD = "simload --kernel-us 1000 --alloc-mib 1024 --depth 8 --seconds 0"


def prepare() -> dict[str, str]:
    d.ensure_runtime()
    d.make_image()
    return {"IMAGE": d.IMAGE, "LOAD": LOAD}


def main() -> int:
    for name, value in prepare().items():
        print(f"export {name}={shlex.quote(value)}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
