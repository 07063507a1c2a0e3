# SPDX-License-Identifier: MIT
"""PURE: what a pod asks for, and which GPUs its annotations name. Pods are the API server's JSON."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, TypedDict

from cgpu_common.placement import CONTAINERS_MAX, CORE, CORE_STEP, INIT, MAIN, SIDECAR, Need, PodNeed
from cgpu_kube import annotations as notes
from cgpu_kube import quantity
from cgpu_kube.annotations import GPU_CORE, GPU_COUNT, GPU_MEM
from cgpu_kube.errors import BadAnnotation, BadQuantity, Refused

Object = dict[str, Any]
#: Containers of a pod by their name -> GPUs.
Gpus = Mapping[str, tuple[int, ...]]


class _Resources(TypedDict, total=False):
    limits: Any
    requests: Any


class _Container(TypedDict, total=False):
    name: Any
    resources: _Resources | None
    restartPolicy: Any


class _State(TypedDict, total=False):
    running: Any


class _ContainerStatus(TypedDict, total=False):
    state: _State | None


class _Meta(TypedDict, total=False):
    name: Any
    namespace: Any
    uid: Any
    resourceVersion: Any
    deletionTimestamp: Any
    labels: Any
    annotations: Any


class _Spec(TypedDict, total=False):
    nodeName: Any
    resourceClaims: Any
    priority: Any
    schedulingGates: Any
    initContainers: list[_Container] | None
    containers: list[_Container] | None


class _Status(TypedDict, total=False):
    phase: Any
    initContainerStatuses: list[_ContainerStatus] | None
    containerStatuses: list[_ContainerStatus] | None


class Sparse(TypedDict, total=False):
    """The parts of a pod that trimmed() reads, for a decoder that passes the others over. A Status object, which a
    watch may send instead, has a word for `status`."""

    metadata: _Meta | None
    spec: _Spec | None
    status: _Status | str | None


AMOUNT_MAX = 1 << 20  # of units; 1Mi and more is meant as bytes
_META = ("name", "namespace", "uid", "resourceVersion", "deletionTimestamp", "labels")
_OURS = {
    notes.INDEX,
    notes.DEV,
    notes.POD,
    notes.ASSIGNED,
    notes.ASSUME_TIME,
    notes.ALLOCATION,
    notes.CORE_ALLOCATION,
    notes.NEW_ASSIGNED,
    notes.NEW_ASSUME_TIME,
    notes.ASSUMED,
}


def name_of(pod: Object) -> str:
    meta = pod.get("metadata") or {}
    return f"{meta.get('namespace', '')}/{meta.get('name', '')}"


def uid_of(pod: Object) -> str:
    return str((pod.get("metadata") or {}).get("uid") or "")


def node_of(pod: Object) -> str:
    return str((pod.get("spec") or {}).get("nodeName") or "")


def priority_of(pod: Object) -> int:
    """spec.priority, which the API server sets by the pod's class."""
    found = (pod.get("spec") or {}).get("priority")
    return found if isinstance(found, int) else 0


def is_gated(pod: Object) -> bool:
    return bool((pod.get("spec") or {}).get("schedulingGates"))


def is_over(pod: Object) -> bool:
    """Whether its containers have ended for good."""
    return (pod.get("status") or {}).get("phase") in ("Succeeded", "Failed")


def has_running(pod: Object) -> bool:
    """Whether a container of it runs, by its status. The kubelet deletes no pod before its containers have
    ended; a user who deletes by force does."""
    status = pod.get("status") or {}
    groups = ("initContainerStatuses", "containerStatuses")
    return any((one.get("state") or {}).get("running") is not None for key in groups for one in status.get(key) or [])


def trimmed(pod: Object) -> Object:
    """The parts that count here: a cluster's pods are mostly text that does not."""
    meta, spec, status = pod.get("metadata") or {}, pod.get("spec") or {}, pod.get("status") or {}
    kept: Object = {
        "metadata": {key: meta[key] for key in _META if key in meta},
        "spec": {
            key: spec[key] for key in ("nodeName", "resourceClaims", "priority", "schedulingGates") if spec.get(key)
        },
        "status": {"phase": status.get("phase", "")},
    }
    kept["metadata"].pop("labels", None)
    if not asks(pod):
        return kept
    kept["metadata"]["labels"] = {key: text for key, text in (meta.get("labels") or {}).items() if key == GPU_COUNT}
    kept["metadata"]["annotations"] = {
        key: text for key, text in (meta.get("annotations") or {}).items() if key in _OURS
    }
    if has_running(pod):
        kept["status"]["containerStatuses"] = [{"state": {"running": {}}}]
    for group in ("initContainers", "containers"):
        kept["spec"][group] = [_trimmed_container(one) for one in spec.get(group) or []]
    return kept


def _trimmed_container(container: Object) -> Object:
    found = {resource: _given(container, resource) for resource in (GPU_MEM, GPU_CORE)}
    limits = {resource: amount for resource, amount in found.items() if amount is not None}
    kept: Object = {"name": container.get("name"), **({"resources": {"limits": limits}} if limits else {})}
    return kept | ({"restartPolicy": "Always"} if container.get("restartPolicy") == "Always" else {})


def _given(container: Object, resource: str) -> Any:
    """The limit; for resources like these it equals the request. None: not requested."""
    resources = container.get("resources") or {}
    for group in ("limits", "requests"):
        if resource in (resources.get(group) or {}):
            return resources[group][resource]
    return None


def _containers(pod: Object) -> list[tuple[Object, str, int]]:
    """Every container with its phase and its place in its list."""
    spec = pod.get("spec") or {}
    found = []
    for step, one in enumerate(spec.get("initContainers") or []):
        found.append((one, SIDECAR if one.get("restartPolicy") == "Always" else INIT, step))
    return found + [(one, MAIN, place) for place, one in enumerate(spec.get("containers") or [])]


def asks(pod: Object) -> bool:
    """Whether any container names one of our resources, whatever the amount."""
    return any(_given(one, resource) is not None for one, _, _ in _containers(pod) for resource in (GPU_MEM, GPU_CORE))


def _amount(container: Object, resource: str) -> int:
    text = _given(container, resource)
    if text is None:
        return 0
    try:
        amount = quantity.whole(text)
    except BadQuantity as error:
        raise Refused(f"container {container.get('name')}: {resource}: {error}") from error
    if amount > AMOUNT_MAX:
        shown = f"{resource} is a number of units, as 6, and no amount as {str(text)[:32]}"
        raise Refused(f"container {container.get('name')}: {shown}")
    if not amount:
        raise Refused(f"container {container.get('name')}: {resource} is 0; leave it out, or ask for 1 or more")
    return amount


def _count(pod: Object) -> int:
    text = ((pod.get("metadata") or {}).get("labels") or {}).get(GPU_COUNT)
    if text is None:
        return 1
    if not (text.isascii() and text.isdigit() and len(text) < 4 and 1 <= int(text) <= notes.GPUS_MAX):
        raise Refused(f"label {GPU_COUNT}={text[:32]} is not a number from 1 to {notes.GPUS_MAX}")
    return int(text)


def _divided(container: Object, resource: str, amount: int, count: int) -> int:
    if amount % count:
        raise Refused(
            f"container {container.get('name')}: {resource} {amount} cannot be divided among {count} GPUs "
            f"(label {GPU_COUNT}); ask for a multiple of {count}"
        )
    return amount // count


def needs(pod: Object) -> PodNeed | None:
    """What the pod asks for; None: no GPU memory. Raises Refused with the sentence for its author."""
    count = _count(pod) if asks(pod) else 1
    found: list[Need] = []
    for container, phase, place in _containers(pod):
        units, core = _amount(container, GPU_MEM), _amount(container, GPU_CORE)
        if core and not units:
            raise Refused(f"container {container.get('name')}: {GPU_CORE} without {GPU_MEM}; ask for both")
        if core % CORE_STEP or core > CORE * count:
            raise Refused(
                f"container {container.get('name')}: {GPU_CORE} is {core}; "
                f"it must be {CORE_STEP} to {CORE * count} in steps of {CORE_STEP}"
            )
        if units:
            units = _divided(container, GPU_MEM, units, count)
            core = _divided(container, GPU_CORE, core, count)
            found.append(Need(str(container.get("name")), units, core, phase, place if phase != MAIN else 0))
    if len(found) > CONTAINERS_MAX:
        raise Refused(f"{len(found)} containers ask for {GPU_MEM}; a pod may have {CONTAINERS_MAX} such containers")
    return PodNeed(tuple(found), count) if found else None


def counted(pod: Object) -> PodNeed | None:
    """The same for a pod that is on a node already, where a refusal would hide what it takes: amounts as they are."""
    try:
        return needs(pod)
    except Refused:
        found = []
        for container, phase, place in _containers(pod):
            try:
                units = _amount(container, GPU_MEM)
            except Refused:
                continue
            if units:
                found.append(Need(str(container.get("name")), units, 0, phase, place if phase != MAIN else 0))
        return PodNeed(tuple(found)) if found else None


def gpus_of(pod: Object, need: PodNeed) -> Gpus | None:
    """The GPU of each container, by the pod's annotations; None: they name none, or disagree with the limits."""
    try:
        found = notes.parse((pod.get("metadata") or {}).get("annotations"))
    except BadAnnotation:
        return None
    if found is None or len(set(found.gpus)) < need.gpus:
        return None
    if not found.containers:
        if len(found.index) != need.gpus or found.pod_units not in (None, *totals(need)):
            return None
        return {one.name: found.index for one in need.containers}
    places = {one.get("name"): place for one, phase, place in _containers(pod) if phase == MAIN}
    chosen: dict[str, tuple[int, ...]] = {}
    for one in need.containers:
        units = found.of_container(one.name, places.get(one.name, -1))
        if units is None and one.phase != MAIN and len(found.gpus) == need.gpus:
            units = dict.fromkeys(found.gpus, one.units)  # the vendor's extender lists no init containers
        if units is None or len(units) != need.gpus or set(units.values()) != {one.units}:
            return None
        chosen[one.name] = tuple(sorted(units))
    return chosen


def totals(need: PodNeed) -> tuple[int, int]:
    """Units of the main containers on all GPUs, which the protocol calls the pod's; and of all containers."""
    main = sum(one.units for one in need.containers if one.phase == MAIN)
    return main * need.gpus, sum(one.units for one in need.containers) * need.gpus


def annotated(
    need: PodNeed, chosen: Gpus, dev_units: int, time_ns: int, *, places: Mapping[str, int] | None
) -> dict[str, str]:
    """The annotations of both generations. @places: containers by their place, as the vendor's plugin knows them, and
    main ones only; None: by name."""
    listed = [one for one in need.containers if places is None or one.name in places]
    key = {one.name: one.name if places is None else str(places[one.name]) for one in listed}
    units = {key[one.name]: dict.fromkeys(chosen[one.name], one.units) for one in listed}
    core = {key[one.name]: dict.fromkeys(chosen[one.name], one.core) for one in listed if one.core}
    out = notes.write(units, dev_units, time_ns, core or None)
    return out | {
        notes.INDEX: ",".join(map(str, sorted({gpu for gpus in chosen.values() for gpu in gpus}))),
        notes.POD: str(totals(need)[0]),
    }


def main_places(pod: Object) -> dict[str, int]:
    """Main containers by name -> their place."""
    return {str(one.get("name")): place for one, phase, place in _containers(pod) if phase == MAIN}
