# SPDX-License-Identifier: MIT
"""make bench-ioctl: additional instructions of a call through a container's node, compared with the driver's own.

Boots a machine that counts instructions, runs ioctl_guest.py in it and writes build/bench-ioctl.json. Then the same
pass-through call from one and from two processes, in a machine with two processors and ordinary time, as a ratio.
Fails when a call costs more than its bar, or more with 25 containers than with one.

make bench-scale: the same beside 16 GPUs of 25 containers and 1,000 processes; writes build/bench-scale.json.
"""

from __future__ import annotations

import sys
from typing import Any

from machine import REPO, Failed, boot
from results import write_report

GUEST = "python tests/bench/ioctl_guest.py"
OUTPUT = REPO / "build/bench-ioctl.json"
BARS = {"control GET_INFO": 3000, "control GET_NAME_STRING": 3000, "SYS_PARAMS": 3000, "RM_ALLOC vidmem": 8000}
SCALE = (16, 25, 1000)  # GPUs, containers of each, processes in all
SCALE_OUTPUT = REPO / "build/bench-scale.json"
# The part that 25 containers may add to the cost with one: there are no cold caches here, but longer timer queues.
FLAT_PCT = 10
FLAT_INSTRUCTIONS = 300
# Machines that do not count instructions enable the allocator's debugging, which would be most of every figure.
PLAIN = "slub_debug=-"


def say(text: str) -> None:
    print(text, flush=True)


def rows(found: dict[str, Any]) -> list[dict[str, Any]]:
    """One per call, in the guest's order.

    `added` is over the driver before the first container, without redirections. `grown` is what a call costs more with
    25 containers than with one, `drift` what the driver's own call costs more then, by where its allocations come to
    lie.
    """
    one, many = found["containers"]["1"], found["containers"]["25"]
    return [
        {
            "call": call,
            "native_instructions": round(native),
            "native_1": round(found["native_1"][call]),
            "native_25": round(found["native_25"][call]),
            "added_1": round(one[call] - native),
            "added_25": round(many[call] - native),
            "grown": round(many[call] - one[call]),
            "drift": round(found["native_25"][call] - found["native_1"][call]),
            "bar": BARS.get(call),
        }
        for call, native in found["native"].items()
    ]


def judge(results: list[dict[str, Any]]) -> list[str]:
    """The figures that miss a bar."""
    missing = BARS.keys() - {row["call"] for row in results}
    problems = [f"{call} has a bar and was not measured" for call in sorted(missing)]
    for row in results:
        worst = max(row["added_1"], row["added_25"])
        if row["bar"] is not None and worst > row["bar"]:
            problems.append(f"{row['call']} adds {worst} instructions, more than {row['bar']}")
        if row["grown"] > row["added_1"] * FLAT_PCT / 100 + FLAT_INSTRUCTIONS + max(0, row["drift"]):
            problems.append(
                f"{row['call']} adds {row['added_1']} with one container and {row['grown']} more with 25, the driver's "
                f"own {row['drift']}"
            )
    return problems


def table(results: list[dict[str, Any]], many: str = "25") -> str:
    head = f"{'call':<30}{'driver alone':>14}{'added, 1':>10}{'added, ' + many:>11}{'bar':>8}"
    lines = [f"{head}{'grown':>8}{'drift':>8}"]
    for row in results:
        bar = "" if row["bar"] is None else row["bar"]
        lines.append(
            f"{row['call']:<30}{row['native_instructions']:>14}{row['added_1']:>10}{row['added_25']:>11}{bar:>8}"
            f"{row['grown']:>8}{row['drift']:>8}"
        )
    return "\n".join(lines)


def scale() -> int:
    """Whether a call beside all of these containers costs what it costs beside none."""
    gpus, containers, processes = SCALE
    say(f"bench-scale: a call beside {gpus} GPUs of {containers} containers and {processes} processes, some minutes")
    command = f"{GUEST} --scale {gpus} {containers} {processes}"
    try:
        results = rows(boot(command, ICOUNT="1", GPUS=str(gpus), VM_MEM="4G", DAEMON="0", TIMEOUT="1500"))
    except Failed as failed:
        say(f"bench-scale: {failed}")
        return 1
    say(table(results, str(gpus * containers)))
    problems = judge(results)
    report = {"simulated": True, "unit": "guest instructions", "results": results, "scale": SCALE}
    write_report(SCALE_OUTPUT, report | {"ok": not problems})
    for problem in problems:
        say(f"bench-scale: {problem}")
    return 1 if problems else 0


def main() -> int:
    say("bench-ioctl: instructions per call, a minute (the first column includes the client's own)")
    try:
        results = rows(boot(GUEST, ICOUNT="1"))
        say(table(results))
        say("bench-ioctl: one and two processes at a time, a minute")
        scaling = boot(f"{GUEST} --scaling", CPUS="2", APPEND=PLAIN)
    except Failed as failed:
        say(f"bench-ioctl: {failed}")
        return 1
    say("two processes make " + ", ".join(f"{v:.2f} x the calls of one ({name})" for name, v in scaling.items()))
    problems = judge(results)
    report = {"simulated": True, "unit": "guest instructions", "results": results, "two_to_one": scaling}
    write_report(OUTPUT, report | {"ok": not problems})
    for problem in problems:
        say(f"bench-ioctl: {problem}")
    say(f"bench-ioctl: {'ok' if not problems else 'FAILED'}, simulated driver, {OUTPUT.relative_to(REPO)}")
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(scale() if "--scale" in sys.argv else main())
