# SPDX-License-Identifier: MIT
"""cgpu-smi top: the live screen. The only module that imports rich, and only when it runs."""

from __future__ import annotations

import os
import select
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace

import click

from cgpu_common.app import COUNT, Command, FloatRange
from cgpu_common.exits import CgpuError, Exit
from cgpu_common.proc import Paths

from . import collect, status
from .topview import BLOCKS, State, Trail, frame, keys_of, press
from .view import SORTS, View, chosen


@contextmanager
def _keys(fd: int) -> Iterator[None]:
    """The terminal gives each key at once and does not show it."""
    import termios
    import tty

    before = termios.tcgetattr(fd)
    try:
        tty.setcbreak(fd)
        yield
    finally:
        termios.tcsetattr(fd, termios.TCSADRAIN, before)


def read_keys(fd: int, seconds: float) -> str:
    """The keys of the next seconds, as soon as there are any."""
    if not select.select([fd], [], [], max(0.0, seconds))[0]:
        return ""
    data = os.read(fd, 1024)
    if not data:
        return "q"  # the terminal is gone
    return keys_of(data.decode(errors="replace"))


def _can_draw() -> bool:
    try:
        BLOCKS.encode(sys.stdout.encoding or "ascii")
    except UnicodeEncodeError:
        return False
    return True


def screen(paths: Paths, wanted: status.Wanted, delay: float, count: int | None) -> None:
    """Draw until q or @count readings, one every @delay seconds. Raises CgpuError without rich."""
    try:
        from rich.console import Console
        from rich.live import Live
        from rich.text import Text
    except ImportError:
        raise CgpuError(
            Exit.NOT_FOUND, "top", "the Python package rich is not installed", "cgpu-smi -l 1 works without it"
        ) from None
    console, trail, fd = Console(), Trail(), sys.stdin.fileno()
    plain = not _can_draw()
    collector = collect.Collector(paths)
    collector.request()
    collector.tick()
    collector.wait(min(delay, 1.0))

    def read() -> View:
        found = chosen(collector.view(sample_s=min(delay, 1.0)), wanted.gpus, wanted.containers)
        trail.add(found)
        return found

    def drawn(view: View, state: State) -> Text:
        lines = frame(view, trail.series, state, console.width, console.height, plain)
        return Text("\n".join(lines), no_wrap=True, overflow="crop")

    view, state, frames = read(), State(sort=wanted.sort), 1
    with _keys(fd), Live(drawn(view, state), console=console, screen=True, auto_refresh=False) as live:
        due = time.monotonic() + delay
        while not state.quit and (count is None or frames < count):
            for key in read_keys(fd, due - time.monotonic()):
                gpus = view.snapshot.gpus
                lines = 4 * sum(1 + len(slot.pids) for gpu in gpus for slot in gpu.slots)
                state = press(state, key, [gpu.index for gpu in gpus], lines)
            if time.monotonic() >= due:
                due = time.monotonic() + delay
                frames += 1
                collector.request()
                view = view if state.paused else read()
            live.update(drawn(view, state), refresh=True)


@click.command("top", cls=Command)
@click.option("-d", "--delay", type=FloatRange(0.2, 60), default=1.0, show_default=True, metavar="S",
              help="Seconds between two readings.")  # fmt: skip
@click.option("-n", "--count", type=COUNT, metavar="N", help="End after N readings.")
@click.option("--sort", type=click.Choice(list(SORTS)), default="share", show_default=True, help="First order.")
@click.pass_context
def top(ctx: click.Context, delay: float, count: int | None, sort: str) -> None:
    """Show GPUs and containers on a live screen, with a sparkline of each one's share.

    Keys: ? help, q quit, s next order, / filter by name or id, g next GPU, p processes, o pods, t history, j and k or
    the arrows for what does not fit, space pause.
    Without a terminal it prints what cgpu-smi --loop prints, N times.
    """
    wanted: status.Wanted = replace(ctx.meta.get("cgpu.wanted", status.Wanted()), sort=sort, every_s=delay)
    if sys.stdin.isatty() and sys.stdout.isatty():
        screen(ctx.obj, wanted, delay, count)
    else:
        status.show(ctx.obj, wanted, count)
