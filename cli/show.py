# SPDX-License-Identifier: MIT
"""The commands that show something: version, status, ps."""

from __future__ import annotations

from dataclasses import asdict

import click

from . import proc, render, share
from .admin import as_json_option, pass_paths
from .app import Command
from .output import result


@click.command("version", cls=Command)
@as_json_option
@pass_paths
def version(paths: proc.Paths, as_json: bool) -> None:
    """Show the version of every part, and what is missing."""
    from . import versions

    found = versions.collect(paths)
    rows = (
        ("package", found.package),
        ("module", found.module),
        ("core", found.core and " ".join([found.core, *(f"(also {other})" for other in found.other_cores)])),
        ("driver", found.driver),
        ("cgpud", found.daemon),
        ("cgpu-runtime", found.runtime),
    )
    lines = [f"{name:<13} {value or '-'}" for name, value in rows]
    lines += [f"missing: {what}" for what in found.missing]
    result(as_json, asdict(found), "\n".join(lines))


@click.command("status", cls=Command)
@as_json_option
@click.option("--interval", type=click.FloatRange(0.01, 3600), default=1.0, show_default=True, metavar="S")
@click.option("--no-sample", is_flag=True, help="Do not wait: show the share since the container's start.")
@pass_paths
def status_command(paths: proc.Paths, as_json: bool, interval: float, no_sample: bool) -> None:
    """Show GPUs and containers; the same as cgpu-smi."""
    from . import status

    status.show(paths, interval, not no_sample, as_json)


@click.command("ps", cls=Command)
@as_json_option
@pass_paths
def ps(paths: proc.Paths, as_json: bool) -> None:
    """List containers, one line for each GPU they use."""
    snapshot = proc.read_tree(paths)
    got = share.shares(None, snapshot)
    rows = [
        {"gpu": gpu.index, **render.slot_json(gpu, slot, got.get((gpu.index, slot.dir)))}
        for gpu in snapshot.gpus
        for slot in gpu.slots
    ]
    result(as_json, {"containers": rows}, render.ps_text(snapshot))
