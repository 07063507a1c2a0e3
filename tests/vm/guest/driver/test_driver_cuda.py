# SPDX-License-Identifier: MIT
"""NVIDIA's own libcuda over cgpu_km over NVIDIA's own nvidia.ko and nvidia-uvm.ko: only the card is not theirs.

The card executes no kernel: the tests check results of calls, copied data and times, as those of the level `cuda` do.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator

import cuda_box as c
import docker_box as d
import pytest
from slicebox import Box

pytestmark = pytest.mark.driver

NAME = "c" * 64
SLICE_MIB = 6144
#: Of the walk: all but "managed", where the GPU has to raise page faults, which this card does not.
STEPS = (
    "context memory host module launch streams events graph graph-by-hand vmm export pools ipc over primary contexts"
)


@pytest.fixture
def box() -> Iterator[Box]:
    with Box(NAME, SLICE_MIB) as box:
        yield box


def test_nvidia_smi_lists_the_card() -> None:
    listed = d.must("nvidia-smi", "-L")
    assert re.fullmatch(r"GPU 0: Tesla T4 \(UUID: GPU-10111213-1415-1617-1819-1a1b1c1d1e1f\)\n", listed), listed


@pytest.fixture(scope="module")
def bare_walk() -> dict:
    """The walk on the driver without cgpu_km: the host's own nodes."""
    return c.walk(steps=STEPS.split())


def test_the_walk_on_the_driver_alone(bare_walk: dict) -> None:
    expected = {
        "launch/cuLaunchKernel of too many threads": 1,
        "over/cuMemAlloc_v2 of more than all": c.OUT_OF_MEMORY,
        "over/cuMemCreate of more than all": c.OUT_OF_MEMORY,
    }
    assert {name: result for name, result in bare_walk["results"].items() if result} == expected


def test_the_walk_in_a_container(box: Box, bare_walk: dict) -> None:
    sliced = c.walk(*c.in_nodes(box.dev), steps=STEPS.split())
    assert not c.changed(bare_walk["results"], sliced["results"])
    assert sliced["seen"]["init/total_mib"] == sliced["seen"]["context/total_mib"] == SLICE_MIB


def gpuload(box: Box, *options: object) -> tuple[int, dict]:
    """Its status and its last line."""
    done = d.call(*c.in_nodes(box.dev), "gpuload", "--json", *map(str, options))
    assert done.stdout, done.stderr
    return done.returncode, json.loads(done.stdout.splitlines()[-1])


def test_libcuda_over_the_limit(box: Box) -> None:
    status, said = gpuload(box, "--seconds", 1, "--alloc-mib", SLICE_MIB)
    assert (status, said["first_error"]["call"]) == (d.OVER_LIMIT, "cuMemAlloc")
    assert said["first_error"]["status"] == c.OUT_OF_MEMORY
    assert said["total_bytes"] == SLICE_MIB << 20
    assert box.used == 0
    status, said = gpuload(box, "--seconds", 1, "--alloc-mib", SLICE_MIB // 2)
    assert status == 0
    assert said["works"] > 0
