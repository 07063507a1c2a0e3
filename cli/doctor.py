# SPDX-License-Identifier: MIT
"""cgpu doctor: what keeps containers of this node from their slices, and the remedy for each."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import click

from cgpu_common.app import Command, OutFile
from cgpu_common.exits import Exit
from cgpu_common.output import result
from cgpu_common.pages import located
from cgpu_common.proc import Paths

from .admin import as_json_option, pass_paths
from .checks import run
from .columns import folded
from .facts import OK, PROBLEM, WARNING, Finding
from .terminal import width

MARKS = {OK: "ok", WARNING: "warning", PROBLEM: "PROBLEM"}

NARROW = 60  # columns of a terminal below which a finding has no columns


def text(found: Sequence[Finding], columns: int | None) -> str:
    lines = []
    for one in found:
        mark = MARKS.get(one.status, "-")
        if columns is not None and columns < NARROW:
            lines += folded(one.text, columns, f"{mark} {one.check}: ", "  ")
            lines += folded(one.remedy, columns, "  -> ", "     ") if one.remedy else []
            continue
        lines += folded(one.text, columns, f"{mark:<8} {one.check:<18} ", " " * 28)
        lines += folded(one.remedy, columns, f"{'':<27} -> ", " " * 31) if one.remedy else []
    counts = [sum(one.status == status for one in found) for status in (PROBLEM, WARNING)]
    lines.append(f"{counts[0]} problem{'s' * (counts[0] != 1)}, {counts[1]} warning{'s' * (counts[1] != 1)}")
    return "\n".join(lines)


@click.command("doctor", cls=Command)
@click.option(
    "--bundle",
    type=OutFile(),
    metavar="FILE.tar.gz",
    help="Also write a report of the node for a bug report, without secrets.",
)
@as_json_option
@pass_paths
@click.pass_context
def doctor(ctx: click.Context, paths: Paths, as_json: bool, bundle: Path | None) -> None:
    """Check everything that a container's slice needs. Exit 7 if there is a problem."""
    from . import node

    found = [replace(one, remedy=located(one.remedy)) for one in run(node.read(paths))]
    problems = sum(one.status == PROBLEM for one in found)
    data: dict[str, Any] = {"problems": problems, "findings": [asdict(one) for one in found]}
    lines = [text(found, width())]
    if bundle is not None:
        from . import bundle as report

        count = report.write(paths, bundle, found)
        data["bundle"] = {"file": str(bundle), "files": count}
        lines.append(f"wrote {bundle}, {count} files: read it before you send it")
    result(as_json, data, "\n".join(lines))
    ctx.exit(int(Exit.PROBLEMS) if problems else 0)
