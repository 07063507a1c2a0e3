# SPDX-License-Identifier: MIT
"""NVIDIA's own libraries and programs in Docker containers, by the documented lines.

The GPU is simulated and executes no kernel: the tests check results of calls, copied data and times.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterator

import cuda_box as c
import docker_box as d
import pytest
from docker_box import variables

pytestmark = pytest.mark.cuda

SLICES = (6043, 8058)
ONE, TWO = variables(6, devices=0, weight=1), variables(8, devices=0, weight=2)


@pytest.fixture(scope="module", autouse=True)
def image() -> None:
    c.make_image()


@pytest.fixture(scope="module")
def pair() -> Iterator[tuple[d.Box, d.Box]]:
    """6 and 8 of 15 GiB, weights 1 and 2."""
    with c.box(*ONE) as one, c.box(*TWO) as two:
        yield one, two


@pytest.fixture(autouse=True)
def nothing_left(pair: tuple[d.Box, d.Box]) -> Iterator[None]:
    """The memory of a test is free again once its programs have ended."""
    before = taken(pair)
    yield
    d.until(lambda: taken(pair) == before, "all is back")


def taken(pair: tuple[d.Box, d.Box]) -> list[int]:
    return [*(used(one) for one in pair), c.card_used()]


def used(one: d.Box) -> int:
    return int(dict(line.split(" ", 1) for line in (one.dir / "stat").read_text().splitlines())["used_bytes"])


# ---- what is seen ----


def test_nvidia_smi(pair: tuple[d.Box, d.Box]) -> None:
    for one, total in zip(pair, SLICES, strict=True):
        table = c.program(one, "nvidia-smi")
        assert re.search(rf"Driver Version: {c.release()}\b", table), table
        assert re.search(rf"\b\d+MiB / +{total}MiB", table), table
        assert "Tesla T4" in table


def test_nvidia_smi_lists_the_card(pair: tuple[d.Box, d.Box]) -> None:
    bare = d.must("nvidia-smi", "-L")
    assert bare.startswith("GPU 0: Tesla T4 (UUID: GPU-")
    for one in pair:
        assert c.program(one, "nvidia-smi", "-L") == bare


def test_nvidia_smi_queries(pair: tuple[d.Box, d.Box]) -> None:
    for one, total in zip(pair, SLICES, strict=True):
        said = c.program(one, "nvidia-smi", "-q")
        memory = re.search(r"FB Memory Usage\n((?: {8}.*\n)+)", said)
        assert memory, said
        numbers = dict(re.findall(r"(\w+) *: (.*)", memory[1]))
        assert numbers["Total"] == f"{total} MiB"
        assert int(numbers["Free"].split()[0]) <= total
        asked = c.program(one, "nvidia-smi", "--query-gpu=memory.total,driver_version", "--format=csv,noheader")
        assert asked.strip() == f"{total} MiB, {c.release()}"


PYNVML = """
import json, pynvml as n
n.nvmlInit()
h = n.nvmlDeviceGetHandleByIndex(0)
m = n.nvmlDeviceGetMemoryInfo(h)
seen = [n.nvmlSystemGetDriverVersion(), n.nvmlDeviceGetCount(), n.nvmlDeviceGetName(h)]
lists = (n.nvmlDeviceGetComputeRunningProcesses, n.nvmlDeviceGetComputeRunningProcesses_v2,
    n.nvmlDeviceGetGraphicsRunningProcesses, n.nvmlDeviceGetMPSComputeRunningProcesses)
print(json.dumps([*seen, m.total, m.free + m.used, [len(ask(h)) for ask in lists]]))
"""


@pytest.mark.more
def test_pynvml(pair: tuple[d.Box, d.Box]) -> None:
    for one, total in zip(pair, SLICES, strict=True):
        said = json.loads(c.program(one, "python3", "-c", PYNVML))
        assert said[:4] == [c.release(), 1, "Tesla T4", total * d.MIB]
        assert said[4] <= total * d.MIB
        assert said[5] == [0] * 4, "PyTorch needs a list, maybe empty, to report that it is out of memory"


# ---- the walk ----

#: For all steps but those that make their own: one for each would be most of the walk's time.
ONE_CONTEXT = ("-1",)


@pytest.fixture(scope="module")
def bare_walk() -> dict:
    """The walk on the simulated driver without cgpu_km: the host's own nodes."""
    return c.walk(steps=ONE_CONTEXT)


def test_the_walk_on_the_driver_alone(bare_walk: dict) -> None:
    """Checks the simulated driver with NVIDIA's library: without this, equal results would prove little."""
    expected = {
        "launch/cuLaunchKernel of too many threads": 1,
        "over/cuMemAlloc_v2 of more than all": c.OUT_OF_MEMORY,
        "over/cuMemCreate of more than all": c.OUT_OF_MEMORY,
    }
    failed = {name: result for name, result in bare_walk["results"].items() if result}
    assert failed == expected
    assert bare_walk["seen"]["context/total_mib"] == c.CARD_MIB


#: cuDeviceGetAttribute of the rates in kHz; CUDA's runtime ends if they are refused
CLOCK_RATE, MEMORY_CLOCK_RATE = 13, 36
#: PAGEABLE_MEMORY_ACCESS and READ_ONLY_HOST_REGISTER_SUPPORTED: no container's address space has HMM
NO_HMM = {88: 0, 113: 1}


def seen_attributes(said: dict) -> dict[int, float]:
    values = {name.split()[-1]: value for name, value in said["seen"].items() if "cuDeviceGetAttribute" in name}
    return {int(number): value for number, value in values.items()}


def test_attributes_on_the_driver_alone(bare_walk: dict) -> None:
    seen = seen_attributes(bare_walk)
    assert len(seen) > 120
    assert (seen[CLOCK_RATE], seen[MEMORY_CLOCK_RATE]) == (1590000, 5001000), "the simulated T4's"


def test_no_refusal_changes_a_result(pair: tuple[d.Box, d.Box], bare_walk: dict) -> None:
    sliced = c.walk("docker", "exec", pair[0].id, steps=ONE_CONTEXT)
    assert not c.changed(bare_walk["results"], sliced["results"])
    assert sliced["seen"]["init/total_mib"] == sliced["seen"]["context/total_mib"] == SLICES[0]
    attributes = [seen_attributes(said) for said in (bare_walk, sliced)]
    assert attributes[0] | NO_HMM == attributes[1]
    managed = {name: result for name, result in sliced["results"].items() if name.startswith("managed/") and result}
    assert list(managed) == ["managed/cuMemAllocManaged"]
    assert managed["managed/cuMemAllocManaged"] in c.NOT_SUPPORTED


# ---- limits and shares ----


def test_over_the_limit(pair: tuple[d.Box, d.Box]) -> None:
    one, two = pair
    with c.load(two) as neighbour:
        before = neighbour.works()
        done = c.inside(one, "gpuload", "--json", "--seconds", "1", "--alloc-mib", str(SLICES[0]))
        said = json.loads(done.stdout.splitlines()[-1])
        assert done.returncode == d.OVER_LIMIT, done.stderr
        assert said["first_error"]["call"] == "cuMemAlloc"
        assert said["first_error"]["status"] == c.OUT_OF_MEMORY
        assert said["total_bytes"] == SLICES[0] * d.MIB
        fits = c.inside(one, "gpuload", "--json", "--seconds", "1", "--alloc-mib", str(SLICES[0] // 2))
        assert fits.returncode == 0, fits.stderr
        d.until(lambda: neighbour.works() > before + 10, "the neighbour goes on")


def test_two_processes_in_one_container(pair: tuple[d.Box, d.Box]) -> None:
    """Both work, and together they use no more than the slice."""
    one = pair[0]
    half = str(SLICES[0] * 6 // 10)
    with c.load(one, (*c.LOAD, "--alloc-mib", half)) as first:
        over = c.inside(one, "gpuload", "--json", "--seconds", "1", "--alloc-mib", half)
        assert over.returncode == d.OVER_LIMIT, over.stderr
        before = first.works()
        beside = c.inside(one, "gpuload", "--json", "--seconds", "1", "--iterations", "1")
        assert beside.returncode == 0, beside.stderr
        assert json.loads(beside.stdout.splitlines()[-1])["works"] > 10
        d.until(lambda: first.works() > before + 10, "the first goes on")


def test_killed_in_the_middle(pair: tuple[d.Box, d.Box]) -> None:
    """Nothing of it is left; nothing_left() looks."""
    with c.load(pair[0], (*c.LOAD, "--alloc-mib", "2048")):
        pids = re.findall(r"PID: (\d+)", (pair[0].dir / "meminfo").read_text())
        assert pids and used(pair[0]) > 2048 * d.MIB
        for pid in pids:
            os.kill(int(pid), 9)
        d.until(lambda: used(pair[0]) < 2048 * d.MIB, "its memory is back")
