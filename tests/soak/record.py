# SPDX-License-Identifier: MIT
"""`make soak`, `make fuzz` and `make reliability`, on the host; `make fuzz-text` adds its records through it.

record.py soak MINUTES SEED: a soak in a virtual machine; a record of it goes to tests/soak/records.jsonl.
record.py fuzz SECONDS SEED [OPTION...]: wrong calls in a virtual machine, likewise.
record.py write: docs/reliability.md from the records.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path

Record = Mapping[str, object]

REPO = Path(__file__).resolve().parents[2]
RECORDS = REPO / "tests/soak/records.jsonl"
PAGE = REPO / "docs/reliability.md"
HEAD = """# Reliability: what was run

Written by `make reliability` from `tests/soak/records.jsonl`, to which `make soak`, `make fuzz` and `make fuzz-text`
add a record of each run, also of one that fails ([testing.md](develop/testing.md)). All of it is *simulated*: there is
no record of a run on a real GPU.

"""


@dataclass(frozen=True)
class Kind:
    """Of a run: its section of the page. `what` it does, and when it passes."""

    heading: str
    what: str
    columns: tuple[str, ...]


KINDS = {
    "soak": Kind(
        "Random lives",
        "Random containers, loads, settings and ends, while the simulated driver fails at random calls or leaves the "
        "bus. It passes\nif no byte and no container is left at the end, the kernel has not complained, and a new "
        "container works.",
        (
            *("date", "revision", "kernel", "seed", "minutes", "containers", "actions", "refused", "faults", "swaps"),
            *("pause p99, us", "lost bytes", "result"),
        ),
    ),
    "fuzz": Kind(
        "Wrong calls",
        "One container makes calls that are wrong in every way, beside another one. It passes if the charge and the "
        "card's memory\nagree at every quiet point, the charge never exceeds the limit, the other container's memory "
        "and charge are unchanged,\nand the kernel has not complained. The module's functions, blocks of code and "
        "edges between blocks that were reached are\nknown where the kernel has KCOV.",
        (
            *("date", "revision", "kernel", "seed", "seconds", "calls", "mutated", "quiets", "functions", "blocks"),
            *("edges", "lost bytes", "result"),
        ),
    ),
    "fuzz-text": Kind(
        "Wrong texts",
        "Parsers of what others write, under libFuzzer with ASan and UBSan in user space. It passes if every property "
        "holds.",
        ("date", "revision", "parser", "seconds", "inputs", "result"),
    ),
}


def _table(columns: Sequence[str], records: Iterable[Record]) -> str:
    rows = ["| " + " | ".join(str(record.get(column, "-")) for column in columns) + " |" for record in records]
    return "\n".join(["| " + " | ".join(columns) + " |", "|---" * len(columns) + "|", *rows]) + "\n"


def _sum(records: Sequence[Record], *columns: str) -> str:
    """The sum of the figures that are there, with the number of runs without one."""
    found = [[record[column] for column in columns if column in record] for record in records]
    numbers = [next((one for one in values if isinstance(one, (int, float))), None) for values in found]
    missing = numbers.count(None)
    total = f"{round(sum(number for number in numbers if number is not None)):,}"
    return f"{total} (not counted in {missing} of {len(records)} runs)" if missing else total


def _totals(records: Sequence[Record]) -> str:
    passed = [record for record in records if record["result"] == "passed"]
    soaks = [one for one in passed if one["kind"] == "soak"]
    wrong = [one for one in passed if one["kind"] != "soak"]
    cards = [record for record in records if record["kind"] != "fuzz-text"]
    return (
        f"{len(passed)} of {len(records)} runs passed.\n\n"
        f"- minutes of load: {_sum(soaks, 'minutes')}\n"
        f"- containers: {_sum(soaks, 'containers')}\n"
        f"- faults of the driver: {_sum(soaks, 'faults')}\n"
        f"- changes of the core: {_sum(soaks, 'swaps')}\n"
        f"- wrong inputs: {_sum(wrong, 'calls', 'inputs')}\n"
        f"- bytes of the card lost, in all runs with a card, also in those that failed: {_sum(cards, 'lost bytes')}\n\n"
    )


def page(records: Sequence[Record]) -> str:
    """docs/reliability.md."""
    if not records:
        return HEAD + "No record yet.\n"
    parts = []
    for name, kind in KINDS.items():
        if of_kind := [record for record in records if record["kind"] == name]:
            parts.append(f"## {kind.heading}\n\n{kind.what}\n\n{_table(kind.columns, of_kind)}")
    return HEAD + _totals(records) + "\n".join(parts)


def read() -> list[dict[str, object]]:
    """The records so far."""
    return [json.loads(line) for line in RECORDS.read_text().splitlines()] if RECORDS.exists() else []


@cache
def _revision() -> str:
    """As of the first record: each one, and each new input, makes the checkout dirty."""
    git = ["git", "-C", str(REPO), "describe", "--always", "--dirty"]
    return subprocess.run(git, capture_output=True, text=True).stdout.strip() or "unknown"


def add(kind: str, passed: bool, why: str, **found: object) -> None:
    """Append the record of a run."""
    record = {
        "kind": kind,
        "revision": _revision(),
        "date": time.strftime("%Y-%m-%d", time.gmtime()),
        "result": "passed" if passed else f"failed: {why}",
        **{name: value for name, value in found.items() if name in KINDS[kind].columns},
    }
    with RECORDS.open("a") as out:
        out.write(json.dumps(record, sort_keys=True) + "\n")
    print(f"{kind}: {record['result']}")


def in_a_machine(kind: str, command: str, lasts_s: float, **found: object) -> int:
    """Run the command in a virtual machine; it leaves <kind>.json. The status is 0 only if it passed."""
    from vm.harness import run, suite
    from vm.harness.machine import from_variables

    os.environ.setdefault("DAEMON", "0")
    machine = from_variables(os.environ)
    timeout = float(os.environ.get("TIMEOUT") or lasts_s * 2 + 900)
    result = run.run(machine, command, timeout, suite.to_stdout, suite.to_stderr)
    report = result.run_dir / f"{kind}.json"
    found |= json.loads(report.read_text()) if report.exists() else {}
    passed = not result.status and not result.findings
    add(kind, passed, f"status {result.status}, {len(result.findings)} complaints", kernel=machine.kernel, **found)
    print(f"logs in {result.run_dir}")
    return not passed


def main(words: list[str]) -> int:
    match words:
        case ["soak", minutes, seed]:
            command = f"python tests/soak/soak.py {minutes} {seed}"
            return in_a_machine("soak", command, float(minutes) * 60, minutes=float(minutes), seed=int(seed))
        case ["fuzz", seconds, seed, *options]:
            command = " ".join(["python tests/fuzz/fuzzed.py", seconds, seed, *options])
            return in_a_machine("fuzz", command, float(seconds), seconds=float(seconds), seed=int(seed))
        case ["write"]:
            PAGE.write_text(page(read()))
            return 0
    print(__doc__, file=sys.stderr)
    return 2


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
