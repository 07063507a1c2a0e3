# SPDX-License-Identifier: MIT OR GPL-2.0
"""Shares of work with gaps: trainings that wait for their steps, small requests, neighbours that wake. Simulated."""

from __future__ import annotations

import pytest
from corelib import BURST, MS, WEIGHTED, Turn, lib
from demandgpu import Load, every
from test_run_state import BOTH, gpu
from test_run_state import DemandGpu as Sim


class Steps(Load):
    """Steps of @step_ms; the next one comes @gap_ms after the end of the last."""

    def __init__(self, step_ms: float, gap_ms: float) -> None:
        super().__init__(arrivals=[(0, int(step_ms * MS))])
        self.step_ns, self.gap_ns = int(step_ms * MS), int(gap_ms * MS)

    def run(self, now: int, ns: int) -> None:
        super().run(now, ns)
        if not self.queue and self._due is None:
            self._due = (now + ns + self.gap_ns, self.step_ns)


def percent(*loads: Load, weights: list[int], **more: object) -> Sim:
    """Policy 6 with weights in percent."""
    turn = Turn(BURST, slice_ms=9, controls=BOTH, switch_us=70)
    turn.set("max_inst", 100)
    ids = [turn.add(weight, channels=1) for weight in weights]
    return Sim(turn, dict(zip(ids, loads, strict=True)), **more)


@pytest.mark.parametrize(("step_ms", "gap_ms"), [(19, 4.5), (100, 10), (40, 2.2)])
def test_trainings_with_gaps_get_their_weights(step_ms, gap_ms):
    """The one of weight 90 has nearly what it can use, and the GPU is used as before."""
    sim = percent(Steps(step_ms, gap_ms), Steps(step_ms, gap_ms), weights=[10, 90]).run(2500)
    demand = step_ms / (step_ms + gap_ms)
    assert sim.share(1) >= 0.9 * min(0.9, demand)
    assert sim.share(0) + sim.share(1) > 0.9
    assert sim.share(0) > 0.05


@pytest.mark.parametrize(("step_ms", "gap_ms"), [(19, 2.2), (50, 10)])
def test_one_to_two_with_gaps(step_ms, gap_ms):
    sim = gpu(WEIGHTED, Steps(step_ms, gap_ms), Steps(step_ms, gap_ms), weights=[1, 2], slice_ms=9).run(2500)
    assert sim.share(1) >= 0.9 * min(2 / 3, step_ms / (step_ms + gap_ms))
    assert sim.share(0) >= 0.9 / 3


def test_two_processes_gain_nothing():
    sim = percent(Steps(19, 4.5), Steps(19, 4.5), weights=[10, 90])
    lib.cgpu_sched_set_channels(sim.turn.t, 0, 2, 2, sim.turn.now)
    sim.run(2500)
    assert sim.share(1) >= 0.9 * 19 / 23.5


def test_a_service_waits_no_longer_beside_a_training_with_gaps():
    """Of equal weight: as beside one that always works."""
    others = (Load(), Steps(19, 4.5))
    tail = [gpu(WEIGHTED, Load(every(50, 5)), other, slice_ms=9).run(6000).p99_us(0) for other in others]
    assert tail[1] < 1.1 * tail[0]


@pytest.mark.parametrize("count", [1, 3, 5])
def test_neighbours_that_wake_often_leave_a_part_alone(count):
    """Weight 50 and always working, beside neighbours of 1 ms in 7 with the other 50."""
    small = [Load(every(7, 1, 1.3 * i)) for i in range(count)]
    sim = percent(Load(), *small, weights=[50, *[50 // count] * count]).run(2000)
    before, least = 0, 1.0
    for _ in range(4):
        before = sim.loads[0].got_ns
        sim.run(1000)
        least = min(least, (sim.loads[0].got_ns - before) / (1000 * MS))
    assert sim.share(0) > 0.495
    assert least > 0.47


def test_what_a_third_one_leaves_is_divided_by_weight():
    """Both have more than their part of all, since the third one idles."""
    sim = percent(Steps(19, 4.5), Steps(19, 4.5), Load([]), weights=[10, 40, 50]).run(2500)
    assert sim.share(1) >= 0.9 * min(0.8, 19 / 23.5)


def test_a_long_sleep_is_no_claim_to_more_than_04_s():
    """The one that slept 10 s has the GPU to itself for less than it had not of 0.4 s; then the parts hold."""
    sim = gpu(WEIGHTED, Steps(9, 1), Load(every(1e9, 60_000, 10_000)), slice_ms=9).run(10_000)
    before = sim.loads[0].got_ns
    sim.run(2000)
    assert (sim.loads[0].got_ns - before) / (2000 * MS) > 0.35

