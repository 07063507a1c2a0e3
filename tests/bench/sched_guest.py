# SPDX-License-Identifier: MIT
"""Inside the machine of sched_vm.py: cells of the scheduler bench with the real module, in exact guest time.

Reads cells as JSON from its argument and prints the rows as one JSON list, the last line of its stdout. Shares are
those of completed work, never of what cgpu_km says of itself.
"""

from __future__ import annotations

import json
import sys
import time
from typing import Any

from slice_guest import ALONE_S, GPU, Tenant, over, say

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


def work_us(load: str, works: float) -> float:
    """Completed work as time on the GPU, so that loads of different kernels compare."""
    options = LOADS[load]
    return works * float(options[options.index("--kernel-us") + 1])  # type: ignore[arg-type]


def alone_rate(load: str) -> float:
    """What one tenant completes by itself under policy 5, in GPU microseconds per second."""
    (GPU / "policy").write_text("5\n")
    tenant = Tenant(name_of(0), 1, LOADS[load], 512)
    time.sleep(0.5)
    begin, end = over(ALONE_S)
    time.sleep(0.05)
    tenant.stop()
    return work_us(load, tenant.works(begin.at, end.at)) / (end.at - begin.at)


def window_errors(tenants: list[Tenant], cell: dict[str, Any], begin: float, end: float, whole: float) -> list[float]:
    """For each container the worst |share - asked| over any second, in percentage points of the whole."""
    worst = [0.0] * len(tenants)
    at = begin
    while at + WINDOW_S <= end + 1e-9:
        done = [work_us(cell["load"], tenant.works(at, at + WINDOW_S)) for tenant in tenants]
        total = whole * WINDOW_S if cell["policy"] in (0, 3) else sum(done)
        for n, mine in enumerate(done):
            worst[n] = max(worst[n], abs(100 * mine / total - cell["asked_pct"][n]))
        at += STEP_S
    return worst


def measure(cell: dict[str, Any], rates: dict[str, float]) -> dict[str, Any]:
    load = cell["load"]
    if load not in rates:
        rates[load] = alone_rate(load)
    (GPU / "policy").write_text(f"{cell['policy']}\n")
    (GPU / "slice_us").write_text(f"{cell['slice_us']}\n")
    tenants = [Tenant(name_of(n), weight, LOADS[load], 512) for n, weight in enumerate(cell["weights"])]
    time.sleep(SETTLE_S)
    rounds = max(1, round(10.0 / (cell["round_us"] / 1e6)))
    turns = sum(tenant.box.stat("turns") for tenant in tenants)
    begin, end = over(rounds * cell["round_us"] / 1e6)
    passed = end.at - begin.at
    turns = sum(tenant.box.stat("turns") for tenant in tenants) - turns
    time.sleep(0.1)
    for tenant in tenants:
        tenant.stop()
    done = [work_us(load, tenant.works(begin.at, end.at)) for tenant in tenants]
    total = rates[load] * passed if cell["policy"] in (0, 3) else sum(done)
    shares = [100 * mine / total for mine in done]
    errors = window_errors(tenants, cell, begin.at, end.at, rates[load])
    say(f"  {cell['scenario']}, policy {cell['policy']}, {cell['slice_us']} us: {[round(s, 2) for s in shares]} %")
    by_weight = [share / asked for share, asked in zip(shares, cell["asked_pct"], strict=True)]
    return {
        "ratio_error_pct": 100 * (max(by_weight) / min(by_weight) - 1),
        "share_error_1s_pp": errors,
        "aggregate_pct": 100 * sum(done) / passed / rates[load],
        "lever_calls_per_s": (end.stat["lever_calls"] - begin.stat["lever_calls"]) / passed,
        "turns_per_s": turns / passed,
        "turn_thread_cpu_pct": (end.stat["thread_cpu_ns"] - begin.stat["thread_cpu_ns"]) / passed / 1e7,
    }


def main() -> None:
    rates: dict[str, float] = {}
    try:
        print(json.dumps([measure(cell, rates) for cell in json.loads(sys.argv[1])]))
    finally:
        (GPU / "policy").write_text("5\n")


if __name__ == "__main__":
    main()
