# SPDX-License-Identifier: MIT
"""An agent that is away: a kubelet fails a pod for good if its devices are not there when it comes, so none may come.

Times are a twentieth of real ones: the kubelet writes the node's status every 10 s, an agent is away for 15 or 60.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path

import pytest
from admission import REASON, Admission, Wanted
from fakes import eventually, free_port
from node_world import NODE, NODES, World, container
from test_node import bound, ready

from cgpu_kube import annotations as keys
from cgpu_kube import api
from cgpu_kube.annotations import GPU_MEM
from cgpu_kube.ledger import read_node
from cgpu_kube.node import probe

SCALE = 1 / 20
SETTINGS = {"leave_s": 2.0 * SCALE}


def published(world: World) -> keys.NodeGpus:
    node = world.api.get(NODES, "", NODE)
    assert node is not None
    found = keys.parse_node(node["metadata"].get("annotations"))
    assert found is not None
    return found


def annotations(world: World) -> dict[str, str]:
    return (world.api.get(NODES, "", NODE) or {})["metadata"].get("annotations") or {}


@contextlib.asynccontextmanager
async def standing(tmp_path: Path) -> AsyncIterator[World]:
    """A node whose agent has registered and published it."""
    world = World(tmp_path, settings=SETTINGS)
    async with world.running():
        await ready(world)
        await eventually(lambda: keys.NODE_GPUS in annotations(world), "the annotation")
        yield world


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


@pytest.mark.parametrize("seconds", [15, 60])
async def test_no_wanted_pod_fails_while_the_agent_is_away(tmp_path: Path, seconds: int) -> None:
    """Four pods are wanted all the time; half of them while the agent is away. It made 31 failed ones of four."""

    async with (
        standing(tmp_path) as world,
        admission(world) as kubelet,
        Wanted(world, 2, 6).running() as wanted,
    ):
        await eventually(lambda: wanted.running_now() == 2, "two pods")
        await leave(world)
        wanted.count = 4
        await asyncio.sleep(seconds * SCALE)
        assert (wanted.running_now(), len(wanted.alive())) == (2, 4), "they wait"
        await world.start_agent()
        await eventually(lambda: wanted.running_now() == 4, "four pods")
        assert kubelet.failed == {} and len(wanted.made) == 4


async def test_pods_that_come_meanwhile_would_fail(tmp_path: Path) -> None:
    """Without the extender and kube-scheduler's own count in between: the stand shows what it must."""

    async with standing(tmp_path) as world, admission(world) as kubelet:
        await leave(world)
        await eventually(lambda: world.kubelet.allocatable(GPU_MEM) == 0, "the kubelet has no devices")
        world.pod("p", container(mem=6), annotations=bound(0, 6))
        await eventually(lambda: "p" in kubelet.failed, "the pod fails")
        stored = world.api.get("api/v1/pods", "team", "p")
        assert stored is not None and stored["status"]["reason"] == REASON
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
        await eventually(lambda: not published(world).away, "there")
        await eventually(lambda: world.agent.unready == "", "ready")
        before = published(world)
        await leave(world)
        node = world.api.get(NODES, "", NODE)
        assert node is not None
        assert (published(world).away, published(world).gpus) == ("it ends", before.gpus)
        assert node["status"]["allocatable"][GPU_MEM] == "0"
        found = read_node(node)
        assert found is not None and found.gpus and "cgpu-kube of the node is away: it ends" in found.why
        # A life that ended without publishing it: the next one publishes it first.
        texts = keys.write_node(before)
        world.api.put(NODES, node | {"metadata": node["metadata"] | {"annotations": texts}})
        await world.stop_cgpud()
        await world.start_agent()
        await eventually(lambda: published(world).away == "it has just started", "away")
        assert "cgpud" in world.agent.unready
        await world.start_cgpud()
        await eventually(lambda: not published(world).away, "there again")
        assert published(world).gpus == before.gpus


async def test_a_kubelet_that_is_away_is_published_too(tmp_path: Path) -> None:
    async with standing(tmp_path) as world:
        await eventually(lambda: not published(world).away, "there")
        await world.kubelet.stop()
        await eventually(lambda: "the kubelet does not have its devices" in published(world).away, "away")
        await world.kubelet.restart()
        await eventually(lambda: not published(world).away, "there again")


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
        assert world.kubelet.allocatable(GPU_MEM) == 94, "the first one serves"
        wanted.count = 3
        await eventually(lambda: wanted.running_now() == 3, "three pods")
        wanted.count = 5
        await first.leave()
        await end(task, client)
        await eventually(lambda: wanted.running_now() == 5, "five pods")
        assert not world.agent.is_standby and kubelet.failed == {}


async def test_the_next_agent_counts_as_the_last_one_did(tmp_path: Path) -> None:
    """It has read the file when it started to wait, and the last one has changed unit and mode since."""

    async with standing(tmp_path) as world:
        first, task, client = world.agent, world._task, world._client
        await world.start_agent()
        await eventually(lambda: world.agent.is_standby, "the next one waits")
        first.settings = replace(first.settings, unit="MiB")
        first._changed.set()
        await eventually(lambda: world.kubelet.allocatable(GPU_MEM) == 59 + 317, "the finer unit")
        await eventually(lambda: published(world).unit == "256MiB", "published")
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


async def test_probes_leave_the_agent_its_descriptors() -> None:
    """A pod opens connections and says nothing; the kubelet's next probe has its answer."""

    port = free_port()

    def descriptors() -> int:
        return len(list(Path("/proc/self/fd").iterdir()))

    async with probe.served(port, lambda: ""):
        before = descriptors()
        held = [await asyncio.open_connection("127.0.0.1", port) for _ in range(100)]
        await asyncio.sleep(0.2)
        there = descriptors() - before - len(held)
        assert there <= probe.CONNECTIONS_MAX, f"{there} connections are held"
        # Another host's part is its own: here another address of this one.
        kubelet = await asyncio.open_connection("127.0.0.1", port, local_addr=("127.0.0.2", 0))
        kubelet[1].write(b"GET /healthz HTTP/1.1\r\n\r\n")
        assert (await kubelet[0].read()).startswith(b"HTTP/1.1 200 OK\r\n")
        await asyncio.sleep(probe.READ_S)
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(b"GET /healthz HTTP/1.1\r\n\r\n")
        assert (await reader.read()).startswith(b"HTTP/1.1 200 OK\r\n")
        for _, one in [*held, kubelet, (reader, writer)]:
            one.close()


def test_away_in_the_annotation_is_what_an_older_extender_passes_over() -> None:
    given = keys.NodeGpus("cgpu", "GiB", (keys.NodeGpu(0, "GPU-0", 15109, 15, 15),), {}, "it ends")
    text = keys.write_node(given)
    assert keys.parse_node(text) == given
    value = json.loads(text[keys.NODE_GPUS])
    assert value.pop("away") == "it ends"
    assert keys.parse_node({keys.NODE_GPUS: json.dumps(value)}) == keys.NodeGpus("cgpu", "GiB", given.gpus)
