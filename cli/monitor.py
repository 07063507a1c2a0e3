# SPDX-License-Identifier: MIT
"""cgpu-smi dmon and pmon: a line for each GPU or process at each interval, for a terminal or a log."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import click

from cgpu_common.app import COUNT, Command, FloatRange
from cgpu_common.model import KernelGpu, Slot, slot_state
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


class Field(NamedTuple):
    """@text: of (view, gpu), or of (view, gpu, slot, pid, bytes). @drop: a narrow terminal leaves out the smallest
    number above 0 first; 0: never."""

    name: str
    width: int
    unit: str
    drop: int
    text: Callable[..., str]


def _sensor(name: str, per: float = 1) -> Callable[[View, KernelGpu], str]:
    def text(view: View, gpu: KernelGpu) -> str:
        value = getattr(view.sensors_of(gpu), name)
        return or_dash(None if value is None else value / per)

    return text


def _running(view: View, gpu: KernelGpu) -> str:
    return str(sum(slot_state(gpu, slot) == "running" for slot in gpu.slots))


def _refused(view: View, gpu: KernelGpu) -> str:
    return str(sum(slot.stat.get("refused_allocs", 0) for slot in gpu.slots))


def _container(view: View, gpu: KernelGpu, slot: Slot, pid: int, size: int) -> str:
    return shorten(printable(view.names_of(slot).name or view.labels[slot.id]), NAME)


# fmt: off
DMON = (
    Field("gpu", 3, "Idx", 13, lambda view, gpu: str(gpu.index)),
    Field("pwr", 5, "W", 5, _sensor("power_mw", 1000)),
    Field("gtemp", 5, "C", 4, _sensor("temperature_c")),
    Field("util", 5, "%", 0, _sensor("utilization_pct")),
    Field("mem", 5, "%", 3, _sensor("memory_utilization_pct")),
    Field("sm", 5, "%", 2, _sensor("sm_active_pct")),
    Field("dram", 5, "%", 1, _sensor("dram_active_pct")),
    Field("policy", 10, "name", 9, lambda view, gpu: gpu.facts.name),
    Field("inst", 4, "n", 0, lambda view, gpu: str(view.instances(gpu))),
    Field("run", 4, "n", 7, _running),
    Field("fb", 7, "MiB", 0, lambda view, gpu: mib(gpu.used)),
    Field("limits", 7, "MiB", 10, lambda view, gpu: mib(gpu.limits or 0)),
    Field("total", 7, "MiB", 12, lambda view, gpu: mib(view.total_bytes(gpu)) if view.total_bytes(gpu) else "-"),
    Field("refused", 8, "n", 6, _refused),
)
PMON = (
    Field("gpu", 3, "Idx", 13, lambda view, gpu, slot, pid, size: str(gpu.index)),
    Field("pid", 8, "#", 0, lambda view, gpu, slot, pid, size: str(pid)),
    Field("container", NAME, "name", 0, _container),
    Field("got", 6, "%", 0, lambda view, gpu, slot, pid, size: or_dash(view.rates_of(slot).share_got_pct)),
    Field("sm", 4, "%", 2, lambda view, gpu, slot, pid, size: or_dash(view.use_of(gpu, pid)[0])),
    Field("mem", 4, "%", 3, lambda view, gpu, slot, pid, size: or_dash(view.use_of(gpu, pid)[1])),
    Field("fb", 7, "MiB", 0, lambda view, gpu, slot, pid, size: mib(size)),
    Field("state", 8, "word", 8, lambda view, gpu, slot, pid, size: slot_state(gpu, slot)),
    Field("command", 8, "name", 11, lambda view, gpu, slot, pid, size: printable(view.comm.get(pid, "-"))),
)
# fmt: on


def _kept(fields: Sequence[Field], most: int | None) -> list[int]:
    """The places of the fields that fit, behind the mark of two cells."""
    kept = list(range(len(fields)))
    for _, out_of in sorted((one.drop, place) for place, one in enumerate(fields) if one.drop):
        if most is None or 1 + sum(fields[place].width + 1 for place in kept) <= most:
            break
        kept.remove(out_of)
    return kept


def _line(fields: Sequence[Field], cells: Sequence[str], most: int | None, mark: str = "  ") -> str:
    kept = _kept(fields, most)
    words = [f"{cells[place]:>{fields[place].width}}" for place in kept]
    if most is not None and fields[kept[-1]].name == "command":
        words[-1] = shorten(words[-1], most - len(mark) - sum(len(word) + 1 for word in words[:-1]))
    return (mark + " ".join(words)).rstrip()


def _head(fields: Sequence[Field]) -> list[str]:
    rows = ([one.name for one in fields], [one.unit for one in fields])
    return [_line(fields, row, width(), "# ") for row in rows]


def device_lines(view: View) -> list[str]:
    return [_line(DMON, [one.text(view, gpu) for one in DMON], width()) for gpu in view.snapshot.gpus]


def process_lines(view: View) -> list[str]:
    """A GPU without processes has a line of dashes, as in nvidia-smi pmon."""
    lines = []
    for gpu in view.snapshot.gpus:
        there = [(view, gpu, slot, pid, size) for slot in gpu.slots for pid, size in slot.pids]
        rows = [[one.text(*place) for one in PMON] for place in there]
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
    _run(ctx, delay, count, device_lines, lambda: _head(DMON))


@click.command("pmon", cls=Command)
@_options
@click.pass_context
def pmon(ctx: click.Context, delay: float, count: int | None) -> None:
    """Print a line per process every second. The share is that of the process's container: time is not counted by
    process."""
    _run(ctx, delay, count, process_lines, lambda: _head(PMON))
