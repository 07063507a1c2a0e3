# SPDX-License-Identifier: MIT
"""Figures of what was measured, and the part of a load's work that lies in a window."""

from __future__ import annotations

import math
import statistics
from bisect import bisect_right
from collections.abc import Sequence


def percentile(values: Sequence[float], percent: float) -> float:
    """Nearest rank."""
    ordered = sorted(values)
    return ordered[max(0, math.ceil(len(ordered) * percent / 100) - 1)]


def figures(values: Sequence[float], unit: str) -> dict:
    """n, median, p99 and spread; nothing but n where there is nothing."""
    if not values:
        return {"n": 0, "unit": unit}
    return {
        "n": len(values),
        "unit": unit,
        "min": round(min(values), 3),
        "median": round(statistics.median(values), 3),
        "p90": round(percentile(values, 90), 3),
        "p99": round(percentile(values, 99), 3),
        "max": round(max(values), 3),
        "mean": round(statistics.fmean(values), 3),
        "stdev": round(statistics.pstdev(values), 3),
    }


def done_at(points: Sequence[tuple[float, int]], when: float) -> float:
    """Works complete at that time, between two reports in proportion.

    Before the first and after the last report nothing is known: a ValueError.
    """
    if not points or not points[0][0] <= when <= points[-1][0]:
        raise ValueError("no report of the load around that time")
    after = bisect_right(points, when, key=lambda point: point[0])
    if after == len(points):
        return points[-1][1]
    (t0, n0), (t1, n1) = points[after - 1], points[after]
    return n0 + (n1 - n0) * (when - t0) / (t1 - t0)


def rate(points: Sequence[tuple[float, int]], begin: float, end: float) -> float:
    """Works per second in the window."""
    return (done_at(points, end) - done_at(points, begin)) / (end - begin)


def shares(rates: Sequence[float]) -> list[float]:
    total = sum(rates)
    return [round(one / total, 4) if total else 0.0 for one in rates]


def ratio_error(rates: Sequence[float], weights: Sequence[float]) -> float:
    """The worst relative error of a part against its weight's part."""
    total, wanted = sum(rates), sum(weights)
    if not total:
        return 1.0
    return max(abs(r / total / (w / wanted) - 1) for r, w in zip(rates, weights, strict=True))


def whole_rounds(rounds: Sequence[float], about_s: float) -> tuple[float, float, int]:
    """Begin, end and number of the whole rounds whose length is nearest to that. The first round is left out."""
    marks = list(rounds[1:])
    if len(marks) < 2:
        raise ValueError(f"{len(rounds)} rounds began: not one is whole")
    end = min(marks[1:], key=lambda t: abs(t - marks[0] - about_s))
    return marks[0], end, marks.index(end)
