# SPDX-License-Identifier: MIT
"""What each container got lately, from snapshots that were taken one after the other. Pure.

The kernel keeps sums of times and of turns, and a histogram of waits: a percentile is interpolated within its bucket.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from cgpu_common import waits
from cgpu_common.model import KernelGpu, Slot, Snapshot
from cgpu_common.share import got_pct

S = 1_000_000_000
LONG_NS = 10 * S
LONG_MOST_NS = 15 * S

Key = tuple[int, str]  # GPU and directory


@dataclass(frozen=True)
class Rates:
    """One container on one GPU, as cgpu_common/figures.py describes each figure. None: not measured, no such wait, or a
    module without that counter.

    A figure is over two readings under the policy in force: its window begins with the policy, since the time under
    native and a wait under another policy mean something else.
    """

    share_got_pct: float | None = None
    share_got_10s_pct: float | None = None
    throttled_pct: float | None = None
    wait_per_turn_us: float | None = None
    wait_p99_us: float | None = None
    wait_p99_10s_us: float | None = None
    throttled_by_ceiling_pct: float | None = None


def _earlier(slot: Slot, before: Sequence[Mapping[tuple[int, str, str], Slot]], age_ns: int, most: int) -> Slot | None:
    """Of this container's earlier readings from nine tenths of @age_ns to @most, the one whose age is closest to it."""
    key = (slot.gpu, slot.dir, slot.id)
    there = [found[key] for found in before if key in found]
    fit = [old for old in there if age_ns * 9 // 10 <= slot.at_ns - old.at_ns <= most]
    return min(fit, key=lambda old: abs(slot.at_ns - old.at_ns - age_ns), default=None)


def _grown(old: Slot, new: Slot, *names: str) -> tuple[int, ...]:
    """What these counters have counted since @old."""
    return tuple(new.stat.get(name, 0) - old.stat.get(name, 0) for name in names)


def _pct(part: int, whole: int) -> float | None:
    return 100 * part / whole if whole > 0 else None


def _waits(gpu: KernelGpu, old: Slot, new: Slot) -> tuple[float | None, float | None]:
    if not gpu.facts.limits or "wait_ns" not in new.stat:
        return None, None
    ran, waited, turns = _grown(old, new, "gpu_ns", "wait_ns", "turns")
    # Under 0 and 3 a container that has nothing to run has its turns all the same, and waits for none.
    has_waited = turns > 0 and ran + waited > 0
    return _pct(waited, ran + waited), waited / turns / 1000 if has_waited else None


def _by_ceiling_pct(gpu: KernelGpu, old: Slot, new: Slot) -> float | None:
    if not gpu.facts.limits or "throttled_ns" not in new.stat:
        return None
    ran, waited, throttled = _grown(old, new, "gpu_ns", "wait_ns", "throttled_ns")
    return _pct(throttled, ran + waited)


def _p99_us(gpu: KernelGpu, old: Slot, new: Slot) -> float | None:
    now = waits.of_stat(new.stat)
    if not gpu.facts.limits or now is None:
        return None
    found = waits.since(waits.of_stat(old.stat), now)
    ns = None if found is None else waits.percentile_ns(found, 99)
    return None if ns is None else ns / 1000


def _of(gpu: KernelGpu, slot: Slot, before: Sequence[Mapping[tuple[int, str, str], Slot]], short_ns: int) -> Rates:
    key = (slot.gpu, slot.dir, slot.id)
    oldest = next((found[key] for found in before if key in found), None)
    short = _earlier(slot, before, short_ns, 1 << 62) or oldest
    if short is None:
        return Rates()  # created during the sample, or the policy is as new
    long = _earlier(slot, before, LONG_NS, LONG_MOST_NS)
    return Rates(
        got_pct(gpu, short, slot),
        got_pct(gpu, long, slot) if long else None,
        *_waits(gpu, short, slot),
        _p99_us(gpu, short, slot),
        _p99_us(gpu, long, slot) if long else None,
        _by_ceiling_pct(gpu, short, slot),
    )


def _readings(snapshots: Sequence[Snapshot], gpu: KernelGpu) -> list[dict[tuple[int, str, str], Slot]]:
    """The containers of one GPU in the snapshots since its policy is in force."""
    out: list[dict[tuple[int, str, str], Slot]] = []
    for one in reversed(snapshots):
        then = next((other for other in one.gpus if other.index == gpu.index), None)
        if then is None or then.policy != gpu.policy:
            break
        out.append({(slot.gpu, slot.dir, slot.id): slot for slot in then.slots})
    return out[::-1]


def rates(snapshots: Sequence[Snapshot], short_ns: int = S) -> dict[Key, Rates]:
    """Of the last snapshot's containers. One snapshot alone has none: a figure is over two readings."""
    *before, last = snapshots
    found: dict[Key, Rates] = {}
    for gpu in last.gpus:
        readings = _readings(before, gpu)
        found |= {(gpu.index, slot.dir): _of(gpu, slot, readings, short_ns) for slot in gpu.slots}
    return found
