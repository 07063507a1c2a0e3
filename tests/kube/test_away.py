# SPDX-License-Identifier: MIT
"""An agent that is away: a kubelet fails a pod for good if its devices are not there when it comes, so none may come.

Times are a twentieth of real ones: the kubelet writes the node's status every 10 s, an agent is away for 15.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import fcntl
import json
import time
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path

import pytest
from admission import REASON, Admission, Wanted
from fake_api import Refusal
from fakes import eventually, free_port
from node_world import NODE, NODES, World, bound, container
from structlog.testing import capture_logs

from cgpu_kube import annotations as keys
from cgpu_kube import api
from cgpu_kube.annotations import GPU_MEM
from cgpu_kube.ledger import read_node
from cgpu_kube.node import probe
from cgpu_kube.node.turn import Turn

SCALE = 1 / 20
SETTINGS = {"leave_s": 2.0 * SCALE}


@contextlib.asynccontextmanager
async def standing(tmp_path: Path) -> AsyncIterator[World]:
    """A node whose agent has registered and published it."""
    async with World(tmp_path, settings=SETTINGS).offering() as world:
        await eventually(world.published, "the annotation")
        yield world


@pytest.fixture
def world(tmp_path: Path) -> contextlib.AbstractAsyncContextManager[World]:
    return standing(tmp_path)


def admission(world: World) -> contextlib.AbstractAsyncContextManager[Admission]:
    return Admission(world, 10 * SCALE).running()


async def end(task: asyncio.Task[None] | None, client: api.Client | None) -> None:
    """Of an agent that another one has followed."""
    assert task is not None and client is not None
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)
    await client.__aexit__()


async def leave(world: World) -> None:
    """SIGTERM."""
    await world.agent.leave()
    await world.stop_agent()


async def test_no_wanted_pod_fails_while_the_agent_is_away(tmp_path: Path) -> None:
    """Four pods are wanted all the time; half of them while the agent is away for longer than a status of the node is
    old. It made 31 failed ones of four. (15 and 60 s: tests/cluster.)"""
    async with (
        standing(tmp_path) as world,
        admission(world) as kubelet,
        Wanted(world, 2, 6).running() as wanted,
    ):
        await eventually(lambda: wanted.running_now() == 2, "two pods")
        await leave(world)
        wanted.count = 4
        await asyncio.sleep(15 * SCALE)
        assert (wanted.running_now(), len(wanted.alive())) == (2, 4), "they wait"
        await world.start_agent()
        await eventually(lambda: wanted.running_now() == 4, "four pods")
        assert kubelet.failed == {} and len(wanted.made) == 4


async def test_pods_that_come_meanwhile_would_fail(tmp_path: Path) -> None:
    """Without the extender and kube-scheduler's own count in between: the stand shows what it must."""
    async with standing(tmp_path) as world, admission(world) as kubelet:
        await leave(world)
        await eventually(lambda: world.offered() == 0, "the kubelet has no devices")
        world.pod("p", container(mem=6), annotations=bound(0, 6))
        await eventually(lambda: "p" in kubelet.failed, "the pod fails")
        stored = world.api.get("api/v1/pods", "team", "p")
        assert stored["status"]["reason"] == REASON
        assert "no healthy devices present" in stored["status"]["message"]


async def test_a_reboot_with_the_unit_fails_no_pod(tmp_path: Path) -> None:
    """Pods whose restartPolicy is Always, which no controller makes again."""
    async with standing(tmp_path) as world, admission(world) as kubelet:
        for name in "abc":
            world.pod(name, container(mem=4), annotations=bound(0 if name == "a" else 1, 4))
        await eventually(lambda: len(kubelet.admitted) == 3, "running")
        await kubelet.reboot(agent_is_first=True)
        await eventually(lambda: len(kubelet.admitted) == 3, "running again")
        assert kubelet.failed == {}


async def test_a_reboot_with_the_daemonset_alone_fails_them(tmp_path: Path) -> None:
    """What kubernetes-node.md says of it: the kubelet admits its pods before it starts the agent's."""
    async with standing(tmp_path) as world, admission(world) as kubelet:
        world.pod("a", container(mem=4), annotations=bound(0, 4))
        await eventually(lambda: len(kubelet.admitted) == 1, "running")
        await kubelet.reboot(agent_is_first=False)
        await eventually(lambda: "a" in kubelet.failed, "failed")


async def test_away_is_published_before_the_end_and_at_the_start(tmp_path: Path) -> None:
    async with standing(tmp_path) as world, admission(world):
        await eventually(lambda: not world.published().away, "there")
        await eventually(lambda: world.agent.unready == "", "ready")
        before = world.published()
        await leave(world)
        node = world.own_node()
        assert (world.published().away, world.published().gpus) == ("it ends", before.gpus)
        assert node["status"]["allocatable"][GPU_MEM] == "0"
        found = read_node(node)
        assert found.gpus and "cgpu-kube of the node is away: it ends" in found.why
        # A life that ended without publishing it: the next one publishes it first.
        texts = keys.write_node(before)
        world.api.put(NODES, node | {"metadata": node["metadata"] | {"annotations": texts}})
        await world.stop_cgpud()
        await world.start_agent()
        await eventually(lambda: world.published().away == "it has just started", "away")
        assert "cgpud" in world.agent.unready
        await world.start_cgpud()
        await eventually(lambda: not world.published().away, "there again")
        assert world.published().gpus == before.gpus


async def test_an_agent_without_its_node_is_not_ready(world: World) -> None:
    """A --node-name by mistake, as $(hostname) in a file of systemd's. The API server has no word against it."""
    await world.stop_agent()
    world.api.remove(NODES, "", NODE)
    with capture_logs() as lines:
        await world.start_agent()
        await eventually(lambda: "--node-name" in world.agent.unready, "not ready")
    found = [line for line in lines if line["event"] == "the cluster has no node of this name"]
    assert len(found) == 1 and found[0]["reason"].startswith(f"{NODE}: nothing is offered")
    world.label("cgpu")
    await eventually(lambda: world.agent.unready == "", "ready")


@pytest.mark.parametrize("mode", ["cgpu", "dra"])
async def test_an_agent_that_has_published_nothing_is_not_ready(tmp_path: Path, mode: str) -> None:
    world = World(tmp_path, mode=mode, settings=SETTINGS)

    def refuse(method: str, path: str) -> None:
        if method == "PATCH" and path.endswith(f"/nodes/{NODE}"):
            raise Refusal(500, "InternalError", "etcdserver: request timed out")

    async def wait(path: str) -> None:
        if path.endswith("/pods"):
            await pods.wait()

    pods = asyncio.Event()
    world.api.before = lambda _method, path: wait(path)
    async with world.running():
        await eventually(lambda: world.agent.prepared.is_set() and world.agent.cluster.nodes.synced.is_set(), "begun")
        await asyncio.sleep(0.5)
        assert world.agent.unready == "nothing has been offered yet"
        world.api.before = refuse
        pods.set()
        await eventually(lambda: "etcdserver" in world.agent.unready, "its first report fails")
        world.api.before = None
        await eventually(lambda: world.agent.unready == "", "ready")
        world.api.before = refuse
        world.label("core_mem" if mode == "cgpu" else "cgpu")
        await eventually(lambda: "etcdserver" in world.agent.unready, "and so does another one")


async def test_a_kubelet_that_is_away_is_published_too(world: World) -> None:
    await eventually(lambda: not world.published().away, "there")
    await world.kubelet.stop()
    await eventually(lambda: "the kubelet does not have its devices" in world.published().away, "away")
    await world.kubelet.restart()
    await eventually(lambda: not world.published().away, "there again")


async def test_the_next_agent_waits_for_the_last(tmp_path: Path) -> None:
    """maxSurge: the next one is ready while the last one serves, and serves when it has ended."""
    async with (
        standing(tmp_path) as world,
        admission(world) as kubelet,
        Wanted(world, 2, 6).running() as wanted,
    ):
        await eventually(lambda: wanted.running_now() == 2, "two pods")
        first, task, client = world.agent, world._task, world._client
        await world.start_agent()
        await eventually(lambda: world.agent.is_standby, "the next one waits")
        assert world.agent.unready == "" and world.agent is not first
        assert world.offered() == 94, "the first one serves"
        wanted.count = 3
        await eventually(lambda: wanted.running_now() == 3, "three pods")
        wanted.count = 5
        await first.leave()
        await end(task, client)
        await eventually(lambda: wanted.running_now() == 5, "five pods")
        assert not world.agent.is_standby and kubelet.failed == {}


async def test_the_next_agent_counts_as_the_last_one_did(world: World) -> None:
    """It has read the file when it started to wait, and the last one has changed unit and mode since."""
    first, task, client = world.agent, world._task, world._client
    await world.start_agent()
    await eventually(lambda: world.agent.is_standby, "the next one waits")
    first.settings = replace(first.settings, unit="MiB")
    first._changed.set()
    await eventually(lambda: world.offered() == 59 + 317, "the finer unit")
    await eventually(lambda: world.published().unit == "256MiB", "published")
    pod = world.pod("p", container(mem=6), annotations=bound(0, 6))
    assert world.slots(await world.start(pod)) == [(0, 1536)]
    next_pod = world.pod("q", container(mem=6), annotations=bound(0, 6))
    env = await world.allocate(next_pod, "main")
    await end(task, client)
    await eventually(lambda: not world.agent.is_standby, "it serves")
    container_id = world.bundle(next_pod, "main", env)
    reply = await world.prepare(container_id)
    assert reply["ok"], reply
    assert world.slots(container_id) == [(0, 1536)], "four times as much"


async def test_one_agent_serves_after_run_was_cleared(world: World, tmp_path: Path) -> None:
    """The unit's and the DaemonSet's on one node. The second one took the socket, and each made the other's plugin
    unreachable at once, again and again."""
    first, task, client = world.agent, world._task, world._client
    await world.start_agent()
    await eventually(lambda: world.agent.is_standby, "the second one waits")
    before = first.memory.registrations
    world.socket.unlink()
    await eventually(world.socket.exists, "made again by the one that serves")
    await asyncio.sleep(0.5)
    assert (first.is_standby, world.agent.is_standby) == (False, True)
    assert (first.memory.registrations, world.agent.memory.registrations) == (before, 0)
    # The state, too: the second one is faster, and the first one waits from now on.
    for path in (world.socket, tmp_path / "state/agent.lock"):
        path.unlink()
    await eventually(lambda: first.is_standby and not world.agent.is_standby, "they have changed places")
    watches = first.cluster.nodes, first.cluster.pods, first.cluster.slices
    assert not any(watch.synced.is_set() for watch in watches), "it decides nothing by old mirrors"
    await eventually(lambda: world.agent.unready == "" and world.offered() == 94, "offered")
    counts = first.memory.registrations, world.agent.memory.registrations
    await asyncio.sleep(1.0)
    assert (first.memory.registrations, world.agent.memory.registrations) == counts
    pod = world.pod("p", container(mem=6), annotations=bound(0, 6))
    assert world.slots(await world.start(pod)) == [(0, 6043)]
    # And back: what it has registered before is not what the kubelet follows.
    second, world.agent = world.agent, first
    world._task, task, world._client, client = task, world._task, client, world._client
    await end(task, client)
    await eventually(lambda: not first.is_standby and world.offered() == 94, "the first again")
    assert second.memory.registrations == counts[1] and first.memory.registrations > counts[0]


def test_a_lock_that_fails_is_not_taken(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    turn = Turn(tmp_path / "agent.lock")

    def fail(_fd: int, _how: int) -> None:
        raise OSError(errno.ENOLCK, "no locks")

    monkeypatch.setattr(fcntl, "flock", fail)
    for _ in range(2):
        with pytest.raises(OSError, match="no locks"):
            turn.take()


def test_a_look_at_the_lock_takes_no_turn_away(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The unit looks twice a second whether an agent has it."""
    turn = Turn(tmp_path / "agent.lock")
    turn.path.touch()
    with open(turn.path) as look:
        fcntl.flock(look, fcntl.LOCK_SH)
        monkeypatch.setattr("cgpu_kube.node.turn.time.sleep", lambda _: fcntl.flock(look, fcntl.LOCK_UN))
        assert turn.take(), "the look has ended"
        assert not Turn(turn.path).take(), "an agent's does not end"
    turn.give()


async def test_an_agent_waits_for_a_state_that_it_can_write(world: World, tmp_path: Path) -> None:
    await world.stop_agent()
    state, aside = tmp_path / "state", tmp_path / "aside"
    state.rename(aside)
    state.touch()  # a directory is needed here
    with capture_logs() as lines:
        await world.start_agent()
        await eventually(lambda: "state" in world.agent.unready, "not ready, with the reason")
        await asyncio.sleep(0.5)
    assert [one["event"] for one in lines].count("the lock of the agent cannot be taken") == 1
    state.unlink()
    aside.rename(state)
    await eventually(lambda: world.agent.unready == "", "it serves")


async def test_a_plugin_at_our_name_is_left_there_for_a_while(world: World) -> None:
    """Of an agent with directories of its own: the kubelet has the devices, and one of the two gives way."""
    from cgpu_kube.node.plugin import Plugin

    world.agent.registrar._poll_s = 1.0
    world.agent.registrar.wake()
    await asyncio.sleep(0.5)
    other = Plugin(world.kubelet.directory / "device-plugins", GPU_MEM, "gpu-mem")
    other.offer([(f"GPU-x-_-{n}", True) for n in range(47)])
    before = world.agent.memory.registrations
    world.agent.registrar._known[GPU_MEM].at = time.monotonic()
    await other.register((0, 0))
    await asyncio.sleep(1.0)
    assert other.is_there and world.agent.memory.registrations == before
    await eventually(lambda: world.agent.memory.registrations > before, "taken back")
    await other.register((0, 0))
    await asyncio.sleep(2.5)
    assert other.is_there, "the next time it takes longer"
    await other.stop()
    await eventually(lambda: world.offered() == 94, "the other one has ended")


async def test_probes() -> None:
    async def ask(port: int, head: bytes) -> tuple[int, str]:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(head)
        text = (await reader.read()).decode()
        writer.close()
        return int(text.split()[1]) if text else 0, text.partition("\r\n\r\n")[2]

    why = "the API server has not answered yet"
    async with probe.served(0, lambda: why) as none:
        assert none == 0
    port = free_port()
    async with probe.served(port, lambda: why, lambda: b"figure 1\n"):
        assert await ask(port, b"GET /metrics HTTP/1.1\r\n\r\n") == (200, "figure 1\n")
        assert await ask(port, b"GET /readyz HTTP/1.1\r\nHost: a\r\n\r\n") == (503, "not ready"), (
            "every pod can ask, and reasons name pods and files"
        )
        why = ""
        assert await ask(port, b"GET /readyz HTTP/1.1\r\n\r\n") == (200, "ok")
        assert await ask(port, b"GET /healthz HTTP/1.1\r\n\r\n") == (200, "ok")
        assert (await ask(port, b"POST /healthz HTTP/1.1\r\n\r\n"))[0] == 404
        assert (await ask(port, b"GET " + b"x" * 9000 + b" HTTP/1.1\r\n\r\n"))[0] == 0


def descriptors() -> int:
    return len(list(Path("/proc/self/fd").iterdir()))


class Silent:
    """A pod that opens connections from its address, says nothing, and opens each again as soon as it is closed."""

    def __init__(self, address: str, port: int) -> None:
        self.address = address
        self.port = port
        self.open = 0
        self.closed = 0

    @contextlib.asynccontextmanager
    async def running(self, count: int) -> AsyncIterator[Silent]:
        tasks = [asyncio.create_task(self._hold()) for _ in range(count)]
        try:
            yield self
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    async def _hold(self) -> None:
        while True:
            reader, writer = await asyncio.open_connection("127.0.0.1", self.port, local_addr=(self.address, 0))
            self.open += 1
            try:
                await reader.read()
            except ConnectionResetError:
                pass
            finally:
                self.open -= 1
                self.closed += 1
                writer.transport.abort()


async def test_the_kubelet_is_answered_whatever_other_pods_do(monkeypatch: pytest.MonkeyPatch) -> None:
    """To an agent in the pod network the kubelet is as foreign as they are."""
    monkeypatch.setattr(probe, "READ_S", 10.0)
    port = free_port()
    async with (
        probe.served(port, lambda: ""),
        Silent("127.0.0.2", port).running(40) as one,
        Silent("127.0.0.3", port).running(40) as other,
    ):
        await eventually(lambda: min(one.closed, other.closed) > 100, "they come again and again")
        for _ in range(50):
            reader, writer = await asyncio.open_connection("127.0.0.1", port, local_addr=("127.0.0.4", 0))
            writer.write(b"GET /healthz HTTP/1.1\r\n\r\n")
            assert (await reader.read()).startswith(b"HTTP/1.1 200 OK\r\n")
            writer.close()


async def test_probes_leave_the_agent_its_descriptors() -> None:
    """Whoever opens connections and says nothing."""
    port = free_port()
    async with probe.served(port, lambda: ""):
        before = descriptors()
        held = [await asyncio.open_connection("127.0.0.1", port) for _ in range(100)]
        await asyncio.sleep(0.2)
        there = descriptors() - before - len(held)
        assert there <= probe.CONNECTIONS_MAX, f"{there} connections are held"
        await asyncio.sleep(probe.READ_S)
        assert descriptors() - before <= len(held), "each has its time"
        for _, one in held:
            one.close()


def test_away_in_the_annotation_is_what_an_older_extender_passes_over() -> None:
    given = keys.NodeGpus("cgpu", "GiB", (keys.NodeGpu(0, "GPU-0", 15109, 15, 15),), {}, "it ends")
    text = keys.write_node(given)
    assert keys.parse_node(text) == given
    value = json.loads(text[keys.NODE_GPUS])
    assert value.pop("away") == "it ends"
    assert keys.parse_node({keys.NODE_GPUS: json.dumps(value)}) == keys.NodeGpus("cgpu", "GiB", given.gpus)
