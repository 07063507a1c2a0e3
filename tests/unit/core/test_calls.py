# SPDX-License-Identifier: MIT OR GPL-2.0-only
"""Containers with more than 256 channels: their hand-overs take many calls, and they pay for these. Simulated."""

from functools import cache

import pytest
from corelib import BURST, FAIR, FREEZE, MS, PREEMPTIVE, WEIGHTED, Turn
from simgpu import Control, Listed

STEADY = Control(p50_us=300, sigma=0, tail=0, wake_us=0, middle=True)
FREE = 256
MOST = 1792  # ids of channels that containers may have
SECONDS = 5


def made(policy, channels, weights=(), slice_ms=5):
    """Slots in which all always work, after 1 s."""
    turn = Turn(policy, slice_ms=slice_ms, controls=FREEZE, max_inst=25)
    ids = []
    for count, weight in zip(channels, weights or [1] * len(channels), strict=True):
        ids.append(turn.add(weight, channels=1))
        turn.channels(ids[-1], count, 1)
    sim = Listed(turn, STEADY)
    sim.run(1000)
    sim.got.clear()
    sim.calls_ns.clear()
    return sim, ids


def parts(sim, ids):
    """Of the GPU, and of the thread's time, in percent for each."""
    sim.run(SECONDS * 1000)
    return [[of.get(i, 0) / SECONDS / 1e7 for i in ids] for of in (sim.got, sim.calls_ns)]


@pytest.mark.parametrize("channels", [64, 128, FREE])
@pytest.mark.parametrize("slice_ms", [5, 8])
def test_up_to_256_channels_cost_what_their_calls_take(channels, slice_ms):
    sim, ids = made(PREEMPTIVE, [channels, 1], slice_ms=slice_ms)
    (crowd, other), _ = parts(sim, ids)
    assert crowd / other == pytest.approx(1, abs=0.01)


@cache
def beside_free(policy):
    """The other one's part of the GPU, and the calls, beside as many channels as are free."""
    sim, ids = made(policy, [FREE, 1])
    (_, part), (most, _) = parts(sim, ids)
    return part, most


@pytest.mark.parametrize("policy", [PREEMPTIVE, WEIGHTED, BURST])
@pytest.mark.parametrize("channels", [FREE + 1, 900, MOST])
def test_more_take_no_more_of_the_thread_than_256(policy, channels):
    """Whatever the number, and the other container has its part at least: 49 % beside 256."""
    part, most = beside_free(policy)
    sim, ids = made(policy, [channels, 1])
    (crowd, other), (calls, _) = parts(sim, ids)
    assert calls <= 1.1 * most, (calls, most)
    assert other >= part
    assert crowd > 5, "it has turns"


@pytest.mark.parametrize("crowds", [2, 4, 7])
def test_several_share_the_ids_of_a_card(crowds):
    """Those with few channels have their part; the thread is in calls for less than half the time."""
    sim, ids = made(PREEMPTIVE, [MOST // crowds] * crowds + [1])
    got, calls = parts(sim, ids)
    assert got[-1] >= 96 / (crowds + 1)
    assert sum(calls) <= 50


def test_the_others_part_is_by_weight():
    sim, ids = made(WEIGHTED, [900, 1, 1], [2, 1, 3])
    (_, one, three), _ = parts(sim, ids)
    assert three / one == pytest.approx(3, rel=0.03)
    assert one >= 100 / 6


def test_in_a_fixed_round_it_loses_turns_and_no_other_does():
    sim, ids = made(FAIR, [900, 1])
    (crowd, other), (calls, _) = parts(sim, ids)
    assert other == pytest.approx(100 / 25, abs=0.4)
    assert crowd < other and calls <= 1.5


def test_one_slow_call_is_not_the_price():
    """A turn is charged by what calls usually take: eight times eleven of 0.3 ms, not of 300."""
    sim, ids = made(PREEMPTIVE, [900, 1])
    turn, crowd = sim.turn, ids[0]
    while not (plan := turn.next()).freeze_mask >> crowd & 1:
        if plan.freeze_mask | plan.thaw_mask:
            turn.ack(plan)
        else:
            turn.now = plan.until_ns
    before = turn.t.slot[crowd].deficit_ns
    turn.ack(plan, frozen=turn.now + 300 * MS, thawed=turn.now + 301 * MS)
    assert before - turn.t.slot[crowd].deficit_ns < 330 * MS


@pytest.mark.parametrize("policy", [PREEMPTIVE, WEIGHTED, BURST])
def test_alone_it_pays_nothing(policy):
    sim, ids = made(policy, [900])
    (got,), _ = parts(sim, ids)
    assert got == pytest.approx(100)
    assert sim.turn.t.slot[ids[0]].deficit_ns == 0
