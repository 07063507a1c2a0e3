# SPDX-License-Identifier: MIT
"""Second handles of a channel group: a client of NVIDIA's MPS makes its channels in its server's group."""

from __future__ import annotations

import contextlib
import os
import re
import signal
import struct
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from sharebox import look, stat
from slicebox import MIB, PROC, Box, child, fresh_id, until
from slicebox import nvclient as nv

pytestmark = [pytest.mark.checked, pytest.mark.attached]

LIMIT_MIB = 2048
DEBUGGER, EXCEPTION_MASK = 0x83DE, 0x83DE0309
KERNEL_NS = 20_000_000
DEFAULT_US = 1024


@pytest.fixture
def client(box: Box, gpu: nv.Gpu) -> Iterator[nv.Gpu]:
    """A second client, of the same process."""
    with box.client() as second:
        yield second.gpu()


@pytest.fixture
def neighbour() -> Iterator[nv.Gpu]:
    """Another container, with a channel that has nothing to do."""
    with Box(fresh_id(), 512) as other, other.client() as theirs:
        found = theirs.gpu()
        found.channel = found.space().group().channel()
        yield found


@contextlib.contextmanager
def policy(number: int) -> Iterator[None]:
    (PROC / "0/policy").write_text(f"{number}\n")
    try:
        yield
    finally:
        (PROC / "0/policy").write_text("5\n")


# ---- charges ----


@pytest.mark.parametrize("first", ["the first", "the second"])
def test_a_context_is_charged_once_until_the_last_handle_goes(box: Box, gpu: nv.Gpu, client: nv.Gpu, first: str):
    assert (box.used, box.stat("groups")) == (0, 0)
    group = gpu.space().group()
    context = stat("context_bytes") or box.used
    assert (box.used, box.stat("groups")) == (context, 1)
    for _ in range(20):
        status, again = client.rm.dup(client.device, gpu.rm, group.tsg)
        assert status == 0
        assert client.free(again) == 0
    status, second = client.rm.dup(client.device, gpu.rm, group.tsg)
    assert (status, box.used, box.stat("groups")) == (0, context, 1)
    handles = [(gpu, group.tsg), (client, second)]
    (gone, handle), (stays, other) = handles if first == "the first" else handles[::-1]
    assert gone.free(handle) == 0
    assert (box.used, box.stat("groups")) == (context, 1), "the other handle still has it"
    assert stays.free(other) == 0
    assert (box.used, box.stat("groups")) == (0, 0)


@contextlib.contextmanager
def server(box: Box, shared: bool = True) -> Iterator[tuple[int, int, int]]:
    """Another process of the container with a group, shared with the same user as the MPS server does: its pid, and its
    handles of client and group.
    """

    def serve() -> None:
        rm = box.client()
        gpu = rm.gpu()
        for kind, mask, action in ((2, 1, 0), (2, 4, 4)) if shared else ():
            policy = struct.pack("<IIHBx", rm.handle, mask, kind, action)
            assert rm.control(rm.handle, 0xD04, policy)[0] == 0
        group = gpu.space().group()
        channel = group.channel()
        os.write(ready, struct.pack("II", rm.handle, channel.group.tsg))
        signal.pause()

    wait, ready = os.pipe()
    try:
        with child(serve) as pid:
            yield pid, *struct.unpack("II", os.read(wait, 8))
    finally:
        os.close(wait)
        os.close(ready)


def work(channel: nv.Channel) -> None:
    channel.submit(kernel_ns=1000)
    channel.wait(60)


def test_the_servers_group_lives_as_long_as_a_client_has_it(box: Box):
    with box.client() as rm:
        gpu = rm.gpu()
        space = gpu.space()
        with server(box) as (pid, client, handle):
            alone = box.used
            source = type("Source", (), {"gpu": type("Gpu", (), {"rm": client}), "tsg": handle})
            group = space.group(of=source)
            assert box.used == alone
            channel = group.channel()
            work(channel)
            os.kill(pid, signal.SIGKILL)
            os.waitid(os.P_PID, pid, os.WEXITED | os.WNOWAIT)
            until(lambda: box.stat("channels") == 1)
            assert (box.used, box.stat("groups")) == (alone, 1), "its context is the client's too"
            work(channel)
    until(lambda: box.used == 0)
    assert box.stat("groups") == 0


# ---- whose group ----


def test_a_group_that_is_not_shared_with_the_caller(box: Box, neighbour: nv.Gpu):
    with box.client() as rm, server(box, shared=False) as (_, client, handle):
        assert rm.dup(rm.gpu().device, client, handle)[0] == nv.NV_ERR_INSUFFICIENT_PERMISSIONS
    with server(box) as (_, client, handle):
        used = box.used
        assert neighbour.rm.dup(neighbour.device, client, handle)[0] == nv.NV_ERR_OBJECT_NOT_FOUND
        with box.client() as rm:
            gpu = rm.gpu()
            theirs = neighbour.channel.group.tsg
            assert rm.dup(gpu.device, neighbour.rm, theirs)[0] == nv.NV_ERR_OBJECT_NOT_FOUND
            for parent in (rm.handle, gpu.subdevice):
                assert rm.dup(parent, client, handle)[0] == nv.NV_ERR_INVALID_OBJECT_PARENT
            assert box.used == used, "what failed is not charged"
            assert rm.dup(gpu.device, client, handle)[0] == 0


def test_channels_have_one_handle(gpu: nv.Gpu, client: nv.Gpu):
    channel = gpu.space().group().channel()
    assert client.rm.dup(client.device, gpu.rm, channel.handle)[0] == nv.NV_ERR_NOT_SUPPORTED


# ---- scheduling ----


def busy() -> int:
    return look()[1].get(os.getpid(), (0, 0))[0]


def test_channels_below_both_handles_are_frozen_and_thawed(box: Box, gpu: nv.Gpu, client: nv.Gpu, neighbour: nv.Gpu):
    """Either handle enables the channels below both, so each freeze names all of them."""
    work(neighbour.channel)
    with policy(2):
        group = gpu.space().group()
        second = client.space().group(of=group)
        for enabling in (group, second):
            (box.proc / "weight").write_text("0\n")
            time.sleep(0.2)
            channels = [group.channel(enable=False), second.channel(enable=False)]
            before = busy()
            for channel in channels:
                channel.submit(kernel_ns=KERNEL_NS)
            assert enabling.enable() == 0
            time.sleep(0.3)
            assert busy() == before, "out of turn"
            (box.proc / "weight").write_text("1\n")
            for channel in channels:
                channel.wait(60)
            assert busy() - before >= len(channels) * KERNEL_NS


def timeslice(group: nv.Group) -> int:
    text = Path("/proc/driver/nvsim/0/tsgs").read_text()
    line = next(line for line in text.splitlines() if f"client={group.gpu.rm.handle:x} tsg={group.tsg:x} " in line)
    return int(re.search(r"timeslice_us=(\d+)", line)[1])


def test_a_group_has_one_timeslice_whichever_handle_is_left(box: Box, gpu: nv.Gpu, client: nv.Gpu, neighbour: nv.Gpu):
    group = gpu.space().group()
    second = client.space().group(of=group)
    group.channel()
    with policy(4):
        equal = until(lambda: timeslice(neighbour.channel.group))
        until(lambda: timeslice(group) == timeslice(neighbour.channel.group) != DEFAULT_US)
        calls = stat("control_calls")
        status, more = client.rm.dup(client.device, gpu.rm, group.tsg)
        assert status == 0
        assert timeslice(group) == timeslice(neighbour.channel.group), f"as with one handle, {equal} us"
        assert client.free(more) == 0
        assert stat("control_calls") == calls
    until(lambda: timeslice(group) == DEFAULT_US)
    own = second.channel()
    assert gpu.free(group.tsg) == 0
    with policy(4):
        until(lambda: timeslice(group) == timeslice(neighbour.channel.group) != DEFAULT_US)
        work(own)


def test_the_timeslice_that_a_tenant_sets_is_the_groups(gpu: nv.Gpu, client: nv.Gpu):
    group = gpu.space().group()
    second = client.space().group(of=group)
    assert second.control(0xA06C0103, struct.pack("<Q", 2048))[0] == 0
    assert group.control(0xA06C0104, bytes(8)) == (0, struct.pack("<Q", 2048))


# ---- the debugger of the server ----


def test_the_exception_mask_of_an_own_session(box: Box, gpu: nv.Gpu, neighbour: nv.Gpu):
    """NVIDIA's MPS server does not start without. A session is on a compute object of its own client only."""
    channel = gpu.space().group().channel()
    status, session = gpu.rm.alloc(DEBUGGER, gpu.device, nv.DebuggerParams(0, gpu.rm.handle, channel.object))
    assert status == 0
    mask = struct.pack("<I", 0x3A)
    assert gpu.rm.control(session, EXCEPTION_MASK, mask)[0] == 0
    assert gpu.rm.control(gpu.device, EXCEPTION_MASK, mask)[0] == nv.NV_ERR_NOT_SUPPORTED, "the driver's answer"
    with box.client() as second:
        for rm in (second, neighbour.rm):
            assert rm.control(session, EXCEPTION_MASK, mask)[0] == nv.NV_ERR_OBJECT_NOT_FOUND


# ---- handles that are not there ----


def test_freeing_a_handle_that_does_not_exist(box: Box, gpu: nv.Gpu, client: nv.Gpu):
    """An H100 answers 0. Nothing changes, and what is another client's or file's is not freed."""
    _, memory = gpu.alloc_vidmem(2 * MIB)
    assert gpu.free(0xDEAD) == 0
    assert client.free(memory) == 0, "the handle is unknown in this client"
    assert box.used == 2 * MIB
    arg = nv.Free(gpu.rm.handle, gpu.device, memory)
    client.rm.ctl.call(nv.NV_ESC_RM_FREE, arg)
    assert arg.status == nv.NV_ERR_OBJECT_NOT_FOUND, "the client is of another file"
    assert box.used == 2 * MIB
    assert [gpu.free(memory), gpu.free(memory), box.used] == [0, 0, 0]
