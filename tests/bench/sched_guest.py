# SPDX-License-Identifier: MIT
"""Inside the machine of sched_vm.py: cells of the scheduler bench with the real module, in exact guest time.

Reads cells as JSON from its argument and prints the rows as one JSON list, the last line of its stdout. Shares are
the time that the simulated GPU spent on work, checked against the completed works; cgpu_km's own figures are not used.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

REPO = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(REPO / "tests/vm/guest/box"))

from slicebox import CLIENTS, PROC, Box, until  # noqa: E402

GPU = PROC / "0"
TSGS = Path("/proc/driver/nvsim/0/tsgs")
ALONE_S = 2.0
# simload reports its progress every 10 ms, and polls for completed work every 1 ms: between two lines
# at most a part of one turn is uncertain, some thousandths of a percent of the window.
INTERVAL_S = 0.01
COMMON = ("--seconds", "0", "--interval", INTERVAL_S)
WINDOW_S, STEP_S = 1.0, 0.1
SETTLE_S = 1.5
LOADS: dict[str, tuple[object, ...]] = {
    "plain": ("--kernel-us", 500, "--depth", 64, "--poll-us", 1000),
    "short": ("--kernel-us", 100, "--depth", 1, "--poll-us", 20),
    "deep": ("--kernel-us", 300, "--depth", 150, "--poll-us", 1000),
    "long": ("--kernel-us", 20_000, "--depth", 2, "--poll-us", 1000),
}


def say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


@dataclass
class Reading:
    """The readings at one moment."""

    at: float
    busy_ns: dict[int, int]
    stat: dict[str, int]


def numbers(path: Path) -> dict[str, int]:
    pairs = (line.split(" ", 1) for line in path.read_text().splitlines())
    return {name: int(value) for name, value in pairs if value.isdigit()}


def busy_by_pid() -> dict[int, int]:
    """The time that each process's work was on the compute engine."""
    busy: dict[int, int] = {}
    for line in TSGS.read_text().splitlines():
        found = dict(word.split("=", 1) for word in line.split())
        if found["engine"] == "1":
            busy[int(found["pid"])] = busy.get(int(found["pid"]), 0) + int(found["busy_ns"])
    return busy


def read() -> Reading:
    before = time.monotonic()
    busy = busy_by_pid()
    return Reading((before + time.monotonic()) / 2, busy, numbers(GPU / "stat"))


class Tenant:
    """A container with a saturating load in it."""

    def __init__(self, name: str, weight: int, load: Sequence[object], mib: int) -> None:
        self.box = Box(name, mib, weight=weight)
        self.weight = weight
        self.lines = Path(f"/run/slice-{name[:4]}.json")
        argv = [CLIENTS / "simload", "--dev", self.box.dev, "--json", *COMMON, *load]
        with self.lines.open("wb") as out:
            self.load = subprocess.Popen([str(word) for word in argv], stdout=out)
        # As Box.simload(): clients do not push one another off the only processor.
        os.sched_setscheduler(self.load.pid, os.SCHED_BATCH, os.sched_param(0))
        # The first line means that it is ready. On a busy host time leaps by seconds until its file has been read.
        until(lambda: self.lines.stat().st_size, timeout=600)
        self._samples: list[tuple[float, int]] = []

    def stop(self) -> None:
        """Ends the load and reads its output."""
        self.load.terminate()
        if self.load.wait(30):
            raise RuntimeError(f"simload ended with {self.load.returncode}")
        for line in self.lines.read_text().splitlines():
            said = json.loads(line)
            if said["event"] == "progress":
                self._samples.append((said["monotonic"], said["works"]))
            elif said["event"] == "result" and said["first_error"]:
                raise RuntimeError(f"simload: {said['first_error']}")
        self.box.destroy()

    def works(self, begin: float, end: float) -> float:
        """Completed between two moments, by its own count."""
        return self._works_at(end) - self._works_at(begin)

    def _works_at(self, at: float) -> float:
        after = bisect_right(self._samples, (at, 1 << 62))
        if not 0 < after < len(self._samples):
            raise RuntimeError(f"simload said nothing around {at:.3f}")
        (t0, w0), (t1, w1) = self._samples[after - 1 : after + 1]
        return w0 + (w1 - w0) * (at - t0) / (t1 - t0)


def over(seconds: float) -> tuple[Reading, Reading]:
    begin = read()
    time.sleep(seconds)
    return begin, read()


def name_of(n: int) -> str:
    return f"{0xA0 + n:02x}" * 32


def busy_ns(tenant: Tenant, begin: Reading, end: Reading) -> int:
    return end.busy_ns[tenant.load.pid] - begin.busy_ns[tenant.load.pid]


def check(tenant: Tenant, load: str, begin: Reading, end: Reading) -> None:
    """The engine's work for it has completed, except kernels in flight at both ends."""
    options = LOADS[load]
    kernel_us = float(options[options.index("--kernel-us") + 1])  # type: ignore[arg-type]
    done_us, busy_us = tenant.works(begin.at, end.at) * kernel_us, busy_ns(tenant, begin, end) / 1e3
    if abs(done_us - busy_us) > 0.005 * busy_us + 2 * kernel_us + 2000:
        raise RuntimeError(f"works for {done_us:.0f} us came back, and the engine was busy for {busy_us:.0f}")


def alone_part(load: str) -> float:
    """Of the time that one tenant by itself has the engine busy, under policy 5."""
    (GPU / "policy").write_text("5\n")
    tenant = Tenant(name_of(0), 1, LOADS[load], 512)
    time.sleep(0.5)
    begin, end = over(ALONE_S)
    time.sleep(0.05)
    tenant.stop()
    check(tenant, load, begin, end)
    return busy_ns(tenant, begin, end) / 1e9 / (end.at - begin.at)


def readings(seconds: float) -> list[Reading]:
    """One every STEP_S, and one at the end."""
    found = [read()]
    end = found[0].at + seconds
    while found[-1].at < end - 1e-4:
        wanted = min(end, found[0].at + len(found) * STEP_S)
        time.sleep(max(0.0, wanted - time.monotonic()))
        found.append(read())
    return found


def window_errors(tenants: list[Tenant], cell: dict[str, Any], found: list[Reading], whole: float) -> list[float]:
    """For each container the worst |share - requested share| over any second, in percentage points of the whole."""
    worst = [0.0] * len(tenants)
    for begin, end in zip(found, found[round(WINDOW_S / STEP_S) : -1], strict=False):
        got = [busy_ns(tenant, begin, end) for tenant in tenants]
        total = whole * (end.at - begin.at) * 1e9 if cell["policy"] in (0, 3) else sum(got)
        for n, mine in enumerate(got):
            worst[n] = max(worst[n], abs(100 * mine / total - cell["asked_pct"][n]))
    return worst


def measure(cell: dict[str, Any], alone: dict[str, float]) -> dict[str, Any]:
    load = cell["load"]
    if load not in alone:
        alone[load] = alone_part(load)
    (GPU / "policy").write_text(f"{cell['policy']}\n")
    if cell["slice_us"]:
        (GPU / "slice_us").write_text(f"{cell['slice_us']}\n")
    tenants = [Tenant(name_of(n), weight, LOADS[load], 512) for n, weight in enumerate(cell["weights"])]
    time.sleep(SETTLE_S)
    slice_us = int((GPU / "slice_us").read_text())
    round_s = cell["round_slices"] * slice_us / 1e6
    turns = sum(tenant.box.stat("turns") for tenant in tenants)
    found = readings(max(1, round(10.0 / round_s)) * round_s)
    begin, end = found[0], found[-1]
    passed = end.at - begin.at
    turns = sum(tenant.box.stat("turns") for tenant in tenants) - turns
    time.sleep(0.1)
    for tenant in tenants:
        tenant.stop()
        check(tenant, load, begin, end)
    done = [busy_ns(tenant, begin, end) / 1e9 for tenant in tenants]
    total = alone[load] * passed if cell["policy"] in (0, 3) else sum(done)
    shares = [100 * mine / total for mine in done]
    say(f"  {cell['scenario']}, policy {cell['policy']}, {slice_us} us: {[round(s, 2) for s in shares]} %")
    by_weight = [share / asked for share, asked in zip(shares, cell["asked_pct"], strict=True)]
    return {
        "slice_us": slice_us,
        "ratio_error_pct": 100 * (max(by_weight) / min(by_weight) - 1),
        "share_error_1s_pp": window_errors(tenants, cell, found, alone[load]),
        "aggregate_pct": 100 * sum(done) / passed / alone[load],
        "control_calls_per_s": (end.stat["control_calls"] - begin.stat["control_calls"]) / passed,
        "control_p50_us": end.stat["control_p50_us"],
        "turns_per_s": turns / passed,
        "sched_thread_cpu_pct": (end.stat["thread_cpu_ns"] - begin.stat["thread_cpu_ns"]) / passed / 1e7,
    }


def main() -> None:
    alone: dict[str, float] = {}
    try:
        print(json.dumps([measure(cell, alone) for cell in json.loads(sys.argv[1])]))
    finally:
        (GPU / "policy").write_text("5\n")


if __name__ == "__main__":
    main()
