# SPDX-License-Identifier: MIT
"""What the daemon answers about its GPUs."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from cgpu_common import settings
from cgpu_common.cards import Gpu
from cgpu_common.config import Config
from cgpu_common.model import MIB, Container
from cgpud.admit import free_mib, most_mib, why_unshared
from cgpud.values import Record


def capacity(inventory: Iterable[Gpu], mps: Callable[[Gpu], dict[str, Any]]) -> list[dict[str, Any]]:
    """`slice_mib`: the sum of limits that admission lets into the GPU now; it follows what runs outside of containers.
    `why`: the reason for which the GPU takes no slice, or "". `mps`: what it offers to clients of its MPS server.
    `links`: by the minor of another GPU, 100 for each NVLink to it, less: shared bridges of PCIe."""
    return [
        {
            "number": gpu.number,
            "uuid": gpu.uuid,
            "pci": gpu.pci,
            "nv_minor": gpu.nv_minor,
            "name": gpu.name,
            "total_mib": gpu.total_mib,
            "slice_mib": most_mib(gpu),
            "known": gpu.total_mib > 0 and gpu.room_mib is not None,
            "limits_mib": -(-(gpu.limits or 0) // MIB),
            "instances": gpu.instances,
            "max_inst": gpu.max_inst,
            "free_weight": gpu.free_weight,
            "policy": gpu.kernel.policy if gpu.kernel else None,
            "why": why_unshared(gpu),
            "mps": mps(gpu),
            "links": {str(other): rank for other, rank in gpu.links},
        }
        for gpu in inventory
    ]


def slices(kernel: Iterable[Container], records: Iterable[Record]) -> list[dict[str, Any]]:
    """The kernel's slices with the pods that a grant named. A claim's is its own, whatever pods share it. `dying`: it
    is destroyed, and a call of it has not returned."""
    known = {record.kernel_key: record for record in records if record.pod_uid and record.kernel_key == record.key}
    return [
        {
            "id": one.id,
            "pod": known[key].pod if key in known else "",
            "uid": known[key].pod_uid if key in known else "",
            "dying": one.dying,
            "slots": [{"nv_minor": slot.nv_minor, "mib": -(-slot.limit // MIB)} for slot in one.slots],
        }
        for one in kernel
        for key in [(one.id, one.cookie)]
    ]


def drift_counts(config: Config, inventory: Sequence[Gpu]) -> dict[int, int]:
    """For each GPU of the kernel, by its index, the number of settings that differ from cgpu.toml."""
    rows = Counter(row["index"] for row in settings.drift(config.gpu, config.gpus, inventory))
    return {gpu.index: rows[gpu.index] for gpu in inventory if gpu.kernel is not None and gpu.index is not None}


def free_bytes(inventory: Iterable[Gpu]) -> dict[int, int]:
    """What admission lets into each GPU of the kernel, by its index."""
    free = {gpu.index: free_mib(gpu) for gpu in inventory if gpu.index is not None}
    return {index: mib * MIB for index, mib in free.items() if mib is not None}
