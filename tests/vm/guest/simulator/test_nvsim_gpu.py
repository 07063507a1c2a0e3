# SPDX-License-Identifier: MIT OR GPL-2.0-only
"""nvsim by itself: the GPU's timeline, its runlists and its controls.

The assertions are on GPU time, which does not depend on the load of the host.
"""

from __future__ import annotations

import itertools
import os
import struct
import time
from pathlib import Path

import nvclient as nv
import pytest
from slicebox import until

pytestmark = [pytest.mark.bare, pytest.mark.debug_ok]

TSGS = Path("/proc/driver/nvsim/0/tsgs")
PARAMETERS = Path("/sys/module/nvsim/parameters")
MS = 1_000_000
SLICE = 1_024_000


def parameter(name: str) -> int:
    return int((PARAMETERS / name).read_text())


@pytest.fixture
def make():
    """Makes channels, each in a client, a space and a TSG of its own."""
    clients = []

    def one(**kwargs):
        clients.append(nv.Client())
        return clients[-1].gpu(0).space().group(**kwargs).channel()

    yield one
    for client in clients:
        client.close()


def tsg(channel) -> dict[str, int]:
    """The counters of a channel's TSG."""
    key = f"client={channel.gpu.rm.handle:x} tsg={channel.group.tsg:x} "
    lines = [line for line in TSGS.read_text().splitlines() if line.startswith(key) and "ended" not in line]
    assert len(lines) == 1
    return {name: int(value) for name, _, value in (word.partition("=") for word in lines[0].split()[2:])}


def shares(seconds: float, *channels) -> list[int]:
    """Busy time of each in a window, from one reading of the file at each end."""

    def read():
        text = TSGS.read_text()
        found = []
        for channel in channels:
            key = f"client={channel.gpu.rm.handle:x} tsg={channel.group.tsg:x} "
            line = next(line for line in text.splitlines() if line.startswith(key))
            found.append(int(line.partition("busy_ns=")[2].split()[0]))
        return found

    first = read()
    time.sleep(seconds)
    return [after - before for before, after in zip(first, read(), strict=True)]


def fill(channel, kernel_ns: int = 20 * MS, count: int = 60) -> None:
    channel.submit(kernel_ns=kernel_ns, count=count)


def disable(by, *channels, on: bool = True, only_scheduling: bool = False) -> int:
    """DISABLE_CHANNELS through client @by; the channels may be of any client."""
    arg = nv.DisableChannels(disable=on, count=len(channels), only_scheduling=only_scheduling)
    for i, channel in enumerate(channels):
        arg.client[i] = channel.gpu.rm.handle
        arg.channel[i] = channel.handle
    return by.gpu.control(nv.NV2080_CTRL_CMD_FIFO_DISABLE_CHANNELS, arg)[0]


def set_timeslice(channel, us: int) -> int:
    return channel.group.control(nv.NVA06C_CTRL_CMD_SET_TIMESLICE, us.to_bytes(8, "little"))[0]


def restart(channel) -> int:
    return channel.gpu.rm.control(channel.handle, nv.NVA06F_CTRL_CMD_RESTART_RUNLIST, bytes([1, 0]))[0]


def test_kernels_take_exactly_as_long_as_they_say(make):
    channel = make()
    channel.submit(kernel_ns=3 * MS, count=10)
    channel.wait()
    times = [channel.gpu_time(i) for i in range(10)]
    assert [b - a for a, b in itertools.pairwise(times)] == [3 * MS] * 9
    assert tsg(channel)["busy_ns"] == 30 * MS
    assert tsg(channel)["works"] == 10


def test_copies_take_bytes_by_bandwidth(make):
    channel = make(engine=nv.NV2080_ENGINE_TYPE_COPY0)
    channel.submit(copy_bytes=12_000_000, count=2)
    channel.wait()
    assert channel.gpu_time(1) - channel.gpu_time(0) == 12_000_000 * 1000 // parameter("copy_mbps")


def test_engines_run_side_by_side(make):
    kernel, copy = make(), make(engine=nv.NV2080_ENGINE_TYPE_COPY0)
    fill(kernel)
    copy.submit(copy_bytes=parameter("copy_mbps") * 20_000, count=60)
    time.sleep(0.2)
    ran = shares(0.3, kernel, copy)
    assert min(ran) > 0.95 * max(ran)


def test_two_clients_share_round_robin(make):
    a, b = make(), make()
    fill(a)
    fill(b)
    time.sleep(0.1)
    ran = shares(0.4, a, b)
    assert abs(ran[0] - ran[1]) <= 2 * SLICE
    a.wait(30)
    b.wait(30)
    both = tsg(a)["switches"] + tsg(b)["switches"]
    assert both == pytest.approx(2 * 60 * 20 * MS / SLICE, rel=0.15)


def test_the_switch_costs_what_the_profile_says(make, personality):
    """The same kernels of two TSGs: the time beyond their own is spent in switches."""
    a, b = make(), make()
    disable(a, a, b)
    personality(disable_needs_restart=1)  # so that both begin at once
    a.submit(kernel_ns=10 * MS, count=8)
    b.submit(kernel_ns=10 * MS, count=8)
    before = tsg(a)["switches"] + tsg(b)["switches"]
    disable(a, a, b, on=False)
    assert restart(a) == 0
    a.wait()
    b.wait()
    first = min(a.gpu_time(0), b.gpu_time(0))
    last = max(a.gpu_time(7), b.gpu_time(7))
    switches = tsg(a)["switches"] + tsg(b)["switches"] - before
    assert switches >= 100
    overhead = last - first - 2 * 80 * MS
    cost = parameter("ctxsw_us") * 1000
    # before the first completion up to 20 slices' worth of both had passed
    assert overhead == pytest.approx(switches * cost - 20 * (SLICE + cost), abs=6 * SLICE)


def test_an_idle_tsg_gives_its_slice_away(make):
    a, b = make(), make()
    a.submit(kernel_ns=20 * MS, count=20)
    b.submit(kernel_ns=MS)
    b.wait()
    a.wait()
    times = [a.gpu_time(i) for i in range(5, 20) if a.gpu_time(i - 1) > b.gpu_time(0)]
    assert len(times) > 2
    assert {after - before for before, after in itertools.pairwise(times)} == {20 * MS}


def test_timeslices_are_committed_by_restart(make):
    a, b = make(), make()
    fill(a)
    fill(b)
    time.sleep(0.05)
    assert set_timeslice(a, 3072) == 0
    assert a.group.control(nv.NVA06C_CTRL_CMD_GET_TIMESLICE, 8)[1] == (3072).to_bytes(8, "little")
    ran = shares(0.2, a, b)
    assert ran[0] / ran[1] == pytest.approx(1, abs=0.05)
    assert restart(a) == 0
    ran = shares(0.4, a, b)
    assert ran[0] / ran[1] == pytest.approx(3, abs=0.15)


def test_timeslices_at_once_if_no_commit_is_required(make, personality):
    personality(commit_required=0)
    a, b = make(), make()
    fill(a)
    fill(b)
    assert set_timeslice(a, 4096) == 0
    ran = shares(0.4, a, b)
    assert ran[0] / ran[1] == pytest.approx(4, abs=0.25)


def test_ineffective_controls(make, personality):
    personality(control_ineffective=3)
    a, b = make(), make()
    fill(a)
    fill(b)
    assert set_timeslice(a, 8192) == 0
    assert restart(a) == 0
    assert disable(a, b) == 0
    ran = shares(0.3, a, b)
    assert ran[0] / ran[1] == pytest.approx(1, abs=0.05)


def test_disable_takes_anybodys_channels_off_and_puts_them_back(make):
    a, b = make(), make()
    fill(a, count=20)
    fill(b)
    time.sleep(0.05)
    assert disable(b, a) == 0
    ran = shares(0.2, a, b)
    assert ran[0] == 0
    assert ran[1] > 150 * MS
    assert disable(b, a, on=False) == 0
    ran = shares(0.2, a, b)
    assert ran[0] / ran[1] == pytest.approx(1, abs=0.1)
    a.wait(30)
    assert tsg(a)["busy_ns"] == 20 * 20 * MS


def test_disable_of_unknown_channels(make):
    a, b = make(), make()
    b.handle = 0x1234
    assert disable(a, b) == nv.NV_ERR_OBJECT_NOT_FOUND
    arg = nv.DisableChannels(disable=1, count=65)
    assert a.gpu.control(nv.NV2080_CTRL_CMD_FIFO_DISABLE_CHANNELS, arg)[0] == nv.NV_ERR_INVALID_ARGUMENT


def test_disable_that_needs_a_restart(make, personality):
    personality(disable_needs_restart=1)
    a, b = make(), make()
    fill(a)
    fill(b)
    assert disable(b, a) == 0
    assert shares(0.1, a)[0] > 0
    assert restart(b) == 0
    assert shares(0.1, a)[0] == 0


def test_schedule_off_is_ineffective(make):
    channel = make()
    fill(channel)
    assert channel.group.enable(False) == 0
    assert shares(0.1, channel)[0] > 50 * MS


def test_restart_fails_as_often_as_asked(make, personality):
    personality(err40_pct=100)
    channel = make()
    assert restart(channel) == nv.NV_ERR_INVALID_STATE


def test_preempt_ends_a_slice(make):
    a, b = make(), make()
    assert set_timeslice(a, 50_000) == 0
    assert restart(a) == 0
    fill(a)
    fill(b, count=4)
    time.sleep(0.01)
    assert a.group.control(nv.NVA06C_CTRL_CMD_PREEMPT, bytes([1, 0, 0, 0, 0, 0, 0, 0]))[0] == 0
    assert tsg(b)["busy_ns"] > 0


def test_without_preemption_kernels_run_to_their_end(make, personality):
    personality(no_preempt=1)
    a, b = make(), make()
    a.submit(kernel_ns=50 * MS, count=4)
    b.submit(kernel_ns=MS, count=2)
    a.wait()
    b.wait()
    cost = parameter("ctxsw_us") * 1000
    assert a.gpu_time(1) - a.gpu_time(0) in (50 * MS, 51 * MS + 2 * cost, 52 * MS + 2 * cost)


def test_a_stubborn_kernel_holds_the_engine(make, personality):
    personality(stubborn_ms=80)
    a, b = make(), make()
    a.submit(kernel_ns=300 * MS, flags=nv.FLAG_STUBBORN)
    time.sleep(0.02)
    began = time.monotonic()
    b.submit(kernel_ns=MS)
    b.wait()
    assert tsg(a)["busy_ns"] >= 80 * MS
    assert disable(b, a) == 0
    assert shares(0.1, a)[0] == 0
    assert time.monotonic() - began < 20


def test_a_pause_after_a_work(make):
    """The next one of a full queue begins exactly then, and the engine is the others' meanwhile."""
    a, b = make(), make()
    a.submit(kernel_ns=MS // 2, count=9, flags=20_000 << nv.FLAG_PAUSE_SHIFT)
    a.wait()
    assert {a.gpu_time(i + 1) - a.gpu_time(i) for i in range(8)} == {20 * MS + MS // 2}
    a.submit(kernel_ns=MS, flags=1_000_000 << nv.FLAG_PAUSE_SHIFT)
    a.wait()
    a.submit(kernel_ns=MS)
    b.submit(kernel_ns=MS)
    b.wait()
    a.wait()
    assert b.gpu_time(0) < a.gpu_time(10) - 2 * MS
    cost = parameter("ctxsw_us") * 1000
    assert a.gpu_time(10) - a.gpu_time(9) == 1001 * MS + cost, "b has had the engine in between"


def test_samples_say_who_was_on_the_engine(make):
    """Six times a second, the last 12 s: time, process, utilisation since the previous sample."""
    channel = make()
    fill(channel, count=50)
    channel.wait(30)
    ended = channel.gpu_time(49) + time.time_ns() - time.monotonic_ns()
    time.sleep(1)
    status, params = channel.gpu.control(0x20802096, bytearray(55888))
    assert status == 0
    kind, size, count, tracker = struct.unpack_from("<B3xIII", params)
    assert (kind, size, count) == (2, 55888 - 16, 72)
    ring = [struct.unpack_from("<Q128xI4xI", params, 16 + 776 * ((tracker + 1 + i) % 72)) for i in range(72)]
    ring = sorted(sample for sample in ring if sample[0])
    times = [at for at, _, _ in ring]
    assert {after - before for before, after in itertools.pairwise(times)} == {1_000_000_000 // 6}
    assert times[-1] <= time.time_ns() < times[-1] + 1_000_000_000
    busy = [(util, pid) for at, util, pid in ring if ended - 800 * MS < at < ended - 20 * MS]
    assert len(busy) >= 4 and set(busy) == {(10_000, os.getpid())}
    idle = [(util, pid) for at, util, pid in ring if at > ended + 170 * MS]
    assert len(idle) >= 4 and set(idle) == {(0, 0xFFFFFFFF)}


def test_a_fault_kills_its_own_tsg_only(make):
    a, b = make(), make()
    fill(b)
    a.submit(op=77)
    until(a.group.fault)
    assert restart(a) == nv.NV_ERR_INVALID_STATE
    assert a.group.enable() == nv.NV_ERR_INVALID_STATE
    assert shares(0.1, b)[0] > 80 * MS


def test_a_semaphore_nowhere_is_a_fault(make):
    channel = make()
    channel.submit(kernel_ns=MS, sem_va=0x1230)
    until(channel.group.fault)


def test_garbage_in_userd_is_a_fault(make):
    channel = make()
    channel.cpu.write32(channel.userd_at + nv.NV_USERD_GPPUT, 0xFFFFFF)
    channel.ring()
    until(channel.group.fault)


def test_a_storm_of_empty_work_slows_the_gpu_not_the_host(make):
    a = make()
    channel = a.group.channel(entries=4096)
    channel.submit(count=4000, op=nv.OP_RELEASE)
    channel.wait(30)
    fill(a, kernel_ns=MS, count=2)
    a.wait()


def test_kernels_need_a_compute_object(make):
    channel = make(engine=nv.NV2080_ENGINE_TYPE_COPY0)
    channel.submit(kernel_ns=MS)
    until(channel.group.fault)
