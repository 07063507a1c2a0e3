# SPDX-License-Identifier: MIT
"""NVIDIA's own libcuda on two GPUs of one container: copies between them, and an all-reduce of two processes.

The GPUs are simulated and execute no kernel: what is summed is summed by the processor (tests/cuda/peers/peers.c).
"""

from __future__ import annotations

import json
import subprocess
from collections.abc import Iterator

import cuda_box as c
import docker_box as d
import pytest
from slicebox import MIB, PROC, command, fb_used, until

pytestmark = [pytest.mark.cuda_icount, pytest.mark.gpus(2)]

NAME = "9d" * 32
LIMIT = 1024 * MIB
PROGRAM = d.BUILD / "cuda/peers"


@pytest.fixture
def dev() -> Iterator[str]:
    """The nodes of a container with GPUs 0 and 1; nothing of it may be left."""
    before = fb_used(0), fb_used(1)
    command(f"create {NAME} gpu=0,1 memsize={LIMIT},{LIMIT}")
    try:
        yield f"/dev/cgpu/{NAME[:12]}"
        until(lambda: used() == (0, 0))
        until(lambda: (fb_used(0), fb_used(1)) == before)
    finally:
        command(f"destroy {NAME}")
        until(lambda: not (PROC / "0" / NAME[:12]).exists())  # its last file may be closed after its process has ended


def used() -> tuple[int, ...]:
    return tuple(stat("used_bytes", gpu) for gpu in (0, 1))


def stat(key: str, gpu: int = 0) -> int:
    text = (PROC / str(gpu) / NAME[:12] / "stat").read_text()
    return int(dict(line.split() for line in text.splitlines())[key])


@pytest.mark.parametrize("what", ["copy", "reduce"])
def test_peers(dev: str, what: str) -> None:
    """Each call succeeds, the data arrives, and of the memory of either GPU nothing is charged on the other."""
    argv = [*c.in_nodes(dev, gpus=2), str(PROGRAM), what]
    run = subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    line = run.stdout.readline()
    held, refused = used(), [stat("refused_allocs", gpu) for gpu in (0, 1)]
    rest, errors = run.communicate("\n", timeout=300)
    said = json.loads(line)
    assert {name: result for name, result in said["steps"].items() if result} == {"can access": 1}, (line, errors)
    assert said["held"], line
    assert set(json.loads(rest)["after"].values()) == {0}, rest
    assert run.returncode == 0, errors
    assert refused == [0, 0]
    print(f"{what}: {held[0] / MIB:.2f} MiB and {held[1] / MIB:.2f} MiB charged")
    assert held[0] == held[1], "the same on both: a context and its buffers, each charged where it lies"
