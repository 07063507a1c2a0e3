# SPDX-License-Identifier: MIT
"""Inside the machine of slice.py: two saturating containers under policy 2, judged by the work they complete.

Prints one JSON object, the last line of its stdout. cgpu_km's own figures are not used: works are simload's own count,
busy time is the simulated GPU's.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import time
from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

REPO = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(REPO / "tests/vm/guest/box"))

from slicebox import CLIENTS, PROC, Box, until  # noqa: E402

GPU = PROC / "0"
TSGS = Path("/proc/driver/nvsim/0/tsgs")
POLICY = 2
KERNEL_US = 500
SETTLE_S = 1.0
ALONE_S = 2.0
# simload reports its progress every 10 ms, and polls for completed work every 1 ms: between two lines
# at most a part of one turn is uncertain, some thousandths of a percent of the window.
INTERVAL_S = 0.01
COMMON = ("--seconds", "0", "--interval", INTERVAL_S)
LOAD = ("--kernel-us", KERNEL_US, "--depth", "64", "--poll-us", "1000")


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

    def __init__(self, name: str, weight: int, load: Sequence[object] = LOAD, mib: int = 1024) -> None:
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


def settle(slice_us: int | None) -> int:
    """Until the length of a slice stands still (it follows the measured control)."""
    if slice_us:
        (GPU / "slice_us").write_text(f"{slice_us}\n")
    time.sleep(SETTLE_S)
    return int((GPU / "slice_us").read_text())


def measure(weights: list[int], window_s: float, slice_us: int | None) -> dict:
    (GPU / "policy").write_text(f"{POLICY}\n")
    first = Tenant(f"{0xA0:02x}" * 32, weights[0])
    time.sleep(0.5)
    alone = over(ALONE_S)
    say(f"  alone: {(alone[1].busy_ns[first.load.pid] - alone[0].busy_ns[first.load.pid]) / 1e7 / ALONE_S:.2f} % busy")
    tenants = [first, *(Tenant(f"{0xA1 + n:02x}" * 32, weight) for n, weight in enumerate(weights[1:]))]
    length_us = settle(slice_us)
    round_s = sum(weights) * length_us / 1e6
    rounds = max(1, round(window_s / round_s))
    say(f"  slice {length_us} us: {rounds} rounds of {round_s * 1e3:.3f} ms")
    turns = [tenant.box.stat("turns") for tenant in tenants]
    begin, end = over(rounds * round_s)
    turns = [tenant.box.stat("turns") - n for tenant, n in zip(tenants, turns, strict=True)]
    slice_after_us = int((GPU / "slice_us").read_text())
    time.sleep(0.1)
    for tenant in tenants:
        tenant.stop()
    alone_rate = first.works(alone[0].at, alone[1].at) / (alone[1].at - alone[0].at)
    passed = end.at - begin.at
    works = [tenant.works(begin.at, end.at) for tenant in tenants]
    busy = [end.busy_ns[tenant.load.pid] - begin.busy_ns[tenant.load.pid] for tenant in tenants]
    return {
        "policy": POLICY,
        "weights": weights,
        "works": [round(count, 1) for count in works],
        "busy_ns": busy,
        "turns": turns,
        "window_s": round(passed, 4),
        "rounds": rounds,
        "aggregate_pct": round(100 * sum(works) / passed / alone_rate, 2),
        "control_p50_us": end.stat["control_p50_us"],
        "control_max_us": end.stat["control_max_us"],
        "control_calls_per_s": round((end.stat["control_calls"] - begin.stat["control_calls"]) / passed, 1),
        "sched_thread_cpu_pct": round((end.stat["thread_cpu_ns"] - begin.stat["thread_cpu_ns"]) / passed / 1e7, 2),
        "slice_us": length_us,
        "slice_after_us": slice_after_us,
    }


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--weights", default="1:2")
    parser.add_argument("--window", type=float, default=10.0)
    parser.add_argument("--slice-us", type=int, help="instead of what the module chooses")
    arguments = parser.parse_args()
    weights = [int(word) for word in arguments.weights.split(":")]
    try:
        print(json.dumps(measure(weights, arguments.window, arguments.slice_us)))
    finally:
        (GPU / "policy").write_text("5\n")


if __name__ == "__main__":
    main()
