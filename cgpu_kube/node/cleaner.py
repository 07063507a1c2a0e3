# SPDX-License-Identifier: MIT
"""Grants of pods that are gone are revoked; pods that have one bear their mark; claims that are gone end."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

from cgpu_kube import annotations as keys
from cgpu_kube.errors import KubeError
from cgpu_kube.node import podview
from cgpu_kube.node.claimcheck import ClaimCheck
from cgpu_kube.node.cluster import Cluster
from cgpu_kube.node.daemon import Cgpud
from cgpu_kube.node.marks import Marks

Say = Callable[[str, str], None]


class Cleaner:
    """@uses: whether a pod holds what the node offers. @say: a subject, and why it fails or ""."""

    def __init__(
        self,
        cluster: Cluster,
        cgpud: Cgpud,
        marks: Marks,
        claims: ClaimCheck,
        uses: Callable[[dict[str, Any]], bool],
        say: Say,
    ) -> None:
        self._cluster = cluster
        self._cgpud = cgpud
        self._marks = marks
        self._claims = claims
        self._uses = uses
        self._say = say
        self._granted: dict[str, dict[str, list[str]]] = {}  # uid of a pod -> container with a grant -> its GPUs
        self._stale: set[tuple[str, str]] = set()  # grants whose pod was not seen at the last clean-up

    async def run(self, every_s: float) -> None:
        """Until cancelled."""
        while True:
            await asyncio.sleep(every_s)
            await self.clean()
            await self._tried("pods are not marked", self._mark())
            await self._tried("claims are not compared with the API server's", self._claims.look())

    async def clean(self) -> None:
        await self._tried("grants are not cleaned up", self._clean())

    async def _tried(self, subject: str, work: Awaitable[None]) -> None:
        """What pods and cgpud say is others'; nothing in it ends the agent."""
        why = ""
        try:
            await work
        except (KubeError, KeyError, TypeError, ValueError) as error:
            why = str(error)
        self._say(subject, why)

    async def _mark(self) -> None:
        for pod in self._cluster.pods_here():
            granted = self._granted.get(str(pod["metadata"].get("uid")))
            if not self._uses(pod) or granted is None:
                continue
            await self._marks.assigned(pod)
            if not keys.names_gpus(podview.of_scheduler(pod)):
                await self._marks.restored(pod, granted)

    async def _clean(self) -> None:
        """Revoke the grants of pods that were not here twice in a row: one may be newer than the watch."""
        watch = self._cluster.pods
        if not watch.synced.is_set() or watch.failing:
            return
        answer = await self._cgpud.ask("grants")
        subjects = answer["grants"]
        alive = {uid for pod in self._cluster.pods_here() for uid in podview.uids(pod)}
        self._marks.forget_others(alive)
        self._granted = {}
        # A cgpud of before names no GPUs: then pods of an earlier life stay counted on each.
        for one, gpus in zip(subjects, answer.get("gpus") or [[]] * len(subjects), strict=True):
            if one.get("uid"):
                self._granted.setdefault(str(one["uid"]), {})[str(one["container"])] = gpus
        gone = [one for one in subjects if one.get("uid") and one["uid"] not in alive]
        for one in gone:
            if (one["uid"], one["container"]) in self._stale:
                await self._cgpud.ask("revoke", grant=one)
        self._stale = {(one["uid"], one["container"]) for one in gone}
