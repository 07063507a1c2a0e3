# SPDX-License-Identifier: MIT OR GPL-2.0-only
"""nvsim by itself: channels that speak methods, as NVIDIA's own libraries do, on the GPU's timeline."""

from __future__ import annotations

import time
from pathlib import Path

import nvclient as nv
import pytest
from pusher import TURING, Pusher, halves, inc, listen, release
from slicebox import until

pytestmark = [pytest.mark.bare, pytest.mark.debug_ok]

TSGS = Path("/proc/driver/nvsim/0/tsgs")
PARAMETERS = Path("/sys/module/nvsim/parameters")
MS = 1_000_000
COPY_CLASS = 0xC5B5


def parameter(name: str) -> int:
    return int((PARAMETERS / name).read_text())


def acquire(va: int, value: int) -> list[int]:
    """Until it is at least that."""
    return inc(0, 0x5C, va & 0xFFFFFFFF, va >> 32, value, 0, 3 | 1 << 12)


def launch(qmd: int) -> list[int]:
    return inc(1, 0, TURING) + inc(1, 0x2B4, qmd >> 8) + inc(1, 0x2BC, 3)


@pytest.fixture
def make():
    """Makes spaces, each of a client of its own."""
    clients = []

    def one() -> nv.Space:
        clients.append(nv.Client())
        return clients[-1].gpu(0).space()

    yield one
    for client in clients:
        client.close()


def tsg(pusher: Pusher) -> dict[str, int]:
    """The counters of its TSG."""
    channel = pusher.channel
    key = f"client={channel.gpu.rm.handle:x} tsg={channel.group.tsg:x} "
    line = next(line for line in TSGS.read_text().splitlines() if line.startswith(key))
    return {name: int(value) for name, _, value in (word.partition("=") for word in line.split()[2:])}


def test_a_release_by_method(make):
    one = Pusher(make().group())
    one.push(release(one.sem(0), 7))
    until(one.done)
    assert one.value(0) == 7 and 0 <= time.monotonic_ns() - one.when(0) < 10_000 * MS
    assert tsg(one)["works"] == 0


def test_a_first_segment_that_begins_with_nothing(make):
    """To the host a word 0 is a header without effect: libcuda's first segment after a restore has 150 of them."""
    one = Pusher(make().group())
    one.push([0] * 150, release(one.sem(0), 7))
    until(one.done)
    assert one.value(0) == 7


def test_a_launch_takes_its_grids_time(make):
    one = Pusher(make().group())
    waves = 250
    grid = waves * parameter("sm_count")
    one.push(release(one.sem(0), 1), launch(one.qmd(x=grid)), release(one.sem(1), 1))
    until(one.done)
    want = parameter("launch_ns") + waves * parameter("wave_ns")
    assert 0 <= one.when(1) - one.when(0) - want < 1000
    counters = tsg(one)
    assert counters["works"] == 1 and 0 <= counters["busy_ns"] - want < 2000


def test_an_engine_without_work_hears_of_anothers_release(make):
    """Its semaphore comes from another engine, 20 ms after the last doorbell."""
    space = make()
    kernel, copy = Pusher(space.group()), Pusher(space.group(engine=nv.NV2080_ENGINE_TYPE_COPY0))
    copy.push(acquire(kernel.sem(0), 1), release(copy.sem(0), 1))
    time.sleep(0.05)
    assert copy.value(0) == 0
    kernel.push(launch(kernel.qmd(x=2000 * parameter("sm_count"))), release(kernel.sem(0), 1))
    until(copy.done)
    assert 0 <= copy.when(0) - kernel.when(0) < 100 * MS


def test_two_engines_play_ping_pong(make):
    """Each waits for the other's step, thirty times."""
    space = make()
    a, b = Pusher(space.group()), Pusher(space.group(engine=nv.NV2080_ENGINE_TYPE_COPY0))
    rounds = range(1, 31)
    b.push(*(acquire(a.sem(0), i) + release(b.sem(0), i) for i in rounds))
    a.push(*(release(a.sem(0), i) + acquire(b.sem(0), i) for i in rounds))
    until(lambda: a.done() and b.done())
    assert b.value(0) == 30


def test_what_the_cpu_writes_is_seen_without_a_doorbell(make):
    one = Pusher(make().group())
    one.push(acquire(one.sem(0), 5), release(one.sem(1), 1))
    time.sleep(0.05)
    assert one.value(1) == 0
    one.channel.cpu.write32(0, 5)
    until(lambda: one.value(1) == 1)


def test_work_queued_before_the_channel_is_enabled_runs(make):
    group = make().group()
    channel = group.channel
    group.channel = lambda entries: channel(entries=entries, enable=False)
    one = Pusher(group)
    one.push(release(one.sem(0), 1))
    time.sleep(0.05)
    assert one.value(0) == 0
    assert group.enable() == 0
    until(one.done)


def test_who_waits_takes_nobodys_time(make):
    """Neither a slice nor a switch, while the other runs, and it does not end the other's work."""
    waiting, running = Pusher(make().group()), Pusher(make().group())
    waiting.push(acquire(waiting.sem(0), 1), release(waiting.sem(1), 1))
    time.sleep(0.05)
    before = tsg(waiting)["switches"]
    waves = 20_000
    running.push(
        release(running.sem(0), 1), launch(running.qmd(x=waves * parameter("sm_count"))), release(running.sem(1), 1)
    )
    until(running.done)
    assert running.when(1) - running.when(0) - waves * parameter("wave_ns") - parameter("launch_ns") < 1000
    assert tsg(waiting)["switches"] == before and tsg(running)["switches"] == 1
    waiting.channel.cpu.write32(0, 1)
    until(waiting.done)


def shares(*pushers: Pusher) -> list[int]:
    first = [tsg(one)["busy_ns"] for one in pushers]
    time.sleep(0.4)
    return [tsg(one)["busy_ns"] - before for one, before in zip(pushers, first, strict=True)]


def test_launches_are_preempted_and_share_by_timeslices(make):
    a, b = Pusher(make().group()), Pusher(make().group())
    for one in (a, b):
        one.push(launch(one.qmd(x=1_000_000 * parameter("sm_count"))))  # ten seconds
    until(lambda: tsg(b)["busy_ns"] > 0)
    ran = shares(a, b)
    assert ran[0] / ran[1] == pytest.approx(1, abs=0.1)
    assert a.channel.group.control(nv.NVA06C_CTRL_CMD_SET_TIMESLICE, (3072).to_bytes(8, "little"))[0] == 0
    assert a.channel.control(nv.NVA06F_CTRL_CMD_RESTART_RUNLIST, bytes([1, 0]))[0] == 0
    ran = shares(a, b)
    assert ran[0] / ran[1] == pytest.approx(3, abs=0.3)


def test_large_copies_and_sets(make):
    space = make()
    one = Pusher(space.group(engine=nv.NV2080_ENGINE_TYPE_COPY0))
    gpu, size = one.channel.gpu, 4 << 20
    status, memory = gpu.alloc_vidmem(2 * size)
    assert status == 0
    status, va = space.map(memory, 2 * size)
    assert status == 0
    cpu = gpu.map_cpu(memory, 2 * size)
    lines = 1 << 7 | 1 << 8
    set_it = inc(4, 0x700, 0x5A5A1234, 0, 4 | 3 << 16) + inc(4, 0x408, *halves(va)) + inc(4, 0x418, size // 4)
    copy_it = inc(4, 0x400, *halves(va), *halves(va + size)) + inc(4, 0x418, size)
    one.push(inc(4, 0, COPY_CLASS), set_it, inc(4, 0x300, 2 | lines | 1 << 10), copy_it,
             inc(4, 0x240, *halves(one.sem(0)), 9), inc(4, 0x300, 2 | lines | 2 << 3))  # fmt: skip
    until(one.done, 60)
    assert one.value(0) == 9 and tsg(one)["works"] == 2
    assert {cpu.read32(at) for at in (0, size - 4, size, size + 4096, 2 * size - 4)} == {0x5A5A1234}


def test_an_interrupt_wakes_who_listens(make):
    one = Pusher(make().group())
    with nv.Ctl() as events:
        poll = listen(one.channel.gpu, events)
        assert poll.poll(100) == []
        one.push(release(one.sem(0), 1))
        assert poll.poll(100) == [], "a release is no interrupt"
        one.push(inc(0, 0x20, 0))
        assert poll.poll(10_000), "NON_STALL_INTERRUPT"
        one.push(inc(1, 0, TURING), inc(1, 0x1B00, *halves(one.sem(1)), 1, 1 << 20))
        assert poll.poll(10_000) and one.value(1) == 1, "AWAKEN, after the value"


def test_thousands_of_launches(make):
    one = Pusher(make().group())
    qmd = one.qmd(x=1)
    began = time.monotonic()
    for _ in range(100):
        one.push(inc(1, 0, TURING), inc(1, 0x2B4, qmd >> 8), *([inc(1, 0x2BC, 2)] * 10))
    until(one.done, 60)
    assert tsg(one)["works"] == 1000 and time.monotonic() - began < 60


@pytest.mark.parametrize("words", [
    release(0x1230, 1),
    inc(1, 0x100, 0),
    inc(1, 0, TURING) + inc(1, 0x2B4, 1) + inc(1, 0x2BC, 2),
    [1 << 29 | 1 << 16, TURING, 6 << 29],
])  # fmt: skip
def test_a_fault_kills_its_own_tsg_only(make, words):
    bad, good = Pusher(make().group()), Pusher(make().group())
    bad.push(words)
    until(bad.channel.group.fault)
    good.push(release(good.sem(0), 1))
    until(good.done)


def test_launches_need_a_compute_object(make):
    one = Pusher(make().group(engine=nv.NV2080_ENGINE_TYPE_COPY0))
    one.push(launch(one.qmd(x=1)))
    until(one.channel.group.fault)


def test_a_waiting_channel_can_go(make):
    space = make()
    one = Pusher(space.group())
    one.push(acquire(one.sem(0), 1))
    time.sleep(0.02)
    one.channel.close()
    other = Pusher(space.group())
    other.push(release(other.sem(0), 1))
    until(other.done)
