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
from pathlib import Path
from resource import RLIMIT_DATA, prlimit

import pytest
from admission import NAMESPACE, Admission, Wanted, agent_pod
from agent_process import START_S, Process, standing
from fakes import eventually
from node_world import bound, container

from cgpu_kube import annotations as keys
from cgpu_kube.annotations import GPU_MEM
from cgpu_kube.node.keeper import Keeper


async def test_a_killed_agent_takes_nothing_from_the_kubelet(tmp_path: Path) -> None:
    """The kubelet's list of devices never changes, so it refuses no pod; a pod that comes while there is no agent
    starts when there is one again."""
    async with standing(tmp_path) as world, Admission(world, 0.5).running() as kubelet:
        resource = world.kubelet.resources[GPU_MEM]
        lists = resource.lists
        await world.next_agent(world.kill_agent())
        assert world.offered() == 94
        world.pod("p", container(mem=6), annotations=bound(0, 6))
        await eventually(lambda: kubelet.admitted or kubelet.failed, "the pod starts", START_S)
        assert kubelet.failed == {} and world.slots(*kubelet.admitted.values()) == [(0, 6043)]
        await asyncio.sleep(1.0)  # the next agent has offered the same
        assert world.kubelet.resources[GPU_MEM] is resource, "nothing is registered again"
        assert resource.lists == lists and world.offered() == 94
        world.kill_agent()
        await world.kubelet.restart()
        assert world.offered() == 0
        await eventually(lambda: world.offered() == 94, "the next agent follows a kubelet that has restarted", START_S)


async def test_wanted_pods_come_through_a_storm_of_kills(tmp_path: Path) -> None:
    async with (
        standing(tmp_path) as world,
        Admission(world, 0.5).running() as kubelet,
        Wanted(world, 1, 6).running() as wanted,
    ):
        for count in range(2, 6):
            world.kill_agent()
            wanted.count = count
            await world.next_agent()
        await eventually(lambda: wanted.running_now() == 5, "five pods", 2 * START_S)
        assert kubelet.failed == {} and len(wanted.made) == 5


async def test_the_agent_ends_with_the_process_that_serves(tmp_path: Path) -> None:
    """At SIGTERM in order: the agent publishes that it ends, the sockets go, and the program ends with 0. A killed one
    takes its agent along, which else would hold the socket of the decisions: the next one would wait for its end."""
    async with standing(tmp_path) as world:
        await world.stop_agent()
        assert world.published().away == "it ends"
        await eventually(lambda: world.offered() == 0, "no devices")
        left = [path.name for path in (world.kubelet.directory / "device-plugins").iterdir()]
        assert left == ["kubelet.sock"]
        await world.start_agent()
        await world.serves()
        agent = Path(f"/proc/{world.agent_pid()}")
        world.process.kill()
        await world.process.wait()
        await eventually(lambda: not agent.exists(), "the agent has ended", START_S)
        await world.start_agent()
        await world.serves()


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
        assert world.published().away, "it ended in order"
        os.close(mount)
        (seen / "device-plugins").unlink()
        (seen / "device-plugins").symlink_to(real / "device-plugins")
        await world.start_agent()
        await world.serves()


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
        await world.kill()
        agent_pod(world, runs=False, namespace=namespace)
        await asyncio.sleep(0.3)  # for its event
        wanted.count = 5
        await eventually(lambda: len(wanted.made) >= 5, "four more are wanted")
        if namespace != NAMESPACE:
            await eventually(lambda: kubelet.failed, "what is bound meanwhile fails")
            wanted.count = 0
            await world.start_agent()
            await world.serves()
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
        await world.kill()
        await eventually(lambda: world.offered() == 0, "the kubelet has no devices")
        prepared = asyncio.create_task(world.prepare(world.bundle(pod, "main", env)))
        kubelet.start()
        await world.start_agent()
        await world.serves()
        assert (await prepared)["ok"], prepared.result()
        assert world.slots(running) == [(0, 6043)]


async def test_an_agent_that_grows_ends_alone(tmp_path: Path) -> None:
    """Under the container's limit, at which the kernel ends both. Here 70 MiB of annotations of its node's pods,
    in one list, as if none were bounded."""
    limit = 112 << 20
    program = f"from cgpu_kube import api; api.PAGE_BYTES = 1 << 30; {Process.program}"
    async with standing(tmp_path, options={"memory-limit": str(limit)}, program=program) as world:
        resource, first = world.kubelet.resources[GPU_MEM], world.agent_pid()
        scores = [int(Path(f"/proc/{pid}/oom_score_adj").read_text()) for pid in ("self", *world.pids())]
        assert scores == [scores[0], scores[0], min(scores[0] + 100, 1000)]
        badness = [int(Path(f"/proc/{pid}/oom_score").read_text()) for pid in world.pids()]
        assert badness[0] < badness[1], "where the kernel chooses one, it is the agent"
        assert prlimit(first, RLIMIT_DATA) == (64 << 20, 64 << 20) != prlimit(world.process.pid, RLIMIT_DATA)
        for number in range(10):
            world.pod(f"p{number}", container(), annotations={"text": "x" * (7 << 20)})
        world.kill_agent()  # the next one reads the list
        second = await world.next_agent(first)
        await world.next_agent(first, second)
        assert world.kubelet.resources[GPU_MEM] is resource and world.offered() == 94
        for number in range(10):
            world.api.remove("api/v1/pods", "team", f"p{number}")
        await world.serves()
        await asyncio.sleep(2.0)
        assert world.kubelet.resources[GPU_MEM] is resource and world.offered() == 94
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
        following = await world.next_agent(world.kill_agent())  # it reads the list
        await world.serves()
        assert world.slots(await world.start(pod)) == [(0, 6043)], "it has read the last one"
        assert world.agent_pid() == following and world.pss_mib() <= 80
        assert world.kubelet.resources[GPU_MEM] is resource


async def test_an_agent_that_hangs_is_replaced(tmp_path: Path) -> None:
    """And not by systemd's watchdog, or the kubelet's probe, which end both. Times are a sixth."""
    program = f"from cgpu_kube.node import keeper; keeper.HUNG_S, keeper.BEAT_S = 5, 0.2; {Process.program}"
    async with standing(tmp_path, program=program) as world:
        resource, first = world.kubelet.resources[GPU_MEM], world.agent_pid()
        await asyncio.sleep(6.0)
        assert world.agent_pid() == first, "one that has nothing to say does not hang"
        os.kill(first, signal.SIGSTOP)
        await world.next_agent(first)
        await asyncio.sleep(1.0)
        assert world.kubelet.resources[GPU_MEM] is resource and world.offered() == 94


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
    variables = {"NOTIFY_SOCKET": str(tmp_path / "notify"), "WATCHDOG_USEC": "400000"}
    async with standing(tmp_path, environment=variables) as world:
        first = world.agent_pid()
        keeper_pid = world.process.pid
        await eventually(lambda: {(first, "READY=1"), (keeper_pid, "WATCHDOG=1")} <= {*said}, "ready", START_S)
        world.kill_agent()
        before = said.count((keeper_pid, "WATCHDOG=1"))
        await eventually(lambda: said.count((keeper_pid, "WATCHDOG=1")) > before + 2, "it lives", START_S)
        await world.next_agent(first)
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
