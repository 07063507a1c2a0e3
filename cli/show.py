# SPDX-License-Identifier: MIT
"""The commands that show something: version, status, ps, inspect."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import asdict, replace

import click

from cgpu_common import proc
from cgpu_common.app import Command
from cgpu_common.output import note, result

from . import change, daemon, describe, rates, render
from .admin import as_json_option, pass_paths
from .complete import container_words, gpu_words
from .overview import DRAINING
from .terminal import width
from .words import GPU

SAMPLE_S = 1.0  # of inspect


@click.command("version", cls=Command)
@as_json_option
@pass_paths
def version(paths: proc.Paths, as_json: bool) -> None:
    """Show the version of every part, and what is missing."""
    found = daemon.found_versions(paths)
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


@click.command("ps", cls=Command)
@click.option("-q", "--quiet", is_flag=True, help="Only full ids, one line for each container.")
@click.option("--no-trunc", is_flag=True, help="Show full ids.")
@click.option("--gpu", type=GPU, metavar="GPU", shell_complete=gpu_words, help="Only containers on this GPU.")
@as_json_option
@pass_paths
def ps(paths: proc.Paths, quiet: bool, no_trunc: bool, gpu: int | None, as_json: bool) -> None:
    """List containers, one line for each GPU they use."""
    snapshot = proc.read_tree(paths)
    if gpu is not None:
        change.gpu_dir(paths, gpu)
        snapshot = replace(snapshot, gpus=tuple(one for one in snapshot.gpus if one.index == gpu))
    rows = [{"gpu": gpu.index, **render.slot_json(gpu, slot, None)} for gpu in snapshot.gpus for slot in gpu.slots]
    ids = dict.fromkeys(slot.id for one in snapshot.gpus for slot in one.slots)
    text = "\n".join(ids) if quiet else render.ps_text(snapshot, no_trunc, width())
    if text or as_json:
        result(as_json, {"containers": rows, "draining": paths.drain.exists()}, text)
    if paths.drain.exists() and not (as_json or quiet):
        note(DRAINING)


def inspected(paths: proc.Paths, keys: Sequence[str]) -> list[describe.Inspected]:
    """Everything about these containers; their shares over a second, if one has the GPU open."""
    boxes = list({box.id: box for box in (change.find_container(paths, key) for key in keys)}.values())
    ids = {box.id for box in boxes}
    snapshots = [proc.read_tree(paths)]
    if any(slot.opened for gpu in snapshots[0].gpus for slot in gpu.slots if slot.id in ids and gpu.facts.limits):
        time.sleep(SAMPLE_S)
        snapshots.append(proc.read_tree(paths))
    found, now = rates.rates(snapshots), snapshots[-1]
    silence = ""
    try:
        status = daemon.ask(paths, "status")
    except daemon.Silence as silent:
        status, silence = None, f"{silent.why} ({silent.remedy})"
    followed = {daemon.kernel_id(row): row for row in daemon.rows(status, "containers")}
    out = []
    for box in boxes:
        slots = [(gpu, slot) for gpu in now.gpus for slot in gpu.slots if slot.id == box.id]
        pids = {pid for _, slot in slots for pid, _ in slot.pids}
        names = {pid: name for pid in pids if (name := proc.process_name(paths, pid))}
        shares = {gpu.index: found.get((gpu.index, slot.dir), rates.Rates()) for gpu, slot in slots}
        name = proc.engine_name(paths, box.id)
        out.append(describe.Inspected(box, name, slots, followed.get(box.id), silence, names, shares))
    return out


@click.command("inspect", cls=Command)
@click.argument("container", metavar="ID", nargs=-1, required=True, shell_complete=container_words)
@as_json_option
@pass_paths
def inspect(paths: proc.Paths, container: tuple[str, ...], as_json: bool) -> None:
    """Show everything about containers: nodes, memory, compute, processes, cgpud's record."""
    found = inspected(paths, container)
    data = {"containers": [describe.inspect_json(one) for one in found]}
    result(as_json, data, "\n\n".join(describe.inspect_text(one) for one in found))
