# SPDX-License-Identifier: MIT
"""The cost of a core swap for running containers, in exact guest time (`make test-vm KIND=icount`); simulated."""

from __future__ import annotations

import os
import subprocess
import sys
import time

import pytest
from corebox import NEXT, OLD, held_ns, insmod, leave_only_the_product, swap
from sharebox import FAIR, WEIGHTED, near, put, shares

pytestmark = pytest.mark.icount

BAR_NS = 1_000_000

#: Reads a container's weight repeatedly with a pause, until the end of its input. Each read takes the lock that a swap
#: holds and enters the core. The process has the highest priority, so that nothing but the swap delays it.
READER = """
import os, select, sys, time
os.sched_setscheduler(0, os.SCHED_FIFO, os.sched_param(50))
fd, longest, calls = os.open(sys.argv[1], os.O_RDONLY), 0, 0
print(flush=True)
while not select.select([sys.stdin], [], [], 0.0002)[0]:
    begin = time.monotonic_ns()
    os.pread(fd, 100, 0)
    longest, calls = max(longest, time.monotonic_ns() - begin), calls + 1
print(longest, calls)
"""


@pytest.fixture(autouse=True)
def cores():
    assert insmod("test_core_next")
    try:
        yield
    finally:
        leave_only_the_product()


class Reader:
    def __init__(self, path: os.PathLike) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-c", READER, str(path)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        self.process.stdout.readline()

    def end(self) -> tuple[int, int]:
        """Longest call in ns, and how many there were."""
        out, _ = self.process.communicate(timeout=60)
        longest, calls = out.split()
        return int(longest), int(calls)


@pytest.mark.needs("instructions")
def test_nobody_waits_a_millisecond_for_a_swap(tenants) -> None:
    a, b = tenants().start(), tenants().start()
    put("policy", FAIR)
    quiet = Reader(a.box.proc / "weight")
    time.sleep(1)
    alone, _ = quiet.end()
    reader, held = Reader(a.box.proc / "weight"), []
    for n in range(100):
        swap(NEXT if n % 2 == 0 else OLD)
        held.append(held_ns())
    longest, calls = reader.end()
    print(f"simulated: longest of {calls} calls {longest} ns, without swaps {alone} ns; locks held {max(held)} ns")
    assert calls > 100
    assert longest <= BAR_NS
    assert max(held) <= BAR_NS
    assert b.load.poll() is None


def test_shares_and_debts_are_carried(tenants) -> None:
    """1:2 with a swap in about every tenth slice: a swap that restarted rounds would favour one container."""
    a, b = tenants().start(), tenants(weight=2).start()
    put("policy", WEIGHTED)
    before = shares(a, b)
    assert before == near(100 / 3, 200 / 3)
    swaps = "".join(f"sleep 0.05; echo {version} >/proc/cgpu_km/upgrade; " for version in (NEXT, OLD))
    writer = subprocess.Popen(["sh", "-c", f"while :; do {swaps} done"])
    try:
        during = shares(a, b)
    finally:
        writer.terminate()
        writer.wait()
    assert during == near(100 / 3, 200 / 3)
