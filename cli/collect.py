# SPDX-License-Identifier: MIT
"""Reads the tree again and again, and cgpud, NVML and the processes' names beside it."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Iterator
from typing import Any

from cgpu_common.model import Card, Names, Snapshot
from cgpu_common.proc import Paths, driver_version, process_name, read_tree

from . import daemon, refusals, sensors
from .rates import rates
from .view import View, matched

KEPT = 16  # snapshots: more than ten seconds of them, one a second
TICK_S = 1.0
LATE_S = 0.5  # that cgpud's answer may be late after the sample
STATUS_EVERY_S = 5.0
STALE_S = 5.0  # NVML's values are shown for so long where no answer comes, as cgpud does
ALONE_S = 2.5  # the same without a sample


class Collector:
    """One reader of one tree. Requests to cgpud and NVML run while a sample is taken; they delay a view little."""

    def __init__(self, paths: Paths) -> None:
        self._paths = paths
        self._before: deque[Snapshot] = deque(maxlen=KEPT)
        self._sensors: list[Card] = []
        self._sensors_at = 0.0
        self._names: dict[str, Names] = {}
        self._drift: list[dict[str, Any]] | None = None
        self._pending: tuple[sensors.Background[list[Card]], sensors.Background[dict[str, Any] | None]] | None = None
        self._status_at = -STATUS_EVERY_S

    def request(self) -> None:
        """Start the requests to cgpud."""
        if self._pending is not None:
            return
        paths = self._paths
        now = time.monotonic()
        fresh = now - self._status_at >= STATUS_EVERY_S
        self._status_at = now if fresh else self._status_at
        self._pending = (
            sensors.Background(lambda: sensors.read(paths), self._sensors),
            sensors.Background(lambda: daemon.status(paths) if fresh else {}, {} if not fresh else None),
        )

    def _take(self, wait_s: float) -> None:
        if self._pending is None:
            return
        end = time.monotonic() + wait_s
        self._sensors = self._pending[0].take(max(0.0, end - time.monotonic()))
        if self._pending[0].is_done:
            self._sensors_at = time.monotonic()
        elif time.monotonic() - self._sensors_at > STALE_S:
            self._sensors = []
        status = self._pending[1].take(max(0.0, end - time.monotonic()))
        if status != {}:
            self._drift = daemon.drift_of(status)
            self._names = sensors.names(daemon.rows(status, "containers"))
        self._pending = None

    def tick(self) -> None:
        """Keep a reading for the shares of a later view."""
        self._before.append(read_tree(self._paths, brief=True))

    def view(self, wait_s: float = LATE_S, sample_s: float = TICK_S) -> View:
        """What there is now, with shares over the last sample_s, as far as there are readings."""
        now = read_tree(self._paths)
        self._take(wait_s)
        found = rates([*self._before, now], round(sample_s * 1e9))
        ages = [(now.at_ns - one.at_ns) / 1e9 for one in self._before]
        old_enough = (age for age in ages if age >= 0.9 * sample_s)
        interval = min(old_enough, key=lambda age: abs(age - sample_s), default=max(ages, default=None))
        self._before.append(now)
        pids = {pid for gpu in now.gpus for slot in gpu.slots for pid, _ in slot.pids}
        comm = {pid: name for pid in pids if (name := process_name(self._paths, pid))}
        return View(
            now, found, interval, matched(now, self._sensors), self._names, comm, self._drift,
            driver_version(self._paths), self._paths.drain.exists(),
            names_hidden=refusals.names_are_hidden(self._paths),
        )  # fmt: skip

    def wait(self, seconds: float) -> None:
        """Sleep, with a reading each second for the shares."""
        end = time.monotonic() + seconds
        while (left := end - time.monotonic()) > 0:
            time.sleep(min(left, TICK_S))
            if end - time.monotonic() > TICK_S / 2:
                self.tick()


def once(paths: Paths, interval_s: float | None) -> View:
    """One view, with a sample of interval_s if there are containers; None: no sample."""
    collector = Collector(paths)
    collector.request()
    if interval_s is None or not any(gpu.slots for gpu in read_tree(paths, brief=True).gpus):
        return collector.view(ALONE_S)
    collector.tick()
    collector.wait(interval_s)
    return collector.view(sample_s=interval_s)


def stream(paths: Paths, every_s: float) -> Iterator[View]:
    """A view after a first sample and then every every_s, for ever."""
    collector = Collector(paths)
    collector.request()
    collector.tick()
    collector.wait(min(every_s, TICK_S))
    while True:
        yield collector.view(sample_s=min(every_s, TICK_S))
        collector.request()
        collector.wait(every_s)
