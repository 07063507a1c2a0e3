# SPDX-License-Identifier: MIT
"""What the agent's pod has of its node: the directories of the kubelet that the agent uses, and no others."""

from __future__ import annotations

import re
import stat
from pathlib import Path
from typing import Any

import pytest
from deployed import DEPLOY, REPO, kustomized, named, rendered
from fakes import eventually
from node_world import SLICES, World

from cgpu_kube.node.claims import DRIVER
from cgpu_kube.node.settings import Settings

KUBELET = "/var/lib/kubelet"
OF_KUBELET = {"device-plugins", f"plugins/{DRIVER}", "plugins_registry", "pod-resources"}


def spec_of(objects: list[dict[str, Any]], kind: str = "DaemonSet", name: str = "cgpu-node") -> dict[str, Any]:
    found: dict[str, Any] = named(objects)[kind, name]["spec"]["template"]["spec"]
    return found


def below_kubelet(path: str) -> str:
    return path.removeprefix(f"{KUBELET}/") if path.startswith(KUBELET) else ""


def test_the_agent_has_its_own_directories_of_the_kubelet(kubectl: Path, helm: Path) -> None:
    """The others have pods' tokens, secrets and volumes, and CSI drivers' sockets, by which it could read and mount
    what it likes."""
    assert Path(KUBELET) == Settings.__dataclass_fields__["kubelet"].default
    specs = [spec_of(kustomized(kubectl, DEPLOY / name)) for name in ("base", "surge", ".")]
    for spec in (*specs, spec_of(rendered(helm, {}))):
        hosts = {one["name"]: one["hostPath"] for one in spec["volumes"] if "hostPath" in one}
        assert {found for one in hosts.values() if (found := below_kubelet(one["path"]))} == OF_KUBELET
        assert {one["type"] for one in hosts.values() if below_kubelet(one["path"])} == {"DirectoryOrCreate"}
        (container,) = spec["containers"]
        for one in container["volumeMounts"]:
            if one["name"] in hosts:  # at the paths of the node: cgpud and the kubelet are given names of sockets
                assert one["mountPath"] == hosts[one["name"]]["path"]
        assert [one["name"] for one in container["volumeMounts"] if one.get("readOnly")] == ["pod-resources"]


def test_the_source_names_no_other_directory_of_the_kubelet() -> None:
    words = set()
    for path in (REPO / "cgpu_kube/node").glob("*.py"):
        words |= set(re.findall(r'kubelet(?:_dir)? / "([^"]+)"', path.read_text()))
    assert {word.partition("/")[0] for word in words} == {one.partition("/")[0] for one in OF_KUBELET}


@pytest.mark.parametrize("mode", ["cgpu", "dra"])
async def test_the_agent_writes_to_no_other_directory_of_the_kubelet(tmp_path: Path, mode: str) -> None:
    world = World(tmp_path, mode=mode)
    async with world.running():
        if mode == "cgpu":
            await eventually(lambda: world.offered() == 94, "ready")
        else:
            await eventually(lambda: world.api.objects.get(SLICES), "ready")
            await world.kubelet.find_drivers()
        root = world.kubelet.directory
        sockets = [path for path in root.rglob("*") if stat.S_ISSOCK(path.lstat().st_mode)]
        ours = {str(path.parent.relative_to(root)) for path in sockets if path.name != "kubelet.sock"}
    assert ours == ({"device-plugins"} if mode == "cgpu" else {f"plugins/{DRIVER}", "plugins_registry"})


def test_every_pod_has_the_runtimes_filter_of_system_calls(kubectl: Path, helm: Path) -> None:
    """Neither the agent, nor the extender, nor a scheduler calls what it refuses."""
    scheduler = {"enabled": True, "image": {"repository": "a.org/s"}}
    every = (kustomized(kubectl), kustomized(kubectl, REPO / "deploy/own-scheduler"))
    names = set()
    for objects in (*every, rendered(helm, {}), rendered(helm, {"scheduler": scheduler})):
        for workload in ("DaemonSet", "cgpu-node"), ("Deployment", "cgpu-extender"):
            for one in spec_of(objects, *workload)["containers"]:
                assert one["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
                names.add(one["name"])
    assert names == {"node", "extender", "scheduler"}
