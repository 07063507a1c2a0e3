# SPDX-License-Identifier: MIT
"""The API server as the node sees it: its node, pods, claims and ResourceSlice. Every method raises KubeError."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

from cgpu_kube import annotations as keys
from cgpu_kube import pods
from cgpu_kube.annotations import NodeGpus
from cgpu_kube.api import MERGE, STRATEGIC, ApiError, Client, Object, Unreachable
from cgpu_kube.errors import BadAnnotation
from cgpu_kube.node import claims, podview
from cgpu_kube.parts import Parts
from cgpu_kube.watch import Watcher

NODES = "/api/v1/nodes"
PODS = "/api/v1/pods"
RESOURCE = "/apis/resource.k8s.io/v1"
_POD = Parts(podview.Sparse)
TOO_MANY, INTERNAL = 429, 500  # the first HTTP status of each kind that passes
AGAIN_EACH_S = 0.2
#: Conditions of the node: a scheduler tries its waiting pods again when one changes.
HELD, REFUSED = "GPUMemoryHeld", "GPUModeRefused"
REASONS = {HELD: ("NothingHeld", "PodsDeletedByForce"), REFUSED: ("LabelInEffect", "LabelNotInEffect")}  # False, True


class Cluster:
    """Watches of the node, its pods and its ResourceSlices, and the few writes."""

    def __init__(
        self,
        api: Client,
        node: str,
        on_change: Callable[[], None],
        on_pod: Callable[[], None],
        log: Any,
        again_s: float = 0.0,
    ) -> None:
        """@again_s: for which a pod is asked for again while the API server fails."""
        self._api = api
        self._again_s = again_s
        self.node = node
        self._silent = False  # a failure is logged once
        self.gone: dict[str, str] = {}  # uid -> namespace/name of pods that were deleted while a container ran

        def changed(_old: Object | None, _new: Object | None) -> None:
            self._silent = False
            on_change()

        def pod_changed(old: Object | None, new: Object | None) -> None:
            if new is None and old is not None and pods.has_running(old) and pods.is_tracked(old):
                self.gone |= dict.fromkeys(podview.uids(old), podview.full_name(old))
            if new is not None and old is None and podview.uses_gpu(new) and podview.is_here(new, node):
                on_pod()
            changed(old, new)

        def failed(why: str, seconds: float) -> None:
            if not self._silent:
                log.warning("the API server is not followed", reason=why, next_try_s=round(seconds, 1))
            self._silent = True

        common: dict[str, Any] = {"on_change": changed, "on_failure": failed}
        self.nodes = Watcher(api, NODES, {"fieldSelector": f"metadata.name={node}"}, keep=_node, **common)
        self.pods = Watcher(
            api,
            PODS,
            {"fieldSelector": f"spec.nodeName={node}"},
            keep=podview.kept,
            parts=_POD,
            **{**common, "on_change": pod_changed},
        )
        self.slices = Watcher(
            api,
            f"{RESOURCE}/resourceslices",
            {"fieldSelector": f"spec.nodeName={node},spec.driver={claims.DRIVER}"},
            **common,
        )

    @property
    def token_ends(self) -> int:
        return self._api.token_ends

    def forget(self) -> None:
        """Nothing is followed from now on: the mirrors count again after the list with which each run() begins."""
        for watch in (self.nodes, self.pods, self.slices):
            watch.synced.clear()

    # ---- reading ----

    def own_node(self) -> Object | None:
        found: Object | None = self.nodes.objects.get("", self.node)
        return found

    def allocatable(self, resource: str) -> int | None:
        """Of the node's status. None: the API server does not answer, or has none."""
        found = None if self.nodes.failing else (self.own_node() or {}).get("allocatable", {}).get(resource)
        return int(found) if found is not None and str(found).isdecimal() else None

    def published(self) -> NodeGpus | None:
        """The node's annotation, which an earlier life of the agent may have written; None: none, or it is damaged."""
        try:
            return keys.parse_node((self.own_node() or {}).get("annotations"))
        except BadAnnotation:
            return None

    def published_deleted(self) -> dict[str, keys.Remains]:
        found = self.published()
        return dict(found.deleted) if found else {}

    def pods_here(self) -> list[Object]:
        return [pod for pod in self.pods.objects if podview.is_here(pod, self.node)]

    async def pod(self, namespace: str, name: str, uid: str, *, fresh: bool) -> Object | None:
        """The pod of this uid. From the watch, or if that has not seen it, or `fresh`, from the API server; None: the
        API server does not answer, for seconds. Another pod of that name is returned as it is. Raises ApiError if it
        refuses to answer."""
        known: Object | None = self.pods.objects.get(namespace, name)
        if known is not None and uid in podview.uids(known) and not fresh:
            return known
        loop = asyncio.get_running_loop()
        end = loop.time() + self._again_s
        while True:
            wait_s = AGAIN_EACH_S
            try:
                found = await self._api.get(f"/api/v1/namespaces/{namespace}/pods/{name}", _POD)
                self.pods.put(found)
                return podview.kept(found)
            except ApiError as error:
                if error.is_missing:
                    return {"metadata": {"namespace": namespace, "name": name}}
                if error.status != TOO_MANY and error.status < INTERNAL and known is None:
                    raise
                wait_s = max(wait_s, error.retry_after_s or 0.0)
            except Unreachable:
                pass
            # Without the pod its container would be granted by what the kubelet has counted, and keep that.
            known = self.pods.objects.get(namespace, name)
            left_s = end - loop.time()
            if (known is not None and uid in podview.uids(known)) or left_s <= 0:
                return known
            await asyncio.sleep(min(wait_s, left_s))

    async def allows(self, namespace: str, label: str, value: str) -> bool:
        """By a label of the namespace, which authors of pods in it cannot write."""
        found = await self._api.get(f"/api/v1/namespaces/{namespace}")
        return ((found.get("metadata") or {}).get("labels") or {}).get(label) == value

    async def claim(self, namespace: str, name: str) -> Object:
        return await self._api.get(f"{RESOURCE}/namespaces/{namespace}/resourceclaims/{name}")

    # ---- writing ----

    async def set_assigned(self, pod: Object, values: Mapping[str, str]) -> None:
        meta = pod["metadata"]
        path = f"/api/v1/namespaces/{meta['namespace']}/pods/{meta['name']}"
        body = {"metadata": {"uid": meta["uid"], "annotations": dict(values)}}
        self.pods.put(await self._api.patch(path, body, MERGE, _POD))

    async def delete_pod(self, namespace: str, name: str, uid: str) -> None:
        """This pod, and no later one of the name."""
        body = {"apiVersion": "v1", "kind": "DeleteOptions", "preconditions": {"uid": uid}}
        await self._api.delete(f"/api/v1/namespaces/{namespace}/pods/{name}", body)

    async def create_event(self, namespace: str, name: str, uid: str, reason: str, text: str) -> None:
        """A warning about a pod, as `kubectl describe pod` shows it."""
        now = datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
        event = {
            "apiVersion": "v1",
            "kind": "Event",
            "metadata": {"generateName": f"{name[:200]}.", "namespace": namespace},
            "involvedObject": {"apiVersion": "v1", "kind": "Pod", "namespace": namespace, "name": name, "uid": uid},
            "reason": reason,
            "message": text[:1024],
            "type": "Warning",
            "source": {"component": "cgpu-kube", "host": self.node},
            "firstTimestamp": now,
            "lastTimestamp": now,
            "count": 1,
        }
        await self._api.create(f"/api/v1/namespaces/{namespace}/events", event)

    async def publish_node(self, offer: NodeGpus, count: int, cards: Mapping[str, str]) -> None:
        """The annotation and the labels, and aliyun.com/gpu-count in the status, where they differ. The kubelet sets
        the count to 0 when it starts."""
        node = self.own_node()
        if node is None:
            return
        wanted, labels = keys.write_node(offer), {keys.AGENT_LABEL: offer.mode or None}
        if offer.mode:  # else another plugin's, which may have labels like them
            labels |= {key: cards.get(key) for key in (keys.CARD_NAME, keys.CARD_MEM, keys.CARD_COUNT)}
        is_other = any(node["annotations"].get(key) != text for key, text in wanted.items())
        if is_other or any(node["labels"].get(key) != text for key, text in labels.items()):
            meta = {"annotations": wanted, "labels": labels}
            self.nodes.put(await self._api.patch(f"{NODES}/{self.node}", {"metadata": meta}, MERGE))
        have = [node["count"].get(place) for place in ("capacity", "allocatable")]
        if have != [str(count)] * 2 and (count or any(have)):
            number = {keys.GPU_COUNT: str(count)}
            body = {"status": {"capacity": number, "allocatable": number}}
            self.nodes.put(await self._api.patch(f"{NODES}/{self.node}/status", body, MERGE))

    async def publish_away(self, why: str) -> None:
        """Let no scheduler place a pod here: the node's annotation says so to the extender, and nothing is allocatable
        to kube-scheduler until the kubelet writes its status again, which it does every 10 s: then it has no devices,
        unless `cgpu-kube keep` serves them."""
        node, offer = self.own_node(), self.published()
        if node is None or offer is None or not offer.mode:
            return
        if offer.away != why:
            body = {"metadata": {"annotations": keys.write_node(replace(offer, away=why))}}
            self.nodes.put(await self._api.patch(f"{NODES}/{self.node}", body, MERGE))
        # nvidia.com/gpu may be of another plugin.
        mine = {key: amount for key, amount in node["allocatable"].items() if offer.names or key != keys.NV_GPU}
        offered = {key: "0" for key, amount in mine.items() if str(amount) != "0"}
        if offered:
            body = {"status": {"allocatable": offered}}
            self.nodes.put(await self._api.patch(f"{NODES}/{self.node}/status", body, MERGE))

    async def publish_condition(self, kind: str, holds: bool, message: str) -> None:
        """The condition, once there has been a reason for it."""
        status = "True" if holds else "False"
        node = self.own_node()
        before = ("", "") if node is None else node["conditions"].get(kind, ("", ""))
        if node is None or before == (status, message) or not (holds or before[0]):
            return
        now = datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
        condition = {"type": kind, "status": status, "message": message, "lastHeartbeatTime": now}
        condition["reason"] = REASONS[kind][holds]
        if status != before[0]:
            condition["lastTransitionTime"] = now
        body = {"status": {"conditions": [condition]}}
        self.nodes.put(await self._api.patch(f"{NODES}/{self.node}/status", body, STRATEGIC))

    async def publish_slice(self, spec: Object | None) -> None:
        """Make the node's ResourceSlice so; None: remove it."""
        name = f"{self.node}-{claims.DRIVER}"
        there = self.slices.objects.get("", name)
        path = f"{RESOURCE}/resourceslices"
        try:
            if spec is None:
                if there is not None:
                    await self._api.delete(f"{path}/{name}")
            elif there is None:
                self.slices.put(await self._api.create(path, self._slice(name, spec)))
            elif not claims.same_slice(there.get("spec") or {}, spec):
                meta = {"name": name, "resourceVersion": there["metadata"]["resourceVersion"]}
                body = self._slice(name, claims.renewed(there.get("spec") or {}, spec))
                body["metadata"] |= meta
                self.slices.put(await self._api.replace(f"{path}/{name}", body))
        except ApiError as error:
            # Another state than that of the watch: its event is on the way.
            if not (error.is_conflict or error.is_missing):
                raise

    def _slice(self, name: str, spec: Object) -> Object:
        node = self.own_node() or {}
        owner = {"apiVersion": "v1", "kind": "Node", "name": self.node, "uid": node.get("metadata", {}).get("uid", "")}
        meta: Object = {"name": name}
        if owner["uid"]:
            meta["ownerReferences"] = [{**owner, "controller": True}]
        return {"apiVersion": "resource.k8s.io/v1", "kind": "ResourceSlice", "metadata": meta, "spec": spec}


_LABELS = (
    *(keys.MODE_LABEL, keys.PLACEMENT_LABEL, keys.AGENT_LABEL, keys.NAMES_LABEL),
    *(keys.CARD_NAME, keys.CARD_MEM, keys.CARD_COUNT),
)


def _node(found: Object) -> Object:
    """The parts of the node that count."""
    meta, status = found.get("metadata") or {}, found.get("status") or {}
    return {
        "metadata": {key: meta[key] for key in ("name", "uid", "resourceVersion") if key in meta},
        "labels": {key: text for key, text in (meta.get("labels") or {}).items() if key in _LABELS},
        "annotations": {key: text for key, text in (meta.get("annotations") or {}).items() if key == keys.NODE_GPUS},
        "allocatable": {
            key: amount
            for key, amount in (status.get("allocatable") or {}).items()
            if key in (keys.GPU_MEM, keys.GPU_CORE, keys.NV_GPU)
        },
        "count": {
            place: (status.get(place) or {})[keys.GPU_COUNT]
            for place in ("capacity", "allocatable")
            if keys.GPU_COUNT in (status.get(place) or {})
        },
        "conditions": {
            one["type"]: (str(one.get("status")), str(one.get("message") or ""))
            for one in status.get("conditions") or []
            if one.get("type") in REASONS
        },
        "runtime": str((status.get("nodeInfo") or {}).get("containerRuntimeVersion") or ""),
    }
