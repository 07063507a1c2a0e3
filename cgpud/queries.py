# SPDX-License-Identifier: MIT
"""The requests that change nothing: status, gpus, events, slices."""

from __future__ import annotations

import asyncio
import time
from collections import OrderedDict
from collections.abc import Callable, Collection
from typing import Any

from cgpu_common import gpus, settings
from cgpu_common.cards import Gpu
from cgpu_common.config import Config
from cgpu_common.errors import KernelMissing
from cgpu_common.events import LogEntry
from cgpu_common.proc import Paths
from cgpu_common.versions import package_version
from cgpud import bundle, labels, report, state
from cgpud.dependencies import Dependencies
from cgpud.history import History
from cgpud.inventory import Inventory
from cgpud.named import RecordNames
from cgpud.sensors import SensorReader
from cgpud.values import Record

ENDED_MAX = 1024  # a bound; those that the kernel still has are few


class Queries:
    """Answers them, and keeps what they need: the latest events, NVML's last answer, names of containers."""

    def __init__(self, deps: Dependencies, inventory: Inventory) -> None:
        self._deps = deps
        self._inventory = inventory
        self._sensors = SensorReader(deps.sensors)
        self._names = RecordNames(Paths.below())
        self._history = History(time.time())
        self._version = package_version()  # of the running program: a new package may be on the disk by now
        self._ended: OrderedDict[tuple[str, int], Record] = OrderedDict()

    def record_event(self, entry: LogEntry, noisy: bool) -> None:
        """Keep an event for the history."""
        self._history.add(time.time(), entry, noisy)

    async def gpus(self) -> dict[str, Any]:
        return await self._sensors.answer()

    def events(self, since: float) -> dict[str, Any]:
        return self._history.since(since)

    def remember(self, record: Record) -> None:
        """A record that is released: the kernel's container may have open files."""
        if record.pod_uid:
            self._ended[record.kernel_key] = record
            if len(self._ended) > ENDED_MAX:
                self._ended.popitem(last=False)

    async def slices(self, records: Collection[Record]) -> dict[str, Any]:
        try:
            kernel = await self._deps.link.list()
        except KernelMissing:
            kernel = ()
        there = {(one.id, one.cookie) for one in kernel}
        self._ended = OrderedDict((key, record) for key, record in self._ended.items() if key in there)
        return {"ok": True, "slices": report.slices(kernel, (*self._ended.values(), *records))}

    async def holders(self, records: Collection[Record], refused: str) -> dict[str, str]:
        """Kernel container id -> pod or name of its engine, as far as known, for a refusal. Its sentence is for the
        author of the container in the bundle `refused`: of pods it has those of the same namespace."""
        named = await self._names.of(records)
        mine = labels.of_spec(bundle.read(refused)).get("namespace", "")
        return {record.kernel_key[0]: name for record in records if (name := labels.holder(named[record.id], mine))}

    async def capacity(
        self, verb: str, config: Config, admission: asyncio.Lock, mps: Callable[[Gpu], dict[str, Any]]
    ) -> dict[str, Any]:
        """What admission lets into each GPU; a probe, for which @admission is taken, finds values before the module has
        attached. NVML is asked first (`nvml`), or for the next start (`renew`)."""
        if verb == "renew":
            self._inventory.renew(config)
        try:
            inventory = await self._inventory.snapshot()
            if verb == "nvml" or not inventory or gpus.undiscovered(inventory):
                async with admission:
                    inventory = await self._inventory.for_admission(config)
        except KernelMissing as error:
            return {"ok": True, "module": False, "why": str(error), "gpus": []}
        found = report.capacity(inventory, mps)
        return {"ok": True, "module": True, "draining": self._deps.draining(), "gpus": found}

    async def status(self, config: Config, records: Collection[Record], grants: int) -> dict[str, Any]:
        try:
            containers = len(await self._deps.link.list())
            module = True
        except KernelMissing:
            containers, module = 0, False
        inventory = await self._inventory.snapshot()
        names = await self._names.of(records)
        return {
            "ok": True,
            "version": self._version,
            "module": module,
            "draining": self._deps.draining(),
            "kernel_containers": containers,
            "config_fingerprint": config.fingerprint,
            "drift": settings.drift(config.gpu, config.gpus, inventory),
            "no_such_gpu": list(settings.unmatched(config.gpus, inventory)),
            "grants": grants,
            "containers": [state.shown(one) | {"names": names.get(one.id, {})} for one in records],
        }
