# SPDX-License-Identifier: MIT
"""cgpu-smi dmon and pmon: a line for each GPU or process at each interval, for a terminal or a log."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from typing import Any

import click

from cgpu_common.app import COUNT, Command, FloatRange
from cgpu_common.model import KernelGpu, slot_state
from cgpu_common.output import flush, out
from cgpu_common.proc import Paths

from . import collect
from .cells import or_dash
from .columns import printable, shorten
from .render import mib
from .status import Wanted
from .terminal import width
from .view import View, chosen

HEAD_EVERY = 20  # lines
NAME = 14
DMON = (("gpu", 3), ("pwr", 5), ("gtemp", 5), ("util", 5), ("mem", 5), ("sm", 5), ("dram", 5), ("policy", 10),
        ("inst", 4), ("run", 4), ("fb", 7), ("limits", 7), ("total", 7), ("refused", 8))  # fmt: skip
DMON_UNITS = ("Idx", "W", "C", "%", "%", "%", "%", "name", "n", "n", "MiB", "MiB", "MiB", "n")
PMON = (("gpu", 3), ("pid", 8), ("container", NAME), ("got", 6), ("sm", 4), ("mem", 4), ("fb", 7), ("state", 8),
        ("command", 8))  # fmt: skip
PMON_UNITS = ("Idx", "#", "name", "%", "%", "%", "MiB", "word", "name")


#: The columns that a narrow terminal leaves out, the first ones first.
DROPPED = (
    "dram",
    "sm",
    "mem",
    "gtemp",
    "pwr",
    "refused",
    "run",
    "state",
    "policy",
    "limits",
    "command",
    "total",
    "gpu",
)


def _kept(columns: Sequence[tuple[str, int]], most: int | None) -> list[int]:
    """The places of the columns that fit, behind the mark of two cells."""
    kept = list(range(len(columns)))
    for name in DROPPED:
        if most is None or 1 + sum(columns[place][1] + 1 for place in kept) <= most:
            break
        kept = [place for place in kept if columns[place][0] != name]
    return kept


def _line(columns: Sequence[tuple[str, int]], cells: Sequence[str], most: int | None, mark: str = "  ") -> str:
    kept = _kept(columns, most)
    words = [f"{cells[place]:>{columns[place][1]}}" for place in kept]
    if most is not None and columns[kept[-1]][0] == "command":
        words[-1] = shorten(words[-1], most - len(mark) - sum(len(word) + 1 for word in words[:-1]))
    return (mark + " ".join(words)).rstrip()


def _head(columns: Sequence[tuple[str, int]], units: Sequence[str]) -> list[str]:
    rows = ([name for name, _ in columns], list(units))
    return [_line(columns, row, width(), "# ") for row in rows]


def _gpu_cells(view: View, gpu: KernelGpu) -> list[str]:
    own = view.sensors_of(gpu)
    total = view.total_bytes(gpu)
    running = sum(slot_state(gpu, slot) == "running" for slot in gpu.slots)
    return [
        str(gpu.index),
        or_dash(None if own.power_mw is None else own.power_mw / 1000),
        or_dash(own.temperature_c),
        or_dash(own.utilization_pct),
        or_dash(own.memory_utilization_pct),
        or_dash(own.sm_active_pct),
        or_dash(own.dram_active_pct),
        gpu.facts.name,
        str(view.instances(gpu)),
        str(running),
        mib(gpu.used),
        mib(gpu.limits or 0),
        mib(total) if total else "-",
        str(sum(slot.stat.get("refused_allocs", 0) for slot in gpu.slots)),
    ]


def device_lines(view: View) -> list[str]:
    return [_line(DMON, _gpu_cells(view, gpu), width()) for gpu in view.snapshot.gpus]


def process_lines(view: View) -> list[str]:
    """A GPU without processes has a line of dashes, as in nvidia-smi pmon."""
    lines = []
    for gpu in view.snapshot.gpus:
        rows = [
            [
                str(gpu.index),
                str(pid),
                shorten(printable(view.names_of(slot).name or view.labels[slot.id]), NAME),
                or_dash(view.rates_of(slot).share_got_pct),
                *(or_dash(value) for value in view.use_of(gpu, pid)),
                mib(size),
                slot_state(gpu, slot),
                printable(view.comm.get(pid, "-")),
            ]
            for slot in gpu.slots
            for pid, size in slot.pids
        ]
        lines += [_line(PMON, row, width()) for row in rows or [[str(gpu.index), *["-"] * (len(PMON) - 1)]]]
    return lines


def _run(
    ctx: click.Context,
    every_s: float,
    count: int | None,
    lines_of: Callable[[View], list[str]],
    head: Callable[[], list[str]],
) -> None:
    wanted: Wanted = ctx.meta["cgpu.wanted"]
    paths: Paths = ctx.obj
    since_head = HEAD_EVERY
    for view in itertools.islice(collect.stream(paths, every_s), count):
        lines = lines_of(chosen(view, wanted.gpus, wanted.containers, wanted.sort))
        if since_head >= HEAD_EVERY:
            lines, since_head = [*head(), *lines], 0
        since_head += len(lines)
        if lines:
            out("\n".join(lines))
            flush()


def _options(command: Any) -> Any:
    command = click.option("-c", "--count", type=COUNT, metavar="N", help="End after N times.")(command)
    return click.option(
        "-d", "--delay", type=FloatRange(0.1, 3600), default=1.0, show_default=True, metavar="S",
        help="Seconds between two lines.",
    )(command)  # fmt: skip


@click.command("dmon", cls=Command)
@_options
@click.pass_context
def dmon(ctx: click.Context, delay: float, count: int | None) -> None:
    """Print a line per GPU every second: power, temperature, utilisation, containers, memory, refusals."""
    _run(ctx, delay, count, device_lines, lambda: _head(DMON, DMON_UNITS))


@click.command("pmon", cls=Command)
@_options
@click.pass_context
def pmon(ctx: click.Context, delay: float, count: int | None) -> None:
    """Print a line per process every second. The share is that of the process's container: time is not counted by
    process."""
    _run(ctx, delay, count, process_lines, lambda: _head(PMON, PMON_UNITS))
