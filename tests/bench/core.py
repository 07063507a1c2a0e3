# SPDX-License-Identifier: MIT
"""make bench-core: how long one decision of the turn engine takes (tests/bench/decision.c, the core's own files).

Writes build/bench-core.json. Fails when a decision takes more than a microsecond, or when the cost grows faster than
the number of containers. The least of all batches is judged: what a loaded machine adds is not the engine's.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

REPO = Path(__file__).resolve().parents[2]
OUTPUT = REPO / "build/bench-core.json"
BAR_NS = 1000.0
RUNS = 3
CORE = ("account", "plan", "policy", "prio", "rota", "turn")


def measure() -> list[dict]:
    """Rows of decision.c."""
    core = REPO / "cgpu_km/core"
    sources = [core / f"{name}.c" for name in CORE] + sorted(core.glob("policy_*.c"))
    with tempfile.TemporaryDirectory() as scratch:
        program = Path(scratch) / "decision"
        command = [os.environ.get("CC", "cc"), "-O2", "-std=gnu11", "-Wall", "-Wextra", f"-I{REPO / 'cgpu_km'}"]
        subprocess.run([*command, "-o", program, REPO / "tests/bench/decision.c", *sources], check=True)
        runs = [subprocess.run([program], check=True, capture_output=True, text=True).stdout for _ in range(RUNS)]
    rows = [[json.loads(line) for line in out.splitlines()] for out in runs]
    return [min(same, key=lambda row: row["least_ns"]) for same in zip(*rows, strict=True)]


def superlinear(rows: list[dict]) -> list[str]:
    """Names of policies whose decision costs more per container with 25 of them than with 5."""
    cost = {(row["policy"], row["highprio"], row["containers"]): row["least_ns"] for row in rows}
    return [
        f"{policy}, {high} with highprio"
        for (policy, high, count), ns in cost.items()
        if count == 25 and ns / 25 > cost[policy, high, 5] / 5
    ]


def main() -> int:
    rows = measure()
    OUTPUT.parent.mkdir(exist_ok=True)
    OUTPUT.write_text(json.dumps({"schema_version": 1, "bar_ns": BAR_NS, "results": rows}, indent=2) + "\n")
    print("one decision, nanoseconds (least and median batch)")
    for row in rows:
        high = " + highprio" if row["highprio"] else ""
        print(f"  {row['policy'] + high:22} {row['containers']:3} {row['least_ns']:8.0f} {row['median_ns']:8.0f}")
    slow = [row for row in rows if row["least_ns"] > BAR_NS]
    grows = superlinear(rows)
    for row in slow:
        print(f"FAILED: {row['policy']} with {row['containers']}: {row['least_ns']:.0f} ns, bar {BAR_NS:.0f}")
    for name in grows:
        print(f"FAILED: {name}: the cost grows faster than the number of containers")
    print(f"wrote {OUTPUT.relative_to(REPO)}")
    return 1 if slow or grows else 0


if __name__ == "__main__":
    sys.exit(main())
