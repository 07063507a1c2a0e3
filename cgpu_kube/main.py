# SPDX-License-Identifier: MIT
"""cgpu-kube: the commands and the modules that have them. A module is imported when its command runs."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path

import click

from cgpu_common.app import App, version_option
from cgpu_common.pages import located

#: Command -> its module, its name there, and its line in the list of commands.
COMMANDS = {
    "extender": (
        "cgpu_kube.extender.command",
        "extender",
        "Answer kube-scheduler's filter, prioritize and bind for pods with aliyun.com/gpu-mem.",
    ),
    "inspect": (
        "cgpu_kube.inspect",
        "inspect",
        "Show which pods hold what of each GPU, and why a pod waits, GPU by GPU.",
    ),
    "node": ("cgpu_kube.node.command", "node", "Offer this node's GPUs to Kubernetes, as device plugin or DRA driver."),
}


@click.group(cls=App, name="cgpu-kube", lazy=COMMANDS, context_settings={"help_option_names": ["-h", "--help"]})
@version_option
def kube() -> None:
    """Slices of GPUs for the pods of a Kubernetes cluster."""


#: Libraries that only cgpu-kube needs, and their packages: the extra `kube` of pyproject.toml. They are in a folder
#: beside that of an installation: /usr/lib/cgpu-kube.
EXTRA = {"aiohttp": "aiohttp", "google.protobuf": "'protobuf>=7.35.1,<8'", "grpc": "grpcio", "yaml": "pyyaml"}


def _missing() -> str | None:
    """A library that is not installed."""
    folder = Path(__file__).resolve().parents[1]
    sys.path.append(str(folder.with_name(folder.name + "-kube")))
    for name in EXTRA:
        try:
            if importlib.util.find_spec(name) is None:
                return name
        except ModuleNotFoundError:  # of "google"
            return name
    return None


def main() -> None:
    missing = _missing()
    if missing is not None and "--version" not in sys.argv:
        folder = sys.path[-1]
        sys.exit(
            f"cgpu-kube: error: the library {missing} is not installed: pip install --target {folder} "
            f"{' '.join(EXTRA.values())} brings it ({located('docs/user/kubernetes-node.md')})"
        )
    kube.main(prog_name="cgpu-kube")
