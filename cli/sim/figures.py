# SPDX-License-Identifier: MIT
"""Figures of a run. Pure: lists in, figures out."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from .gpu import Gpu
from .model import S

Round = tuple[int, list[int]]
BUCKET_NS = S // 10
SECOND = 10  # buckets


@dataclass(frozen=True)
class Waits:
    """Delay of a ready kernel by other clients: its end minus the time it was ready minus its length."""

    p50_us: float | None
    p99_us: float | None
    max_us: float | None

    @classmethod
    def of(cls, gpu: Gpu, number: int) -> Waits:
        wait = gpu.client(number).wait
        most = wait.max_ns / 1000 if wait.count else None
        return cls(gpu.quantile_us(wait, 500), gpu.quantile_us(wait, 990), most)


def max_min(demands: Sequence[float], weights: Sequence[float], capacity: float = 1.0) -> list[float]:
    """The weighted max-min fair shares: none is above its demand, and none can grow without reducing one that is less
    for its weight. Weight 0 has nothing."""
    shares = [0.0] * len(demands)
    left = [i for i, weight in enumerate(weights) if weight and demands[i]]
    while left:
        part = capacity / sum(weights[i] for i in left)
        full = [i for i in left if demands[i] <= part * weights[i]]
        for i in full or left:
            shares[i] = demands[i] if full else part * weights[i]
        capacity -= sum(shares[i] for i in full)
        left = [i for i in left if i not in full] if full else []
    return shares


def fair_shares(
    demands: Sequence[float], weights: Sequence[float], high: Sequence[bool], prio_part: float
) -> list[float]:
    """Max-min among those with high priority, up to @prio_part if others have a demand; then among the others."""
    others = any(want and weight and not first for want, weight, first in zip(demands, weights, high, strict=True))
    upper = [want * first for want, first in zip(demands, high, strict=True)]
    lower = [want * (not first) for want, first in zip(demands, high, strict=True)]
    upper = max_min(upper, weights, prio_part if others else 1)
    return [a + b for a, b in zip(upper, max_min(lower, weights, 1 - sum(upper)), strict=True)]


def low_of_rest_pct(shares: Sequence[float], high: Sequence[bool]) -> float | None:
    """What those without high priority had of the time that those with it left; None: one of the two is missing."""
    rest = 1 - sum(share for share, first in zip(shares, high, strict=True) if first)
    if all(high) or not any(high) or rest <= 0:
        return None
    return 100 * sum(share for share, first in zip(shares, high, strict=True) if not first) / rest


def whole_rounds(rounds: Sequence[Round], from_ns: int, about_ns: int) -> tuple[Round, Round] | None:
    """From the begin of a round to the begin of another, whose distance is nearest to `about_ns`."""
    seen = [one for one in rounds if one[0] >= from_ns]
    if len(seen) < 2:
        return None
    first = seen[0]
    return first, min(seen[1:], key=lambda one: abs(one[0] - first[0] - about_ns))


def ratio_error_pct(got: Sequence[float], weights: Sequence[float]) -> float | None:
    """The largest deviation, over all pairs, of the ratio of their times from that of their weights.

    Infinite where one got nothing; None: there is no pair.
    """
    parts = [ns / weight for ns, weight in zip(got, weights, strict=True) if weight]
    if len(parts) < 2:
        return None
    return 100 * (max(parts) / min(parts) - 1) if min(parts) else math.inf


def windows(buckets: Sequence[Sequence[int]]) -> list[list[int]]:
    """Busy time of each client in each window of 1 s, stepped by 100 ms."""
    count = len(buckets[0]) if buckets else 0
    return [[sum(one[at : at + SECOND]) for one in buckets] for at in range(count - SECOND + 1)]


def share_error_pp(window: Sequence[int], expected: Sequence[float], of_wall: bool) -> list[float]:
    """Deviation of each client from its expected share, in points of the wall clock or of the sum."""
    whole = S if of_wall else sum(window)
    return [100 * abs(ns / whole - part) if whole else 100 * part for ns, part in zip(window, expected, strict=True)]


def worst_share_error(
    found: Sequence[Sequence[int]], expected: Sequence[float], bounds_pp: Sequence[float], of_wall: bool
) -> tuple[float, float] | None:
    """The error that exceeds its bound most, over windows and containers: (error, bound)."""
    pairs = [
        (error, bound)
        for window in found
        for error, bound in zip(share_error_pp(window, expected, of_wall), bounds_pp, strict=True)
    ]
    return max(pairs, key=lambda pair: pair[0] - pair[1]) if pairs else None


def share_bounds_pp(turn_ns: Sequence[float], expected: Sequence[float], slack_pp: float) -> list[float]:
    """Bounds of a window of 1 s, which may contain one turn more or less of each client."""
    return [100 * turn / S * (1 - part) + slack_pp for turn, part in zip(turn_ns, expected, strict=True)]


def cap_excess_pp(found: Sequence[Sequence[int]], caps: Sequence[float]) -> float | None:
    """The largest excess of a client over its cap in any window, in points of the wall clock."""
    over = [100 * (ns / S - cap) for window in found for ns, cap in zip(window, caps, strict=True)]
    return max(over) if over else None
