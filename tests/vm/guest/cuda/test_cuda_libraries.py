# SPDX-License-Identifier: MIT
"""NVIDIA's cuBLAS, cuFFT, NCCL and CUDA 13's runtime in a slice: as on the driver alone, charged, limited.

The GPUs are simulated and execute no kernel: calls, memory and ends are compared, results of kernels are not.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import cuda_box as c
import docker_box as d
import pytest
from peers_box import Pair
from slicebox import MIB, fb_used, until

pytestmark = [pytest.mark.cuda_nvcc, pytest.mark.gpus(2)]

LIMIT_MIB = 1024
HOME = d.BUILD / "nvidia/libraries"
INSUFFICIENT_DRIVER = 35  # cudaErrorInsufficientDriver
OUT_OF_MEMORY = 2
CUBLAS_NO_MEMORY = 3  # CUBLAS_STATUS_ALLOC_FAILED
#: NCCL's transport between two GPUs, as its log names it, by its variables.
TRANSPORTS = {"P2P/": {"NCCL_P2P_LEVEL": "SYS"}, "SHM/": {"NCCL_P2P_DISABLE": "1"}}


@dataclass(frozen=True)
class Ran:
    """Of a program: results by call, memory of each GPU while it held them, its exit status and its stderr.

    In a slice without the charge for contexts, which the simulated card takes nothing for.
    """

    steps: dict[str, int]
    after: dict[str, int]
    held: tuple[int, int]
    status: int
    log: str


@pytest.fixture
def pair() -> Iterator[Pair]:
    before = card()
    with Pair(LIMIT_MIB) as pair:
        yield pair
    until(lambda: card() == before)


def card() -> tuple[int, int]:
    return fb_used(0), fb_used(1)


def charged(pair: Pair) -> tuple[int, int]:
    first, second = (pair.stat("used_bytes", gpu) - pair.stat("used_context_bytes", gpu) for gpu in (0, 1))
    return first, second


def run(what: str, pair: Pair | None = None, **variables: str) -> Ran:
    """Of the driver alone without a pair: what is held then is by the cards' own count."""
    head = c.in_nodes(pair.dev, gpus=2) if pair else ()
    path = ":".join((str(HOME), *filter(None, [os.environ.get("LD_LIBRARY_PATH")])))
    pipes: dict[str, Any] = dict.fromkeys(("stdin", "stdout", "stderr"), subprocess.PIPE)
    environ = {**os.environ, "LD_LIBRARY_PATH": path, "NCCL_DEBUG": "INFO", **variables}
    before = card()
    program = subprocess.Popen([*head, str(d.BUILD / "cuda/libraries"), what], text=True, env=environ, **pipes)
    try:
        assert program.stdout
        line = program.stdout.readline()
        first, second = card()
        held = charged(pair) if pair else (first - before[0], second - before[1])
        rest, log = program.communicate("\n", timeout=300)
    finally:
        program.kill()
    assert line and rest, log
    return Ran(json.loads(line)["steps"], json.loads(rest)["after"], held, program.returncode, log)


@pytest.mark.parametrize("what", ["cublas", "cufft"])
def test_a_library(pair: Pair, what: str) -> None:
    alone, sliced = run(what), run(what, pair)
    assert set(alone.steps.values()) | set(alone.after.values()) == {0}
    assert (sliced.steps, sliced.after, sliced.status) == (alone.steps, alone.after, 0)
    assert sliced.held == alone.held and sliced.held[0] > 0 == sliced.held[1]
    print(f"{what}: {sliced.held[0] / MIB:.2f} MiB charged")


def test_a_library_in_a_full_slice(pair: Pair) -> None:
    """cuBLAS says of a slice what it says of a full card; for the next process there is room."""
    alone, found = run("cublas-full"), run("cublas-full", pair)
    assert (found.steps, found.after, found.status) == (alone.steps, alone.after, 0)
    assert (found.steps["cudaMalloc of the last"], found.steps["cublasCreate_v2"]) == (OUT_OF_MEMORY, CUBLAS_NO_MEMORY)
    assert found.held[0] <= LIMIT_MIB * MIB
    assert pair.stat("refused_allocs") > 0
    assert set(run("cublas", pair).steps.values()) == {0}


@pytest.mark.parametrize("transport", TRANSPORTS)
def test_two_processes_by_nccl(pair: Pair, transport: str) -> None:
    """By peer access, and by NCCL's fall-back through the host's memory."""
    alone, sliced = run("nccl", **TRANSPORTS[transport]), run("nccl", pair, **TRANSPORTS[transport])
    for found in (alone, sliced):
        ways = re.findall(r"Channel \d+(?:/\d+)? : \S+ -> \S+ via (\S+)", found.log)
        assert ways and all(way.startswith(transport) for way in ways), found.log
    assert set(alone.steps.values()) | set(alone.after.values()) == {0}
    assert (sliced.steps, sliced.after, sliced.status) == (alone.steps, alone.after, 0)
    print(f"nccl, {transport}: alone {alone.held}, sliced {sliced.held}")
    assert sliced.held == alone.held and min(sliced.held) > 0


def test_a_runtime_newer_than_the_driver(pair: Pair) -> None:
    """CUDA 13's, over a driver of 12.4: its own answer comes through, and nothing is taken."""
    alone, sliced = run("runtime13"), run("runtime13", pair)
    assert alone.steps == {"cudaDriverGetVersion": 0} | dict.fromkeys(
        ("cudaGetDeviceCount", "cudaMalloc"), INSUFFICIENT_DRIVER
    )
    assert (sliced.steps, sliced.after, sliced.held) == (alone.steps, alone.after, (0, 0))
