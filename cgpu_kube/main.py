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
    "install": (
        "cgpu_kube.installer.command",
        "install",
        "Bring module, daemon and runtime to this node, from the pod of the node installer.",
    ),
    "keep": (
        "cgpu_kube.node.host_keeper",
        "keep",
        "Keep this node's devices with the kubelet while the agent is away, and from before it after a boot.",
    ),
    "node": ("cgpu_kube.node.command", "node", "Offer this node's GPUs to Kubernetes, as device plugin or DRA driver."),
}


@click.group(cls=App, name="cgpu-kube", lazy=COMMANDS, context_settings={"help_option_names": ["-h", "--help"]})
@version_option
def kube() -> None:
    """Slices of GPUs for the pods of a Kubernetes cluster."""


#: Libraries that only cgpu-kube needs: the extra `kube` of pyproject.toml. They are in a folder beside that of an
#: installation, /usr/lib/cgpu-kube; their versions and checksums are in /usr/share/cgpu/kube.lock.
EXTRA = ("aiohttp", "google.protobuf", "grpclib", "yaml")


def _lock(folder: Path) -> Path:
    """The file with the versions, of an installation or of the sources."""
    own = folder / "scripts/kube.lock"
    return own if own.exists() else folder.parents[1] / "share/cgpu/kube.lock"


def _missing(folder: Path) -> str | None:
    """A library that is not installed."""
    sys.path.append(str(folder.with_name(folder.name + "-kube")))
    for name in EXTRA:
        try:
            if importlib.util.find_spec(name) is None:
                return name
        except ModuleNotFoundError:  # of "google"
            return name
    return None


def main() -> None:
    folder = Path(__file__).resolve().parents[1]
    missing = _missing(folder)
    if missing is not None and "--version" not in sys.argv:
        sys.exit(
            f"cgpu-kube: error: the library {missing} is not installed: pip install --require-hashes --target "
            f"{sys.path[-1]} -r {_lock(folder)} brings it ({located('docs/user/kubernetes-node.md')})"
        )
    kube.main(prog_name="cgpu-kube")
