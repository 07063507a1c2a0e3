# SPDX-License-Identifier: MIT
"""The commands that show something: version, status, ps, inspect."""

from __future__ import annotations

from dataclasses import asdict, replace

import click

from cgpu_common import proc, share
from cgpu_common.app import Command, FloatRange
from cgpu_common.output import result

from . import change, daemon, describe, render
from .admin import as_json_option, pass_paths
from .complete import container_words, gpu_words
from .terminal import width


@click.command("version", cls=Command)
@as_json_option
@pass_paths
def version(paths: proc.Paths, as_json: bool) -> None:
    """Show the version of every part, and what is missing."""
    from cgpu_common import versions

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
@click.option("--interval", type=FloatRange(0.01, 3600), default=1.0, show_default=True, metavar="S")
@click.option("--no-sample", is_flag=True, help="Do not wait: show the share since the container's start.")
@pass_paths
def status_command(paths: proc.Paths, as_json: bool, interval: float, no_sample: bool) -> None:
    """Show GPUs and containers; the same as cgpu-smi."""
    from . import status

    status.show(paths, status.Wanted(interval_s=None if no_sample else interval, as_json=as_json))


@click.command("ps", cls=Command)
@click.option("-q", "--quiet", is_flag=True, help="Only full ids, one line for each container.")
@click.option("--no-trunc", is_flag=True, help="Show full ids.")
@click.option("--gpu", type=click.IntRange(0), metavar="N", shell_complete=gpu_words, help="Only containers on GPU N.")
@as_json_option
@pass_paths
def ps(paths: proc.Paths, quiet: bool, no_trunc: bool, gpu: int | None, as_json: bool) -> None:
    """List containers, one line for each GPU they use."""
    snapshot = proc.read_tree(paths)
    if gpu is not None:
        change.gpu_dir(paths, gpu)
        snapshot = replace(snapshot, gpus=tuple(one for one in snapshot.gpus if one.index == gpu))
    got = share.shares(None, snapshot)
    rows = [
        {"gpu": gpu.index, **render.slot_json(gpu, slot, got.get((gpu.index, slot.dir)))}
        for gpu in snapshot.gpus
        for slot in gpu.slots
    ]
    ids = dict.fromkeys(slot.id for one in snapshot.gpus for slot in one.slots)
    text = "\n".join(ids) if quiet else render.ps_text(snapshot, no_trunc, width())
    if text or as_json:
        result(as_json, {"containers": rows}, text)


def inspected(paths: proc.Paths, key: str) -> describe.Inspected:
    container = change.find_container(paths, key)
    snapshot = proc.read_tree(paths)
    slots = [(gpu, slot) for gpu in snapshot.gpus for slot in gpu.slots if slot.id == container.id]
    rows = (daemon.status(paths) or {}).get("containers")
    own = [
        row
        for row in (rows if isinstance(rows, list) else [])
        if isinstance(row, dict) and row.get("id") == container.id
    ]
    names = {pid: name for _, slot in slots for pid, _ in slot.pids if (name := proc.process_name(paths, pid))}
    return describe.Inspected(container, proc.engine_name(paths, container.id), slots, own[0] if own else None, names)


@click.command("inspect", cls=Command)
@click.argument("container", metavar="ID", nargs=-1, required=True, shell_complete=container_words)
@as_json_option
@pass_paths
def inspect(paths: proc.Paths, container: tuple[str, ...], as_json: bool) -> None:
    """Show everything about containers: nodes, memory, compute, processes, cgpud's record."""
    found = [inspected(paths, key) for key in container]
    data = {"containers": [describe.inspect_json(one) for one in found]}
    result(as_json, data, "\n\n".join(describe.inspect_text(one) for one in found))
