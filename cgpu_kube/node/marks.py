# SPDX-License-Identifier: MIT
"""What the agent writes into the annotations of a pod when its containers have their GPUs."""

from __future__ import annotations

import time
from collections.abc import Container, Mapping, Sequence
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

    def __init__(self, cluster: Cluster, log: Any) -> None:
        self._cluster = cluster
        self._log = log
        self._refused: dict[str, float] = {}  # uid of a pod, or "" for all of them -> until when
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

    async def placed(self, pod: Object, subject: Subject, grant: Grant, offer: Offer, gpus: Sequence[HostGpu]) -> None:
        """The GPUs of a pod that no extender has bound, once each of its containers has one: else it is counted on
        every GPU of the node. All at once: of an annotation with some containers the others are refused."""
        need = pods.needs(pod)  # it was granted, so nothing is refused
        uuids = [grant["whole"]] if "whole" in grant else [slot["gpu"] for slot in grant["slots"]]
        found = [gpu for gpu in gpus if gpu.uuid in uuids]
        chosen = self._chosen.setdefault(subject.uid, {})
        chosen[subject.container] = tuple(sorted(gpu.index for gpu in found))
        if (
            need is None
            or not found
            or podview.is_static(pod)
            or {one.name for one in need.containers} != chosen.keys()
        ):
            return
        del self._chosen[subject.uid]
        sizes = {gpu.index: offer.placed(gpu) for gpu in gpus}
        texts = pods.annotated(need, chosen, offer.dev(found[0]), time.time_ns(), places=None, sizes=sizes)
        await self._write(pod, {**texts, keys.ASSIGNED: "true", keys.NEW_ASSIGNED: "true"})

    async def _write(self, pod: Object, texts: Mapping[str, str]) -> None:
        """A refusal holds for minutes: the identity of a kubelet may not write annotations of pods."""
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
