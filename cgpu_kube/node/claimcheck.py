# SPDX-License-Identifier: MIT
"""The prepared claims compared with those of the API server.

A kubelet that has lost its state never ends what it has prepared. Such a claim would give its slice to the pods of a
later claim of the name, which may be another driver's, and would keep the node in its mode.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from cgpu_kube.api import ApiError, Object, Unreachable
from cgpu_kube.errors import KubeError, Refused
from cgpu_kube.node import podview
from cgpu_kube.node.claims import Claim
from cgpu_kube.node.cluster import Cluster
from cgpu_kube.node.daemon import Cgpud
from cgpu_kube.node.decide import Subject
from cgpu_kube.node.dra import Claims

LOOKED_AT = 8  # claims of one look: each is a request


class ClaimCheck:
    """@ended: called when a claim is forgotten."""

    def __init__(self, cluster: Cluster, cgpud: Cgpud, claims: Claims, ended: Callable[[], None], log: Any) -> None:
        self._cluster = cluster
        self._cgpud = cgpud
        self._claims = claims
        self._ended = ended
        self._log = log
        self._next: list[str] = []  # uids of claims that this round has not looked at yet
        self._free: set[str] = set()  # retired ones that had no slice at the last look
        self._pods: dict[str, set[str]] = {}  # uid of a claim -> uids of the pods whose claim of the name it is

    async def check(self, subject: Subject, pod: Object, claimed: str) -> None:
        """Raises KubeError unless the prepared claim of the slice @claimed is the one that the pod names. The API
        server deletes no claim that a pod has reserved, so one answer counts as long as the pod is there."""
        claim = next((one for one in self._claims if one.slice == claimed), None)
        if claim is not None and self._pods.get(claim.uid, set()) & podview.uids(pod):
            return
        if claim is None or not await self._is_there(claim):
            raise Refused(
                f"{subject} names a claim that is not prepared on this node; the one with uid "
                f"{claimed.removeprefix('claim-')}, of the same name, was, and the API server has it no more"
            )
        self._pods.setdefault(claim.uid, set()).update(podview.uids(pod))

    async def look(self) -> None:
        """Retire the claims that the API server has no more, and forget the retired ones without a slice. Raises
        KubeError."""
        there = {claim.uid: claim for claim in self._claims}
        if not there:
            return
        alive = {uid for pod in self._cluster.pods_here() for uid in podview.uids(pod)}
        self._pods = {uid: pods & alive for uid, pods in self._pods.items() if uid in there}
        await self._forget([claim for claim in there.values() if claim.retired])
        watch = self._cluster.pods
        if not watch.synced.is_set() or watch.failing:
            return
        self._next = [uid for uid in self._next if uid in there] or list(there)
        now, self._next = self._next[:LOOKED_AT], self._next[LOOKED_AT:]
        failed: KubeError | None = None
        for claim in (there[uid] for uid in now):
            try:
                if not claim.retired:
                    await self._is_there(claim)
            except Unreachable:
                raise
            except KubeError as error:  # of this claim, perhaps
                failed = error
        if failed is not None:
            raise failed

    async def _is_there(self, claim: Claim) -> bool:
        """Whether it is the API server's claim of the name. One that is not is retired. Raises KubeError."""
        try:
            found = await self._cluster.claim(claim.namespace, claim.name)
        except ApiError as error:
            if not error.is_missing or f'"{claim.name}" not found' not in str(error):
                raise  # a server without claims says only that there is no such resource
            found = {}
        meta = found.get("metadata") or {}
        if meta.get("uid") == claim.uid:
            reserved = (found.get("status") or {}).get("reservedFor") or []
            self._pods.setdefault(claim.uid, set()).update(str(one.get("uid")) for one in reserved)
            return True
        self._pods.pop(claim.uid, None)
        try:
            is_new = self._claims.retire(claim.uid)
        except OSError as error:
            raise KubeError(f"claim {claim.namespace}/{claim.name}, uid {claim.uid}: {error}") from error
        if is_new:
            self._log.warning(
                "a claim is gone from the API server, and the kubelet has not ended it",
                claim=f"{claim.namespace}/{claim.name}",
                uid=claim.uid,
            )
        return False

    async def _forget(self, retired: list[Claim]) -> None:
        """Those that had no slice at two looks in a row: a container may start while one is retired."""
        if not retired:
            self._free = set()
            return
        held = {str(one["id"]) for one in (await self._cgpud.ask("slices"))["slices"]}
        free = {claim.uid: claim for claim in retired if claim.slice not in held}
        for uid, claim in free.items():
            if uid in self._free:
                try:
                    self._claims.remove(uid)
                except OSError as error:
                    raise KubeError(f"claim {claim.namespace}/{claim.name}, uid {uid}: {error}") from error
                self._log.info("a claim is forgotten", claim=f"{claim.namespace}/{claim.name}", uid=uid)
                self._ended()
        self._free = set(free)
