# SPDX-License-Identifier: MIT
"""`make soak` and `make reliability`, on the host.

record.py run MINUTES SEED: a soak in a virtual machine; a record of it goes to tests/soak/records.jsonl.
record.py write: docs/reliability.md from the records.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Iterable, Mapping
from pathlib import Path

REPO = Path(__file__).resolve().parents[2]
RECORDS = REPO / "tests/soak/records.jsonl"
PAGE = REPO / "docs/reliability.md"
HEAD = """# Reliability: what was run

Written by `make reliability` from `tests/soak/records.jsonl`; `make soak` adds to it. A soak makes random containers,
loads, settings and ends, while the simulated driver fails at random calls or leaves the bus
([testing.md](develop/testing.md)). It passes if nothing is left at the end, the kernel has not complained, and a new
container works. All of it is *simulated*: there is no record of a run on a real GPU.

"""
COLUMNS = (
    *("date", "revision", "kernel", "seed", "minutes", "containers", "actions", "refused", "faults", "swaps"),
    *("pause p99, us", "result"),
)


def page(records: Iterable[Mapping[str, object]]) -> str:
    """docs/reliability.md."""
    rows = ["| " + " | ".join(str(record[column]) for column in COLUMNS) + " |" for record in records]
    if not rows:
        return HEAD + "No record yet.\n"
    return HEAD + "\n".join(["| " + " | ".join(COLUMNS) + " |", "|---" * len(COLUMNS) + "|", *rows]) + "\n"


def read() -> list[dict[str, object]]:
    """The records so far."""
    return [json.loads(line) for line in RECORDS.read_text().splitlines()] if RECORDS.exists() else []


def soak(minutes: float, seed: int) -> int:
    """Run one and record it; the status is 0 only if it passed."""
    from vm.harness import run, suite
    from vm.harness.machine import from_variables

    os.environ.setdefault("DAEMON", "0")
    machine = from_variables(os.environ)
    timeout = float(os.environ.get("TIMEOUT") or minutes * 60 * 2 + 900)
    command = f"python tests/soak/soak.py {minutes} {seed}"
    result = run.run(machine, command, timeout, suite.to_stdout, suite.to_stderr)
    report = result.run_dir / "soak.json"
    record: dict[str, object] = dict.fromkeys(COLUMNS, "-") | {"seed": seed, "minutes": minutes}
    record |= json.loads(report.read_text()) if report.exists() else {}
    git = ["git", "-C", str(REPO), "describe", "--always", "--dirty"]
    record["revision"] = subprocess.run(git, capture_output=True, text=True).stdout.strip() or "unknown"
    record["date"] = time.strftime("%Y-%m-%d", time.gmtime())
    record["kernel"] = machine.kernel
    passed = not result.status and not result.findings
    record["result"] = "passed" if passed else f"failed: status {result.status}, {len(result.findings)} complaints"
    with RECORDS.open("a") as out:
        out.write(json.dumps(record, sort_keys=True) + "\n")
    print(f"soak: {record['result']}, logs in {result.run_dir}")
    return not passed


def main(words: list[str]) -> int:
    match words:
        case ["run", minutes, seed]:
            return soak(float(minutes), int(seed))
        case ["write"]:
            PAGE.write_text(page(read()))
            return 0
    print(__doc__, file=sys.stderr)
    return 2


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
