# SPDX-License-Identifier: MIT
"""The model as text or JSON. Pure: no clock, no file, no terminal."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from cgpu_common.model import MIB, VIDEO_ENGINES, KernelGpu, Slot, Snapshot, slot_state
from cgpu_common.share import allowed_pct

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


#: The end of a field's name in --json -> unit, what a value is divided by, digits.
UNITS = {
    "_bytes": ("MiB", MIB, 0),
    "_pct": ("%", 1, 1),
    "_us": ("us", 1, 0),
    "_ns": ("ms", 1_000_000, 0),
    "_mw": ("W", 1000, 2),
    "_c": ("C", 1, 0),
    "_s": ("s", 1, 2),
}


def unit_of(key: str) -> tuple[str, str, float, int]:
    """The name without its unit; the unit, what a value is divided by, digits."""
    end = next((one for one in UNITS if key.endswith(one)), "")
    return key.removesuffix(end), *UNITS.get(end, ("", 1, 0))


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


def rounded(value: float | None) -> float | None:
    return None if value is None else round(value, 2)


def slot_json(gpu: KernelGpu, slot: Slot, got: float | None) -> dict[str, Any]:
    counters = ("gpu_ns", "wait_ns", "throttled_ns", "turns", "overruns", "refused_allocs", "refused_calls")
    return {
        "id": slot.id,
        "dir": slot.dir,
        "name": slot.name,
        "weight": slot.weight,
        "highprio": slot.highprio,
        "ceiling": slot.ceiling,
        "share_allowed_pct": rounded(allowed_pct(gpu, slot)),
        "share_got_pct": rounded(got),
        "share_estimated": gpu.facts.estimated,
        "memory": {
            "used_bytes": slot.used,
            "limit_bytes": slot.limit,
            "peak_bytes": slot.stat.get("peak_bytes", slot.used),
        },
        "state": slot_state(gpu, slot),
        "opened": slot.opened,
        "pids": [{"pid": pid, "bytes": size} for pid, size in slot.pids],
        **{name: slot.stat.get(name, 0) for name in counters},
        "sessions": {name: slot.stat.get(name, 0) for name in VIDEO_ENGINES},
    }


def control_names(text: str) -> list[str]:
    """The controls in a value of N/stat."""
    return [] if text == "none" else text.split(",")


def gpu_json(gpu: KernelGpu) -> dict[str, Any]:
    """One GPU without its containers."""
    return {
        "index": gpu.index,
        "name": gpu.name,
        "uuid": gpu.uuid,
        "pci": gpu.pci,
        "minor": gpu.nv_minor,
        "policy": {"number": gpu.policy, "name": gpu.facts.name},
        "max_inst": gpu.max_inst,
        "free_weight": gpu.free_weight,
        "prio_ratio": gpu.prio_ratio,
        "slice_us": gpu.slice_us,
        "uvm": gpu.uvm_name,
        "control": control_names(gpu.control),
        "control_seen": control_names(gpu.control_seen),
        "memory": {
            "used_bytes": gpu.used,
            "limits_bytes": gpu.limits or 0,
            "total_bytes": gpu.total,
        },
    }
