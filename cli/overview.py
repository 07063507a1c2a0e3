# SPDX-License-Identifier: MIT
"""A view as the text and the JSON of cgpu-smi. Pure."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

from cgpu_common import figures
from cgpu_common.figures import document
from cgpu_common.model import MIB, Card, KernelGpu, Slot

from . import cells
from .cells import grid, or_dash
from .columns import Column, folded, natural_width, printable, table
from .render import gpu_json as tree_json
from .render import mib
from .view import View

SCHEMA_VERSION = 1
DRAINING = "draining: new slices are refused on this node until cgpu uncordon"
PROCESSES_SHOWN = 8  # of a container
WIDE = 130  # from here on compute and memory are one table, and names are shortened for it

GPU_NAMES = ("gpu", "name", "uuid", "policy", "slice", "free", "inst", "memory", "util", "temp", "power")
NAMED = ("gpu", "container", "name")
COMPUTE = ("weight", "allowed", "got", "10s", "wait", "p99", "throt", "state")
MEMORY = ("memory", "bar", "peak", "refused", "calls")
PROCESS_COLUMNS = (
    *(cells.SLOT[name].column for name in NAMED),
    Column("PID", right=True),
    Column("MiB", right=True),
    Column("SM", right=True, drop=2),
    Column("MEM", right=True, drop=1),
    Column("PROCESS", least=8),
)


def _process_rows(view: View, gpu: KernelGpu, slot: Slot) -> list[list[str]]:
    there = sorted(slot.pids, key=lambda one: (-one[1], one[0]))
    own = [cells.SLOT[name].text(view, gpu, slot) for name in NAMED]
    rows = []
    for pid, size in there[:PROCESSES_SHOWN]:
        sm, memory = view.use_of(gpu, pid)
        used = [or_dash(sm, "%"), or_dash(memory, "%")]
        rows.append([*own, str(pid), mib(size), *used, printable(view.comm.get(pid, "-"))])
    if more := there[PROCESSES_SHOWN:]:
        rest = mib(sum(size for _, size in more))
        rows.append([*own, "-", rest, "-", "-", f"and {len(more)} more"])
    return rows


def gpu_lines(view: View, width: int | None) -> list[str]:
    return table(*grid(cells.GPU, GPU_NAMES, [(view, gpu) for gpu in view.snapshot.gpus]), width)


def places(view: View) -> list[tuple[View, KernelGpu, Slot]]:
    return [(view, gpu, slot) for gpu in view.snapshot.gpus for slot in gpu.slots]


def slot_lines(view: View, width: int | None) -> list[str]:
    """One table if it fits, else one of compute and one of memory."""
    columns, rows = grid(cells.SLOT, (*NAMED, *COMPUTE, *MEMORY), places(view))
    if width is None or width >= WIDE or natural_width(columns, rows) <= width:
        return table(columns, rows, width)
    kept = [name for name in COMPUTE if name != "wait"]  # the percentile is more useful
    first, second = (grid(cells.SLOT, (*NAMED, *names), places(view)) for names in (kept, MEMORY))
    return [*table(*first, width), "", *table(*second, width)]


def process_lines(view: View, width: int | None) -> list[str]:
    rows = [row for place in places(view) for row in _process_rows(*place)]
    return table(PROCESS_COLUMNS, rows, width) if rows else []


def title(view: View) -> str:
    over = f"shares over {view.interval_s:.2g} s" if view.interval_s else "no sample"
    return f"cgpu-smi   core {view.snapshot.module}   driver {printable(view.driver or '-')}   {over}"


def drift_lines(view: View) -> list[str]:
    shown = {gpu.index for gpu in view.snapshot.gpus}
    return [
        f"GPU {row['index']}: {row['key']} is {row['live']}, cgpu.toml has {row['configured']}"
        for row in view.drift or ()
        if row["index"] in shown
    ]


def text(view: View, width: int | None) -> str:
    """The text of cgpu-smi. @width None: nothing is shortened."""
    lines = [*folded(title(view), width), *(folded(DRAINING, width) if view.draining else []), ""]
    lines += gpu_lines(view, width)
    for line in [*(f"GPU {index}: NVML: {lost_text(one)}" for index, one in _lost(view)), *drift_lines(view)]:
        lines += folded(line, width, "  ", "    ")
    if any(view.instances(gpu) for gpu in view.snapshot.gpus):
        lines += ["", *slot_lines(view, width)]
        if processes := process_lines(view, width):
            lines += ["", *processes]
    else:
        lines += ["", "No container shares a GPU."]
    return "\n".join(lines)


def _lost(view: View) -> list[tuple[int, Card]]:
    there = {gpu.index for gpu in view.snapshot.gpus}
    return [(index, one) for index, one in sorted(view.sensors.items()) if one.lost and index in there]


def lost_text(own: Card) -> str:
    """Why NVML does not answer, and the age of the values that are shown all the same."""
    why = printable(own.lost)
    if not own.age_s:
        return why
    shown = (own.utilization_pct, own.temperature_c, own.power_mw)
    return f"{why}; {'its last values are' if shown == (None,) * 3 else 'these values are'} {own.age_s} s old"


def list_text(view: View) -> str:
    """The text of -L: GPUs as nvidia-smi -L has them, and their containers."""
    lines = []
    for gpu in view.snapshot.gpus:
        lines.append(f"GPU {gpu.index}: {view.card_name(gpu)} (UUID: {gpu.uuid})")
        lines += [
            f"  Container {view.title(slot) or '-'}: {slot.limit // MIB} MiB, weight {slot.weight} (ID: {slot.id})"
            for slot in gpu.slots
        ]
    return "\n".join(lines) or "no GPU"


# ---- JSON ----


def container_json(view: View, gpu: KernelGpu, slot: Slot) -> dict[str, Any]:
    names = view.names_of(slot)
    seen = asdict(view.rates_of(slot)) | {
        "name": names.name or None,
        "pod": names.pod or None,
        "namespace": names.namespace or None,
        "share_allowed_pct": view.allowed_pct(slot),
        "pids": [process_json(view, gpu, pid, size) for pid, size in slot.pids],
    }
    return document((*figures.SLOT, *figures.POD, *figures.RATES), gpu, slot, seen)


def process_json(view: View, gpu: KernelGpu, pid: int, size: int) -> dict[str, Any]:
    sm, memory = view.use_of(gpu, pid)
    return {"pid": pid, "bytes": size, "name": view.comm.get(pid), "sm_pct": sm, "memory_utilization_pct": memory}


def nvml_json(own: Card) -> dict[str, Any]:
    return {one.key: getattr(own, one.key) for one in figures.CARD} | {"lost": own.lost or None}


def gpu_json(view: View, gpu: KernelGpu) -> dict[str, Any]:
    found = tree_json(gpu)
    found["memory"]["total_bytes"] = view.total_bytes(gpu)
    own = view.sensors.get(gpu.index)
    return found | {
        "name": view.card_name(gpu),
        "nvml": None if own is None else nvml_json(own),
        "containers": [container_json(view, gpu, slot) for slot in gpu.slots],
    }


def as_json(view: View) -> dict[str, Any]:
    """The output of cgpu-smi --json; docs/reference/cgpu-smi.schema.json describes it."""
    return {
        "schema_version": SCHEMA_VERSION,
        "module": view.snapshot.module,
        "driver": view.driver,
        "interval_s": None if view.interval_s is None else round(view.interval_s, 3),
        "draining": view.draining,
        "gpus": [gpu_json(view, gpu) for gpu in view.snapshot.gpus],
        "drift": None
        if view.drift is None
        else [{name: row.get(name) for name in ("index", "key", "configured", "live")} for row in view.drift],
    }
