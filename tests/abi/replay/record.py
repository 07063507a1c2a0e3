# SPDX-License-Identifier: MIT
"""Records the traces of NVIDIA's user space again: make record NVIDIA=535|550|555.

record.py run: in the machine, each program under the recorder, on the simulated driver alone.
record.py write: on the host, the distinct calls of each recording as tests/abi/replay/traces/<branch>/<name>.trace; of
another branch than 550 those that 550's recording does not have.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

from distinct import reduce
from tracefile import Trace, load

REPO = Path(__file__).resolve().parents[3]
TRACES = REPO / "tests/abi/replay/traces"
RECORDER = REPO / "build/client/librmtap.so"
NORMALISE = REPO / "tests/hardware/rmtap/normalise.py"
TIMEOUT_S = 300
FIRST = "550"
#: One context for all steps of the walk: its 600 calls are most of a trace. Without pools: for each, libcuda reserves
#: addresses as many as the card has memory, and any pair of numbers looks like one of them.
PROGRAMS = {
    "walk": "walk -1 memory vmm export managed over",
    "nvidia-smi": "nvidia-smi -q",
}
#: Of the container that plays it: the walk's managed memory is charged.
UVM = {"walk": "account"}


def run(program: str, logs: Path) -> None:
    shutil.rmtree(logs, ignore_errors=True)
    logs.mkdir(parents=True)
    env = {**os.environ, "LD_PRELOAD": str(RECORDER), "RMTAP_DIR": str(logs), "CUDA_CACHE_DISABLE": "1"}
    subprocess.run(program.split(), env=env, stdout=subprocess.DEVNULL, timeout=TIMEOUT_S, check=True)


def write(program: str, logs: Path, out: Path) -> None:
    out.parent.mkdir(parents=True, exist_ok=True)
    words = [sys.executable, NORMALISE, "--program", program, "--gpu", "Tesla T4, simulated", "--out", out]
    words += ["--uvm", UVM[out.stem]] if out.stem in UVM else []
    subprocess.run([*words, *sorted(logs.glob("*.raw"))], check=True)
    out.write_text(reduce(load(out), beside(out)).text())


def beside(out: Path) -> Trace | None:
    """550's recording of the same program, without whose calls that of another branch is kept."""
    return None if out.parent.name == FIRST else load(TRACES / FIRST / out.name)


def main(what: str) -> int:
    branch = os.environ["NVIDIA"]
    for name, program in PROGRAMS.items():
        logs = REPO / "build/record" / branch / name
        if what == "run":
            run(program, logs)
        else:
            write(program, logs, TRACES / branch / f"{name}.trace")
    return 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
