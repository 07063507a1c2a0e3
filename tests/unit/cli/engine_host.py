# SPDX-License-Identifier: MIT
"""A root with one engine's file in it, in which cgpu setup is run."""

from __future__ import annotations

import json
import tomllib
from pathlib import Path
from typing import Any

from click.testing import CliRunner, Result

from cgpu_cli.engines import ENGINES
from cgpu_cli.main import cgpu

OURS = "/usr/bin/cgpu-runtime"
NV = "nvidia-container-runtime"
SYSTEMD = '[plugins."io.containerd.grpc.v1.cri".containerd.runtimes.runc.options]\n  SystemdCgroup = true\n'

# containerd's file as Debian ships it, which names no runtime.
DEBIAN = """version = 2

[plugins]
  [plugins."io.containerd.grpc.v1.cri"]
    [plugins."io.containerd.grpc.v1.cri".cni]
      bin_dir = "/usr/lib/cni"
      conf_dir = "/etc/cni/net.d"
  [plugins."io.containerd.internal.v1.opt"]
    path = "/var/lib/containerd/opt"
"""


class Host:
    """A root with an engine's file in it."""

    def __init__(self, root: Path, name: str, text: str | None) -> None:
        self.root, self.name = root, name
        self.file = root / ENGINES[name].file
        self.record = root / f"var/lib/cgpu/setup/{name}.json"
        program = root / OURS.lstrip("/")
        program.parent.mkdir(parents=True)
        program.touch(0o755)
        for reader in ENGINES[name].programs:
            (program.parent / reader).touch(0o755)
        for socket in ENGINES[name].sockets:
            (root / socket).parent.mkdir(parents=True, exist_ok=True)
            (root / socket).touch()
        (root / "etc").mkdir()
        if text is not None:
            self.write(text)

    def write(self, text: str, path: str = "") -> None:
        file = self.root / path if path else self.file
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_bytes(text.encode())

    @property
    def text(self) -> str | None:
        return self.file.read_bytes().decode() if self.file.exists() else None

    def data(self) -> dict[str, Any]:
        text = self.text or ""
        return json.loads(text or "{}") if self.name == "docker" else tomllib.loads(text)

    def run(self, *options: str) -> Result:
        return CliRunner().invoke(cgpu, ["--root", str(self.root), "setup", self.name, *options], prog_name="cgpu")

    def ok(self, *options: str) -> str:
        result = self.run(*options)
        assert result.exit_code == 0, result.stderr
        return result.stdout

    def refused(self, *options: str, code: int = 1) -> str:
        before = self.tree()
        result = self.run(*options)
        assert (result.exit_code, result.stdout) == (code, "")
        assert result.stderr.startswith("cgpu: error: ") and result.stderr.count("\n") == 1
        assert self.tree() == before
        return result.stderr

    def tree(self) -> dict[str, bytes]:
        return {str(one): one.read_bytes() for one in self.root.rglob("*") if one.is_file()}


def set_value(host: Host) -> object:
    """The program that the engine starts for the runtime nvidia."""
    data = host.data()
    if host.name == "docker":
        return data["runtimes"]["nvidia"]["path"]
    if host.name == "podman":
        return data["engine"]["runtimes"]["nvidia"][0]
    if host.name == NV:
        return data[NV]["runtimes"][0]
    (plugin,) = (one for one in data["plugins"].values() if "containerd" in one)
    assert plugin["containerd"]["runtimes"]["nvidia"]["runtime_type"] == "io.containerd.runc.v2"
    return plugin["containerd"]["runtimes"]["nvidia"]["options"]["BinaryName"]
