# SPDX-License-Identifier: MIT
"""Hostile tenants that make a hand-over from one container to the next long, in exact time."""

from __future__ import annotations

import time
from collections.abc import Callable

import pytest
from sharebox import SOFT, WEIGHTED, Tenant, look, put, stat
from slicebox import Box
from slicebox import nvclient as nv

pytestmark = pytest.mark.icount

SECONDS = 4.8
TICK_US = 10_000  # of the thread's time, as the kernel counts it
GROUPS, EACH = 9, 100
CROWD, MORE, LARGE_MIB = 100, 20, 8192


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


def beside_one(victim: Tenant, box: Box) -> tuple[int, int, int, int]:
    """What is measured beside a container with one idle channel."""
    with box.client() as client:
        idle_channels(client, 1, 1)
        put("policy", WEIGHTED)
        return measured(victim)


def test_a_neighbour_beside_900_idle_channels(tenants: Callable[..., Tenant]):
    """Their calls are paid for by turns of the container that has them: the thread is in them a fourth of the time."""
    victim, one = tenants(), tenants()
    victim.start()
    alone = beside_one(victim, one.box)
    with one.box.client() as client:
        idle_channels(client)
        assert one.box.stat("channels") == GROUPS * EACH
        beside = measured(victim)
    figures = ("works", "calls", "hand-overs", "us of the thread")
    for name, few, many in zip(figures, alone, beside, strict=True):
        print(f"{name}: {few} beside one channel, {many} beside 900")
    assert beside[0] >= alone[0], (alone, beside)
    assert beside[3] <= alone[3] + SECONDS * 1e6 / 4 + TICK_US, (alone, beside)


def test_timeslices_of_many_groups_are_set_once(tenants: Callable[..., Tenant]):
    """Each group that comes has one call, not all of them again."""
    tenants().start()
    put("policy", SOFT)
    with Box("e" * 64, LARGE_MIB) as box, box.client() as client:
        before = stat("control_calls")
        idle_channels(client, CROWD, 1)
        time.sleep(0.5)
        first = stat("control_calls") - before
        idle_channels(client, MORE, 1)
        time.sleep(0.5)
        more = stat("control_calls") - before - first
    print(f"calls: {first} for {CROWD} groups, {more} for {MORE} more")
    # Once each has the shortest timeslice, a new group takes its own call, the victim's, and restarts.
    assert first >= CROWD and more <= 8 * MORE, (first, more)
