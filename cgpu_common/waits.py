# SPDX-License-Identifier: MIT
"""A container's histogram of waits for its turns: `wait_lt_<ns>`, `waits` and `waits_ns` of its stat. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

PREFIX = "wait_lt_"


@dataclass(frozen=True)
class Waits:
    """@below: (ns, waits shorter than that), ascending, each including those before it."""

    below: tuple[tuple[int, int], ...]
    count: int
    sum_ns: int


def of_stat(stat: Mapping[str, int]) -> Waits | None:
    """None: a module without the histogram."""
    numbers = (name.removeprefix(PREFIX) for name in stat if name.startswith(PREFIX))
    bounds = sorted(int(number) for number in numbers if number.isdecimal())
    if not bounds or "waits" not in stat:
        return None
    return Waits(tuple((ns, stat[f"{PREFIX}{ns}"]) for ns in bounds), stat["waits"], stat.get("waits_ns", 0))


def since(old: Waits | None, new: Waits) -> Waits | None:
    """The waits between two readings; all of them without an earlier one. None: the readings do not fit together."""
    if old is None:
        return new
    bounds = [ns for ns, _ in new.below]
    if [ns for ns, _ in old.below] != bounds or old.count > new.count:
        return None  # another core, or another container
    before = [count for _, count in old.below]
    below = tuple((ns, count - was) for (ns, count), was in zip(new.below, before, strict=True))
    return Waits(below, new.count - old.count, new.sum_ns - old.sum_ns)


def percentile_ns(waits: Waits, percent: float) -> float | None:
    """Interpolated within its bucket, as Prometheus' histogram_quantile does it. None: no wait.

    Above the last bound only the bound is known: the result is the bound then."""
    if waits.count <= 0:
        return None
    rank = waits.count * percent / 100
    low_ns, low = 0, 0
    for ns, count in waits.below:
        if count >= rank and count > low:
            return low_ns + (ns - low_ns) * (rank - low) / (count - low)
        low_ns, low = ns, count
    return float(low_ns)
