# SPDX-License-Identifier: MIT
"""PURE: the JSON between kube-scheduler and an extender, and of the gpushare extender's inspect.

Names are those of k8s.io/kube-scheduler/extender/v1; Go decodes them without regard to case. Nodes come as names
(nodeCacheCapable) or as whole objects.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from cgpu_common.placement import NOTHING, NoRoom, Placement, score
from cgpu_kube import pods
from cgpu_kube.errors import KubeError, Refused
from cgpu_kube.ledger import Held, Ledger, Node

Object = dict[str, Any]
SCORE_MAX = 10  # MaxExtenderPriority


class BadRequest(KubeError):
    """The body is not what the scheduler sends."""


@dataclass(frozen=True)
class FilterArgs:
    pod: Object
    names: tuple[str, ...]
    nodes: tuple[Object, ...] | None  #: None: only names were sent


@dataclass(frozen=True)
class BindArgs:
    name: str
    namespace: str
    uid: str
    node: str


def field_of(body: Mapping[str, Any], name: str) -> Any:
    """A field by Go's rules: its own name, else in any case."""
    if name in body:
        return body[name]
    return next((value for key, value in body.items() if key.lower() == name.lower()), None)


def read_filter(body: Any) -> FilterArgs:
    """The arguments of filter and of prioritize. Raises BadRequest."""
    pod = field_of(body, "Pod") if isinstance(body, dict) else None
    if not isinstance(pod, dict):
        raise BadRequest("the request has no Pod")
    names, nodes = field_of(body, "NodeNames"), field_of(body, "Nodes")
    if isinstance(names, list) and all(isinstance(name, str) for name in names):
        return FilterArgs(pod, tuple(names), None)
    items = nodes.get("items") if isinstance(nodes, dict) else None
    if not isinstance(items, list) or not all(isinstance(one, dict) for one in items):
        raise BadRequest("the request has neither NodeNames nor Nodes")
    return FilterArgs(pod, tuple(str((one.get("metadata") or {}).get("name")) for one in items), tuple(items))


def read_bind(body: Any) -> BindArgs:
    """Raises BadRequest."""
    found = {}
    for name in ("PodName", "PodNamespace", "PodUID", "Node"):
        value = field_of(body, name) if isinstance(body, dict) else None
        if not isinstance(value, str) or not value or "/" in value:
            raise BadRequest(f"the request has no {name}")
        found[name] = value
    return BindArgs(found["PodName"], found["PodNamespace"], found["PodUID"], found["Node"])


def refusals(args: FilterArgs, ledger: Ledger) -> Iterator[tuple[str, NoRoom | None]]:
    """Node by node why it has no room; None: the pod passes. Lazy: a cluster has thousands of nodes. Nothing is
    reserved; bind decides again."""
    try:
        need = pods.needs(args.pod)
    except Refused as error:
        yield from ((name, NoRoom(str(error), never=True)) for name in args.names)
        return
    uid = pods.uid_of(args.pod)
    for name in args.names:
        found = ledger.fit(need, name, uid) if need is not None else None
        yield name, found if isinstance(found, NoRoom) else None


def filter_answer(args: FilterArgs, found: Iterable[tuple[str, NoRoom | None]]) -> Object:
    """The answer to filter: each node passes or has a sentence."""
    refused = {name: one for name, one in found if one is not None}
    failed = {name: one.why for name, one in refused.items()}
    return _answer(args, failed, {name: one.why for name, one in refused.items() if one.never})


def _answer(args: FilterArgs, failed: dict[str, str], never: dict[str, str]) -> Object:
    """A node that no preemption helps is in both maps: schedulers before 1.21 know the first only."""
    passed = [name for name in args.names if name not in failed]
    nodes = None
    if args.nodes is not None:
        nodes = {"items": [one for name, one in zip(args.names, args.nodes, strict=True) if name not in failed]}
    return {
        "Nodes": nodes,
        "NodeNames": None if args.nodes is not None else passed,
        "FailedNodes": failed,
        "FailedAndUnresolvableNodes": never,
        "Error": "",
    }


def prioritize(args: FilterArgs, ledger: Ledger) -> Iterator[Object]:
    """0 to 10 for each node, by the node's own policy: the fullest first, under spread the emptiest. For a pod on
    several GPUs the links between them count as much. Lazy."""
    try:
        need = pods.needs(args.pod)
    except Refused:
        need = None
    for name in args.names:
        node = ledger.nodes.get(name)
        fit = ledger.fit(need, name, pods.uid_of(args.pod)) if need is not None and need.gpus > 1 else None
        chosen = fit.indices if isinstance(fit, Placement) else ()
        points = score(node.gpus, ledger.used(name), node.policy, SCORE_MAX, chosen) if node else 0
        yield {"Host": name, "Score": points}


# ---- inspect ----


def inspect(ledger: Ledger, name: str | None = None) -> Object:
    """The vendor's form: sizes and uses in units, of each GPU the pods on it."""
    if name is not None and name not in ledger.nodes:
        return {"nodes": [], "error": f"the node {name} offers no GPU memory to share"}
    chosen = [ledger.nodes[name]] if name is not None else sorted(ledger.nodes.values(), key=lambda node: node.name)
    return {"nodes": [_node(ledger, node) for node in chosen], "error": ""}


def _node(ledger: Ledger, node: Node) -> Object:
    used, held = ledger.used(node.name), ledger.held(node.name)
    devs = [
        {
            "id": gpu.index,
            "totalGPU": gpu.units,
            "usedGPU": used.get(gpu.index, NOTHING).units,
            "pods": _pods(node, held, gpu.index),
        }
        for gpu in node.gpus
    ]
    return {
        "name": node.name,
        "totalGPU": sum(gpu.units for gpu in node.gpus),
        "usedGPU": sum(load.units for load in used.values()),
        "devs": devs,
    }


def _pods(node: Node, held: Sequence[Held], gpu: int) -> list[Object]:
    found = []
    for one in held:
        load = one.loads(node).get(gpu)
        if load:
            namespace, _, name = one.name.partition("/")
            found.append({"name": name, "namespace": namespace, "usedGPU": load.units})
    return found


def binding(args: BindArgs, version: str) -> Object:
    """The Binding object. uid and version are preconditions: it fails if the pod has changed since its annotations
    were written, so that two writers cannot mix."""
    meta = {"name": args.name, "namespace": args.namespace, "uid": args.uid, "resourceVersion": version}
    return {
        "apiVersion": "v1",
        "kind": "Binding",
        "metadata": meta,
        "target": {"apiVersion": "v1", "kind": "Node", "name": args.node},
    }
