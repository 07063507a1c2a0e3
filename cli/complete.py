# SPDX-License-Identifier: MIT
"""Completion: containers, GPUs, policies and nodes for the shell, and the shell's script that requests them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from cgpu_common import policies
from cgpu_common.app import Command
from cgpu_common.exits import CgpuError
from cgpu_common.output import out
from cgpu_common.proc import Paths, containers, engine_name, gpu_name, read_node

from .names import label

if TYPE_CHECKING:
    from click.shell_completion import CompletionItem

SHELLS = ("bash", "zsh", "fish")


def _item(word: str, **more: Any) -> CompletionItem:
    from click.shell_completion import CompletionItem  # slow to import, and only a shell needs it

    return CompletionItem(word, **more)


def _paths(ctx: click.Context) -> Paths:
    params = ctx.find_root().params
    return Paths.below(params.get("root") or "/", params.get("proc"))


def container_words(ctx: click.Context, _param: click.Parameter, incomplete: str) -> list[CompletionItem]:
    """Names and ids of the containers; nothing if the tree cannot be read, as a shell shows no error here."""
    paths, found = _paths(ctx), []
    try:
        for one in containers(paths):
            name = engine_name(paths, one.id)
            gpus = ", ".join(f"GPU {number}" for number, _ in one.gpus)
            found += [_item(word, help=gpus) for word in (name, label(one.id)) if word]
    except (CgpuError, OSError):
        return []
    return [item for item in found if item.value.startswith(incomplete)]


def _gpu_dirs(paths: Paths) -> list[Path]:
    return sorted((path for path in paths.proc.iterdir() if path.name.isdecimal()), key=lambda path: int(path.name))


def gpu_words(ctx: click.Context, _param: click.Parameter, incomplete: str) -> list[CompletionItem]:
    paths = _paths(ctx)
    try:
        found = [_item(path.name, help=gpu_name(paths, read_node(path / "pci"))) for path in _gpu_dirs(paths)]
    except (CgpuError, OSError):
        return []
    return [item for item in found if item.value.startswith(incomplete)]


def policy_words(_ctx: click.Context, _param: click.Parameter, incomplete: str) -> list[CompletionItem]:
    return [_item(name, help=str(number)) for number, name in enumerate(policies.NAMES) if name.startswith(incomplete)]


def profile_words(_ctx: click.Context, _param: click.Parameter, incomplete: str) -> list[CompletionItem]:
    from .sim.model import profile_names

    return [_item(name) for name in profile_names() if name.startswith(incomplete)]


def field_words(table: str) -> Callable[[click.Context, click.Parameter, str], list[CompletionItem]]:
    """Completes the last field of a list: @table is a name in query.py."""

    def words(_ctx: click.Context, _param: click.Parameter, incomplete: str) -> list[CompletionItem]:
        from . import query

        before, comma, last = incomplete.rpartition(",")
        known: Mapping[str, query.Field] = getattr(query, table)
        return [_item(f"{before}{comma}{name}", help=one.about) for name, one in known.items() if name.startswith(last)]

    return words


def value_words(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[CompletionItem]:
    """Values of `cgpu set`, by the node before them."""
    node = ctx.params.get("node")
    if node == "policy":
        return policy_words(ctx, param, incomplete)
    words = {"uvm": ("deny", "account"), "highprio": ("0", "1"), "ipc": ("none",)}.get(str(node), ())
    return [_item(word) for word in words if word.startswith(incomplete)]


@click.command("completion", cls=Command)
@click.argument("shell", type=click.Choice(SHELLS))
def completion(shell: str) -> None:
    """Print the completion script of a shell, e.g. for ~/.bashrc: eval "$(cgpu completion bash)"."""
    from click.shell_completion import get_completion_class

    program = click.get_current_context().find_root().command
    found = get_completion_class(shell)
    assert found is not None
    out(found(program, {}, "cgpu", "_CGPU_COMPLETE").source())
