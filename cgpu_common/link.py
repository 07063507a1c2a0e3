# SPDX-License-Identifier: MIT
"""The kernel interface of the daemon. netlink.py implements it for the module."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from typing import Protocol

from cgpu_common.kernel_abi import G, S
from cgpu_common.model import Container, KernelEvent, KernelGpu, SlotWant

Joined = Callable[[], Awaitable[None]]


class KernelLink(Protocol):
    """All methods raise KernelMissing without the module, KernelRefused when it refuses a request."""

    async def create(self, container_id: str, cookie: int, slots: Sequence[SlotWant]) -> Container:
        """All slots or none."""
        ...

    async def destroy(self, container_id: str, cookie: int) -> bool:
        """True: destroyed now. False: no such container."""
        ...

    async def set(self, container_id: str, cookie: int, values: Mapping[int, Mapping[S, int]]) -> None:
        """LIMIT, WEIGHT, HIGHPRIO or CEILING of the container's GPUs, by index. All values or none."""
        ...

    async def set_gpu(self, index: int, values: Mapping[G, int]) -> None:
        """All values or none."""
        ...

    async def list(self) -> tuple[Container, ...]: ...

    async def gpus(self) -> tuple[KernelGpu, ...]: ...

    async def arrival(self) -> None:
        """Wait until the module is loaded. Raises Resync if its arrival may have been missed."""
        ...

    def events(self, joined: Joined | None = None) -> AsyncIterator[KernelEvent]:
        """Events until cancelled; all from the call of `joined` on, including those while it runs.

        Raises Resync if events were lost."""
        ...
