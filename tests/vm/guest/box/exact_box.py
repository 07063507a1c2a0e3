# SPDX-License-Identifier: MIT
"""Shares of NVIDIA's own libcuda in exact guest time: two plain containers with weights 1 and 2, under policy 2."""

from __future__ import annotations

import json
import subprocess

import cuda_box as c
from slicebox import PROC, Box

TOLERANCE_PCT = 1.0
WEIGHTED = "2"
#: Whole rounds of it are left out at both ends, while only one of the two computes.
SECONDS = "20"
LOAD = f"gpuload --json --seconds {SECONDS} --interval 0.2 --iterations 1 --depth 16"
ALONE = f"exec {LOAD}"


def loaded(box: Box, script: str = ALONE) -> subprocess.Popen:
    return subprocess.Popen([*c.in_nodes(box.dev), "sh", "-c", script], stdout=subprocess.PIPE, text=True)


def samples(load: subprocess.Popen) -> tuple[list[tuple[float, float]], ...]:
    """Of the load, and of its second client if it has one, whose lines begin with "second"."""
    out, _ = load.communicate(timeout=1500)
    assert load.returncode == 0, out
    found = []
    for head in ("{", "second {"):
        lines = [json.loads(line[len(head) - 1 :]) for line in out.splitlines() if line.startswith(head)]
        found.append([(line["monotonic"], line["works"]) for line in lines if line["event"] == "progress"])
    return tuple(seen for seen in found if seen)


def one_to_two(first: str = ALONE) -> tuple[float, list[int]]:
    """Percent that the shares are off 1 : 2, and how many clients each container had."""
    policy = PROC / "0/policy"
    before = policy.read_text()
    with Box("a" * 64, 4096, weight=1) as one, Box("b" * 64, 4096, weight=2) as two, c.long_kernels():
        policy.write_text(WEIGHTED)
        try:
            round_s = 3 * int((PROC / "0/slice_us").read_text()) / 1e6
            loads = [loaded(one, first), loaded(two)]
            both = [samples(load) for load in loads]
        finally:
            policy.write_text(before)
    everything = [seen for clients in both for seen in clients]
    begin = max(seen[0][0] for seen in everything) + 2
    end = min(seen[-1][0] for seen in everything) - 0.5
    window = int((end - begin) / round_s) * round_s
    assert window > 5, both
    rates = [sum(c.rate(seen, begin, begin + window) for seen in clients) for clients in both]
    error = abs(rates[1] / rates[0] / 2 - 1) * 100
    print(f"{rates[0]:.1f} : {rates[1]:.1f} works/s over {window} s, {error:.2f} % off 1 : 2")
    return error, [len(clients) for clients in both]
