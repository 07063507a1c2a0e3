# SPDX-License-Identifier: MIT
"""Readings of containers' GPU time, a few milliseconds apart, as intervals, shares and a trace. Pure.

The kernel has no event for each slice. Two readings of gpu_ns give exactly how long a container could run between
them, but not when: an interval in which it had more than half of the time counts as its own.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from . import chrome

US, MS = 1000, 1_000_000


@dataclass(frozen=True)
class Track:
    """A container on one GPU, for as long as it was there."""

    gpu: int
    id: str
    name: str
    weight: int
    highprio: bool
    engine_name: str | None = None
    at_ns: list[int] = field(default_factory=list)
    gpu_ns: list[int] = field(default_factory=list)
    wait_ns: list[int] = field(default_factory=list)
    turns: list[int] = field(default_factory=list)
    native: list[bool] = field(default_factory=list)  # whether the policy was native, each time it was read

    def add(self, at_ns: int, stat: Mapping[str, int]) -> None:
        self.at_ns.append(at_ns)
        self.gpu_ns.append(stat.get("gpu_ns", 0))
        self.wait_ns.append(stat.get("wait_ns", 0))
        self.turns.append(stat.get("turns", 0))

    def under(self, native: bool) -> None:
        self.native.append(native)

    def _over(self, values: Sequence[int]) -> int:
        return values[-1] - values[0] if values else 0

    @property
    def observed_ns(self) -> int:
        return self._over(self.at_ns)

    @property
    def share_pct(self) -> float | None:
        """None under native too, also for a part of the time: there the kernel counts the time with the GPU open."""
        return 100 * self._over(self.gpu_ns) / self.observed_ns if self.observed_ns and not any(self.native) else None

    @property
    def turns_seen(self) -> int:
        return self._over(self.turns)

    @property
    def waited_ns(self) -> int:
        return self._over(self.wait_ns)

    def parts(self) -> list[tuple[int, int, float]]:
        """(begin, end, part of it in which it ran) of each pair of readings."""
        pairs = zip(self.at_ns, self.at_ns[1:], self.gpu_ns, self.gpu_ns[1:], strict=False)
        return [(a, b, min(1.0, max(0.0, (d - c) / (b - a)))) for a, b, c, d in pairs if b > a]


def spans(track: Track) -> list[tuple[int, int, float]]:
    """(begin, end, mean part) of neighbouring pairs of readings in which it had more than half of the time."""
    found: list[tuple[int, int, float]] = []
    for begin, end, part in track.parts():
        if part <= 0.5:
            continue
        if found and found[-1][1] == begin:
            first, _, mean = found[-1]
            ran = mean * (begin - first) + part * (end - begin)
            found[-1] = (first, end, ran / (end - first))
        else:
            found.append((begin, end, part))
    return found


LEAST_PART = 0.005
STEP_DIFFERENCE = 0.02


def steps(track: Track) -> list[tuple[int, int, float]]:
    """(begin, end, part) of all pairs of readings in which it ran, those of about the same part joined."""
    found: list[tuple[int, int, float]] = []
    for begin, end, part in track.parts():
        if part < LEAST_PART:
            continue
        if found and found[-1][1] == begin and abs(found[-1][2] - part) < STEP_DIFFERENCE:
            first, _, mean = found[-1]
            part = (mean * (begin - first) + part * (end - begin)) / (end - first)
            found[-1] = (first, end, part)
        else:
            found.append((begin, end, part))
    return found


def buckets(track: Track, begin_ns: int, count: int, bucket_ns: int = 100 * MS) -> list[int]:
    """Running time in each 100 ms from begin_ns on; a pair of readings is spread evenly over its time."""
    found = [0.0] * count
    for begin, end, part in track.parts():
        at = begin
        while at < end:
            place = (at - begin_ns) // bucket_ns
            stop = min(end, begin_ns + (place + 1) * bucket_ns)
            if 0 <= place < count:
                found[place] += part * (stop - at)
            at = stop
    return [round(one) for one in found]


@dataclass(frozen=True)
class Seen:
    """An event of the module during the trace."""

    at_ns: int
    gpu: int | None
    text: str


@dataclass(frozen=True)
class Recording:
    """A trace of some GPUs. @titles: of each GPU, by its number. @period_us: the mean time between two readings."""

    begin_ns: int
    end_ns: int
    tracks: Sequence[Track]
    titles: Mapping[int, str]
    events: Sequence[Seen] = ()

    def of(self, gpu: int) -> list[Track]:
        return [track for track in self.tracks if track.gpu == gpu]

    @property
    def period_us(self) -> float | None:
        pairs = sum(max(0, len(track.at_ns) - 1) for track in self.tracks)
        observed = sum(track.observed_ns for track in self.tracks)
        return observed / pairs / US if pairs else None


def _process(found: Recording, gpu: int) -> chrome.Process:
    tracks = found.of(gpu)

    def us(at_ns: int) -> float:
        return (at_ns - found.begin_ns) / US

    return chrome.Process(
        gpu,
        found.titles[gpu],
        [track.name for track in tracks],
        [
            chrome.Span(place, us(begin), us(end), {"ran_pct": round(100 * part, 1)})
            for place, track in enumerate(tracks)
            for begin, end, part in spans(track)
        ],
        [
            chrome.Counter(us(begin), f"share % {track.name}", {"ran_pct": 100 * part})
            for track in tracks
            for begin, _, part in track.parts()
        ],
        [chrome.Instant(us(one.at_ns), one.text) for one in found.events if one.gpu in (None, gpu)],
        [{"id": track.id, "weight": track.weight, "highprio": track.highprio} for track in tracks],
    )


def trace(found: Recording, about: Mapping[str, Any]) -> str:
    """The text of the trace's file."""
    return chrome.document([_process(found, gpu) for gpu in sorted(found.titles)], about)
