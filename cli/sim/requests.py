# SPDX-License-Identifier: MIT
"""Requests of several kernels each: their lengths as text, their arrivals, and what became of them.

Arrivals are drawn from the seed and the container's name, so that they are the same alone and beside others.
"""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from cgpu_common.exits import CgpuError, Exit

from .model import MS, US, Arrival, Container

KERNELS_MAX = 100_000  # of one request
ARRIVALS_MAX = 1_000_000
KERNEL_US = (1.0, 10_000_000.0)
FILE_MOST = 256 << 20  # bytes
KERNELS_ALL = 100_000_000  # of all requests of a file: what is simulated
KERNELS_KEPT = 10_000_000  # of those with different lengths: what is kept in memory
SHOWN = 60  # letters of a value in a sentence


def wrong(what: str, hint: str = "") -> CgpuError:
    return CgpuError(Exit.USAGE, "usage", what, hint)


def shown(value: object, form: Callable[[object], str] = repr) -> str:
    """A value of a file for a sentence: short, and no list or table, which may be without end."""
    if isinstance(value, Mapping):
        return "a table"
    if isinstance(value, list | tuple | set | frozenset):
        return "a list"
    if isinstance(value, int) and value.bit_length() > 200:
        return f"a number of {value.bit_length()} bits"
    text = form(value)
    return text if len(text) <= SHOWN else f"{text[: SHOWN - 3]}..."


class Budget:
    """The kernels of the requests of a file. Requests with the same key have the same lengths, which are kept once."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._kept: dict[object, tuple[float, ...]] = {}
        self._kernels = self._kept_kernels = 0

    def lengths(self, key: object, read: Callable[[], tuple[float, ...]]) -> tuple[float, ...]:
        found = self._kept.get(key)
        if found is None:
            found = self._kept[key] = read()
            self._kept_kernels += len(found)
        self._kernels += len(found)
        if self._kernels > KERNELS_ALL or self._kept_kernels > KERNELS_KEPT:
            limits = f"{KERNELS_ALL:g} at most, {KERNELS_KEPT:g} in requests that differ"
            raise wrong(f"{self._path} has too many kernels", limits)
        return found


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
        shown_word = shown(word.strip())
        us, number = _number(length), _number(count) if times else 1.0
        if not KERNEL_US[0] <= us <= KERNEL_US[1]:
            raise wrong(f"{what}: {shown_word} is no length of a kernel", "microseconds, 1 to 1e+07, or 200x40")
        if not 1 <= number <= KERNELS_MAX - len(found) or number != int(number):
            raise wrong(f"{what}: {shown_word} is no number of kernels", f"1 to {KERNELS_MAX} in a request")
        found += [us] * int(number)
    return tuple(found)


def read_trace(path: Path, lengths: tuple[float, ...]) -> tuple[Arrival, ...]:
    """A line for each arrival: its time in ms, and the lengths of its kernels if they are not those of all."""
    found: list[Arrival] = []
    budget = Budget(path)
    with path.open("rb") as file:
        data = file.read(FILE_MOST + 1)
    if len(data) > FILE_MOST:
        raise wrong(f"{path} is larger than {FILE_MOST >> 20} MiB")
    try:
        lines = data.decode().splitlines()
    except ValueError:
        raise wrong(f"{path} is no text") from None
    for number, line in enumerate(lines, 1):
        words = line.partition("#")[0].split()
        if not words:
            continue
        what, at_ms = f"{path} line {number}", _number(words[0])
        if not 0 <= at_ms <= 3_600_000:
            raise wrong(f"{what}: {shown(words[0])} is no time", "milliseconds, 0 to 3.6e+06")
        if found and at_ms < found[-1].at_ms:
            raise wrong(f"{what}: {shown(words[0], str)} ms is before the line above")
        text = "+".join(words[1:])
        own = budget.lengths(text, partial(read_lengths, text, what) if text else lambda: lengths)
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
