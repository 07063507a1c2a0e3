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

from . import cells, collect
from .admin import as_json_option, pass_paths
from .cells import grid, memory_pct
from .columns import table
from .complete import container_words
from .overview import container_json, places
from .terminal import width
from .view import SORTS, View, chosen

NAMES = ("container", "name", "gpu", "got", "allowed", "p99", "use", "use_pct", "refused", "pids")
CHANGED: dict[str, dict[str, Any]] = {
    "container": {"head": "CONTAINER ID"},
    "got": {"head": "GPU %"},
    "p99": {"head": "WAIT P99", "drop": 3},
    "refused": {"drop": 1},
}
CLEAR = "\x1b[H\x1b[J"


#: Of a container in cgpu-smi --json.
KEPT = ("id", "name", "pod", "namespace", "refused_allocs",
        "share_got_pct", "share_allowed_pct", "wait_p99_us", "throttled_by_ceiling_pct")  # fmt: skip


def _json(view: View, gpu: KernelGpu, slot: Slot) -> dict[str, Any]:
    data = container_json(view, gpu, slot)
    memory = {"used_bytes": slot.used, "limit_bytes": slot.limit, "used_pct": rounded(memory_pct(slot))}
    rest = {"gpu": gpu.index, "memory": memory, "process_count": len(slot.pids)}
    return versioned({name: data[name] for name in KEPT} | rest)


def text(view: View, as_json: bool, columns: int | None) -> str:
    """A table, or a line of JSON for each container and GPU."""
    if as_json:
        return "\n".join(json.dumps(_json(*place)) for place in places(view))
    return "\n".join(table(*grid(cells.SLOT, NAMES, places(view), **CHANGED), columns))


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
