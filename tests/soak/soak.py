# SPDX-License-Identifier: MIT
"""Random lives of containers, with faults of the driver, until the time is over. Runs in the guest (`make soak`).

soak.py MINUTES SEED: afterwards nothing may be left, and a container must work. The last line is a JSON object.
"""

from __future__ import annotations

import contextlib
import itertools
import json
import os
import random
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path

REPO = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(REPO / "tests/vm/guest/box")]

from slicebox import MIB, PROC, Box, clean_box, fb_used, mount_nodes, nvclient, until  # noqa: E402

PARAMETERS = Path("/sys/module/nvsim/parameters")
MOST = 6
#: What a call may answer while the driver fails.
EXPECTED = (OSError, nvclient.RmError, AssertionError, StopIteration, KeyError)


def parameter(name: str, value: int) -> None:
    (PARAMETERS / name).write_text(str(value))


class Soak:
    """The containers that live, and what was done to them."""

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)
        self.names = (f"{n:012x}" + "5a" * 26 for n in itertools.count(1))
        self.boxes: list[Box] = []
        self.loads: list[subprocess.Popen] = []
        self.done: Counter[str] = Counter()
        self.failed: Counter[str] = Counter()

    def step(self) -> None:
        action = self.random.choice(ACTIONS)
        try:
            action(self)
            self.done[action.__name__] += 1
        except EXPECTED:
            self.failed[action.__name__] += 1

    def create(self) -> None:
        if len(self.boxes) < MOST:
            self.boxes.append(Box(next(self.names), self.random.choice((64, 256, 1024)), weight=1))

    def destroy(self) -> None:
        if self.boxes:
            box = self.boxes.pop(self.random.randrange(len(self.boxes)))
            with contextlib.suppress(FileNotFoundError):
                (PROC / "inst_ctl").write_text(f"destroy {box.name}")

    def load(self) -> None:
        if self.boxes and len(self.loads) < MOST:
            box = self.random.choice(self.boxes)
            self.loads.append(box.simload("--seconds", 0, "--kernel-us", self.random.choice((50, 500, 5000))))

    def kill(self) -> None:
        if self.loads:
            load = self.loads.pop(self.random.randrange(len(self.loads)))
            load.kill()
            load.communicate()

    def use(self) -> None:
        if not self.boxes:
            return
        with self.random.choice(self.boxes).client() as rm:
            gpu = rm.gpu(0)
            status, memory = gpu.alloc_vidmem(self.random.choice((1, 2, 16, 100)) * MIB)
            if not status:
                rm.dup(gpu.device, rm, memory)
                gpu.free(memory)

    def policy(self) -> None:
        (PROC / "0/policy").write_text(str(self.random.randrange(6)))

    def weight(self) -> None:
        if self.boxes:
            (self.random.choice(self.boxes).proc / "weight").write_text(str(self.random.randrange(3)))

    def read(self) -> None:
        for path in (PROC / "0").rglob("*"):
            if path.is_file():
                with contextlib.suppress(OSError):
                    path.read_text()

    def fault(self) -> None:
        parameter("fault_kind", self.random.randrange(3))
        parameter("fault_times", self.random.choice((1, 1, 1, 10)))
        parameter("fault_nth", self.random.randrange(1, 300))

    def gone(self) -> None:
        parameter("gone", 1)
        time.sleep(0.2)
        parameter("gone", 0)

    def end(self) -> None:
        parameter("fault_nth", 0)
        parameter("gone", 0)
        while self.loads:
            self.kill()
        for line in Box.listed():
            with contextlib.suppress(FileNotFoundError):
                (PROC / "inst_ctl").write_text(f"destroy {line.split()[0]}")
        until(lambda: not Box.listed())


ACTIONS = (
    *(Soak.create,) * 4,
    *(Soak.use,) * 4,
    *(Soak.load, Soak.kill, Soak.destroy) * 2,
    *(Soak.policy, Soak.weight, Soak.read, Soak.fault, Soak.gone),
)


def main(minutes: float, seed: int) -> dict[str, object]:
    if not os.path.ismount("/dev/cgpu"):
        mount_nodes()
    before = fb_used()
    soak = Soak(seed)
    end = time.monotonic() + minutes * 60
    while time.monotonic() < end:
        soak.step()
    soak.end()
    until(lambda: fb_used() == before)
    with clean_box(next(soak.names), 64) as box, box.client() as rm:
        assert rm.gpu(0).alloc_vidmem(MIB)[0] == 0
    return {
        "seed": seed,
        "minutes": minutes,
        "actions": sum(soak.done.values()),
        "refused": sum(soak.failed.values()),
        "containers": soak.done["create"],
        "faults": soak.done["fault"] + soak.done["gone"],
    }


if __name__ == "__main__":
    report = json.dumps(main(float(sys.argv[1]), int(sys.argv[2])), sort_keys=True)
    (Path(os.environ["CGPU_RUN"]) / "soak.json").write_text(report + "\n")
    print(report)
