# SPDX-License-Identifier: MIT
"""A trace of a node as the load of a simulation: what ran there arrives at the time at which it began to run."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

from .. import chrome
from .model import Arrival, Container
from .requests import ARRIVALS_MAX, KERNELS_MAX, Budget, wrong

KERNEL_US = 300.0  # the default of a container: a longer interval is so many kernels
LENGTH_MOST_MS = 3_600_000
GPUS_MAX, CONTAINERS_MAX = 16, 25


def _number(about: Any, key: str, default: int, most: int) -> int:
    value = about.get(key, default)
    return value if isinstance(value, int) and 0 <= value <= most else default


def _request(length_us: float) -> tuple[float, ...]:
    """Kernels of KERNEL_US and a rest of a microsecond at least."""
    whole, rest = divmod(length_us, KERNEL_US)
    return (KERNEL_US,) * int(whole) + ((rest,) if rest >= 1 or not whole else ())


def _arrivals(spans: list[chrome.Span], begin_us: float, path: Path, budget: Budget) -> tuple[Arrival, ...]:
    if len(spans) > ARRIVALS_MAX:
        raise wrong(f"{path}: a container has more than {ARRIVALS_MAX} intervals", "cgpu trace with less --seconds")
    found = []
    for span in spans:
        at_ms = (span.begin_us - begin_us) / 1000
        length_us = max(1.0, span.end_us - span.begin_us)
        if at_ms > LENGTH_MOST_MS:
            raise wrong(f"{path} is longer than an hour")
        if length_us > KERNEL_US * KERNELS_MAX:
            raise wrong(f"{path}: an interval at {at_ms:g} ms is longer than {KERNEL_US * KERNELS_MAX / 1e6:g} s")
        length_us = round(length_us, 3)
        found.append(Arrival(at_ms, budget.lengths(length_us, partial(_request, length_us))))
    return tuple(found)


def read(path: Path) -> tuple[list[Container], float]:
    """The containers of a trace, and its length in seconds. Their GPUs are numbered from 0 in the trace's order."""
    try:
        with path.open("rb") as file:
            data = file.read(chrome.SIZE_MAX + 1)
    except OSError as err:
        raise wrong(f"{path}: {err.strerror}") from None
    if len(data) > chrome.SIZE_MAX:
        raise wrong(f"{path} is larger than {chrome.SIZE_MAX >> 20} MiB")
    try:
        processes = chrome.parse(data.decode("utf-8", errors="replace"))
    except chrome.BadTrace as err:
        raise wrong(f"{path} is no trace of cgpu: {err}", "cgpu trace --perfetto FILE writes one") from None
    spans = [span for process in processes for span in process.spans]
    if not spans:
        raise wrong(f"{path} has no interval in which a container ran")
    begin_us, end_us = min(span.begin_us for span in spans), max(span.end_us for span in spans)
    if len(processes) > GPUS_MAX:
        raise wrong(f"{path} has {len(processes)} GPUs", f"{GPUS_MAX} at most")
    out: list[Container] = []
    taken: set[str] = set()
    budget = Budget(path)
    for gpu, process in enumerate(processes):
        by_track: dict[int, list[chrome.Span]] = {}
        for span in process.spans:
            by_track.setdefault(span.track, []).append(span)
        if len(by_track) > CONTAINERS_MAX:
            raise wrong(f"{path}: {len(by_track)} containers are on GPU {gpu}", f"{CONTAINERS_MAX} at most")
        for place, own in sorted(by_track.items()):
            title = process.tracks[place]
            arrivals = _arrivals(own, begin_us, path, budget)
            name = "".join(char for char in title if char.isprintable())[:48] or "c"
            while name in taken:
                name += "'"
            taken.add(name)
            about = process.about[place]
            weight, high = _number(about, "weight", 1, 100), bool(about.get("highprio"))
            out.append(Container(name, weight, high, gpu=gpu, trace=arrivals))
    return out, max(0.1, (end_us - begin_us) / 1e6)
