# SPDX-License-Identifier: MIT
"""A collection of the API server, kept in a mirror: list, watch, resume, list again.

The watch resumes at the last version that was seen, also after the API server was away. It lists again when that
version is too old (410), and every RELIST_S, for events that never came.
"""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Callable, Mapping
from typing import Any

from cgpu_common import log
from cgpu_kube.api import ApiError, Client, Object, Unreachable
from cgpu_kube.errors import KubeError
from cgpu_kube.mirror import Change, Key, Mirror, key_of, version_of
from cgpu_kube.parts import WHOLE, Parts

RELIST_S = 600.0
WATCH_S = 300  # of one watch; the server then ends it
SHORT_S = 1.0  # a watch without an event that ends sooner has failed
BACKOFF_S = (0.2, 30.0)  # first and longest
SKIPPED_S = 60.0  # seconds between two log lines about skipped objects

OnChange = Callable[[Any, Object | None], None]
OnFailure = Callable[[str, float], None]


class Backoff:
    """Seconds to wait after failures in a row: doubled, half of it by chance, so that nodes do not come at once."""

    def __init__(self, chance: Callable[[], float] = random.random) -> None:
        self._chance = chance
        self.failures = 0

    def next_s(self, at_least_s: float | None = None) -> float:
        first, longest = BACKOFF_S
        whole: float = min(longest, first * 2 ** min(self.failures, 16))
        self.failures += 1
        return max(whole / 2 * (1 + self._chance()), min(at_least_s or 0.0, longest))

    def reset(self) -> None:
        self.failures = 0


class Watcher:
    """One collection. `synced` is set by the first list; run() ends only when it is cancelled.

    @parts: what is decoded of an object; @keep: what is made of that; @store: what the mirror has of it. @on_change
    gets old and new of each change, after the mirror has it: what was stored, and what @keep made. @on_failure gets a
    sentence and the seconds until the next try.
    """

    def __init__(
        self,
        api: Client,
        path: str,
        params: Mapping[str, str] | None = None,
        *,
        keep: Callable[[Object], Object] = lambda found: found,
        store: Callable[[Object], Any] = lambda found: found,
        parts: Parts = WHOLE,
        on_change: OnChange = lambda _old, _new: None,
        on_failure: OnFailure = lambda _why, _seconds: None,
        relist_s: float = RELIST_S,
        backoff: Backoff | None = None,
    ) -> None:
        self.objects = Mirror(store)  # of what @keep returns, which is not for a second pass
        self._parts = parts
        self.synced = asyncio.Event()
        self.relists = 0
        self._api = api
        self._keep = keep
        self._path = path
        self._params = dict(params or {})
        self._on_change = on_change
        self._on_failure = on_failure
        self._relist_s = relist_s
        self._backoff = backoff or Backoff()
        self._version = ""
        self._newest = 0  # that the API server has shown
        self._heard = 0.0
        self._failed = False
        self.skipped = 0  # objects that @keep or @on_change could not take
        self._skipped_due = 0.0

    @property
    def age_s(self) -> float:
        """Seconds since the last answer of the API server; it is silent for up to WATCH_S while nothing changes."""
        return time.monotonic() - self._heard if self._heard else float("inf")

    @property
    def failing(self) -> bool:
        """Whether the last request failed, and none since has succeeded."""
        return self._failed

    def put(self, found: Object) -> None:
        """An answer to our own write, which comes before its event."""
        self._take("MODIFIED", found)

    async def refresh(self) -> None:
        """List now: what others have written before is in the mirror then. Raises KubeError. The watch goes on."""
        await self._list()

    async def run(self) -> None:
        due = 0.0
        while True:
            try:
                if not self._version or time.monotonic() >= due:
                    await self._list()
                    due = time.monotonic() + self._relist_s
                await self._watch(due - time.monotonic())
            except KubeError as error:
                if isinstance(error, ApiError) and error.is_gone:
                    self._version = ""
                seconds = self._backoff.next_s(error.retry_after_s if isinstance(error, ApiError) else None)
                self._failed = True
                self._on_failure(str(error), seconds)
                await asyncio.sleep(seconds)

    async def _list(self) -> None:
        there: set[Key] = set()
        version, newest, is_restored = "", self._newest, False
        async for items, at in self._api.pages(self._path, self._params, self._parts):
            if not version and at.isascii() and at.isdigit() and int(at) < newest:
                # A list is no older than what was seen before it: the API server's store was restored from a backup.
                is_restored = True
                self.objects.forget_versions()
            version = at
            for item in items:
                there.add(key_of(item))
                self._take("ADDED", item)
        self._ok()
        self.relists += 1
        if not (version.isascii() and version.isdigit()):
            raise Unreachable(f"the API server's list has resourceVersion {version!r}, which is no number")
        self._newest = int(version) if is_restored else max(int(version), self._newest)
        self._version = str(self._newest)
        self._report(self.objects.without(there, int(version)))
        self.synced.set()

    async def _watch(self, left_s: float) -> None:
        """Until the server ends it or it is time to list again."""
        seconds = max(1, min(WATCH_S, int(left_s) + 1))
        began, events = time.monotonic(), 0
        async for kind, found in self._api.watch(self._path, self._version, self._params, seconds, self._parts):
            self._heard = time.monotonic()
            self._failed = False
            if kind == "OPEN":
                continue
            events += 1
            version = version_of(found)
            if version >= int(self._version or 0):
                self._version = str(version)
                self._newest = max(version, self._newest)
            if kind != "BOOKMARK":
                self._take(kind, found)
        if not events and time.monotonic() - began < SHORT_S:
            raise Unreachable("the API server ended a watch at once")
        self._ok()

    def _ok(self) -> None:
        self._heard = time.monotonic()
        self._failed = False
        self._backoff.reset()

    def _take(self, kind: str, found: Object) -> None:
        """An object that cannot be read is skipped: keep its previous state, count it, log its name."""
        try:
            changes = self.objects.apply(kind, self._keep(found))
        except Exception as error:
            self._skip(found, error)
        else:
            self._report(changes)

    def _report(self, changes: list[Change]) -> None:
        for old, new in changes:
            try:
                self._on_change(old, new)
            except Exception as error:
                self._skip(new or old, error)

    def _skip(self, found: Any, error: Exception) -> None:
        self.skipped += 1
        if time.monotonic() < self._skipped_due:
            return
        self._skipped_due = time.monotonic() + SKIPPED_S
        why = f"{type(error).__name__}: {error}"
        name = "/".join(key_of(found)) if isinstance(found, dict) else ""
        log.get().error("an object was skipped", of=self._path, object=name, reason=why[:256], skipped=self.skipped)
