# SPDX-License-Identifier: MIT
"""make bench-engine: the cost of cgpu-runtime, its hooks and cgpud in a container's life, and the daemon's own cost.

Boots machines that count instructions and runs engine_guest.py in them: runc by hand, Docker, and 200 containers that
live on eight GPUs. Every bar is a ratio within one machine. Writes build/bench-engine.json.
"""

from __future__ import annotations

import argparse
import sys
from typing import Any

from machine import REPO, Failed, boot
from results import write_report

GUEST = "python tests/bench/engine_guest.py"
OUTPUT = REPO / "build/bench-engine.json"
PARTS = {
    "runc": {},
    "docker": {"DOCKER": "1", "TIMEOUT": "3000"},
    "live": {"GPUS": "8", "TIMEOUT": "4000", "VM_MEM": "4G"},
}
ADDED_PCT = {"runc": 15.0, "docker": 5.0}  # a sliced container's life over the engine's alone
NOT_OURS_PCT = 1.0
IDLE_CPU_PCT = 0.1
IDLE_RSS_MIB = 60.0
EVENT_RATIO = 1.2


def say(text: str) -> None:
    print(text, flush=True)


def results(found: dict[str, Any]) -> list[dict[str, Any]]:
    """A figure and its bar; a figure above its bar misses it."""
    rows = []

    def row(what: str, figure: float, bar: float) -> None:
        rows.append({"what": what, "figure": round(figure, 3), "bar": bar, "ok": figure <= bar})

    for part, bar in ADDED_PCT.items():
        if part not in found:
            continue
        start = found[part]["start"]
        row(f"{part}: a sliced container adds, %", 100 * (start["sliced"] / start["alone"] - 1), bar)
        # Verbs that are not in `calls` are passed on unread, like start.
        calls = [found[part]["calls"].get(verb, found[part]["calls"]["start"]) for verb in found[part]["verbs"]]
        row(f"{part}: one that is not ours adds, %", 100 * sum(calls) / start["alone"], NOT_OURS_PCT)
    if "runc" in found:
        row("idle daemon, % of a processor", found["runc"]["idle"]["cpu_pct"], IDLE_CPU_PCT)
        row("idle daemon, MiB resident", found["runc"]["idle"]["rss_mib"], IDLE_RSS_MIB)
    if "live" in found:
        few, many = found["live"]["event"]["5"], found["live"]["event"]["200"]
        row("one more life with 200 live, of that with 5", many / few, EVENT_RATIO)
    return rows


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", choices=PARTS, help="one of the machines")
    arguments = parser.parse_args()
    found = {}
    for part, variables in PARTS.items():
        if arguments.only in (None, part):
            say(f"bench-engine: {part}, some minutes")
            try:
                found[part] = boot(f"{GUEST} {part}", ICOUNT="1", DAEMON="1", **variables)
            except Failed as failed:
                say(f"bench-engine: {failed}")
                return 1
    rows = results(found)
    for row in rows:
        say(f"{row['what']:<50}{row['figure']:>10}{row['bar']:>8}{'' if row['ok'] else '  MISSED'}")
    ok = all(row["ok"] for row in rows)
    report = {"simulated": True, "unit": "guest instructions", "found": found, "results": rows, "ok": ok}
    write_report(OUTPUT, report)
    say(f"bench-engine: {'ok' if ok else 'FAILED'}, simulated GPU, {OUTPUT.relative_to(REPO)}")
    return 0 if ok else 1


if __name__ == "__main__":
    sys.exit(main())
