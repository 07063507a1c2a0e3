# SPDX-License-Identifier: MIT
"""What an author writes, by ours or others' names: through extender, kubelet, agent and cgpud to the slice."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from cluster import Cluster
from node_world import NODE, PODS, SIZES, World, container
from test_choice import named, nv_container, offered

from cgpu_common.cards import NvmlGpu
from cgpu_common.model import MIB
from cgpu_kube import annotations as notes
from cgpu_kube.annotations import NV_GPU, NV_MEM

MODELS = ("Tesla T4", "NVIDIA H100 80GB HBM3")
WEIGHTED = 2  # a policy that weights count for
LIMIT, REQUEST = (f"nvidia.com/container.main.gpu-memory.{word}" for word in ("limit", "request"))
NVIDIA_LIMIT = "NVIDIA_GPU_MEMORY_LIMIT"


@asynccontextmanager
async def scheduled(directory: Path) -> AsyncIterator[tuple[World, Cluster]]:
    """A node of two GPUs that takes others' names and compute, and an extender on the same API server."""
    world = World(directory, mode="core_mem")
    world.link.inventory = tuple(replace(gpu, policy=WEIGHTED) for gpu in world.link.inventory)
    world.node.nvml = lambda: tuple(
        NvmlGpu(n, gpu.uuid, gpu.pci, n, gpu.total // MIB, name=MODELS[n], used_mib=0)
        for n, gpu in enumerate(world.link.inventory)
    )
    async with world.running(), Cluster(server=world.api) as cluster:
        world.label("core_mem", **{notes.NAMES_LABEL: notes.NAMES})
        await offered(world, 40)
        probe = named({NV_GPU: 1, NV_MEM: 300})
        while not (await cluster.filter(probe, NODE))["NodeNames"]:
            await asyncio.sleep(0.02)
        yield world, cluster


async def run(world: World, cluster: Cluster, spec: dict[str, Any], *author: str, **more: Any) -> str:
    """The pod is made, bound by the extender, and its container started by the kubelet: the id."""
    found = world.pod("p", spec, spec={"nodeName": ""}, **more)
    assert (await cluster.filter(found, NODE))["NodeNames"] == [NODE]
    assert await cluster.bind(found, NODE) == ""
    bound = world.api.get(PODS, "team", "p")
    assert bound["spec"]["nodeName"] == NODE
    return await world.start(bound, "main", *author)


@pytest.mark.parametrize(
    ("spec", "annotations", "slots"),
    [
        (container(mem=6, core=25), {}, [(0, 6043, 5)]),
        (nv_container(gpu=1), {LIMIT: "4Gi"}, [(0, 4096, 1)]),
        (nv_container(gpu=1), {REQUEST: "3Gi"}, [(0, 3072, 1)]),
        (nv_container(gpu=1, mem=6000), {LIMIT: "4Gi", REQUEST: "2Gi"}, [(0, 4096, 1)]),
        (nv_container(gpu=1, mem=6000), {}, [(0, 6000, 1)]),
        (nv_container(gpu=1, mem=20000), {}, [(1, 20000, 1)]),
        (nv_container(gpu=1, mem=6000, cores=30), {}, [(0, 6000, 6)]),
        (nv_container(gpu=1, percent=50), {notes.HAMI_TYPE: "H100"}, [(1, SIZES[1] // 2, 1)]),
        (nv_container(gpu=2, percent=50), {}, [(0, SIZES[0] // 2, 1), (1, SIZES[1] // 2, 1)]),
        (nv_container(gpu=2, mem=900, cores=50), {}, [(0, 900, 10), (1, 900, 10)]),
    ],
    ids=["ours", "limit", "request", "both", "gpumem", "large", "gpucores", "percentage", "two-percent", "two"],
)
async def test_the_slice_is_what_was_asked_for(
    tmp_path: Path, spec: dict[str, Any], annotations: Mapping[str, str], slots: list[tuple[int, int, int]]
) -> None:
    async with scheduled(tmp_path) as (world, cluster):
        started = await run(world, cluster, spec, annotations=annotations)
        found = world.link.containers[started].slots
        assert [(one.gpu, one.limit // MIB, one.weight) for one in found] == slots


@pytest.mark.parametrize("said", ["1024", "99999", "much"])
async def test_nvidias_variable_changes_no_grant(tmp_path: Path, said: str) -> None:
    """NVIDIA's toolkit reads it from a container's environment, where the author writes it: the pod's amount counts."""
    async with scheduled(tmp_path) as (world, cluster):
        started = await run(world, cluster, nv_container(gpu=1), f"{NVIDIA_LIMIT}={said}", annotations={LIMIT: "4Gi"})
        assert world.slots(started) == [(0, 4096)]


@pytest.mark.parametrize(
    ("spec", "annotations", "sentence"),
    [
        (nv_container(gpu=1, mem=90000), {}, "90000 MiB asked for"),
        (nv_container(gpu=1), {LIMIT: "4 GB"}, f"annotation {LIMIT}=4 GB"),
        (nv_container(gpu=1, percent=50), {notes.HAMI_TYPE: "A100"}, "and A100 asked for"),
        (nv_container(mem=6000), {}, "nvidia.com/gpumem without nvidia.com/gpu"),
    ],
    ids=["too-much", "limit", "model", "no-gpu"],
)
async def test_what_cannot_be_is_a_sentence_before_it_is_bound(
    tmp_path: Path, spec: dict[str, Any], annotations: Mapping[str, str], sentence: str
) -> None:
    async with scheduled(tmp_path) as (world, cluster):
        found = world.pod("p", spec, spec={"nodeName": ""}, annotations=annotations)
        answer = await cluster.filter(found, NODE)
        assert answer["NodeNames"] == [] and sentence in answer["FailedNodes"][NODE]
        assert sentence in await cluster.bind(found, NODE)
        assert not world.link.containers
