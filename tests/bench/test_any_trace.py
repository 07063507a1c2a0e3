# SPDX-License-Identifier: MIT
"""The bars of make bench-sched on random traces: kernels, depths, processes, weights and order by chance.

Queues never run empty, so the shares are the scheduler's alone; docs/develop/bench.md has the cost of short queues.
"""

from __future__ import annotations

import random
import sched
from dataclasses import replace

import known
import pytest
from scenarios import Scenario
from sched_sim import OURS, Cell, measure

from cgpu_cli.sim.model import Container, Personality

MAX_INST = 20
STEADY = Personality(tail_pct=0)


def any_trace(seed: int) -> Cell:
    """One cell by chance."""
    rng = random.Random(seed)
    containers: list[Container] = []
    for number in range(rng.randint(2, 8)):
        left = MAX_INST - sum(one.weight for one in containers)
        if not left:
            break
        kernel_us = round(50 * 400 ** rng.random())  # 50 us to 20 ms
        one = Container(
            f"c{number}",
            weight=rng.randint(1, min(left, 6)),
            kernel_us=kernel_us,
            spread_us=rng.choice([0, kernel_us / 3]),
            depth=rng.choice([2, 4, 32, 150]),
            processes=rng.choice([1, 1, 1, 2, 3, 10, 40]),
        )
        containers.append(one)
    trace = Scenario(f"trace {seed}", tuple(containers))
    return Cell(trace, rng.choice(sched.CARDS), OURS, rng.choice([1, 2, 3]), rng.choice([5000, 10_000]))


@pytest.mark.parametrize("seed", range(30))
def test_any_trace_holds_the_bars(seed: int) -> None:
    """All of them where no call is slow."""
    cell = any_trace(seed)
    row = measure(cell, seed, own=STEADY).row
    assert sched.missed(row) == [], cell


@pytest.mark.parametrize("seed", range(30, 50))
def test_slow_calls_cost_what_they_must(seed: int) -> None:
    """3 calls in 100 take 5.2 ms: beyond the bars by no more than one of them in a second, two in 10 s."""
    cell = any_trace(seed)
    row = measure(cell, seed).row
    for name, limit in sched.bars_missed(row).items():
        most = known.tail_costs(row, name, cell.scenario.containers)
        assert most is not None, (name, cell)
        assert row[name] <= limit + most, (name, cell)


def test_the_test_can_fail() -> None:
    """A scheduler without credit misses the bars on the same traces."""
    cells = [replace(any_trace(seed), rule="freeze-no-deficit", policy=None, slice_us=5000) for seed in range(3)]
    for cell in cells:
        assert measure(cell, 1, own=STEADY).row["ratio_error_pct"] > sched.BAR_RATIO_PCT
