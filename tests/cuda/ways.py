# SPDX-License-Identifier: MIT
"""One of CUDA's newer ways to memory, run in a container, with what the container is charged at each phase.

tests/cuda/ways/ is the program; `make real` and tests/vm/guest/cuda/test_cuda_ways.py run it. Standard library only.
"""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

ALL = frozenset({535, 550, 555})
NOT_535 = ALL - {535}
#: NVIDIA's program cuda-checkpoint, which no package has: whoever has it puts it here.
UTILITY = Path(__file__).resolve().parents[2] / "build/nvidia/cuda-checkpoint"
ONLY_550 = frozenset({550})
#: Each way, and the branches of the driver with which it holds on the simulated driver alone. 535 has no green
#: contexts, and no memory of the host's nodes where there is no NUMA; 535 and 555 keep the memory
#: of an exported pool until its process ends; 555 ends a process that it resumes.
WAYS = {
    "graph memory nodes": ALL,
    "graph capture": ALL,
    "cuMemMap": ALL,
    "cuMemMap, address kept": ALL,
    "cuMemMap, file descriptor": ALL,
    "cuMemMap, other handles": ALL,
    "cuMemMap, host memory": NOT_535,
    "memory pool": ALL,
    "memory pool, two processes": ONLY_550,
    "green contexts": NOT_535,
    "module, lazy loading": ALL,
    "module, eager loading": ALL,
}
#: The same of those that need UTILITY.
BY_UTILITY = {"cuda-checkpoint": ONLY_550, "cuda-checkpoint, slice full": ONLY_550}


def of_branch(branch: int) -> list[str]:
    return [name for name, branches in WAYS.items() if branch in branches]


@dataclass
class Outcome:
    """What a program said, and what was charged meanwhile."""

    phases: list[tuple[str, int, int]] = field(default_factory=list)  #: name, bytes wanted, bytes charged
    results: dict[str, int] = field(default_factory=dict)
    problem: str = ""  #: empty where all held

    def __str__(self) -> str:
        return self.problem or ", ".join(f"{name} {charged / 2**20:.2f} MiB" for name, _, charged in self.phases)


def run(head: Sequence[str], name: str, used: Callable[[], int]) -> Outcome:
    """Runs a way by the command line `head ways NAME`; `used` is the container's charge in bytes."""
    outcome = Outcome()
    pipes: dict[str, Any] = dict.fromkeys(("stdin", "stdout", "stderr"), subprocess.PIPE)
    environ = {**os.environ, "CUDA_CHECKPOINT": str(UTILITY)}
    with subprocess.Popen([*head, "ways", name], text=True, env=environ, **pipes) as program:
        assert program.stdin and program.stdout and program.stderr
        first = None
        for line in program.stdout:
            said = read(line)
            if "phase" in said:
                charged = used()
                first = charged if first is None else first
                take(outcome, said, charged, first)
                program.stdin.write(f"{max(0, charged - first)}\n")
                program.stdin.flush()
            elif "result" in said:
                outcome.results[said["result"]] = said["is"]
            else:
                outcome.problem = outcome.problem or line.strip()
        status = program.wait()
        if status and not outcome.problem:
            outcome.problem = f"status {status}: {program.stderr.read().strip()[-200:]}"
    return outcome


def read(line: str) -> dict[str, Any]:
    try:
        said = json.loads(line)
    except ValueError:
        return {}
    return said if isinstance(said, dict) else {}


def take(outcome: Outcome, said: dict[str, Any], charged: int, first: int) -> None:
    """A phase: its bytes beside those of the first phase, or none at all; without `bytes` it may be any number."""
    held = charged if said.get("bytes", 0) is None else charged - first
    wanted = said["bytes"] or 0 if "bytes" in said else held
    outcome.phases.append((said["phase"], wanted, held))
    if held != wanted and not outcome.problem:
        outcome.problem = f"{said['phase']}: {held} bytes are charged, not {wanted}"
