# SPDX-License-Identifier: MIT
"""MPS control daemons in memory: what they were told, and samples that a test sets."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Collection
from pathlib import Path

from fakelink import example_gpus

from cgpu_common import mps as names
from cgpu_common.cards import NvmlGpu
from cgpud.mps_control import Control, ControlFailed, Process, Sample


def exclusive(count: int = 1, mode: str = names.EXCLUSIVE) -> tuple[NvmlGpu, ...]:
    """NVML's view of the fake kernel's GPUs in this compute mode."""
    return tuple(
        NvmlGpu(gpu.index, gpu.uuid, gpu.pci, gpu.nv_minor, gpu.total >> 20, used_mib=400, compute_mode=mode)
        for gpu in example_gpus(count)
    )


class FakeControl(Control):
    """`processes`: by UUID. A process that is ended has no memory any more, unless `stuck`."""

    def __init__(self, root: Path) -> None:
        super().__init__(root)
        self.processes: dict[str, dict[int, Process]] = {}
        self.lives = 0
        self.limits: list[tuple[str, int]] = []
        self.cgroups: list[tuple[str, str, int]] = []
        self.ended: list[int] = []
        self.dead = ""  # why the control daemons do not answer
        self.stuck = ""  # why they end no client
        self.blind = ""  # why NVML does not answer
        self.refuses_cgroups = ""
        self.exclusive = True  # the compute mode
        self.silent = False  # NVML has not answered yet

    def start(self, uuid: str, clients: int = 48, *, by_cgroup: bool = False) -> None:
        """What the unit's program leaves when it is ready."""
        (self.directory(uuid) / "pipe").mkdir(parents=True, exist_ok=True)
        (self.directory(uuid) / "pipe/control_privileged").touch()
        self.lives += 1
        ready = {"clients": clients, "driver": "550.163.01", "by_cgroup": by_cgroup, "life": str(self.lives)}
        (self.directory(uuid) / names.READY).write_text(json.dumps(ready))

    def stop(self, uuid: str) -> None:
        (self.directory(uuid) / names.READY).unlink()

    def use(self, uuid: str, pid: int, mib: int | None, *, is_server: bool = False) -> None:
        self.processes.setdefault(uuid, {})[pid] = Process(pid, mib, is_server)

    async def check(self, uuid: str) -> None:
        if self.dead:
            raise ControlFailed(self.dead)

    async def set_limit(self, uuid: str, mib: int) -> None:
        await self.check(uuid)
        self.limits.append((uuid, mib))

    async def end(self, uuid: str, pid: int) -> None:
        await self.check(uuid)
        if self.stuck:
            raise ControlFailed(self.stuck)
        self.ended.append(pid)
        self.processes[uuid].pop(pid, None)

    async def limit_cgroup(self, uuid: str, directory: str, mib: int) -> None:
        if self.refuses_cgroups:
            raise ControlFailed(self.refuses_cgroups)
        self.cgroups.append((uuid, directory, mib))

    async def samples(self, uuids: Collection[str]) -> AsyncIterator[Sample]:
        while True:
            for uuid in uuids if not self.silent else ():
                yield Sample(uuid, tuple(self.processes.get(uuid, {}).values()), self.exclusive, self.blind)
            await asyncio.sleep(0.05)
