# SPDX-License-Identifier: MIT
"""Pools of nodes and pods -> which pod goes where, by the rules of the extender (placement).

Pods come one after the other and none leaves. A node is chosen as kube-scheduler does with the extender's scores alone:
the fullest, under spread the emptiest; equal ones by their order. Other scores of a real scheduler (CPU, images,
topology) are not there.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field

from cgpu_common.placement import NOTHING, SPREAD, Gpu, Load, NoRoom, Placement, PodNeed, place


@dataclass(frozen=True)
class Pool:
    """`nodes` identical nodes."""

    name: str
    nodes: int
    gpus: tuple[Gpu, ...]
    unit: str = "GiB"


@dataclass(frozen=True)
class Kind:
    """`count` identical pods. `pool`: only there; empty: anywhere."""

    name: str
    need: PodNeed
    count: int = 1
    pool: str = ""


@dataclass(frozen=True)
class Plan:
    pools: tuple[Pool, ...]
    kinds: tuple[Kind, ...]
    shuffled: bool = False
    seed: int = 1


@dataclass
class Node:
    """State of one node. `version` counts its changes."""

    name: str
    pool: Pool
    size: int
    used: dict[int, Load] = field(default_factory=dict)
    taken: int = 0
    version: int = 0

    @property
    def share(self) -> float:
        return self.taken / self.size if self.size else 0.0

    def free(self) -> dict[int, Load]:
        return {gpu.index: gpu.size - self.used.get(gpu.index, NOTHING) for gpu in self.pool.gpus}


@dataclass(frozen=True)
class Pod:
    """One pod of the result. Without a node `why` has the reasons, each with the number of nodes that it is true of."""

    kind: Kind
    number: int
    node: Node | None = None
    placement: Placement | None = None
    why: tuple[tuple[str, int], ...] = ()

    @property
    def name(self) -> str:
        return f"{self.kind.name}-{self.number}" if self.kind.count > 1 else self.kind.name


@dataclass(frozen=True)
class Result:
    policy: str
    nodes: tuple[Node, ...]
    pods: tuple[Pod, ...]
    more: dict[str, int]  #: kind -> further pods of it that would find room
    ideal: dict[str, int]  #: the same if what is free were in one piece


class _Search:
    """Nodes with room for one kind, kept between its pods: only nodes that have changed are tried again."""

    def __init__(self, kind: Kind, nodes: Sequence[Node], policy: str) -> None:
        self._kind = kind
        self._nodes = [node for node in nodes if kind.pool in ("", node.pool.name)]
        self._policy = policy
        self._seen: dict[str, tuple[int, Placement | NoRoom]] = {}

    def fit(self, node: Node) -> Placement | NoRoom:
        seen = self._seen.get(node.name)
        if seen is None or seen[0] != node.version:
            found = place(self._kind.need, node.pool.gpus, node.used, self._policy, unit=node.pool.unit)
            seen = self._seen[node.name] = (node.version, found)
        return seen[1]

    def best(self) -> tuple[Node, Placement] | None:
        sign = -1 if self._policy == SPREAD else 1
        chosen: tuple[Node, Placement] | None = None
        most = float("-inf")
        for node in self._nodes:
            if sign * node.share > most:
                found = self.fit(node)
                if isinstance(found, Placement):
                    chosen, most = (node, found), sign * node.share
        return chosen

    def whys(self) -> tuple[tuple[str, int], ...]:
        if not self._nodes:
            return ((f"there is no node of pool {self._kind.pool}", 0),)
        found = Counter(room.why for node in self._nodes if isinstance(room := self.fit(node), NoRoom))
        return tuple(found.most_common(3))


def _put(node: Node, placement: Placement) -> None:
    for index, load in placement.loads.items():
        node.used[index] = node.used.get(index, NOTHING) + load
        node.taken += load.units
    node.version += 1


def run(plan: Plan, policy: str) -> Result:
    """Place every pod of the plan in order, those without room last known as such."""
    nodes = [
        Node(f"{pool.name}-{number}", pool, sum(gpu.units for gpu in pool.gpus))
        for pool in plan.pools
        for number in range(pool.nodes)
    ]
    searches = {kind.name: _Search(kind, nodes, policy) for kind in plan.kinds}
    order = [(kind, number) for kind in plan.kinds for number in range(kind.count)]
    if plan.shuffled:
        random.Random(plan.seed).shuffle(order)
    pods = []
    for kind, number in order:
        found = searches[kind.name].best()
        if found is None:
            pods.append(Pod(kind, number, why=searches[kind.name].whys()))
        else:
            _put(*found)
            pods.append(Pod(kind, number, *found))
    more = {kind.name: _more(kind, nodes, policy) for kind in plan.kinds}
    ideal = {kind.name: _ideal(kind, nodes) for kind in plan.kinds}
    return Result(policy, tuple(nodes), tuple(pods), more, ideal)


def _more(kind: Kind, nodes: Sequence[Node], policy: str) -> int:
    """Pods of that kind which the rest of each node would take, until none fits."""
    alike: dict[tuple[str, tuple[tuple[int, Load], ...]], int] = {}
    total = 0
    for node in nodes:
        if kind.pool not in ("", node.pool.name):
            continue
        key = node.pool.name, tuple(sorted(node.used.items(), key=lambda one: one[0]))
        if key not in alike:
            alike[key] = _more_on(kind, node, policy)
        total += alike[key]
    return total


def _more_on(kind: Kind, node: Node, policy: str) -> int:
    rest = Node(node.name, node.pool, node.size, dict(node.used), node.taken)
    count = 0
    while isinstance(found := place(kind.need, rest.pool.gpus, rest.used, policy), Placement):
        _put(rest, found)
        count += 1
    return count


def _ideal(kind: Kind, nodes: Sequence[Node]) -> int:
    """Free memory, compute or slots, by what there is least of, divided by what a pod takes, as if they could be moved
    together."""
    chosen = [node for node in nodes if kind.pool in ("", node.pool.name)]
    free = [load for node in chosen for load in node.free().values()]
    whole, gpus = kind.need.whole, kind.need.gpus
    amounts = (
        (sum(max(0, load.units) for load in free), whole.units),
        (sum(max(0, load.core) for load in free), whole.core),
        (sum(max(0, load.slots) for load in free), whole.slots),
    )
    return min(there // (takes * gpus) for there, takes in amounts if takes)
