# SPDX-License-Identifier: MIT
"""Nodes, their GPUs and containers, and the pods that wait: from samples of Prometheus (from kubectl inspect cgpu:
inspected.py). What is chosen of them, as rows and as JSON. Pure."""

from __future__ import annotations

import fnmatch
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from cgpu_common import policies

from .columns import Column, printable
from .names import label
from .render import mib, percent

#: Metrics of cgpud that the view is made of (docs/user/metrics.md; a test compares them).
METRICS = (
    *("cgpu_module_loaded", "cgpu_draining", "cgpu_build_info", "cgpu_gpu_info", "cgpu_gpu_policy"),
    *("cgpu_gpu_instances", "cgpu_gpu_max_instances", "cgpu_gpu_free_weight", "cgpu_gpu_memory_total_bytes"),
    *("cgpu_gpu_memory_limits_bytes", "cgpu_gpu_memory_used_bytes", "cgpu_container_info"),
    *("cgpu_container_memory_limit_bytes", "cgpu_container_memory_used_bytes", "cgpu_container_weight"),
    *("cgpu_container_high_priority", "cgpu_container_dying", "cgpu_gpu_memory_free_bytes"),
)
SHARE = "cgpu_container_gpu_seconds_total"
OK, DRAINING, NO_MODULE, DOWN = "ok", "draining", "no module", "down"
STATES = (OK, DRAINING, NO_MODULE, DOWN)
VIEWS = ("nodes", "gpus", "containers")
SORTS = ("name", "free", "used", "containers")

Labels = Mapping[str, str]
#: A column, and what its cell says of (node), (node, gpu) or (node, gpu, container).
Columns = tuple[tuple[Column, Callable[..., str]], ...]
#: The labels of a series, "__name__" among them, and its value now, which is finite.
Sample = tuple[Labels, float]


@dataclass(frozen=True)
class Container:
    """One container on one GPU. @share_pct: over the last minute; None: not known, as under native."""

    dir: str
    gpu: int
    id: str = ""
    name: str = ""
    pod: str = ""
    namespace: str = ""
    limit_bytes: int = 0
    used_bytes: int | None = None
    weight: int | None = None
    highprio: bool = False
    dying: bool = False
    share_pct: float | None = None

    @property
    def title(self) -> str:
        """namespace/pod/container, the engine's name, else the id."""
        parts = (self.namespace, self.pod, self.name)
        return "/".join(filter(None, parts)) if self.pod else self.name or label(self.id or self.dir)


@dataclass(frozen=True)
class Gpu:
    """@admitted_bytes: what admission gives to one more container; None: a cgpud of before does not say."""

    index: int
    uuid: str = ""
    model: str = ""
    policy: int | None = None
    instances: int = 0
    max_inst: int = 0
    free_weight: int = 0
    total_bytes: int = 0
    limits_bytes: int = 0
    used_bytes: int = 0
    why: str = ""  # why it takes no pod, by Kubernetes
    containers: tuple[Container, ...] = ()
    admitted_bytes: int | None = None

    @property
    def free_bytes(self) -> int | None:
        """None: the size is not known yet."""
        if self.admitted_bytes is not None:
            return self.admitted_bytes
        return max(0, self.total_bytes - self.limits_bytes) if self.total_bytes else None


@dataclass(frozen=True)
class Node:
    name: str
    state: str = OK
    version: str = ""
    gpus: tuple[Gpu, ...] = ()

    @property
    def containers(self) -> tuple[Container, ...]:
        return tuple(one for gpu in self.gpus for one in gpu.containers)

    @property
    def containers_count(self) -> int:
        """A container on several GPUs is one. Where containers are not named, those of the GPUs are added."""
        named = {(one.id or one.dir, one.namespace, one.pod, one.name) for one in self.containers}
        more = sum(max(0, gpu.instances - len(gpu.containers)) for gpu in self.gpus)
        return len(named) + more

    @property
    def most_free_bytes(self) -> int | None:
        """On one GPU of it: a slice is on one."""
        return max((gpu.free_bytes for gpu in self.gpus if gpu.free_bytes is not None), default=None)


@dataclass(frozen=True)
class Waiting:
    """A pod on no node. @whys: node -> the reason there."""

    pod: str
    note: str = ""
    whys: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Fleet:
    """@waiting None: not known, as no source of it was named."""

    nodes: tuple[Node, ...]
    waiting: tuple[Waiting, ...] | None = None


# ---- from Prometheus ----


def _number(labels: Labels, key: str = "gpu") -> int | None:
    text = labels.get(key, "")
    return int(text) if text.isascii() and text.isdecimal() and len(text) < 6 else None


class _Series:
    """Values by metric, and within one by the labels that place it."""

    def __init__(self, samples: Iterable[Sample]) -> None:
        self.of: dict[str, list[Sample]] = {}
        for labels, value in samples:
            self.of.setdefault(labels.get("__name__", ""), []).append((labels, value))

    def by(self, metric: str, *keys: str) -> dict[tuple[str, ...], Sample]:
        found = self.of.get(metric, ())
        return {tuple(labels.get(key, "") for key in keys): (labels, value) for labels, value in found}


def _whole(found: Mapping[tuple[str, ...], Sample], key: tuple[str, ...], default: int = 0) -> int:
    sample = found.get(key)
    return int(sample[1]) if sample is not None else default


def of_prometheus(
    samples: Sequence[Sample], shares: Sequence[Sample], up: Sequence[Sample], known: Sequence[Sample]
) -> Fleet:
    """@samples: of METRICS. @shares: of SHARE, seconds of a second. @up: of the jobs that have them; 0: a target that
    gave no answer to its last scrape. @known: cgpu_module_loaded of the last hours: other targets of a job are none of
    cgpu's nodes, and a node that is no target any more is gone."""
    series = _Series(samples)
    loaded = series.by("cgpu_module_loaded", "instance")
    draining, build = series.by("cgpu_draining", "instance"), series.by("cgpu_build_info", "instance")
    were = {labels.get("instance", "") for labels, _ in known}
    names = {key[0] for key in loaded} | ({labels.get("instance", "") for labels, _ in up} & were)
    is_down = {labels.get("instance", "") for labels, value in up if not value}
    gpus = _gpus_by_node(series, shares)
    nodes = []
    for name in sorted(names, key=natural):
        key = (name,)
        if name in is_down or key not in loaded:
            state = DOWN
        elif not _whole(loaded, key):
            state = NO_MODULE
        else:
            state = DRAINING if _whole(draining, key) else OK
        version = build[key][0].get("cgpud", "") if key in build else ""
        nodes.append(Node(name, state, version, () if state == DOWN else tuple(gpus.get(name, ()))))
    return Fleet(tuple(nodes))


def _gpus_by_node(series: _Series, shares: Sequence[Sample]) -> dict[str, list[Gpu]]:
    def place(metric: str) -> dict[tuple[str, ...], Sample]:
        return series.by(metric, "instance", "gpu")

    info, policy, total = place("cgpu_gpu_info"), place("cgpu_gpu_policy"), place("cgpu_gpu_memory_total_bytes")
    limits, used = place("cgpu_gpu_memory_limits_bytes"), place("cgpu_gpu_memory_used_bytes")
    instances, most = place("cgpu_gpu_instances"), place("cgpu_gpu_max_instances")
    weight, free = place("cgpu_gpu_free_weight"), place("cgpu_gpu_memory_free_bytes")
    is_native = {key for key, (_, value) in policy.items() if not policies.of(int(value)).limits}
    containers = _containers(series, shares, is_native)
    out: dict[str, list[Gpu]] = {}
    for key, (labels, number) in sorted(policy.items(), key=lambda one: (one[0][0], _number(one[1][0]) or 0)):
        index = _number(labels)
        if index is None:
            continue
        gpu = Gpu(
            index,
            labels.get("uuid", ""),
            info[key][0].get("model", "") if key in info else "",
            int(number),
            _whole(instances, key),
            _whole(most, key),
            _whole(weight, key),
            _whole(total, key),
            _whole(limits, key),
            _whole(used, key),
            containers=tuple(containers.get(key, ())),
            admitted_bytes=_whole(free, key) if key in free else None,
        )
        out.setdefault(key[0], []).append(gpu)
    return out


def _containers(
    series: _Series, shares: Sequence[Sample], is_native: set[tuple[str, ...]]
) -> dict[tuple[str, ...], list[Container]]:
    keys = ("instance", "gpu", "container")
    info = series.by("cgpu_container_info", "instance", "container")
    used, weight = series.by("cgpu_container_memory_used_bytes", *keys), series.by("cgpu_container_weight", *keys)
    high, dying = series.by("cgpu_container_high_priority", *keys), series.by("cgpu_container_dying", *keys)
    got = {tuple(labels.get(key, "") for key in keys): value for labels, value in shares}
    out: dict[tuple[str, ...], list[Container]] = {}
    for key, (labels, limit) in series.by("cgpu_container_memory_limit_bytes", *keys).items():
        index, place = _number(labels), key[:2]
        if index is None:
            continue
        about = info[key[0], key[2]][0] if (key[0], key[2]) in info else {}
        share = None if place in is_native or key not in got else 100 * got[key]
        one = Container(
            key[2],
            index,
            about.get("id", ""),
            about.get("name", ""),
            about.get("pod", ""),
            about.get("namespace", ""),
            int(limit),
            _whole(used, key) if key in used else None,
            _whole(weight, key) if key in weight else None,
            bool(_whole(high, key)),
            bool(_whole(dying, key)),
            share,
        )
        out.setdefault(place, []).append(one)
    return {place: sorted(found, key=lambda one: natural(one.title)) for place, found in out.items()}


# ---- what is chosen ----


def natural(text: str) -> tuple[tuple[int, int | str], ...]:
    """The order in which gpu-9 is before gpu-10."""
    parts: list[tuple[int, int | str]] = []
    word = ""
    for char in text + "\0":
        if word and (char.isdecimal() and char.isascii()) != (word[-1].isdecimal() and word[-1].isascii()):
            parts.append((0, int(word)) if word.isdecimal() and word.isascii() and len(word) < 18 else (1, word))
            word = ""
        word += char
    return tuple(parts)


@dataclass(frozen=True)
class Wanted:
    """Filters. @node: patterns as a shell's. @free_bytes: nodes with a GPU that has as much. @pod: a part of the name
    of a container or pod."""

    node: tuple[str, ...] = ()
    state: tuple[str, ...] = ()
    free_bytes: int | None = None
    pod: str = ""
    sort: str = "name"


def chosen(fleet: Fleet, wanted: Wanted) -> Fleet:
    """With @free_bytes and @pod only those GPUs and containers of the nodes are left."""
    nodes = []
    for one in fleet.nodes:
        if wanted.node and not any(fnmatch.fnmatchcase(one.name, pattern) for pattern in wanted.node):
            continue
        if wanted.state and one.state not in wanted.state:
            continue
        gpus: Sequence[Gpu] = one.gpus
        if wanted.free_bytes is not None:
            gpus = [gpu for gpu in gpus if not gpu.why and (gpu.free_bytes or 0) >= wanted.free_bytes]
        if wanted.pod:
            gpus = [replace(gpu, containers=tuple(c for c in gpu.containers if wanted.pod in c.title)) for gpu in gpus]
            gpus = [gpu for gpu in gpus if gpu.containers]
        takes_none = wanted.free_bytes is not None and one.state != OK
        if ((wanted.free_bytes is not None or wanted.pod) and not gpus) or takes_none:
            continue
        nodes.append(replace(one, gpus=tuple(gpus)))
    keys: dict[str, Callable[[Node], Any]] = {
        "free": lambda one: -(one.most_free_bytes or 0),
        "used": lambda one: -sum(gpu.used_bytes for gpu in one.gpus),
        "containers": lambda one: -len(one.containers),
    }
    if wanted.sort in keys:
        nodes.sort(key=keys[wanted.sort])
    waiting = fleet.waiting
    if waiting is not None and wanted.pod:
        waiting = tuple(one for one in waiting if wanted.pod in one.pod)
    return Fleet(tuple(nodes), waiting)


# ---- rows ----


def _gib(size: int) -> str:
    return f"{size / (1 << 30):.0f}"


def _size(size: int | None) -> str:
    return "-" if size is None else mib(size)


def _policies(gpus: Iterable[Gpu]) -> str:
    names = {policies.of(gpu.policy).name for gpu in gpus if gpu.policy is not None}
    return ", ".join(sorted(names)) or "-"


def _of_all(gpus: Iterable[Gpu]) -> str:
    held, total = (sum(getattr(gpu, name) for gpu in gpus) for name in ("limits_bytes", "total_bytes"))
    return f"{_gib(held)}/{_gib(total)}"


# fmt: off
NODES: Columns = (
    (Column("NODE", least=10), lambda one: printable(one.name)),
    (Column("STATE"), lambda one: printable(one.state)),
    (Column("GPUS", right=True), lambda one: str(len(one.gpus))),
    (Column("CONT", right=True), lambda one: str(one.containers_count)),
    (Column("LIMITS/TOTAL GiB", right=True), lambda one: _of_all(one.gpus)),
    (Column("MOST FREE MiB", right=True), lambda one: _size(one.most_free_bytes)),
    (Column("USED MiB", right=True, drop=3), lambda one: mib(sum(gpu.used_bytes for gpu in one.gpus))),
    (Column("POLICY", drop=2), lambda one: _policies(one.gpus)),
    (Column("CGPUD", drop=1), lambda one: printable(one.version) or "-"),
)
GPUS: Columns = (
    (Column("NODE", least=10), lambda one, gpu: printable(one.name)),
    (Column("GPU", right=True), lambda one, gpu: str(gpu.index)),
    (Column("MODEL", least=8, drop=1), lambda one, gpu: printable(gpu.model) or "-"),
    (Column("POLICY", drop=2), lambda one, gpu: _policies([gpu])),
    (Column("CONT", right=True), lambda one, gpu: f"{gpu.instances}{f'/{gpu.max_inst}' if gpu.max_inst else ''}"),
    (Column("WEIGHT FREE", right=True, drop=3), lambda one, gpu: str(gpu.free_weight) if gpu.max_inst else "-"),
    (Column("LIMITS/TOTAL MiB", right=True),
     lambda one, gpu: f"{mib(gpu.limits_bytes)}/{mib(gpu.total_bytes) if gpu.total_bytes else '?'}"),
    (Column("FREE MiB", right=True), lambda one, gpu: _size(gpu.free_bytes)),
    (Column("USED MiB", right=True, drop=4), lambda one, gpu: mib(gpu.used_bytes)),
)
CONTAINERS: Columns = (
    (Column("NODE", least=10), lambda one, gpu, held: printable(one.name)),
    (Column("GPU", right=True), lambda one, gpu, held: str(gpu.index)),
    (Column("CONTAINER", least=12), lambda one, gpu, held: printable(held.title)),
    (Column("WEIGHT", right=True, drop=2),
     lambda one, gpu, held: "-" if held.weight is None else f"{held.weight}{'hp' if held.highprio else ''}"),
    (Column("SHARE", right=True), lambda one, gpu, held: percent(held.share_pct)),
    (Column("USED MiB", right=True), lambda one, gpu, held: _size(held.used_bytes)),
    (Column("LIMIT MiB", right=True), lambda one, gpu, held: mib(held.limit_bytes)),
    (Column("STATE", drop=1), lambda one, gpu, held: "dying" if held.dying else "-"),
)
# fmt: on


def rows(fleet: Fleet, what: str) -> tuple[list[Column], list[list[str]]]:
    """The columns of nodes, gpus or containers, and their cells."""
    nodes = [(one,) for one in fleet.nodes]
    gpus = [(one, gpu) for one in fleet.nodes for gpu in one.gpus]
    held = [(one, gpu, box) for one, gpu in gpus for box in gpu.containers]
    views: dict[str, tuple[Columns, Sequence[tuple[Any, ...]]]]
    views = {"nodes": (NODES, nodes), "gpus": (GPUS, gpus), "containers": (CONTAINERS, held)}
    columns, places = views[what]
    return [column for column, _ in columns], [[text(*place) for _, text in columns] for place in places]


def total_line(fleet: Fleet) -> str:
    gpus = [gpu for one in fleet.nodes for gpu in one.gpus]
    free = sum(gpu.free_bytes or 0 for gpu in gpus)
    bad = {state: sum(one.state == state for one in fleet.nodes) for state in {one.state for one in fleet.nodes} - {OK}}
    counts = {"node": len(fleet.nodes), "GPU": len(gpus), "container": sum(one.containers_count for one in fleet.nodes)}
    parts = [f"{count} {word}{'s' * (count != 1)}" for word, count in counts.items()]
    parts.append(f"{_gib(free)} of {_gib(sum(gpu.total_bytes for gpu in gpus))} GiB free")
    return ", ".join([*parts, *(f"{count} {printable(state)}" for state, count in sorted(bad.items()))])


def waiting_lines(fleet: Fleet, most: int) -> list[str]:
    """@most: nodes whose reason is shown for a pod."""
    lines = []
    for one in fleet.waiting or ():
        lines.append(f"waits: {printable(one.pod)}{': ' + printable(one.note) if one.note else ''}")
        shown = sorted(one.whys.items(), key=lambda why: natural(why[0]))
        lines += [f"  {printable(node)}: {printable(why)}" for node, why in shown[:most]]
        lines += [f"  and {len(shown) - most} more nodes"] if len(shown) > most else []
    return lines


# ---- JSON ----


def as_json(fleet: Fleet) -> dict[str, Any]:
    """docs/reference/cgpu-nodes.schema.json describes it."""
    return {
        "schema_version": 1,
        "nodes": [
            {
                "name": one.name,
                "state": one.state,
                "cgpud": one.version or None,
                "gpus": [_gpu_json(gpu) for gpu in one.gpus],
            }
            for one in fleet.nodes
        ],
        "waiting": None
        if fleet.waiting is None
        else [{"pod": one.pod, "note": one.note, "nodes": dict(one.whys)} for one in fleet.waiting],
    }


def _gpu_json(gpu: Gpu) -> dict[str, Any]:
    return {
        "index": gpu.index,
        "uuid": gpu.uuid or None,
        "model": gpu.model or None,
        "policy": None if gpu.policy is None else {"number": gpu.policy, "name": policies.of(gpu.policy).name},
        "containers_count": gpu.instances,
        "max_inst": gpu.max_inst or None,
        "free_weight": gpu.free_weight if gpu.max_inst else None,
        "total_bytes": gpu.total_bytes or None,
        "limits_bytes": gpu.limits_bytes,
        "free_bytes": gpu.free_bytes,
        "used_bytes": gpu.used_bytes,
        "why": gpu.why,
        "containers": [
            {
                "id": one.id or None,
                "name": one.name or None,
                "pod": one.pod or None,
                "namespace": one.namespace or None,
                "limit_bytes": one.limit_bytes,
                "used_bytes": one.used_bytes,
                "weight": one.weight,
                "highprio": one.highprio,
                "dying": one.dying,
                "share_pct": None if one.share_pct is None else round(one.share_pct, 2),
            }
            for one in gpu.containers
        ],
    }
