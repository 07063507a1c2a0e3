# SPDX-License-Identifier: MIT
"""What the daemon needs of the kernel, as an interface: netlink.py is the real one, fakelink.py one in memory."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from typing import Protocol

from cgpud.kernel_abi import G
from cgpud.model import Container, KernelEvent, KernelGpu, SlotWant

Joined = Callable[[], Awaitable[None]]


class KernelLink(Protocol):
    """All methods raise KernelMissing without the module and KernelRefused when it says no."""

    async def create(self, container_id: str, cookie: int, slots: Sequence[SlotWant]) -> Container:
        """All slots or none."""
        ...

    async def destroy(self, container_id: str, cookie: int) -> bool:
        """True: destroyed now. False: there was none."""
        ...

    async def set(self, container_id: str, cookie: int, slots: Sequence[SlotWant]) -> None:
        """All of it or nothing."""
        ...

    async def set_gpu(self, index: int, values: Mapping[G, int]) -> None:
        """All of them or none."""
        ...

    async def list(self) -> tuple[Container, ...]: ...

    async def gpus(self) -> tuple[KernelGpu, ...]: ...

    async def arrival(self) -> None:
        """Waits for the module; no wait where it is there. Raises Resync when it may have been missed."""
        ...

    def events(self, joined: Joined | None = None) -> AsyncIterator[KernelEvent]:
        """Until cancelled. What happens from the call of `joined` on is heard, also while it runs. Raises Resync when
        some were lost."""
        ...
