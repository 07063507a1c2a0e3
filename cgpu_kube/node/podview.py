# SPDX-License-Identifier: MIT
"""PURE: the parts of a pod that decide what its containers get. Pods are the API server's JSON."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, TypedDict

from cgpu_common.placement import CONTAINERS_MAX
from cgpu_kube import annotations as keys
from cgpu_kube.errors import Refused
from cgpu_kube.pods import created_ns, has_running, is_over, is_tracked, node_of

Object = dict[str, Any]
MIRROR = "kubernetes.io/config.mirror"  # on the API server's copy of a static pod: the uid that the kubelet uses
NODE_KIND = "Node"
CLOCK_SKEW_NS = 60 * 10**9  # between the API server's clock and the scheduler's

_META = ("name", "namespace", "uid", "resourceVersion", "creationTimestamp")
_STATUS = ("phase", "resourceClaimStatuses", "extendedResourceClaimStatus")
_ASKED = (keys.MEMORY, keys.PRIORITY, keys.THREADS, *keys.CHOICES)  # by the pod's author
_ANNOTATIONS = (
    keys.INDEX, keys.DEV, keys.POD, keys.ASSIGNED, keys.ASSUME_TIME, keys.ALLOCATION, keys.CORE_ALLOCATION,
    keys.NEW_ASSIGNED, keys.NEW_ASSUME_TIME, MIRROR,
)  # fmt: skip


class _Resources(TypedDict, total=False):
    limits: Any
    requests: Any
    claims: Any


class _Container(TypedDict, total=False):
    name: Any
    resources: _Resources | None
    restartPolicy: Any


class _State(TypedDict, total=False):
    running: Any


class _ContainerStatus(TypedDict, total=False):
    name: Any
    state: _State | None


class _Owner(TypedDict, total=False):
    kind: Any
    name: Any


_Labels = TypedDict("_Labels", {keys.GPU_COUNT: Any}, total=False)  # type: ignore[misc]


class _Meta(TypedDict, total=False):
    name: Any
    namespace: Any
    uid: Any
    resourceVersion: Any
    creationTimestamp: Any
    ownerReferences: list[_Owner] | None
    labels: _Labels | None
    annotations: Any


class _Spec(TypedDict, total=False):
    nodeName: Any
    resourceClaims: Any
    initContainers: list[_Container] | None
    containers: list[_Container] | None


class _Status(TypedDict, total=False):
    phase: Any
    resourceClaimStatuses: Any
    extendedResourceClaimStatus: Any
    initContainerStatuses: list[_ContainerStatus] | None
    containerStatuses: list[_ContainerStatus] | None


class Sparse(TypedDict, total=False):
    """The parts of a pod that kept() reads, for a decoder that passes the others over. A Status object, which a watch
    may send instead, has a word for `status`."""

    metadata: _Meta | None
    spec: _Spec | None
    status: _Status | str | None


def kept(pod: Object) -> Object:
    """The parts that count, to save memory: the spec of a pod is mostly text that does not, and any tenant can write a
    MiB of it. What its author has written is of a pod that uses a GPU only."""
    meta, spec, status = pod.get("metadata") or {}, pod.get("spec") or {}, pod.get("status") or {}
    out: Object = {
        "metadata": {key: meta[key] for key in _META if key in meta},
        "spec": {key: spec[key] for key in ("nodeName", "resourceClaims") if spec.get(key)},
        "status": {key: status[key] for key in _STATUS if key in status},
    }
    if is_static(pod):
        out["metadata"]["ownerReferences"] = [{"kind": NODE_KIND, "name": node_of(pod)}]
    if has_running(pod):
        # Only pods with GPUs need more; init containers are kept in the same list.
        names = running(pod) if uses_gpu(pod) else [""]
        out["status"]["containerStatuses"] = [{"state": {"running": {}}, "name": name} for name in names]
    may_use = uses_gpu(pod) and (not is_over(pod) or has_running(pod))
    counts = {MIRROR, *_ANNOTATIONS, *_ASKED, *_nv_keys(pod)} if may_use else {MIRROR}
    # A longer text than the parsers take is refused by them.
    out["metadata"]["annotations"] = {
        key: text[: keys.TEXT_MAX + 1] for key, text in (meta.get("annotations") or {}).items() if key in counts
    }
    out["metadata"]["labels"] = {key: text for key, text in (meta.get("labels") or {}).items() if key == keys.GPU_COUNT}
    fields: tuple[str, ...] = ("name", "resources", "restartPolicy") if may_use else ("name",)
    for group in ("initContainers", "containers"):
        found = (spec.get(group) or []) if may_use else (spec.get(group) or [])[:CONTAINERS_MAX]
        out["spec"][group] = [{key: one[key] for key in fields if key in one} for one in found]
    return out


def _nv_keys(pod: Object) -> set[str]:
    return {
        f"{keys.NV_PREFIX}{one.get('name')}{suffix}"
        for one in containers(pod)
        for suffix in (keys.NV_LIMIT, keys.NV_REQUEST)
    }


def containers(pod: Object) -> list[Object]:
    spec = pod.get("spec") or {}
    return [one for group in ("initContainers", "containers") for one in spec.get(group) or []]


def uses_gpu(pod: Object) -> bool:
    """Has a container one of our resources, or a claim of any driver?"""
    if is_tracked(pod) or (pod.get("spec") or {}).get("resourceClaims"):
        return True
    return bool((pod.get("status") or {}).get("extendedResourceClaimStatus"))


def _running(pod: Object) -> list[Object]:
    status = pod.get("status") or {}
    groups = ("initContainerStatuses", "containerStatuses")
    found = [one for key in groups for one in status.get(key) or []]
    return [one for one in found if (one.get("state") or {}).get("running") is not None]


def running(pod: Object) -> list[str]:
    """Names of its containers that run."""
    return [str(one.get("name")) for one in _running(pod)]


def full_name(pod: Object) -> str:
    meta = pod.get("metadata") or {}
    return f"{meta.get('namespace', '')}/{meta.get('name', '')}"


def uids(pod: Object) -> set[str]:
    """Those by which an engine may know it: a static pod has another one there than in the API server."""
    meta = pod.get("metadata") or {}
    mirror = meta["annotations"][MIRROR] if is_static(pod) else ""
    return {str(uid) for uid in (meta.get("uid"), mirror) if uid}


def wants_high_priority(pod: Object) -> bool:
    """By its annotation, which its author writes: whether it may is its namespace's to say. Raises Refused."""
    text = ((pod.get("metadata") or {}).get("annotations") or {}).get(keys.PRIORITY, "normal")
    if text not in ("normal", "high"):
        raise Refused(f"annotation {keys.PRIORITY}={str(text)[:32]} of pod {full_name(pod)} is neither normal nor high")
    return bool(text == "high")


def is_static(pod: Object) -> bool:
    """Is it the kubelet's copy of a static pod? Any author can write the annotation. The kubelet also makes the pod's
    node its owner; the garbage collector deletes a pod whose owner's uid no node has."""
    meta = pod.get("metadata") or {}
    owners = meta.get("ownerReferences") or []
    return MIRROR in (meta.get("annotations") or {}) and any(
        one.get("kind") == NODE_KIND and one.get("name") == node_of(pod) for one in owners
    )


def is_here(pod: Object, node: str) -> bool:
    return node_of(pod) == node and not is_over(pod)


def of_scheduler(pod: Object) -> Mapping[str, str]:
    """The annotations, without those of the gpushare protocol if the pod's author wrote them.

    A scheduler writes them before it binds the pod, with the time. Without a time, with one from before the pod
    existed (a copied manifest), or on a static pod they are the author's, and count for nothing. An author can invent
    a time; the annotations then choose a GPU, and never an amount. The admission policy of deploy/kubernetes refuses
    them at the pod's creation."""
    meta = pod.get("metadata") or {}
    given = meta.get("annotations") or {}
    created = created_ns(pod)
    times = [int(given[key]) for key in (keys.NEW_ASSUME_TIME, keys.ASSUME_TIME) if _is_number(given.get(key))]
    if not is_static(pod) and times and created and max(times) >= created - CLOCK_SKEW_NS:
        return dict(given)
    protocol = set(_ANNOTATIONS) - {MIRROR}
    return {key: text for key, text in given.items() if key not in protocol}


def _is_number(text: object) -> bool:
    return isinstance(text, str) and text.isascii() and text.isdecimal() and len(text) <= 19
