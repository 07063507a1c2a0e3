# SPDX-License-Identifier: MIT
"""cgpu stats: use of the GPUs by container, as docker stats shows that of the processors."""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from typing import Any

import click

from cgpu_common.app import Command
from cgpu_common.figures import rounded
from cgpu_common.model import KernelGpu, Slot
from cgpu_common.output import flush, out, versioned
from cgpu_common.proc import Paths

from . import collect
from .admin import as_json_option, pass_paths
from .columns import Column, table
from .complete import container_words
from .overview import container_json, duration
from .render import NO_PIDS, ids_of, mib, percent
from .terminal import width
from .view import SORTS, View, chosen

COLUMNS = (
    Column("CONTAINER ID"),
    Column("NAME", least=8),
    Column("GPU", right=True),
    Column("GPU %", right=True),
    Column("ALLOWED", right=True),
    Column("WAIT P99", right=True, drop=3),
    Column("MEM USAGE / LIMIT", right=True),
    Column("MEM %", right=True),
    Column("REFUSED", right=True, drop=1),
    Column("PIDS", right=True),
)
CLEAR = "\x1b[H\x1b[J"


def _memory_pct(slot: Slot) -> float | None:
    return 100 * slot.used / slot.limit if slot.limit else None


def _row(view: View, slot: Slot, shown_id: str) -> list[str]:
    return [
        shown_id,
        view.title(slot) or "-",
        str(slot.gpu),
        percent(view.rates_of(slot).share_got_pct),
        percent(view.allowed_pct(slot)),
        duration(view.rates_of(slot).wait_p99_us),
        f"{mib(slot.used)}MiB / {mib(slot.limit)}MiB",
        percent(_memory_pct(slot)),
        str(slot.stat.get("refused_allocs", 0)),
        str(len(slot.pids) or NO_PIDS),
    ]


#: Of a container in cgpu-smi --json.
KEPT = ("id", "name", "pod", "namespace", "refused_allocs",
        "share_got_pct", "share_allowed_pct", "wait_p99_us", "throttled_by_ceiling_pct")  # fmt: skip


def _json(view: View, gpu: KernelGpu, slot: Slot) -> dict[str, Any]:
    data = container_json(view, gpu, slot)
    memory = {"used_bytes": slot.used, "limit_bytes": slot.limit, "used_pct": rounded(_memory_pct(slot))}
    rest = {"gpu": gpu.index, "memory": memory, "process_count": len(slot.pids)}
    return versioned({name: data[name] for name in KEPT} | rest)


def text(view: View, as_json: bool, columns: int | None) -> str:
    """A table, or a line of JSON for each container and GPU."""
    slots = [(gpu, slot) for gpu in view.snapshot.gpus for slot in gpu.slots]
    if as_json:
        return "\n".join(json.dumps(_json(view, gpu, slot)) for gpu, slot in slots)
    ids = ids_of(view.snapshot)
    return "\n".join(table(COLUMNS, [_row(view, slot, ids[slot.id]) for _, slot in slots], columns))


@click.command("stats", cls=Command)
@click.argument("containers", metavar="[ID]...", nargs=-1, shell_complete=container_words)
@click.option("--no-stream", is_flag=True, help="Print once.")
@click.option("--format", "form", type=click.Choice(("table", "json")), default="table", show_default=True,
              help="json: a line for each container and GPU.")  # fmt: skip
@click.option("--sort", type=click.Choice(list(SORTS)), default="name", show_default=True, help="Order.")
@as_json_option
@pass_paths
def stats(paths: Paths, containers: Sequence[str], no_stream: bool, form: str, sort: str, as_json: bool) -> None:
    """Show each container's use of its GPUs, every second until interrupted."""
    in_json = as_json or form == "json"
    clear = CLEAR if sys.stdout.isatty() and not in_json and not no_stream else ""
    views = iter([collect.once(paths, 1.0)]) if no_stream else collect.stream(paths, 1.0)
    for view in views:
        found = text(chosen(view, (), containers, sort), in_json, width())
        if found:
            out(clear + found)
            flush()
