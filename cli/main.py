# SPDX-License-Identifier: MIT
"""cgpu: versions, status, the few changes, and the set-up of engines. Conventions in docs/user/cli.md."""

from __future__ import annotations

import errno
import json
from dataclasses import asdict
from pathlib import Path
from typing import Any

import click

from . import change, drain, events, proc, render, setup, share, simulate, status, upgrade, versions
from .app import App, make_paths, path_options, version_option

as_json_option = click.option("--json", "as_json", is_flag=True, help="Print JSON; errors too.")
pass_paths = click.make_pass_decorator(proc.Paths)


def _print(as_json: bool, data: Any, text: str) -> None:
    click.echo(json.dumps(data, indent=2) if as_json else text)


@click.group(cls=App, name="cgpu", context_settings={"help_option_names": ["-h", "--help"]})
@path_options
@version_option
@click.pass_context
def cgpu(ctx: click.Context, root: str, proc: str | None) -> None:
    """Share one NVIDIA GPU between containers."""
    ctx.obj = make_paths(root, proc)


@cgpu.command()
@as_json_option
@pass_paths
def version(paths: proc.Paths, as_json: bool) -> None:
    """Show the version of every part, and what is missing."""
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
    _print(as_json, asdict(found), "\n".join(lines))


@cgpu.command("status")
@as_json_option
@click.option("--interval", type=click.FloatRange(0.01, 3600), default=1.0, show_default=True, metavar="S")
@click.option("--no-sample", is_flag=True, help="Do not wait: show the share since the container's start.")
@pass_paths
def status_command(paths: proc.Paths, as_json: bool, interval: float, no_sample: bool) -> None:
    """Show GPUs and containers; the same as cgpu-smi."""
    status.show(paths, interval, not no_sample, as_json)


@cgpu.command()
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
    _print(as_json, {"containers": rows}, render.ps_text(snapshot))


@cgpu.group("set", cls=click.Group)
def set_group() -> None:
    """Change one node of a GPU or of a container, while it runs."""


@set_group.command("gpu")
@click.argument("number", type=click.IntRange(0), metavar="N")
@click.argument("node", type=click.Choice(change.GPU_NODES))
@click.argument("value")
@as_json_option
@pass_paths
def set_gpu(paths: proc.Paths, number: int, node: str, value: str, as_json: bool) -> None:
    """Set a node of GPU N, e.g. cgpu set gpu 0 policy 2."""
    before, after = change.set_gpu(paths, number, node, value)
    data = {"gpu": number, "node": node, "before": before, "after": after}
    _print(as_json, data, f"gpu {number} {node}: {before} -> {after}")


@set_group.command("container")
@click.argument("container", metavar="ID")
@click.argument("node", type=click.Choice(change.CONTAINER_NODES))
@click.argument("value")
@click.option("--gpu", type=click.IntRange(0), metavar="N", help="Only on GPU N; otherwise on all of its GPUs.")
@as_json_option
@pass_paths
def set_container(paths: proc.Paths, container: str, node: str, value: str, gpu: int | None, as_json: bool) -> None:
    """Set a node of container ID (an id, a prefix of it, or docker's name); all its GPUs or none."""
    done = change.set_container(paths, container, node, value, gpu)
    data = [{"gpu": number, "node": node, "before": before, "after": after} for number, before, after in done]
    lines = [f"container {container} gpu {number} {node}: {before} -> {after}" for number, before, after in done]
    _print(as_json, {"container": container, "changes": data}, "\n".join(lines))


@cgpu.command()
@click.argument("container", metavar="ID")
@click.option("--gpu", required=True, metavar="N[,N...]", help="GPUs of the container.")
@click.option("--memsize", required=True, metavar="SIZE[,SIZE...]", help="Limit: bytes, or with MiB or GiB.")
@click.option("--weight", metavar="W[,W...]", help="Portions of compute; default 1.")
@click.option("--highprio", is_flag=True, help="High priority.")
@click.option("--cookie", metavar="C", help="Chosen by the kernel if not given.")
@as_json_option
@pass_paths
def create(
    paths: proc.Paths,
    container: str,
    gpu: str,
    memsize: str,
    weight: str | None,
    highprio: bool,
    cookie: str | None,
    as_json: bool,
) -> None:
    """Create a container by hand (cgpud does this for container engines)."""
    sizes = ",".join(change.node_text("memsize", size) for size in memsize.split(","))
    wanted = {"gpu": gpu, "memsize": sizes, "weight": weight, "highprio": "1" if highprio else None, "cookie": cookie}
    options = {name: change.node_text(name, value) for name, value in wanted.items() if value and name != "memsize"}
    found = change.create(paths, container, {"gpu": options.pop("gpu"), "memsize": sizes, **options})
    text = f"created {container}" + (f" cookie={found.cookie} dir={found.dir}" if found else "")
    _print(as_json, {"created": asdict(found) if found else {"id": container}}, text)


@cgpu.command()
@click.argument("container", metavar="ID")
@click.option("--cookie", metavar="C", help="Only if the container has this cookie.")
@as_json_option
@pass_paths
def destroy(paths: proc.Paths, container: str, cookie: str | None, as_json: bool) -> None:
    """Destroy a container; files that are still open keep their memory until they are closed."""
    full_id, dying = change.destroy(paths, container, cookie)
    tail = ": dying, files or mappings still hold it" if dying else ""
    _print(as_json, {"destroyed": full_id, "dying": dying}, f"destroyed {full_id}{tail}")


timeout_option = click.option(
    "--timeout", type=click.FloatRange(0), metavar="S", help="Give up waiting after S seconds."
)


def _progress(line: str) -> None:
    click.echo(line, err=True)


@cgpu.command("drain")
@click.option("--wait", is_flag=True, help="Wait until the running containers have ended.")
@timeout_option
@click.option("--undo", is_flag=True, help="Allow containers to start again.")
@as_json_option
@pass_paths
def drain_command(paths: proc.Paths, wait: bool, timeout: float | None, undo: bool, as_json: bool) -> None:
    """Refuse new containers from now on, until --undo or a cold upgrade or the next boot."""
    if undo and (wait or timeout is not None):
        raise click.UsageError("--undo does not wait")
    changed = drain.undo(paths) if undo else drain.begin(paths)
    if wait:
        drain.wait(paths, timeout, _progress)
    there = drain.remaining(paths)
    was = " already" if not changed and not undo else "" if changed else " anyway"
    lines = ["containers may start" + was if undo else f"new containers are refused{was}, {len(there)} left"]
    lines += [] if undo else [f"  {drain.name_of(paths, one)}" for one in there]
    data = {"draining": drain.is_on(paths), "changed": changed, "containers": [drain.row(paths, one) for one in there]}
    _print(as_json, data, "\n".join(lines))


@cgpu.command("upgrade")
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
    paths: proc.Paths,
    version: str | None,
    cold: bool,
    wait: bool,
    timeout: float | None,
    folder: Path | None,
    as_json: bool,
) -> None:
    """Show the running core, the registered ones and the last swap; change it."""
    if version is not None and not upgrade.VERSION.fullmatch(version):
        raise click.UsageError(f"{version!r} is no version X.Y.Z")
    if version is not None and cold:
        raise click.UsageError("--to needs no end of the containers, --cold does: use one of them")
    if not cold and (wait or folder or timeout is not None):
        raise click.UsageError("--drain, --timeout and --from go with --cold")
    if cold:
        done = upgrade.cold(paths, folder, wait, timeout, _progress)
        _print(as_json, asdict(done), f"cgpu_km {done.before or '-'} -> {done.after}")
    elif version is not None:
        before, after = upgrade.hot(paths, version)
        _print(as_json, {"before": before, "after": after}, f"core {before} -> {after}")
    else:
        found = upgrade.registered(paths)
        lines = [f"running {found.active}", *(f"ready   {other}" for other in found.others)]
        if found.last:
            result = "ok" if not found.last.result else f"refused ({errno.errorcode.get(found.last.result, '?')})"
            lines.append(f"last    {found.last.version} {result}: {found.last.why}")
        _print(as_json, asdict(found), "\n".join(lines))


cgpu.add_command(events.events)
cgpu.add_command(setup.setup)
cgpu.add_command(simulate.simulate)


def main() -> None:
    cgpu.main(prog_name="cgpu")
