# SPDX-License-Identifier: MIT
"""PURE: the annotations of the gpushare protocol, on pods and on our nodes.

Two generations name the GPU of a pod. Names and values are those that the vendor's extender and plugin exchange
(AliyunContainerService/gpushare-scheduler-extender c0b6141 and gpushare-device-plugin 45fb8b8):

  old     ALIYUN_COM_GPU_MEM_IDX and its companions: one GPU for the whole pod. The extender writes them before the
          binding, ASSIGNED="false"; the plugin sets ASSIGNED="true".
  newer   scheduler.framework.gpushare.allocation: {"<container>": {"<gpu>": units}}. It takes precedence. A container
          is named by its name or by its place in spec.containers.

A GPU is the number M of /dev/nvidiaM. Units are those of aliyun.com/gpu-mem.

An annotation chooses the GPU only. The amount is that of the container's limits: a user with the right to edit a pod
can write its annotations, but the kubelet has counted its limits.
"""

from __future__ import annotations

import json
import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from cgpu_common.placement import ANY, Choice
from cgpu_kube import quantity
from cgpu_kube.errors import BadAnnotation, BadQuantity

# Resources and labels.
GPU_MEM = "aliyun.com/gpu-mem"
GPU_CORE = "aliyun.com/gpu-core.percentage"
GPU_COUNT = "aliyun.com/gpu-count"  # of a node: a resource; of a pod: a label, the number of GPUs for its units
MODE_LABEL = "ack.node.gpu.schedule"
#: Ours, of a node: cgpu-kube has its mode. The DaemonSet stays on it when MODE_LABEL is removed, which changes nothing.
AGENT_LABEL = "cgpu.io/agent"
#: Of the agent's own pod, in the namespace of the extender's.
NAME_LABEL, AGENT_NAME = "app.kubernetes.io/name", "cgpu-node"
#: Of a node, as ACK names them: the model, memory as 16280MiB, and the number of its GPUs.
CARD_NAME, CARD_MEM, CARD_COUNT = (f"aliyun.accelerator/nvidia_{word}" for word in ("name", "mem", "count"))
PLACEMENT_LABEL = "ack.node.gpu.placement"

#: Of a node: it takes the resources and annotations of NVIDIA's names below. Of a namespace: its pods are sent to our
#: scheduler when they have one.
NAMES_LABEL, NAMES = "cgpu.io/names", "nvidia"
#: Resources by which HAMi's users ask: GPUs, MiB of each, percent of the memory of each, percent of its compute.
NV_GPU, NV_MEM, NV_PERCENT, NV_CORES = (
    f"nvidia.com/{word}" for word in ("gpu", "gpumem", "gpumem-percentage", "gpucores")
)
NV_AMOUNTS = (NV_MEM, NV_PERCENT, NV_CORES)
#: NVIDIA's own, of a pod, with the name of a container between prefix and suffix: the most memory of each of its GPUs,
#: and what it is guaranteed of it, which is the limit where there is no other, as NVIDIA's own operator has it.
NV_PREFIX, NV_LIMIT, NV_REQUEST = "nvidia.com/container.", ".gpu-memory.limit", ".gpu-memory.request"

#: Ours, of a pod: which GPUs it may have; a word with ! before it names those that it may not. A namespace's label of
#: the second name is "allowed" where its pods may choose by UUID. Then HAMi's words for the same.
GPU_TYPE, GPU_UUID = "cgpu.io/gpu-type", "cgpu.io/gpu-uuid"
HAMI_TYPE, HAMI_NO_TYPE, HAMI_UUID, HAMI_NO_UUID = (
    f"nvidia.com/{word}" for word in ("use-gputype", "nouse-gputype", "use-gpuuuid", "nouse-gpuuuid")
)
CHOICES = (GPU_TYPE, GPU_UUID, HAMI_TYPE, HAMI_NO_TYPE, HAMI_UUID, HAMI_NO_UUID)
ALLOWED = "allowed"
UUID_CHOICES = (GPU_UUID, HAMI_UUID, HAMI_NO_UUID)
WORDS_MAX = 16
_WORD = re.compile(r"[A-Za-z0-9][A-Za-z0-9 ._-]{0,62}\Z", re.ASCII)

# Old generation, of a pod.
INDEX = "ALIYUN_COM_GPU_MEM_IDX"
DEV = "ALIYUN_COM_GPU_MEM_DEV"
POD = "ALIYUN_COM_GPU_MEM_POD"
ASSIGNED = "ALIYUN_COM_GPU_MEM_ASSIGNED"
ASSUME_TIME = "ALIYUN_COM_GPU_MEM_ASSUME_TIME"
# Newer generation, of a pod.
ALLOCATION = "scheduler.framework.gpushare.allocation"
CORE_ALLOCATION = "gpushare.alibabacloud.com/core-percentage"
NEW_ASSIGNED = "scheduler.framework.gpushare.assigned"
NEW_ASSUME_TIME = "scheduler.framework.gpushare.assume-time"
# Ours, of a node: what cgpu-kube node offers. The vendor's extender divides gpu-mem by gpu-count instead, which is
# wrong for GPUs of different size.
NODE_GPUS = "cgpu.io/gpus"
# Ours: of a pod an annotation, normal or high; of a namespace a label, high: its pods may have it.
PRIORITY = "cgpu.io/priority"

# Ours, of a pod: the limits of its containers in MiB, below what their units are: 5500Mi, or main=5500Mi,side=300Mi.
MEMORY = "cgpu.io/memory"

# Ours, of a pod on a node in mode mps: percent of the multiprocessors that each of its programs uses at most.
THREADS = "cgpu.io/threads"

# Ours, of a pod that is not bound yet: the node for which an extender has chosen the GPU, and the extender's name. The
# Binding may be on its way: an extender that takes over counts the pod there.
ASSUMED = "cgpu.io/assumed"

#: What an extender writes of its choice.
CHOICE = (
    *(INDEX, DEV, POD, ASSIGNED, ASSUME_TIME),
    *(ALLOCATION, CORE_ALLOCATION, NEW_ASSIGNED, NEW_ASSUME_TIME),
    ASSUMED,
)

GPUS_MAX = 64  # a node; also a bound for text that a pod's author may have written
TEXT_MAX = 16 << 10
DELETED_MAX = 32  # pods in the annotation of a node
UNITS_MAX = 1 << 30

#: What reading a text of JSON and its values may raise: Infinity and 1e999 are numbers to json, and none to int().
NO_VALUE = (ValueError, TypeError, KeyError, AttributeError, RecursionError, ArithmeticError)

Units = Mapping[int, int]  # GPU -> units


@dataclass(frozen=True, slots=True)
class Allocation:
    """What the annotations of one pod say."""

    index: tuple[int, ...] = ()  # GPUs for the whole pod, old generation; mostly one
    pod_units: int | None = None  # sum of the containers' limits, as the extender has counted it
    dev_units: int | None = None  # of the GPU, as the extender has counted it
    containers: Mapping[str, Units] = field(default_factory=dict)  # by name or place; newer generation
    core: Mapping[str, Units] = field(default_factory=dict)  # percent of each GPU, likewise
    assigned: bool = False
    assume_time_ns: int | None = None

    @property
    def gpus(self) -> tuple[int, ...]:
        """Every GPU that it names."""
        named = {gpu for units in self.containers.values() for gpu in units}
        return tuple(sorted(named)) if named else self.index

    def of_container(self, name: str, place: int) -> Units | None:
        """Units by GPU of one container, newer generation; None: not listed."""
        return _of(self.containers, name, place)


def _of(table: Mapping[str, Units], name: str, place: int) -> Units | None:
    return table[name] if name in table else table.get(str(place))


def _shown(text: object) -> str:
    line = " ".join(str(text).split())
    return line if len(line) <= 64 else line[:60] + "…"


def _number(key: str, text: str, most: int) -> int:
    if not (text.isascii() and text.isdecimal()) or len(text) > 20 or int(text) > most:
        raise BadAnnotation(f"annotation {key}={_shown(text)} is not a number from 0 to {most}")
    return int(text)


def _flag(key: str, text: str) -> bool:
    if text not in ("true", "false"):
        raise BadAnnotation(f"annotation {key}={_shown(text)} is neither true nor false")
    return text == "true"


def _index(text: str) -> tuple[int, ...]:
    parts = text.split(",")
    found = tuple(_number(INDEX, part.strip(), GPUS_MAX - 1) for part in parts[: GPUS_MAX + 1])
    if len(set(found)) != len(parts):
        raise BadAnnotation(f"annotation {INDEX}={_shown(text)} names a GPU twice")
    return found


def _table(key: str, text: str) -> dict[str, dict[int, int]]:
    if len(text) > TEXT_MAX:
        raise BadAnnotation(f"annotation {key} is longer than {TEXT_MAX} bytes")
    try:
        value = json.loads(text)
    except NO_VALUE:
        raise BadAnnotation(f"annotation {key}={_shown(text)} is not JSON") from None
    if not isinstance(value, dict):
        raise BadAnnotation(f'annotation {key}={_shown(text)} is not {{"container": {{"gpu": units}}}}')
    return {name: _units(key, text, units) for name, units in value.items()}


def _units(key: str, text: str, value: Any) -> dict[int, int]:
    if not isinstance(value, dict) or len(value) > GPUS_MAX:
        raise BadAnnotation(f'annotation {key}={_shown(text)} is not {{"container": {{"gpu": units}}}}')
    out: dict[int, int] = {}
    for gpu, units in value.items():
        number = _number(key, gpu, GPUS_MAX - 1)
        if number in out or isinstance(units, bool) or not isinstance(units, int) or not 0 < units <= UNITS_MAX:
            raise BadAnnotation(f"annotation {key}={_shown(text)} gives GPU {number} no whole number of units")
        out[number] = units
    return out


@dataclass(frozen=True, slots=True)
class Exact:
    """A limit that the pod's author has written: MiB, or percent of the GPU's memory."""

    mib: int = 0
    percent: int = 0

    def of(self, total_mib: int) -> int:
        return self.mib or total_mib * self.percent // 100


def exact(annotations: Mapping[str, str] | None, container: str, containers: Collection[str]) -> Exact | None:
    """The limit that the pod's author has written for a container, of each of its GPUs; None: none. @containers: all of
    the pod. Raises BadAnnotation."""
    text = (annotations or {}).get(MEMORY)
    if text is None:
        return None
    found: dict[str, str] = {}
    for part in text[:TEXT_MAX].split(","):
        name, sign, amount = part.strip().rpartition("=")
        if name in found or bool(sign) != bool(name):
            raise BadAnnotation(f"annotation {MEMORY}={_shown(text)} is none of 5500Mi, 50% and main=5500Mi,side=300Mi")
        found[name] = amount
    unknown = sorted(set(found) - {"", *containers})
    if unknown:
        raise BadAnnotation(
            f"annotation {MEMORY}={_shown(text)} names container {_shown(unknown[0])}, which the pod does not have; it "
            f"has {_shown(', '.join(sorted(containers)))}"
        )
    amount = found.get(container, found.get("", ""))
    if not amount:
        return None
    if amount.endswith("%"):
        percent = amount[:-1]
        if not (percent.isascii() and percent.isdecimal() and len(percent) <= 3 and 1 <= int(percent) <= 100):
            raise BadAnnotation(
                f"annotation {MEMORY}={_shown(text)} has {_shown(amount)}, and a percentage is 1% to 100%"
            )
        return Exact(percent=int(percent))
    try:
        return Exact(quantity.mib(amount))
    except BadQuantity as error:
        raise BadAnnotation(f"annotation {MEMORY}={_shown(text)}: {error}") from error


def nv_limit_mib(annotations: Mapping[str, str] | None, container: str) -> int | None:
    """The limit of a container by NVIDIA's annotations; None: none. Raises BadAnnotation."""
    given: dict[str, int] = {}
    for suffix in (NV_LIMIT, NV_REQUEST):
        key = f"{NV_PREFIX}{container}{suffix}"
        text = (annotations or {}).get(key)
        try:
            given |= {} if text is None else {suffix: quantity.mib(text)}
        except BadQuantity as error:
            raise BadAnnotation(f"annotation {key}={_shown(text)}: {error}") from error
    limit = given.get(NV_LIMIT, given.get(NV_REQUEST))
    if limit is not None and given.get(NV_REQUEST, 0) > limit:
        raise BadAnnotation(
            f"annotation {NV_PREFIX}{container}{NV_REQUEST} is {given[NV_REQUEST]} MiB and the limit {limit}: the "
            f"limit is the larger one"
        )
    return limit


def choice(annotations: Mapping[str, str] | None) -> Choice:
    """Which GPUs the pod's author wants, in our words and in HAMi's. Raises BadAnnotation."""
    given = annotations or {}
    if not any(key in given for key in CHOICES):
        return ANY
    models, no_models = _words(given, GPU_TYPE, HAMI_TYPE, HAMI_NO_TYPE)
    uuids, no_uuids = _words(given, GPU_UUID, HAMI_UUID, HAMI_NO_UUID)
    return Choice(models, no_models, uuids, no_uuids)


def chooses_uuid(annotations: Mapping[str, str] | None) -> bool:
    return any(key in (annotations or {}) for key in UUID_CHOICES)


def no_uuid(pod: str, namespace: str) -> str:
    return (
        f"pod {pod} chooses its GPU by UUID, and its namespace does not allow it; "
        f"kubectl label namespace {namespace} {GPU_UUID}={ALLOWED} does"
    )


def _words(given: Mapping[str, str], ours: str, yes: str, no: str) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Words that are wanted, and those that are not."""
    wanted: dict[str, None] = {}
    unwanted: dict[str, None] = {}
    for key, negative in ((ours, False), (yes, False), (no, True)):
        if key not in given:
            continue
        parts = [part.strip() for part in given[key][:TEXT_MAX].split(",")]
        for part in parts:
            word = part.removeprefix("!") if key == ours else part
            if not _WORD.match(word) or len(parts) > WORDS_MAX:
                raise BadAnnotation(f"annotation {key}={_shown(given[key])} is no list of 1 to {WORDS_MAX} names")
            (unwanted if negative or word != part else wanted)[word] = None
    return tuple(wanted), tuple(unwanted)


def counted_in(unit: str) -> str:
    """A unit as the word after a number: 6 GiB, 24 x 256MiB."""
    return unit if unit.isalpha() else f"x {unit}"


def names_gpus(annotations: Mapping[str, str]) -> bool:
    """Whether a scheduler, or the agent, has written the pod's GPUs."""
    return INDEX in annotations or ALLOCATION in annotations


def parse(annotations: Mapping[str, str] | None) -> Allocation | None:
    """The allocation in the annotations of a pod; None if they name no GPU. Raises BadAnnotation."""
    given = annotations or {}
    if not names_gpus(given):
        return None
    assigned = next(((key, given[key]) for key in (NEW_ASSIGNED, ASSIGNED) if key in given), None)
    assumed = next(((key, given[key]) for key in (NEW_ASSUME_TIME, ASSUME_TIME) if key in given), None)
    return Allocation(
        index=_index(given[INDEX]) if INDEX in given else (),
        pod_units=_number(POD, given[POD], UNITS_MAX) if POD in given else None,
        dev_units=_number(DEV, given[DEV], UNITS_MAX) if DEV in given else None,
        containers=_table(ALLOCATION, given[ALLOCATION]) if ALLOCATION in given else {},
        core=_table(CORE_ALLOCATION, given[CORE_ALLOCATION]) if CORE_ALLOCATION in given else {},
        assigned=_flag(*assigned) if assigned else False,
        assume_time_ns=_number(*assumed, (1 << 63) - 1) if assumed else None,
    )


def write(
    containers: Mapping[str, Units], dev_units: int, time_ns: int, core: Mapping[str, Units] | None = None
) -> dict[str, str]:
    """Both generations, as a scheduler writes them before the binding. `containers`: units by GPU of each container
    that has some, by its name. One GPU or several: MEM_IDX has the list."""
    gpus = sorted({gpu for units in containers.values() for gpu in units})
    total = sum(sum(units.values()) for units in containers.values())
    out = {
        INDEX: ",".join(map(str, gpus)),
        DEV: str(dev_units),
        POD: str(total),
        ASSIGNED: "false",
        ASSUME_TIME: str(time_ns),
        ALLOCATION: _json(containers),
        NEW_ASSIGNED: "false",
        NEW_ASSUME_TIME: str(time_ns),
    }
    if core:
        out[CORE_ALLOCATION] = _json(core)
    return out


def _json(table: Mapping[str, Units]) -> str:
    text = {name: {str(gpu): count for gpu, count in sorted(units.items())} for name, units in table.items()}
    return json.dumps(text, sort_keys=True, separators=(",", ":"))


def assigned_patch(allocation: Allocation, time_ns: int) -> dict[str, str]:
    """The annotations that the plugin sets once a container of the pod has its GPU. The vendor's plugin overwrites
    ASSUME_TIME too."""
    out: dict[str, str] = {}
    if allocation.index:
        out |= {ASSIGNED: "true", ASSUME_TIME: str(time_ns)}
    if allocation.containers:
        out |= {NEW_ASSIGNED: "true"}
    return out


def assumed(node: str, by: str) -> dict[str, str]:
    return {ASSUMED: json.dumps({"node": node, "by": by}, separators=(",", ":"))}


def parse_assumed(annotations: Mapping[str, str] | None) -> tuple[str, str] | None:
    """Node and extender; None: none, or it is damaged."""
    try:
        value = json.loads((annotations or {}).get(ASSUMED, "null")[:TEXT_MAX])
        return str(value["node"]), str(value["by"])
    except NO_VALUE:
        return None


# ---- nodes ----


@dataclass(frozen=True, slots=True)
class NodeGpu:
    """One GPU as a node offers it. `units` of `dev` units of its memory can be given to containers together."""

    index: int  # M of /dev/nvidiaM
    uuid: str
    memory_mib: int
    units: int
    dev: int
    slots: int = 20  # containers
    why: str = ""  # not empty: it takes no new container, for this reason
    model: str = ""
    links: tuple[tuple[int, int], ...] = ()  # M of another GPU, and the rank of the link to it


@dataclass(frozen=True, slots=True)
class Remains:
    """What a pod that is deleted still holds, because its containers have not ended; no units: nothing any more."""

    pod: str  # namespace/name
    units: Units


@dataclass(frozen=True, slots=True)
class NodeGpus:
    """The value of NODE_GPUS."""

    mode: str
    unit: str  # by its name: GiB, 256MiB
    gpus: tuple[NodeGpu, ...]
    deleted: Mapping[str, Remains] = field(default_factory=dict)  # by uid
    away: str = ""  # not empty: the kubelet would refuse new pods for good, for this reason
    names: str = ""  # NAMES: it takes pods that ask by those


def write_node(node: NodeGpus) -> dict[str, str]:
    gpus = [
        {
            "index": gpu.index,
            "uuid": gpu.uuid,
            "memoryMiB": gpu.memory_mib,
            "units": gpu.units,
            "dev": gpu.dev,
            "slots": gpu.slots,
            **({"why": gpu.why} if gpu.why else {}),
            **({"model": gpu.model} if gpu.model else {}),
            **({"links": {str(other): rank for other, rank in gpu.links}} if gpu.links else {}),
        }
        for gpu in node.gpus
    ]
    value: dict[str, Any] = {"mode": node.mode, "unit": node.unit, "gpus": gpus}
    value |= {"away": node.away} if node.away else {}
    value |= {"names": node.names} if node.names else {}
    if node.deleted:
        value["deleted"] = _deleted(node.deleted, TEXT_MAX - len(_text({**value, "deleted": {}})))
    return {NODE_GPUS: _text(value)}


def _text(value: Any) -> str:
    return json.dumps(value, separators=(",", ":"))


def _deleted(deleted: Mapping[str, Remains], room: int) -> Mapping[str, Any]:
    """In at most @room bytes, since a longer annotation counts for damaged: of many, the last are one sum."""
    ordered = sorted(deleted.items(), key=lambda item: (-sum(item[1].units.values()), item[0]))
    count = min(len(ordered), DELETED_MAX)
    while True:
        kept = dict(ordered[:count])
        if rest := ordered[count:]:
            sums: dict[int, int] = {}
            for _, one in rest:
                for gpu, units in one.units.items():
                    sums[gpu] = sums.get(gpu, 0) + units
            kept["more"] = Remains(f"/{len(rest)} more", sums)
        found = {
            uid: {"pod": one.pod, "units": {str(gpu): units for gpu, units in sorted(one.units.items())}}
            for uid, one in kept.items()
        }
        if not count or len(_text(found)) <= room:
            return found
        count -= 1


def parse_node(annotations: Mapping[str, str] | None) -> NodeGpus | None:
    """The GPUs of a node with cgpu-kube; None: it is another plugin's. Raises BadAnnotation."""
    text = (annotations or {}).get(NODE_GPUS)
    if text is None:
        return None
    try:
        value: Any = json.loads(text) if len(text) <= TEXT_MAX else None
        gpus: Sequence[Any] = value["gpus"]
        deleted = {
            str(uid): Remains(str(one["pod"]), _units(NODE_GPUS, text, one["units"]))
            for uid, one in (value.get("deleted") or {}).items()
        }
        found = tuple(_node_gpu(gpu) for gpu in gpus[:GPUS_MAX])
        away, names = str(value.get("away") or ""), str(value.get("names") or "")
        return NodeGpus(str(value["mode"]), str(value["unit"]), found, deleted, away, names)
    except NO_VALUE:
        raise BadAnnotation(f"annotation {NODE_GPUS}={_shown(text)} of the node is damaged") from None


def _node_gpu(value: Mapping[str, Any]) -> NodeGpu:
    numbers = {key: value[key] for key in ("index", "memoryMiB", "units", "dev", "slots")}
    if not all(isinstance(number, int) and 0 <= number <= UNITS_MAX for number in numbers.values()):
        raise ValueError
    return NodeGpu(
        index=numbers["index"],
        uuid=str(value["uuid"]),
        memory_mib=numbers["memoryMiB"],
        units=numbers["units"],
        dev=numbers["dev"],
        slots=numbers["slots"],
        why=str(value.get("why", "")),
        model=str(value.get("model", "")),
        links=tuple((int(other), min(int(rank), UNITS_MAX)) for other, rank in (value.get("links") or {}).items()),
    )
