# SPDX-License-Identifier: MIT
"""Pods on a node in the mode mps that use more than they were given: an event for each, and the end of one that does it
again.

cgpud watches what they use, and ends programs. A pod is deleted, not evicted: of a deletion the admission policy sees
the node, so an agent can delete pods of its own node only.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from typing import Any

from cgpu_kube.api import ApiError
from cgpu_kube.errors import KubeError
from cgpu_kube.node import podview
from cgpu_kube.node.cluster import Cluster
from cgpu_kube.node.daemon import Cgpud

OVER, GONE, BLIND = "GPUMemoryOverGrant", "GPUMemoryEvicted", "GPUMemoryNotWatched"
KILLED = "GPUProgramKilled"
LOOK_S = 2.0  # at pods that are over their grant


class Evictor:
    def __init__(self, cluster: Cluster, cgpud: Cgpud, log: Any) -> None:
        self._cluster = cluster
        self._cgpud = cgpud
        self._log = log
        self._told: dict[str, tuple[int, int]] = {}  # container -> overs and ended programs with an event
        self._killed: dict[str, int] = {}  # the same -> killed programs with an event
        self._failed: dict[str, str] = {}  # the same -> why it was not deleted
        self._blind = ""

    async def run(self, is_on: Callable[[], bool], every_s: float, say: Callable[[str, str], None]) -> None:
        """Until cancelled. @is_on: the mode is mps, asked each @every_s while it is not. @say: a subject, and why it
        fails or ""."""
        while True:
            await asyncio.sleep(min(every_s, LOOK_S) if is_on() else every_s)
            if not is_on():
                continue
            why = ""
            try:
                await self.look()
            except (KubeError, KeyError, TypeError) as error:
                why = str(error)
            say("clients of MPS are not watched", why)

    async def look(self) -> None:
        """Ask cgpud, and act. Raises KubeError if cgpud does not answer."""
        found = await self._cgpud.ask("mps")
        rows = {row["id"]: row for row in found["containers"] if row["uid"]}
        if found["blind"] and not self._blind:
            self._log.error("the memory of MPS clients is not known", reason=found["blind"])
            text = f"its use of GPU memory is not known, so that no limit holds: {found['blind']}"
            clients = {row["uid"]: row for row in rows.values()}
            for client in clients.values():
                await self._event(client, BLIND, text)
        self._blind = found["blind"]
        self._told = {key: told for key, told in self._told.items() if key in rows}
        self._killed = {key: count for key, count in self._killed.items() if key in rows}
        self._failed = {key: why for key, why in self._failed.items() if key in rows}
        for row in rows.values():
            await self._tell(row)
            await self._tell_killed(row)
            if row["evict"]:
                await self._delete(row)

    async def _tell(self, row: Mapping[str, Any]) -> None:
        told, now = self._told.get(row["id"], (0, 0)), (row["overs"], row["ended"])
        if now == told:
            return
        self._told[row["id"]] = now
        used = "an unknown amount" if row["used_mib"] is None else f"{row['used_mib']} MiB"
        text = f"{used} of GPU memory in use, {row['grant_mib']} MiB were given; {row['ended']} program(s) were ended"
        await self._event(row, OVER, text)

    async def _tell_killed(self, row: Mapping[str, Any]) -> None:
        """The others are ended on the GPU alone, and find an error there; these are gone."""
        count = int(row.get("killed", 0))  # a cgpud of before has none
        if count > self._killed.get(row["id"], 0):
            text = f"{count} program(s) over the grant were killed (SIGKILL), since the MPS server did not end them"
            await self._event(row, KILLED, text)
        self._killed[row["id"]] = count

    async def _delete(self, row: Mapping[str, Any]) -> None:
        namespace, _, name = row["pod"].partition("/")
        pod = next((one for one in self._cluster.pods_here() if row["uid"] in podview.uids(one)), None)
        if pod is None:
            return  # it goes already
        try:
            await self._cluster.delete_pod(namespace, name, pod["metadata"]["uid"])
        except KubeError as error:
            if isinstance(error, ApiError) and (error.is_missing or error.is_conflict):
                return
            if self._failed.get(row["id"]) != str(error):
                self._log.error("a pod over its GPU memory was not deleted", pod=row["pod"], reason=str(error))
            self._failed[row["id"]] = str(error)
            return
        self._log.warning("a pod over its GPU memory was deleted", pod=row["pod"], reason=row["evict"])
        await self._event(row, GONE, row["evict"])

    async def _event(self, row: Mapping[str, Any], reason: str, text: str) -> None:
        namespace, _, name = row["pod"].partition("/")
        try:
            await self._cluster.create_event(namespace, name, row["uid"], reason, text)
        except KubeError as error:
            self._log.warning("no event was written", pod=row["pod"], reason=str(error))
