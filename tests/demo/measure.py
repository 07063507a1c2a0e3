# SPDX-License-Identifier: MIT
"""Throughput from simload's output: completed works against CLOCK_MONOTONIC."""

from __future__ import annotations

import json
import subprocess
import threading
import time
from collections import deque
from collections.abc import Sequence
from itertools import pairwise
from typing import Any

Sample = tuple[float, float]  # (monotonic seconds, works completed so far)


def whole_rounds(wanted_s: float, round_s: float) -> float:
    """The whole number of rounds nearest to a time, at least one."""
    return max(1, round(wanted_s / round_s)) * round_s


def works_at(samples: Sequence[Sample], at: float) -> float:
    """Works completed by a moment, on the line between the samples around it."""
    for (t0, w0), (t1, w1) in pairwise(samples):
        if t0 <= at <= t1:
            return w0 if t1 == t0 else w0 + (w1 - w0) * (at - t0) / (t1 - t0)
    raise ValueError(f"no samples around {at:.3f} s")


def rate(samples: Sequence[Sample], begin: float, end: float) -> float:
    """Works per second between two moments."""
    return (works_at(samples, end) - works_at(samples, begin)) / (end - begin)


class Progress:
    """Follows a command that prints simload's JSON lines; with `talk` it has a stdin to write to."""

    def __init__(self, command: Sequence[str], talk: bool = False) -> None:
        self._samples: list[Sample] = []
        self._events: dict[str, dict[str, Any]] = {}
        self._requests: list[dict[str, Any]] = []
        self._other: deque[str] = deque(maxlen=5)
        self._news = threading.Condition()
        self._process = subprocess.Popen(
            command,
            stdin=subprocess.PIPE if talk else None,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        threading.Thread(target=self._follow, daemon=True).start()

    def _follow(self) -> None:
        assert self._process.stdout
        for line in self._process.stdout:
            with self._news:
                self._take(line.strip())
                self._news.notify_all()

    def _take(self, line: str) -> None:
        try:
            found = json.loads(line)
            kind = found["event"]
        except (ValueError, KeyError, TypeError):
            self._other.append(line)
            return
        if kind == "progress":
            self._samples.append((float(found["monotonic"]), float(found["works"])))
        else:
            self._events[kind] = found
            if kind == "request":
                self._requests.append(found)

    def requests(self) -> list[dict[str, Any]]:
        """Of a service, each as it was answered."""
        with self._news:
            return list(self._requests)

    def write(self, line: str) -> None:
        """A line for its stdin."""
        assert self._process.stdin
        self._process.stdin.write(line + "\n")
        self._process.stdin.flush()

    def samples(self) -> list[Sample]:
        with self._news:
            return list(self._samples)

    def works(self) -> int:
        """Completed so far, as last reported."""
        with self._news:
            return int(self._samples[-1][1]) if self._samples else 0

    def event(self, kind: str) -> dict[str, Any] | None:
        with self._news:
            return self._events.get(kind)

    def wait_until(self, moment: float, timeout: float) -> bool:
        """Until a sample later than a moment of CLOCK_MONOTONIC was seen."""
        end = time.monotonic() + timeout
        with self._news:
            while not self._samples or self._samples[-1][0] < moment:
                if not self._news.wait(max(0.0, end - time.monotonic())) and time.monotonic() >= end:
                    return False
        return True

    def wait_event(self, kind: str, timeout: float) -> dict[str, Any] | None:
        """The event of that kind, as soon as it was seen."""
        with self._news:
            self._news.wait_for(lambda: kind in self._events, timeout)
            return self._events.get(kind)

    def last_words(self) -> str:
        """Its output that is not JSON: usually an error."""
        with self._news:
            return " / ".join(self._other) or "it printed nothing"

    def exited(self) -> bool:
        return self._process.poll() is not None

    def stop(self) -> None:
        self._process.kill()
        self._process.wait()
