# SPDX-License-Identifier: MIT
"""What programs call: recorded by rmtap, counted here, to be read in full afterwards."""

from __future__ import annotations

import gzip
import os
import re
import shutil
from collections import Counter
from pathlib import Path

from .ask import TORCH, Context, Missing, has_torch, question
from .loads import run_program

STEPS = ("init", "alloc", "vmm", "pool", "managed", "streams", "graph", "ipc")


def calls_of(raw: Path) -> Counter:
    """How often each node's number was called: "ioctl <fd> <node> <request> ..." lines of record.c."""
    found: Counter = Counter()
    for line in raw.read_text(errors="replace").splitlines():
        call = re.search(r"\bioctl \d+ (\S+) ([0-9a-f]+) ", line[:200])
        if call:
            found[f"{call[1]} 0x{call[2]}"] += 1
    return found


def keep_packed(raw: Path, target: Path) -> list[str]:
    """Moves recordings to the results, packed; their paths from the results on."""
    files = sorted(raw.glob("*.raw"))
    if files:
        target.mkdir(parents=True, exist_ok=True)
    for one in files:
        with one.open("rb") as plain, gzip.open(target / f"{one.name}.gz", "wb", 6) as packed:
            shutil.copyfileobj(plain, packed)
        one.unlink()
    return [f"traces/{target.name}/{one.name}.gz" for one in files]


def record(context: Context, name: str, argv: list[str], keep: Path) -> dict:
    folder = context.work / f"trace-{name}"
    folder.mkdir(exist_ok=True)
    env = {"LD_PRELOAD": str(context.bin / "librmtap.so"), "RMTAP_DIR": str(folder)}
    done = run_program(argv, env, timeout_s=45)
    calls = sum((calls_of(raw) for raw in sorted(folder.glob("*.raw"))), Counter())
    return {
        "status": done["status"],
        "reason": done.get("reason") or done["stderr"].strip()[-300:],
        "files": keep_packed(folder, keep / name),
        "calls": sum(calls.values()),
        "by_number": dict(calls.most_common()),
    }


def programs(context: Context) -> dict[str, list[str]]:
    if context.facts["simulated"]:
        return {"load": context.argv(seconds=0.2), "simsmi": [str(context.bin / "simsmi")]}
    found = {step: [str(context.bin / "exercise"), step] for step in STEPS}
    found["nvidia-smi"] = ["nvidia-smi"]
    if has_torch():
        found["torch"] = [*TORCH, "--seconds", "1", "--json"]
    return found


@question("traces", "traces", 60, (1, 2, 14))
def traces(context: Context) -> dict:
    """Which calls do CUDA, NVML and torch make of the driver?

    Each program under rmtap; the files go beside the results, tests/hardware/README.md says what to do with them.
    """
    if not os.access(context.bin / "librmtap.so", os.R_OK):
        raise Missing("librmtap.so was not built")
    rows = {name: record(context, name, argv, context.out / "traces") for name, argv in programs(context).items()}
    said = [
        f"{name}: {row['calls']} calls" if row["calls"] else f"{name}: {row['reason'] or 'no calls'}"
        for name, row in rows.items()
    ]
    return {"answer": ", ".join(said), "programs": rows}
