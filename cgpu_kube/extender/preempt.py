# SPDX-License-Identifier: MIT
"""PURE: which pods make room for one of higher priority, GPU by GPU.

kube-scheduler proposes victims by the sum of a node's aliyun.com/gpu-mem: they may be on several GPUs, none of which
has room then. Here each node keeps them if their end makes room on one GPU; else it gets those whose end does, or is no
candidate.
A list that has victims is never answered empty: kube-scheduler ends the preemption on every node then.
Names are those of k8s.io/kube-scheduler/extender/v1.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from cgpu_common.placement import NOTHING, Load, NoRoom
from cgpu_kube import annotations as notes
from cgpu_kube import pods
from cgpu_kube.errors import Refused
from cgpu_kube.extender.protocol import BadRequest, field_of
from cgpu_kube.ledger import Held, Ledger

Object = dict[str, Any]


@dataclass(frozen=True)
class Victims:
    """Of one node: uids, and how many of them a disruption budget protects."""

    uids: tuple[str, ...]
    protected: int = 0


@dataclass(frozen=True)
class PreemptArgs:
    pod: Object
    nodes: Mapping[str, Victims]


def read_preempt(body: Any) -> PreemptArgs:
    """Victims by uid (nodeCacheCapable), or as whole pods. Raises BadRequest."""
    pod = field_of(body, "Pod") if isinstance(body, dict) else None
    if not isinstance(pod, dict):
        raise BadRequest("the request has no Pod")
    named, whole = field_of(body, "NodeNameToMetaVictims"), field_of(body, "NodeNameToVictims")
    found = named or whole or {}
    try:
        nodes = {str(name): _victims(one) for name, one in found.items()}
    except notes.NO_VALUE:
        raise BadRequest("the request has victims that are none") from None
    return PreemptArgs(pod, nodes)


def _victims(found: Mapping[str, Any]) -> Victims:
    uids = []
    for one in field_of(found, "Pods") or []:
        uid = field_of(one, "UID") or (one.get("metadata") or {}).get("uid")
        if not isinstance(uid, str):
            raise ValueError
        uids.append(uid)
    return Victims(tuple(uids), int(field_of(found, "NumPDBViolations") or 0))


def choose(args: PreemptArgs, ledger: Ledger) -> Iterator[tuple[str, Victims | None]]:
    """Node by node its victims; None: there is no room for the pod, whoever of lower priority ends. Lazy: a node with
    many pods takes milliseconds."""
    try:
        need = pods.needs(args.pod)
    except Refused:
        return
    for name, given in args.nodes.items():
        if need is None:
            yield name, given
            continue
        pool = _lower(args.pod, ledger, name)
        total = ledger.used(name, pods.uid_of(args.pod))
        loads = {one.uid: one.loads(ledger.nodes.get(name)) for one in pool}

        def fits(gone: set[str], name: str = name, total: Any = total, loads: Any = loads) -> bool:
            return not isinstance(ledger.fit(need, name, used=_without(total, loads, gone)), NoRoom)

        gone = {one.uid for one in pool}
        if not fits(gone):
            yield name, None
            continue
        if fits({one.uid for one in pool if one.uid in given.uids}):
            # Perhaps none needs to end any more; and CPU that one frees is the scheduler's to count.
            yield name, given
            continue
        # As kube-scheduler spares them, those of high priority first; then those that it has not proposed.
        sizes = {uid: max((load.units for load in found.values()), default=0) for uid, found in loads.items()}
        for one in sorted(pool, key=lambda one: (-one.priority, one.uid in given.uids, -sizes[one.uid], one.uid)):
            if fits(gone - {one.uid}):
                gone.discard(one.uid)
        # Victims without GPU memory are for another resource, which is the scheduler's to count.
        others = tuple(uid for uid in given.uids if ledger.get(uid) is None)
        yield name, Victims((*others, *sorted(gone)), min(given.protected, len(others) + len(gone)))


def _lower(pod: Object, ledger: Ledger, name: str) -> list[Held]:
    mine, uid = pods.priority_of(pod), pods.uid_of(pod)
    return [
        one
        for one in ledger.held(name)
        if one.is_bound and not one.is_deleted and one.priority < mine and one.uid != uid
    ]


def _without(total: Mapping[int, Load], loads: Mapping[str, Mapping[int, Load]], gone: set[str]) -> dict[int, Load]:
    left = dict(total)
    for uid in gone:
        for gpu, load in loads[uid].items():
            left[gpu] = left.get(gpu, NOTHING) - load
    return left


def answer(found: Mapping[str, Victims]) -> Object:
    return {
        "NodeNameToMetaVictims": {
            name: {"Pods": [{"UID": uid} for uid in one.uids], "NumPDBViolations": one.protected}
            for name, one in found.items()
        }
    }
