# SPDX-License-Identifier: MIT
"""The mode share: the real nodes of one GPU, nothing limited; pods of the other modes are refused."""

from __future__ import annotations

import json
from contextlib import AbstractAsyncContextManager
from pathlib import Path

import pytest
from fakes import eventually
from node_world import World, bound, container, placed
from test_node import restarted_after_init

from cgpu_common.config import Config
from cgpu_common.settings import GpuSettings
from cgpu_kube import annotations as keys

UNITS = 2 * (15 + 80)


def sharing(tmp_path: Path) -> World:
    world = World(tmp_path, mode="share", settings={"overcommit": 200})
    world.has_real_nodes()
    return world


@pytest.fixture
def world(tmp_path: Path) -> AbstractAsyncContextManager[World]:
    return sharing(tmp_path).offering(UNITS)


def nodes(world: World, container_id: str) -> set[str]:
    spec = json.loads((world.directory / "d/bundles" / container_id / "config.json").read_text())
    return {one["path"] for one in spec["linux"]["devices"] if "nvidia" in one["path"]}


async def test_a_pod_has_the_real_nodes_of_its_gpu_and_no_other(world: World) -> None:
    pods = [world.pod(f"p{n}", container(mem=12), annotations=bound(1, 12)) for n in range(12)]
    for pod in pods:  # 144 of 80: over-commit by choice
        container_id = await world.start(pod)
        assert nodes(world, container_id) == {"/dev/nvidiactl", "/dev/nvidia-uvm", "/dev/nvidia1"}
        env = world.env(container_id)
        assert (env["CGPU_DISABLE"], env[keys.INDEX], env[keys.DEV]) == ("true", "1", "80")
    assert not world.link.containers, "nothing is limited"


async def test_a_slice_on_the_gpu_excludes_it(world: World) -> None:
    variables = {"ALIYUN_COM_GPU_MEM_DEV": "15", "ALIYUN_COM_GPU_MEM_CONTAINER": "6", keys.INDEX: "0"}
    await world.node.ask(op="grant", grant={"subject": {"id": "f" * 64}, "variables": variables})
    assert (await world.node.prepare("f" * 64, ()))["ok"]
    pod = world.pod("p", container(mem=6), annotations=bound(0, 6))
    assert "GPU 0 has 1 slices" in await world.refused(pod)
    assert "the containers with slices have to end first" in await world.refused(pod)


async def test_a_pod_counts_on_its_gpu_when_its_init_container_has_ended(world: World) -> None:
    """cgpud has no slice of it, and no record."""
    await restarted_after_init(world, UNITS, 100, 90)


async def test_two_gpus_are_refused(world: World) -> None:
    written = placed({"main": {0: 4, 1: 4}}, 15)
    pod = world.pod("p", container(mem=8), annotations=written, labels={keys.GPU_COUNT: "2"})
    assert "is on 2 GPUs, and a container in mode share has one" in await world.refused(pod)


async def test_a_whole_gpu_is_refused_where_the_administrator_shares_in_slices_only(tmp_path: Path) -> None:
    world = sharing(tmp_path)
    world.node.config = Config(gpu=GpuSettings(unsliced="refuse"))
    async with world.offering(UNITS):
        pod = world.pod("p", container(mem=6), annotations=bound(0, 6))
        assert 'unsliced = "refuse" in cgpu.toml' in await world.refused(pod)
        await eventually(lambda: not world.link.containers, "nothing")
