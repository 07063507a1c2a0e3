# SPDX-License-Identifier: MIT
"""NVIDIA's own libcuda over cgpu_km over NVIDIA's own nvidia.ko and nvidia-uvm.ko: only the card is not theirs.

The card executes no kernel: the tests check results of calls, copied data and times, as those of the level `cuda` do.
"""

from __future__ import annotations

import contextlib
import json
import re
import time
from collections.abc import Iterator

import cuda_box as c
import docker_box as d
import pytest
from slicebox import PROC, Box

pytestmark = pytest.mark.driver

NAMES = ("c" * 64, "e" * 64)
SLICE_MIB, OTHER_MIB = 6144, 8192
ROUNDS, WINDOW_S, TOLERANCE_PCT = 3, 12.0, 3.0
#: Of the walk: all but "managed", where the GPU has to raise page faults, which this card does not.
STEPS = (
    "context memory host module launch streams events graph graph-by-hand vmm export pools ipc over primary contexts"
)


@pytest.fixture
def box() -> Iterator[Box]:
    with Box(NAMES[0], SLICE_MIB) as box:
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


@contextlib.contextmanager
def load(box: Box) -> Iterator[c.Progress]:
    progress = c.Progress([*c.in_nodes(box.dev), *c.LOAD])
    try:
        assert progress.wait_event("ready", 180), progress.last_words()
        yield progress
    finally:
        progress.stop()


def test_one_to_two() -> None:
    policy = PROC / "0/policy"
    before = policy.read_text()
    with Box(NAMES[0], SLICE_MIB, weight=1) as one, Box(NAMES[1], OTHER_MIB, weight=2) as two, c.long_kernels():
        try:
            policy.write_text("2")
            round_s = 3 * int((PROC / "0/slice_us").read_text()) / 1e6
            with load(one) as first, load(two) as second:
                for _ in range(ROUNDS):  # a busy host wakes timers late
                    time.sleep(2)
                    begin = time.monotonic()
                    end = begin + c.whole_rounds(WINDOW_S, round_s)
                    assert first.wait_until(end, 120) and second.wait_until(end, 120)
                    rates = [c.rate(each.samples(), begin, end) for each in (first, second)]
                    error = abs(rates[1] / rates[0] / 2 - 1) * 100
                    print(f"{rates[0]:.1f} : {rates[1]:.1f} works/s, {error:.2f} % off 1 : 2")
                    if error <= TOLERANCE_PCT:
                        break
        finally:
            policy.write_text(before)
    assert error <= TOLERANCE_PCT, rates
