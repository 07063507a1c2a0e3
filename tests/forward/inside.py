# SPDX-License-Identifier: MIT
"""The steps, inside User-Mode Linux: inside.py OUT STEP [WORDS]. Each result is a line of OUT/results.jsonl at once."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "cuda"))

import card
import ways
from parts import CALL_S, NAMES, SIMULATED, SLOWNESS, Box, Report, call, divided, last_line, slices

CUDA_OUT_OF_MEMORY = 2
#: Of a way of `newer`.
WAY_S = 300.0 if SIMULATED else 15.0
#: Of a walk on a card, and of one of its steps, which it names when that takes longer.
WALK_S, WALK_STALL_S = (CALL_S, "300") if SIMULATED else (28.0, "12")


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
    os.environ["WALK_STALL_S"] = WALK_STALL_S
    bare, stalled = results(call("walk", *steps, limit_s=WALK_S))
    not_0 = {name: result for name, result in bare.items() if result}
    report.add("walk", ok=bool(bare), calls=len(bare), not_0=not_0, **stalled)
    with Box(NAMES[0], slices()[0]) as box:
        sliced, stalled = results(call(*box.head(), "walk", *steps, limit_s=WALK_S))
        used = box.used()
    names = [name for name in bare.keys() | sliced.keys() if not name.startswith("managed/")]
    other = {name: [bare.get(name), sliced.get(name)] for name in names if bare.get(name) != sliced.get(name)}
    ok = bool(sliced) and not other and not used
    report.add("walk in a container", ok=ok, differs=other, used_bytes=used, **stalled)


def results(done: subprocess.CompletedProcess[str]) -> tuple[dict[str, int], dict[str, object]]:
    """Of a walk, none if it stalled or died; and then in which step, or its last words."""
    try:
        said = json.loads(done.stdout)
    except ValueError:
        return {}, {"stalled": done.stderr[-300:] or f"status {done.returncode}"}
    return ({}, {"stalled": said["stalled"]}) if said["stalled"] else (said["results"], {})


def newer(report: Report, *words: str) -> None:
    """CUDA's newer ways to memory, each in a container of its own: what it is charged at each phase."""
    for name in [*ways.WAYS, *ways.LATER]:
        with Box(NAMES[0], slices()[0]) as box:
            found = ways.run(box.head(), name, box.used, WAY_S * SLOWNESS)
            values = {"phases": found.phases, "results": found.results}
            if found.problem.startswith(ways.lacks("")):
                report.missing(name, found.problem, **values)
            elif found.problem and found.problem == found.charge and not SIMULATED:
                # Exact to the byte with 535 to 555 on the simulated card; another driver rounds in other pieces.
                report.missing(name, f"the bytes are those of the simulated card: {found.charge}", **values)
            else:
                report.add(name, ok=not found.problem and box.is_empty(), said=str(found), **values)


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


STEPS: dict[str, Callable[..., None]] = {one.__name__: one for one in (smi, walk, newer, limit, ratio)} | card.STEPS


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
