# SPDX-License-Identifier: MIT
"""The columns of GPUs and containers, as the tables of cgpu-smi and of cgpu stats choose them. Pure."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

from cgpu_common.model import KernelGpu, Slot, slot_state

from .columns import Column, bar
from .render import NO_PIDS, mib, percent
from .view import View

UUID_SHOWN = 12
BAR = 12


class Cell(NamedTuple):
    """@text: of (view, gpu) or (view, gpu, slot). @legend: for the help, where the head does not say it."""

    column: Column
    text: Callable[..., str]
    legend: str = ""


def grid(
    cells: Mapping[str, Cell], names: Sequence[str], places: Iterable[tuple[Any, ...]], **changed: Mapping[str, Any]
) -> tuple[list[Column], list[list[str]]]:
    """These columns, and a row for each place. @changed: by name, what is another in this table."""
    columns = [replace(cells[name].column, **changed.get(name, {})) for name in names]
    return columns, [[cells[name].text(*place) for name in names] for place in places]


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


def memory_pct(slot: Slot) -> float | None:
    return 100 * slot.used / slot.limit if slot.limit else None


def _memory(view: View, gpu: KernelGpu) -> str:
    total = view.total_bytes(gpu)
    return f"{mib(gpu.used)}/{mib(total) if total else '?'}"


def _power(view: View, gpu: KernelGpu) -> str:
    own = view.sensors_of(gpu).power_mw
    return or_dash(None if own is None else own / 1000, "W")


def _rate(name: str, text: Callable[[float | None], str] = duration) -> Callable[[View, KernelGpu, Slot], str]:
    return lambda view, gpu, slot: text(getattr(view.rates_of(slot), name))


def _share(name: str) -> Callable[[View, KernelGpu, Slot], str]:
    return lambda view, gpu, slot: percent(getattr(view.rates_of(slot), name), gpu.facts.estimated)


def _count(name: str) -> Callable[[View, KernelGpu, Slot], str]:
    return lambda view, gpu, slot: str(slot.stat.get(name, 0))


BY_NVML = "by NVML, at most 5 s old; -: no answer"
# fmt: off
GPU = {
    "gpu": Cell(Column("GPU", right=True), lambda view, gpu: str(gpu.index)),
    "name": Cell(Column("NAME", least=8, tail=False), lambda view, gpu: view.card_name(gpu).removeprefix("NVIDIA ")),
    "uuid": Cell(Column("UUID", drop=2), lambda view, gpu: gpu.uuid[:UUID_SHOWN]),
    "policy": Cell(Column("POLICY"), lambda view, gpu: gpu.facts.name),
    "slice": Cell(Column("SLICE", right=True, drop=4),
                  lambda view, gpu: f"{gpu.slice_us / 1000:g}ms" if gpu.slice_us else "-",
                  "length of a slice of weight 1"),
    "free": Cell(Column("FREE", right=True), lambda view, gpu: f"{gpu.free_weight}/{gpu.max_inst}",
                 "weight that no container has, of max_inst"),
    "inst": Cell(Column("INST", right=True, drop=1), lambda view, gpu: str(view.instances(gpu)), "containers"),
    "memory": Cell(Column("MEMORY MiB", right=True), _memory, "MiB charged to containers / of the card"),
    "util": Cell(Column("UTIL", right=True),
                 lambda view, gpu: or_dash(view.sensors_of(gpu).utilization_pct, "%"), BY_NVML),
    "temp": Cell(Column("TEMP", right=True, drop=3),
                 lambda view, gpu: or_dash(view.sensors_of(gpu).temperature_c, "C"), BY_NVML),
    "power": Cell(Column("POWER", right=True, drop=3), _power, BY_NVML),
}
SLOT = {
    "gpu": Cell(Column("GPU", right=True), lambda view, gpu, slot: str(gpu.index)),
    "container": Cell(Column("CONTAINER"), lambda view, gpu, slot: view.ids[slot.id]),
    "name": Cell(Column("NAME", least=8), lambda view, gpu, slot: view.title(slot) or "-"),
    "label": Cell(Column("NAME", least=12), lambda view, gpu, slot: view.title(slot) or view.labels[slot.id]),
    "weight": Cell(Column("WEIGHT", right=True),
                   lambda view, gpu, slot: f"{slot.weight}{'hp' if slot.highprio else ''}",
                   "slices per round; hp: high priority"),
    "allowed": Cell(Column("ALLOWED", right=True), lambda view, gpu, slot: percent(view.allowed_pct(slot)),
                    "most while all that have the GPU open have work; -: no limit"),
    "got": Cell(Column("GOT", right=True), _share("share_got_pct"),
                "part of the sample in which it could run; ~: estimated (soft)"),
    "10s": Cell(Column("10s", right=True, drop=3), _share("share_got_10s_pct"), "the same of ten seconds"),
    "wait": Cell(Column("WAIT", right=True, drop=2), _rate("wait_per_turn_us"), "mean time out of turn before a turn"),
    "p99": Cell(Column("P99", right=True, drop=2), _rate("wait_p99_us"), "99 of 100 waits for a turn were shorter"),
    "throt": Cell(Column("THROT", right=True, drop=1), _rate("throttled_pct", lambda value: or_dash(value, "%")),
                  "time out of turn, of the time with the GPU open"),
    "state": Cell(Column("STATE"), lambda view, gpu, slot: slot_state(gpu, slot),
                  "running, waiting (for its turn), idle (has not opened the GPU), frozen (weight 0), "
                  "dying (destroyed, not yet ended)"),
    "memory": Cell(Column("MEMORY MiB", right=True), lambda view, gpu, slot: f"{mib(slot.used)}/{mib(slot.limit)}",
                   "MiB charged / limit"),
    "bar": Cell(Column("", drop=1), lambda view, gpu, slot: bar((memory_pct(slot) or 0.0) / 100, BAR)),
    "peak": Cell(Column("PEAK", right=True, drop=2),
                 lambda view, gpu, slot: mib(slot.stat.get("peak_bytes", slot.used)), "most charged"),
    "refused": Cell(Column("REFUSED", right=True), _count("refused_allocs"), "allocations over the limit"),
    "calls": Cell(Column("CALLS", right=True), _count("refused_calls"), "calls refused by the call table"),
    "use": Cell(Column("MEM USAGE / LIMIT", right=True),
                lambda view, gpu, slot: f"{mib(slot.used)}MiB / {mib(slot.limit)}MiB"),
    "use_pct": Cell(Column("MEM %", right=True), lambda view, gpu, slot: percent(memory_pct(slot))),
    "pids": Cell(Column("PIDS", right=True), lambda view, gpu, slot: str(len(slot.pids) or NO_PIDS)),
}
# fmt: on
