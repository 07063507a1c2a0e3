# SPDX-License-Identifier: MIT
"""One of CUDA's newer ways to memory, run in a container, with what the container is charged at each phase.

tests/cuda/ways/ is the program; `make real` and tests/vm/guest/cuda/test_cuda_ways.py run it. Standard library only.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import threading
from collections.abc import Callable, Iterator, Sequence
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
#: Ways whose call begins with 570, and the call. For older ones they end with the sentence `lacks(call)`.
LATER = {"cuMemBatchDecompressAsync": "cuMemBatchDecompressAsync", "cuCheckpointProcess": "cuCheckpointProcessLock"}


def of_branch(branch: int) -> list[str]:
    """Those that can run on this machine."""
    every = {**WAYS, **(BY_UTILITY if UTILITY.exists() else {})}
    return [name for name, branches in every.items() if branch in branches]


def lacks(call: str) -> str:
    return f"this libcuda has no {call}"


@dataclass
class Outcome:
    """What a program said, and what was charged meanwhile."""

    phases: list[tuple[str, int, int]] = field(default_factory=list)  #: name, bytes wanted, bytes charged
    results: dict[str, int] = field(default_factory=dict)
    problem: str = ""  #: empty where all held
    charge: str = ""  #: the first charge that is not what was wanted; the problem where there is no other

    def __str__(self) -> str:
        return self.problem or ", ".join(f"{name} {charged / 2**20:.2f} MiB" for name, _, charged in self.phases)


def run(head: Sequence[str], name: str, used: Callable[[], int], limit_s: float | None = None) -> Outcome:
    """Runs a way by the command line `head ways NAME`; `used` is the container's charge in bytes."""
    outcome = Outcome()
    pipes: dict[str, Any] = dict.fromkeys(("stdin", "stdout", "stderr"), subprocess.PIPE)
    environ = {**os.environ, "CUDA_CHECKPOINT": str(UTILITY)}
    command = [*head, "ways", name]
    with (
        subprocess.Popen(command, text=True, env=environ, start_new_session=True, **pipes) as program,
        ended_after(limit_s, program) as late,
    ):
        assert program.stdin and program.stdout and program.stderr
        first = None
        for line in program.stdout:
            said = read(line)
            if "phase" in said:
                charged = used()
                first = charged if first is None else first
                take(outcome, said, charged, first)
                with contextlib.suppress(BrokenPipeError):  # it has been ended
                    program.stdin.write(f"{max(0, charged - first)}\n")
                    program.stdin.flush()
            elif "result" in said:
                outcome.results[said["result"]] = said["is"]
            elif "missing" in said:
                outcome.problem = lacks(said["missing"])
            else:
                outcome.problem = outcome.problem or line.strip()
        status = program.wait()
        if late:
            outcome.problem = f"ended after {limit_s:.0f} s"
        elif status and not outcome.problem:
            outcome.problem = f"status {status}: {program.stderr.read().strip()[-200:]}"
    outcome.problem = outcome.problem or outcome.charge
    return outcome


@contextlib.contextmanager
def ended_after(limit_s: float | None, program: subprocess.Popen[str]) -> Iterator[list[bool]]:
    """Kills it and its children, which have its pipes, after that time; the list is empty until then."""
    late: list[bool] = []

    def end() -> None:
        late.append(True)
        os.killpg(program.pid, signal.SIGKILL)

    timer = threading.Timer(limit_s or threading.TIMEOUT_MAX, end)
    timer.daemon = True
    timer.start()
    try:
        yield late
    finally:
        timer.cancel()


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
    if held != wanted and not outcome.charge:
        outcome.charge = f"{said['phase']}: {held} bytes are charged, not {wanted}"
