# SPDX-License-Identifier: MIT
"""NVIDIA's MPS inside of containers: control daemon, server and clients in one container share its slice."""

from __future__ import annotations

import contextlib
import json
import os
import signal
from collections.abc import Iterator
from pathlib import Path

import cuda_box as c
import docker_box as d
import pytest
from docker_box import variables

pytestmark = pytest.mark.cuda

SLICES = (6043, 8058)
ONE, TWO = variables(6, devices=0, weight=1), variables(8, devices=0, weight=2)
SERVER = b"nvidia-cuda-mps-server"
LOG = "/tmp/mps-log"
#: The driver attribute MPS_ENABLED, which libcuda has from 550 on.
MPS_ENABLED = "init/cuDeviceGetAttribute 133"


@pytest.fixture(scope="module", autouse=True)
def image() -> None:
    c.make_image()


@pytest.fixture(scope="module")
def bare_walk() -> dict:
    return c.walk()


@pytest.fixture
def pair() -> Iterator[tuple[d.Box, d.Box]]:
    """6 and 8 of 15 GiB, weights 1 and 2, each with a control daemon of its own; nothing is left of them."""
    before = c.card_used()
    with c.box(*ONE) as one, c.box(*TWO) as two:
        for box in (one, two):
            start_daemon(box)
        yield one, two
    d.until(lambda: c.card_used() == before, "all is back")


def start_daemon(box: d.Box) -> None:
    """As NVIDIA documents it; the server starts with the first client."""
    c.program(box, "env", f"CUDA_MPS_LOG_DIRECTORY={LOG}", "nvidia-cuda-mps-control", "-d")


def used(box: d.Box) -> int:
    return int(dict(line.split(" ", 1) for line in (box.dir / "stat").read_text().splitlines())["used_bytes"])


def servers(box: d.Box) -> set[int]:
    """By the host's numbers."""
    return {pid for pid in c.processes(box) if SERVER in Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")[0]}


def server_log(box: d.Box) -> str:
    return c.program(box, "cat", f"{LOG}/server.log")


@pytest.mark.more
def test_no_result_differs_through_mps(pair: tuple[d.Box, d.Box], bare_walk: dict) -> None:
    """Of some 300 calls, against the driver alone without MPS."""
    one = pair[0]
    sliced = c.walk("docker", "exec", one.id)
    assert not c.changed(bare_walk["results"], sliced["results"]), server_log(one)
    assert sliced["seen"]["init/total_mib"] == sliced["seen"]["context/total_mib"] == SLICES[0]
    assert sliced["seen"].get(MPS_ENABLED) == (1 if int(c.BRANCH) >= 550 else None)
    assert len(servers(one)) == 1
    assert "is ACTIVE" in server_log(one)


@pytest.mark.more
def test_server_and_clients_share_the_limit(pair: tuple[d.Box, d.Box]) -> None:
    """Together they take no more than the slice; what does not fit is the client's error, and the others go on."""
    one, two = pair
    half = SLICES[0] * 6 // 10
    with c.load(two) as neighbour, c.load(one, (*c.LOAD, "--alloc-mib", str(half))) as first:
        assert half * d.MIB < used(one) <= SLICES[0] * d.MIB
        over = c.inside(one, "gpuload", "--json", "--seconds", "1", "--alloc-mib", str(half))
        said = json.loads(over.stdout.splitlines()[-1])
        assert over.returncode == d.OVER_LIMIT, over.stderr
        assert (said["first_error"]["call"], said["first_error"]["status"]) == ("cuMemAlloc", c.OUT_OF_MEMORY)
        assert used(one) <= SLICES[0] * d.MIB
        done = [load.works() for load in (neighbour, first)]
        with c.load(one) as second:
            d.until(lambda: second.works() > 10, "a second client works beside the first")
            assert len(servers(one)) == 1
        d.until(lambda: neighbour.works() > done[0] + 10 and first.works() > done[1] + 10, "neighbour and first go on")


def killed(pids: set[int]) -> None:
    assert pids
    for pid in pids:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)


@pytest.mark.more
def test_a_killed_client_and_a_killed_server_leave_nothing(pair: tuple[d.Box, d.Box]) -> None:
    one, two = pair
    with c.load(two) as neighbour:
        c.program(one, "gpuload", "--json", "--seconds", "1")
        server_alone = used(one)
        before = c.processes(one)
        with c.load(one, (*c.LOAD, "--alloc-mib", "2048")):
            assert used(one) > server_alone + 2048 * d.MIB
            killed(c.processes(one) - before)
            d.until(lambda: used(one) == server_alone, "the client's memory is back")
        with c.load(one, (*c.LOAD, "--alloc-mib", "2048")):
            killed(servers(one))
            killed(c.processes(one) - before)
            d.until(lambda: used(one) == 0, "all of it is back")
        works = neighbour.works()
        d.until(lambda: neighbour.works() > works + 10, "the neighbour goes on")
        c.program(one, "gpuload", "--json", "--seconds", "1")
