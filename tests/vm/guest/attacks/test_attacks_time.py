# SPDX-License-Identifier: MIT
"""Hostile tenants that try to run out of turn, take time of neighbours or of the host, or observe others' work."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from sharebox import look, stat
from slicebox import PROC, Box, fresh_id, until
from slicebox import nvclient as nv

pytestmark = pytest.mark.once

PARAMETERS = Path("/sys/module/nvsim/parameters")
FREEZE_RESTART = Path("/sys/module/cgpu_km/parameters/freeze_restart")  # bit 0: of GPU 0
NO_RESOURCES = 0x1A

KERNEL_NS = 50_000_000


@pytest.fixture
def neighbour() -> Iterator[nv.Gpu]:
    """A container with one channel that works, and nothing else."""
    with Box("0d" * 32, 512) as box, box.client() as client:
        gpu = client.gpu(0)
        gpu.box = box
        channel = gpu.space().group().channel()
        channel.submit(kernel_ns=1000)
        channel.wait()
        yield gpu


@pytest.fixture(params=[0, 1], ids=["at once", "at a restart"])
def weighted(request: pytest.FixtureRequest) -> Iterator[None]:
    """Policy 2, on a GPU that freezes at once, and on one that does with the restart of its runlist."""
    values = {PARAMETERS / "disable_needs_restart": request.param, PARAMETERS / "control_us": 2000,
              FREEZE_RESTART: request.param}  # fmt: skip
    before = {path: path.read_text() for path in values}
    for path, value in values.items():
        path.write_text(f"{value}\n")
    (PROC / "0/policy").write_text("2\n")
    yield
    (PROC / "0/policy").write_text("5\n")
    for path, text in before.items():
        path.write_text(text)


def groups(client: nv.Client, count: int) -> list[nv.Channel]:
    """Channels, each in a group of its own that was not enabled yet."""
    space = client.gpu(0).space()
    return [space.group().channel(enable=False) for _ in range(count)]


def busy() -> int:
    return look()[1].get(os.getpid(), (0, 0))[0]


def out_of_turn(box: Box) -> None:
    (box.proc / "weight").write_text("0\n")
    time.sleep(0.2)


def test_time_by_a_handle_that_is_made_again(neighbour: nv.Gpu, weighted: None, personality: Callable[..., None]):
    """While the driver's answer is on its way that a channel is gone, there is a new one with its handle."""
    late_ms = 400
    with Box(fresh_id(), 2048) as box, box.client() as client:
        group = client.gpu(0).space().group()
        group.channel()  # the group stays enabled
        ends = group.channel()
        channel = group.channel(handle=0xC4A1)
        personality(missing_ms=late_ms)
        begin = time.monotonic()

        def wait_until(calls: float) -> None:
            time.sleep(max(0.0, begin + calls * late_ms / 1000 - time.monotonic()))

        (box.proc / "weight").write_text("0\n")  # the list of all, which fails, then a call for each
        wait_until(0.25)
        ends.close()
        wait_until(3.5)  # the last call has begun
        channel.close()
        wait_until(4.5)
        channel = group.channel(handle=0xC4A1)
        personality(missing_ms=0)
        time.sleep(0.2)
        before = busy()
        channel.submit(kernel_ns=KERNEL_NS)
        time.sleep(0.5)
        assert busy() == before
        (box.proc / "weight").write_text("1\n")
        channel.wait()


def test_time_of_hand_overs_by_channels_that_go(personality: Callable[..., None]):
    """The driver refuses a list of 64 for one channel that is gone. The 63 others are not 63 calls."""
    late_ms, before = 500, (PROC / "0/policy").read_text()
    (PROC / "0/policy").write_text("2\n")
    try:
        with Box(fresh_id(), 2048) as box, box.client() as client:
            space = client.gpu(0).space()
            channels = [space.group().channel() for _ in range(64)]
            time.sleep(0.2)
            calls = stat("control_calls")
            personality(missing_ms=late_ms)
            (box.proc / "weight").write_text("0\n")
            time.sleep(late_ms / 2000)
            channels[32].close()
            personality(missing_ms=0)
            time.sleep(1)
            assert 2 <= stat("control_calls") - calls <= 4, "all, and what is left in halves"
            held = busy()
            for channel in channels:
                if channel is not channels[32]:
                    channel.submit(kernel_ns=1000)
            time.sleep(0.2)
            assert busy() == held, "all are frozen"
            (box.proc / "weight").write_text("1\n")
            for channel in channels:
                if channel is not channels[32]:
                    channel.wait()
    finally:
        personality(missing_ms=0)
        (PROC / "0/policy").write_text(before)


@pytest.mark.checked
def test_time_by_enabling_what_was_prepared(neighbour: nv.Gpu, weighted: None):
    """Each call would gain the time between the driver's enable and the effect of the freeze."""
    with Box(fresh_id(), 2048) as box, box.client() as client:
        out_of_turn(box)
        channels = groups(client, 16)  # no hand-over has frozen them
        before = busy()
        for channel in channels:
            channel.submit(kernel_ns=KERNEL_NS)
            assert channel.group.enable() == 0
        time.sleep(0.5)
        assert busy() == before
        # In turn they run: the freeze was no more than that.
        (box.proc / "weight").write_text("1\n")
        for channel in channels:
            channel.wait(60)
        assert busy() - before >= len(channels) * KERNEL_NS


def test_turns_by_enabling_again_and_again(neighbour: nv.Gpu, weighted: None):
    """An enabled channel needs no control call, for which the next turn would have to wait."""
    with Box(fresh_id(), 1024) as box, box.client() as client:
        (channel,) = groups(client, 1)
        assert channel.group.enable() == 0
        out_of_turn(box)
        before = stat("control_calls")
        for _ in range(40):
            assert channel.group.enable() == 0
        assert stat("control_calls") - before < 10
        # Nor if it is disabled in between.
        for _ in range(40):
            assert (channel.group.enable(False), channel.group.enable()) == (0, 0)
        assert stat("control_calls") - before < 20
        # A channel that came later is enabled by the same call, frozen first.
        later = channel.group.channel(enable=False)
        later.submit(kernel_ns=1_000_000)
        idle = busy()
        assert channel.group.enable() == 0
        time.sleep(0.3)
        assert busy() == idle
        (box.proc / "weight").write_text("1\n")
        later.wait(60)
        # What its owner disabled in turn is enabled all the same.
        assert channel.group.enable(False) == 0
        out_of_turn(box)
        before = stat("control_calls")
        assert channel.group.enable() == 0
        assert stat("control_calls") - before < 10
        (box.proc / "weight").write_text("1\n")
        channel.submit(kernel_ns=1_000_000)
        channel.wait(60)


def test_half_an_enable(neighbour: nv.Gpu, weighted: None):
    """bSkipSubmit: what the module takes for enabled already must be enabled."""
    with Box(fresh_id(), 1024) as box, box.client() as client:
        (channel,) = groups(client, 1)
        rm, size = client, 3 if client.branch >= 575 else 2
        assert rm.control(channel.group.tsg, nv.NVA06C_CTRL_CMD_GPFIFO_SCHEDULE, bytes([1, 1, 1][:size]))[0] == 0
        out_of_turn(box)
        assert channel.group.enable() == 0
        (box.proc / "weight").write_text("1\n")
        channel.submit(kernel_ns=1_000_000)
        channel.wait(60)


def test_turns_by_channels_that_are_dead(neighbour: nv.Gpu, weighted: None):
    """The driver restarts no runlist on a faulted channel; the module does not retry dead channels before each call."""
    with Box(fresh_id(), 2048) as box, box.client() as client:
        dead = groups(client, 16)
        for channel in dead:
            assert channel.group.enable() == 0
            channel.submit(op=0x77)
        for channel in dead:
            channel_faulted = time.monotonic() + 10
            while not channel.group.fault():
                assert time.monotonic() < channel_faulted
                time.sleep(0.01)
        fresh = groups(client, 8)
        out_of_turn(box)
        before = stat("control_calls")
        for channel in fresh:
            assert channel.group.enable() == 0
        assert stat("control_calls") - before <= 8 * 4 + 2 * len(dead)


def test_time_of_hand_overs_by_channels_that_the_driver_refuses(personality: Callable[..., None]):
    """A hundred channels that faulted are found one by one once; from then on a freeze is a call for 64, and one."""
    before = (PROC / "0/policy").read_text()
    (PROC / "0/policy").write_text("2\n")
    try:
        with Box(fresh_id(), 2048) as box, box.client() as client:
            space = client.gpu(0).space()
            works, group = space.group().channel(), space.group()
            first = group.channel()
            for _ in range(99):
                assert group.gpu.rm.alloc(group.gpfifo_class, group.tsg, first.params())[0] == 0
            first.submit(op=0x77)
            until(group.fault, 10)
            personality(refuse_dead=1)
            (box.proc / "weight").write_text("0\n")
            time.sleep(1)
            calls = stat("control_calls")
            time.sleep(2)
            assert 10 < stat("control_calls") - calls <= 200, "every 64 ms: of the others, of 64, of 36, and of one"
            assert box.stat("enforced") == 0
            held = busy()
            works.submit(kernel_ns=1000)
            time.sleep(0.2)
            assert busy() == held, "the other channel is frozen"
            personality(refuse_dead=0)
            until(lambda: box.stat("enforced") == 1, 5)
            failed = stat("control_failed")
            (box.proc / "weight").write_text("1\n")
            works.wait()
            assert stat("control_failed") == failed
    finally:
        (PROC / "0/policy").write_text(before)


BAR1_SIZE, LARGEST_FREE, LARGEST_FREE_BASE, BAR1_AVAIL, BAR1_LARGEST = 0x05, 0x12, 0x13, 0x1D, 0x1F


def test_sight_of_what_the_neighbour_takes(neighbour: nv.Gpu):
    """Free regions, their addresses and the use of BAR1 depend on the neighbour."""
    indexes = (LARGEST_FREE, LARGEST_FREE_BASE, BAR1_AVAIL, BAR1_LARGEST)
    with Box(fresh_id(), 14000) as box, box.client() as client, nv.Client() as host:
        gpu = client.gpu(0)
        seen, real = gpu.fb_info(*indexes), host.gpu(0).fb_info(*indexes)
        status, memory = neighbour.alloc_vidmem(128 << 20)
        assert status == 0
        neighbour.map_cpu(memory, 32 << 20)  # more of BAR1 than its floor
        assert gpu.fb_info(*indexes) == seen
        assert [a != b for a, b in zip(host.gpu(0).fb_info(*indexes), real, strict=True)] == [True] * 4
        neighbour.free(memory)
        bar1 = gpu.fb_info(BAR1_SIZE)[0]
        assert seen == [gpu.memory()["free"] >> 10, 0, bar1, bar1]


@pytest.fixture
def few_objects() -> Iterator[int]:
    """A limit that a test comes to."""
    parameter = Path("/sys/module/cgpu_km/parameters/max_objects")
    before = parameter.read_text()
    parameter.write_text("300\n")
    yield 300
    parameter.write_text(before)


@pytest.mark.checked
def test_the_hosts_time_by_objects_without_end(few_objects: int):
    """How many there are is bounded, and a file that held many clients closes."""
    with Box(fresh_id(), 256) as box:
        made = []
        with nv.Ctl(box.dev) as ctl:
            refused = box.stat("refused_calls")
            while True:
                arg = nv.Alloc(class_id=nv.NV01_ROOT_CLIENT)
                ctl.call(nv.NV_ESC_RM_ALLOC, arg)
                if arg.status:
                    break
                made.append(arg.handle)
                assert len(made) <= few_objects
            assert len(made) == few_objects
            assert arg.status == NO_RESOURCES
            assert box.stat("refused_calls") == refused + 1
            # The refused object is freed in the driver: with room again, allocations work as before.
            free = nv.Free(made[7], made[7], made[7])
            ctl.call(nv.NV_ESC_RM_FREE, free)
            assert free.status == 0
            arg = nv.Alloc(class_id=nv.NV01_ROOT_CLIENT)
            ctl.call(nv.NV_ESC_RM_ALLOC, arg)
            assert arg.status == 0
        with box.client() as client:
            gpu = client.gpu(0)
            assert gpu.alloc_vidmem(2 << 20)[0] == 0
