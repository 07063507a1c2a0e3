# SPDX-License-Identifier: MIT
"""Suspend with containers: all of them are thawed first, and afterwards the same are frozen again.

The kernel's own test of suspend: it runs the notifiers, freezes every process for a while and thaws them again. Devices
are left out, as the root of this machine would not survive it (9p over virtio).
"""

from __future__ import annotations

import contextlib
import errno
import mmap
import os
import select
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from sharebox import NATIVE, PREEMPTIVE, WEIGHTED, near, put, shares, stat
from slicebox import MIB, Box, child, command, nvclient, until

PM_TEST, STATE = Path("/sys/power/pm_test"), Path("/sys/power/state")
DELAY = Path("/sys/module/suspend/parameters/pm_test_delay")
SUSPEND = Path("/proc/driver/nvidia/suspend")
#: The delay is a loop of the kernel's, which an emulated processor runs faster, by how much depends on other load.
DELAY_S = 4
ASLEEP_S = 1
KERNEL_NS = 20_000_000
WORKS = 8


@pytest.fixture
def suspend() -> Iterator[None]:
    """Falls asleep up to where processes are frozen, and wakes; again with twice the delay, if it was too short."""
    before = DELAY.read_text()
    DELAY.write_text(str(DELAY_S))
    PM_TEST.write_text("freezer")

    def fall_asleep() -> None:
        for _ in range(8):
            begin = time.monotonic()
            STATE.write_text("freeze")
            if time.monotonic() - begin >= ASLEEP_S:
                return
            DELAY.write_text(str(2 * int(DELAY.read_text())))
        pytest.fail(f"a delay of {DELAY.read_text()} s is still too short")

    yield fall_asleep
    PM_TEST.write_text("none")
    DELAY.write_text(before)


def expect_frozen_again(box: Box, channel: nvclient.Channel) -> None:
    """Work that comes after the sleep waits, and is done when the container has weight."""
    until(lambda: not box.stat("running"), 10)
    channel.submit(KERNEL_NS, count=WORKS)
    time.sleep(1)
    assert channel.reap() == WORKS, "frozen again"
    (box.proc / "weight").write_text("1")
    channel.wait()


def calls_per_s(during: Callable[[], object]) -> float:
    calls, begin = stat("control_calls"), time.monotonic()
    during()
    return (stat("control_calls") - calls) / (time.monotonic() - begin)


@pytest.mark.checked
@pytest.mark.parametrize("policy", [PREEMPTIVE, WEIGHTED])
def test_a_frozen_container_is_thawed_for_the_sleep(suspend, policy):
    with Box("a" * 64) as box, Box("b" * 64), box.client() as client:
        channel = client.gpu(0).space().group().channel()
        put("policy", policy)
        try:
            (box.proc / "weight").write_text("0")
            time.sleep(0.2)
            channel.submit(KERNEL_NS, count=WORKS)
            time.sleep(1)
            assert channel.reap() == 0, "frozen"
            suspend()
            assert channel.reap() == WORKS, "they ran while every process was frozen"
            expect_frozen_again(box, channel)
        finally:
            put("policy", NATIVE)


@pytest.mark.icount
def test_shares_are_as_before_after_a_sleep(suspend, tenants):
    a, b = tenants().start(), tenants(weight=2).start()
    put("policy", WEIGHTED)
    for _ in range(2):
        assert shares(a, b) == near(100 / 3, 200 / 3)
        suspend()
    assert shares(a, b) == near(100 / 3, 200 / 3)


def test_no_control_call_while_the_system_sleeps(suspend, tenants):
    [tenants(weight=weight).start() for weight in (1, 2)]
    put("policy", WEIGHTED)
    time.sleep(1)
    awake = calls_per_s(lambda: time.sleep(2))
    asleep = calls_per_s(suspend)
    print(f"control calls per second: {awake:.0f} awake, {asleep:.0f} asleep and on the way to it")
    assert asleep < awake / 3


def test_a_container_may_come_and_go_between_two_sleeps(suspend):
    suspend()
    with Box("a" * 64) as box, box.client() as client:
        channel = client.gpu(0).space().group().channel()
        suspend()
        channel.submit(KERNEL_NS)
        channel.wait()
    suspend()


def asleep_calls() -> int:
    """Of kernel clients while the driver sleeps, by the simulated driver's own count."""
    text = Path("/proc/driver/nvsim/0/state").read_text()
    return int(dict(line.split("=", 1) for line in text.splitlines() if " " not in line)["asleep_calls"])


@pytest.mark.checked
@pytest.mark.parametrize("word", ["suspend", "hibernate"])
def test_containers_are_thawed_before_the_drivers_own_suspend(word):
    """As NVIDIA's units for systemd make it, before the system sleeps."""
    with Box("a" * 64) as box, Box("b" * 64) as other, box.client() as client, other.client() as busy:
        channel, load = (each.gpu(0).space().group().channel() for each in (client, busy))
        put("policy", WEIGHTED)
        try:
            (box.proc / "weight").write_text("0")
            time.sleep(0.2)
            channel.submit(KERNEL_NS, count=WORKS)
            load.submit(KERNEL_NS, count=50)
            time.sleep(0.5)
            assert channel.reap() == 0, "frozen"
            before = asleep_calls()
            SUSPEND.write_text(word)
            with pytest.raises(OSError):
                SUSPEND.write_text("hibernate" if word == "suspend" else "suspend")
            until(lambda: channel.reap() == WORKS and load.reap() == 50, 10)
            with pytest.raises(OSError) as refused:
                Box("c" * 64)
            assert refused.value.errno == errno.EBUSY
            (box.proc / "weight").write_text("1")
            (box.proc / "weight").write_text("0")
            assert stat("driver_used_bytes") == 0
            time.sleep(0.5)
            assert asleep_calls() == before
            SUSPEND.write_text("resume")
            with Box("c" * 64):
                expect_frozen_again(box, channel)
        finally:
            SUSPEND.write_text("resume")
            put("policy", NATIVE)


@pytest.mark.checked
@pytest.mark.parametrize("last", [False, True], ids=["one-of-two", "the-last"])
def test_a_container_ends_when_the_driver_is_awake(last: bool):
    """Its mappings keep clients, which are freed in the driver, and the last container detaches from it: later."""
    with contextlib.ExitStack() as there:
        if not last:
            there.enter_context(Box("b" * 64))
        box = Box("a" * 64)
        rm = there.enter_context(box.client())
        gpu = rm.gpu(0)
        gpu.map_cpu(gpu.alloc_vidmem(2 * MIB)[1], 2 * MIB)
        before = asleep_calls()
        SUSPEND.write_text("suspend")
        try:
            command(f"destroy {box.name}")
            time.sleep(0.5)
            assert box.there()
            assert asleep_calls() == before
        finally:
            SUSPEND.write_text("resume")
        until(lambda: not box.there(), 10)
        assert asleep_calls() == before


@pytest.mark.checked
def test_a_process_closes_its_files_while_a_containers_end_waits_for_the_card():
    """Or it would wait where it cannot be frozen, and the system would not fall asleep."""

    def close() -> None:
        mapping = mapped()
        os.write(ready, b"m")
        os.read(go, 1)
        mapping.close()
        os.write(ready, b"c")

    def mapped() -> mmap.mmap:
        """All that is left of a client is this mapping, which keeps its file."""
        rm = box.client()
        gpu = rm.gpu(0)
        node = gpu.open_node()
        node.register(rm.ctl)
        assert rm.map_memory(node, gpu.device, gpu.alloc_vidmem(2 * MIB)[1], 2 * MIB)[0] == 0
        mapping = mmap.mmap(node.fd, 2 * MIB)
        for file in (node, gpu.node, rm.ctl):
            file.close()
        return mapping

    wait, ready = os.pipe()
    go, say = os.pipe()
    box = Box("a" * 64)
    with Box("b" * 64), mapped(), child(close):
        assert os.read(wait, 1) == b"m"
        SUSPEND.write_text("suspend")
        try:
            command(f"destroy {box.name}")
            time.sleep(0.5)
            assert box.there()
            os.write(say, b"g")
            assert select.select([wait], [], [], 5)[0], "it waits"
        finally:
            SUSPEND.write_text("resume")
        until(lambda: not box.there(), 10)


def test_the_system_and_the_driver_sleep_one_within_the_other(suspend):
    with Box("a" * 64) as box, box.client() as client:
        channel = client.gpu(0).space().group().channel()
        put("policy", WEIGHTED)
        try:
            (box.proc / "weight").write_text("0")
            time.sleep(0.2)
            before = asleep_calls()
            SUSPEND.write_text("suspend")
            suspend()
            assert box.stat("running"), "the driver sleeps still"
            assert asleep_calls() == before
            SUSPEND.write_text("resume")
            until(lambda: not box.stat("running"), 10)
            (box.proc / "weight").write_text("1")
            channel.submit(KERNEL_NS)
            channel.wait()
        finally:
            SUSPEND.write_text("resume")
            put("policy", NATIVE)
