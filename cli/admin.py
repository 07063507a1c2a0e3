# SPDX-License-Identifier: MIT
"""The commands that change something: set, create, destroy, drain, upgrade."""

from __future__ import annotations

import errno
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import click

from cgpu_common import policies
from cgpu_common.app import Command, FloatRange, Group
from cgpu_common.kernel_abi import (
    OVERCOMMIT_MAX,
    OVERCOMMIT_MIN,
    PRIO_RATIO_MAX,
    PRIO_RATIO_MIN,
    SLICE_US_MAX,
    SLICE_US_MIN,
)
from cgpu_common.model import MIB, Container, Slot
from cgpu_common.output import note, result
from cgpu_common.proc import Paths

from . import change
from .change import Planned
from .complete import container_words, gpu_words, value_words
from .describe import share_lines, shares_json
from .words import GPU

as_json_option = click.option("--json", "as_json", is_flag=True, help="Print JSON; errors too.")
pass_paths = click.make_pass_decorator(Paths)


dry_run_option = click.option(
    "--dry-run", is_flag=True, help="Show the shares before and after and the equivalent echo; change nothing."
)
verbose_option = click.option(
    "-v", "--verbose", is_flag=True, help="Also print the shares before and after and the equivalent echo."
)


def explained(one: Planned) -> list[str]:
    """The shares before and after, and the echo."""
    return [*share_lines(one.shares), f"  echo {one.after} > {one.path}"]


def preview(planned: Sequence[Planned], as_json: bool) -> None:
    """The output of --dry-run. The kernel has not checked the values."""
    lines, rows = [], []
    for one in planned:
        node = one.path.name
        before, after = (change.shown_value(node, text) for text in (one.before, one.after))
        lines.append(f"gpu {one.gpu} {node}: {before} -> {after}")
        lines += explained(one)
        rows.append(
            {
                "gpu": one.gpu,
                "node": one.path.name,
                "before": one.before,
                "after": one.after,
                "shares": shares_json(one.shares),
            }
        )
    lines.append("dry run: nothing was changed, and the kernel has not checked the value")
    result(as_json, {"dry_run": True, "changes": rows}, "\n".join(lines))


GPU_EPILOG = f"""\b
NODE, its values, what it is:
  policy           0 to {len(policies.NAMES) - 1} or a name: how time is divided (cgpu policy list)
  max_inst         {policies.MAX_INST_RANGE}: slices and most containers
  prio_ratio       {PRIO_RATIO_MIN} to {PRIO_RATIO_MAX} percent: most time of high priority beside others
  slice_us         {SLICE_US_MIN} to {SLICE_US_MAX} us: slice of weight 1; 0 or auto: chosen
  uvm              deny or account: managed memory is refused, or charged
  overcommit       {OVERCOMMIT_MIN} to {OVERCOMMIT_MAX} percent of the card: most that limits add up to
  default_memsize  1MiB or more, 0: that of all GPUs; for slices made by hand
"""
CONTAINER_EPILOG = """\b
NODE, its values, what it is:
  weight        0 to max_inst: slices per round; 0: no compute
  ceiling       weight to max_inst, 0: none; most slices per round (burst)
  memsize       1MiB or more: limit of GPU memory (bytes, 6GiB, 6Gi, 512MiB)
  highprio      0 or 1: runs before the others, up to prio_ratio
  host_memsize  1MiB or more, 0: none; limit of system memory of the driver
  ipc           a name, or none: containers of one name may share memory
"""


@click.group("set", cls=Group)
def set_group() -> None:
    """Change one node of a GPU or of a container, while it runs."""


@set_group.command("gpu", epilog=GPU_EPILOG)
@click.argument("number", type=GPU, metavar="GPU", shell_complete=gpu_words)
@click.argument("node", metavar="NODE", type=click.Choice(change.GPU_NODES))
@click.argument("value", shell_complete=value_words)
@dry_run_option
@verbose_option
@as_json_option
@pass_paths
def set_gpu(paths: Paths, number: int, node: str, value: str, dry_run: bool, verbose: bool, as_json: bool) -> None:
    """Set a node of GPU N, e.g. cgpu set gpu 0 policy 2."""
    planned = change.plan_gpu(paths, number, node, value) if dry_run or verbose else []
    if dry_run:
        preview(planned, as_json)
        return
    before, after = change.set_gpu(paths, number, node, value)
    notes = []
    if node == "default_memsize":
        notes.append("for containers of engines only with default_memsize_mib in [gpu] of cgpu.toml")
    data = {"gpu": number, "node": node, "before": before, "after": after, "notes": notes}
    shown = " -> ".join(change.shown_value(node, text) for text in (before, after))
    lines = [f"gpu {number} {node}: {shown}", *(line for one in planned for line in explained(one))]
    result(as_json, data, with_notes(lines, notes))


@set_group.command("container", epilog=CONTAINER_EPILOG)
@click.argument("container", metavar="ID", shell_complete=container_words)
@click.argument("node", metavar="NODE", type=click.Choice(change.CONTAINER_NODES))
@click.argument("value", shell_complete=value_words)
@click.option("--gpu", type=GPU, metavar="GPU", help="Only on this GPU; otherwise on all of its GPUs.")
@dry_run_option
@verbose_option
@as_json_option
@pass_paths
def set_container(
    paths: Paths, container: str, node: str, value: str, gpu: int | None, dry_run: bool, verbose: bool, as_json: bool
) -> None:
    """Set a node of container ID (an id, a prefix of it, or docker's name); all its GPUs or none."""
    planned = change.plan_container(paths, container, node, value, gpu) if dry_run or verbose else []
    if dry_run:
        preview(planned, as_json)
        return
    done = change.set_container(paths, container, node, value, gpu)
    data = [{"gpu": number, "node": node, "before": before, "after": after} for number, before, after in done]
    lines = [
        f"container {container}{f' gpu {number}' * (node not in change.OF_CONTAINER)} {node}: "
        f"{' -> '.join(change.shown_value(node, text) for text in texts)}"
        for number, *texts in (done[:1] if node in change.OF_CONTAINER else done)
    ]
    lines += [line for one in planned for line in explained(one)]
    notes = change.effects(paths, [(number, node, after) for number, _, after in done])
    notes += change.over_the_limit(paths, container, [number for number, *_ in done]) if node == "memsize" else []
    result(as_json, {"container": container, "changes": data, "notes": notes}, with_notes(lines, notes))


def with_notes(lines: Sequence[str], notes: Sequence[str]) -> str:
    return "\n".join([*lines, *(f"note: {one}" for one in notes)])


# ---- create and destroy ----


def _listed_json(one: Container) -> dict[str, Any]:
    own = ("id", "cookie", "dir", "major", "ctl_minor", "uvm_minor", "dying", "gpus")
    return {name: getattr(one, name) for name in own} | {"cookie": f"{one.cookie:#x}"}


def _granted_json(one: Slot) -> dict[str, Any]:
    return {
        "gpu": one.gpu,
        "weight": one.weight,
        "limit_bytes": one.limit,
        "highprio": one.highprio,
        "ceiling": one.ceiling,
    }


def _created(container_id: str, found: Container | None, slots: Sequence[Slot], notes: Sequence[str]) -> str:
    tail = f" cookie={found.cookie:#x} dir={found.dir}" if found else ""
    lines = [
        f"  GPU {one.gpu}: {one.limit // MIB} MiB, weight {one.weight}"
        f"{f', ceiling {one.ceiling}' if one.ceiling else ''}{', high priority' if one.highprio else ''}"
        for one in slots
    ]
    return with_notes([f"created {container_id}{tail}", *lines], notes)


@click.command("create", cls=Command)
@click.argument("container", metavar="ID")
@click.option(
    "--gpu", required=True, metavar="N[,N...]", help="GPUs of the container: numbers, UUIDs or PCI addresses."
)
@click.option("--memsize", required=True, metavar="SIZE[,SIZE...]", help="Limit: bytes, or with MiB or GiB.")
@click.option("--weight", metavar="W[,W...]", help="Slices per round; default 1.")
@click.option("--ceiling", metavar="C[,C...]", help="Most slices per round under policy 6; default 0, none.")
@click.option("--allow-less", is_flag=True, help="If less weight than that is free, take what is free, even none.")
@click.option("--highprio", is_flag=True, help="High priority.")
@click.option("--cookie", metavar="C", help="Chosen by the kernel if not given.")
@as_json_option
@pass_paths
def create(
    paths: Paths,
    container: str,
    gpu: str,
    memsize: str,
    weight: str | None,
    ceiling: str | None,
    allow_less: bool,
    highprio: bool,
    cookie: str | None,
    as_json: bool,
) -> None:
    """Create a container by hand (cgpud does this for container engines), and show what it got."""
    context = click.get_current_context()
    words = (word if word.lstrip("-").isdecimal() else str(GPU.convert(word, None, context)) for word in gpu.split(","))
    slots = change.new_slots(",".join(words), memsize, weight, highprio, ceiling)
    number = change.parse_cookie(cookie) if cookie is not None else None
    found, granted = change.create(paths, container, slots, number, weight is not None, allow_less)
    notes = change.effects(paths, [(one.gpu, "weight", str(one.weight)) for one in granted])
    notes += change.effects(paths, [(one.gpu, "highprio", "1") for one in granted if one.highprio])
    notes += change.effects(paths, [(one.gpu, "ceiling", str(one.ceiling)) for one in granted])
    about = _listed_json(found) if found else {"id": container}
    data = {"created": {**about, "slots": [_granted_json(one) for one in granted]}, "notes": notes}
    result(as_json, data, _created(container, found, granted, notes))


@click.command("destroy", cls=Command)
@click.argument("container", metavar="ID", shell_complete=container_words)
@click.option("--cookie", metavar="C", help="Only if the container has this cookie.")
@as_json_option
@pass_paths
def destroy(paths: Paths, container: str, cookie: str | None, as_json: bool) -> None:
    """Destroy a container, and wait for its end, 2 s at most. What a dma-buf still holds is in /proc/cgpu_km/ended."""
    number = change.parse_cookie(cookie) if cookie is not None else None
    full_id, dying = change.destroy(paths, container, number)
    tail = ": dying, a call of it has not returned" if dying else ""
    result(as_json, {"destroyed": full_id, "dying": dying}, f"destroyed {full_id}{tail}")


# ---- drain and upgrade ----


timeout_option = click.option("--timeout", type=FloatRange(0), metavar="S", help="Give up waiting after S seconds.")


def _draining(paths: Paths, changed: bool, as_json: bool, on: bool) -> None:
    """Print whether containers may start, and which ones are left."""
    from . import drain

    there = drain.remaining(paths)
    was = "" if changed else " already" if on else " anyway"
    lines = [f"new slices are refused{was}, {len(there)} left" if on else "containers may start" + was]
    lines += [f"  {name}" for name in drain.names_of(paths, there)] if on else []
    data = {"draining": drain.is_on(paths), "changed": changed, "containers": [drain.row(paths, one) for one in there]}
    result(as_json, data, "\n".join(lines))


@click.command("cordon", cls=Command)
@as_json_option
@pass_paths
def cordon(paths: Paths, as_json: bool) -> None:
    """Refuse new slices from now on, until cgpu uncordon, a cold upgrade or the next boot."""
    from . import drain

    _draining(paths, drain.begin(paths), as_json, True)


@click.command("uncordon", cls=Command)
@as_json_option
@pass_paths
def uncordon(paths: Paths, as_json: bool) -> None:
    """Allow containers to start again."""
    from . import drain

    _draining(paths, drain.undo(paths), as_json, False)


@click.command("drain", cls=Command)
@click.option("--wait", is_flag=True, help="Wait until the running containers have ended. None is ended.")
@timeout_option
@as_json_option
@pass_paths
def drain_command(paths: Paths, wait: bool, timeout: float | None, as_json: bool) -> None:
    """Cordon the node and list the containers that are left; with --wait, wait for their end."""
    from . import drain

    if timeout is not None and not wait:
        raise click.UsageError("--timeout goes with --wait")
    changed = drain.begin(paths)
    if wait:
        drain.wait(paths, timeout, note)
    _draining(paths, changed, as_json, True)


@click.command("upgrade", cls=Command)
@click.option(
    "--to", "version", metavar="VERSION", help="Make this registered core the active one, under running containers."
)
@click.option("--cold", is_flag=True, help="Unload cgpu_km and its cores and load them again; only without containers.")
@click.option("--drain", "wait", is_flag=True, help="With --cold: first wait for the end of the containers.")
@timeout_option
@click.option(
    "--from",
    "folder",
    type=click.Path(exists=True, file_okay=False, path_type=Path),
    metavar="DIR",
    help="With --cold: load the modules' files from DIR, not those that modprobe finds.",
)
@as_json_option
@pass_paths
def upgrade_command(
    paths: Paths,
    version: str | None,
    cold: bool,
    wait: bool,
    timeout: float | None,
    folder: Path | None,
    as_json: bool,
) -> None:
    """Show the running core, the registered ones and the last swap; change it."""
    from . import upgrade

    if version is not None and not upgrade.VERSION.fullmatch(version):
        raise click.UsageError(f"{version!r} is no version X.Y.Z")
    if version is not None and cold:
        raise click.UsageError("--to needs no end of the containers, --cold does: use one of them")
    if not cold and (wait or folder or timeout is not None):
        raise click.UsageError("--drain, --timeout and --from go with --cold")
    if cold:
        done = upgrade.cold(paths, folder, wait, timeout, note)
        result(as_json, asdict(done), f"cgpu_km {done.before or '-'} -> {done.after}")
    elif version is not None:
        before, after = upgrade.hot(paths, version)
        result(as_json, {"before": before, "after": after}, f"core {before} -> {after}")
    else:
        found = upgrade.registered(paths)
        lines = [f"running {found.active}", *(f"ready   {other}" for other in found.others)]
        if found.last:
            outcome = "ok" if not found.last.result else f"refused ({errno.errorcode.get(found.last.result, '?')})"
            lines.append(f"last    {found.last.version} {outcome}: {found.last.why}")
        result(as_json, asdict(found), "\n".join(lines))
