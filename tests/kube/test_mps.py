# SPDX-License-Identifier: MIT
"""The mode mps, as far as it goes without NVIDIA's daemon: what the node offers, and what a container's spec gets."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
from fakes import FakeNvml, Run, eventually
from node_world import SIZES, World, container
from test_node import bound, offered, ready

from cgpu_common.model import NvmlGpu
from cgpu_kube.annotations import GPU_CORE
from cgpud.fakelink import example_gpus

GPU = [gpu.uuid for gpu in example_gpus(2)]
ANY = "0" * 64


@pytest.fixture
def modes() -> list[str]:
    """Compute modes, as NVML answers."""
    return ["exclusive process"] * 2


@pytest.fixture
def world(tmp_path: Path, modes: list[str]) -> World:
    world = World(tmp_path, mode="mps")

    def nvml() -> tuple[NvmlGpu, ...]:
        return tuple(
            NvmlGpu(n, gpu.uuid, gpu.pci, n, SIZES[n], used_mib=0, compute_mode=modes[n])
            for n, gpu in enumerate(world.link.inventory)
        )

    world.node.nvml = FakeNvml(nvml)
    world.node.facts.is_directory = lambda path: path == f"/run/cgpu-mps/{GPU[1]}/pipe"  # type: ignore[method-assign]
    return world


async def admitted(world: World) -> None:
    """Something that makes cgpud ask NVML."""
    world.node.daemon._inventory._nvml_until = 0.0
    await world.node.prepare(ANY)


def test_a_client_has_the_pipes_and_limits_of_its_gpu(world: World, run: Run) -> None:
    async def main() -> None:
        async with world.running():
            await admitted(world)
            await ready(world)
            await eventually(lambda: offered(world, GPU_CORE) == 200, "percentages")
            pod = world.pod("p", container(mem=8, core=25), annotations=bound(1, 8))
            author = ("CUDA_MPS_ACTIVE_THREAD_PERCENTAGE=100", "CUDA_MPS_PINNED_DEVICE_MEM_LIMIT=0=80000M")
            container_id = await world.start(pod, "main", *author)
            assert world.slots(container_id) == [(1, 8155)], "the kernel limits it too"
            env = world.env(container_id)
            assert env["CUDA_MPS_PIPE_DIRECTORY"] == "/tmp/nvidia-mps"
            assert env["CUDA_MPS_PINNED_DEVICE_MEM_LIMIT"] == "0=8155M"
            assert env["CUDA_MPS_ACTIVE_THREAD_PERCENTAGE"] == "25"
            spec = json.loads((world.directory / "d/bundles" / container_id / "config.json").read_text())
            found = {one["destination"]: one["source"] for one in spec["mounts"]}
            assert found["/tmp/nvidia-mps"] == f"/run/cgpu-mps/{GPU[1]}/pipe"
            assert found["/dev/shm"] == f"/run/cgpu-mps/{GPU[1]}/shm"
            assert [one["destination"] for one in spec["mounts"]].count("/dev/shm") == 1

    run(main())


def test_an_author_cannot_choose_the_pipes(world: World, run: Run) -> None:
    async def main() -> None:
        async with world.running():
            await admitted(world)
            await ready(world)
            pod = world.pod("p", container(mem=8), annotations=bound(1, 8))
            error = await world.refused(pod, "main", f"CUDA_MPS_PIPE_DIRECTORY=/run/cgpu-mps/{GPU[0]}/pipe")
            assert "leads to an MPS daemon" in error

    run(main())


def test_without_its_daemon_nothing_starts(world: World, run: Run) -> None:
    async def main() -> None:
        async with world.running():
            await admitted(world)
            await ready(world)
            error = await world.refused(world.pod("p", container(mem=8), annotations=bound(0, 8)))
            assert error.endswith(f"no daemon runs for GPU {GPU[0]}: systemctl start cgpu-mps@{GPU[0]}")

    run(main())


def test_another_compute_mode_or_policy_is_refused(world: World, run: Run, modes: list[str]) -> None:
    async def decided(gpu: int) -> str:
        pod = world.pod(f"p{gpu}", container(mem=8), annotations=bound(gpu, 8))
        reply = await world.prepare(world.bundle(pod, "main", {"ALIYUN_COM_GPU_GRANT": "kube"}))
        return str(reply["error"])

    async def main() -> None:
        first, second = world.link.inventory
        world.link.inventory = (first, replace(second, policy=2))
        async with world.running():
            await admitted(world)
            await ready(world, 15)
            assert await decided(1) == "GPU 1 has policy weighted, and clients of MPS need policy native"
            modes[0] = ""
            await admitted(world)
            await eventually(lambda: offered(world) == 0, "nothing")
            assert "is in compute mode default, and its MPS daemon needs exclusive process" in await decided(0)

    run(main())


def test_a_slice_without_mps_is_refused_on_such_a_gpu(world: World, run: Run) -> None:
    async def main() -> None:
        async with world.running():
            reply = await world.node.prepare(ANY)
            assert "in compute mode exclusive process, in which it cannot be shared" in reply["error"]

    run(main())
