# SPDX-License-Identifier: MIT
"""Calls that NVIDIA's libraries make and depend on, in the libraries' form, and the effects they must not have."""

from __future__ import annotations

import re
import struct
import sys
from pathlib import Path

import forked
import pytest
from slicebox import MIB, Box
from slicebox import nvclient as nv

pytestmark = [pytest.mark.once, pytest.mark.attached]

BINAPI, DEBUGGER, MPS = 0x2081, 0x83DE, 0x900E
SHARE_ALL, SHARE_TOKEN, SHARE_REVOKE = 1, 2, 1
INHERITED_SHARE_POLICY, PREEMPTION_MODE = 0xD04, 0x20801210


def share(rm: nv.Client, handle: int, kind: int = SHARE_ALL, action: int = 0) -> int:
    arg = nv.Share(client=rm.handle, object=handle, target=rm.handle, mask=1, kind=kind, action=action)
    rm.ctl.call(nv.NV_ESC_RM_SHARE, arg)
    return arg.status


# ---- classes ----


def test_objects_without_which_libcuda_does_not_start(gpu: nv.Gpu):
    status, binapi = gpu.rm.alloc(BINAPI, gpu.subdevice, struct.pack("<I", 0))
    assert status == 0
    assert gpu.rm.control(binapi, 0x20810108, bytes(992))[0] == nv.NV_ERR_NOT_SUPPORTED, "opaque ones are refused"
    assert gpu.rm.alloc(MPS, gpu.rm.handle)[0] == 0


@pytest.mark.checked
def test_a_debugger_of_the_containers_own_compute_object(box: Box, gpu: nv.Gpu, other: Box):
    channel = gpu.space().group().channel()

    def debugger(app: int, target: int, obsolete: int = 0) -> int:
        return gpu.rm.alloc(DEBUGGER, gpu.device, nv.DebuggerParams(obsolete, app, target))[0]

    for app in (0, gpu.rm.handle):
        assert debugger(app, channel.object) == 0
    with other.client() as theirs, box.client() as second:
        foreign = theirs.gpu().space().group().channel()
        share(theirs, foreign.object)
        own = second.gpu().space().group().channel()
        refused = box.stat("refused_calls")
        wrong = [(theirs.handle, foreign.object, 0), (second.handle, own.object, 0), (0, gpu.device, 0)]
        wrong += [(0, channel.handle, 0), (0, 0, 0), (0, channel.object, gpu.rm.handle)]
        for pair in wrong:
            assert debugger(*pair) == nv.NV_ERR_OBJECT_NOT_FOUND
        assert box.stat("refused_calls") == refused + len(wrong)


# ---- sharing ----


@pytest.mark.checked
def test_what_is_shared_with_all_stays_in_the_container(gpu: nv.Gpu, other: Box):
    """The MPS server shares two of its objects with ALL. No process outside can dup them, even with their handles."""
    _, memory = gpu.alloc_vidmem(2 * MIB)
    policy = struct.pack("<IIHBx", gpu.rm.handle, 1, SHARE_ALL, 0)
    assert share(gpu.rm, memory) == 0
    assert gpu.rm.control(gpu.rm.handle, INHERITED_SHARE_POLICY, policy)[0] == 0
    assert share(gpu.rm, 0xDEAD) == nv.NV_ERR_OBJECT_NOT_FOUND
    with other.client() as theirs:
        assert share(theirs, memory) == nv.NV_ERR_OBJECT_NOT_FOUND
        assert theirs.dup(theirs.gpu().device, gpu.rm, memory)[0] == nv.NV_ERR_OBJECT_NOT_FOUND
    assert dup_by_another("/dev", gpu, memory) == nv.NV_ERR_INSUFFICIENT_PERMISSIONS, "not shared in the driver"


def dup_by_another(nodes: str, gpu: nv.Gpu, memory: int) -> int:
    """The status in another process; with the driver's own nodes it is none of a container."""

    def status() -> int:
        with nv.Client(nodes) as rm:
            return rm.dup(rm.gpu().device, gpu.rm.handle, memory)[0]

    return forked.call(lambda: sys.exit(status())).returncode


@pytest.mark.checked
def test_what_is_shared_with_all_another_process_may_have(box: Box, gpu: nv.Gpu):
    """cuIpcGetMemHandle shares a piece of memory, cuIpcOpenMemHandle dups it in another process."""
    _, memory = gpu.alloc_vidmem(2 * MIB)
    assert dup_by_another(box.dev, gpu, memory) == nv.NV_ERR_INSUFFICIENT_PERMISSIONS, "its owner did not share it"
    assert share(gpu.rm, memory) == 0
    assert [dup_by_another(box.dev, gpu, memory) for _ in range(2)] == [0, 0]
    assert dup_by_another("/dev", gpu, memory) == nv.NV_ERR_INSUFFICIENT_PERMISSIONS
    assert box.used == 2 * MIB
    assert share(gpu.rm, memory, action=SHARE_REVOKE) == 0
    assert dup_by_another(box.dev, gpu, memory) == nv.NV_ERR_INSUFFICIENT_PERMISSIONS


def test_the_share_of_an_address_space_comes_back_as_it_went_in(gpu: nv.Gpu):
    """hClientShare 0 is made the client's own for the driver; a program may use its struct again for another client."""
    params = nv.DeviceParams()
    with nv.Client(gpu.rm.directory) as rm:
        status, device = rm.alloc(nv.NV01_DEVICE_0, None, params)
        assert status == 0
        assert params.client_share == 0
        assert rm.free(device) == 0
        params.client_share = rm.handle
        assert rm.alloc(nv.NV01_DEVICE_0, None, params)[0] == 0
        assert params.client_share == rm.handle


# ---- controls ----


def preemption(gpu: nv.Gpu, group: nv.Group) -> int:
    text = Path("/proc/driver/nvsim/0/tsgs").read_text()
    line = next(line for line in text.splitlines() if f"client={gpu.rm.handle:x} tsg={group.tsg:x} " in line)
    return int(re.search(r"preempt=(\d+)", line)[1])


@pytest.mark.checked
def test_compute_is_preempted_between_instructions_whatever_is_asked(gpu: nv.Gpu, other: Box):
    group = gpu.space().group()
    channel = group.channel()
    for flags, handle, gfxp, cilp in ((1, group.tsg, 0, 0), (3, channel.handle, 1, 1), (2, group.tsg, 1, 0)):
        params = struct.pack("<4I16x", flags, handle, gfxp, cilp)
        assert gpu.control(PREEMPTION_MODE, params)[0] == 0
        assert preemption(gpu, group) == 2
    for handle in (gpu.device, 0, 0xDEAD):
        assert gpu.control(PREEMPTION_MODE, struct.pack("<4I16x", 1, handle, 0, 0))[0] == nv.NV_ERR_OBJECT_NOT_FOUND


@pytest.mark.parametrize(
    ("cmd", "size", "on"),
    [(0x20808159, 332, "subdevice"), (0x809909, 1, "device"), (0x801108, 32, "device")],
)
def test_controls_that_are_answered(gpu: nv.Gpu, cmd: int, size: int, on: str):
    params = bytes(range(1, 1 + min(size, 200))).ljust(size, b"\x07")
    status, after = gpu.rm.control(getattr(gpu, on), cmd, params)
    assert (status, after) == (0, params)


def test_no_peers_no_nvlink_no_fabric(gpu: nv.Gpu):
    """So that NCCL uses host memory instead of failing at a refused object."""
    client = gpu.rm.handle
    asked = struct.pack("<33I", *range(1, 33), 32)
    status, caps = gpu.rm.control(client, 0x12B, asked + bytes(8348 - len(asked)))
    assert status == 0
    assert caps[:132] == asked
    assert caps[132:153] == bytes(12) + b"\x05" * 9
    status, matrix = gpu.rm.control(client, 0x13A, b"\x01" * 1352)
    assert (status, set(matrix[72:])) == (0, {0})
    assert gpu.rm.control(client, 0x136, bytes(4)) == (0, struct.pack("<I", 1))
    for cmd, size in ((0x20803001, 48), (0x20803002, 13344), (0x208001A3, 56)):
        assert gpu.control(cmd, b"\x01" * size) == (0, bytes(size))
    assert gpu.control(0x20803001, bytes(44))[0] == nv.NV_ERR_INVALID_ARGUMENT, "another size is another struct"


def thermal(*opcodes: int) -> bytes:
    head = struct.pack("<6I", 1, 0, 44, 3, 0, len(opcodes))
    return (head + b"".join(struct.pack("<3I32x", 0, 0, op) for op in opcodes)).ljust(1432, b"\0")


def test_temperature_is_read_and_nothing_else(box: Box, gpu: nv.Gpu):
    """The permitted calls reach the driver; the simulator has no sensor."""
    refused = box.stat("refused_calls")
    for cmd in (0x20808513, 0x20800513):
        gpu.control(cmd, thermal(0x100, 0x1500))
        assert box.stat("refused_calls") == refused, "it is the driver's answer"
    for bad in (thermal(0x1501), thermal(0x100, 0x8000), thermal(0x100)[:-8]):
        assert gpu.control(0x20808513, bad)[0]
    assert box.stat("refused_calls") == refused + 2, "the third is of another size"


def test_memory_figures_agree(box: Box, gpu: nv.Gpu):
    """With the queries of libcuda and NVML."""
    _, _ = gpu.alloc_vidmem(16 * MIB)
    total, free = 1024 << 10, (1024 * MIB - box.used) >> 10
    assert gpu.fb_info(0x08) == [total]
    assert gpu.fb_info(0x16, 0x09, 0x10) == [free, total, 0]
    assert gpu.fb_info(0x16, 0x08, 0x09) == [free, total, total]
    assert gpu.fb_info(0x0B, 0x19, 0x1B, 0x18, 0x0D, 0x17, 0x08)[-1] == total
    assert len(gpu.fb_info(0x1A, 0x22, 0x23)) == 3
