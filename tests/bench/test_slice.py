# SPDX-License-Identifier: MIT
"""The bars of make bench-slice."""

from __future__ import annotations

import json
import math
from typing import Any

import pytest
import slice


def judged(weights: list[int], works: list[float], busy: list[float] | None = None) -> dict[str, Any]:
    names = ("window_s", "rounds", "turns", "aggregate_pct", "control_p50_us", "control_max_us")
    names += ("control_calls_per_s", "sched_thread_cpu_pct", "slice_us")
    rest = dict.fromkeys(names, 1)
    found = {"policy": 2, "weights": weights, "works": works, "busy_ns": busy or [500 * n for n in works]}
    return slice.judge("a100", rest | found)


def test_two_containers() -> None:
    row = judged([1, 2], [1000, 2029])
    assert (row["asked"], row["got"], row["busy_ratio"]) == ("1:2", "1:2.029", "1:2.029")
    assert row["ratio_error_pct"] == pytest.approx(1.45)
    assert slice.missed(row) == []
    assert len(slice.missed(judged([1, 2], [1000, 2061]))) == 1
    assert "by busy time" in slice.table([row])


def test_each_of_several_is_judged() -> None:
    assert slice.missed(judged([1, 2, 3], [1000, 2000, 3000])) == []
    assert "the ratio is" in slice.missed(judged([1, 2, 3], [1000, 2000, 2500]))[0]
    assert "differ by 1.0 %" in slice.missed(judged([1, 2, 3], [1000, 2000, 3000], [100, 200, 303]))[0]


@pytest.mark.parametrize("works", [[0, 2000], [1000, 0], [0, 0]])
def test_one_that_got_nothing_is_a_miss(works: list[float]) -> None:
    row = judged([1, 2], works)
    assert row["ratio_error_pct"] == math.inf
    assert len(slice.missed(row)) == 2
    json.dumps(row)


def test_one_container_is_no_ratio() -> None:
    assert slice.missed(judged([1], [1000]))
