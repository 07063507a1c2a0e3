# SPDX-License-Identifier: MIT
"""cgpu: the commands and the modules that have them. A module is imported when its command runs."""

from __future__ import annotations

import click

from cgpu_common.app import App, make_paths, path_options, version_option

#: Command -> its module, its name there, and its line in the list of commands.
COMMANDS = {
    "completion": (
        "cgpu_cli.complete",
        "completion",
        'Print the completion script of a shell, e.g. for ~/.bashrc: eval "$(cgpu completion bash)".',
    ),
    "cordon": (
        "cgpu_cli.admin",
        "cordon",
        "Refuse new slices from now on, until cgpu uncordon, a cold upgrade or the next boot.",
    ),
    "create": (
        "cgpu_cli.admin",
        "create",
        "Create a container by hand (cgpud does this for container engines), and show what it got.",
    ),
    "destroy": (
        "cgpu_cli.admin",
        "destroy",
        "Destroy a container, and wait for its end, 2 s at most. What a dma-buf still holds is in /proc/cgpu_km/ended.",
    ),
    "doctor": ("cgpu_cli.doctor", "doctor", "Check everything that a container's slice needs."),
    "drain": (
        "cgpu_cli.admin",
        "drain_command",
        "Cordon the node and list the containers that are left; with --wait, wait for their end.",
    ),
    "events": (
        "cgpu_cli.events",
        "events",
        "Show events from now on: containers, refusals, overruns, controls, policies, cores.",
    ),
    "gpu": ("cgpu_cli.gpu", "gpu_group", "Show the GPUs and their settings."),
    "inspect": (
        "cgpu_cli.show",
        "inspect",
        "Show everything about containers: nodes, memory, compute, processes, cgpud's record.",
    ),
    "nodes": (
        "cgpu_cli.nodes",
        "nodes",
        "Show all nodes: what is where, what is free, which pods wait. By Prometheus, or Kubernetes.",
    ),
    "policy": (
        "cgpu_cli.gpu",
        "policy_group",
        "Show the policies and what they make of the weights in use; choose one.",
    ),
    "ps": ("cgpu_cli.show", "ps", "List containers, one line for each GPU they use."),
    "set": ("cgpu_cli.admin", "set_group", "Change one node of a GPU or of a container, while it runs."),
    "setup": ("cgpu_cli.setup", "setup", "Put cgpu-runtime in front of runc in the configuration of ENGINE."),
    "simulate": (
        "cgpu_cli.simulate",
        "simulate",
        "Simulate containers on a GPU under a policy: shares, waits, time line.",
    ),
    "stats": ("cgpu_cli.stats", "stats", "Show each container's use of its GPUs, every second until interrupted."),
    "trace": ("cgpu_cli.trace", "trace_command", "Record which container ran when."),
    "uncordon": ("cgpu_cli.admin", "uncordon", "Allow containers to start again."),
    "upgrade": (
        "cgpu_cli.admin",
        "upgrade_command",
        "Show the running core, the registered ones and the last swap; change it.",
    ),
    "version": ("cgpu_cli.show", "version", "Show the version of every part, and what is missing."),
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
