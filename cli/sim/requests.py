# SPDX-License-Identifier: MIT
"""Requests of several kernels each: their lengths as text, their arrivals, and what became of them.

Arrivals are drawn from the seed and the container's name, so that they are the same alone and beside others.
"""

from __future__ import annotations

import math
import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from cgpu_common.exits import CgpuError, Exit

from .model import MS, US, Arrival, Container

KERNELS_MAX = 100_000  # of one request
ARRIVALS_MAX = 1_000_000
KERNEL_US = (1.0, 10_000_000.0)


def wrong(what: str, hint: str = "") -> CgpuError:
    return CgpuError(Exit.USAGE, "usage", what, hint)


def _number(text: str) -> float:
    """Not finite where it is none."""
    try:
        return float(text)
    except ValueError:
        return math.nan


def read_lengths(text: str, what: str) -> tuple[float, ...]:
    """'20000+200x40': a kernel of 20 ms, then 40 of 200 us."""
    found: list[float] = []
    for word in text.replace(",", "+").split("+"):
        length, times, count = word.strip().partition("x")
        us, number = _number(length), _number(count) if times else 1.0
        if not KERNEL_US[0] <= us <= KERNEL_US[1]:
            raise wrong(f"{what}: {word.strip()!r} is no length of a kernel", "microseconds, 1 to 1e+07, or 200x40")
        if not 1 <= number <= KERNELS_MAX - len(found) or number != int(number):
            raise wrong(f"{what}: {word.strip()!r} is no number of kernels", f"1 to {KERNELS_MAX} in a request")
        found += [us] * int(number)
    return tuple(found)


def read_trace(path: Path, lengths: tuple[float, ...]) -> tuple[Arrival, ...]:
    """A line for each arrival: its time in ms, and the lengths of its kernels if they are not those of all."""
    found: list[Arrival] = []
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except ValueError:
        raise wrong(f"{path} is no text") from None
    for number, line in enumerate(lines, 1):
        words = line.partition("#")[0].split()
        if not words:
            continue
        what, at_ms = f"{path} line {number}", _number(words[0])
        if not 0 <= at_ms <= 3_600_000:
            raise wrong(f"{what}: {words[0]!r} is no time", "milliseconds, 0 to 3.6e+06")
        if found and at_ms < found[-1].at_ms:
            raise wrong(f"{what}: {words[0]} ms is before the line above")
        own = read_lengths("+".join(words[1:]), what) if words[1:] else lengths
        if not own:
            raise wrong(f"{what} has no lengths, and the container has no request_us")
        if len(found) == ARRIVALS_MAX:
            raise wrong(f"{path} has more than {ARRIVALS_MAX} lines")
        found.append(Arrival(at_ms, own))
    if not found:
        raise wrong(f"{path} has no arrivals")
    return tuple(found)


def poisson_ms(one: Container, length_ms: float, seed: int) -> Iterator[float]:
    """From start_ms on; with off_ms only in on_ms of each on_ms + off_ms, at that rate there."""
    rng = random.Random(f"{seed} {one.name}")
    at_ms = 0.0
    while True:
        at_ms += rng.expovariate(one.requests_per_s / 1000)
        wall_ms = at_ms
        if one.off_ms:
            wall_ms = at_ms // one.on_ms * (one.on_ms + one.off_ms) + at_ms % one.on_ms
        if one.start_ms + wall_ms >= length_ms:
            return
        yield one.start_ms + wall_ms


@dataclass(frozen=True)
class Stream:
    """The engine's input: arrivals and lengths in nanoseconds. No arrivals: a closed loop."""

    kernel_ns: list[int]
    arrival_ns: list[int]
    first: list[int]
    count: list[int]
    seed: int


def stream(one: Container, length_ns: int, seed: int) -> Stream:
    own_seed = random.Random(f"{seed} {one.name} kernels").getrandbits(64)
    kernel_ns: list[int]
    times: list[int]
    if one.trace:
        kernel_ns = []
        first: list[int] = []
        places: dict[tuple[float, ...], int] = {}
        for arrival in one.trace:
            if arrival.request_us not in places:
                places[arrival.request_us] = len(kernel_ns)
                kernel_ns += [round(us * US) for us in arrival.request_us]
            first.append(places[arrival.request_us])
        times = [one.start_ns + round(arrival.at_ms * MS) for arrival in one.trace]
        return Stream(kernel_ns, times, first, [len(arrival.request_us) for arrival in one.trace], own_seed)
    kernel_ns = [round(us * US) for us in one.request_us]
    times = []
    if one.requests_per_s:
        # One that never comes keeps a stream without arrivals from being a closed loop.
        times = [round(ms * MS) for ms in poisson_ms(one, length_ns / MS, seed)] or [2**63]
    entries = max(1, len(times))
    return Stream(kernel_ns, times, [0] * entries, [len(kernel_ns)] * entries, own_seed)


@dataclass(frozen=True)
class Request:
    """open: it had not ended at end_ns, the end of the run."""

    arrival_ns: int
    end_ns: int
    open: bool = False


@dataclass(frozen=True)
class Requests:
    """Latencies from arrival to the end of the last kernel, those that had not ended with their age."""

    ended: int
    open: int
    per_s: float
    p50_us: float | None
    p99_us: float | None
    max_us: float | None

    @classmethod
    def of(cls, found: Sequence[Request], wall_ns: int) -> Requests:
        took = sorted(one.end_ns - one.arrival_ns for one in found)
        ended = sum(not one.open for one in found)

        def rank(permille: int) -> float | None:
            """The value that so many of a thousand are not above."""
            return took[-(-len(took) * permille // 1000) - 1] / US if took else None

        most = took[-1] / US if took else None
        return cls(ended, len(took) - ended, ended * 1e9 / wall_ns, rank(500), rank(990), most)
