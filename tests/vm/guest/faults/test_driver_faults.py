# SPDX-License-Identifier: MIT
"""Calls of the driver that fail, or lie: no half state, no lost charge, and all works again afterwards.

nvsim makes them (`fault_nth` and its companions, `gone`: docs/develop/nvsim.md).
"""

from __future__ import annotations

import ctypes
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from sharebox import GPU, NATIVE, PREEMPTIVE, put
from slicebox import MIB, Box, clean_box, command, fb_used, fresh_id, until
from slicebox import nvclient as nv

pytestmark = pytest.mark.long

FREE = nv.NV_ESC_RM_FREE
SURFACE_INFO = 0x410110
ARCH_INFO, COPY_CAPS = 0x20801701, 0x20802A0A  # MC_GET_ARCH_INFO, CE_GET_ALL_CAPS
LOST = 0x0F
RESOURCES = 0x1A
KINDS = {"resources": 0, "timeout": 1, "ones": 2}
LONGER = {"longer": 3}  # allocations only
PARAMETERS = Path("/sys/module/nvsim/parameters")


def left() -> int:
    """Calls until the next fault; 0: it was used up."""
    return int((PARAMETERS / "fault_nth").read_text())


def stat(key: str) -> str:
    return dict(line.split() for line in (GPU / "stat").read_text().splitlines())[key]


@pytest.fixture
def faults(personality) -> Callable[..., None]:
    """Sets a fault: by its number, its kind and what it is for."""

    def set_fault(nth: int, kind: str = "resources", cmd: int = 0, times: int = 1) -> None:
        personality(fault_nth=0)
        personality(fault_kind=(KINDS | LONGER)[kind], fault_cmd=cmd, fault_times=times)
        personality(fault_nth=nth)

    return set_fault


@pytest.mark.parametrize("kind", KINDS)
def test_each_call_of_an_attach_can_fail(faults, kind: str):
    """The first container of a GPU is refused, or has the whole GPU: UUID, controls, memory."""
    refused = 0
    for nth in range(1, 100):
        faults(nth, kind)
        name = fresh_id()
        try:
            command(f"create {name} gpu=0 memsize={64 * MIB}")
        except OSError:
            refused += 1
            assert not left() and not Box.listed()
            continue
        unused = left()
        faults(0)
        assert stat("control") == "freeze,timeslice", f"call {nth}"
        assert (GPU / "uuid").read_text().startswith("GPU-"), f"call {nth}"
        command(f"destroy {name}")
        until(lambda: not Box.listed())
        if unused:
            break
    assert refused >= 4 and unused, "as many calls as an attach makes"
    with clean_box(64) as box, box.client() as rm:
        assert rm.gpu(0).fb_info(nv.NV2080_CTRL_FB_INFO_INDEX_RAM_SIZE) == [64 * 1024]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("cmd, said", [
    (COPY_CAPS, "returns no answer for its copy engines"),
    (ARCH_INFO, "returns no answer for its architecture"),
])  # fmt: skip
def test_no_wrong_answer_lasts_as_long_as_the_attach(faults, kernel_log, cmd: int, said: str, kind: str):
    """Of copy engines: all copies would stop with their container, and each group of theirs be charged a context."""
    faults(1, kind, cmd=cmd)
    with pytest.raises(OSError):
        command(f"create {fresh_id()} gpu=0 memsize={64 * MIB}")
    assert not left() and said in kernel_log.news()
    with clean_box(64) as box, box.client() as rm:
        used = box.used
        rm.gpu(0).space().group(nv.NV2080_ENGINE_TYPE_COPY0).channel()
        assert box.used - used < 32 * MIB, "asynchronous"


def test_an_object_that_the_driver_does_not_free_stays_charged(faults):
    with clean_box(64) as box, box.client() as rm:
        gpu = rm.gpu(0)
        _, memory = gpu.alloc_vidmem(16 * MIB)
        used = box.used
        faults(1, cmd=FREE)
        assert gpu.free(memory) == RESOURCES
        assert box.used == used
        assert gpu.free(memory) == 0
        assert box.used == used - 16 * MIB


@pytest.mark.parametrize("times", [3, 4])
def test_a_client_that_the_driver_refuses_to_free_at_a_containers_end(faults, kernel_log, times: int):
    """Three times it is freed again. After that the container ends with the mapping by which the client lives."""
    box = Box(fresh_id(), 64)
    rm = box.client()
    gpu = rm.gpu(0)
    mapping = gpu.map_cpu(gpu.alloc_vidmem(2 * MIB)[1], 2 * MIB)
    faults(1, cmd=FREE, times=times)
    command(f"destroy {box.name}")
    until(lambda: not left(), 10)
    time.sleep(0.5)
    assert box.there() == ("a client was not freed, status 0x1a" in kernel_log.news()) == (times > 3)
    mapping.close()
    rm.close()
    until(lambda: not box.there(), 10)


@pytest.mark.parametrize("cls", [nv.NV01_MEMORY_LOCAL_USER, nv.FERMI_VASPACE_A])
def test_parameters_that_are_longer_than_the_tables(faults, kernel_log, cls: int):
    """A release whose struct has grown: what was checked may not be what the driver takes it for. Nothing is made."""
    with clean_box(64) as box, box.client() as rm:
        gpu = rm.gpu(0)
        params: dict[int, ctypes.Structure] = {
            nv.NV01_MEMORY_LOCAL_USER: nv.MemoryParams(owner=rm.handle, size=2 * MIB, attr=nv.ATTR_NONCONTIG_ALLOWED),
            nv.FERMI_VASPACE_A: nv.VaspaceParams(flags=nv.VASPACE_FLAGS),
        }
        used, refused = box.used, box.stat("refused_calls")
        faults(1, "longer", cmd=cls)
        assert rm.alloc(cls, gpu.device, nv.in_branch(cls, params[cls], rm.branch))[0] == nv.NV_ERR_INVALID_ADDRESS
        assert not left() and f"parameters of another size than in the table, class {cls:#x}" in kernel_log.news()
        assert (box.used, box.stat("refused_calls")) == (used, refused + 1)
        assert rm.alloc(cls, gpu.device, nv.in_branch(cls, params[cls], rm.branch))[0] == 0


@pytest.mark.parametrize("handle", [0, 0xABCD])
def test_an_object_under_another_handle_is_refused_and_stays_charged(faults, handle: int):
    """The driver made it, and says a handle that it does not have: what it keeps is not known."""
    before, limits = fb_used(), int(stat("limits_bytes"))
    with Box(fresh_id(), 64) as box, box.client() as rm:
        gpu = rm.gpu(0)
        used = box.used
        faults(1, "ones", cmd=nv.NV01_MEMORY_LOCAL_USER)
        status, _ = gpu.alloc_vidmem(16 * MIB, handle)
        assert status == nv.NV_ERR_INVALID_ARGUMENT
        assert box.used == used + 16 * MIB
        assert gpu.alloc_vidmem(64 * MIB)[0] == nv.NV_ERR_NO_MEMORY
    until(lambda: fb_used() == before)
    assert_all_given_back(limits)


def assert_all_given_back(limits: int) -> None:
    """After the container's end, and with it that of its clients, no charge is left on the card."""
    until(lambda: (int(stat("limits_bytes")), int(stat("ended_bytes"))) == (limits, 0))


def test_a_size_of_all_ones_is_no_size(faults):
    with clean_box(64) as box, box.client() as rm:
        gpu = rm.gpu(0)
        used = box.used
        faults(1, "ones", cmd=SURFACE_INFO)
        assert gpu.alloc_vidmem(16 * MIB)[0] == nv.NV_ERR_NO_MEMORY
        assert not left() and box.used == used


def test_an_object_that_is_refused_and_not_freed_stays_charged(faults, personality):
    limits = int(stat("limits_bytes"))
    with Box(fresh_id(), 64) as box, box.client() as rm:
        gpu = rm.gpu(0)
        used = box.used
        # The question for the size and the free fail: both come from this module.
        faults(2, times=2)
        assert gpu.alloc_vidmem(16 * MIB)[0] == nv.NV_ERR_NO_MEMORY
        assert not left() and box.used == used + 16 * MIB
    assert_all_given_back(limits)


def test_a_new_channel_that_cannot_be_frozen_is_reported(faults, tenants):
    """A container with weight 0 is out of turn for ever: its channels are frozen as they are made."""
    put("policy", PREEMPTIVE)
    try:
        tenant = tenants()
        tenant.write("weight", 0)
        faults(1, "timeout", cmd=nv.NV2080_CTRL_CMD_FIFO_DISABLE_CHANNELS, times=10000)
        tenant.start()
        until(lambda: tenant.box.stat("enforced") == 0 and tenant.box.stat("failed_calls"))
        faults(0)
        until(lambda: tenant.box.stat("enforced") == 1)
        unsure = tenant.box.stat("unsure_ns")
        assert unsure > 0
    finally:
        faults(0)
        put("policy", NATIVE)


def test_a_gpu_that_leaves_the_bus(personality):
    """Every call fails: the containers stay with their charges, new ones are refused, and all ends and begins again."""
    before = fb_used()
    with Box(fresh_id(), 64) as box:
        with box.client() as rm:
            gpu = rm.gpu(0)
            _, memory = gpu.alloc_vidmem(16 * MIB)
            used = box.used
            personality(gone=1)
            assert gpu.alloc_vidmem(1 * MIB)[0] == LOST
            assert gpu.free(memory) == LOST
            assert box.used == used
            assert "Free:" in (box.proc / "meminfo").read_text()
            assert stat("control")
        until(lambda: box.used == 0)
    until(lambda: not Box.listed())
    with pytest.raises(OSError):
        Box(fresh_id(), 64)
    personality(gone=0)
    until(lambda: fb_used() == before)
    with clean_box(64) as box, box.client() as rm:
        assert rm.gpu(0).alloc_vidmem(1 * MIB)[0] == 0
