# SPDX-License-Identifier: MIT
"""The virtual machine's half of make bench-sched: named cells with the real module on nvsim, in exact guest time.

Writes build/bench-sched-vm.json, rows with the same fields as the simulator's.
"""

from __future__ import annotations

import argparse
import json
import shlex
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from machine import REPO, Failed, boot, unknown
from results import write_report
from sched_sim import OURS

OUTPUT = REPO / "build/bench-sched-vm.json"
SLACK_PP = 0.2
MAX_INST = 20


@dataclass(frozen=True)
class Cell:
    """One measurement. The name of a scenario is the simulator's."""

    profile: str
    scenario: str
    policy: int
    slice_us: int | None  # None: as the module chooses
    weights: tuple[int, ...]
    load: str = "plain"
    quick: bool = False

    @property
    def parts(self) -> list[int]:
        """Of the weights, as the policy counts them."""
        return [1] * len(self.weights) if self.policy in (0, 1) else list(self.weights)

    @property
    def round_slices(self) -> int:
        return MAX_INST if self.policy in (0, 3) else sum(self.parts)

    @property
    def asked_pct(self) -> list[float]:
        return [100 * part / self.round_slices for part in self.parts]

    def bound_pp(self, n: int, slice_us: int) -> float:
        """The error that the arithmetic of slices allows over one second, and a little more."""
        return 100 * slice_us / 1e6 * self.parts[n] * (1 - self.asked_pct[n] / 100) + SLACK_PP


CELLS = (
    # First on each card, because a slice that was written stays.
    Cell("a100", "1:1", 1, None, (1, 1)),
    Cell("a100", "1:2", 2, 5000, (1, 2), quick=True),
    Cell("a100", "1:2", 2, 10_000, (1, 2)),
    Cell("a100", "1:1", 1, 10_000, (1, 1)),
    Cell("a100", "3:2:1", 2, 10_000, (3, 2, 1)),
    Cell("a100", "16:1", 2, 10_000, (16, 1)),
    Cell("a100", "1:2", 3, 10_000, (1, 2)),
    Cell("a100", "1:2 deep queue", 2, 10_000, (1, 2), "deep"),
    Cell("a100", "1:2 short queue", 2, 10_000, (1, 2), "short"),
    Cell("h200", "1:1", 1, None, (1, 1)),
    Cell("h200", "1:2", 2, 10_000, (1, 2), quick=True),
    Cell("h200", "3:1", 2, 5000, (3, 1)),
    Cell("h200", "1:2 long kernels", 2, 10_000, (1, 2), "long"),
)


def in_machine(profile: str, cells: list[Cell]) -> list[dict[str, Any]]:
    """The measurements of sched_guest.py, a dictionary for each cell."""
    wanted = [
        {
            "scenario": cell.scenario,
            "policy": cell.policy,
            "slice_us": cell.slice_us,
            "weights": cell.weights,
            "load": cell.load,
            "round_slices": cell.round_slices,
            "asked_pct": cell.asked_pct,
        }
        for cell in cells
    ]
    command = f"python tests/bench/sched_guest.py {shlex.quote(json.dumps(wanted))}"
    return boot(command, ICOUNT="1", PROFILE=profile, TIMEOUT="1500")


def row(cell: Cell, found: dict[str, Any]) -> dict[str, Any]:
    """As the simulator's rows; the container that is nearest to its bound stands for all."""
    slice_us = found["slice_us"]
    over = [error - cell.bound_pp(n, slice_us) for n, error in enumerate(found["share_error_1s_pp"])]
    worst = over.index(max(over))
    cap = cell.policy == 3
    return {
        "scenario": cell.scenario,
        "where": "vm",
        "rule": OURS,
        "policy": cell.policy,
        "control": "freeze",
        "profile": cell.profile,
        "personality": "default",
        "slice_us": slice_us,
        "default_slice": cell.slice_us is None,
        "ratio_error_pct": round(found["ratio_error_pct"], 3),
        "share_error_1s_pp": round(found["share_error_1s_pp"][worst], 3),
        "share_bound_1s_pp": round(cell.bound_pp(worst, slice_us), 3),
        "aggregate_pct": None if cap else round(found["aggregate_pct"], 2),
        "wait_p99_us": None,
        "takeover_us": None,
        "cap_excess_pp": round(max(found["share_error_1s_pp"]), 3) if cap else None,
        "turns_per_s": round(found["turns_per_s"], 1),
        "control_calls_per_s": round(found["control_calls_per_s"], 1),
        "control_p50_us": found["control_p50_us"],
        "sched_thread_cpu_pct": round(found["sched_thread_cpu_pct"], 2),
        "simulated": True,
    }


def measure(cells: tuple[Cell, ...]) -> Iterator[dict[str, Any]]:
    """One boot for each profile."""
    for profile in dict.fromkeys(cell.profile for cell in cells):
        mine = [cell for cell in cells if cell.profile == profile]
        print(f"bench-sched: {profile} in a machine, {len(mine)} cells, a minute each", flush=True)
        yield from (row(cell, found) for cell, found in zip(mine, in_machine(profile, mine), strict=True))


def chosen(names: list[str], quick: bool = False) -> tuple[Cell, ...]:
    """Of the profiles and the scenarios named; where none of a kind is, of all."""
    profiles, scenarios = {cell.profile for cell in CELLS}, {cell.scenario for cell in CELLS}
    if wrong := unknown(names, (*profiles, *scenarios), "profile or scenario"):
        raise Failed(wrong)
    profiles, scenarios = profiles & set(names) or profiles, scenarios & set(names) or scenarios
    found = tuple(cell for cell in CELLS if cell.profile in profiles and cell.scenario in scenarios)
    found = tuple(cell for cell in found if cell.quick or not quick)
    if not found:
        raise Failed(f"no cell{' of --quick' if quick else ''} is of {' and '.join(names)}")
    return found


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="the two cells of bench-quick")
    parser.add_argument("--only", metavar="NAME", action="append", default=[], help="this profile or scenario; again")
    arguments = parser.parse_args()
    try:
        rows = list(measure(chosen(arguments.only, arguments.quick)))
    except Failed as failed:
        print(f"bench-sched: {failed}")
        return 1
    write_report(OUTPUT, {"simulated": True, "results": rows})
    print(f"bench-sched: {len(rows)} rows of the machine in {OUTPUT.relative_to(REPO)}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
