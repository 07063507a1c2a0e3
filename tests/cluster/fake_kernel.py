# SPDX-License-Identifier: MIT
"""cgpud with a kernel in memory, of which a file keeps the containers and folders of /dev/cgpu are the nodes.

`python fake_kernel.py SLICES MIB[,MIB…] [cgpud's options]`. With it a kubelet, containerd, cgpu-runtime and runc start
sliced containers on a machine without cgpu_km: everything happens but the enforcement. SLICES is JSON: id -> [[GPU,
bytes, weight], …], written before cgpud learns that a slice is there, as /proc/cgpu_km would show it.
"""

from __future__ import annotations

import base64
import json
import pickle
import shutil
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from cgpu_common.model import MIB, Container, KernelGpu, Slot, SlotWant
from cgpud import __main__ as cgpud

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "unit/daemon"))

from fakelink import FakeLink, example_gpus

NODES = Path("/dev/cgpu")


class FileLink(FakeLink):
    """The same, and what a killed daemon finds again."""

    def __init__(self, gpus: Sequence[KernelGpu], path: Path) -> None:
        super().__init__(gpus)
        self._path = path
        if path.exists():
            self.containers = pickle.loads(base64.b64decode(json.loads(path.read_text())["kernel"]))
        minors = [slot.minor for one in self.containers.values() for slot in one.slots]
        minors += [minor for one in self.containers.values() for minor in (one.ctl_minor, one.uvm_minor)]
        self._next_minor = max(minors, default=-1) + 1
        self._write()

    def _write(self) -> None:
        shown = {
            one.id: [[slot.gpu, slot.limit, slot.weight] for slot in one.slots] for one in self.containers.values()
        }
        kept = base64.b64encode(pickle.dumps(self.containers)).decode()
        new = self._path.with_suffix(".new")
        new.write_text(json.dumps({"slices": shown, "kernel": kept}))
        new.replace(self._path)

    async def create(self, container_id: str, cookie: int, slots: Sequence[SlotWant]) -> Container:
        made = await super().create(container_id, cookie, slots)
        directory = NODES / made.dir
        directory.mkdir(parents=True, exist_ok=True)
        for name in ("nvidiactl", "nvidia-uvm", *(f"nvidia{_minor(slot)}" for slot in made.slots)):
            (directory / name).touch()
        self._write()
        return made

    async def destroy(self, container_id: str, cookie: int) -> bool:
        found = self.containers.get(container_id)
        done = await super().destroy(container_id, cookie)
        if done and found is not None:
            shutil.rmtree(NODES / found.dir, ignore_errors=True)
            self._write()
        return done


def _minor(slot: Slot) -> int:
    return slot.nv_minor


def main() -> None:
    path, sizes, *options = sys.argv[1:]
    totals = [int(mib) * MIB for mib in sizes.split(",")]
    gpus = [
        replace(gpu, total=total, driver_free=total)
        for gpu, total in zip(example_gpus(len(totals)), totals, strict=True)
    ]
    cgpud.make_link = lambda: FileLink(gpus, Path(path))
    sys.argv = ["cgpud", *options]
    cgpud.main()


if __name__ == "__main__":
    main()
