# SPDX-License-Identifier: MIT
"""Shares of NVIDIA's own libcuda, in exact guest time: two plain containers, 1 : 2 by weight."""

from __future__ import annotations

import contextlib
import json
import subprocess
from collections.abc import Iterator

import cuda_box as c
import pytest
from slicebox import PROC, Box

pytestmark = pytest.mark.cuda_icount

TOLERANCE_PCT = 1.0
WEIGHTED = "2"
#: Whole rounds of it are left out at both ends, while only one of the two computes.
SECONDS = "20"


LOAD = f"gpuload --json --seconds {SECONDS} --interval 0.2 --iterations 1 --depth 16"


def loaded(box: Box, script: str = f"exec {LOAD}") -> subprocess.Popen:
    return subprocess.Popen([*c.in_nodes(box.dev), "sh", "-c", script], stdout=subprocess.PIPE, text=True)


#: Two clients of an MPS server of their own; what a line of the second says is not counted twice.
MPS = f"""
export CUDA_MPS_PIPE_DIRECTORY=$(mktemp -d) CUDA_MPS_LOG_DIRECTORY=$(mktemp -d)
nvidia-cuda-mps-control -d
{LOAD} >$CUDA_MPS_LOG_DIRECTORY/second & second=$!
{LOAD} || exit
wait $second || exit
grep -q ACTIVE $CUDA_MPS_LOG_DIRECTORY/server.log || exit
sed 's/^/second /' $CUDA_MPS_LOG_DIRECTORY/second
echo quit | nvidia-cuda-mps-control
"""


def samples(load: subprocess.Popen) -> tuple[list[tuple[float, float]], ...]:
    """Of the load, and of its second client if it has one."""
    out, _ = load.communicate(timeout=1500)
    assert load.returncode == 0, out
    found = []
    for head in ("{", "second {"):
        lines = [json.loads(line[len(head) - 1 :]) for line in out.splitlines() if line.startswith(head)]
        found.append([(line["monotonic"], line["works"]) for line in lines if line["event"] == "progress"])
    return tuple(seen for seen in found if seen)


@contextlib.contextmanager
def weighted() -> Iterator[float]:
    """Seconds of a round of three slices."""
    policy = PROC / "0/policy"
    before = policy.read_text()
    policy.write_text(WEIGHTED)
    yield 3 * int((PROC / "0/slice_us").read_text()) / 1e6
    policy.write_text(before)


@pytest.mark.parametrize("first", [f"exec {LOAD}", MPS], ids=["alone", "two clients of MPS"])
def test_one_to_two(first: str) -> None:
    with Box("a" * 64, 4096, weight=1) as one, Box("b" * 64, 4096, weight=2) as two, c.long_kernels():
        with weighted() as round_s:
            loads = [loaded(one, first), loaded(two)]
            both = [samples(load) for load in loads]
        assert [len(seen) for seen in both] == [1 + (first == MPS), 1]
        everything = [seen for clients in both for seen in clients]
        begin = max(seen[0][0] for seen in everything) + 2
        end = min(seen[-1][0] for seen in everything) - 0.5
        window = int((end - begin) / round_s) * round_s
        assert window > 5, both
        rates = [sum(c.rate(seen, begin, begin + window) for seen in clients) for clients in both]
        error = abs(rates[1] / rates[0] / 2 - 1) * 100
        print(f"{rates[0]:.1f} : {rates[1]:.1f} works/s over {window} s, {error:.2f} % off 1 : 2")
        assert error <= TOLERANCE_PCT, rates
