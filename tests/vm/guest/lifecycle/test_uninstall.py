# SPDX-License-Identifier: MIT
"""The packages are purged from the machine that has run on them, and nothing of them is left on its file system.

After test_systemd.py, in the same boot: its containers are gone, its engines stopped and as they were before setup.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest
from docker_box import REPO, call, must
from unit_box import CONF, UNIT, main_pid

sys.path.insert(0, str(REPO / "tests/install"))

from blocks import marked

pytestmark = pytest.mark.systemd

VERSION = (REPO / "VERSION").read_text().strip()
OVERLAY = Path("/run/overlay")  # files written on the root since the machine was started

#: The databases of dpkg, systemd and rpm (dkms runs rpm where there is one); and the engines' files: those that setup
#: wrote are compared by test_setup_is_undone.
BOOKS = ("/var/lib/dpkg/", "/var/lib/systemd/", "/var/cache/debconf/", "/etc/machine-id/", "/root/.rpmdb/")
OTHERS = (*BOOKS, "/etc/docker/", "/etc/containerd/", "/etc/cni/")


def mounts() -> list[Path]:
    """File systems in memory that lie over parts of the root, as guest/become-systemd has made them."""
    lines = [line.split() for line in Path("/proc/mounts").read_text().splitlines()]
    found = [Path(where) for _, where, kind, *_ in lines if kind == "tmpfs"]
    return [path for path in found if path.parts[1] in ("etc", "lib", "usr")]


def is_new(path: Path) -> bool:
    """The overlay copies a folder up when a file in it is written, so a folder's name alone does not prove it new."""
    if path.is_symlink() or not path.is_dir() or not path.is_relative_to(OVERLAY):
        return True
    return any("trusted.overlay.opaque" in os.listxattr(one) for one in (path, *path.parents) if one != OVERLAY)


def written() -> set[str]:
    """Files and folders that are new or changed since the packages were installed."""
    found: set[str] = set()
    before = set(Path(os.environ["CGPU_RUN"], "files.before").read_text().splitlines())
    for top in (OVERLAY, *mounts()):
        for folder, folders, files in os.walk(top):
            found |= {str(Path(folder, name)) for name in (*folders, *files) if is_new(Path(folder, name))}
    return {path.removeprefix(str(OVERLAY)) for path in found - before}


def test_purge_leaves_nothing() -> None:
    wanted = f"/etc/systemd/system/multi-user.target.wants/{UNIT}"
    brought = {"/usr/lib/cgpu", f"/usr/src/cgpu-{VERSION}/dkms.conf", "/usr/bin/cgpud", str(CONF), wanted}
    assert brought <= written()
    must("systemctl", "start", UNIT)
    daemon = Path("/proc", str(main_pid()))
    must("dpkg", "--no-triggers", "--purge", "cgpu", "cgpu-dkms")
    assert not daemon.exists(), "a package that goes stops its daemon"
    assert call("systemctl", "cat", UNIT).returncode != 0
    for command in marked((REPO / "docs/user/install.md").read_text())["unloaded"]:
        must("bash", "-c", command)
    left = written()
    assert not [path for path in left if "cgpu" in path], left
    others = [path for path in sorted(left) if not f"{path}/".startswith(OTHERS)]
    assert not others, " ".join(others)
    assert not list(Path("/dev").glob("*cgpu*"))
    assert not [path for path in ("/run/cgpu", "/proc/cgpu_km") if Path(path).exists()]
