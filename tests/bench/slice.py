# SPDX-License-Identifier: MIT
"""make bench-slice: the accuracy of a ratio by time slices, and their cost.

Boots a machine with exact time (instruction counting) for each profile, runs slice_guest.py in it and writes
build/slice.json. Fails when the ratio of completed work is more than BAR_PCT from the ratio of the weights, or when
completed work and the simulated GPU's busy time do not agree.
"""

from __future__ import annotations

import argparse
import json
import sys
from typing import Any

from machine import REPO, Failed, boot

OUTPUT = REPO / "build/slice.json"
BAR_PCT = 3.0
AGREE_PCT = 0.5
PROFILES = ("a100", "h200")


def say(text: str) -> None:
    print(text, flush=True)


def measure(profile: str, weights: str) -> dict[str, Any]:
    """The measurements of slice_guest.py on that profile."""
    return boot(f"python tests/bench/slice_guest.py --weights {weights}", ICOUNT="1", PROFILE=profile)


def judge(profile: str, found: dict[str, Any]) -> dict[str, Any]:
    """A row of the report. Ratios are of the second container to the first."""
    asked = found["weights"][1] / found["weights"][0]
    got = found["works"][1] / found["works"][0]
    busy = found["busy_ns"][1] / found["busy_ns"][0]
    row = {
        "profile": profile,
        "policy": found["policy"],
        "weights": found["weights"],
        "asked": asked,
        "got": round(got, 4),
        "ratio_error_pct": round(100 * abs(got / asked - 1), 3),
        "busy_ratio": round(busy, 4),
        "works_busy_differ_pct": round(100 * abs(got / busy - 1), 3),
    }
    copied = ("window_s", "rounds", "turns", "works", "busy_ns", "aggregate_pct", "control_p50_us", "control_max_us")
    copied += ("control_calls_per_s", "sched_thread_cpu_pct", "slice_us")
    return row | {name: found[name] for name in copied}


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
        row = rows[-1]
        if row["ratio_error_pct"] > BAR_PCT:
            problems.append(f"{profile}: the ratio is {row['ratio_error_pct']} % off, more than {BAR_PCT} %")
        if row["works_busy_differ_pct"] > AGREE_PCT:
            problems.append(f"{profile}: completed work and busy time differ by {row['works_busy_differ_pct']} %")
    report = {"simulated": True, "results": rows, "ok": not problems, "bar_pct": BAR_PCT}
    OUTPUT.parent.mkdir(exist_ok=True)
    OUTPUT.write_text(json.dumps(report, indent=2) + "\n")
    if rows:
        say(table(rows))
    for problem in problems:
        say(f"bench-slice: {problem}")
    say(f"bench-slice: {'ok' if not problems else 'FAILED'}, simulated, {OUTPUT.relative_to(REPO)}")
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
