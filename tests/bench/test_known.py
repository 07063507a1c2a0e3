# SPDX-License-Identifier: MIT
"""The excuses of make bench-sched: each kind inside and outside its limit."""

from __future__ import annotations

import math
import sched
from typing import Any

import known
import pytest
from known import EXCHANGE, SHORT_QUEUE, excuse, stale

ROW = {
    "where": "sim", "rule": "ours", "profile": "a100", "personality": "default", "scenario": "1:2", "policy": 2,
    "slice_us": 5000, "default_slice": False, "ratio_error_pct": 0.5, "share_error_1s_pp": 0.4,
    "share_bound_1s_pp": 0.53, "aggregate_pct": 99.0, "cap_excess_pp": 0.3, "takeover_us": None,
}  # fmt: skip


def row(name: str, value: float | None, **cell: Any) -> dict[str, Any]:
    return ROW | cell | {name: value}


def beyond(name: str, value: float) -> float:
    return value - 0.1 if name in known.LEAST else value + 0.1


EXCHANGES = [(listed, card, limit) for listed, cards in EXCHANGE.items() for card, limit in cards.items()]


@pytest.mark.parametrize(("listed", "card", "limit"), EXCHANGES, ids=str)
def test_an_exchange_has_a_limit(listed: tuple[str, int, int, str], card: str, limit: float) -> None:
    scenario, policy, slice_us, name = listed
    cell = {"scenario": scenario, "profile": card, "policy": policy, "slice_us": slice_us}
    at_limit = row(name, limit, **cell)
    assert name in sched.bars_missed(at_limit), "the limit is beyond the bar"
    assert excuse(at_limit, name, 1) == "exchange"
    assert excuse(row(name, beyond(name, limit), **cell), name, 1) != "exchange"
    far = 50.0 if name in known.LEAST else 90.0
    assert excuse(row(name, far, **cell), name, 1) is None
    for other in ({"scenario": "1:2"}, {"profile": "t4"}, {"slice_us": 20_000}, {"default_slice": True}):
        assert excuse(row(name, limit, **cell | other), name, 1) != "exchange"


@pytest.mark.parametrize(
    ("kind", "name", "cell", "limit"),
    [
        ("full house", "ratio_error_pct", {"scenario": "25 equal"}, 2.5),
        ("full house", "cap_excess_pp", {"scenario": "25 equal", "policy": 3, "slice_us": 10_000}, 1.15),
        ("several calls", "takeover_us", {"scenario": "high priority", "policy": 4}, 2600.0),
        ("one processor", "ratio_error_pct", {"where": "vm", "scenario": SHORT_QUEUE, "slice_us": 10_000}, 3.0),
        ("one processor", "share_error_1s_pp", {"where": "vm", "scenario": SHORT_QUEUE, "slice_us": 10_000}, 1.3),
    ],
)
def test_each_list_has_its_limit(kind: str, name: str, cell: dict[str, Any], limit: float) -> None:
    assert excuse(row(name, limit, **cell), name, 1) == kind
    for value in (100 * limit, math.inf, None):
        assert excuse(row(name, value, **cell), name, 1) is None
    assert excuse(row(name, limit, **cell | {"personality": "no preemption", "scenario": "1:2"}), name, 1) is None


def test_one_processor_is_one_cell() -> None:
    cell = {"where": "vm", "scenario": SHORT_QUEUE, "slice_us": 10_000}
    assert excuse(row("aggregate_pct", 92.0, **cell), "aggregate_pct", 1) == "one processor"
    assert excuse(row("aggregate_pct", 91.9, **cell), "aggregate_pct", 1) is None
    for other in ({"profile": "h200"}, {"policy": 1}, {"slice_us": 5000}, {"scenario": "1:2"}):
        assert excuse(row("aggregate_pct", 92.0, **cell | other), "aggregate_pct", 1) is None


def test_a_slow_call_costs_so_much_and_no_more(monkeypatch: pytest.MonkeyPatch) -> None:
    """And only where the same cell meets the bar without one."""
    clean = dict(ROW)
    monkeypatch.setattr(known, "without_slow_calls", lambda *_cell: clean)
    most = sched.BAR_RATIO_PCT + (known.tail_costs(ROW, "ratio_error_pct", sched.SCENARIOS[1].containers) or 0.0)
    assert excuse(row("ratio_error_pct", most), "ratio_error_pct", 1) == "slow call"
    assert excuse(row("ratio_error_pct", most + 0.01), "ratio_error_pct", 1) is None
    assert excuse(row("aggregate_pct", 97.0), "aggregate_pct", 1) is None, "no slow call costs that"
    for instead in ({"ratio_error_pct": 1.01}, {"ratio_error_pct": None}, {"refused": "no control"}):
        clean = ROW | instead
        assert excuse(row("ratio_error_pct", most), "ratio_error_pct", 1) is None


@pytest.mark.parametrize("where", ["sim", "vm"])
def test_no_figure_has_no_excuse(where: str) -> None:
    for name in ("ratio_error_pct", "takeover_us", "aggregate_pct"):
        assert excuse(row(name, None, where=where), name, 1) is None
        gone = {key: value for key, value in (ROW | {"where": where}).items() if key != name}
        assert excuse(gone, name, 1) is None
    assert excuse(ROW | {"refused": "no control"}, "refused", 1) is None


def test_a_listed_exchange_that_meets_its_bar_is_stale() -> None:
    """On every card: one that misses is enough."""
    rows = [
        row(name, cards["a100"], scenario=scenario, policy=policy, slice_us=slice_us)
        for (scenario, policy, slice_us, name), cards in EXCHANGE.items()
    ]
    assert stale(rows) == []
    assert stale([*rows, *(one | {"profile": "h200"} | {"aggregate_pct": 99.9} for one in rows)]) == []
    said = stale(rows[1:])
    assert len(said) == 1 and "aggregate_pct" in said[0] and "not any more" in said[0]
    assert len(stale([one | {"where": "vm"} for one in rows])) == len(EXCHANGE)
