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

NAMES = ("nvidiactl", "nvidia0", "nvidia-uvm")
TOLERANCE_PCT = 1.0
WEIGHTED = "2"
#: Whole rounds of it are left out at both ends, while only one of the two computes.
SECONDS = "20"


def loaded(box: Box) -> subprocess.Popen:
    """A load that finds the box's nodes where NVIDIA's libraries look for them."""
    binds = "; ".join(f"mount --bind {box.dev}/{name} /dev/{name}" for name in NAMES)
    words = ("gpuload", "--json", "--seconds", SECONDS, "--interval", "0.2", "--iterations", "1", "--depth", "16")
    script = f"{binds}; exec {' '.join(words)}"
    return subprocess.Popen(["unshare", "-m", "sh", "-c", script], stdout=subprocess.PIPE, text=True)


def samples(load: subprocess.Popen) -> list[tuple[float, float]]:
    out, _ = load.communicate(timeout=1500)
    lines = [json.loads(line) for line in out.splitlines() if line.startswith("{")]
    assert load.returncode == 0, out
    return [(line["monotonic"], line["works"]) for line in lines if line["event"] == "progress"]


@contextlib.contextmanager
def weighted() -> Iterator[float]:
    """Seconds of a round of three slices."""
    policy = PROC / "0/policy"
    before = policy.read_text()
    policy.write_text(WEIGHTED)
    yield 3 * int((PROC / "0/slice_us").read_text()) / 1e6
    policy.write_text(before)


def test_one_to_two() -> None:
    with Box("a" * 64, 4096, weight=1) as one, Box("b" * 64, 4096, weight=2) as two, c.long_kernels():
        with weighted() as round_s:
            loads = [loaded(box) for box in (one, two)]
            both = [samples(load) for load in loads]
        begin = max(seen[0][0] for seen in both) + 2
        end = min(seen[-1][0] for seen in both) - 0.5
        window = int((end - begin) / round_s) * round_s
        assert window > 5, both
        rates = [c.rate(seen, begin, begin + window) for seen in both]
        error = abs(rates[1] / rates[0] / 2 - 1) * 100
        print(f"{rates[0]:.1f} : {rates[1]:.1f} works/s over {window} s, {error:.2f} % off 1 : 2")
        assert error <= TOLERANCE_PCT, rates
