# SPDX-License-Identifier: MIT
"""Containers with a load, and the time the simulated GPU spent on each; cgpu_km's own figures are not used."""

from __future__ import annotations

import json
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from slicebox import PROC, Box

from cgpu_common.policies import Policy

GPU = PROC / "0"
TSGS = Path("/proc/driver/nvsim/0/tsgs")
KERNEL_US = 500
POLL_US = 8000  # a quarter of the queue: it never empties, and looking more often costs the machine's processor
SLICE_US = 8000
MAX_INST = 8
# NEAR: the tolerance in percentage points, derived in test_shares.py.
WINDOW_S = 2.4
SETTLE_S = 0.3
NEAR = 1.5
FAIR, PREEMPTIVE, WEIGHTED, FIXED, SOFT, NATIVE, BURST, *_ = Policy
# pid -> nanoseconds on the compute engine, works completed
Looked = tuple[float, dict[int, tuple[int, int]]]


class Tenant:
    """A container with a saturating load, or with none: it has not opened the GPU then."""

    def __init__(self, name: str, **more: object) -> None:
        self.box = Box(name * 64, 1024, **more)
        self.load: subprocess.Popen | None = None

    def start(self, *options: object) -> Tenant:
        self.load = self.box.simload(
            *("--seconds", 0, "--interval", 1000),
            *("--kernel-us", KERNEL_US, "--depth", 64, "--poll-us", POLL_US),
            *options,
        )
        first = json.loads(self.load.stdout.readline())
        assert first["event"] == "ready"
        return self

    def stop(self) -> None:
        if self.load:
            self.load.terminate()
            self.load.communicate(timeout=60)
            self.load = None

    def write(self, node: str, value: int) -> None:
        (self.box.proc / node).write_text(f"{value}\n")

    def pids(self) -> set[int]:
        if not self.load:
            return set()
        pid = self.load.pid
        children = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
        return {pid, *map(int, children)}

    def spent(self, begin: Looked, end: Looked) -> tuple[int, int]:
        """Nanoseconds on the compute engine between two readings, and works completed."""
        both = [pid for pid in self.pids() if pid in begin[1] and pid in end[1]]
        busy, works = (sum(end[1][pid][n] - begin[1][pid][n] for pid in both) for n in (0, 1))
        return busy, works


@contextmanager
def crowd() -> Iterator[Callable[..., Tenant]]:
    """Makes tenants; afterwards all of them are gone and the GPU is as it was."""
    made: list[Tenant] = []
    wanted = {"max_inst": MAX_INST, "slice_us": SLICE_US, "prio_ratio": 80}
    before = {node: int((GPU / node).read_text()) for node in wanted}
    for node, value in wanted.items():
        put(node, value)

    def make(**more: object) -> Tenant:
        made.append(Tenant("abcdef"[len(made)], **more))
        return made[-1]

    try:
        yield make
    finally:
        put("policy", NATIVE)
        for tenant in made:
            tenant.stop()
        for tenant in made:
            tenant.box.destroy()
        for node, value in before.items():
            put(node, value)


def put(node: str, value: int) -> None:
    (GPU / node).write_text(f"{value}\n")


def stat(name: str) -> int:
    return int(dict(line.split() for line in (GPU / "stat").read_text().splitlines())[name])


def look() -> Looked:
    """The time, and the GPU time and works of each process so far."""
    begin = time.monotonic()
    text = TSGS.read_text()
    at = (begin + time.monotonic()) / 2
    seen: dict[int, tuple[int, int]] = {}
    for line in text.splitlines():
        found = dict(word.split("=", 1) for word in line.split())
        if found["engine"] == "1":
            busy, works = seen.get(int(found["pid"]), (0, 0))
            seen[int(found["pid"])] = busy + int(found["busy_ns"]), works + int(found["works"])
    return at, seen


def shares(*who: Tenant, seconds: float = WINDOW_S, settle: float = SETTLE_S) -> list[float]:
    """Percent of the GPU that each got."""
    time.sleep(settle)
    begin = look()
    time.sleep(seconds)
    end = look()
    got = []
    for tenant in who:
        busy, works = tenant.spent(begin, end)
        # Work completed is the time spent, but for kernels that were under way at both ends, one for each process.
        under_way_ns = KERNEL_US * 1000 * max(4, len(tenant.pids()))
        assert works * KERNEL_US * 1000 == pytest.approx(busy, rel=0.005, abs=under_way_ns)
        got.append(100 * busy / 1e9 / (end[0] - begin[0]))
    print("shares:", " ".join(f"{share:.2f}" for share in got))
    return got


def near(*wanted: float, within: float = NEAR):
    return pytest.approx(list(wanted), abs=within)
