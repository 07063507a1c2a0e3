# SPDX-License-Identifier: MIT
"""cgpu gpu and cgpu policy: the GPUs with their settings, the policies and the shares of containers under them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import click

from cgpu_common import policies, proc
from cgpu_common.app import Group
from cgpu_common.exits import CgpuError, Exit
from cgpu_common.figures import rounded
from cgpu_common.model import KernelGpu
from cgpu_common.output import note, result
from cgpu_common.proc import Paths, parse_stat, read_node
from cgpu_common.share import allowed_pct

from . import change, collect, daemon, describe, refusals
from .admin import as_json_option, pass_paths
from .columns import folded, table
from .complete import gpu_words, policy_words
from .kernel import kernel
from .names import labels
from .render import percent
from .terminal import width
from .words import GPU


@click.group("gpu", cls=Group)
def gpu_group() -> None:
    """Show the GPUs and their settings."""


def _settings(paths: Paths, number: int) -> dict[str, str]:
    found = {}
    for name in describe.SETTINGS:
        try:
            found[name] = read_node(paths.proc / str(number) / name)
        except CgpuError:
            continue
    return found


def _run_state(paths: Paths, number: int) -> str | None:
    """Where the module reads which containers have work; None: its stat does not say."""
    try:
        return parse_stat(read_node(paths.proc / str(number) / "stat")).get("run_state_source")
    except CgpuError:
        return None


def _one(paths: Paths, number: int) -> KernelGpu:
    change.gpu_dir(paths, number)
    for gpu in proc.read_tree(paths).gpus:
        if gpu.index == number:
            return gpu
    raise CgpuError(Exit.NOT_FOUND, f"gpu {number}", "it has just gone", "cgpu gpu list shows the GPUs")


def _with_totals(paths: Paths, gpus: Sequence[KernelGpu]) -> list[KernelGpu]:
    """Before a GPU's first container the module does not know its memory, and NVML does."""
    if all(gpu.total for gpu in gpus):
        return list(gpus)
    view = collect.once(paths, None)
    return [replace(gpu, total=view.total_bytes(gpu)) for gpu in gpus]


@gpu_group.command("list")
@as_json_option
@pass_paths
def gpu_list(paths: Paths, as_json: bool) -> None:
    """List the GPUs: policy, containers, free weight, memory."""
    gpus = _with_totals(paths, proc.read_tree(paths).gpus)
    data = {"gpus": [describe.gpu_full_json(gpu, _settings(paths, gpu.index)) for gpu in gpus]}
    result(as_json, data, "\n".join(table(*describe.gpu_rows(gpus), width())))


@gpu_group.command("show")
@click.argument("number", type=GPU, metavar="GPU", shell_complete=gpu_words)
@as_json_option
@pass_paths
def gpu_show(paths: Paths, number: int, as_json: bool) -> None:
    """Show GPU N: settings, what differs from cgpu.toml, controls, run state, containers."""
    (gpu,), settings = _with_totals(paths, [_one(paths, number)]), _settings(paths, number)
    source = _run_state(paths, number)
    drift = daemon.drift(paths)
    own = None if drift is None else [row for row in drift if row.get("index") == number]
    data = describe.gpu_full_json(gpu, settings) | {"run_state_source": source, "drift": own}
    result(as_json, {"gpu": data}, describe.gpu_text(gpu, settings, own or (), source, width()))


# ---- policies ----


@click.group("policy", cls=Group)
def policy_group() -> None:
    """Show the policies and what they make of the weights in use; choose one."""


@policy_group.command("list")
@as_json_option
@pass_paths
def policy_list(paths: Paths, as_json: bool) -> None:
    """List the policies, what each does, and the GPUs that have it. Works without the module."""
    try:
        gpus: Sequence[KernelGpu] = proc.read_tree(paths).gpus
    except CgpuError as err:
        if err.code is not Exit.NO_MODULE:
            raise
        gpus = ()
    data = {"policies": describe.policy_json(gpus)}
    result(as_json, data, "\n".join(table(describe.POLICY_HEAD, describe.policy_rows(gpus), width())))


def _title(gpu: KernelGpu) -> str:
    return f"GPU {gpu.index}: {gpu.policy} ({gpu.facts.name}): {gpu.facts.about}; weight: {gpu.facts.weight}"


@policy_group.command("show")
@click.argument("number", type=GPU, metavar="[GPU]", required=False, shell_complete=gpu_words)
@as_json_option
@pass_paths
def policy_show(paths: Paths, number: int | None, as_json: bool) -> None:
    """Show the policy in force, of every GPU or of GPU N, with the share allowed to each container."""
    gpus = proc.read_tree(paths).gpus if number is None else (_one(paths, number),)
    lines, wide = [], width()
    for gpu in gpus:
        lines += folded(_title(gpu), wide)
        shown = labels(gpu.slots)
        for slot in gpu.slots:
            high = " hp" if slot.highprio else ""
            text = f"{shown[slot.id]}: weight {slot.weight}{high}, {percent(allowed_pct(gpu, slot))} allowed"
            lines += folded(text, wide, "  ", "    ")
    data = [
        {
            "gpu": gpu.index,
            "number": gpu.policy,
            "name": gpu.facts.name,
            "containers": [
                {
                    "id": one.id,
                    "name": one.name,
                    "weight": one.weight,
                    "share_allowed_pct": rounded(allowed_pct(gpu, one)),
                }
                for one in gpu.slots
            ],
        }
        for gpu in gpus
    ]
    result(as_json, {"gpus": data}, "\n".join(lines) or "no GPU")


def _set_all(paths: Paths, gpus: Sequence[KernelGpu], policy: int) -> None:
    """On all of these or on none."""
    done: list[KernelGpu] = []
    for gpu in gpus:
        try:
            kernel(paths).set_gpu(gpu.index, "policy", policy, f"set gpu {gpu.index} policy {policy}")
        except CgpuError as err:
            for earlier in reversed(done):
                try:
                    kernel(paths).set_gpu(earlier.index, "policy", earlier.policy, "undo")
                except CgpuError:
                    note(f"GPU {earlier.index} keeps policy {policy}: it could not be set back")
            raise refusals.of_gpu(paths, err, gpu.index, "policy", policy) from None
        done.append(gpu)


@policy_group.command("set")
@click.argument("policy", metavar="POLICY", shell_complete=policy_words)
@click.option("--gpu", type=GPU, metavar="GPU", multiple=True, shell_complete=gpu_words, help="Only on this GPU.")
@click.option("--dry-run", is_flag=True, help="Show what would change, and the equivalent echo.")
@click.option("-v", "--verbose", is_flag=True, help="Also print the equivalent echo.")
@as_json_option
@pass_paths
def policy_set(paths: Paths, policy: str, gpu: tuple[int, ...], dry_run: bool, verbose: bool, as_json: bool) -> None:
    """Set the policy (number or name) of all GPUs or of some, all or none; show the shares before and after."""
    number = change.node_value("policy", policy)
    chosen = [_one(paths, one) for one in dict.fromkeys(gpu)] if gpu else list(proc.read_tree(paths).gpus)
    if not chosen:
        raise CgpuError(Exit.NOT_FOUND, f"policy {policy}", "the module has found no GPU yet", "cgpu doctor")
    if not dry_run:
        _set_all(paths, chosen, number)
    lines, rows = [], []
    for one in chosen:
        shares = describe.share_changes(one, replace(one, policy=number))
        lines.append(f"gpu {one.index} policy: {one.policy} -> {number} ({policies.of(number).name})")
        lines += describe.share_lines(shares)
        lines += [f"  echo {number} > {paths.proc}/{one.index}/policy"] if dry_run or verbose else []
        rows.append(
            {"gpu": one.index, "before": one.policy, "after": number, "containers": describe.shares_json(shares)}
        )
    lines += ["dry run: nothing was changed, and the kernel has not checked the value"] if dry_run else []
    result(as_json, {"dry_run": dry_run, "changes": rows}, "\n".join(lines))
