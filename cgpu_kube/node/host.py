# SPDX-License-Identifier: MIT
"""PURE: the GPUs of the node in units of aliyun.com/gpu-mem, the modes, and the device ids of the kubelet."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from cgpu_common import links
from cgpu_common.placement import Gpu
from cgpu_kube.annotations import (
    CARD_COUNT,
    CARD_MEM,
    CARD_NAME,
    MODE_LABEL,
    NAMES,
    NAMES_LABEL,
    NodeGpu,
    NodeGpus,
    Remains,
    counted_in,
)
from cgpu_kube.errors import KubeError

GIB, FINE = "GiB", "MiB"
UNITS = {GIB: 1024, FINE: 256}  # --memory-unit -> MiB of the unit, if no GPU is too large for it; a slice has 256
CORE = 100  # percent
SEPARATOR = "-_-"  # of the vendor's device ids
HEALTHY, UNHEALTHY = "Healthy", "Unhealthy"
SHRINK_MIB, GROW_MIB = 64, 256  # see settled()
NO_LINKS: links.Ranks[str] = {}
#: Of one GPU. Kubelets from 1.36 on look for each allocated device among all those of the resource, under the device
#: manager's lock: with 56,069 devices and 11,000 allocated it offers nothing for minutes after a restart.
DEVICES_MAX = 512

CGPU, CORE_MEM, SHARE, MPS, DRA, NONE = "cgpu", "core_mem", "share", "mps", "dra", ""
#: Modes whose resources are ours. `default`, `topology`, `mig` and `disabled` are other plugins'.
MODES = (CGPU, CORE_MEM, SHARE, MPS, DRA)
FOREIGN = ("default", "topology", "mig", "disabled")
MEMORY_MODES = (CGPU, CORE_MEM, SHARE, MPS)
#: The real nodes of one GPU, without a slice of it.
WHOLE_MODES = (SHARE, MPS)


@dataclass(frozen=True, slots=True)
class MpsOffer:
    """What the MPS server of a GPU takes, as `mps` of cgpud's answer has it."""

    mib: int = 0  # of clients together: the GPU without driver and server
    clients: int = 0
    limit: str = ""  # what a limit is worth, in words
    why: str = "cgpud is of a version without MPS"  # the reason for which it takes no client


@dataclass(frozen=True, slots=True)
class HostGpu:
    """One GPU, as cgpud's operation `capacity` describes it."""

    index: int  # M of /dev/nvidiaM, which is the number in annotations
    uuid: str
    total_mib: int
    slice_mib: int  # the sum of limits that admission lets in
    max_inst: int = 20
    name: str = ""
    policy: int | None = None
    why: str = ""  # the reason for which it takes no slice
    mps: MpsOffer = MpsOffer()
    links: tuple[tuple[int, int], ...] = ()  # to others, as cgpud ranks them

    @property
    def is_healthy(self) -> bool:
        """For the kubelet, which fails a pod for good that comes to unhealthy devices. The start of one that was bound
        before a drain is refused, and tried again."""
        return self.why in ("", DRAINED)


DRAINED = (
    "the node is drained, and refuses every start until `cgpu uncordon`, or until the installer has replaced the module"
)


def read(reply: Mapping[str, Any]) -> tuple[HostGpu, ...]:
    """The GPUs in cgpud's answer. One whose size is not known yet is left out."""
    drained = DRAINED if reply.get("draining") else ""
    return tuple(
        HostGpu(
            index=int(gpu["nv_minor"]),
            uuid=str(gpu["uuid"]),
            total_mib=int(gpu["total_mib"]),
            slice_mib=int(gpu["slice_mib"]),
            max_inst=int(gpu["max_inst"]),
            name=str(gpu["name"]),
            policy=gpu["policy"],
            why=str(gpu["why"]) or drained,
            mps=_mps(gpu.get("mps")),
            links=tuple((int(other), int(rank)) for other, rank in (gpu.get("links") or {}).items()),
        )
        for gpu in reply.get("gpus") or ()
        if gpu["known"] or gpu["why"]
    )


def _mps(found: Mapping[str, Any] | None) -> MpsOffer:
    if found is None:
        return MpsOffer()
    return MpsOffer(int(found["mib"]), int(found["clients"]), str(found["limit"]), str(found["why"]))


def in_mode(gpus: Iterable[HostGpu], mode: str) -> tuple[HostGpu, ...]:
    """The GPUs as a node in this mode offers them."""
    if mode != MPS:
        return tuple(gpus)
    return tuple(replace(gpu, slice_mib=gpu.mps.mib, max_inst=gpu.mps.clients, why=gpu.mps.why) for gpu in gpus)


def settled(before: Sequence[HostGpu], found: Sequence[HostGpu]) -> tuple[HostGpu, ...]:
    """The GPUs to offer from now on. What runs outside of containers changes `slice_mib` all the time: a smaller one
    counts at once, in steps, a larger one when it is larger by much, or everything is free."""
    known = {gpu.uuid: gpu for gpu in before}
    out = []
    for gpu in found:
        old = known.get(gpu.uuid)
        slice_mib = _settled(old.slice_mib if old else None, gpu.slice_mib, gpu)
        mps_mib = _settled(old.mps.mib if old else None, gpu.mps.mib, gpu)
        out.append(replace(gpu, slice_mib=slice_mib, mps=replace(gpu.mps, mib=mps_mib)))
    return tuple(out)


def _settled(before_mib: int | None, now_mib: int, gpu: HostGpu) -> int:
    if before_mib is None or now_mib >= min(before_mib + GROW_MIB, gpu.total_mib):
        return now_mib
    return now_mib - now_mib % SHRINK_MIB if now_mib < before_mib else before_mib


_UNIT = re.compile(r"([1-9][0-9]{0,5})?(MiB|GiB)\Z", re.ASCII)


def unit_mib(unit: str) -> int:
    """MiB of a unit by its name: GiB, 2GiB, 256MiB. Raises ValueError."""
    found = _UNIT.match(unit)
    if found is None:
        raise ValueError(f"{unit[:32]!r} is no unit")
    return int(found[1] or 1) * (1024 if found[2] == "GiB" else 1)


def is_unit(unit: str) -> bool:
    return _UNIT.match(unit) is not None


def unit_name(mib: int) -> str:
    if mib % 1024:
        return f"{mib}MiB"
    return GIB if mib == 1024 else f"{mib // 1024}GiB"


def unit_for(wish: str, gpus: Iterable[HostGpu], percent: int = 100) -> str:
    """The unit of a node: that of @wish, one of UNITS, doubled until no GPU has more than DEVICES_MAX. @percent: of a
    GPU's memory that is offered."""
    mib, largest = UNITS[wish], max((gpu.total_mib for gpu in gpus), default=0)
    while -(-largest // mib) * percent > DEVICES_MAX * 100:
        mib *= 2
    return unit_name(mib)


@dataclass(frozen=True, slots=True)
class Offer:
    """How the node counts: its mode, its unit by name, and the over-commit of the mode share."""

    mode: str = NONE
    unit: str = GIB
    overcommit: int = 100  # percent
    names: str = ""  # of others' resources that it takes: NAMES

    def dev(self, gpu: HostGpu) -> int:
        """The units of a whole GPU, as ALIYUN_COM_GPU_MEM_DEV: 15 for 15109 MiB."""
        unit = unit_mib(self.unit)
        return max((gpu.total_mib + unit // 2) // unit, 1)

    def units(self, gpu: HostGpu) -> int:
        """The units that can be given: the limits of any containers with that many together pass admission.

        A container with n units has floor(total x n / dev) MiB; sums of such are at most that of the sum."""
        dev = self.dev(gpu)
        if gpu.total_mib <= 0:
            return 0
        if self.mode == SHARE:  # nothing is limited, so nothing is admitted
            return dev * self.overcommit // 100
        return max(((gpu.slice_mib + 1) * dev - 1) // gpu.total_mib, 0)

    def mib(self, gpu: HostGpu, units: int) -> int:
        """The limit of a container with that many units, as the documented variables give it."""
        return gpu.total_mib * units // self.dev(gpu)

    def placed(self, gpu: HostGpu) -> Gpu:
        """The GPU as the extender sees it."""
        return Gpu(
            gpu.index,
            self.units(gpu),
            dev=self.dev(gpu),
            mib=gpu.total_mib,
            model=gpu.name,
            uuid=gpu.uuid,
            links=gpu.links,
        )

    def units_of(self, gpu: HostGpu, mib: int) -> int:
        """The other way: the units of a container with that limit."""
        return -(-mib * self.dev(gpu) // gpu.total_mib) if gpu.total_mib > 0 else 0

    def annotation(self, gpus: Sequence[HostGpu], deleted: Mapping[str, Remains], away: str = "") -> NodeGpus:
        found = tuple(
            NodeGpu(
                gpu.index,
                gpu.uuid,
                gpu.total_mib,
                self.units(gpu),
                self.dev(gpu),
                gpu.max_inst,
                gpu.why,
                gpu.name,
                gpu.links,
            )
            for gpu in gpus
        )
        return NodeGpus(self.mode, self.unit, found, deleted, away, self.names)

    def remains(
        self, gpus: Sequence[HostGpu], slices: Iterable[Mapping[str, Any]], alive: set[str]
    ) -> dict[str, Remains]:
        """Of cgpud's slices those of pods that are not among @alive, by the pod's uid."""
        by_index = {gpu.index: gpu for gpu in gpus}
        names: dict[str, str] = {}
        units: dict[str, dict[int, int]] = {}
        for one in slices:
            uid = str(one["uid"])
            if not uid or uid in alive:
                continue
            names[uid] = str(one["pod"])
            of_pod = units.setdefault(uid, {})
            for slot in one["slots"]:
                if gpu := by_index.get(slot["nv_minor"]):
                    of_pod[gpu.index] = of_pod.get(gpu.index, 0) + self.units_of(gpu, slot["mib"])
        return {uid: Remains(names[uid], found) for uid, found in units.items()}

    def held_text(self, held: Mapping[str, Mapping[int, int]]) -> str:
        """For the node's condition. @held: by pod, the units of each GPU."""
        parts = [
            f"{name}: {units} {counted_in(self.unit)} of GPU {gpu}"
            for name, of_pod in sorted(held.items())[:8]
            for gpu, units in sorted(of_pod.items())
        ]
        return f"pods were deleted before their containers ended; {'; '.join(parts)}" if parts else ""


def client_slots(gpus: Sequence[HostGpu], rows: Iterable[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Of cgpud's clients of MPS, which have no slice, what Offer.remains() reads of slices."""
    by_uuid = {gpu.uuid: gpu.index for gpu in gpus}
    return [
        {"uid": one["uid"], "pod": one["pod"], "slots": [{"nv_minor": by_uuid[one["uuid"]], "mib": one["grant_mib"]}]}
        for one in rows
        if one["uuid"] in by_uuid
    ]


def card_labels(gpus: Sequence[HostGpu]) -> dict[str, str]:
    """By which pods choose nodes of a model. Name and memory only where all GPUs have the same."""
    found = {CARD_COUNT: str(len(gpus))} if gpus else {}
    names = {re.sub(r"[^A-Za-z0-9_.]+", "-", gpu.name).strip("-_.")[:63].strip("-_.") for gpu in gpus}
    sizes = {gpu.total_mib for gpu in gpus}
    if len(names) == 1 and (name := names.pop()):
        found[CARD_NAME] = name
    if len(sizes) == 1 and (mib := sizes.pop()):
        found[CARD_MEM] = f"{mib}MiB"
    return found


# ---- device ids ----

Device = tuple[str, bool]  # id, healthy


def memory_devices(offer: Offer, gpus: Sequence[HostGpu]) -> list[Device]:
    """The devices of aliyun.com/gpu-mem: as many of each GPU as it has units of its own."""
    if offer.mode not in MEMORY_MODES:
        return []
    return [(f"{gpu.uuid}{SEPARATOR}{number}", gpu.is_healthy) for gpu in gpus for number in range(offer.units(gpu))]


def core_devices(offer: Offer, gpus: Sequence[HostGpu]) -> list[Device]:
    """The devices of aliyun.com/gpu-core.percentage: 100 of each GPU."""
    if offer.mode != CORE_MEM:
        return []
    return [(f"{gpu.uuid}{SEPARATOR}core{number}", gpu.is_healthy) for gpu in gpus for number in range(CORE)]


def nv_devices(offer: Offer, gpus: Sequence[HostGpu]) -> list[Device]:
    """The devices of nvidia.com/gpu on a node that takes the names: as many of each GPU as containers can be on it."""
    if offer.mode not in (CGPU, CORE_MEM) or not offer.names:
        return []
    return [(f"{gpu.uuid}{SEPARATOR}gpu{number}", gpu.is_healthy) for gpu in gpus for number in range(gpu.max_inst)]


def links_by_uuid(gpus: Sequence[HostGpu]) -> dict[str, dict[str, int]]:
    """Of the links between GPUs, by UUID as in the ids of devices; empty: none are known."""
    uuids = {gpu.index: gpu.uuid for gpu in gpus}
    return {gpu.uuid: {uuids[other]: rank for other, rank in gpu.links if other in uuids} for gpu in gpus if gpu.links}


def uuid_of(device: str) -> str:
    return device.rpartition(SEPARATOR)[0]


def preferred(available: Sequence[str], required: Sequence[str], size: int, spread: bool = False) -> list[str]:
    """Device ids of one GPU if one has as many; the GPU with the fewest left over (`spread`: the most), so that large
    requests find room. Ids that are required count first, and low numbers: a GPU that offers fewer units later loses
    its highest ids, and a kubelet refuses the pods that have them at its next start."""
    chosen = dict.fromkeys(list(dict.fromkeys(required))[:size])
    free: dict[str, list[str]] = {}  # by GPU
    for device in dict.fromkeys(available):
        if device not in chosen:
            free.setdefault(uuid_of(device), []).append(device)
    wanted: dict[str, int] = {}
    for device in chosen:
        wanted[uuid_of(device)] = wanted.get(uuid_of(device), 0) + 1

    def rank(uuid: str) -> tuple[bool, bool, int, str]:
        there = len(free[uuid]) + wanted.get(uuid, 0)
        return uuid not in wanted, len(free[uuid]) + len(chosen) < size, -there if spread else there, uuid

    for uuid in sorted(free, key=rank):
        lacks = size - len(chosen)
        if lacks <= 0:
            break
        chosen |= dict.fromkeys(sorted(free[uuid], key=_number)[:lacks])
    return list(chosen)


def preferred_apart(
    available: Sequence[str],
    required: Sequence[str],
    size: int,
    spread: bool = False,
    ranks: links.Ranks[str] = NO_LINKS,
) -> list[str]:
    """Device ids of as many GPUs as there are, one of each, for a resource that counts GPUs: of the GPUs with the best
    links by @ranks, and of equal ones those with the fewest left over (`spread`: the most)."""
    chosen = dict.fromkeys(list(dict.fromkeys(required))[:size])
    free: dict[str, list[str]] = {}
    for device in dict.fromkeys(available):
        if device not in chosen:
            free.setdefault(uuid_of(device), []).append(device)
    taken = dict.fromkeys(free, 0)
    for device in chosen:
        taken[uuid_of(device)] = taken.get(uuid_of(device), 0) + 1
    order = sorted(free, key=lambda one: (-len(free[one]) if spread else len(free[one]), one))
    near = links.best(order, size, ranks, [uuid for uuid, count in taken.items() if count])
    order = [uuid for uuid in near if uuid in free] + [uuid for uuid in order if uuid not in near]
    while len(chosen) < size and free:
        uuid = min((uuid for uuid in order if uuid in free), key=lambda one: taken[one])
        device = min(free[uuid], key=_number)
        chosen[device] = None
        taken[uuid] += 1
        free[uuid].remove(device)
        if not free[uuid]:
            del free[uuid]
    return list(chosen)


def _number(device: str) -> tuple[int, str]:
    text = device.rpartition(SEPARATOR)[2].removeprefix("core").removeprefix("gpu")
    return (int(text) if text.isascii() and text.isdecimal() else 0, device)


# ---- modes ----


def mode_of(labels: Mapping[str, str] | None) -> str | None:
    """The mode that the node's label asks for; None: no label, which changes nothing. Raises KubeError."""
    text = (labels or {}).get(MODE_LABEL)
    if text is None:
        return None
    if text in MODES:
        return text
    if text in FOREIGN:
        return NONE
    raise KubeError(
        f"label {MODE_LABEL}={text[:64]} is no mode: it must be one of {', '.join((*MODES, *FOREIGN))}; "
        f"the node keeps the mode it has"
    )


def names_of(labels: Mapping[str, str] | None) -> str:
    """Others' names that the node takes. Raises KubeError."""
    text = (labels or {}).get(NAMES_LABEL, "")
    if text not in ("", NAMES):
        raise KubeError(f"label {NAMES_LABEL}={text[:64]} is none: it must be {NAMES}; the node takes our names only")
    return text


def switch(now: str, wanted: str | None, users: Sequence[str]) -> str:
    """The mode from now on. `users`: pods that use the resources of the mode now. Raises KubeError if it must wait."""
    if wanted is None or wanted == now:
        return now
    if users:
        shown = ", ".join(users[:3]) + (f" and {len(users) - 3} more" if len(users) > 3 else "")
        raise KubeError(
            f"the node stays in mode {now} until no pod uses a GPU of it: {shown}; drain it, and {MODE_LABEL}="
            f"{wanted or 'default'} takes effect"
        )
    return wanted
