# SPDX-License-Identifier: MIT
"""PURE: the GPUs of a cluster and which pods hold them. One event at a time; not thread-safe.

A pod holds its GPUs from the decision to bind it (a reservation) until its containers have ended or it is gone. Its
annotations are read once, when it is first seen on its node: later edits of them move nothing. Where the GPU of a pod
is not known, it is counted on every GPU of its node, since it may be on any.

A pod that is deleted by force is gone before its containers are. It keeps its GPUs until its node reports in its
annotation that its slices have ended, or the node has not named it for some seconds.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from cgpu_common.placement import (
    BINPACK,
    CORE,
    NOTHING,
    PLACEMENTS,
    Gpu,
    Load,
    Need,
    NoRoom,
    Placement,
    PodNeed,
    loads_of,
    place,
)
from cgpu_kube import annotations as notes
from cgpu_kube import pods, quantity
from cgpu_kube.annotations import GPU_CORE, GPU_COUNT, GPU_MEM, MODE_LABEL, PLACEMENT_LABEL
from cgpu_kube.errors import BadAnnotation, BadQuantity

Object = dict[str, Any]
CORE_MEM = "core_mem"
WHOLE_MODES = ("share", "mps")  # a container has the real nodes of one GPU
UNHEALTHY = "unhealthy-gpu-"  # a ConfigMap in kube-system, and the node's name: gpus = "0,2"
FITS_MAX = 16  # kinds of pods of which a node's answer is kept
SHARED_MAX = 10_000
MIB_MIN = 256  # the least slice on a node whose unit is MiB


@dataclass(frozen=True)
class Node:
    """A node as its object describes it. `is_ours`: cgpu-kube node runs there, and GPUs may differ in size."""

    name: str
    gpus: tuple[Gpu, ...]
    devs: Mapping[int, int]  #: GPU -> ALIYUN_COM_GPU_MEM_DEV
    unit: str = "GiB"
    policy: str = BINPACK
    is_ours: bool = False
    address: str = ""
    mode: str = ""
    why: str = ""  #: not empty: no pod can be placed there
    deleted: Mapping[str, Held] = field(default_factory=dict)  #: by uid: pods that are gone, and what they still hold
    names: str = ""  #: others' names that it takes

    @property
    def sizes(self) -> dict[int, Gpu]:
        return {gpu.index: gpu for gpu in self.gpus}

    def has(self, need: PodNeed) -> bool:
        """Whether a pod that is here is one of ours: with nvidia.com/gpu alone it is NVIDIA's on most nodes."""
        return not need.is_plain or need.names == self.names


@dataclass(frozen=True, slots=True)
class Held:
    """A pod on a node. `gpus` of each container; None: not known."""

    uid: str
    name: str  # namespace/name
    node: str
    need: PodNeed
    gpus: pods.Gpus | None
    is_bound: bool = True
    is_deleted: bool = False
    priority: int = 0  # spec.priority; of a reservation not known yet

    def loads(self, node: Node | None) -> dict[int, Load]:
        """What it takes of each GPU."""
        if node is not None and not node.has(self.need):
            return {}
        need = on_node(self.need, node)
        sizes = node.sizes if node is not None else {}
        if self.gpus is not None:
            found: dict[int, Load] = loads_of(need, self.gpus, sizes)
            if node is None or set(found) <= sizes.keys():
                return found
        return {index: need.load_on(gpu) for index, gpu in sizes.items()}

    def unplaced(self, node: Node) -> int:
        """Its units, if it is not known on which GPU they are."""
        if self.gpus is not None or not node.has(self.need):
            return 0
        return max((load.units for load in self.loads(node).values()), default=0) * self.need.gpus


def on_node(need: PodNeed, node: Node | None) -> PodNeed:
    """What it takes there. A container without a percentage, or with a small one, has the least weight that there is in
    the mode core_mem: 1 of max_inst."""
    if node is None or node.mode != CORE_MEM or not node.is_ours or not node.gpus:
        return need
    least = max(-(-CORE // max(gpu.slots, 1)) for gpu in node.gpus)
    found = tuple(replace(one, core=max(one.core, least)) for one in need.containers)
    return replace(need, containers=found)


def _whole(values: Mapping[str, Any], key: str) -> int:
    try:
        return quantity.whole(values.get(key, 0))
    except BadQuantity:
        return 0


def read_node(found: Object, unhealthy: Mapping[int, str] | None = None) -> Node | None:
    """None: the node has no GPU to share. @unhealthy: GPU -> why it takes nothing new."""
    meta, status = found.get("metadata") or {}, found.get("status") or {}
    name, labels = str(meta.get("name") or ""), meta.get("labels") or {}
    there = {**(status.get("capacity") or {}), **(status.get("allocatable") or {})}
    policy = labels.get(PLACEMENT_LABEL, BINPACK)
    base = Node(
        name,
        (),
        {},
        policy=policy if policy in PLACEMENTS else BINPACK,
        address=next((one["address"] for one in status.get("addresses") or [] if one.get("type") == "InternalIP"), ""),
        mode=str(labels.get(MODE_LABEL, "")),
    )
    bad = unhealthy or {}
    try:
        ours = notes.parse_node(meta.get("annotations"))
    except BadAnnotation as error:
        return replace(base, why=str(error), is_ours=True)
    if ours is not None:
        core = CORE if ours.mode == CORE_MEM else 0
        gpus = tuple(
            Gpu(
                one.index,
                one.units,
                core,
                one.slots,
                one.why or bad.get(one.index, ""),
                dev=one.dev,
                mib=one.memory_mib,
                model=one.model,
                uuid=one.uuid,
                links=one.links,
            )
            for one in ours.gpus
        )
        devs = {one.index: one.dev for one in ours.gpus}
        deleted = {uid: _remains(uid, name, one) for uid, one in ours.deleted.items()}
        why = f"cgpu-kube of the node is away: {ours.away}; the pod waits until it is back" if ours.away else ""
        return replace(
            base,
            gpus=gpus,
            devs=devs,
            unit=ours.unit,
            is_ours=True,
            mode=ours.mode,
            deleted=deleted,
            why=why,
            names=ours.names,
        )
    units, count = _whole(there, GPU_MEM), _whole(there, GPU_COUNT)
    if not units:
        return None
    if not count or count > notes.GPUS_MAX:
        return replace(base, why=f"its {GPU_COUNT} is {count}, so the number of its GPUs is not known")
    core = CORE if _whole(there, GPU_CORE) else 0
    # The vendor's plugin takes all GPUs for equal.
    gpus = tuple(Gpu(index, units // count, core, notes.UNITS_MAX, bad.get(index, "")) for index in range(count))
    # The vendor's own inspect takes the unit for MiB from 100 on, which an H200 has in GiB.
    unit = "MiB" if units // count > 1024 else "GiB"
    return replace(base, gpus=gpus, devs=dict.fromkeys(range(count), units // count), unit=unit)


def _remains(uid: str, node: str, found: notes.Remains) -> Held:
    need = PodNeed(tuple(Need(f"GPU {gpu}", units) for gpu, units in sorted(found.units.items())))
    return Held(uid, found.pod, node, need, {f"GPU {gpu}": (gpu,) for gpu in found.units}, is_deleted=True)


def unhealthy_gpus(text: str) -> dict[int, str]:
    """The value of `gpus` in such a ConfigMap. Words that are no number are passed over: an administrator wrote it."""
    words = [word.strip() for word in text.split(",")]
    named = {int(word) for word in words if word.isascii() and word.isdigit() and len(word) < 4}
    return dict.fromkeys(named, "is marked unhealthy by an administrator")


class Ledger:
    """Nodes and pods. Sums never exceed a GPU by what this class places; what others place may."""

    def __init__(self) -> None:
        self.nodes: dict[str, Node] = {}
        self._lost: dict[str, str] = {}  # nodes whose agent has ended, and has published nothing since -> a sentence
        self._held: dict[str, Held] = {}
        self._of_node: dict[str, dict[str, Held]] = {}
        self._used: dict[str, dict[int, Load]] = {}  # by node; follows its pods, and is made anew when the node changes
        self._fits: dict[str, dict[PodNeed, Placement | NoRoom]] = {}  # answers of fit() until something changes there
        self._needs: dict[PodNeed, PodNeed] = {}  # equal ones are one object: a cluster's pods are mostly alike
        self._gpus: dict[tuple[tuple[str, tuple[int, ...]], ...], pods.Gpus] = {}  # likewise

    # ---- reading ----

    def used(self, name: str, without: str = "") -> dict[int, Load]:
        """What is taken of each GPU. @without: the uid of a pod not to count."""
        held = self._of_node.get(name, {})
        if without in held:
            return self._sum(name, without)
        if name not in self._used:
            self._used[name] = self._sum(name, "")
        return self._used[name]

    def _sum(self, name: str, without: str) -> dict[int, Load]:
        total: dict[int, Load] = {}
        for one in self._all(name):
            if one.uid != without:
                for gpu, load in one.loads(self.nodes.get(name)).items():
                    total[gpu] = total.get(gpu, NOTHING) + load
        return total

    def _count(self, one: Held, sign: int) -> None:
        """The pod comes to its node's sums, or leaves them."""
        self._fits.pop(one.node, None)
        node, total = self.nodes.get(one.node), self._used.get(one.node)
        if total is None:
            return
        if node is not None and one.uid in node.deleted:  # counted there while it is not counted here
            del self._used[one.node]
            return
        for gpu, load in one.loads(node).items():
            left = total.get(gpu, NOTHING) + load if sign > 0 else total.get(gpu, NOTHING) - load
            if left == NOTHING:
                total.pop(gpu, None)
            else:
                total[gpu] = left

    def _shared_need(self, need: PodNeed) -> PodNeed:
        if len(self._needs) >= SHARED_MAX:
            self._needs.clear()
        return self._needs.setdefault(need, need)

    def _shared_gpus(self, gpus: pods.Gpus | None) -> pods.Gpus | None:
        if gpus is None:
            return None
        if len(self._gpus) >= SHARED_MAX:
            self._gpus.clear()
        return self._gpus.setdefault(tuple(gpus.items()), gpus)

    def counts(self, name: str) -> tuple[int, int]:
        """Pods of a node, and how many of them are on GPUs that are not known."""
        found = self._all(name)
        return len(found), sum(one.gpus is None for one in found)

    def _all(self, name: str) -> list[Held]:
        known, node = self._of_node.get(name, {}), self.nodes.get(name)
        deleted = node.deleted.items() if node else ()
        here = [one for one in known.values() if node is None or node.has(one.need)]
        return [*here, *(one for uid, one in deleted if uid not in known and one.gpus)]

    def held(self, name: str) -> list[Held]:
        """The pods of a node, by name."""
        return sorted(self._all(name), key=lambda one: one.name)

    def get(self, uid: str) -> Held | None:
        return self._held.get(uid)

    def __iter__(self) -> Iterator[Held]:
        return iter(self._held.values())

    def fit(
        self, need: PodNeed, name: str, uid: str = "", used: Mapping[int, Load] | None = None
    ) -> Placement | NoRoom:
        """GPUs of the node for a pod that does not hold any, or whose own reservation does not count (@uid). @used: in
        place of what its pods take now."""
        if used is not None or uid in self._of_node.get(name, {}):
            return self._fit(need, name, uid, used)
        fits = self._fits.setdefault(name, {})
        if need not in fits:
            if len(fits) >= FITS_MAX:
                fits.clear()
            fits[need] = self._fit(need, name, "", None)
        return fits[need]

    def _fit(self, need: PodNeed, name: str, uid: str, used: Mapping[int, Load] | None) -> Placement | NoRoom:
        node = self.nodes.get(name)
        if need.is_plain and (node is None or not node.has(need)):
            return Placement({}, {})  # NVIDIA's device plugin chooses
        if node is None:
            return NoRoom(f"the node {name} is not for GPU share: it offers no {GPU_MEM}", never=True)
        if why := node.why or self._lost.get(name, ""):
            return NoRoom(why, never=True)
        if need.names != (node.names and need.names):
            return NoRoom(f"the node takes no {notes.NV_MEM}: label it {notes.NAMES_LABEL}={need.names}", never=True)
        if need.gpus > 1 and not node.is_ours:
            return NoRoom(f"the node's device plugin gives a pod one GPU, and {need.gpus} are asked for", never=True)
        if need.gpus > 1 and node.mode in WHOLE_MODES:
            why = f"the node's mode is {node.mode}, where a container has one GPU, and {need.gpus} are asked for"
            return NoRoom(why, never=True)
        least = min(one.units for one in need.containers)
        if node.unit == "MiB" and least < MIB_MIN and not need.is_relative:
            return NoRoom(f"{least} MiB asked for: the least slice is {MIB_MIN} MiB", never=True)
        word = notes.counted_in(node.unit)
        taken = self.used(name, uid) if used is None else used
        found = place(on_node(need, node), node.gpus, taken, node.policy, unit=word, split=node.is_ours)
        return self._with_deleted(found, name) if isinstance(found, NoRoom) else found

    def has_room(self, need: PodNeed, name: str, gpus: pods.Gpus) -> bool:
        """On these GPUs, for a pod that does not hold any; a GPU that takes no new container has what it has."""
        node = self.nodes.get(name)
        if node is None:
            return False
        sizes, used = {gpu.index: gpu for gpu in node.gpus}, self.used(name)
        for index, load in loads_of(on_node(need, node), gpus, sizes).items():
            size, whole = sizes.get(index), used.get(index, NOTHING) + load
            if size is None or whole.units > size.units or whole.core > size.core or whole.slots > size.slots:
                return False
        return True

    def _with_deleted(self, found: NoRoom, name: str) -> NoRoom:
        """The refusal, with the pods that are deleted and still hold memory: nothing else shows them."""
        names = ", ".join(one.name for one in self.held(name) if one.is_deleted)
        if not names or found.never:
            return found
        return replace(found, why=f"{found.why}; deleted by force and not ended yet: {names}")

    # ---- changes ----

    def set_node(self, name: str, node: Node | None) -> None:
        before = self.nodes.get(name)
        if before == node and not (node and node.deleted):
            return
        self._used.pop(name, None)
        self._fits.pop(name, None)
        self.nodes.pop(name, None)
        if node is None:
            return
        self.nodes[name] = node
        for uid, one in list(self._of_node.get(name, {}).items()):
            now = node.deleted.get(uid)
            if one.is_deleted and (now is not None or (before and uid in before.deleted)) and not (now and now.gpus):
                self.drop(uid)

    def lose(self, name: str) -> None:
        """The node's agent has ended without a word: what the node's object says of its GPUs is no longer so."""
        self._lost[name] = "cgpu-kube of the node has just ended; the pod waits until it is back"
        self._fits.pop(name, None)

    def find(self, name: str) -> None:
        """The node's object is right again, or the kubelet has had the time to write it."""
        self._lost.pop(name, None)
        self._fits.pop(name, None)

    def set_pod(self, pod: Object) -> None:
        """The pod as it is now."""
        uid, node = pods.uid_of(pod), pods.node_of(pod)
        old = self._held.get(uid)
        if pods.is_over(pod):
            self.drop(uid)
            return
        if not node:
            if old is not None and old.is_bound:
                self.drop(uid)
            return
        if old is not None and old.node == node and old.gpus is not None and old.is_bound:
            return
        need = pods.counted(pod)
        if need is None:
            self.drop(uid)
            return
        gpus = pods.gpus_of(pod, need)
        if gpus is None and old is not None and old.node == node:
            gpus = old.gpus  # reserved for another plugin's node, which chooses itself
        # Not those of the reservation: another extender may have bound the pod, to other GPUs of the node.
        self._put(Held(uid, pods.name_of(pod), node, need, gpus, priority=pods.priority_of(pod)))

    def reserve(self, uid: str, name: str, node: str, need: PodNeed, placement: Placement) -> None:
        """Before the pod is bound; replaces its earlier reservation."""
        self._put(Held(uid, name, node, need, placement.gpus, is_bound=False))

    def release(self, uid: str) -> None:
        """Give up a reservation; a bound pod keeps its GPUs."""
        one = self._held.get(uid)
        if one is not None and not one.is_bound:
            self.drop(uid)

    def drop(self, uid: str) -> None:
        """The pod is gone, or its containers have ended."""
        one = self._held.pop(uid, None)
        if one is not None:
            self._count(one, -1)
            of_node = self._of_node[one.node]
            del of_node[uid]
            if not of_node:
                del self._of_node[one.node]

    def leave(self, uid: str) -> bool:
        """The pod is gone before its containers have ended. False: it holds nothing here that its node reports."""
        one = self._held.get(uid)
        node = self.nodes.get(one.node) if one else None
        if one is None or not one.is_bound or node is None or not node.is_ours:
            return False
        self._put(replace(one, is_deleted=True))
        return True

    def expire(self, uid: str) -> None:
        """Its node had the time to say what a deleted pod holds."""
        one = self._held.get(uid)
        node = self.nodes.get(one.node) if one else None
        if one is not None and one.is_deleted and (node is None or uid not in node.deleted):
            self.drop(uid)

    def _put(self, one: Held) -> None:
        self.drop(one.uid)
        one = replace(one, need=self._shared_need(one.need), gpus=self._shared_gpus(one.gpus))
        self._count(one, 1)
        self._held[one.uid] = one
        self._of_node.setdefault(one.node, {})[one.uid] = one
