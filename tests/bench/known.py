# SPDX-License-Identifier: MIT
"""Bars of bench-sched that are missed, and why no scheduler with these controls can hold them (docs/develop/bench.md).

REASONS has the causes. A row excused by slow calls has to hold the same bar in the same run on a driver without slow
calls, and to miss it by no more than they cost. Rows excused by another cause are listed one by one, each with the
worst figure allowed. A figure of EXCHANGE that meets its bar on every card is an error too; whether one of the other
lists does depends on the seeds.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import cache
from typing import Any

from scenarios import PERSONALITIES, SCENARIOS, Scenario
from sched_sim import OURS, Cell, measure, worst_of

from cgpu_cli.sim.model import Container, profile

Row = dict[str, Any]
REASONS = {
    "slow call": "a call of tail_us acts in its middle: what runs has that much too much, and the bar allows less",
    "exchange": "thawed before the other is frozen, two short queues take the GPU from one another in between",
    "full house": "25 of 25: what is carried and not seen is a larger part of so little, and slow calls come on top",
    "several calls": "all others run while high priority sleeps; it waits for a timeslice of each or for the calls",
    "one processor": "no doorbell rings while the sched thread has the machine's only processor: exchanges and that",
}
SHORT_QUEUE = "1:2 short queue"
LEAST = {"aggregate_pct"}  # figures whose limit is the least allowed; of all others it is the most
# (scenario, policy, slice_us, figure) -> the worst allowed on each card, a bit beyond the worst of ten seeds
EXCHANGE = {
    (SHORT_QUEUE, 1, 5000, "aggregate_pct"): {"a100": 95.2, "h200": 96.9},
    (SHORT_QUEUE, 1, 10_000, "aggregate_pct"): {"a100": 97.4, "h200": 98.3},
    (SHORT_QUEUE, 2, 5000, "aggregate_pct"): {"a100": 96.6, "h200": 97.8},
    (SHORT_QUEUE, 2, 10_000, "aggregate_pct"): {"a100": 98.2, "h200": 98.8},
    (SHORT_QUEUE, 2, 5000, "ratio_error_pct"): {"a100": 1.75, "h200": 1.1},
    (SHORT_QUEUE, 2, 5000, "share_error_1s_pp"): {"a100": 1.2, "h200": 0.85},
}
# With 25 equal slots a turn is a fortieth of what a slot has in 5 s: what is carried into and out of the 10 s, and what
# is not seen of 160 calls, is 1.2 % (docs/develop/scheduler.md), and a cap in a full house 1 point.
FULL_HOUSE = {
    ("25 equal", 2, 5000, "ratio_error_pct"): 2.5,
    ("25 equal", 3, 10_000, "cap_excess_pp"): 1.15,
}
# Under policy 4 the others run together while high priority sleeps, at timeslices of 0.5 ms. Shorter ones cost a third
# of the GPU; each of the others is one call to freeze, and any of them may be slow.
SEVERAL_CALLS = {("high priority", 4, "takeover_us"): 2600.0}
# The machine's cell of that scenario, on this card, by this policy and slice: a figure, and from where to where it may
# be; runs differ.
ONE_PROCESSOR_CELL = (SHORT_QUEUE, "a100", 2, 10_000)
ONE_PROCESSOR = {"ratio_error_pct": (0.0, 3.0), "share_error_1s_pp": (0.0, 1.3), "aggregate_pct": (92.0, 100.0)}
SECONDS = 10  # the window of ratios


def tail_costs(row: Row, name: str, containers: Sequence[Container]) -> float | None:
    """How far beyond the bar slow calls can put a figure; None: not at all."""
    tail_us = profile(row["profile"]).tail_us
    if name in ("share_error_1s_pp", "cap_excess_pp"):
        return 100 * tail_us / 1e6  # one in the window, beyond what its turns bring
    if name == "ratio_error_pct":
        weights = [one.weight for one in containers]
        part = 1 / len(weights) if row["policy"] in (0, 1) else min(weights) / sum(weights)
        carried = 100 * 2 * tail_us / 1e6 / SECONDS / part  # one in, one out
        return carried + (unseen(row) if any(one.processes > 1 for one in containers) else 0)
    return None


def unseen(row: Row) -> float:
    """The process that ran during a slow call is unknown: half a timeslice, at either end of a turn."""
    card = profile(row["profile"])
    return 2 * card.tail_pct * card.timeslice_us / 2 / row["slice_us"]


@cache
def without_slow_calls(trace: Scenario, card: str, policy: int, slice_us: int, seeds: int) -> Row:
    cell = Cell(trace, card, OURS, policy, slice_us)
    own = replace(PERSONALITIES["default"], tail_pct=0.0)
    return worst_of([measure(cell, seed + 1, own=own).row for seed in range(seeds)])


def excuse(row: Row, name: str, seeds: int) -> str | None:
    """Why this row may miss the bar of this figure; None: it may not."""
    value = row.get(name)
    if not isinstance(value, float | int):
        return None  # nothing was measured
    if row["where"] == "vm":
        cell = (row["scenario"], row["profile"], row["policy"], row["slice_us"])
        least, most = ONE_PROCESSOR.get(name, (0.0, 0.0))
        return "one processor" if cell == ONE_PROCESSOR_CELL and least <= value <= most else None
    if row["where"] != "sim" or row["personality"] != "default":
        return None
    if value <= SEVERAL_CALLS.get((row["scenario"], row["policy"], name), -1.0):
        return "several calls"
    if row.get("default_slice"):
        return None
    listed = (row["scenario"], row["policy"], row["slice_us"], name)
    limit = EXCHANGE.get(listed, {}).get(row["profile"])
    if limit is not None and (value >= limit if name in LEAST else value <= limit):
        return "exchange"
    if value <= FULL_HOUSE.get(listed, -1.0):
        return "full house"
    return "slow call" if by_slow_calls(row, name, value, seeds) else None


def by_slow_calls(row: Row, name: str, value: float, seeds: int) -> bool:
    """Slow calls can put the figure there, and without them the cell meets the bar."""
    from sched import bars_missed

    trace = next(one for one in SCENARIOS if (one.name, one.personality) == (row["scenario"], "default"))
    most = tail_costs(row, name, trace.containers)
    limit = bars_missed(row).get(name)
    if most is None or limit is None or value > limit + most:
        return False
    clean = without_slow_calls(trace, row["profile"], row["policy"], row["slice_us"], seeds)
    return not {name, "refused"} & bars_missed(clean).keys()


def stale(rows: Sequence[Row]) -> list[str]:
    """Figures of EXCHANGE that meet their bar on every card."""
    from sched import bars_missed

    seen = {
        (row["scenario"], row["policy"], row["slice_us"], name)
        for row in rows
        if row["where"] == "sim"
        for name in bars_missed(row)
    }
    return [f"listed as missed, but it is not any more: {one}" for one in sorted(EXCHANGE.keys() - seen)]
