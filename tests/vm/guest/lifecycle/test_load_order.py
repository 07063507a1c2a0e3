# SPDX-License-Identifier: MIT
"""The driver comes and goes under cgpu_km: either order of loading, and with no container nothing of ours holds it."""

from __future__ import annotations

import errno
import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from slicebox import MIB, PROC, REPO, Box, command, insert_nvsim, mount_nodes, nvclient, unmount_nodes, until

pytestmark = pytest.mark.bare

MODULES = REPO / "build/modules" / os.environ["KERNEL"]
CORE = f"cgpu_core_{(REPO / 'VERSION').read_text().strip().replace('.', '_')}"
A = "a" * 64
#: Tried all the time, as no administrator would.
UNLOAD = f"""
exec 2>&-
until umount /dev/cgpu; do :; done
for module in {CORE} cgpu_km; do until rmmod $module; do :; done; done
"""


def loaded(name: str) -> bool:
    return Path("/sys/module", name).exists()


def insmod(name: str) -> None:
    subprocess.run(["insmod", MODULES / f"{name}.ko"], check=True)
    if name == "cgpu_km":
        mount_nodes()


def rmmod(name: str) -> str:
    """Unloads a module; returns rmmod's error, empty on success."""
    if name == "cgpu_km":
        unmount_nodes()
    return subprocess.run(["rmmod", name], capture_output=True, text=True).stderr


def load_driver(mib: int, release: str = "550.163.01") -> None:
    insert_nvsim("--profile", os.environ["PROFILE"] or "t4", "--mem-mib", str(mib), "--driver", release)


def holders() -> int:
    """References on the driver; not those of its own files, of which none is open between the tests."""
    return int(Path("/sys/module/nvsim/refcnt").read_text())


def use_it() -> None:
    """A container on the driver that is there: memory up to its limit, and the driver is held meanwhile."""
    with Box(A, 1024) as box, box.client() as rm:
        gpu = rm.gpu()
        assert gpu.alloc_vidmem(1000 * MIB)[0] == nvclient.NV_OK
        assert gpu.alloc_vidmem(100 * MIB)[0] == nvclient.NV_ERR_NO_MEMORY
        assert holders() > 0
        assert "in use" in rmmod("nvsim")
    until(lambda: holders() == 0)


@pytest.fixture(autouse=True)
def the_driver_alone() -> Iterator[None]:
    """As a bare machine has it, before and after."""
    assert loaded("nvsim") and not loaded("cgpu_km")
    yield
    for name in (CORE, "cgpu_km", "nvsim"):
        if loaded(name):
            until(lambda name=name: not rmmod(name))
    subprocess.run(["sh", Path(os.environ["CGPU_RUN"], "nvsim")], check=True)
    until(Path("/dev/nvidiactl").exists)


def test_ours_first() -> None:
    """As at a boot where the driver is loaded late, or by nvidia-modprobe only."""
    assert rmmod("nvsim") == ""
    insmod("cgpu_km")
    insmod(CORE)
    assert (PROC / "version").read_text().strip()
    with pytest.raises(OSError) as caught:
        command(f"create {A} gpu=0 memsize={64 * MIB}")
    assert caught.value.errno == errno.ENODEV
    assert not Box.listed()
    load_driver(4096)
    use_it()


def test_the_driver_first_and_ours_gone_first() -> None:
    insmod("cgpu_km")
    insmod(CORE)
    use_it()
    until(lambda: rmmod(CORE) == "")  # a destroyed container drops its module reference last
    until(lambda: rmmod("cgpu_km") == "")
    with nvclient.Client() as rm:
        assert rm.gpu().alloc_vidmem(64 * MIB)[0] == nvclient.NV_OK
    assert rmmod("nvsim") == ""


def test_a_core_without_the_shell_is_refused() -> None:
    assert subprocess.run(["insmod", MODULES / f"{CORE}.ko"], capture_output=True).returncode != 0
    assert not loaded(CORE)


def test_the_driver_is_replaced_under_us() -> None:
    """An upgrade of the driver, then a downgrade: unloaded with ours in place, another one loaded. A container on it
    keeps it from being unloaded.
    """
    insmod("cgpu_km")
    insmod(CORE)
    for mib, release in ((2048, "580.105.08"), (6144, "535.261.03"), (4096, "550.163.01")):
        use_it()
        (PROC / "0/policy").write_text("2\n")
        until(lambda: not rmmod("nvsim"), step=0.2)
        assert not Path("/dev/nvidiactl").exists()
        with pytest.raises(OSError) as caught:
            command(f"create {A} gpu=0 memsize={64 * MIB}")
        assert caught.value.errno == errno.ENODEV
        load_driver(mib, release)
        with pytest.raises(OSError) as caught:
            command(f"create {A} gpu=0 memsize={(mib + 1) * MIB}")
        assert caught.value.errno == errno.ENOSPC, "the card that is there now counts"
        with Box(A, mib - 512) as box, box.client() as rm:
            assert rm.branch == int(release[:3])
            assert rm.gpu().memory()["total"] == (mib - 512) * MIB
    until(lambda: holders() == 0)


@pytest.mark.parametrize("times", [8, pytest.param(20, marks=pytest.mark.more)])
def test_finding_8_unloaded_as_the_last_container_ends(times: int) -> None:
    """The last instructions of a container's end are the module's own: rmmod, tried all the time, waits for them."""
    for _ in range(times):
        insmod("cgpu_km")
        insmod(CORE)
        box = Box(A, 64)
        with box.client() as rm:
            unloader = subprocess.Popen(["sh", "-c", UNLOAD])
            assert rm.gpu().alloc_vidmem(MIB)[0] == nvclient.NV_OK
            command(f"destroy {A}")
        assert unloader.wait(60) == 0
        assert not loaded("cgpu_km") and not loaded(CORE)
