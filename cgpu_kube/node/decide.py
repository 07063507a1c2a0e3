# SPDX-License-Identifier: MIT
"""PURE: the grant of a pod's container: which GPU, how much of it, and the variables that its programs read.

The amount is that of the container's limits. The GPU is that of the scheduler's annotations, else the one whose devices
the kubelet has counted for the container. cgpud admits the slot, so sums never exceed a GPU whatever was decided here.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from cgpu_common import effect, policies
from cgpu_common.placement import MAIN, Gpu, Need, PodNeed
from cgpu_kube import pods
from cgpu_kube.annotations import (
    GPU_CORE,
    GPU_MEM,
    INDEX,
    MEMORY,
    MODE_LABEL,
    NV_GPU,
    PRIORITY,
    THREADS,
    Exact,
    counted_in,
    no_uuid,
)
from cgpu_kube.annotations import exact as exact_of
from cgpu_kube.annotations import parse as parse_annotations
from cgpu_kube.errors import BadAnnotation, Refused
from cgpu_kube.node import podview
from cgpu_kube.node.host import CORE, CORE_MEM, MEMORY_MODES, MPS, SHARE, WHOLE_MODES, HostGpu, Offer

MEMORY_MIN_MIB = 256  # of a slice

Object = dict[str, Any]
Grant = dict[str, Any]
#: uuid -> devices of aliyun.com/gpu-mem, as the kubelet has counted them.
Counted = Mapping[str, int]


@dataclass(frozen=True, slots=True)
class Subject:
    """A container, as the annotations of its config.json name it."""

    namespace: str
    pod: str
    uid: str
    container: str

    @property
    def pod_name(self) -> str:
        return f"{self.namespace}/{self.pod}"

    def __str__(self) -> str:
        return f"container {self.container} of pod {self.pod_name}"

    def as_dict(self) -> dict[str, str]:
        return {"namespace": self.namespace, "pod": self.pod, "uid": self.uid, "container": self.container}


def check_pod(subject: Subject, pod: Object, node: str) -> None:
    """Raises Refused unless it is the pod of this container and on this node."""
    if subject.uid not in podview.uids(pod):
        raise Refused(f"pod {subject.pod_name} is another one now; its earlier one gets no slice any more")
    if not podview.is_here(pod, node):
        raise Refused(f"pod {subject.pod_name} is not on node {node}, or has ended")
    if subject.container not in {one.get("name") for one in podview.containers(pod)}:
        raise Refused(f"pod {subject.pod_name} has no container {subject.container}")


def check_priority(subject: Subject, allowed: bool) -> None:
    """Raises Refused if the namespace of a pod that wants high priority does not allow it."""
    if not allowed:
        raise Refused(
            f"pod {subject.pod_name} asks for high priority ({PRIORITY}), and its namespace does not allow it; "
            f"kubectl label namespace {subject.namespace} {PRIORITY}=high does"
        )


def by_memory(
    subject: Subject,
    pod: Object,
    offer: Offer,
    gpus: Sequence[HostGpu],
    counted: Counted | None,
    highprio: bool = False,
) -> Grant:
    """The grant of a container that asks for aliyun.com/gpu-mem. `counted` is None where the kubelet does not say;
    `highprio`: the pod asks for high priority, and its namespace allows it. Raises Refused."""
    need = pods.needs({**pod, "metadata": {**pod["metadata"], "annotations": podview.of_scheduler(pod)}})
    mine = next((one for one in need.containers if one.name == subject.container), None) if need else None
    if need is None or mine is None:
        raise Refused(
            f"{subject} asks for no {GPU_MEM}, and its variables give it nothing; write {GPU_MEM} into its limits"
        )
    if offer.mode not in MEMORY_MODES:
        raise Refused(
            f"{subject} asks for GPU memory, and this node is in mode {offer.mode or 'default'}; "
            f"label it {MODE_LABEL}=cgpu, or select another node"
        )
    if mine.core and offer.mode != CORE_MEM:
        raise Refused(
            f"{subject} asks for {GPU_CORE}, and this node is in mode {offer.mode}; label it {MODE_LABEL}=core_mem"
        )
    if need.names and offer.mode in WHOLE_MODES:
        raise Refused(f"{subject} asks by {NV_GPU}, and this node is in mode {offer.mode}; select another node")
    chosen = _choose(subject, pod, need, mine, offer, gpus, counted)
    _check_choice(subject, need, chosen)
    exact = None if need.names else _exact(subject, pod, offer)
    if highprio:
        _check_priority_counts(subject, offer, chosen)
    threads = _threads(subject, pod, offer)
    if offer.mode in WHOLE_MODES:
        return _whole(subject, need, mine, offer, chosen, exact, threads)
    if mine.core:
        _check_weights_count(subject, chosen)
    given = parse_annotations(podview.of_scheduler(pod)) if need.is_relative else None
    placed = given.of_container(mine.name, -1) if given is not None else None
    slots = [
        {
            "gpu": gpu.uuid,
            "memory_mib": _relative_mib(subject, mine, offer, gpu, (placed or {}).get(gpu.index))
            if need.is_relative
            else _mib(subject, mine, offer, gpu, exact),
            "weight": _weight(mine, gpu),
        }
        | ({"highprio": True} if highprio else {})
        for gpu in chosen
    ]
    sized = replace(need, containers=tuple(one.on(offer.placed(chosen[0])) for one in need.containers))
    mine = next(one for one in sized.containers if one.name == mine.name)
    return {"subject": subject.as_dict(), "variables": _variables(sized, mine, offer, chosen), "slots": slots}


def by_count(
    subject: Subject, offer: Offer, gpus: Sequence[HostGpu], counted: Counted | None, core: Counted | None
) -> Grant:
    """The same without the pod, which the API server does not give now: the devices that the kubelet has counted are
    the limits of the container, and their GPU is its GPU. @core: of aliyun.com/gpu-core.percentage. Raises Refused."""
    if not counted or core is None or offer.mode not in MEMORY_MODES:
        raise Refused(
            f"pod {subject.pod_name} is not known here: the API server does not answer, and the kubelet has counted "
            f"no {GPU_MEM} for container {subject.container}; it is tried again"
        )
    if len(gpus) > 1 and offer.mode != SHARE:
        # On more than one GPU a scheduler may have written another choice into the pod's annotations.
        raise Refused(
            f"pod {subject.pod_name} is not known here and the API server does not answer, so its GPU is not known "
            f"either: this node has {len(gpus)}; it is tried again"
        )
    need = PodNeed((Need(subject.container, sum(counted.values()), sum(core.values())),))
    mine = need.containers[0]
    chosen = _by_kubelet(subject, need, mine, gpus, counted)
    if offer.mode in WHOLE_MODES:
        return _whole(subject, need, mine, offer, chosen)
    if mine.core:
        _check_weights_count(subject, chosen)
    slots = [
        {"gpu": gpu.uuid, "memory_mib": _mib(subject, mine, offer, gpu), "weight": _weight(mine, gpu)} for gpu in chosen
    ]
    return {"subject": subject.as_dict(), "variables": _variables(need, mine, offer, chosen), "slots": slots}


def _whole(
    subject: Subject,
    need: PodNeed,
    mine: Need,
    offer: Offer,
    chosen: Sequence[HostGpu],
    exact: Exact | None = None,
    threads: int = 100,
) -> Grant:
    """@exact, @threads: in the mode mps, of the pod's annotations."""
    if len(chosen) != 1:
        raise Refused(f"{subject} is on {len(chosen)} GPUs, and a container in mode {offer.mode} has one")
    variables = {"CGPU_DISABLE": "true", **_variables(need, mine, offer, chosen)}
    grant = {"subject": subject.as_dict(), "variables": variables, "whole": chosen[0].uuid}
    if offer.mode == MPS:
        grant["mps"] = {"memory_mib": _mib(subject, mine, offer, chosen[0], exact), "threads": threads}
    return grant


def _threads(subject: Subject, pod: Object, offer: Offer) -> int:
    """Percent of the multiprocessors that a client of MPS uses at most."""
    text = ((pod.get("metadata") or {}).get("annotations") or {}).get(THREADS)
    if text is None:
        return 100
    if offer.mode != MPS:
        raise Refused(
            f"{subject} has the annotation {THREADS}, which is for nodes in mode {MPS}, and this node is in mode "
            f"{offer.mode}; remove it, or select another node"
        )
    if not (text.isascii() and text.isdecimal() and len(text) <= 3 and 1 <= int(text) <= 100):
        raise Refused(f"{subject} has {THREADS}={text[:32]}, which is no whole number of percent from 1 to 100")
    return int(text)


def _choose(
    subject: Subject,
    pod: Object,
    need: PodNeed,
    mine: Need,
    offer: Offer,
    gpus: Sequence[HostGpu],
    counted: Counted | None,
) -> list[HostGpu]:
    given = podview.of_scheduler(pod)
    allocation = parse_annotations(given)
    if allocation is None:
        return _by_kubelet(subject, need, mine, gpus, counted)
    found = pods.gpus_of({**pod, "metadata": {**pod["metadata"], "annotations": given}}, need)
    if found is None or mine.name not in found:
        raise Refused(
            f"the annotations of pod {subject.pod_name} give {_described(given)}, and its containers ask for "
            f"{', '.join(f'{_shown(one, need)} ({one.name})' for one in need.containers)} "
            f"{counted_in(offer.unit)}; delete the pod, so that the scheduler writes them again"
        )
    by_index = {gpu.index: gpu for gpu in gpus}
    missing = [index for index in found[mine.name] if index not in by_index]
    if missing:
        have = ", ".join(map(str, sorted(by_index))) or "none"
        raise Refused(
            f"the annotations of pod {subject.pod_name} name GPU {missing[0]}, which this node does not have "
            f"(GPUs: {have}); delete the pod, so that the scheduler writes them again"
        )
    return [_usable(by_index[index]) for index in found[mine.name]]


def _shown(one: Need, need: PodNeed) -> str:
    return f"{one.mib} MiB" if one.mib else f"{one.percent} %" if one.percent else str(one.units * need.gpus)


def _described(given: Mapping[str, str]) -> str:
    shown = [f"{key}={text[:64]}" for key, text in sorted(given.items()) if "time" not in key.lower()]
    return ", ".join(shown[:6])


def _usable(gpu: HostGpu) -> HostGpu:
    if gpu.why:
        raise Refused(gpu.why)
    return gpu


def _by_kubelet(
    subject: Subject, need: PodNeed, mine: Need, gpus: Sequence[HostGpu], counted: Counted | None
) -> list[HostGpu]:
    """Without a scheduler's choice: the only GPU, or those whose devices the kubelet has counted for the container."""
    if not gpus:
        raise Refused("this node has no GPU that cgpu_km or NVML knows of")
    if counted and not need.names and sum(counted.values()) != mine.units * need.gpus:
        raise Refused(
            f"{subject} asks for {mine.units * need.gpus} of {GPU_MEM}, and the kubelet has counted "
            f"{sum(counted.values())} for a container of these names: it may be of an earlier pod; it is tried again"
        )
    if need.gpus == 1 and len(gpus) == 1:
        return [_usable(gpus[0])]
    if not counted:
        raise Refused(
            f"pod {subject.pod_name} has no annotation {INDEX} of a scheduler, the kubelet has counted no device for "
            f"container {subject.container}, and this node has {len(gpus)} GPUs; install the scheduler extender"
        )
    by_uuid = {gpu.uuid: gpu for gpu in gpus}
    if set(counted) - set(by_uuid):
        raise Refused(f"the kubelet has counted devices of {min(set(counted) - set(by_uuid))}, which is no GPU here")
    if len(counted) != need.gpus or len(set(counted.values())) != 1:
        parts = ", ".join(f"{count} of GPU {by_uuid[uuid].index}" for uuid, count in sorted(counted.items()))
        raise Refused(
            f"no single GPU had room for {subject}: the kubelet has counted {parts}; "
            f"install the scheduler extender, which looks at each GPU, or delete the pod"
        )
    return [_usable(by_uuid[uuid]) for uuid in sorted(counted, key=lambda uuid: by_uuid[uuid].index)]


def _check_weights_count(subject: Subject, chosen: Sequence[HostGpu]) -> None:
    """A percentage is at least that part of the GPU, which only policies that use weights keep."""
    for gpu in chosen:
        if gpu.policy is not None and not policies.of(gpu.policy).weights:
            raise Refused(
                f"{subject} asks for {GPU_CORE}, and GPU {gpu.index} has {effect.policy_text(gpu.policy)}, which "
                f'ignores weights: set policy = "weighted" in [gpu] of the node\'s cgpu.toml, or leave it out'
            )


def _check_priority_counts(subject: Subject, offer: Offer, chosen: Sequence[HostGpu]) -> None:
    if offer.mode in WHOLE_MODES:
        raise Refused(
            f"{subject} asks for high priority, and this node is in mode {offer.mode}, where the driver alone divides "
            f"the time; leave {PRIORITY} out, or select another node"
        )
    for gpu in chosen:
        if gpu.policy is not None and (why := effect.of_highprio(gpu.policy)):
            raise Refused(
                f"{subject} asks for high priority on GPU {gpu.index}, and {why}: set another policy in [gpu] of the "
                f"node's cgpu.toml, or leave {PRIORITY} out"
            )


def _mib(subject: Subject, mine: Need, offer: Offer, gpu: HostGpu, exact: Exact | None = None) -> int:
    """@exact: by the annotation of the pod's author, which can lower the limit and never raise it."""
    dev = offer.dev(gpu)
    if mine.units > dev:
        raise Refused(f"{subject} asks for {mine.units} {counted_in(offer.unit)} of GPU {gpu.index}, which has {dev}")
    most = offer.mib(gpu, mine.units)
    if exact is None:
        return most
    wanted = exact.of(gpu.total_mib)
    if not MEMORY_MIN_MIB <= wanted <= most:
        raise Refused(
            f"{subject} has {wanted} MiB by the annotation {MEMORY}, and its {mine.units} {counted_in(offer.unit)} of "
            f"{GPU_MEM} are {MEMORY_MIN_MIB} to {most} MiB of GPU {gpu.index}; raise {GPU_MEM}, or write less"
        )
    return wanted


def _relative_mib(subject: Subject, mine: Need, offer: Offer, gpu: HostGpu, placed: int | None) -> int:
    """MiB or percent of the card's memory. @placed: units that the scheduler has counted for it, which bound it: an
    annotation may be another one by now. All of a GPU is what can be given of it."""
    wanted = mine.mib or gpu.total_mib * mine.percent // 100
    units = placed if placed is not None else offer.units(gpu)
    most = min(offer.mib(gpu, min(units, offer.dev(gpu))), gpu.total_mib)
    if mine.percent == 100:
        wanted = min(wanted, most)
    if not MEMORY_MIN_MIB <= wanted <= most:
        hint = "" if placed is None else ", as the scheduler has counted it; delete the pod, so that it counts again"
        why = f"it must be {MEMORY_MIN_MIB} to {most} MiB{hint}"
        raise Refused(f"{subject} asks for {wanted} MiB of GPU {gpu.index}; {why}")
    return wanted


def _check_choice(subject: Subject, need: PodNeed, chosen: Sequence[HostGpu]) -> None:
    for gpu in chosen:
        if why := need.choice.lack(Gpu(gpu.index, 0, model=gpu.name, uuid=gpu.uuid)):
            raise Refused(f"{subject} is on GPU {gpu.index}, which {why}; delete the pod, or change what it asks for")


def check_uuid_choice(subject: Subject, allowed: bool) -> None:
    """Raises Refused if the namespace of a pod that chooses by UUID does not allow it."""
    if not allowed:
        raise Refused(no_uuid(subject.pod_name, subject.namespace))


def _exact(subject: Subject, pod: Object, offer: Offer) -> Exact | None:
    try:
        names = [str(one.get("name")) for one in podview.containers(pod)]
        found = exact_of((pod.get("metadata") or {}).get("annotations"), subject.container, names)
    except BadAnnotation as error:
        raise Refused(f"{subject}: {error}") from error
    if found is not None and offer.mode == SHARE:
        raise Refused(
            f"{subject} has the annotation {MEMORY}, and this node is in mode {SHARE}, where nothing limits it"
        )
    return found


def _weight(mine: Need, gpu: HostGpu) -> int:
    """percentage x max_inst / 100, as the vendor's; at least 1."""
    return max(mine.core * gpu.max_inst // CORE, 1) if mine.core else 1


def _variables(need: PodNeed, mine: Need, offer: Offer, chosen: Sequence[HostGpu]) -> dict[str, str]:
    """What programs read: the names of the vendor's plugin. DEV is that of the first GPU."""
    index = ",".join(str(gpu.index) for gpu in chosen)
    main = sum(one.units for one in need.containers if one.phase == MAIN) * need.gpus
    out = {
        "ALIYUN_COM_GPU_MEM_IDX": index,
        "ALIYUN_COM_GPU_VISIBLE_DEVICES": index,
        "ALIYUN_COM_GPU_MEM_DEV": str(offer.dev(chosen[0])),
        "ALIYUN_COM_GPU_MEM_CONTAINER": str(mine.units),
        "ALIYUN_COM_GPU_MEM_POD": str(main),
        "ALIYUN_COM_GPU_MEM_UNIT": offer.unit,
    }
    if mine.core:
        out["ALIYUN_COM_GPU_SCHD_WEIGHT"] = str(_weight(mine, chosen[0]))
    return out
