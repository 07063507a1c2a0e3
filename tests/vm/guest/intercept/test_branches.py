# SPDX-License-Identifier: MIT
"""The module over releases of the simulated driver that its own calls have to be made differently for."""

from __future__ import annotations

import errno
import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from slicebox import Box, nvsim_as, until
from slicebox import nvclient as nv

from cgpu_cli import branches

pytestmark = [pytest.mark.once]


def external() -> int:
    """Kernel modules that the driver counts as openers of the GPU which do not know of a reset."""
    return int(re.search(r"external=(-?\d+)", Path("/proc/driver/nvsim/0/state").read_text())[1])


@pytest.mark.parametrize("release", ["580.105.08", "595.45.04"])
def test_the_driver_counts_the_module_while_it_has_the_gpu(release: str):
    """From 595 on open_gpu and close_gpu have an argument for it: left out, it is what the register held."""
    with nvsim_as("t4", version=release):
        assert external() == 0
        for _ in range(3):
            with Box("b5" * 32, 256) as box, box.client() as client:
                status, memory = client.gpu(0).alloc_vidmem(2 << 20)
                assert status == 0 and box.used == 2 << 20
                assert external() == 1
                assert client.gpu(0).free(memory) == 0
            until(lambda: external() == 0)


ANY_DRIVER = Path("/sys/module/cgpu_km/parameters/any_driver")


@pytest.fixture
def any_driver() -> Iterator[None]:
    """615 is compared in part."""
    ANY_DRIVER.write_text("1")
    yield
    ANY_DRIVER.write_text("0")


#: Of a branch behind the last one with rows: a driver of 615 that names itself so.
LAST = (*branches.BRANCHES, *branches.PARTLY)[-1]
UNKNOWN = {"version": "615.71.09", "called": f"{LAST + 1}.6.0"}
NOT_ACCEPTED = {
    "compared in part": ({"version": "615.71.09"}, "615.71.09", 615),
    "unknown, newer": (UNKNOWN, UNKNOWN["called"], LAST),
    "unknown, between": ({"version": "595.45.04", "called": "600.1"}, "600.1", 595),
}
NO_ROWS = {
    "older": ({"version": "535.261.03", "called": "525.147.05"}, "525.147.05"),
    "other structs": ({"version": "550.163.01", "called": "550.40.07"}, "550.40.07"),
    "no number": ({"version": "580.105.08", "called": "main"}, "main"),
}


@pytest.mark.parametrize(("parameters", "name", "rows"), NOT_ACCEPTED.values(), ids=NOT_ACCEPTED)
def test_a_release_that_was_not_compared_is_refused(parameters: dict[str, str], name: str, rows: int, kernel_log):
    """By name, with what would make it go; nothing of the container is there, and nothing holds the driver."""
    kernel_log.news()
    with nvsim_as("t4", **parameters):
        with pytest.raises(OSError) as refused:
            Box("b8" * 32, 256)
        assert refused.value.errno == errno.EOPNOTSUPP
        assert re.search(
            rf"driver {name} is of no branch .*any_driver=1 accepts it with the rows of {rows}, .*compared",
            kernel_log.news(),
        )
        assert (Box.listed(), list(Path("/dev/cgpu").iterdir())) == ([], [])
        assert int(Path("/sys/module/nvsim/refcnt").read_text()) == 0


@pytest.mark.usefixtures("any_driver")
@pytest.mark.parametrize(("parameters", "name"), NO_ROWS.values(), ids=NO_ROWS)
def test_a_release_without_rows_is_refused_with_any_driver_too(parameters: dict[str, str], name: str, kernel_log):
    kernel_log.news()
    with nvsim_as("t4", **parameters):
        with pytest.raises(OSError) as refused:
            Box("b8" * 32, 256)
        assert refused.value.errno == errno.EOPNOTSUPP
        assert f"driver '{name}' has no rows in the call table" in kernel_log.news()
        assert int(Path("/sys/module/nvsim/refcnt").read_text()) == 0


@pytest.mark.usefixtures("any_driver")
def test_an_unknown_release_with_any_driver_has_the_limit():
    """By the rows of the newest branch: what the container has is what it was given, and no call more."""
    with nvsim_as("t4", **UNKNOWN), Box("b8" * 32, 256) as box, box.client() as client:
        gpu = client.gpu(0)
        assert client.ctl.version()[1] == UNKNOWN["called"]
        assert gpu.memory()["total"] == 256 << 20
        status, memory = gpu.alloc_vidmem(200 << 20)
        assert (status, box.used) == (0, 200 << 20)
        assert gpu.alloc_vidmem(100 << 20)[0] == nv.NV_ERR_NO_MEMORY
        assert client.control(gpu.subdevice, 0x20803099, bytes(8))[0] == nv.NV_ERR_NOT_SUPPORTED, "a call of no row"
        assert (gpu.free(memory), box.used) == (0, 0)


@pytest.mark.usefixtures("any_driver")
@pytest.mark.parametrize("release", ["580.105.08", "615.71.09"])
def test_the_userd_of_a_channel_is_where_the_branch_has_it(release: str):
    """From 610 on a handle stands before it: read at the old place, the channel would outlive its USERD."""
    with nvsim_as("t4", version=release), Box("b6" * 32, 256) as box, box.client() as client:
        gpu = client.gpu(0)
        group = gpu.space().group()
        channel = group.channel()
        status, userd = gpu.alloc_vidmem(1 << 20)
        assert status == 0
        params = channel.params()
        params.userd_memory[0], params.userd_offset[0] = userd, 0
        assert client.alloc(group.gpfifo_class, group.tsg, params)[0] == 0
        assert box.stat("channels") == 2
        assert gpu.free(userd) == 0
        assert box.stat("channels") == 1
        channel.submit(kernel_ns=1000)
        channel.wait()


@pytest.mark.usefixtures("any_driver")
def test_calls_that_615_has_and_580_has_not():
    """UVM_IS_DMA_BUF_IMPORT_SUPPORTED answers no, whatever was in the struct; range groups are gone."""
    for release, import_ok, group_ok in (("580.105.08", False, True), ("615.71.09", True, False)):
        with nvsim_as("t4", version=release), Box("b7" * 32, 256) as box, box.client() as client:
            arg = bytearray(b"\xff" * 8)
            uvm = client.gpu(0).space().uvm
            answers = (uvm.raw(82, arg) == 0, uvm.raw(23, bytearray(64)) == 0)
            assert answers == (import_ok, group_ok)
            assert arg == (bytes(8) if import_ok else b"\xff" * 8)
