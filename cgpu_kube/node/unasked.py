# SPDX-License-Identifier: MIT
"""Containers of prepared claims that run without a grant in cgpud.

A container gets its slice by the CDI spec of the claim. An engine that ignores CDI devices starts it without the slice,
perhaps with every GPU. check_runtime() refuses the engines known to do so; for others compare running containers with
cgpud's grants.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterable
from typing import Any

from cgpu_kube.errors import KubeError
from cgpu_kube.node import claims, podview
from cgpu_kube.node.claims import Claim
from cgpu_kube.node.cluster import Cluster
from cgpu_kube.node.daemon import Cgpud

REASON = "GPUClaimNotApplied"
LOOK_S = 5.0
#: From the first sight of a running container. cgpud keeps the grant before the engine starts the first process.
SETTLED_S = 10.0

Key = tuple[str, str]  # uid of the pod, container


class Unasked:
    def __init__(self, cluster: Cluster, cgpud: Cgpud, prepared: Iterable[Claim], log: Any) -> None:
        self._cluster = cluster
        self._cgpud = cgpud
        self._prepared = prepared
        self._log = log
        self._seen: dict[Key, float] = {}  # running containers of claims, since when
        self._asked: set[Key] = set()
        self.found: set[Key] = set()

    async def run(self, every_s: float, say: Callable[[str, str], None]) -> None:
        """Until cancelled. @say: a subject, and why it fails or ""."""
        while True:
            await asyncio.sleep(every_s)
            why = ""
            try:
                await self.look(time.monotonic())
            except (KubeError, KeyError, TypeError) as error:
                why = str(error)
            say("containers of claims are not compared with the grants", why)

    async def look(self, now: float) -> None:
        """Raises KubeError if cgpud does not answer."""
        there = self._running()
        self._seen = {key: self._seen.get(key, now) for key in there}
        self._asked &= there.keys()
        self.found &= there.keys()
        due = {key for key, since in self._seen.items() if now - since >= SETTLED_S} - self._asked - self.found
        if not due:
            return
        subjects = (await self._cgpud.ask("grants"))["grants"]
        self._asked |= {(str(one.get("uid")), str(one.get("container"))) for one in subjects} & there.keys()
        for key in sorted(due - self._asked):
            self.found.add(key)
            await self._tell(there[key], key)

    def _running(self) -> dict[Key, dict[str, Any]]:
        """Containers with a slice of a prepared claim -> their pod."""
        prepared = {name: one for name, one in claims.by_name(self._prepared).items() if one.slots}
        found = {}
        for pod in self._cluster.pods_here() if prepared else ():
            meta = pod["metadata"]
            for name in podview.running(pod):
                for claim_name, request in claims.claim_names(pod, name):
                    claim = prepared.get((str(meta.get("namespace")), claim_name))
                    if claim is not None and request not in claim.observers:
                        found[str(meta.get("uid")), name] = pod
        return found

    async def _tell(self, pod: dict[str, Any], key: Key) -> None:
        node = self._cluster.own_node() or {}
        text = (
            f"container {key[1]} has a claim of {claims.DRIVER} and runs without its slice, perhaps with whole GPUs: "
            f"{node.get('runtime') or 'the container runtime'} has not started it by cgpu-runtime with the claim's CDI "
            f"devices; {claims.CDI_REMEDY}"
        )
        meta = pod["metadata"]
        self._log.error("a claim's container runs without its slice", pod=podview.full_name(pod), reason=text)
        try:
            await self._cluster.create_event(meta["namespace"], meta["name"], meta["uid"], REASON, text)
        except KubeError as error:
            self._log.warning("no event was written", pod=podview.full_name(pod), reason=str(error))
