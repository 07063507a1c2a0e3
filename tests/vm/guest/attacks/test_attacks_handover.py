# SPDX-License-Identifier: MIT
"""Hostile tenants that make a hand-over from one container to the next long, in exact time."""

from __future__ import annotations

import os
import time
from collections.abc import Callable

import pytest
from sharebox import NATIVE, PREEMPTIVE, SOFT, WEIGHTED, Tenant, look, put, stat
from slicebox import Box
from slicebox import nvclient as nv

pytestmark = pytest.mark.icount

SECONDS = 4.8
GROUPS, EACH = 9, 100
MORE, LARGE_MIB = 20, 8192


def idle_channels(client: nv.Client, groups: int = GROUPS, each: int = EACH) -> list[nv.Group]:
    """Groups with channels that never have work, enabled."""
    gpu = client.gpu(0)
    space = gpu.space()
    made = []
    for _ in range(groups):
        group = space.group()
        first = group.channel()
        for _ in range(each - 1):
            assert gpu.rm.alloc(group.gpfifo_class, group.tsg, first.params())[0] == 0
        assert group.enable() == 0
        made.append(group)
    return made


def measured(victim: Tenant) -> tuple[int, int, int, int]:
    """Works of `victim`, calls of the driver, hand-overs and processor time in us of the scheduler's thread."""
    names = ("control_calls", "turns")
    time.sleep(0.5)
    begin, first = look(), [stat(name) for name in names] + [stat("thread_cpu_ns") // 1000]
    time.sleep(SECONDS)
    end, last = look(), [stat(name) for name in names] + [stat("thread_cpu_ns") // 1000]
    return victim.spent(begin, end)[1], *(b - a for a, b in zip(first, last, strict=True))


def beside_one(victim: Tenant, box: Box, policy: int) -> tuple[int, int, int, int]:
    """What is measured beside a container with one idle channel."""
    with box.client() as client:
        idle_channels(client, 1, 1)
        put("policy", policy)
        return measured(victim)


@pytest.mark.parametrize("policy", [PREEMPTIVE, WEIGHTED])
def test_a_neighbour_beside_900_idle_channels(tenants: Callable[..., Tenant], policy: int):
    victim, one = tenants(), tenants()
    victim.start()
    alone = beside_one(victim, one.box, policy)
    with one.box.client() as client:
        idle_channels(client)
        assert one.box.stat("channels") == GROUPS * EACH
        beside = measured(victim)
    figures = ("works", "calls", "hand-overs", "us of the thread")
    for name, few, many in zip(figures, alone, beside, strict=True):
        print(f"{name}: {few} beside one channel, {many} beside 900")
    assert beside[0] >= 0.95 * alone[0], (alone, beside)
    assert beside[1] / beside[2] <= 2 * alone[1] / alone[2], (alone, beside)
    assert beside[3] <= 3 * alone[3], (alone, beside)  # by ticks of 10 ms


KERNEL_NS = 1_000_000


def test_work_of_many_channels_is_done(tenants: Callable[..., Tenant]):
    """A turn thaws a part of them; each has its turn, and none runs before."""
    victim, one = tenants(), tenants()
    victim.start()
    put("policy", WEIGHTED)
    with one.box.client() as client:
        space = client.gpu(0).space()
        groups = [space.group() for _ in range(20)]
        channels = [group.channel() for _ in range(10) for group in groups]
        for busy in (channels, channels[-3:], channels[::7]):
            for channel in busy:
                channel.submit(kernel_ns=KERNEL_NS)
            for channel in busy:
                channel.wait(60)
        one.write("weight", 0)
        time.sleep(0.2)
        before = gpu_time()
        for channel in channels:
            channel.submit(kernel_ns=KERNEL_NS)
        for group in groups[::3]:
            assert group.enable() == 0
        time.sleep(0.5)
        assert gpu_time() == before
        late = groups[0].channel()
        late.submit(kernel_ns=KERNEL_NS)
        time.sleep(0.3)
        assert gpu_time() == before
        one.write("weight", 1)
        for channel in [*channels, late]:
            channel.wait(60)
        assert gpu_time() - before >= (len(channels) + 1) * KERNEL_NS


def gpu_time() -> int:
    """Of this process, in ns."""
    return look()[1].get(os.getpid(), (0, 0))[0]


def test_many_channels_all_run_when_nothing_is_handed_over(tenants: Callable[..., Tenant]):
    """After its turns beside another a container that is alone, or under the driver's own policy, has all of them."""
    victim, one = tenants(), tenants()
    victim.start()
    put("policy", WEIGHTED)
    with one.box.client() as client:
        idle_channels(client)
        time.sleep(0.5)
        put("policy", NATIVE)
        time.sleep(1)
        before = stat("control_calls")
        time.sleep(1)
        assert stat("control_calls") == before, "all of them are thawed by now"
        space = client.gpu(0).space()
        channel = space.group().channel()
        channel.submit(kernel_ns=KERNEL_NS)
        channel.wait()


def test_timeslices_of_many_groups_are_set_once(tenants: Callable[..., Tenant]):
    """Each group that comes has one call, not all of them again."""
    tenants().start()
    put("policy", SOFT)
    with Box("e" * 64, LARGE_MIB) as box, box.client() as client:
        idle_channels(client, 100, 1)
        time.sleep(0.3)
        before = stat("control_calls")
        idle_channels(client, MORE, 1)
        time.sleep(0.3)
        calls = stat("control_calls") - before
    # For each the enable, two TSGs of whom one is the victim's, and the restarts.
    assert calls <= 8 * MORE, calls
