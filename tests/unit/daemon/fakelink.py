# SPDX-License-Identifier: MIT
"""KernelLink in memory. As a program: cgpud with it, by cgpud's own options. It isolates nothing."""

from __future__ import annotations

import asyncio
import errno
from collections.abc import AsyncIterator, Mapping, Sequence
from dataclasses import asdict, replace
from typing import Any

from cgpu_common.errors import KernelMissing, KernelRefused
from cgpu_common.kernel_abi import Event, G, S
from cgpu_common.link import Joined
from cgpu_common.model import MIB, Container, KernelEvent, KernelGpu, Slot, SlotWant

MAJOR = 509


def example_gpus(count: int = 1, total_mib: int = 15109) -> tuple[KernelGpu, ...]:
    return tuple(
        KernelGpu(
            index=n,
            uuid=f"GPU-00000000-0000-0000-0000-{n:012d}",
            pci=f"0000:{n + 1:02x}:00.0",
            nv_minor=n,
            total=total_mib * MIB,
            driver_free=total_mib * MIB,
            born=1,
        )
        for n in range(count)
    )


class FakeLink:
    """Behaves as KernelLink describes; `missing` simulates an unloaded module."""

    def __init__(self, gpus: Sequence[KernelGpu] | None = None) -> None:
        self.inventory = tuple(gpus if gpus is not None else example_gpus())
        self.containers: dict[str, Container] = {}
        self.missing = False
        self.unsupported: set[int] = set()  # policies whose control does not work
        self.calls: list[tuple[str, str, int]] = []
        self.set_calls: list[tuple[int, dict[G, int]]] = []
        self._next_minor = 0
        self.listeners: list[asyncio.Queue[KernelEvent | None]] = []  # None: the module is gone

    def _check(self) -> None:
        if self.missing:
            raise KernelMissing

    def _minor(self) -> int:
        self._next_minor += 1
        return self._next_minor - 1

    def unload(self) -> None:
        self.missing = True
        self.containers.clear()
        for queue in self.listeners:
            queue.put_nowait(None)

    def load(self, gpus: Sequence[KernelGpu]) -> None:
        """Load the module again; GPUs with the same `born` keep their values."""
        self.inventory = tuple(gpus)
        self.missing = False

    def emit(self, kind: Event, container: Container | None = None, gpu: int | None = None, **values: Any) -> None:
        about = next((one for one in self.inventory if one.index == gpu), None)
        for queue in self.listeners:
            queue.put_nowait(KernelEvent(int(kind), container, about, values))

    async def create(self, container_id: str, cookie: int, slots: Sequence[SlotWant]) -> Container:
        self._check()
        self.calls.append(("create", container_id, cookie))
        if container_id in self.containers:
            code = errno.EBUSY if self.containers[container_id].dying else errno.EEXIST
            raise KernelRefused(code, f"cgpu_km: {container_id} exists already")
        by_index = {gpu.index: gpu for gpu in self.inventory}
        made = []
        ctl, uvm = self._minor(), self._minor()
        for want in slots:
            if want.gpu not in by_index:
                raise KernelRefused(errno.ENODEV, f"cgpu_km: no GPU {want.gpu}")
            made.append(
                Slot(
                    minor=self._minor(),
                    **{**asdict(want), "nv_minor": by_index[want.gpu].nv_minor},
                )
            )
        container = Container(container_id, cookie, container_id[:12], MAJOR, ctl, uvm, False, tuple(made))
        self.containers[container_id] = container
        self.emit(Event.CREATED, container)
        return container

    async def destroy(self, container_id: str, cookie: int) -> bool:
        self._check()
        self.calls.append(("destroy", container_id, cookie))
        container = self.containers.get(container_id)
        if container is None or (cookie and container.cookie != cookie):
            return False
        del self.containers[container_id]
        self.emit(Event.GONE, container)
        return True

    async def set(self, container_id: str, cookie: int, values: Mapping[int, Mapping[S, int]]) -> None:
        self._check()
        container = self.containers.get(container_id)
        if container is None or (cookie and container.cookie != cookie):
            raise KernelRefused(errno.ENOENT, f"cgpu_km: no container {container_id}")
        changed = tuple(
            replace(slot, **{attr.name.lower(): value for attr, value in values.get(slot.gpu, {}).items()})  # type: ignore[arg-type]
            for slot in container.slots
        )
        self.containers[container_id] = replace(container, slots=changed)
        self.emit(Event.CHANGED, self.containers[container_id])

    async def set_gpu(self, index: int, values: Mapping[G, int]) -> None:
        """Refuses the values that the kernel refuses because of its state; the callers check the ranges."""
        self._check()
        self.set_calls.append((index, dict(values)))
        (gpu,) = (gpu for gpu in await self.gpus() if gpu.index == index)
        if G.POLICY in values and values[G.POLICY] in self.unsupported:
            raise KernelRefused(errno.EOPNOTSUPP, "cgpu_km: policy: the control it needs does not work on this GPU")
        if G.MAX_INST in values and values[G.MAX_INST] < gpu.instances:
            raise KernelRefused(errno.EBUSY, "cgpu_km: max_inst: more containers or weight than that are there")
        changes = {attr.name.lower(): value for attr, value in values.items()}
        if G.SLICE_US in values:
            changes["slice_is_set"] = values[G.SLICE_US] != 0
        self.inventory = tuple(
            replace(old, **changes) if old.index == index else old  # type: ignore[arg-type]
            for old in self.inventory
        )

    async def list(self) -> tuple[Container, ...]:
        self._check()
        return tuple(self.containers.values())

    async def gpus(self) -> tuple[KernelGpu, ...]:
        self._check()
        slots = [slot for container in self.containers.values() for slot in container.slots]
        found = tuple(
            replace(
                gpu,
                limits=sum(slot.limit for slot in slots if slot.gpu == gpu.index),
                instances=sum(slot.gpu == gpu.index for slot in slots),
                free_weight=gpu.max_inst - sum(slot.weight for slot in slots if slot.gpu == gpu.index),
            )
            for gpu in self.inventory
        )
        await asyncio.sleep(0)  # other tasks run before the answer arrives, as with the kernel
        return found

    async def arrival(self) -> None:
        while self.missing:
            await asyncio.sleep(0.01)

    async def events(self, joined: Joined | None = None) -> AsyncIterator[KernelEvent]:
        self._check()
        queue: asyncio.Queue[KernelEvent | None] = asyncio.Queue()
        self.listeners.append(queue)
        try:
            if joined is not None:
                await joined()
            while (event := await queue.get()) is not None:
                yield event
            raise KernelMissing
        finally:
            self.listeners.remove(queue)


if __name__ == "__main__":
    from cgpud import __main__ as cgpud

    cgpud.make_link = FakeLink
    cgpud.main()
