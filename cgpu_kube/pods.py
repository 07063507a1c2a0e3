# SPDX-License-Identifier: MIT
"""PURE: what a pod asks for, and which GPUs its annotations name. Pods are the API server's JSON."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from datetime import datetime
from typing import Any, TypedDict

from cgpu_common.placement import (
    CONTAINERS_MAX,
    CORE,
    CORE_STEP,
    INIT,
    MAIN,
    NO_SIZES,
    SIDECAR,
    Choice,
    Gpu,
    Need,
    PodNeed,
)
from cgpu_kube import annotations as notes
from cgpu_kube import quantity
from cgpu_kube.annotations import GPU_CORE, GPU_COUNT, GPU_MEM, NV_AMOUNTS, NV_CORES, NV_GPU, NV_MEM, NV_PERCENT
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


#: Those that count: a pod may have as many as an object takes.
_Labels = TypedDict("_Labels", {GPU_COUNT: Any, notes.NAME_LABEL: Any}, total=False)  # type: ignore[misc]


class _Meta(TypedDict, total=False):
    name: Any
    namespace: Any
    uid: Any
    resourceVersion: Any
    deletionTimestamp: Any
    labels: _Labels | None
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


_ASKED = (GPU_MEM, GPU_CORE, *NV_AMOUNTS)
AMOUNT_MAX = 1 << 20  # of units; 1Mi and more is meant as bytes
_OURS = frozenset(notes.CHOICE)
_META = ("name", "namespace", "uid", "resourceVersion", "deletionTimestamp")
_SPEC = ("nodeName", "resourceClaims", "priority", "schedulingGates")


def name_of(pod: Object) -> str:
    meta = pod.get("metadata") or {}
    return f"{meta.get('namespace', '')}/{meta.get('name', '')}"


def uid_of(pod: Object) -> str:
    return str((pod.get("metadata") or {}).get("uid") or "")


def created_ns(pod: Object) -> int:
    """By the API server's clock; 0: it does not say."""
    text = str((pod.get("metadata") or {}).get("creationTimestamp"))
    try:
        return int(datetime.fromisoformat(text).timestamp()) * 10**9
    except ValueError:
        return 0


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


def is_agent(pod: Object) -> bool:
    """Whether it is the agent of a node, by its label: its namespace is the caller's to look at."""
    labels = (pod.get("metadata") or {}).get("labels") or {}
    return bool(labels.get(notes.NAME_LABEL) == notes.AGENT_NAME)


def trimmed(pod: Object) -> Object:
    """The parts that count here: a cluster's pods are mostly text that does not."""
    meta, spec, status = pod.get("metadata") or {}, pod.get("spec") or {}, pod.get("status") or {}
    kept: Object = {
        "metadata": {key: meta[key] for key in _META if key in meta},
        "spec": {key: spec[key] for key in _SPEC if spec.get(key)},
        "status": {"phase": status.get("phase", "")},
    }
    is_ours = is_tracked(pod)
    if (is_ours or is_agent(pod)) and has_running(pod):
        kept["status"]["containerStatuses"] = [{"state": {"running": {}}}]
    if not is_ours:
        return kept | ({"metadata": {**kept["metadata"], "labels": meta["labels"]}} if is_agent(pod) else {})
    kept["metadata"]["labels"] = {key: text for key, text in (meta.get("labels") or {}).items() if key == GPU_COUNT}
    texts = meta.get("annotations") or {}
    kept["metadata"]["annotations"] = {key: text for key, text in texts.items() if key in _OURS}
    for group in ("initContainers", "containers"):
        kept["spec"][group] = [_trimmed_container(one) for one in spec.get(group) or []]
    return kept


def _trimmed_container(container: Object) -> Object:
    found = {resource: _given(container, resource) for resource in (*_ASKED, NV_GPU)}
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
    """Whether any container names one of our resources, or an amount by one of NVIDIA's names, whatever the amount."""
    return any(_given(one, resource) is not None for one, _, _ in _containers(pod) for resource in _ASKED)


def is_plain(pod: Object) -> bool:
    """It asks for GPUs by nvidia.com/gpu and for no amount of them. On a node that takes those names it is one of our
    pods, on others it is NVIDIA's."""
    return not asks(pod) and any(_given(one, NV_GPU) is not None for one, _, _ in _containers(pod))


def is_tracked(pod: Object) -> bool:
    """Whether it may hold a part of a GPU somewhere."""
    return asks(pod) or is_plain(pod)


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
    if asks_by_names(pod):
        return _nv_needs(pod)
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
    if found and _has(pod, NV_AMOUNTS):
        raise Refused(f"the pod asks by {GPU_MEM} and by {NV_MEM} or its like at once; use one of the two")
    return _checked(PodNeed(tuple(found), count, _choice(pod))) if found else None


def _checked(need: PodNeed) -> PodNeed:
    if len(need.containers) > CONTAINERS_MAX:
        raise Refused(
            f"{len(need.containers)} containers ask for GPU memory; a pod may have {CONTAINERS_MAX} such containers"
        )
    return need


def _is_wish(key: str) -> bool:
    """An annotation of the pod's author that needs() reads."""
    return key in notes.CHOICES or key.startswith(notes.NV_PREFIX)


def _has(pod: Object, resources: tuple[str, ...]) -> bool:
    return any(_given(one, resource) is not None for one, _, _ in _containers(pod) for resource in resources)


def _choice(pod: Object) -> Choice:
    try:
        return notes.choice((pod.get("metadata") or {}).get("annotations"))
    except BadAnnotation as error:
        raise Refused(str(error)) from error


def _nv_needs(pod: Object) -> PodNeed | None:
    """By HAMi's resources, where amounts are of each GPU, and by NVIDIA's annotation. A container with GPUs and no
    amount has all of their memory."""
    texts = (pod.get("metadata") or {}).get("annotations")
    found: list[Need] = []
    counts: dict[int, str] = {}
    for container, phase, place in _containers(pod):
        name = str(container.get("name"))
        count = _amount(container, NV_GPU)
        mib, percent = _amount(container, NV_MEM), _amount(container, NV_PERCENT)
        core = 0 if str(_given(container, NV_CORES)) == "0" else _amount(container, NV_CORES)
        if (mib or percent or core) and not count:
            asked = NV_MEM if mib else NV_PERCENT if percent else NV_CORES
            raise Refused(f"container {name}: {asked} without {NV_GPU}; ask for both")
        if not count:
            continue
        if count > notes.GPUS_MAX:
            raise Refused(f"container {name}: {NV_GPU} is {count}; a node has at most {notes.GPUS_MAX}")
        if mib and percent:
            raise Refused(f"container {name}: {NV_MEM} and {NV_PERCENT} exclude each other")
        if percent > 100 or core > CORE:
            raise Refused(f"container {name}: {NV_PERCENT if percent > 100 else NV_CORES} must be 1 to 100")
        try:
            limit = notes.nv_limit_mib(texts, name)
        except BadAnnotation as error:
            raise Refused(str(error)) from error
        if limit is not None and percent:
            key = f"{notes.NV_PREFIX}{name}{notes.NV_LIMIT}"
            raise Refused(f"container {name}: {NV_PERCENT} and the annotation {key} exclude each other")
        if limit is not None:
            mib = min(mib or limit, limit)
        counts.setdefault(count, name)
        step = place if phase != MAIN else 0
        found.append(Need(name, 0, core, phase, step, mib, percent if percent or mib else 100))
    if len(counts) > 1:
        told = ", ".join(f"{count} ({name})" for count, name in sorted(counts.items()))
        raise Refused(f"containers ask for different numbers of {NV_GPU}: {told}; each GPU of a pod is for all of them")
    if not found:  # gpucores of 0 alone
        return None
    return _checked(PodNeed(tuple(found), next(iter(counts)), _choice(pod), names=notes.NAMES, is_plain=is_plain(pod)))


def asks_by_names(pod: Object) -> bool:
    """Whether it may hold a part of a GPU by others' names, on a node that takes them."""
    return is_tracked(pod) and not _has(pod, (GPU_MEM, GPU_CORE))


def _allocated(pod: Object) -> int | None:
    """The GPUs of each container, if the extender's annotations divide the limits of all of them; None: they do not."""
    try:
        found = notes.parse((pod.get("metadata") or {}).get("annotations"))
        limits = [(one, phase, place, _amount(one, GPU_MEM)) for one, phase, place in _containers(pod)]
    except (BadAnnotation, Refused):
        return None
    if found is None:
        return None
    if not found.containers:
        totals = (sum(units for _, phase, _, units in limits if phase == MAIN), sum(units for *_, units in limits))
        return len(found.index) if found.pod_units in totals else None
    counts = set()
    for container, phase, place, limit in limits:
        units = found.of_container(str(container.get("name")), place if phase == MAIN else -1)
        if limit and (units is not None or phase == MAIN):  # the vendor's extender lists no init containers
            is_whole = units and sum(units.values()) == limit and len(set(units.values())) == 1
            counts.add(len(units) if units and is_whole else 0)
    return counts.pop() or None if len(counts) == 1 else None


def counted(pod: Object) -> PodNeed | None:
    """The same for a pod that is on a node already, where a refusal would hide what it takes: amounts as they are, and
    without the annotations and the label that its author may change meanwhile."""
    meta = pod.get("metadata") or {}
    texts = {key: text for key, text in (meta.get("annotations") or {}).items() if not _is_wish(key)}
    bare = {**pod, "metadata": {**meta, "annotations": texts}}
    count = _allocated(pod)
    if count is not None:
        bare["metadata"]["labels"] = {**(meta.get("labels") or {}), GPU_COUNT: str(count)}
    try:
        need = needs(bare)
        return recorded(bare, need) if need is not None else None
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
        if len(found.index) != need.gpus or need.is_relative or found.pod_units not in (None, *totals(need)):
            return None
        return {one.name: found.index for one in need.containers}
    places = {one.get("name"): place for one, phase, place in _containers(pod) if phase == MAIN}
    chosen: dict[str, tuple[int, ...]] = {}
    for one in need.containers:
        units = found.of_container(one.name, places.get(one.name, -1))
        if units is None and one.phase != MAIN and len(found.gpus) == need.gpus:
            units = dict.fromkeys(found.gpus, one.units)  # the vendor's extender lists no init containers
        if units is None or len(units) != need.gpus:
            return None
        if not (one.mib or one.percent) and set(units.values()) != {one.units}:
            return None  # else the units are the extender's, of this GPU
        chosen[one.name] = tuple(sorted(units))
    return chosen


def totals(need: PodNeed) -> tuple[int, int]:
    """Units of the main containers on all GPUs, which the protocol calls the pod's; and of all containers."""
    main = sum(one.units for one in need.containers if one.phase == MAIN)
    return main * need.gpus, sum(one.units for one in need.containers) * need.gpus


def recorded(pod: Object, need: PodNeed) -> PodNeed:
    """The same in the units that the extender has written for the pod, where the resources say all of a GPU: an
    annotation may have said less when it was placed. Other amounts stay those of the resources."""
    try:
        found = notes.parse((pod.get("metadata") or {}).get("annotations"))
    except BadAnnotation:
        return need
    parts = []
    for one in need.containers:
        units = found.containers.get(one.name) if found is not None and one.percent == 100 else None
        parts.append(replace(one, units=max(units.values()), percent=0) if units else one)
    return replace(need, containers=tuple(parts))


def annotated(
    need: PodNeed,
    chosen: Gpus,
    dev_units: int,
    time_ns: int,
    *,
    places: Mapping[str, int] | None,
    sizes: Mapping[int, Gpu] = NO_SIZES,
) -> dict[str, str]:
    """The annotations of both generations. @places: containers by their place, as the vendor's plugin knows them, and
    main ones only; None: by name. @sizes: the GPUs of the node."""
    listed = [one for one in need.containers if places is None or one.name in places]
    key = {one.name: one.name if places is None else str(places[one.name]) for one in listed}
    units = {key[one.name]: {gpu: one.on(sizes.get(gpu)).units for gpu in chosen[one.name]} for one in listed}
    core = {key[one.name]: dict.fromkeys(chosen[one.name], one.core) for one in listed if one.core}
    out = notes.write(units, dev_units, time_ns, core or None)
    main = [one for one in need.containers if one.phase == MAIN]
    return out | {
        notes.INDEX: ",".join(map(str, sorted({gpu for gpus in chosen.values() for gpu in gpus}))),
        notes.POD: str(sum(one.on(sizes.get(gpu)).units for one in main for gpu in chosen[one.name])),
    }


def main_places(pod: Object) -> dict[str, int]:
    """Main containers by name -> their place."""
    return {str(one.get("name")): place for one, phase, place in _containers(pod) if phase == MAIN}
