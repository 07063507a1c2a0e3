# SPDX-License-Identifier: MIT
"""A view as the text and the JSON of cgpu-smi. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

from cgpu_common import figures
from cgpu_common.figures import document
from cgpu_common.model import MIB, Card, KernelGpu, Slot, slot_state

from .columns import Column, bar, folded, natural_width, printable, table
from .render import gpu_json as tree_json
from .render import ids_of, mib, percent
from .view import View

SCHEMA_VERSION = 1
DRAINING = "draining: new slices are refused on this node until cgpu uncordon"
PROCESSES_SHOWN = 8  # of a container
UUID_SHOWN = 12
BAR = 12
WIDE = 130  # from here on compute and memory are one table, and names are shortened for it

GPU_COLUMNS = (
    Column("GPU", right=True),
    Column("NAME", least=8, tail=False),
    Column("UUID", drop=2),
    Column("POLICY"),
    Column("SLICE", right=True, drop=4),
    Column("FREE", right=True),
    Column("INST", right=True, drop=1),
    Column("MEMORY MiB", right=True),
    Column("UTIL", right=True),
    Column("TEMP", right=True, drop=3),
    Column("POWER", right=True, drop=3),
)
SLOT_COLUMNS = (Column("GPU", right=True), Column("CONTAINER"), Column("NAME", least=8))
COMPUTE_COLUMNS = (
    Column("WEIGHT", right=True),
    Column("ALLOWED", right=True),
    Column("GOT", right=True),
    Column("10s", right=True, drop=3),
    Column("WAIT", right=True, drop=2),
    Column("P99", right=True, drop=2),
    Column("THROT", right=True, drop=1),
    Column("STATE"),
)
MEMORY_COLUMNS = (
    Column("MEMORY MiB", right=True),
    Column("", drop=1),
    Column("PEAK", right=True, drop=2),
    Column("REFUSED", right=True),
    Column("CALLS", right=True),
)
PROCESS_COLUMNS = (
    *SLOT_COLUMNS,
    Column("PID", right=True),
    Column("MiB", right=True),
    Column("SM", right=True, drop=2),
    Column("MEM", right=True, drop=1),
    Column("PROCESS", least=8),
)


def or_dash(value: float | None, unit: str = "") -> str:
    return "-" if value is None else f"{value:.0f}{unit}"


def duration(us: float | None) -> str:
    """Microseconds with a unit that keeps it short."""
    if us is None:
        return "-"
    if us < 1000:
        return f"{us:.0f}us"
    if us < 1e6:
        return f"{us / 1000:.1f}ms" if us < 100_000 else f"{us / 1000:.0f}ms"
    return f"{us / 1e6:.2f}s"


def slice_text(slice_us: int) -> str:
    return "-" if not slice_us else f"{slice_us / 1000:g}ms"


def gpu_row(view: View, gpu: KernelGpu) -> list[str]:
    own = view.sensors_of(gpu)
    total = view.total_bytes(gpu)
    power = None if own.power_mw is None else own.power_mw / 1000
    return [
        str(gpu.index),
        view.card_name(gpu).removeprefix("NVIDIA "),
        gpu.uuid[:UUID_SHOWN],
        gpu.facts.name,
        slice_text(gpu.slice_us),
        f"{gpu.free_weight}/{gpu.max_inst}",
        str(view.instances(gpu)),
        f"{mib(gpu.used)}/{mib(total) if total else '?'}",
        or_dash(own.utilization_pct, "%"),
        or_dash(own.temperature_c, "C"),
        or_dash(power, "W"),
    ]


def _slot_cells(view: View, slot: Slot, ids: Mapping[str, str]) -> list[str]:
    return [str(slot.gpu), ids[slot.id], view.title(slot) or "-"]


def _compute_cells(view: View, gpu: KernelGpu, slot: Slot) -> list[str]:
    rates, guess = view.rates_of(slot), gpu.facts.estimated
    return [
        f"{slot.weight}{'hp' if slot.highprio else ''}",
        percent(view.allowed_pct(slot)),
        percent(rates.share_got_pct, guess),
        percent(rates.share_got_10s_pct, guess),
        duration(rates.wait_per_turn_us),
        duration(rates.wait_p99_us),
        or_dash(rates.throttled_pct, "%"),
        slot_state(gpu, slot),
    ]


def _memory_cells(slot: Slot) -> list[str]:
    part = slot.used / slot.limit if slot.limit else 0.0
    return [
        f"{mib(slot.used)}/{mib(slot.limit)}",
        bar(part, BAR),
        mib(slot.stat.get("peak_bytes", slot.used)),
        str(slot.stat.get("refused_allocs", 0)),
        str(slot.stat.get("refused_calls", 0)),
    ]


def _process_rows(view: View, gpu: KernelGpu, slot: Slot, ids: Mapping[str, str]) -> list[list[str]]:
    there = sorted(slot.pids, key=lambda one: (-one[1], one[0]))
    rows = []
    for pid, size in there[:PROCESSES_SHOWN]:
        sm, memory = view.use_of(gpu, pid)
        used = [or_dash(sm, "%"), or_dash(memory, "%")]
        rows.append([*_slot_cells(view, slot, ids), str(pid), mib(size), *used, printable(view.comm.get(pid, "-"))])
    if more := there[PROCESSES_SHOWN:]:
        rest = mib(sum(size for _, size in more))
        rows.append([*_slot_cells(view, slot, ids), "-", rest, "-", "-", f"and {len(more)} more"])
    return rows


def gpu_lines(view: View, width: int | None) -> list[str]:
    return table(GPU_COLUMNS, [gpu_row(view, gpu) for gpu in view.snapshot.gpus], width)


def slot_lines(view: View, width: int | None) -> list[str]:
    """One table if it fits, else one of compute and one of memory."""
    ids = ids_of(view.snapshot)
    slots = [(gpu, slot) for gpu in view.snapshot.gpus for slot in gpu.slots]
    named = [_slot_cells(view, slot, ids) for _, slot in slots]
    compute = [_compute_cells(view, gpu, slot) for gpu, slot in slots]
    memory = [_memory_cells(slot) for _, slot in slots]
    columns = (*SLOT_COLUMNS, *COMPUTE_COLUMNS, *MEMORY_COLUMNS)
    rows = [[*one, *two, *three] for one, two, three in zip(named, compute, memory, strict=True)]
    if width is None or width >= WIDE or natural_width(columns, rows) <= width:
        return table(columns, rows, width)
    kept = [place for place, one in enumerate(COMPUTE_COLUMNS) if one.head != "WAIT"]  # the percentile is more useful
    few = [[*a, *(b[place] for place in kept)] for a, b in zip(named, compute, strict=True)]
    first = table((*SLOT_COLUMNS, *(COMPUTE_COLUMNS[place] for place in kept)), few, width)
    second = table((*SLOT_COLUMNS, *MEMORY_COLUMNS), [[*a, *b] for a, b in zip(named, memory, strict=True)], width)
    return [*first, "", *second]


def process_lines(view: View, width: int | None) -> list[str]:
    ids = ids_of(view.snapshot)
    rows = [row for gpu in view.snapshot.gpus for slot in gpu.slots for row in _process_rows(view, gpu, slot, ids)]
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
