# SPDX-License-Identifier: MIT
"""Cores to swap between: the product's, and those of tests/vm/cores."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

from slicebox import PROC, REPO

UPGRADE = PROC / "upgrade"
MOODY = Path("/sys/module/test_core_moody/parameters")
OLD = (REPO / "VERSION").read_text().strip()
PRODUCT = "cgpu_core_" + OLD.replace(".", "_")
_major, _minor, _patch = OLD.split(".")
NEXT, SICK = (f"{_major}.{_minor}.{int(_patch) + more}" for more in (1, 2))


def insmod(name: str, **parameters: object) -> bool:
    words = [f"{key}={value}" for key, value in parameters.items()]
    module = Path(os.environ["CGPU_MODULES"], f"{name}.ko")
    return subprocess.run(["insmod", module, *words], capture_output=True).returncode == 0


def rmmod(name: str) -> bool:
    return subprocess.run(["rmmod", name], capture_output=True).returncode == 0


def loaded(name: str) -> bool:
    return Path("/sys/module", name).exists()


def running() -> str:
    return UPGRADE.read_text().splitlines()[0]


def last() -> tuple[str, int, str]:
    """The last attempt at a swap: version, 0 or an errno, reason."""
    line = UPGRADE.read_text().splitlines()[-1]
    assert line.startswith("last: "), line
    _, version, result, why = line.split(maxsplit=3)
    return version, -int(result), why


def held_ns() -> int:
    """For how long the last swap blocked tenants' calls, as reported by the module."""
    return int(last()[2].split()[-2])


def swap(version: str) -> None:
    """Swaps to @version; raises OSError if the module refuses it."""
    fd = os.open(UPGRADE, os.O_WRONLY)
    try:
        os.write(fd, version.encode())
    finally:
        os.close(fd)


def refused(version: str) -> int:
    """The errno of a swap, 0 if it succeeded."""
    try:
        swap(version)
    except OSError as error:
        return error.errno
    return 0


def moody(**parameters: object) -> None:
    for name, value in parameters.items():
        (MOODY / name).write_text(str(value))


def leave_only_the_product() -> None:
    if not loaded(PRODUCT):
        assert insmod(PRODUCT)
    swap(OLD)
    for name in ("test_core_next", "test_core_moody"):
        assert not loaded(name) or rmmod(name)
