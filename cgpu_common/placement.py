# SPDX-License-Identifier: MIT
"""PURE: which GPU of a node a pod's containers get. The extender, `kubectl inspect cgpu` and `cgpu simulate` share it.

Amounts are units of aliyun.com/gpu-mem (GiB or MiB, by the node's label) and percent of a GPU's compute. Every GPU has
its own size. A pod's containers do not all run at once: init containers one after the other, sidecars (init containers
with restartPolicy Always) from their start on, main containers at last, so a GPU needs room for the largest phase.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from cgpu_common import links

BINPACK = "binpack"  # the fullest GPU that has room; the vendor's default
SPREAD = "spread"  # the emptiest
PLACEMENTS = (BINPACK, SPREAD)
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
    dev: int = 0  #: units of all of its memory, more than `units` where the driver needs a part; 0: not known
    mib: int = 0  #: its memory; 0: not known
    model: str = ""
    uuid: str = ""
    links: tuple[tuple[int, int], ...] = ()  #: another GPU's index, and the rank of the link to it: links.rank()

    @property
    def size(self) -> Load:
        return Load(self.units, self.core, self.slots)


@dataclass(frozen=True, slots=True)
class Need:
    """The request of one container. With several GPUs the amounts are for each of them. `mib` or `percent` of a GPU's
    memory may stand in place of `units`, which are then those of a certain GPU: on()."""

    name: str
    units: int
    core: int = 0
    phase: str = MAIN
    step: int = 0  #: its place among the init containers, sidecars included
    mib: int = 0
    percent: int = 0

    @property
    def load(self) -> Load:
        return Load(self.units, self.core, 1)

    def on(self, gpu: Gpu | None) -> Need:
        """The request in units of this GPU, rounded up. A GPU of unknown size has no such units: it takes all of it."""
        if not (self.mib or self.percent):
            return self
        if gpu is None or not gpu.dev or not gpu.mib:
            return replace(self, units=gpu.units if gpu is not None else 0)
        if self.percent == 100:
            return replace(self, units=min(gpu.dev, gpu.units))  # all that there is to give
        whole, part = (100, self.percent) if self.percent else (gpu.mib, self.mib)
        return replace(self, units=-(-part * gpu.dev // whole))


@dataclass(frozen=True, slots=True)
class Choice:
    """Which GPUs a pod's author wants. A model is a part of the card's name, in any case."""

    models: tuple[str, ...] = ()
    not_models: tuple[str, ...] = ()
    uuids: tuple[str, ...] = ()
    not_uuids: tuple[str, ...] = ()

    def lack(self, gpu: Gpu) -> str:
        """Why this GPU is none of them, as the end of a sentence about it; "" if it is one."""
        name = gpu.model.lower()
        shown = gpu.model or "of a model that its node does not name"
        if self.models and not any(one.lower() in name for one in self.models):
            return f"is {shown}, and {' or '.join(self.models)} asked for"
        if bad := [one for one in self.not_models if one.lower() in name]:
            return f"is {shown}, and any but {bad[0]} asked for"
        if self.uuids and gpu.uuid not in self.uuids:
            return f"is {gpu.uuid or 'of a UUID that its node does not name'}, and {' or '.join(self.uuids)} asked for"
        if gpu.uuid in self.not_uuids:
            return f"is {gpu.uuid}, and any other one asked for"
        return ""


ANY = Choice()


@dataclass(frozen=True)
class PodNeed:
    """The containers of a pod that ask for GPU memory, and on how many GPUs each of them is."""

    containers: tuple[Need, ...]
    gpus: int = 1
    choice: Choice = ANY
    names: str = ""  #: asked by others' names, as nvidia, which a node may take
    is_plain: bool = False  #: by GPUs alone: on a node that does not take the names it is another plugin's pod
    whole: Load = field(init=False)  #: of the whole pod on one GPU (on each of `gpus`), where amounts are in units

    def __post_init__(self) -> None:
        object.__setattr__(self, "whole", peak(self.containers))

    @property
    def is_relative(self) -> bool:
        """Its units depend on the GPU."""
        return any(one.mib or one.percent for one in self.containers)

    def load_on(self, gpu: Gpu | None) -> Load:
        """Of the whole pod on this GPU."""
        return peak([one.on(gpu) for one in self.containers]) if self.is_relative else self.whole


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


def peak(containers: Sequence[Need]) -> Load:
    """The most that they take of one GPU at a time. A main container runs in the last phase, an init container in its
    own, a sidecar from its own on: what runs in a phase is what stays from before and what is there only then."""
    if len(containers) == 1:
        return containers[0].load
    stays: dict[int, Load] = {}
    only: dict[int, Load] = {}
    main = NOTHING
    for one in containers:
        if one.phase == MAIN:
            main += one.load
        else:
            loads = only if one.phase == INIT else stays
            loads[one.step] = loads.get(one.step, NOTHING) + one.load
    most = running = NOTHING
    for step in _phases(containers):
        running += stays.get(step, NOTHING)
        most = most.highest(running + only.get(step, NOTHING))
    return most.highest(running + main)


NO_SIZES: Mapping[int, Gpu] = {}


def loads_of(need: PodNeed, gpus: Mapping[str, Iterable[int]], sizes: Mapping[int, Gpu] = NO_SIZES) -> dict[int, Load]:
    """What a pod takes of each GPU if its containers are on these. @sizes: the GPUs of the node, for amounts that are
    not in units."""
    on: dict[int, list[Need]] = {}
    for one in need.containers:
        for gpu in gpus.get(one.name, ()):
            on.setdefault(gpu, []).append(one.on(sizes.get(gpu)))
    return {gpu: peak(found) for gpu, found in on.items()}


def _preference(policy: str, free: Mapping[int, Load]) -> Callable[[int], tuple[int, int, int]]:
    """The key by which the preferred GPU is first; equal ones by number."""
    sign = -1 if policy == SPREAD else 1
    return lambda index: (sign * free[index].units, sign * free[index].core, index)


def _order(policy: str, free: Mapping[int, Load]) -> list[int]:
    return sorted(free, key=_preference(policy, free))


def ranks(gpus: Iterable[Gpu]) -> dict[int, dict[int, int]]:
    """Of the links between GPUs, where any are known."""
    return {gpu.index: dict(gpu.links) for gpu in gpus if gpu.links}


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

    A pod on several GPUs gets those with the best links; @policy decides between equal sets.

    The search for a split takes the largest container first and does not go back, so it may refuse what another order
    could place. It takes containers x GPUs steps.
    """
    if need.choice != ANY:
        gpus = [gpu if gpu.why else replace(gpu, why=need.choice.lack(gpu)) for gpu in gpus]
    sizes = {gpu.index: gpu for gpu in gpus}
    free = rooms(gpus, used)
    fitting = {index: room for index, room in free.items() if need.load_on(sizes[index]).fits(room)}
    if len(fitting) >= need.gpus:
        chosen = tuple(sorted(links.best(_order(policy, fitting), need.gpus, ranks(gpus))))
        loads = {index: need.load_on(sizes[index]) for index in chosen}
        return Placement({one.name: chosen for one in need.containers}, loads)
    if split and need.gpus == 1 and len(need.containers) > 1:
        found = _split(need, free, sizes, policy)
        if found is not None:
            return found
    return refusal(need, gpus, used, (unit, core_unit), split)


def rooms(gpus: Sequence[Gpu], used: Mapping[int, Load]) -> dict[int, Load]:
    """What is left of each GPU that takes containers. More than all may be taken."""
    return {gpu.index: gpu.size - used.get(gpu.index, NOTHING) for gpu in gpus if not gpu.why}


def free_units(gpus: Sequence[Gpu], used: Mapping[int, Load]) -> dict[int, int]:
    """The most that one more container with memory alone gets of each GPU."""
    left = {index: max(room.units, 0) for index, room in rooms(gpus, used).items() if room.slots > 0}
    return {gpu.index: left.get(gpu.index, 0) for gpu in gpus}


def _split(need: PodNeed, free: Mapping[int, Load], sizes: Mapping[int, Gpu], policy: str) -> Placement | None:
    on: dict[str, tuple[int, ...]] = {}
    # What runs for long first: init containers then reuse its place. Of sidecars and main containers the most runs in
    # the last phase, where all of them do.
    last = dict(free)
    sidecars: dict[int, dict[int, Load]] = {index: {} for index in free}
    order = sorted(need.containers, key=lambda one: (*_size(one), -one.core, one.name))
    for one in order:
        if one.phase == INIT:
            continue
        if (index := _first(one, last, sizes, policy)) is None:
            return None
        on[one.name] = (index,)
        load = one.on(sizes[index]).load
        last[index] -= load
        if one.phase == SIDECAR:
            sidecars[index][one.step] = sidecars[index].get(one.step, NOTHING) + load
    inits = [one for one in order if one.phase == INIT]
    rooms = _rooms_by_step({one.step for one in inits}, free, sidecars)
    for one in inits:
        there = rooms[one.step]
        if (index := _first(one, there, sizes, policy)) is None:
            return None
        on[one.name] = (index,)
        there[index] -= one.on(sizes[index]).load
    return Placement(on, loads_of(need, on, sizes))


def _first(one: Need, rooms: Mapping[int, Load], sizes: Mapping[int, Gpu], policy: str) -> int | None:
    """The preferred GPU of those with room for the container."""
    fitting = {index: room for index, room in rooms.items() if one.on(sizes[index]).load.fits(room)}
    return min(fitting, key=_preference(policy, fitting)) if fitting else None


def _rooms_by_step(
    steps: Iterable[int], free: Mapping[int, Load], sidecars: Mapping[int, Mapping[int, Load]]
) -> dict[int, dict[int, Load]]:
    """What the sidecars that have started by each step leave of each GPU."""
    found: dict[int, dict[int, Load]] = {step: {} for step in sorted(steps)}
    for index, room in free.items():
        starts = sorted(sidecars[index].items())
        for step, rooms in found.items():
            while starts and starts[0][0] <= step:
                room -= starts.pop(0)[1]
            rooms[index] = room
    return found


def _size(one: Need) -> tuple[int, int, int]:
    """The largest first; a pod's containers mostly ask in one way."""
    return -one.percent, -one.mib, -one.units


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


def _asked(need: PodNeed, unit: str) -> str:
    if not need.is_relative:
        return f"{need.whole.units} {unit}"
    amounts = [f"{one.percent} % of a GPU" if one.percent else f"{one.mib} MiB" for one in need.containers]
    return " and ".join(amounts[:4]) + (f" and {len(amounts) - 4} more" if len(amounts) > 4 else "")


def refusal(
    need: PodNeed, gpus: Sequence[Gpu], used: Mapping[int, Load], words: tuple[str, str], split: bool
) -> NoRoom:
    """Why no GPU of the node will do, GPU by GPU. @words: the units of memory and of compute."""
    if not gpus:
        return NoRoom("the node has no GPU", never=True)
    whys: dict[int, str] = {}
    ever = 0
    largest = {gpu.index: max(one.on(gpu).units for one in need.containers) for gpu in gpus}
    for gpu in gpus:
        load = need.load_on(gpu)
        lack = gpu.why or _lacks(load, gpu.size - used.get(gpu.index, NOTHING), gpu.size, words)
        whys[gpu.index] = f"GPU {gpu.index} {lack or 'has room'}"
        ever += load.fits(gpu.size) and not need.choice.lack(gpu)
    several = f" on each of {need.gpus} GPUs" if need.gpus > 1 else ""
    asked = f"{_asked(need, words[0])}{several} asked for"
    parts = split and need.gpus == 1 and len(need.containers) > 1
    if parts:
        most = f", the largest {max(largest.values())}" if not need.is_relative else ""
        asked += f" by {len(need.containers)} containers{most}"
    # A split may use what the whole does not fit into: only the largest container decides then.
    never = ever < need.gpus and not (
        parts and any(largest[gpu.index] <= gpu.units and not need.choice.lack(gpu) for gpu in gpus)
    )
    if never and len(gpus) < need.gpus:
        return NoRoom(f"{need.gpus} GPUs asked for and the node has {len(gpus)}", whys, True)
    return NoRoom(f"{asked}: " + ", ".join(whys.values()), whys, never)


def score(
    gpus: Sequence[Gpu], used: Mapping[int, Load], policy: str, most: int = 10, chosen: Sequence[int] = ()
) -> int:
    """0 to @most for a node that has room: how full it is, or under spread how empty. @chosen: the GPUs that a pod on
    several of them would get; then one half is the part of their pairs that have an NVLink."""
    size = sum(gpu.units for gpu in gpus)
    if not size:
        return 0
    share = min(size, sum(used.get(gpu.index, NOTHING).units for gpu in gpus)) / size
    points = 1 - share if policy == SPREAD else share
    if len(chosen) > 1:
        points = (points + links.quality(chosen, ranks(gpus))) / 2
    return round(most * points)
