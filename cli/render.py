# SPDX-License-Identifier: MIT
"""The model as text or JSON. Pure: no clock, no file, no terminal."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from cgpu_common import figures
from cgpu_common.figures import document
from cgpu_common.model import MIB, KernelGpu, Slot, Snapshot, slot_state

from .columns import Column, table
from .names import by_name, shown_ids

PIDS_SHOWN = 4
NO_PIDS = "none"  # "-" is what is not known
PS_HEAD = (
    Column("CONTAINER"),
    Column("NAME", least=8),
    Column("GPU", right=True),
    Column("WEIGHT", right=True),
    Column("USED MiB", right=True),
    Column("LIMIT MiB", right=True),
    Column("STATE"),
    Column("PIDS", drop=1),
)


def mib(size: int) -> str:
    return str(size // MIB)


def percent(value: float | None, estimated: bool = False) -> str:
    if value is None:
        return "-"
    return f"{'~' if estimated else ''}{value:.1f}%"


def pids_text(pids: Sequence[tuple[int, int]]) -> str:
    if not pids:
        return NO_PIDS
    shown = " ".join(str(pid) for pid, _ in pids[:PIDS_SHOWN])
    more = len(pids) - PIDS_SHOWN
    return f"{shown} +{more}" if more > 0 else shown


def memory_total(gpu: KernelGpu) -> str:
    return mib(gpu.total) if gpu.total else "-"


def ids_of(snapshot: Snapshot) -> Mapping[str, str]:
    """Each container's id as far as it is shown."""
    return shown_ids([slot.id for gpu in snapshot.gpus for slot in gpu.slots])


def ps_text(snapshot: Snapshot, whole_ids: bool = False, width: int | None = None) -> str:
    """One line per container, for users and for awk."""
    ids = ids_of(snapshot)
    rows = [
        (
            slot.id if whole_ids else ids[slot.id],
            slot.name or "-",
            str(gpu.index),
            str(slot.weight),
            mib(slot.used),
            mib(slot.limit),
            slot_state(gpu, slot),
            pids_text(slot.pids),
        )
        for gpu in snapshot.gpus
        for slot in sorted(gpu.slots, key=lambda one: (by_name(one.name), one.id))
    ]
    return "\n".join(table(PS_HEAD, rows, width))


def slot_json(gpu: KernelGpu, slot: Slot, got: float | None) -> dict[str, Any]:
    pids = [{"pid": pid, "bytes": size} for pid, size in slot.pids]
    return document(figures.SLOT, gpu, slot, {"share_got_pct": got, "pids": pids})


def gpu_json(gpu: KernelGpu) -> dict[str, Any]:
    """One GPU without its containers."""
    return document(figures.GPU, gpu, None, {})
