# SPDX-License-Identifier: MIT
"""cgpu-kube: the commands and the modules that have them. A module is imported when its command runs."""

from __future__ import annotations

import click

from cgpu_cli.app import App, version_option

#: Command -> its module and its name there.
COMMANDS = {
    "node": ("cgpu_kube.node.command", "node"),
}


@click.group(cls=App, name="cgpu-kube", lazy=COMMANDS, context_settings={"help_option_names": ["-h", "--help"]})
@version_option
def kube() -> None:
    """Slices of GPUs for the pods of a Kubernetes cluster."""


def main() -> None:
    kube.main(prog_name="cgpu-kube")
