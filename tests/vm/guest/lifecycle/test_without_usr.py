# SPDX-License-Identifier: MIT
"""A host whose /usr cannot be written, as Flatcar's: the system extension of `make sysext` brings programs, units and
modules, and a slice; without it nothing of them is there.

Last in its boot, on a machine without cgpu. The extension is merged as the tree that the image beside it has: User-Mode
Linux has neither loop devices nor squashfs.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from pathlib import Path

import engine_box as e
import pytest
import unit_box as u
from docker_box import REPO, call, must, until
from engine_box import started, variables

pytestmark = pytest.mark.systemd

TREE = REPO / f"build/image/sysext/{os.uname().release}/cgpu"
EXTENSION = Path("/var/lib/extensions/cgpu")


def loaded() -> set[str]:
    return {path.name for path in Path("/sys/module").glob("cgpu_*")}


@pytest.fixture(scope="module")
def merged() -> Iterator[None]:
    """As systemd-sysext.service does at boot, and what it leaves to the next steps of the boot."""
    u.purge()
    shutil.rmtree("/etc/cgpu", ignore_errors=True)  # what an earlier test has written there
    e.make_rootfs()
    assert not Path("/usr/bin/cgpud").exists() and not loaded()
    EXTENSION.mkdir(parents=True)
    must("mount", "--bind", str(TREE), str(EXTENSION))
    must("systemd-sysext", "merge")
    must("systemctl", "daemon-reload")
    must("systemd-tmpfiles", "--create", "cgpu.conf")
    yield
    if Path("/usr/bin/cgpud").exists():
        must("systemd-sysext", "unmerge")
    must("umount", str(EXTENSION))


def test_the_units_start_by_the_target(merged: None) -> None:
    """`Upholds=` of the target: an extension cannot enable a unit."""
    assert call("touch", "/usr/bin/x").returncode != 0, "/usr is read-only, as on such a host"
    assert {"cgpud.service", "cgpu-kube-keep.service"} <= set(u.show("Upholds", "multi-user.target").split())
    must("systemctl", "start", u.UNIT)
    until(u.is_active, "cgpud is there")
    assert Path(u.show("FragmentPath")).resolve() == Path("/usr/lib/systemd/system/cgpud.service")
    program = str(Path(f"/proc/{u.main_pid()}/exe").readlink())
    assert program.startswith("/usr/lib/cgpu/python/bin/python3"), "the host's Python is not used"
    assert u.is_active("cgpu-modules.service")
    assert "cgpu_km" in loaded() and [name for name in loaded() if name.startswith("cgpu_core_")]
    assert Path("/dev/cgpu").is_mount()
    assert Path("/etc/cgpu/cgpu.toml").read_bytes() == (TREE / "usr/share/factory/etc/cgpu/cgpu.toml").read_bytes()


def test_a_container_has_its_slice(merged: None) -> None:
    with started(u.runc(), variables(6)) as one:
        one.check_slice(6)
    until(e.nothing_is_left, "nothing is left of the container")


def test_without_the_extension_nothing_is_there(merged: None) -> None:
    must("systemctl", "stop", u.UNIT, "cgpu-modules.service")
    u.unload()
    must("systemd-sysext", "unmerge")
    must("systemctl", "daemon-reload")
    assert not loaded()
    assert call("systemctl", "cat", u.UNIT).returncode != 0
    assert not [path for path in ("/usr/bin/cgpud", "/usr/lib/cgpu", "/proc/cgpu_km") if Path(path).exists()]
