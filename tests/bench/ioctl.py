# SPDX-License-Identifier: MIT
"""make bench-ioctl: instructions that a call costs more through a container's node than on the driver's own.

Boots a machine that counts instructions, runs ioctl_guest.py in it and writes build/bench-ioctl.json. Then the same
pass-through call from one and from two processes, in a machine with two processors and ordinary time, as a ratio.
Fails when a call costs more than its bar, or more with 25 containers than with one.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

REPO = Path(__file__).resolve().parents[2]
OUTPUT = REPO / "build/bench-ioctl.json"
BARS = {"control GET_INFO": 3000, "control GET_NAME_STRING": 3000, "SYS_PARAMS": 3000, "RM_ALLOC vidmem": 8000}
# What 25 containers may add to what one costs: cold caches do not exist here, but longer timer queues do.
FLAT_PCT = 10
FLAT_INSTRUCTIONS = 300
# The debugging of the allocator, which the tests' machines have on, would be most of every figure.
MACHINE = {"DAEMON": "0", "APPEND": "slub_debug=-", "KERNEL": "6.1", "TIMEOUT": "600", "PYTHONPATH": "tests"}
NOT_OURS = {"BARE": "", "DOCKER": "", "GPUS": "", "PROFILE": "", "CPUS": "", "CMD": ""}


class Failed(Exception):
    """The machine or the bench in it failed: no figures."""


def say(text: str) -> None:
    print(text, flush=True)


def boot(*options: str, **variables: str) -> dict[str, Any]:
    """The JSON that ioctl_guest.py printed."""
    done = subprocess.run(
        [sys.executable, "-m", "vm", "run", " ".join(["python tests/bench/ioctl_guest.py", *options])],
        cwd=REPO,
        env=os.environ | NOT_OURS | MACHINE | variables,
        stdout=subprocess.PIPE,
        text=True,
        check=False,
    )
    if done.returncode:
        raise Failed(f"the machine ended with status {done.returncode}")
    return json.loads(done.stdout.splitlines()[-1])


def rows(found: dict[str, Any]) -> list[dict[str, Any]]:
    """One per call, in the guest's order."""
    one, many = found["containers"]["1"], found["containers"]["25"]
    return [
        {
            "call": call,
            "native_instructions": round(native),
            "added_1": round(one[call] - native),
            "added_25": round(many[call] - native),
            "bar": BARS.get(call),
        }
        for call, native in found["native"].items()
    ]


def judge(results: list[dict[str, Any]]) -> list[str]:
    """What misses a bar."""
    problems = []
    for row in results:
        worst = max(row["added_1"], row["added_25"])
        if row["bar"] is not None and worst > row["bar"]:
            problems.append(f"{row['call']} adds {worst} instructions, more than {row['bar']}")
        if row["added_25"] > row["added_1"] * (1 + FLAT_PCT / 100) + FLAT_INSTRUCTIONS:
            problems.append(f"{row['call']} adds {row['added_1']} with one container and {row['added_25']} with 25")
    return problems


def table(results: list[dict[str, Any]]) -> str:
    lines = [f"{'call':<30}{'driver alone':>14}{'added, 1':>10}{'added, 25':>11}{'bar':>8}"]
    for row in results:
        bar = "" if row["bar"] is None else row["bar"]
        lines.append(
            f"{row['call']:<30}{row['native_instructions']:>14}{row['added_1']:>10}{row['added_25']:>11}{bar:>8}"
        )
    return "\n".join(lines)


def main() -> int:
    say("bench-ioctl: instructions per call, a minute (the first column includes the client's own)")
    try:
        results = rows(boot(ICOUNT="1"))
        say(table(results))
        say("bench-ioctl: one and two processes at a time, a minute")
        scaling = boot("--scaling", ICOUNT="", CPUS="2")
    except Failed as failed:
        say(f"bench-ioctl: {failed}")
        return 1
    say("two processes make " + ", ".join(f"{v:.2f} x the calls of one ({name})" for name, v in scaling.items()))
    problems = judge(results)
    report = {"simulated": True, "unit": "guest instructions", "results": results, "two_to_one": scaling}
    OUTPUT.parent.mkdir(exist_ok=True)
    OUTPUT.write_text(json.dumps(report | {"ok": not problems}, indent=2) + "\n")
    for problem in problems:
        say(f"bench-ioctl: {problem}")
    say(f"bench-ioctl: {'ok' if not problems else 'FAILED'}, simulated driver, {OUTPUT.relative_to(REPO)}")
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
