# SPDX-License-Identifier: MIT
"""The steps, inside User-Mode Linux: inside.py OUT STEP [WORDS]. Each result is a line of OUT/results.jsonl at once."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import card
from parts import NAMES, Box, Report, call, divided, last_line, slices

CUDA_OUT_OF_MEMORY = 2


def smi(report: Report, *words: str) -> None:
    """nvidia-smi, on the driver alone and in a container."""
    mib = slices()[0]
    bare = call("nvidia-smi", "--query-gpu=name,memory.total,driver_version", "--format=csv,noheader,nounits")
    report.add("nvidia-smi", ok=bare.returncode == 0, said=bare.stdout.strip() or bare.stderr[-200:])
    with Box(NAMES[0], mib) as box:
        done = call(*box.head(), "nvidia-smi", "--query-gpu=memory.total", "--format=csv,noheader,nounits")
        total = done.stdout.strip()
        report.add("nvidia-smi in a container", ok=total == str(mib), total_mib=total or done.stderr[-200:])


def walk(report: Report, *steps: str) -> None:
    """libcuda's calls in a container have the results that they have on the driver alone."""
    bare = results(call("walk", *steps))
    report.add("walk", ok=bool(bare), calls=len(bare), not_0={name: result for name, result in bare.items() if result})
    with Box(NAMES[0], slices()[0]) as box:
        sliced = results(call(*box.head(), "walk", *steps))
        used = box.used()
    names = [name for name in bare.keys() | sliced.keys() if not name.startswith("managed/")]
    other = {name: [bare.get(name), sliced.get(name)] for name in names if bare.get(name) != sliced.get(name)}
    report.add("walk in a container", ok=bool(sliced) and not other and not used, differs=other, used_bytes=used)


def results(done: subprocess.CompletedProcess[str]) -> dict[str, int]:
    """Of a walk; nothing if it stalled or died."""
    try:
        said = json.loads(done.stdout)
    except ValueError:
        return {}
    return {} if said["stalled"] else said["results"]


def limit(report: Report, *words: str) -> None:
    """An allocation of the whole slice fails beside a context; half of it works, and all comes back."""
    limit_mib = slices()[0]
    with Box(NAMES[0], limit_mib) as box:
        for mib, wanted in ((limit_mib, "over"), (limit_mib // 2, "within")):
            done = call(*box.head(), "gpuload", "--json", "--seconds", "1", "--alloc-mib", str(mib))
            said = last_line(done)
            error = said.get("first_error") or {}
            over = error.get("call") == "cuMemAlloc" and error.get("status") == CUDA_OUT_OF_MEMORY
            ok = over if wanted == "over" else done.returncode == 0 and said.get("works", 0) > 0
            used = box.used()
            report.add(
                f"{wanted} the limit", ok=ok and not used, total_bytes=said.get("total_bytes"), error=error, used=used
            )


def ratio(report: Report, *words: str) -> None:
    """Two containers, weights 1 : 2, policy 2, by the module's own thread."""
    divided(report, "ratio", (1, 2), float(words[0]) if words else 12.0, windows=3)


STEPS: dict[str, Callable[..., None]] = {one.__name__: one for one in (smi, walk, limit, ratio)} | card.STEPS


def find(name: str) -> Callable[..., None]:
    """A step, of here or of abuse.py, whose client takes an emulated machine seconds to import."""
    if name in STEPS:
        return STEPS[name]
    import abuse

    return abuse.STEPS[name]


def main() -> int:
    """0 if the step came to its end."""
    out, step, *words = sys.argv[1:]
    find(step)(Report(Path(out)), *words)
    return 0


if __name__ == "__main__":
    sys.exit(main())
