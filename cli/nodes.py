# SPDX-License-Identifier: MIT
"""cgpu nodes: what is where on all nodes, what is free, and which pods wait."""

from __future__ import annotations

import json
import subprocess
from dataclasses import replace
from pathlib import Path

import click

from cgpu_common.app import Command
from cgpu_common.exits import CgpuError, Exit
from cgpu_common.output import out

from . import fleet, inspected, prometheus
from .admin import as_json_option
from .change import parse_size
from .columns import folded, printable, table
from .terminal import width

KUBECTL_S = 120
IN_FILE = click.Path(exists=True, dir_okay=False, path_type=Path)
WHYS_SHOWN = 3


def by_kubectl(program: str, context: str) -> fleet.Fleet:
    """By the plugin kubectl inspect cgpu. Raises CgpuError with its last line."""
    command = [program, "inspect", "cgpu", "-o", "json", *([f"--context={context}"] if context else [])]
    what = f"{program} inspect cgpu"
    try:
        done = subprocess.run(command, capture_output=True, timeout=KUBECTL_S, stdin=subprocess.DEVNULL, check=False)
    except FileNotFoundError:
        raise CgpuError(Exit.NOT_FOUND, program, "there is no such program", "install kubectl") from None
    except OSError as error:
        raise CgpuError(Exit.REFUSED, program, f"cannot be run: {error.strerror or error}", "--kubectl PATH") from None
    except subprocess.TimeoutExpired:
        raise CgpuError(Exit.REFUSED, what, f"no answer for {KUBECTL_S} s") from None
    if done.returncode:
        said = done.stderr.decode(errors="replace").strip().splitlines()
        last = printable(said[-1].strip() if said else f"exit status {done.returncode}")
        last = last.removeprefix("kubectl inspect cgpu: ").removeprefix("error: ")  # the plugin's own
        hint = "kubectl-inspect-cgpu must be in PATH: docs/user/kubernetes.md"
        if "unknown command" not in last:
            hint = f"{program} get nodes must work; --context and KUBECONFIG choose the cluster"
        raise CgpuError(Exit.REFUSED, what, last, hint)
    try:
        return inspected.of_kubernetes(json.loads(done.stdout.decode()))
    except UnicodeDecodeError:
        raise CgpuError(Exit.REFUSED, what, "its output is no UTF-8") from None
    except RecursionError:
        raise CgpuError(Exit.REFUSED, what, "its output is of another version: it is nested too deeply") from None
    except ValueError as error:
        raise CgpuError(Exit.REFUSED, what, printable(f"its output is of another version: {error}")) from None


def _size(_ctx: click.Context, _param: click.Parameter, value: str | None) -> int | None:
    if value is None:
        return None
    try:
        return parse_size(value)
    except ValueError:
        raise click.BadParameter(f"{value!r} is no size, as 6GiB or 512MiB") from None


@click.command("nodes", cls=Command)
@click.option("--prometheus", "url", envvar="CGPU_PROMETHEUS", metavar="URL",
              help="The figures of a Prometheus that scrapes cgpud [CGPU_PROMETHEUS].")  # fmt: skip
@click.option("--token-file", type=IN_FILE, metavar="FILE", help="Bearer token for it.")
@click.option("--ca-file", type=IN_FILE, metavar="FILE", help="Authorities of its certificate.")
@click.option("--match", default="", metavar='LABEL="VALUE",...', help="Only series with these labels.")
@click.option("--kubernetes", is_flag=True,
              help="Pods that wait, by kubectl inspect cgpu; nodes too without --prometheus.")  # fmt: skip
@click.option("--context", default="", help="Of kubectl.")
@click.option("--kubectl", "program", default="kubectl", envvar="CGPU_KUBECTL", help="The program [CGPU_KUBECTL].")
@click.option("--by", "view", type=click.Choice(fleet.VIEWS), default="nodes", show_default=True,
              help="A line for each.")  # fmt: skip
@click.option("--node", "names", multiple=True, metavar="PATTERN", help="Only these nodes, as gpu-1*; repeatable.")
@click.option("--state", "states", type=click.Choice(fleet.STATES), multiple=True,
              help="Only nodes in this state; repeatable.")  # fmt: skip
@click.option("--free", "free_bytes", callback=_size, metavar="SIZE",
              help="Only GPUs where one more container gets this much memory, on nodes that take some.")  # fmt: skip
@click.option("--pod", default="", metavar="PART", help="Only containers with this in namespace/pod/name.")
@click.option("--sort", type=click.Choice(fleet.SORTS), default="name", show_default=True, help="Order of nodes.")
@as_json_option
def nodes(
    url: str | None,
    token_file: Path | None,
    ca_file: Path | None,
    match: str,
    kubernetes: bool,
    context: str,
    program: str,
    view: str,
    names: tuple[str, ...],
    states: tuple[str, ...],
    free_bytes: int | None,
    pod: str,
    sort: str,
    as_json: bool,
) -> None:
    """Show all nodes: what is where, what is free, which pods wait.

    The figures are those of a Prometheus that scrapes cgpud on each node, or what kubectl inspect cgpu knows of the
    pods. Neither is read through this machine's module: it runs anywhere, and needs no privilege.
    """
    if not url and not kubernetes:
        raise click.UsageError("no source: --prometheus URL (or CGPU_PROMETHEUS), --kubernetes, or both")
    found = fleet.Fleet(())
    if url:
        token = prometheus.bearer(token_file) if token_file else ""
        found = prometheus.fleet(prometheus.Prometheus(url, token, ca_file), match)
    if kubernetes:
        known = by_kubectl(program, context)
        found = replace(found, waiting=known.waiting) if url else known
    shown = fleet.chosen(found, fleet.Wanted(names, states, free_bytes, pod, sort))
    if names and not fleet.chosen(found, fleet.Wanted(names)).nodes:
        raise CgpuError(Exit.NOT_FOUND, f"node {', '.join(names)}", f"is none of {len(found.nodes)}", "cgpu nodes")
    if as_json:
        out(json.dumps(fleet.as_json(shown), indent=2))
        return
    lines = [*table(*fleet.rows(shown, view), width()), "", *folded(fleet.total_line(shown), width())]
    for line in fleet.waiting_lines(shown, WHYS_SHOWN):
        lines += folded(line, width(), rest="    ")
    out("\n".join(lines))
