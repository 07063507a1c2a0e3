# SPDX-License-Identifier: MIT
"""The mode mps: pods are clients of the GPU's MPS server, and one that uses more than it was given goes."""

from __future__ import annotations

import asyncio
import json
from contextlib import AbstractAsyncContextManager
from pathlib import Path
from typing import Any

import pytest
from fake_api import Refusal
from fake_mps import FakeControl
from fakes import eventually
from node_world import NODE, PODS, SIZES, World, bound, container
from structlog.testing import capture_logs
from test_node import RUNNING, restarted_after_init

from cgpu_common.cards import NvmlGpu
from cgpu_kube import annotations as keys
from cgpu_kube import pods
from cgpu_kube.annotations import GPU_CORE, GPU_COUNT
from cgpu_kube.ledger import Ledger, read_node
from cgpu_kube.node import host
from cgpud import mps_node

EVENTS = "api/v1/events"
UNITS = (14, 78)  # of 15 and 80: without the driver's part and the server's


class MpsWorld(World):
    """Both GPUs have an MPS server."""

    def __post_init__(self) -> None:
        super().__post_init__()
        self.mode_of_gpus = "exclusive process"
        self.node.nvml = self._gpus
        self.control = FakeControl(self.directory / "d/mps")
        self.node.mps = self.control
        self.uuids = [gpu.uuid for gpu in self.link.inventory]
        for uuid in self.uuids:
            self.control.start(uuid)
        self.has_real_nodes()

    def _gpus(self) -> tuple[NvmlGpu, ...]:
        return tuple(
            NvmlGpu(gpu.index, gpu.uuid, gpu.pci, gpu.nv_minor, size, used_mib=400, compute_mode=self.mode_of_gpus)
            for gpu, size in zip(self.link.inventory, SIZES, strict=True)
        )

    def spare(self) -> None:
        """Neither MPS nor the kernel ends a process that is over its grant."""

        def refuse(_pid: int, _group: object) -> bool:
            raise PermissionError(1, "Operation not permitted")

        self.control.stuck = "Invalid process!"
        self.node.facts.kill = refuse  # type: ignore[method-assign]

    async def run_pod(self, pod: dict[str, Any]) -> int:
        """Start its container; the pid."""
        container_id = await self.start(pod)
        process = self.node.process(f"/kubepods/{container_id}")
        assert (await self.node.bind(container_id, process.pid))["ok"]
        return process.pid

    def events(self) -> list[dict[str, Any]]:
        return list(self.api.objects.get(EVENTS, {}).values())


@pytest.fixture(autouse=True)
def programs_that_have_started_long_ago(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(mps_node, "START_S", 0.0)


@pytest.fixture
def world(tmp_path: Path) -> AbstractAsyncContextManager[World]:
    return MpsWorld(tmp_path, mode="mps").offering(sum(UNITS))


async def test_a_pod_is_a_client_with_its_units_as_limit(world: MpsWorld) -> None:
    pod = world.pod("p", container(mem=12), annotations=bound(1, 12) | {keys.THREADS: "25"})
    env = world.env(await world.start(pod, "main", "CUDA_MPS_PINNED_DEVICE_MEM_LIMIT=xx"))
    mib = SIZES[1] * 12 // 80
    assert env["CUDA_MPS_PINNED_DEVICE_MEM_LIMIT"] == f"0={mib - 128}M"
    assert env["CUDA_MPS_ACTIVE_THREAD_PERCENTAGE"] == "25"
    assert (env["CGPU_DISABLE"], env[keys.INDEX], env[keys.DEV]) == ("true", "1", "80")
    (row,) = (await world.node.ask(op="mps"))["containers"]
    assert (row["pod"], row["container"], row["grant_mib"]) == ("team/p", "main", mib)
    exact = world.pod("q", container(mem=12), annotations=bound(1, 12) | {keys.MEMORY: "5000Mi"})
    assert world.env(await world.start(exact))["CUDA_MPS_PINNED_DEVICE_MEM_LIMIT"] == "0=4872M"
    assert not world.link.containers


async def test_the_scheduler_counts_memory_and_clients(tmp_path: Path) -> None:
    world = MpsWorld(tmp_path, mode="mps")
    world.control.start(world.uuids[0], clients=3)
    async with world.offering(sum(UNITS)):
        await eventually(lambda: (found := world.published()) and not found.away, "the node")
        there = world.published()
        assert there.mode == "mps"
        assert [(gpu.units, gpu.slots, gpu.why) for gpu in there.gpus] == [(14, 3, ""), (78, 48, "")]
        ledger = Ledger()
        ledger.set_node(NODE, read_node(world.own_node()))
        need = pods.needs(world.pod("p", container(mem=8), labels={GPU_COUNT: "2"}))
        assert "the node's mode is mps, where a container has one GPU" in str(ledger.fit(need, NODE))


@pytest.mark.parametrize(
    ("pod", "sentence"),
    [
        ({"annotations": {keys.THREADS: "0"}}, "cgpu.io/threads=0, which is no whole number of percent from 1 to 100"),
        ({"annotations": {keys.THREADS: "half"}}, "which is no whole number of percent"),
        ({"annotations": {keys.MEMORY: "100Mi"}}, "has 100 MiB by the annotation"),
        ({"annotations": {keys.PRIORITY: "high"}}, "its namespace does not allow it"),
    ],
)
async def test_what_a_pod_cannot_ask_for(tmp_path: Path, pod: dict[str, Any], sentence: str) -> None:
    world = MpsWorld(tmp_path, mode="mps")
    world.api.label_namespace("team", {})
    async with world.offering(sum(UNITS)):
        found = world.pod("p", container(mem=6), annotations=bound(0, 6) | pod["annotations"])
        assert sentence in await world.refused(found)


async def test_parts_of_the_time_are_refused(world: MpsWorld) -> None:
    pod = world.pod("p", container(mem=6), annotations=bound(0, 6))
    pod["spec"]["containers"][0]["resources"]["limits"][GPU_CORE] = "20"
    world.api.put(PODS, pod)
    reply = await world.prepare(world.bundle(pod, "main", {"ALIYUN_COM_GPU_GRANT": "at-start"}))
    assert "and this node is in mode mps; label it ack.node.gpu.schedule=core_mem" in reply["error"]


async def test_threads_are_for_nodes_in_the_mode(tmp_path: Path) -> None:
    async with World(tmp_path, mode="cgpu").offering() as world:
        pod = world.pod("p", container(mem=6), annotations=bound(0, 6) | {keys.THREADS: "50"})
        assert "cgpu.io/threads, which is for nodes in mode mps, and this node is in mode cgpu" in (
            await world.refused(pod)
        )


async def test_a_gpu_without_a_server_takes_no_pod(world: MpsWorld) -> None:
    world.control.stop(world.uuids[0])
    await eventually(lambda: world.offered() == UNITS[1], "its devices are unhealthy")
    pod = world.pod("p", container(mem=6), annotations=bound(0, 6))
    reply = await world.prepare(world.bundle(pod, "main", {"ALIYUN_COM_GPU_GRANT": "at-start"}))
    assert f"GPU 0 has no MPS server: systemctl enable --now cgpu-mps@{world.uuids[0]}" in reply["error"]
    world.control.start(world.uuids[0])
    await eventually(lambda: world.offered() == sum(UNITS), "it is back")


async def test_an_ended_init_container_keeps_its_mark_and_no_memory(world: MpsWorld) -> None:
    await restarted_after_init(world, sum(UNITS), 60, 50)
    assert await world.start(world.pod("q", container(mem=28), annotations=bound(1, 28)))
    assert "GPU 1 has" in await world.refused(world.pod("r", container(mem=4), annotations=bound(1, 4)))


async def test_what_a_deleted_pod_still_holds_is_published(world: MpsWorld) -> None:
    """By force: its container runs on, and the extender must not give its memory away."""
    held = await world.start(world.pod("p", container(mem=6), annotations=bound(1, 6)))
    world.api.put(PODS, {**world.stored("p"), "status": RUNNING})
    await asyncio.sleep(0.3)
    assert world.remains() == {}
    world.api.remove(PODS, "team", "p")
    await eventually(lambda: world.remains() == {"team/p": {1: 6}}, "the annotation")
    message = "pods were deleted before their containers ended; team/p: 6 GiB of GPU 1"
    await eventually(lambda: world.condition() == ("True", message), "the condition")
    await world.end(held)
    await eventually(lambda: world.remains() == {"team/p": {}}, "the end")


async def test_the_mode_changes_on_a_drained_node_only(world: MpsWorld) -> None:
    pod = world.pod("p", container(mem=6), annotations=bound(0, 6))
    container_id = await world.start(pod)
    world.label("cgpu")
    await eventually(lambda: "stays in mode mps until no pod" in world.mode_refused(), "refused")
    assert world.offered() == sum(UNITS)
    world.api.remove(PODS, "team", "p")
    await eventually(lambda: world.agent.offer.mode == "cgpu", "switched")
    await eventually(lambda: world.offered() == 0, "slices of GPUs that have MPS servers")
    published = keys.parse_node(world.own_node()["metadata"]["annotations"])
    assert published is not None
    for uuid in world.uuids:
        world.control.stop(uuid)
    await world.end(container_id)
    world.mode_of_gpus = ""
    await world.node.ask(op="capacity", verb="nvml")
    world.node.daemon.inventory.expire()
    await world.node.ask(op="capacity", verb="nvml")
    await eventually(lambda: world.offered() > 90, "slices")


async def test_a_pod_over_its_memory_gets_events_and_goes_in_the_end(world: MpsWorld) -> None:
    greedy, honest = (world.pod(name, container(mem=2), annotations=bound(0, 2)) for name in ("g", "h"))
    pid, other = await world.run_pod(greedy), await world.run_pod(honest)
    world.control.use(world.uuids[0], other, 1500)
    for number in range(1, 5):
        assert world.api.get(PODS, "team", "g") is not None
        world.control.use(world.uuids[0], pid, 3000)
        await eventually(lambda number=number: len(world.control.ended) == number, "ended")
        await eventually(lambda number=number: len(world.events()) >= number, "an event")
        await asyncio.sleep(0.2)
    await eventually(lambda: world.api.get(PODS, "team", "g") is None, "deleted")
    assert world.api.get(PODS, "team", "h") is not None and set(world.control.ended) == {pid}
    await eventually(lambda: world.events()[-1]["reason"] == "GPUMemoryEvicted", "the last event")
    first, last = world.events()[0], world.events()[-1]
    assert first["involvedObject"]["uid"] == greedy["metadata"]["uid"] and first["type"] == "Warning"
    assert "MiB of GPU memory in use, 2014 MiB were given" in first["message"]
    assert "more than 3 of its programs were ended" in last["message"]


async def test_a_pod_that_cannot_be_deleted_is_logged_once(world: MpsWorld) -> None:
    pid = await world.run_pod(world.pod("g", container(mem=2), annotations=bound(0, 2)))
    world.spare()

    tried = []

    def refuse(method: str, path: str) -> None:
        if method == "DELETE" and "/pods/" in path:
            tried.append(path)
            raise Refusal(403, "Forbidden", "pods is forbidden")

    world.api.before = refuse
    with capture_logs() as logs:
        world.control.use(world.uuids[0], pid, 3000)
        await eventually(lambda: len(tried) >= 3, "tried again")
    lines = [line for line in logs if line["event"] == "a pod over its GPU memory was not deleted"]
    assert [line["pod"] for line in lines] == ["team/g"]
    assert world.api.get(PODS, "team", "g") is not None
    world.api.before = None
    await eventually(lambda: world.api.get(PODS, "team", "g") is None, "deleted in the end")


async def test_a_program_that_was_killed_is_an_event_of_its_own(world: MpsWorld) -> None:
    """Where the server does not end it: its process is gone, and not only its calls fail."""
    pid = await world.run_pod(world.pod("g", container(mem=2), annotations=bound(0, 2)))
    world.control.stuck = "no answer within 5 s"
    world.control.use(world.uuids[0], pid, 3000)
    await eventually(lambda: len(world.events()) >= 2, "both events")
    await asyncio.sleep(0.3)
    found = {one["reason"]: one["message"] for one in world.events()}
    assert set(found) == {"GPUMemoryOverGrant", "GPUProgramKilled"}
    assert found["GPUProgramKilled"].startswith("1 program(s) over the grant were killed (SIGKILL)")


async def test_a_node_that_is_blind_is_an_event_of_each_client(world: MpsWorld) -> None:
    pods = [world.pod(name, container(mem=2), annotations=bound(0, 2)) for name in ("a", "b")]
    pids = [await world.run_pod(pod) for pod in pods]
    world.control.blind = "GPU is lost"
    for pid in pids:
        world.control.use(world.uuids[0], pid, 1500)
    await eventually(lambda: len(world.events()) == 2, "an event of each")
    await asyncio.sleep(0.2)
    found = world.events()
    assert {one["reason"] for one in found} == {"GPUMemoryNotWatched"} and len(found) == 2, "once"
    assert {one["involvedObject"]["uid"] for one in found} == {pod["metadata"]["uid"] for pod in pods}
    assert all(one["message"].endswith("no limit holds: GPU is lost") for one in found)


def test_an_older_cgpud_offers_nothing_in_the_mode() -> None:
    (gpu,) = host.read({"gpus": [OLD]})
    (seen,) = host.in_mode((gpu,), host.MPS)
    assert (host.Offer(host.MPS).units(seen), seen.why) == (0, "cgpud is of a version without MPS")
    assert host.in_mode((gpu,), host.CGPU) == (gpu,)


OLD = json.loads(
    '{"nv_minor": 0, "uuid": "GPU-0", "total_mib": 15109, "slice_mib": 15109, "max_inst": 20, "name": "T4",'
    ' "policy": 0, "instances": 0, "known": true, "why": ""}'
)
