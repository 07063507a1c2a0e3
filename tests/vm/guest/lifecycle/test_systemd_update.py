# SPDX-License-Identifier: MIT
"""The commands of docs/user/upgrade.md, and those of docs/user/install.md that need the module, as they stand there.

Between test_systemd.py and test_uninstall.py, in the same boot: with the files of the packages.
"""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import engine_box as e
import pytest
import unit_box as u
from blocks import marked
from corebox import NEXT, OLD, PRODUCT, leave_only_the_product, loaded, running
from docker_box import REPO, must, number, until
from slicebox import unmount_nodes

pytestmark = pytest.mark.systemd

UPGRADE = marked((REPO / "docs/user/upgrade.md").read_text())
INSTALL = marked((REPO / "docs/user/install.md").read_text())
MARK = Path("/run/cgpu/drain")
ENVIRON = {"PATH": "/usr/sbin:/usr/bin:/sbin:/bin", "HOME": "/root", "LC_ALL": "C.UTF-8"}


def begin(command: str, where: Path) -> subprocess.Popen[str]:
    pipe = subprocess.PIPE
    return subprocess.Popen(["bash", "-c", command], cwd=where, env=ENVIRON, stdout=pipe, stderr=pipe, text=True)


def end(process: subprocess.Popen[str]) -> str:
    out, err = process.communicate(timeout=300)
    assert process.returncode == 0, f"{process.args}: {process.returncode}: {err or out}"
    return out


def born() -> int:
    """Another number for each life of the module."""
    return Path("/sys/module/cgpu_km").stat().st_ino


@pytest.fixture(scope="module", autouse=True)
def rootfs() -> None:
    e.make_rootfs()


@pytest.fixture
def next_core() -> Iterator[None]:
    """Where modprobe finds it, by the name that the page has."""
    updates = Path("/lib/modules", os.uname().release, "updates")
    file = updates / f"cgpu_core_{NEXT.replace('.', '_')}.ko"
    shutil.copy(Path(os.environ["CGPU_MODULES"], "test_core_next.ko"), file)
    must("depmod")
    try:
        yield
    finally:
        leave_only_the_product()
        file.unlink()
        must("depmod")


def a_container_starts() -> None:
    with e.started(u.runc(), e.variables(1)) as one:
        assert one.is_sliced()
    until(e.nothing_is_left, "nothing is left of it")


def test_the_module_and_the_daemon_begin(tmp_path: Path) -> None:
    unmount_nodes()
    must("modprobe", "-r", PRODUCT, "cgpu_km")
    for command in INSTALL["loaded"]:
        end(begin(command, tmp_path))
    assert loaded(PRODUCT) and u.is_active()
    assert Path("/dev/cgpu").is_mount(), "required by the daemon's unit"
    a_container_starts()


def test_the_module_is_loaded_again(tmp_path: Path) -> None:
    until(lambda: number(Path("/sys/module", PRODUCT, "refcnt")) == 0, "nobody uses it")
    before = born()
    for command in INSTALL["again"]:
        end(begin(command, tmp_path))
    assert loaded(PRODUCT) and born() != before
    a_container_starts()


def test_hot(next_core: None, tmp_path: Path) -> None:
    """Under a container that computes."""
    tenant = u.start_tenant(u.runc(), 3, 1)
    try:
        for command in UPGRADE["hot"]:
            end(begin(command, tmp_path))
        assert running() == NEXT
        assert not loaded(PRODUCT)
        u.assert_intact([tenant])
        leave_only_the_product()
        assert running() == OLD
        u.assert_intact([tenant])
    finally:
        tenant.one.engine.remove(tenant.one.id)
    until(e.nothing_is_left, "nothing is left of it")


def test_drain(tmp_path: Path) -> None:
    marks = []
    for command in UPGRADE["drain"]:
        end(begin(command, tmp_path))
        marks.append(MARK.exists())
    assert marks == [True, True, False]


def test_cold(tmp_path: Path) -> None:
    """A container is there when one of them waits for the end of all."""
    (tmp_path / "DIR").symlink_to(os.environ["CGPU_MODULES"])
    for command in UPGRADE["cold"]:
        before = born()
        one = u.runc().start(e.variables(1), e.SLEEP)[1] if "--drain" in command else None
        process = begin(command, tmp_path)
        if one:
            until(MARK.exists, "it drains")
            assert process.poll() is None and one.is_sliced()
            one.engine.remove(one.id)
        end(process)
        assert born() != before, f"{command}: another module"
        assert not MARK.exists()
    a_container_starts()
