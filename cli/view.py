# SPDX-License-Identifier: MIT
"""Everything that cgpu-smi shows of one moment: the tree, with NVML's and the engines' knowledge joined to it. Pure."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

from cgpu_common.model import Card, KernelGpu, Names, Slot, Snapshot
from cgpu_common.share import allowed_pct

from .columns import printable
from .names import GpuNames, Named, by_name, choose, choose_gpu, labels
from .rates import Key, Rates
from .render import ids_of

Drift = Sequence[Mapping[str, Any]]

SORTS: dict[str, Callable[[View, Slot], Any]] = {
    "name": lambda view, slot: (by_name(view.title(slot)), slot.id),
    "share": lambda view, slot: -(view.rates_of(slot).share_got_pct or 0.0),
    "memory": lambda view, slot: -slot.used,
    "weight": lambda view, slot: -slot.weight,
}


@dataclass(frozen=True)
class View:
    """@sensors: by GPU. @names: by container id. @comm: names of processes by pid. @interval_s: None: no sample."""

    snapshot: Snapshot
    rates: Mapping[Key, Rates] = field(default_factory=dict)
    interval_s: float | None = None
    sensors: Mapping[int, Card] = field(default_factory=dict)
    names: Mapping[str, Names] = field(default_factory=dict)
    comm: Mapping[int, str] = field(default_factory=dict)
    drift: Drift | None = None
    driver: str | None = None
    draining: bool = False
    names_hidden: bool = False  # from this user
    whole: Snapshot | None = None  # before chosen(): what the share allowed depends on; None: snapshot

    def _whole(self, index: int) -> KernelGpu | None:
        return next((gpu for gpu in (self.whole or self.snapshot).gpus if gpu.index == index), None)

    def allowed_pct(self, slot: Slot) -> float | None:
        """The most that it may have, which the containers that are not shown lower too."""
        gpu = self._whole(slot.gpu)
        return None if gpu is None else allowed_pct(gpu, slot)

    def instances(self, gpu: KernelGpu) -> int:
        """Containers on the GPU, also those that are not shown."""
        return len((self._whole(gpu.index) or gpu).slots)

    def rates_of(self, slot: Slot) -> Rates:
        return self.rates.get((slot.gpu, slot.dir), Rates())

    def sensors_of(self, gpu: KernelGpu) -> Card:
        return self.sensors.get(gpu.index, Card())

    def use_of(self, gpu: KernelGpu, pid: int) -> tuple[int | None, int | None]:
        """Percent of the multiprocessors and of the memory's time that the process had; None: not known."""
        found = (one for one in self.sensors_of(gpu).processes if one.pid == pid)
        return next(((one.sm_pct, one.memory_pct) for one in found), (None, None))

    def names_of(self, slot: Slot) -> Names:
        found = self.names.get(slot.id, Names())
        return replace(found, name=slot.name or found.name)

    def title(self, slot: Slot) -> str:
        """namespace/pod/name, those that are known; "": none is."""
        names = self.names_of(slot)
        return printable("/".join(filter(None, (names.namespace, names.pod, names.name))))

    @cached_property
    def ids(self) -> Mapping[str, str]:
        """Each container's id as far as it is shown."""
        return ids_of(self.whole or self.snapshot)

    @cached_property
    def labels(self) -> Mapping[str, str]:
        """What a container without such names is called, by id. No two containers on the node have the same word."""
        return labels([slot for gpu in (self.whole or self.snapshot).gpus for slot in gpu.slots])

    def total_bytes(self, gpu: KernelGpu) -> int:
        """Of the card: the module's figure, which it has from the first container on, else NVML's; 0: not known."""
        return gpu.total or self.sensors_of(gpu).total_bytes or 0

    def card_name(self, gpu: KernelGpu) -> str:
        return printable(gpu.name if gpu.name not in ("", "-") else self.sensors_of(gpu).name or "-")


def matched(snapshot: Snapshot, found: Sequence[Card]) -> dict[int, Card]:
    """NVML's GPUs by the module's numbers: by UUID, else by PCI address."""
    by_uuid = {one.uuid.lower(): one for one in found if one.uuid}
    by_pci = {one.pci.lower(): one for one in found if one.pci}
    pairs = ((gpu.index, by_uuid.get(gpu.uuid.lower()) or by_pci.get(gpu.pci.lower())) for gpu in snapshot.gpus)
    return {index: one for index, one in pairs if one is not None}


def _gpu_places(snapshot: Snapshot, words: Sequence[str]) -> set[int]:
    """The GPUs that the words of -i mean: numbers, PCI addresses, UUIDs or unique beginnings of them."""
    there = [GpuNames(gpu.index, gpu.uuid, gpu.pci) for gpu in snapshot.gpus]
    return {choose_gpu(word, there) for word in words}


def chosen(view: View, gpus: Sequence[str] = (), containers: Sequence[str] = (), sort: str = "name") -> View:
    """Only these GPUs and containers, sorted. CgpuError: one is unknown or ambiguous."""
    snapshot = view.snapshot
    keep = _gpu_places(snapshot, gpus) if gpus else {gpu.index for gpu in snapshot.gpus}
    slots = {slot.id: slot for gpu in snapshot.gpus for slot in gpu.slots}
    named = [Named(one.id, one.dir, view.names_of(one).name or None) for one in slots.values()]
    ids = {named[choose(key, named, view.names_hidden)].id for key in containers}
    order = SORTS[sort]
    out = tuple(
        replace(
            gpu,
            slots=tuple(
                sorted((one for one in gpu.slots if not ids or one.id in ids), key=lambda slot: order(view, slot))
            ),
        )
        for gpu in snapshot.gpus
        if gpu.index in keep
    )
    shown = replace(snapshot, gpus=tuple(gpu for gpu in out if gpu.slots or not ids))
    return replace(view, snapshot=shown, whole=view.whole or snapshot)
