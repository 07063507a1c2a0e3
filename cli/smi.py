# SPDX-License-Identifier: MIT
"""cgpu-smi: like nvidia-smi, for the containers that share a GPU.

Starts fast: reads text files only, and cgpud's socket. It imports neither NVML nor netlink; `top` imports its library
when it runs.
"""

from __future__ import annotations

from typing import Any

import click
from click.core import ParameterSource

from cgpu_common.app import App, FloatRange, make_paths, path_options, version_option
from cgpu_common.output import out

from .complete import container_words, field_words, gpu_words

COMMANDS = {
    "dmon": (
        "cgpu_cli.monitor",
        "dmon",
        "Print a line per GPU every second: power, temperature, utilisation, containers, memory, refusals.",
    ),
    "pmon": ("cgpu_cli.monitor", "pmon", "Print a line per process every second."),
    "top": ("cgpu_cli.top", "top", "Show GPUs and containers on a live screen, with a sparkline of each one's share."),
}
SORTS = ("name", "share", "memory", "weight")  # of view.py, which is not imported for the options


class _Smi(App):
    """Without a command it shows the status instead of the help."""

    def invoke(self, ctx: click.Context) -> Any:
        return click.Group.invoke(self, ctx)

    def format_epilog(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """The columns, by their own words."""
        from . import cells, overview

        of_slots = (*overview.COMPUTE, *overview.MEMORY)
        for title, known, names in (("GPUs", cells.GPU, overview.GPU_NAMES), ("containers", cells.SLOT, of_slots)):
            with formatter.section(f"Columns of {title}"):
                shown = [known[name] for name in names if known[name].legend]
                formatter.write_dl([(one.column.head.removesuffix(" MiB"), one.legend) for one in shown])


def _show_fields(table: str) -> Any:
    def show(ctx: click.Context, _param: click.Parameter, value: bool) -> None:
        if value and not ctx.resilient_parsing:
            from . import query

            out(query.help_text(getattr(query, table)))
            ctx.exit()

    return show


@click.group(
    cls=_Smi,
    name="cgpu-smi",
    lazy=COMMANDS,
    context_settings={"help_option_names": ["-h", "--help"]},
)
@click.option("--json", "as_json", is_flag=True, help="Print JSON (docs/reference/cgpu-smi.schema.json).")
@click.option(
    "--interval", type=FloatRange(0.01, 3600), default=1.0, show_default=True, metavar="S", help="Sample for S s."
)
@click.option("--no-sample", is_flag=True, help="Do not wait: without shares and waits.")
@click.option(
    "-l",
    "--loop",
    type=FloatRange(0.1, 86400),
    is_flag=False,
    flag_value=5.0,
    metavar="[SEC]",
    help="Again every SEC seconds, 5 if not given, until interrupted. With --json a line each.",
)
@click.option("-i", "--id", "gpus", metavar="GPU,...", shell_complete=gpu_words,
              help="Only these GPUs: number, UUID or its beginning, PCI address.")  # fmt: skip
@click.option("-c", "--container", "containers", metavar="ID,...", shell_complete=container_words,
              help="Only these containers: id or its beginning, or name.")  # fmt: skip
@click.option("--sort", type=click.Choice(SORTS), default="name", show_default=True, help="Order of containers.")
@click.option("-q", "--query", "full", is_flag=True, help="Print everything there is, a line for each value.")
@click.option("-x", "--xml-format", "xml", is_flag=True, help="With -q: as XML.")
@click.option("-L", "--list", "list_only", is_flag=True, help="List the GPUs, and their containers.")
@click.option(
    "--query-gpu",
    metavar="FIELD,...",
    shell_complete=field_words("GPU_FIELDS"),
    help="Print these fields of GPUs as CSV.",
)
@click.option("--query-container", metavar="FIELD,...", shell_complete=field_words("CONTAINER_FIELDS"),
              help="Print these fields of containers as CSV.")  # fmt: skip
@click.option("--format", "form", default="csv", metavar="csv[,noheader][,nounits]", help="Of the queries.")
@click.option("--help-query-gpu", is_flag=True, is_eager=True, expose_value=False,
              callback=_show_fields("GPU_FIELDS"), help="List the fields of GPUs.")  # fmt: skip
@click.option("--help-query-container", is_flag=True, is_eager=True, expose_value=False,
              callback=_show_fields("CONTAINER_FIELDS"), help="List the fields of containers.")  # fmt: skip
@path_options
@version_option
@click.pass_context
def smi(
    ctx: click.Context,
    as_json: bool,
    interval: float,
    no_sample: bool,
    loop: float | None,
    gpus: str | None,
    containers: str | None,
    sort: str,
    full: bool,
    xml: bool,
    list_only: bool,
    query_gpu: str | None,
    query_container: str | None,
    form: str,
    root: str,
    proc: str | None,
) -> None:
    """Show GPUs and the containers that share them: share, memory, processes, state."""
    from . import status

    wanted = status.Wanted(
        interval_s=None if no_sample else interval,
        every_s=loop,
        gpus=status.words(gpus),
        containers=status.words(containers),
        sort=sort,
        as_json=as_json,
        full=full,
        xml=xml,
        list_only=list_only,
        query_gpu=query_gpu,
        query_container=query_container,
        format=form,
    )
    if ctx.invoked_subcommand and (
        as_json or full or xml or list_only or query_gpu or query_container or loop is not None
    ):
        name = ctx.invoked_subcommand
        raise click.UsageError(f"{name} has a form of its own: no --json, -q, -L, --query-… or --loop")
    given = [name for name in ("form", "interval") if ctx.get_parameter_source(name) is ParameterSource.COMMANDLINE]
    if "form" in given and not (query_gpu or query_container):
        raise click.UsageError("--format goes with --query-gpu and --query-container")
    if "interval" in given and no_sample:
        raise click.UsageError("--interval and --no-sample exclude each other")
    ctx.obj = paths = make_paths(root, proc)
    ctx.meta["cgpu.wanted"] = wanted
    if ctx.invoked_subcommand is None:
        status.show(paths, wanted)


def main() -> None:
    smi.main(prog_name="cgpu-smi")
