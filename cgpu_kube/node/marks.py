# SPDX-License-Identifier: MIT
"""What the agent writes into the annotations of a pod when its containers have their GPUs."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Container, Mapping, Sequence
from typing import Any

from cgpu_kube import annotations as keys
from cgpu_kube import pods
from cgpu_kube.api import ApiError, Object
from cgpu_kube.errors import BadAnnotation, KubeError
from cgpu_kube.node import podview
from cgpu_kube.node.cluster import Cluster
from cgpu_kube.node.decide import Grant, Subject
from cgpu_kube.node.host import HostGpu, Offer

AGAIN_S = 600.0  # from a refusal to the next try
#: Of the API server's own refusal, which is of every pod; that of an admission webhook is of one, and has its words.
NO_RIGHT = 'cannot patch resource "pods"'


class Marks:
    """Nothing here raises KubeError: a container starts without its mark."""

    def __init__(self, cluster: Cluster, offered: Callable[[], tuple[Offer, Sequence[HostGpu]]], log: Any) -> None:
        """@offered: what the node offers, and of which GPUs."""
        self._cluster = cluster
        self._offered = offered
        self._log = log
        self._refused: dict[str, float] = {}  # uid of a pod, or "" for all of them -> until when
        self._writing = asyncio.Lock()  # a start and a clean-up mark one pod at the same time
        self._chosen: dict[str, dict[str, tuple[int, ...]]] = {}  # uid -> GPUs of containers, until each has some

    def forget_others(self, alive: Container[str]) -> None:
        self._chosen = {uid: found for uid, found in self._chosen.items() if uid in alive}

    async def assigned(self, pod: Object) -> None:
        """The pod has the GPU that a scheduler has written, as the vendor's plugin says it."""
        try:
            found = keys.parse(podview.of_scheduler(pod))
        except BadAnnotation:
            return  # edited since its grant; its next start is refused with the sentence
        if found is not None and not found.assigned:
            await self._write(pod, keys.assigned_patch(found, time.time_ns()))

    async def placed(self, pod: Object, subject: Subject, grant: Grant) -> None:
        """The GPUs of a pod that no extender has bound, once each of its containers has one: else it is counted on
        every GPU of the node. All at once: of an annotation with some containers the others are refused."""
        uuids = [grant["whole"]] if "whole" in grant else [slot["gpu"] for slot in grant["slots"]]
        self._chosen.setdefault(subject.uid, {})[subject.container] = self._indices(uuids)
        await self._complete(pod, subject.uid)

    async def restored(self, pod: Object, granted: Mapping[str, Sequence[str]]) -> None:
        """The same of containers that started in an earlier life of this agent. @granted: the GPUs of cgpud's grants by
        container. A grant outlives its container, as an init container's has to, and needs no slice."""
        uid = str(pod["metadata"].get("uid"))
        for name, uuids in granted.items():
            if found := self._indices(uuids):
                self._chosen.setdefault(uid, {}).setdefault(name, found)
        if uid in self._chosen:
            await self._complete(pod, uid)

    def _indices(self, uuids: Sequence[str]) -> tuple[int, ...]:
        return tuple(sorted(gpu.index for gpu in self._offered()[1] if gpu.uuid in uuids))

    async def _complete(self, pod: Object, uid: str) -> None:
        """Write them, if each container has some."""
        offer, gpus = self._offered()
        by_index = {gpu.index: gpu for gpu in gpus}
        try:
            need = pods.needs(pod)
        except KubeError:
            return  # edited since its grant
        if need is None or podview.is_static(pod):
            return
        # Others may have a grant of a claim.
        chosen = {one.name: self._chosen[uid].get(one.name, ()) for one in need.containers}
        indices = {index for found in chosen.values() for index in found}
        if not all(chosen.values()) or not indices <= by_index.keys():
            return
        del self._chosen[uid]
        sizes = {gpu.index: offer.placed(gpu) for gpu in gpus}
        dev = offer.dev(by_index[min(indices)])
        texts = pods.annotated(need, chosen, dev, time.time_ns(), places=None, sizes=sizes)
        await self._write(pod, {**texts, keys.ASSIGNED: "true", keys.NEW_ASSIGNED: "true"})

    async def _write(self, pod: Object, texts: Mapping[str, str]) -> None:
        """A refusal holds for minutes: the identity of a kubelet may not write annotations of pods."""
        async with self._writing:
            await self._write_now(pod, texts)

    async def _write_now(self, pod: Object, texts: Mapping[str, str]) -> None:
        now, uid = time.monotonic(), str(pod["metadata"].get("uid"))
        self._refused = {key: until for key, until in self._refused.items() if until > now}
        if self._refused.keys() & {"", uid}:
            return
        try:
            await self._cluster.set_assigned(pod, texts)
        except KubeError as error:
            is_forbidden = isinstance(error, ApiError) and error.status == 403
            has_no_right = is_forbidden and NO_RIGHT in str(error)
            if is_forbidden:
                self._refused["" if has_no_right else uid] = now + AGAIN_S
            hint = "docs/user/kubernetes-node.md has an identity that may; until then no pod is marked"
            more = {"hint": hint} if has_no_right else {}
            self._log.warning("not marked as assigned", pod=podview.full_name(pod), reason=str(error), **more)
