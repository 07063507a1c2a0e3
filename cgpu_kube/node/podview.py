# SPDX-License-Identifier: MIT
"""PURE: the parts of a pod that decide what its containers get. Pods are the API server's JSON."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from typing import Any

from cgpu_kube import annotations as keys
from cgpu_kube.errors import Refused
from cgpu_kube.pods import has_running, is_over, is_tracked, node_of

Object = dict[str, Any]
MIRROR = "kubernetes.io/config.mirror"  # on the API server's copy of a static pod: the uid that the kubelet uses
SOURCE = "kubernetes.io/config.source"
CLOCK_SKEW_NS = 60 * 10**9  # between the API server's clock and the scheduler's

_META = ("name", "namespace", "uid", "resourceVersion", "creationTimestamp")
_STATUS = ("phase", "resourceClaimStatuses", "extendedResourceClaimStatus")
_ASKED = (keys.MEMORY, keys.PRIORITY, keys.THREADS, *keys.CHOICES)  # by the pod's author
_ANNOTATIONS = (
    keys.INDEX, keys.DEV, keys.POD, keys.ASSIGNED, keys.ASSUME_TIME, keys.ALLOCATION, keys.CORE_ALLOCATION,
    keys.NEW_ASSIGNED, keys.NEW_ASSUME_TIME, MIRROR, SOURCE,
)  # fmt: skip


def kept(pod: Object) -> Object:
    """The parts that count, to save memory: the spec of a pod is mostly text that does not."""
    meta, spec, status = pod.get("metadata") or {}, pod.get("spec") or {}, pod.get("status") or {}
    out: Object = {
        "metadata": {
            key: meta[key]
            for key in ("name", "namespace", "uid", "resourceVersion", "creationTimestamp")
            if key in meta
        },
        "spec": {key: spec[key] for key in ("nodeName", "resourceClaims") if spec.get(key)},
        "status": {
            key: status[key]
            for key in ("phase", "resourceClaimStatuses", "extendedResourceClaimStatus")
            if key in status
        },
    }
    if has_running(pod):
        out["status"]["containerStatuses"] = [{"state": {"running": {}}}]
    out["metadata"]["annotations"] = {
        key: text
        for key, text in (meta.get("annotations") or {}).items()
        if key in (*_ANNOTATIONS, *_ASKED) or key.startswith(keys.NV_PREFIX)
    }
    out["metadata"]["labels"] = {key: text for key, text in (meta.get("labels") or {}).items() if key == keys.GPU_COUNT}
    fields = ("name", "resources", "restartPolicy") if uses_gpu(pod) else ("name",)
    for group in ("initContainers", "containers"):
        out["spec"][group] = [{key: one[key] for key in fields if key in one} for one in spec.get(group) or []]
    return out


def containers(pod: Object) -> list[Object]:
    spec = pod.get("spec") or {}
    return [one for group in ("initContainers", "containers") for one in spec.get(group) or []]


def uses_gpu(pod: Object) -> bool:
    """Has a container one of our resources, or a claim of any driver?"""
    if is_tracked(pod) or (pod.get("spec") or {}).get("resourceClaims"):
        return True
    return bool((pod.get("status") or {}).get("extendedResourceClaimStatus"))


def full_name(pod: Object) -> str:
    meta = pod.get("metadata") or {}
    return f"{meta.get('namespace', '')}/{meta.get('name', '')}"


def uids(pod: Object) -> set[str]:
    """Those by which an engine may know it: a static pod has another one there than in the API server."""
    meta = pod.get("metadata") or {}
    mirror = (meta.get("annotations") or {}).get(MIRROR)
    return {str(uid) for uid in (meta.get("uid"), mirror) if uid}


def wants_high_priority(pod: Object) -> bool:
    """By its annotation, which its author writes: whether it may is its namespace's to say. Raises Refused."""
    text = ((pod.get("metadata") or {}).get("annotations") or {}).get(keys.PRIORITY, "normal")
    if text not in ("normal", "high"):
        raise Refused(f"annotation {keys.PRIORITY}={str(text)[:32]} of pod {full_name(pod)} is neither normal nor high")
    return bool(text == "high")


def is_static(pod: Object) -> bool:
    found = (pod.get("metadata") or {}).get("annotations") or {}
    return MIRROR in found or found.get(SOURCE, "api") != "api"


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
    if not is_static(pod) and times and created is not None and max(times) >= created - CLOCK_SKEW_NS:
        return dict(given)
    protocol = set(_ANNOTATIONS) - {MIRROR, SOURCE}
    return {key: text for key, text in given.items() if key not in protocol}


def _is_number(text: object) -> bool:
    return isinstance(text, str) and text.isascii() and text.isdecimal() and len(text) <= 19


def created_ns(pod: Object) -> int | None:
    text = str((pod.get("metadata") or {}).get("creationTimestamp") or "")
    try:
        return int(datetime.fromisoformat(text).timestamp()) * 10**9
    except ValueError:
        return None
