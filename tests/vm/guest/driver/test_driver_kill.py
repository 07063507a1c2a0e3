# SPDX-License-Identifier: MIT
"""A program of libcuda is ended at many points between its first call and its last: nothing of it may be left.

The points lie evenly among its calls into the driver. At each the program is killed once before the call and once in it
or shortly after; then its container is charged for nothing, and the card has its memory back by the byte.
"""

from __future__ import annotations

import signal
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import cuda_box as c
import nvclient
import pytest
from slicebox import REPO, Box, until

pytestmark = pytest.mark.driver

NAME = "9" * 64
LIMIT_MIB = 4096
LIBRARY = REPO / "build/cuda/libkill.so"
PROGRAM = ("gpuload", "--seconds", "0.2", "--alloc-mib", "256", "--iterations", "1")
POINTS = 24
AFTER_US = 300


@pytest.fixture(scope="module")
def box() -> Iterator[Box]:
    with Box(NAME, LIMIT_MIB) as box:
        yield box


def start(box: Box, **more: object) -> subprocess.Popen:
    words = [f"{name}={value}" for name, value in ({"LD_PRELOAD": LIBRARY} | more).items()]
    return subprocess.Popen(
        [*c.in_nodes(box.dev), "env", *words, *PROGRAM], stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True
    )


def free_bytes(card: nvclient.Gpu) -> int:
    return card.fb_info(nvclient.NV2080_CTRL_FB_INFO_INDEX_HEAP_FREE)[0] << 10


@pytest.fixture(scope="module")
def calls(box: Box, tmp_path_factory: pytest.TempPathFactory) -> int:
    """How many calls the program makes where it is not killed."""
    count = Path(tmp_path_factory.mktemp("kill"), "count")
    whole = start(box, KILL_COUNT=count)
    _, errors = whole.communicate(timeout=300)
    assert whole.returncode == 0, errors
    return int(count.read_text())


@pytest.mark.parametrize("after_us", [0, AFTER_US], ids=["before the call", "in the call"])
def test_nothing_is_left_of_a_program_that_is_killed(box: Box, card: nvclient.Gpu, calls: int, after_us: int) -> None:
    assert calls > 200
    free = free_bytes(card)
    print(f"{calls} calls")
    left, ended = {}, 0
    for point in range(POINTS):
        at = 1 + point * (calls - 1) // (POINTS - 1)
        one = start(box, KILL_AT=at, KILL_US=after_us)
        one.communicate(timeout=300)
        ended += one.returncode in (-signal.SIGKILL, -signal.SIGALRM)
        until(lambda: box.used == 0, 30)
        end = time.monotonic() + 5
        while free_bytes(card) != free and time.monotonic() < end:
            time.sleep(0.05)
        if lost := free - free_bytes(card):
            left[at] = lost
    assert not left, "bytes lost, by the call at which the program was killed"
    assert ended >= POINTS - 2, "the last calls are made at the exit, and their number changes a little"
