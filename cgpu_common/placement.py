# SPDX-License-Identifier: MIT
"""PURE: which GPU of a node a pod's containers get. The extender, `kubectl inspect cgpu` and `cgpu simulate` share it.

Amounts are units of aliyun.com/gpu-mem (GiB or MiB, by the node's label) and percent of a GPU's compute. Every GPU has
its own size. A pod's containers do not all run at once: init containers one after the other, sidecars (init containers
with restartPolicy Always) from their start on, main containers at last, so a GPU needs room for the largest phase.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

BINPACK = "binpack"  # the fullest GPU that has room; the vendor's default
SPREAD = "spread"  # the emptiest
POLICIES = (BINPACK, SPREAD)
CORE = 100  # percent of one GPU
CORE_STEP = 5
SLOTS = 20  # containers a GPU takes unless its node has another number
CONTAINERS_MAX = 64  # of a pod that ask for GPU memory: a bound for the search

MAIN, INIT, SIDECAR = "main", "init", "sidecar"


@dataclass(frozen=True, slots=True)
class Load:
    """Taken or free on one GPU."""

    units: int = 0
    core: int = 0
    slots: int = 0

    def __add__(self, other: Load) -> Load:
        return Load(self.units + other.units, self.core + other.core, self.slots + other.slots)

    def __sub__(self, other: Load) -> Load:
        return Load(self.units - other.units, self.core - other.core, self.slots - other.slots)

    def highest(self, other: Load) -> Load:
        return Load(max(self.units, other.units), max(self.core, other.core), max(self.slots, other.slots))

    def fits(self, room: Load) -> bool:
        return self.units <= room.units and self.core <= room.core and self.slots <= room.slots


NOTHING = Load()


@dataclass(frozen=True, slots=True)
class Gpu:
    """One GPU of a node. `why`, if not empty, is the reason why it takes no new container."""

    index: int
    units: int
    core: int = CORE
    slots: int = SLOTS
    why: str = ""

    @property
    def size(self) -> Load:
        return Load(self.units, self.core, self.slots)


@dataclass(frozen=True, slots=True)
class Need:
    """The request of one container. With several GPUs `units` and `core` are for each of them."""

    name: str
    units: int
    core: int = 0
    phase: str = MAIN
    step: int = 0  #: its place among the init containers, sidecars included

    @property
    def load(self) -> Load:
        return Load(self.units, self.core, 1)


@dataclass(frozen=True)
class PodNeed:
    """The containers of a pod that ask for GPU memory, and on how many GPUs each of them is."""

    containers: tuple[Need, ...]
    gpus: int = 1
    whole: Load = field(init=False)  #: of the whole pod on one GPU (on each of `gpus`)

    def __post_init__(self) -> None:
        object.__setattr__(self, "whole", peak(self.containers))


@dataclass(frozen=True)
class Placement:
    """GPUs of each container by its name, and what the pod takes of each GPU."""

    gpus: Mapping[str, tuple[int, ...]]
    loads: Mapping[int, Load]

    @property
    def indices(self) -> tuple[int, ...]:
        return tuple(sorted(self.loads))


@dataclass(frozen=True)
class NoRoom:
    """A refusal. `whys` has a reason for each GPU; `never`: not on this node even if it were empty."""

    why: str
    whys: Mapping[int, str] = field(default_factory=dict)
    never: bool = False


def _phases(containers: Sequence[Need]) -> list[int]:
    """The steps of init containers, in order; main containers run after the last."""
    return sorted({one.step for one in containers if one.phase != MAIN})


def _range(one: Need, steps: Sequence[int]) -> range:
    """The phases in which it runs, as indices into @steps; len(steps) is the main phase."""
    if one.phase == MAIN:
        return range(len(steps), len(steps) + 1)
    first = steps.index(one.step)
    return range(first, first + 1 if one.phase == INIT else len(steps) + 1)


def peak(containers: Sequence[Need]) -> Load:
    """The most that they take of one GPU at a time."""
    steps = _phases(containers)
    phases = [NOTHING] * (len(steps) + 1)
    for one in containers:
        for phase in _range(one, steps):
            phases[phase] += one.load
    most = NOTHING
    for load in phases:
        most = most.highest(load)
    return most


def loads_of(need: PodNeed, gpus: Mapping[str, Iterable[int]]) -> dict[int, Load]:
    """What a pod takes of each GPU if its containers are on these."""
    on: dict[int, list[Need]] = {}
    for one in need.containers:
        for gpu in gpus.get(one.name, ()):
            on.setdefault(gpu, []).append(one)
    return {gpu: peak(found) for gpu, found in on.items()}


def _order(policy: str, free: Mapping[int, Load]) -> list[int]:
    """GPUs, the preferred one first; equal ones by number."""
    sign = -1 if policy == SPREAD else 1
    return sorted(free, key=lambda index: (sign * free[index].units, sign * free[index].core, index))


def place(
    need: PodNeed,
    gpus: Sequence[Gpu],
    used: Mapping[int, Load],
    policy: str = BINPACK,
    *,
    unit: str = "GiB",
    core_unit: str = "% of compute",
    split: bool = True,
) -> Placement | NoRoom:
    """GPUs for the whole pod. @split: containers may be on different GPUs if no single one has room for all.
    @unit and @core_unit are for the sentences only.

    The search for a split takes the largest container first and does not go back, so it may refuse what another order
    could place. It takes containers x GPUs x phases steps.
    """
    free = {gpu.index: gpu.size - used.get(gpu.index, NOTHING) for gpu in gpus if not gpu.why}
    fitting = {index: room for index, room in free.items() if need.whole.fits(room)}
    if len(fitting) >= need.gpus:
        chosen = tuple(sorted(_order(policy, fitting)[: need.gpus]))
        return Placement({one.name: chosen for one in need.containers}, dict.fromkeys(chosen, need.whole))
    if split and need.gpus == 1 and len(need.containers) > 1:
        found = _split(need, free, policy)
        if found is not None:
            return found
    return refusal(need, gpus, used, (unit, core_unit), split)


def _split(need: PodNeed, free: Mapping[int, Load], policy: str) -> Placement | None:
    steps = _phases(need.containers)
    phases = {index: [NOTHING] * (len(steps) + 1) for index in free}
    on: dict[str, tuple[int, ...]] = {}
    # What runs for long first: init containers then reuse its place.
    for one in sorted(need.containers, key=lambda one: (one.phase == INIT, -one.units, -one.core, one.name)):
        span = _range(one, steps)
        rooms = {}
        for index, loads in phases.items():
            most = NOTHING
            for phase in span:
                most = most.highest(loads[phase])
            room = free[index] - most
            if one.load.fits(room):
                rooms[index] = room
        if not rooms:
            return None
        index = _order(policy, rooms)[0]
        on[one.name] = (index,)
        for phase in span:
            phases[index][phase] += one.load
    return Placement(on, loads_of(need, on))


def _lacks(load: Load, room: Load, size: Load, words: tuple[str, str]) -> str:
    """The first thing that is short, as the end of a sentence about the GPU."""
    if load.units > room.units:
        return f"has {max(0, room.units)} of {size.units} {words[0]} free"
    if load.core > room.core:
        if not size.core:
            return f"offers no {words[1]}"
        return f"has {max(0, room.core)} of {size.core} {words[1]} free, and {load.core} asked for"
    if load.slots > room.slots:
        return f"has {size.slots - room.slots} of the {size.slots} containers that it takes"
    return ""


def refusal(
    need: PodNeed, gpus: Sequence[Gpu], used: Mapping[int, Load], words: tuple[str, str], split: bool
) -> NoRoom:
    """Why no GPU of the node will do, GPU by GPU. @words: the units of memory and of compute."""
    if not gpus:
        return NoRoom("the node has no GPU", never=True)
    load = need.whole
    whys: dict[int, str] = {}
    ever = 0
    largest = max(one.load.units for one in need.containers)
    for gpu in gpus:
        lack = gpu.why or _lacks(load, gpu.size - used.get(gpu.index, NOTHING), gpu.size, words)
        whys[gpu.index] = f"GPU {gpu.index} {lack or 'has room'}"
        ever += load.fits(gpu.size)
    several = f" on each of {need.gpus} GPUs" if need.gpus > 1 else ""
    asked = f"{load.units} {words[0]}{several} asked for"
    parts = split and need.gpus == 1 and len(need.containers) > 1
    if parts:
        asked += f" by {len(need.containers)} containers, the largest {largest}"
    # A split may use what the whole does not fit into: only the largest container decides then.
    never = ever < need.gpus and not (parts and any(largest <= gpu.units for gpu in gpus))
    if never and len(gpus) < need.gpus:
        return NoRoom(f"{need.gpus} GPUs asked for and the node has {len(gpus)}", whys, True)
    return NoRoom(f"{asked}: " + ", ".join(whys.values()), whys, never)


def score(gpus: Sequence[Gpu], used: Mapping[int, Load], policy: str, most: int = 10) -> int:
    """0 to @most for a node that has room: how full it is, or under spread how empty."""
    size = sum(gpu.units for gpu in gpus)
    if not size:
        return 0
    share = min(size, sum(used.get(gpu.index, NOTHING).units for gpu in gpus)) / size
    return round(most * (1 - share if policy == SPREAD else share))
