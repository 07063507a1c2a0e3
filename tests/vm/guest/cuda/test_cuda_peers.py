# SPDX-License-Identifier: MIT
"""NVIDIA's own libcuda on two GPUs of one container: copies between them, and an all-reduce of two processes.

The GPUs are simulated and execute no kernel: what is summed is summed by the processor (tests/cuda/peers/peers.c).
"""

from __future__ import annotations

from collections.abc import Iterator

import cuda_box as c
import pytest
from peers_box import Pair
from slicebox import MIB, fb_used, until

pytestmark = [pytest.mark.cuda_icount, pytest.mark.gpus(2)]

LIMIT_MIB = 1024


@pytest.fixture
def pair() -> Iterator[Pair]:
    before = fb_used(0), fb_used(1)
    with Pair(LIMIT_MIB) as pair:
        yield pair
    until(lambda: (fb_used(0), fb_used(1)) == before)


@pytest.mark.parametrize("what", ["copy", "reduce"])
def test_peers(pair: Pair, what: str) -> None:
    """Each call succeeds, the data arrives, and of the memory of either GPU nothing is charged on the other."""
    held, refused = c.peers(pair.dev, what, lambda: (pair.used(), [pair.stat("refused_allocs", gpu) for gpu in (0, 1)]))
    assert refused == [0, 0]
    print(f"{what}: {held[0] / MIB:.2f} MiB and {held[1] / MIB:.2f} MiB charged")
    assert held[0] == held[1], "the same on both: a context and its buffers, each charged where it lies"
