# SPDX-License-Identifier: MIT
"""cgpu-smi: like nvidia-smi, for the containers that share a GPU.

Starts fast: reads text files only, imports neither NVML nor netlink.
"""

from __future__ import annotations

import click

from . import status
from .app import Single, make_paths, path_options, version_option


@click.command(cls=Single, name="cgpu-smi", context_settings={"help_option_names": ["-h", "--help"]})
@click.option("--json", "as_json", is_flag=True, help="Print JSON (docs/reference/cgpu-smi.schema.json).")
@click.option(
    "--interval", type=click.FloatRange(0.01, 3600), default=1.0, show_default=True, metavar="S", help="Sample for S s."
)
@click.option("--no-sample", is_flag=True, help="Do not wait: show the share since the container's start.")
@path_options
@version_option
def smi(as_json: bool, interval: float, no_sample: bool, root: str, proc: str | None) -> None:
    """Show GPUs and the containers that share them: share, memory, state."""
    status.show(make_paths(root, proc), interval, not no_sample, as_json)


def main() -> None:
    smi.main(prog_name="cgpu-smi")
