# SPDX-License-Identifier: MIT
"""cgpu: the commands and the modules that have them. A module is imported when its command runs."""

from __future__ import annotations

import click

from .app import App, make_paths, path_options, version_option

#: Command -> its module and its name there.
COMMANDS = {
    "completion": (".complete", "completion"),
    "cordon": (".admin", "cordon"),
    "create": (".admin", "create"),
    "destroy": (".admin", "destroy"),
    "doctor": (".doctor", "doctor"),
    "drain": (".admin", "drain_command"),
    "events": (".events", "events"),
    "gpu": (".gpu", "gpu_group"),
    "inspect": (".show", "inspect"),
    "policy": (".gpu", "policy_group"),
    "ps": (".show", "ps"),
    "set": (".admin", "set_group"),
    "setup": (".setup", "setup"),
    "simulate": (".simulate", "simulate"),
    "stats": (".stats", "stats"),
    "status": (".show", "status_command"),
    "trace": (".trace", "trace_command"),
    "uncordon": (".admin", "uncordon"),
    "upgrade": (".admin", "upgrade_command"),
    "version": (".show", "version"),
}


@click.group(cls=App, name="cgpu", lazy=COMMANDS, context_settings={"help_option_names": ["-h", "--help"]})
@path_options
@version_option
@click.pass_context
def cgpu(ctx: click.Context, root: str, proc: str | None) -> None:
    """Share one NVIDIA GPU between containers."""
    ctx.obj = make_paths(root, proc)


def main() -> None:
    cgpu.main(prog_name="cgpu")
