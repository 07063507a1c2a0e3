# SPDX-License-Identifier: MIT
"""PURE: the latest kernel events, for `cgpu events --since`. The kernel keeps none.

Frequent events, which a tenant can cause, are kept apart, so that they do not push out the others.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from heapq import merge
from typing import Any

from cgpu_common.events import LogEntry

KEPT = 1000
KEPT_NOISY = 500


@dataclass(frozen=True, slots=True)
class Past:
    """@at: seconds since 1970, when the daemon received it."""

    at: float
    entry: LogEntry


class History:
    """The events since the start of the daemon, as many as are kept."""

    def __init__(self, began: float) -> None:
        self._began = began
        self._kept: deque[Past] = deque(maxlen=KEPT)
        self._noisy: deque[Past] = deque(maxlen=KEPT_NOISY)
        self._lost_until = began  # some events up to then are no longer kept

    def add(self, at: float, entry: LogEntry, noisy: bool) -> None:
        kept = self._noisy if noisy else self._kept
        if len(kept) == kept.maxlen:
            self._lost_until = max(self._lost_until, kept[0].at)
        kept.append(Past(at, entry))

    def since(self, at: float) -> dict[str, Any]:
        """The answer to `events`. complete_from: all events from then on are in it."""
        there = [past for past in merge(self._kept, self._noisy, key=lambda past: past.at) if past.at >= at]
        rows = [
            {"time": past.at, "level": past.entry.level, "text": past.entry.text, "fields": past.entry.fields}
            for past in there
        ]
        return {"ok": True, "complete_from": self._lost_until, "began": self._began, "events": rows}
