# SPDX-License-Identifier: MIT
"""Every command below a click group; cgpu simulate, which needs no tree; what a refusal looks like."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import click
from click.testing import CliRunner, Result

from cgpu_cli.main import cgpu
from cgpu_common.exits import Exit


def leaves(group: click.Command, path: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], click.Command]]:
    """The commands, and the groups themselves."""
    yield path, group
    if isinstance(group, click.Group):
        ctx = click.Context(group)
        for name in group.list_commands(ctx):
            child = group.get_command(ctx, name)
            assert child is not None
            yield from leaves(child, (*path, name))


def refused(result: Result, why: str = "", code: int = Exit.USAGE) -> str:
    """One line on standard error, which it gives, and nothing on standard output."""
    assert (result.exit_code, result.stdout) == (code, ""), result.output
    assert why in result.stderr and result.stderr.count("\n") == 1, result.stderr
    return result.stderr


def simulate(*argv: str) -> Result:
    return CliRunner().invoke(cgpu, ["simulate", *argv], prog_name="cgpu")


def simulated(*argv: str) -> list[dict[str, Any]]:
    """The GPUs of a simulation's JSON."""
    result = simulate(*argv, "--json")
    assert result.exit_code == 0, result.output
    data = json.loads(result.stdout)
    assert data["simulated"] is True
    gpus: list[dict[str, Any]] = data["gpus"]
    return gpus
