# SPDX-License-Identifier: MIT
"""cgpu_km and NVIDIA's own modules are unloaded and loaded again, each under the others."""

from __future__ import annotations

import errno
import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

import nvclient
import pytest
from driver_box import compute_and_fill
from slicebox import MIB, REPO, Box, command, mount_nodes, unmount_nodes, until

pytestmark = [pytest.mark.driver, pytest.mark.usefixtures("no_cards")]

MODULES = REPO / "build/modules" / os.environ["KERNEL"]
CORE = f"cgpu_core_{(REPO / 'VERSION').read_text().strip().replace('.', '_')}"
NAME = "f" * 64
LIMIT_MIB = 1024
TIMES = 3


def loaded(name: str) -> bool:
    return Path("/sys/module", name).exists()


def rmmod(name: str) -> str:
    """rmmod's error, empty on success."""
    return subprocess.run(["rmmod", name], capture_output=True, text=True).stderr


def unload_ours() -> None:
    unmount_nodes()
    for name in (CORE, "cgpu_km"):
        until(lambda name=name: not loaded(name) or not rmmod(name))


def load_ours() -> None:
    subprocess.run(["insmod", MODULES / "cgpu_km.ko"], check=True)
    mount_nodes()
    subprocess.run(["insmod", MODULES / f"{CORE}.ko"], check=True)


@pytest.fixture(autouse=True)
def whole_again() -> Iterator[None]:
    """What a failed test left unloaded."""
    yield
    subprocess.run([REPO / "tests/simgpu/load"], check=True)
    if not loaded(CORE):
        unload_ours()
        load_ours()


def use_it() -> None:
    """A container with a context that works, and its limit; the modules below and above it cannot go."""
    with Box(NAME, LIMIT_MIB) as box, box.client() as client:
        compute_and_fill(client, LIMIT_MIB)
        for name in ("nvidia_uvm", "nvidia", "cgpu_km"):
            assert "in use" in rmmod(name)


def test_cgpu_km_is_loaded_again():
    for _ in range(TIMES):
        use_it()
        unload_ours()
        with nvclient.Node("nvidia0"), nvclient.Client() as client:
            assert client.gpu(0).alloc_vidmem(64 * MIB)[0] == nvclient.NV_OK
        load_ours()
    use_it()


def test_nvidias_modules_are_loaded_again_under_cgpu_km():
    for _ in range(TIMES):
        use_it()
        for name in ("nvidia_uvm", "nvidia"):
            until(lambda name=name: not rmmod(name), step=0.2)
        with pytest.raises(OSError) as caught:
            command(f"create {NAME} gpu=0 memsize={64 * MIB}")
        assert caught.value.errno == errno.ENODEV
        subprocess.run([REPO / "tests/simgpu/load"], check=True)
    use_it()


def test_nvidia_uvm_alone_is_loaded_again():
    use_it()
    until(lambda: not rmmod("nvidia_uvm"), step=0.2)
    with Box(NAME, LIMIT_MIB) as box, box.client() as client:
        assert client.gpu(0).alloc_vidmem(64 * MIB)[0] == nvclient.NV_OK
        with pytest.raises((OSError, nvclient.RmError)):
            client.gpu(0).space()
    subprocess.run([REPO / "tests/simgpu/load"], check=True)
    use_it()
