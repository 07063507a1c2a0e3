# SPDX-License-Identifier: MIT
"""make bench-slice: the accuracy of a ratio by time slices, and their cost.

Boots a machine with exact time (instruction counting) for each profile, runs slice_guest.py in it and writes
build/slice.json. Fails when the ratio of completed work of any two containers is more than BAR_PCT from the ratio of
their weights, or when completed work and the simulated GPU's busy time do not agree.
"""

from __future__ import annotations

import argparse
import math
import sys
from collections.abc import Sequence
from typing import Any

from machine import REPO, Failed, boot
from results import write_report

from cgpu_cli.sim.figures import ratio_error_pct

OUTPUT = REPO / "build/slice.json"
BAR_PCT = 3.0
AGREE_PCT = 0.5
PROFILES = ("a100", "h200")


def say(text: str) -> None:
    print(text, flush=True)


def measure(profile: str, weights: str) -> dict[str, Any]:
    """The measurements of slice_guest.py on that profile."""
    return boot(f"python tests/bench/slice_guest.py --weights {weights}", ICOUNT="1", PROFILE=profile)


def to_first(values: Sequence[float]) -> str:
    """1:2.0004:2.9987, of the first."""
    return ":".join(f"{round(value / values[0], 4):g}" if values[0] else "?" for value in values)


def worst_pair(got: Sequence[float], by: Sequence[float]) -> float:
    """How far, in %, the ratio of any two is from what it should be; infinite where one of them has nothing."""
    found = ratio_error_pct(got, by) if all(by) else None
    return math.inf if found is None else round(found, 3)


def judge(profile: str, found: dict[str, Any]) -> dict[str, Any]:
    """A row of the report: every container beside every other."""
    row = {
        "profile": profile,
        "policy": found["policy"],
        "weights": found["weights"],
        "asked": to_first(found["weights"]),
        "got": to_first(found["works"]),
        "ratio_error_pct": worst_pair(found["works"], found["weights"]),
        "busy_ratio": to_first(found["busy_ns"]),
        "works_busy_differ_pct": worst_pair(found["works"], found["busy_ns"]),
    }
    copied = ("window_s", "rounds", "turns", "works", "busy_ns", "aggregate_pct", "control_p50_us", "control_max_us")
    copied += ("control_calls_per_s", "sched_thread_cpu_pct", "slice_us")
    return row | {name: found[name] for name in copied}


def missed(row: dict[str, Any]) -> list[str]:
    """The bars that a row misses, in words."""
    problems, profile = [], row["profile"]
    if row["ratio_error_pct"] > BAR_PCT:
        problems.append(f"{profile}: the ratio is {row['ratio_error_pct']} % off, more than {BAR_PCT} %")
    if row["works_busy_differ_pct"] > AGREE_PCT:
        problems.append(f"{profile}: completed work and busy time differ by {row['works_busy_differ_pct']} %")
    return problems


def table(rows: list[dict[str, Any]]) -> str:
    columns = {
        "profile": "profile",
        "asked": "asked",
        "got": "got",
        "ratio_error_pct": "error %",
        "busy_ratio": "by busy time",
        "aggregate_pct": "aggregate %",
        "slice_us": "slice us",
        "control_p50_us": "control p50 us",
        "control_calls_per_s": "calls/s",
        "sched_thread_cpu_pct": "thread CPU %",
    }
    lines = [list(columns.values()), *([str(row[name]) for name in columns] for row in rows)]
    widths = [max(len(line[i]) for line in lines) for i in range(len(columns))]
    return "\n".join("  ".join(word.rjust(width) for word, width in zip(line, widths, strict=True)) for line in lines)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("profiles", nargs="*", default=PROFILES, help="t4, a100, h100, h200")
    parser.add_argument("--weights", default="1:2")
    arguments = parser.parse_args()
    rows = []
    problems = []
    for profile in arguments.profiles:
        say(f"bench-slice: {profile}, {arguments.weights} under policy 2, a minute or two")
        try:
            rows.append(judge(profile, measure(profile, arguments.weights)))
        except Failed as failed:
            problems.append(str(failed))
            continue
        problems += missed(rows[-1])
    report = {"simulated": True, "results": rows, "ok": not problems, "bar_pct": BAR_PCT}
    write_report(OUTPUT, report)
    if rows:
        say(table(rows))
    for problem in problems:
        say(f"bench-slice: {problem}")
    say(f"bench-slice: {'ok' if not problems else 'FAILED'}, simulated, {OUTPUT.relative_to(REPO)}")
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
