# SPDX-License-Identifier: MIT
"""Which of several extenders serves: a Lease of coordination.k8s.io, as client-go's leader election uses it.

A candidate takes the Lease when it was not renewed for SECONDS of the candidate's own clock since the last renewal
seen: no clock of another machine counts. The holder takes itself for one until HELD_S after the start of its last
renewal that succeeded, which is sooner.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from cgpu_common import log
from cgpu_kube.api import ApiError, Client, Object
from cgpu_kube.errors import KubeError

SECONDS, HELD_S, RETRY_S = 15.0, 10.0, 2.0
GROUP = "/apis/coordination.k8s.io/v1"


@dataclass(frozen=True)
class Times:
    """Tests have shorter ones."""

    seconds: float = SECONDS
    held_s: float = HELD_S
    retry_s: float = RETRY_S


class Lease:
    """run() ends only when it is cancelled. @changed is awaited after each gain, before the Lease counts as held, and
    after each loss."""

    def __init__(
        self,
        api: Client,
        namespace: str,
        name: str,
        identity: str,
        changed: Callable[[bool], Awaitable[None]],
        times: Times = Times(),
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.identity = identity
        self.holder = ""  # as it was last seen
        self.last = ""  # the holder before this one
        self._api = api
        self._path = f"{GROUP}/namespaces/{namespace}/leases"
        self._name = name
        self._changed = changed
        self._times = times
        self._clock = clock
        self._until = 0.0
        self._serves = False
        self._owns = False  # this life has written its name
        self._leaves = False
        self._trying = asyncio.Lock()  # held from the read of the Lease to the end of what follows from it
        self._seen: tuple[str, float] = ("", 0.0)  # resourceVersion, since when

    @property
    def is_held(self) -> bool:
        return self._serves and self._clock() < self._until

    async def run(self) -> None:
        while True:
            async with self._trying:
                try:
                    await self._try()
                except KubeError as error:
                    log.get().warning("the lease is not renewed", lease=self._name, reason=str(error))
                if self._serves and self._clock() >= self._until:
                    await self._lost()
            await asyncio.sleep(self._times.retry_s)

    async def release(self) -> None:
        """Let another one take it at once, and be no candidate any more. No request for a pod is in flight; a renewal
        may be, and its end is awaited: written after the release it would take the Lease again."""
        self._leaves = True
        async with self._trying:
            await self._leave()

    async def _leave(self) -> None:
        if not self._owns:
            return
        try:
            if self._serves:
                self._serves = False
                await self._changed(False)
            found = await self._api.get(f"{self._path}/{self._name}")
            if (found.get("spec") or {}).get("holderIdentity") == self.identity:
                await self._write(found, "")
        except KubeError as error:
            log.get().warning("the lease is not released", lease=self._name, reason=str(error))

    async def _try(self) -> None:
        began = self._clock()
        if self._leaves:
            return
        try:
            found = await self._api.get(f"{self._path}/{self._name}")
        except ApiError as error:
            if not error.is_missing:
                raise
            body: Object = {"apiVersion": "coordination.k8s.io/v1", "kind": "Lease", "metadata": {"name": self._name}}
            await self._api.create(self._path, body | {"spec": self._spec({}, self.identity)})
            await self._gained(began)
            return
        self.holder = str((found.get("spec") or {}).get("holderIdentity") or "")
        version = str((found.get("metadata") or {}).get("resourceVersion") or "")
        if version != self._seen[0]:
            self._seen = (version, began)
        # Its own name after a restart is another life's: that one's writes may be in flight.
        if self._leaves:
            return
        mine = self.holder == self.identity and self._owns
        if not mine and self.holder and began < self._seen[1] + self._times.seconds:
            return
        if self._serves and began >= self._until:
            await self._lost()
        if self.holder != self.identity:
            self.last = self.holder
        await self._write(found, self.identity)
        await self._gained(began)

    async def _renew(self) -> None:
        """While `changed` runs. Raises KubeError; the last renewal counts until its time is over."""
        began = self._clock()
        found = await self._api.get(f"{self._path}/{self._name}")
        self.holder = str((found.get("spec") or {}).get("holderIdentity") or "")
        if self.holder != self.identity:
            self._until = 0.0
            raise KubeError(f"{self.holder or 'no extender'} holds the lease")
        await self._write(found, self.identity)
        self._until = began + self._times.held_s

    async def _write(self, found: Object, holder: str) -> None:
        """With the version that was read: of two candidates one fails."""
        found = {**found, "spec": self._spec(found.get("spec") or {}, holder)}
        written = await self._api.replace(f"{self._path}/{self._name}", found)
        self.holder = holder
        self._seen = (str((written.get("metadata") or {}).get("resourceVersion") or ""), self._clock())

    def _spec(self, before: Object, holder: str) -> Object:
        now = datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")
        out: dict[str, Any] = {**before, "holderIdentity": holder, "renewTime": now}
        out["leaseDurationSeconds"] = max(1, round(self._times.seconds)) if holder else 1
        if before.get("holderIdentity") != holder:
            out["acquireTime"] = now
            out["leaseTransitions"] = int(before.get("leaseTransitions") or 0) + 1
        return out

    async def _gained(self, began: float) -> None:
        self._owns = True
        self._until = began + self._times.held_s
        if not self._serves and not self._leaves:
            log.get().info("this one serves", lease=self._name, identity=self.identity)
            await self._take_over()

    async def _take_over(self) -> None:
        """`changed` reads every pod of the cluster, which may take longer than a Lease lasts: renewed meanwhile. Raises
        KubeError; this one does not serve then."""

        async def take() -> None:
            await self._changed(True)
            self._serves = not self._leaves  # without a wait between: pods that come now find that this one serves

        change = asyncio.create_task(take())
        try:
            while not (await asyncio.wait({change}, timeout=self._times.retry_s))[0]:
                try:
                    await self._renew()
                except KubeError as error:
                    log.get().warning("the lease is not renewed", lease=self._name, reason=str(error))
                if not change.done() and (self._leaves or self._clock() >= self._until):
                    break
        finally:
            is_cut = not change.done()
            change.cancel()
            await asyncio.wait({change})
        if is_cut:
            await self._lost()
        else:
            change.result()

    async def _lost(self) -> None:
        self._serves = False
        log.get().warning("another one may serve now", lease=self._name, identity=self.identity)
        try:
            await self._changed(False)
        except KubeError as error:  # the API server is away, which is why the lease is lost
            log.get().warning("the loss of the lease is not shown", lease=self._name, reason=str(error))
