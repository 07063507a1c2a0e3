# SPDX-License-Identifier: MIT
"""cgpu-kube.service of the packages under the real systemd, with a kubelet and an API server of the tests.

After test_systemd.py, in the same boot: cgpud runs as its unit, on the simulated GPU.
"""

from __future__ import annotations

import asyncio
import os
import shutil
import signal
import sys
import time
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
import unit_box as u
from docker_box import REPO, call, must, pause_s, until
from unit_box import is_active, show

sys.path.insert(0, str(REPO / "tests/kube"))
sys.path.insert(0, str(REPO / "tests/unit/daemon"))

from admission import Admission, Wanted
from fake_api import kubeconfig
from fake_kubelet import FakeKubelet
from node_world import NODE, NODES, World, bound, container

from cgpu_kube import annotations as keys
from cgpu_kube.annotations import GPU_MEM
from cgpud.kube import KubeClient

pytestmark = pytest.mark.systemd

UNIT = "cgpu-kube.service"
KEEP = "cgpu-kube-keep.service"
LIBRARIES = Path("/usr/lib/cgpu-kube")
KUBELET = Path("/var/lib/kubelet")
STATE = Path("/var/lib/cgpu/kube")
FILES = (Path("/etc/cgpu/kubeconfig"), Path("/etc/default/cgpu-kube"))
WAIT_S = 200  # the processors are shared
UNITS = 15


class UnitWorld(World):
    """The node of the packages: its agent is the unit, and a container is what kubelet and agent promise of it."""

    def __post_init__(self) -> None:
        super().__post_init__()
        self.kubelet = FakeKubelet(KUBELET)

    async def start_cgpud(self) -> None:
        await asyncio.to_thread(must, "systemctl", "start", u.UNIT)

    async def stop_cgpud(self) -> None:
        pass

    async def start_agent(self) -> None:
        kubeconfig(FILES[0].parent, self.api.url).rename(FILES[0])
        FILES[1].write_text(f"OPTIONS=--kubeconfig {FILES[0]} --node-name {NODE}\n")
        await systemctl("start")

    async def stop_agent(self) -> None:
        await systemctl("stop")

    async def start(self, pod: dict[str, Any], name: str = "main", *author: str) -> str:
        await self.allocate(pod, name)
        meta = pod["metadata"]
        subject = {"namespace": "team", "pod": meta["name"], "uid": meta["uid"], "container": name}
        grant = await KubeClient(Path("/run/cgpu/kube.sock")).decide(subject, 60)
        assert "slots" in grant, grant
        return self.container_id()


class KeptWorld(UnitWorld):
    """With the unit that keeps the devices."""

    async def start_agent(self) -> None:
        await asyncio.to_thread(must, "systemctl", "start", KEEP)
        await super().start_agent()


async def eventually(check: Callable[[], object], what: str, seconds: float) -> None:
    """As until(), beside the kubelet and the API server."""
    end = time.monotonic() + seconds
    while True:
        began = time.monotonic()
        if check():
            return
        now = time.monotonic()
        assert now < end, f"not within {seconds:.0f} s: {what}"
        await asyncio.sleep(pause_s(now - began))


async def systemctl(*words: str) -> None:
    await asyncio.to_thread(must, "systemctl", *words, UNIT)


@pytest.fixture(scope="module", autouse=True)
def libraries() -> Iterator[None]:
    """As `pip install --target` lays them, from the environment of the tests."""
    (site,) = (REPO / "build/venv/lib").glob("python3*/site-packages")
    LIBRARIES.symlink_to(site)
    yield
    must("systemctl", "disable", UNIT)
    LIBRARIES.unlink()
    for path in FILES:
        path.unlink(missing_ok=True)
    for folder in (KUBELET, STATE):
        shutil.rmtree(folder)


def pids() -> tuple[int, int]:
    """The process that serves, and the agent; 0: it is not there."""
    first = int(show("MainPID", UNIT))
    return first, agent_of(first)


def agent_of(first: int) -> int:
    try:
        children = Path(f"/proc/{first}/task/{first}/children").read_text().split()
    except OSError:
        children = []
    return int(children[0]) if children else 0


def restarts() -> int:
    return int(show("NRestarts", UNIT))


def away(world: UnitWorld) -> str | None:
    """As published; None: nothing is."""
    node = world.api.get(NODES, "", NODE) or {}
    found = keys.parse_node(node.get("metadata", {}).get("annotations"))
    return None if found is None else found.away


def is_there(world: UnitWorld) -> bool:
    return away(world) == "" and world.kubelet.allocatable(GPU_MEM) >= UNITS - 1


@asynccontextmanager
async def standing(tmp_path: Path, kind: type[UnitWorld] = UnitWorld) -> AsyncIterator[UnitWorld]:
    world = kind(tmp_path)
    async with world.running():
        await eventually(lambda: is_there(world), "the node offers its GPU", WAIT_S)
        yield world


def run(main: Callable[[], Any]) -> None:
    asyncio.run(asyncio.wait_for(main(), 3 * WAIT_S))


def test_the_unit_is_before_the_kubelet() -> None:
    must("systemctl", "enable", UNIT)
    assert "kubelet.service" in show("Before", UNIT).split()
    assert {u.UNIT, "network-online.target"} <= set(show("After", UNIT).split())
    assert show("FragmentPath", UNIT) == f"/lib/systemd/system/{UNIT}"


def test_without_a_kubeconfig_it_says_so() -> None:
    """And is tried again: a file may come."""
    FILES[1].write_text("OPTIONS=--kubeconfig /etc/cgpu/none\n")
    assert call("systemctl", "start", UNIT).returncode != 0
    until(lambda: restarts() >= 1, "it is tried again", WAIT_S)
    must("systemctl", "stop", UNIT)
    assert "/etc/cgpu/none" in must("journalctl", "--unit", UNIT, "--output=cat")
    must("systemctl", "reset-failed", UNIT)


def test_it_starts_and_stops_in_order(tmp_path: Path) -> None:
    async def main() -> None:
        async with standing(tmp_path) as world:
            status = await asyncio.to_thread(must, "systemctl", "status", "--full", "--lines=20", UNIT)
            assert "active (running)" in status and "registered with the kubelet" in status, status
            first, agent = pids()
            group = Path(f"/sys/fs/cgroup/system.slice/{UNIT}/cgroup.procs").read_text().split()
            assert {str(first), str(agent)} == set(group)
            assert STATE.joinpath("mode.json").exists()
            for pid in (first, agent):
                words = dict(line.split(":", 1) for line in Path(f"/proc/{pid}/status").read_text().splitlines())
                assert int(words["CapBnd"], 16) == int(words["CapEff"], 16) == 0
                assert (words["NoNewPrivs"].strip(), words["Seccomp"].strip()) == ("1", "2")
            scores = [int(Path(f"/proc/{pid}/oom_score_adj").read_text()) for pid in (first, agent)]
            assert scores[1] == scores[0] + 100
            await systemctl("stop")
            assert not is_active(UNIT) and show("Result", UNIT) == "success"
            assert away(world) == "it ends"
            assert [path.name for path in (KUBELET / "device-plugins").iterdir()] == ["kubelet.sock"]

    run(main)


def test_a_restart_loses_no_pod(tmp_path: Path) -> None:
    async def main() -> None:
        async with (
            standing(tmp_path) as world,
            Admission(world, 10).running() as kubelet,
            Wanted(world, 2, 2).running() as wanted,
        ):
            await eventually(lambda: wanted.running_now() == 2, "two pods", WAIT_S)
            old = pids()
            restart = asyncio.create_task(systemctl("restart"))
            await eventually(lambda: away(world) == "it ends", "it is published", WAIT_S)
            wanted.count = 5
            await restart
            await eventually(lambda: wanted.running_now() == 5, "five pods", WAIT_S)
            assert kubelet.failed == {} and len(wanted.made) == 5
            assert not set(old) & set(pids()) and restarts() == 0

    run(main)


def test_an_agent_that_hangs_takes_nothing_from_the_kubelet(tmp_path: Path) -> None:
    """And the watchdog, which ends both processes, has nothing to do. (A killed one: tests/kube/test_killed.py.)"""

    async def main() -> None:
        async with standing(tmp_path) as world:
            first, agent = pids()
            resource = world.kubelet.resources[GPU_MEM]
            began = time.monotonic()
            os.kill(agent, signal.SIGSTOP)
            await eventually(lambda: agent_of(first) not in (0, agent), "the next agent", WAIT_S)
            print(f"hangs: the next agent after {time.monotonic() - began:.1f} s")
            await asyncio.sleep(3)
            assert (pids()[0], restarts(), world.kubelet.resources[GPU_MEM]) == (first, 0, resource)
            assert world.kubelet.allocatable(GPU_MEM) >= UNITS - 1 and is_active(UNIT)

    run(main)


def test_both_killed_are_back_by_systemd(tmp_path: Path) -> None:
    async def main() -> None:
        async with standing(tmp_path) as world, Admission(world, 10).running() as kubelet:
            old, began = pids(), time.monotonic()
            await systemctl("kill", "--kill-who=all", "--signal=KILL")
            await eventually(lambda: world.kubelet.allocatable(GPU_MEM) == 0, "no devices", WAIT_S)
            await eventually(lambda: is_there(world), "they are back", WAIT_S)
            print(f"both killed: the devices are back after {time.monotonic() - began:.1f} s")
            assert restarts() == 1 and not set(old) & set(pids())
            async with Wanted(world, 2, 2).running() as wanted:
                await eventually(lambda: wanted.running_now() == 2, "two pods", WAIT_S)
            assert kubelet.failed == {}

    run(main)


def test_the_unit_that_keeps_the_devices(tmp_path: Path) -> None:
    """The agent's unit stops, and its own is killed: the kubelet has the devices of the journal, and a pod that comes
    without an agent starts when that is back."""

    def has_devices(world: UnitWorld) -> bool:
        return world.kubelet.allocatable(GPU_MEM) >= UNITS - 1

    async def main() -> None:
        async with standing(tmp_path, KeptWorld) as world:
            first = int(show("MainPID", KEEP))
            assert is_active(KEEP) and "kubelet.service" in show("Before", KEEP).split()
            words = dict(line.split(":", 1) for line in Path(f"/proc/{first}/status").read_text().splitlines())
            assert int(words["CapBnd"], 16) == int(words["CapEff"], 16) == 0
            devices = Path(f"/proc/{first}/net/dev").read_text().splitlines()[2:]
            assert [line.split(":")[0].strip() for line in devices] == ["lo"], "it has no network"
            resource = world.kubelet.resources[GPU_MEM]
            await systemctl("stop")
            await asyncio.sleep(2)
            assert away(world) == "it ends" and not is_active(UNIT)
            assert has_devices(world) and world.kubelet.resources[GPU_MEM] is resource, "nothing registers again"

            await asyncio.to_thread(must, "systemctl", "kill", "--signal=KILL", KEEP)
            await eventually(lambda: int(show("NRestarts", KEEP)) == 1, "systemd starts it again", WAIT_S)
            await eventually(lambda: world.kubelet.resources[GPU_MEM] is not resource, "it registers", WAIT_S)
            await eventually(lambda: has_devices(world), "those of its journal", WAIT_S)
            assert int(show("MainPID", KEEP)) != first and not is_active(UNIT)

            async with Admission(world, 10).running() as kubelet:
                world.pod("p", container(mem=2), annotations=bound(0, 2))
                await systemctl("start")
                await eventually(lambda: kubelet.failed or kubelet.admitted, "the pod starts", WAIT_S)
                assert kubelet.failed == {}
                await eventually(lambda: is_there(world), "the agent serves", WAIT_S)

            await asyncio.to_thread(must, "systemctl", "stop", KEEP)
            await eventually(lambda: not has_devices(world), "they go with it", WAIT_S)
            await eventually(lambda: is_there(world), "the agent serves them by itself", WAIT_S)

    try:
        run(main)
    finally:
        must("systemctl", "stop", KEEP)
