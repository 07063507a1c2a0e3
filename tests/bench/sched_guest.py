# SPDX-License-Identifier: MIT
"""Inside the machine of sched_vm.py: cells of the scheduler bench with the real module, in exact guest time.

Reads cells as JSON from its argument and prints the rows as one JSON list, the last line of its stdout. Shares are
the time that the simulated GPU spent on work, checked against the completed works; cgpu_km's own figures are not used.
"""

from __future__ import annotations

import json
import sys
import time
from typing import Any

from slice_guest import ALONE_S, GPU, Reading, Tenant, over, read, say

WINDOW_S, STEP_S = 1.0, 0.1
SETTLE_S = 1.5
LOADS: dict[str, tuple[object, ...]] = {
    "plain": ("--kernel-us", 500, "--depth", 64, "--poll-us", 1000),
    "short": ("--kernel-us", 100, "--depth", 1, "--poll-us", 20),
    "deep": ("--kernel-us", 300, "--depth", 150, "--poll-us", 1000),
    "long": ("--kernel-us", 20_000, "--depth", 2, "--poll-us", 1000),
}


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
