# SPDX-License-Identifier: MIT
"""An agent that is killed: the process that serves the kubelet's sockets goes on, and starts the next one."""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import signal
import socket
import struct
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from resource import RLIMIT_DATA, prlimit

import pytest
from admission import NAMESPACE, Admission, Wanted, agent_pod
from agent_process import Process
from fakes import eventually
from node_world import NODE, NODES, container
from test_node import bound

from cgpu_kube import annotations as keys
from cgpu_kube.annotations import GPU_MEM
from cgpu_kube.node.keeper import Keeper

START_S = 40  # of a process, on a machine that does other things


def is_there(world: Process) -> bool:
    node = world.api.get(NODES, "", NODE)
    found = keys.parse_node((node or {}).get("metadata", {}).get("annotations"))
    return found is not None and not found.away and world.kubelet.allocatable(GPU_MEM) == 94


@asynccontextmanager
async def standing(tmp_path: Path, **more: object) -> AsyncIterator[Process]:
    """@more: attributes of the Process."""
    world = Process(tmp_path)
    for name, value in more.items():
        setattr(world, name, value)
    world.node.config = replace(world.node.config, kube_wait_s=30)
    async with world.running():
        await eventually(lambda: is_there(world), "the node offers its GPUs", START_S)
        yield world


async def kill(world: Process) -> int:
    """SIGKILL of the agent. Returns the pid of the next one, once it runs."""
    old = world.agent_pid()
    os.kill(old, signal.SIGKILL)
    await eventually(lambda: world.agent_pid() not in (0, old), "the next agent", START_S)
    return world.agent_pid()


async def test_a_killed_agent_takes_nothing_from_the_kubelet(tmp_path: Path) -> None:
    """The kubelet's list of devices never changes, so it refuses no pod; a pod that comes while there is no agent
    starts when there is one again."""

    async with standing(tmp_path) as world, Admission(world, 0.5).running() as kubelet:
        resource = world.kubelet.resources[GPU_MEM]
        lists = resource.lists
        await kill(world)
        assert world.kubelet.allocatable(GPU_MEM) == 94
        world.pod("p", container(mem=6), annotations=bound(0, 6))
        await eventually(lambda: kubelet.admitted or kubelet.failed, "the pod starts", START_S)
        assert kubelet.failed == {} and world.slots(*kubelet.admitted.values()) == [(0, 6043)]
        await asyncio.sleep(1.0)  # the next agent has offered the same
        assert world.kubelet.resources[GPU_MEM] is resource, "nothing is registered again"
        assert resource.lists == lists and world.kubelet.allocatable(GPU_MEM) == 94


async def test_wanted_pods_come_through_a_storm_of_kills(tmp_path: Path) -> None:
    async with (
        standing(tmp_path) as world,
        Admission(world, 0.5).running() as kubelet,
        Wanted(world, 1, 6).running() as wanted,
    ):
        for count in range(2, 6):
            os.kill(world.agent_pid(), signal.SIGKILL)
            wanted.count = count
            await eventually(lambda: world.agent_pid() != 0, "the next agent", START_S)
        await eventually(lambda: wanted.running_now() == 5, "five pods", 2 * START_S)
        assert kubelet.failed == {} and len(wanted.made) == 5


async def test_the_next_agent_follows_a_kubelet_that_has_restarted_meanwhile(tmp_path: Path) -> None:
    async with standing(tmp_path) as world:
        os.kill(world.agent_pid(), signal.SIGKILL)
        await world.kubelet.restart()
        assert world.kubelet.allocatable(GPU_MEM) == 0
        await eventually(lambda: world.kubelet.allocatable(GPU_MEM) == 94, "registered again", START_S)


async def test_sigterm_takes_the_devices_back_in_order(tmp_path: Path) -> None:
    """The agent publishes that it ends, the sockets go, and the program ends with 0."""

    world = Process(tmp_path)
    async with world.running():
        await eventually(lambda: is_there(world), "the node offers its GPUs", START_S)
        world.process.terminate()
        assert await world.process.wait() == 0
        node = world.api.get(NODES, "", NODE)
        found = keys.parse_node((node or {})["metadata"]["annotations"])
        assert found is not None and found.away == "it ends"
        await eventually(lambda: world.kubelet.allocatable(GPU_MEM) == 0, "no devices")
        left = [path.name for path in (world.kubelet.directory / "device-plugins").iterdir()]
        assert left == ["kubelet.sock"]
        await world.start_agent()
        await eventually(lambda: is_there(world), "and again", START_S)


async def test_a_pod_whose_mount_leads_to_a_deleted_directory_ends(tmp_path: Path) -> None:
    """A kubelet that is reinstalled makes its directory again, which the pod cannot see. What the pod sees is here a
    descriptor, which leads to the deleted directory as a bind mount does."""
    real, seen = tmp_path / "kubelet", tmp_path / "seen"
    (real / "device-plugins").mkdir(parents=True)
    seen.mkdir()
    mount = os.open(real / "device-plugins", os.O_RDONLY)
    (seen / "device-plugins").symlink_to(f"/proc/{os.getpid()}/fd/{mount}")
    (seen / "pod-resources").symlink_to(real / "pod-resources")
    async with standing(tmp_path, options={"kubelet-dir": seen}) as world:
        await world.kubelet.stop()
        shutil.rmtree(real / "device-plugins")
        (real / "device-plugins").mkdir()
        await world.kubelet.start()
        async with asyncio.timeout(START_S):
            assert await world.process.wait() == 1, "the kubelet starts its container again"
        node = keys.parse_node(world.api.get(NODES, "", NODE)["metadata"]["annotations"])
        assert node is not None and node.away, "it ended in order"
        os.close(mount)
        (seen / "device-plugins").unlink()
        (seen / "device-plugins").symlink_to(real / "device-plugins")
        await world.start_agent()
        await eventually(lambda: is_there(world), "with the next container's mount", START_S)


async def test_the_agent_ends_with_the_process_that_serves(tmp_path: Path) -> None:
    """Else it would hold the socket of the decisions, and the next one would wait for its end."""

    world = Process(tmp_path)
    async with world.running():
        await eventually(lambda: is_there(world), "the node offers its GPUs", START_S)
        agent = Path(f"/proc/{world.agent_pid()}")
        world.process.kill()
        await world.process.wait()
        await eventually(lambda: not agent.exists(), "the agent has ended", START_S)
        await world.start_agent()
        await eventually(lambda: is_there(world), "the next one serves", START_S)


async def kill_both(world: Process) -> None:
    """As the kernel does where memory.oom.group of the container's cgroup is set."""
    pids = world.pids()
    assert all(pids)
    for pid in pids:
        os.kill(pid, signal.SIGKILL)
    await world.process.wait()
    await eventually(lambda: not any(Path(f"/proc/{pid}").exists() for pid in pids), "both have ended")


@pytest.mark.parametrize("namespace", [NAMESPACE, "team"], ids=["the agent", "a pod that looks like it"])
async def test_pods_wait_while_both_processes_are_gone(tmp_path: Path, namespace: str) -> None:
    """The node's status still has the devices, for up to 10 s, and kube-scheduler counts with them; the extender has
    seen by the agent's pod that they are gone. A tenant's pod of that label says nothing."""

    async with (
        standing(tmp_path) as world,
        Admission(world, 10).running() as kubelet,
        Wanted(world, 1, 6).running() as wanted,
    ):
        agent_pod(world, runs=True, namespace=namespace)
        await eventually(lambda: wanted.running_now() == 1, "a pod", START_S)
        await kill_both(world)
        agent_pod(world, runs=False, namespace=namespace)
        await asyncio.sleep(0.3)  # for its event
        wanted.count = 5
        await eventually(lambda: len(wanted.made) >= 5, "four more are wanted")
        if namespace != NAMESPACE:
            await eventually(lambda: kubelet.failed, "what is bound meanwhile fails")
            wanted.count = 0
            await world.start_agent()
            await eventually(lambda: is_there(world), "the next one serves", START_S)
            return
        await asyncio.sleep(1.0)
        assert (wanted.running_now(), kubelet.failed) == (1, {}), "they wait"
        await world.start_agent()  # systemd, or the kubelet, has started it again
        agent_pod(world, runs=True)
        await eventually(lambda: wanted.running_now() == 5, "five pods", 2 * START_S)
        assert kubelet.failed == {} and len(wanted.made) == 5


async def test_the_next_one_takes_over_after_both_have_ended(tmp_path: Path) -> None:
    """What runs keeps its slice, and what the kubelet has admitted before starts."""

    async with standing(tmp_path) as world, Admission(world, 0.5).running() as kubelet:
        world.pod("a", container(mem=6), annotations=bound(0, 6))
        await eventually(lambda: kubelet.admitted, "the pod runs", START_S)
        (running,) = kubelet.admitted.values()
        await kubelet.stop()
        pod = world.pod("b", container(mem=4), annotations=bound(1, 4))
        kubelet.admitted[pod["metadata"]["uid"]] = "by this test"
        env = await world.allocate(pod, "main")  # it is admitted, and its container not made yet
        await kill_both(world)
        await eventually(lambda: world.kubelet.allocatable(GPU_MEM) == 0, "the kubelet has no devices")
        prepared = asyncio.create_task(world.prepare(world.bundle(pod, "main", env)))
        kubelet.start()
        await world.start_agent()
        await eventually(lambda: is_there(world), "the next one serves", START_S)
        assert (await prepared)["ok"], prepared.result()
        assert world.slots(running) == [(0, 6043)]


async def test_an_agent_that_grows_ends_alone(tmp_path: Path) -> None:
    """Under the container's limit, at which the kernel ends both. Here 70 MiB of annotations of its node's pods,
    in one list, as if none were bounded."""

    limit = 112 << 20
    program = f"from cgpu_kube import api; api.PAGE_BYTES = 1 << 30; {Process.program}"
    async with standing(tmp_path, options={"memory-limit": str(limit)}, program=program) as world:
        resource, first = world.kubelet.resources[GPU_MEM], world.agent_pid()
        assert prlimit(first, RLIMIT_DATA) == (64 << 20, 64 << 20) != prlimit(world.process.pid, RLIMIT_DATA)
        for number in range(10):
            world.pod(f"p{number}", container(), annotations={"text": "x" * (7 << 20)})
        os.kill(first, signal.SIGKILL)  # the next one reads the list
        seen = {0, first}
        for _ in range(2):
            await eventually(lambda: world.agent_pid() not in seen, "it has ended, and the next one", 2 * START_S)
            seen.add(world.agent_pid())
        assert world.kubelet.resources[GPU_MEM] is resource and world.kubelet.allocatable(GPU_MEM) == 94
        for number in range(10):
            world.api.remove("api/v1/pods", "team", f"p{number}")
        await eventually(lambda: is_there(world) and world.agent_pid(), "the next one", 2 * START_S)
        await asyncio.sleep(2.0)
        assert world.kubelet.resources[GPU_MEM] is resource and world.kubelet.allocatable(GPU_MEM) == 94
        assert world.pss_mib() <= limit >> 20


async def test_large_pods_of_a_tenant_end_no_agent(tmp_path: Path) -> None:
    """40 MiB of pods that ask for no GPU, whose annotations are those that count for others."""

    texts = {f"nvidia.com/container.c{number}.gpu-memory.limit": "x" * 5000 for number in range(50)}
    limit = 112 << 20
    async with standing(tmp_path, options={"memory-limit": str(limit)}) as world:
        resource = world.kubelet.resources[GPU_MEM]
        for number in range(40):
            large = container(args=["x" * (1 << 20)])
            world.pod(f"p{number}", large, annotations={**texts, keys.MEMORY: "x" * 5000})
        pod = world.pod("z", container(mem=6), annotations=bound(0, 6))
        following = await kill(world)  # it reads the list
        await eventually(lambda: is_there(world), "it serves", START_S)
        assert world.slots(await world.start(pod)) == [(0, 6043)], "it has read the last one"
        assert world.agent_pid() == following and world.pss_mib() <= 80
        assert world.kubelet.resources[GPU_MEM] is resource


async def test_the_kernel_ends_the_agent_first(tmp_path: Path) -> None:
    async with standing(tmp_path) as world:
        keeper_pid, agent = world.pids()
        scores = [int(Path(f"/proc/{pid}/oom_score_adj").read_text()) for pid in ("self", keeper_pid, agent)]
        assert scores == [scores[0], scores[0], min(scores[0] + 100, 1000)]
        badness = [int(Path(f"/proc/{pid}/oom_score").read_text()) for pid in (keeper_pid, agent)]
        assert badness[0] < badness[1]


async def test_an_agent_that_hangs_is_replaced(tmp_path: Path) -> None:
    """And not by systemd's watchdog, or the kubelet's probe, which end both. Times are a sixth."""

    program = f"from cgpu_kube.node import keeper; keeper.HUNG_S, keeper.BEAT_S = 5, 0.2; {Process.program}"
    async with standing(tmp_path, program=program) as world:
        resource, first = world.kubelet.resources[GPU_MEM], world.agent_pid()
        await asyncio.sleep(6.0)
        assert world.agent_pid() == first, "one that has nothing to say does not hang"
        os.kill(first, signal.SIGSTOP)
        await eventually(lambda: world.agent_pid() not in (0, first), "the next agent", START_S)
        await asyncio.sleep(1.0)
        assert world.kubelet.resources[GPU_MEM] is resource and world.kubelet.allocatable(GPU_MEM) == 94


async def test_both_processes_report_to_systemd(tmp_path: Path) -> None:
    """The agent that it is ready, the first one that it lives: the watchdog ends both."""

    manager = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_NONBLOCK)
    manager.bind(str(tmp_path / "notify"))
    manager.setsockopt(socket.SOL_SOCKET, socket.SO_PASSCRED, 1)
    said: list[tuple[int, str]] = []

    def read() -> None:
        text, extra, _, _ = manager.recvmsg(4096, socket.CMSG_SPACE(12))
        said.append((struct.unpack("3i", extra[0][2])[0], text.decode().splitlines()[0]))

    asyncio.get_running_loop().add_reader(manager, read)
    world = Process(tmp_path)
    world.environment = {"NOTIFY_SOCKET": str(tmp_path / "notify"), "WATCHDOG_USEC": "400000"}
    async with world.running():
        await eventually(lambda: is_there(world), "the node offers its GPUs", START_S)
        first = world.agent_pid()
        keeper_pid = world.process.pid
        await eventually(lambda: {(first, "READY=1"), (keeper_pid, "WATCHDOG=1")} <= {*said}, "ready", START_S)
        os.kill(first, signal.SIGKILL)
        before = said.count((keeper_pid, "WATCHDOG=1"))
        await eventually(lambda: said.count((keeper_pid, "WATCHDOG=1")) > before + 2, "it lives", START_S)
        await eventually(lambda: world.agent_pid() not in (0, first), "the next agent", START_S)
        await eventually(lambda: (world.agent_pid(), "READY=1") in said, "ready again", START_S)
    manager.close()


@pytest.mark.parametrize("left", [b"", b'{"offer": "a', b'{"offer": "a", "name": "a", "apart": false, "devi'])
async def test_what_a_killed_agent_has_begun_to_write_ends_nothing(tmp_path: Path, left: bytes) -> None:
    keeper = Keeper(tmp_path)
    ours, theirs = socket.socketpair()
    whole = {
        "offer": "r", "name": "n", "apart": False, "spread": False, "links": {}, "devices": [["GPU-0-_-0", True]],
    }  # fmt: skip
    served = asyncio.create_task(keeper.serve(ours))
    theirs.sendall(json.dumps(whole).encode() + b"\n" + left)
    await eventually(lambda: keeper.plugins, "the offer")
    assert theirs.recv(4096) == b'{"state": {}}\n', "with nothing unread its end is the end of the stream"
    theirs.close()
    await served
    assert {name: one.devices for name, one in keeper.plugins.items()} == {"r": (("GPU-0-_-0", True),)}


@pytest.mark.parametrize(
    ("words", "status"),
    [(["--kubeconfig", "none"], 1), (["--memory-unit", "TiB"], 2), (["--memory-limit", "100000000"], 1)],
    ids=["file", "option", "limit"],
)
def test_an_agent_that_never_served_is_not_started_again(tmp_path: Path, words: list[str], status: int) -> None:
    async def main() -> tuple[int | None, bytes]:
        process = await asyncio.create_subprocess_exec(
            sys.executable, "-c", "from cgpu_kube.main import main; main()", "node", *words,
            "--kubelet-dir", str(tmp_path), cwd=tmp_path, stderr=asyncio.subprocess.PIPE,
        )  # fmt: skip
        _, text = await process.communicate()
        return process.returncode, text

    found, text = asyncio.run(asyncio.wait_for(main(), 60))
    assert found == status and text.count(b"rror: ") == 1, text
