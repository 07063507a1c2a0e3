# SPDX-License-Identifier: MIT
"""The device plugins: one server and one socket for each resource. They promise amounts; decide.py gives GPUs."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from pathlib import Path
from typing import Any, Protocol

from cgpu_common.links import Ranks
from cgpu_kube.node.host import HEALTHY, NO_LINKS, UNHEALTHY, Device, preferred, preferred_apart
from cgpu_kube.node.rpc import Method, UnixServer, call
from cgpu_kube.node.wire import plugin as wire

KUBELET_SOCKET = "kubelet.sock"
VERSION = "v1beta1"
#: The engine's container has these whatever its author writes. With GRANT it starts with cgpud's grant or not at all;
#: without cgpu-runtime `none` gives it NVIDIA's libraries and no GPU, where an image may say `all`.
PROMISE = {"ALIYUN_COM_GPU_GRANT": "kube", "NVIDIA_VISIBLE_DEVICES": "none"}


KubeletId = tuple[int, int]  #: inode and change time of its socket


def socket_of(directory: Path, name: str) -> Path:
    return directory / f"cgpu-{name}.sock"


class AnyPlugin(Protocol):
    """A Plugin of this process, or of one that outlives it (keeper.py)."""

    resource: str
    devices: tuple[Device, ...]
    healthy: int
    spread: bool
    links: Ranks[str]
    registrations: int
    streams: int
    is_taken: bool
    kubelet: KubeletId | None
    is_kept: bool

    @property
    def is_there(self) -> bool: ...
    @property
    def is_replaced(self) -> bool: ...
    def offer(self, devices: Sequence[Device]) -> None: ...
    async def register(self, kubelet: KubeletId) -> None: ...
    async def stop(self) -> None: ...


class Offered:
    """What is known of one resource, in whichever process it is served. @on_change: a kubelet has taken the list, or
    its stream has ended."""

    is_kept = False

    def __init__(self, resource: str, on_change: Callable[[], None]) -> None:
        self.resource = resource
        self.devices: tuple[Device, ...] = ()
        self.healthy = 0  # of the devices
        self.spread = False
        self.links = NO_LINKS  # by which devices of several GPUs are chosen
        self.registrations = 0
        self.streams = 0  # ListAndWatch calls that are open: one for each registration with a kubelet that runs
        self.is_taken = False  # the kubelet of a stream that is open has the devices
        self.kubelet: KubeletId | None = None  # the one of the last registration that has succeeded
        self._on_change = on_change


class Plugin(Offered):
    """One resource. `devices` may change at any time; the kubelet gets each change at once."""

    def __init__(
        self,
        directory: Path,
        resource: str,
        name: str,
        on_change: Callable[[], None] = lambda: None,
        *,
        apart: bool = False,
    ) -> None:
        """@apart: each device of a container is to be of another GPU."""
        super().__init__(resource, on_change)
        self._apart = apart
        self._kubelet = directory / KUBELET_SOCKET
        self._changed = asyncio.Event()
        methods = {
            "GetDevicePluginOptions": Method(wire.Empty, self._options),
            "ListAndWatch": Method(wire.Empty, self._watch, streams=True),
            "GetPreferredAllocation": Method(wire.PreferredAllocationRequest, self._prefer),
            "Allocate": Method(wire.AllocateRequest, self._allocate),
            "PreStartContainer": Method(wire.PreStartContainerRequest, self._pre_start),
        }
        self._server = UnixServer(socket_of(directory, name), {"v1beta1.DevicePlugin": methods})

    def offer(self, devices: Sequence[Device]) -> None:
        if tuple(devices) != self.devices:
            self.devices = tuple(devices)
            self.healthy = sum(is_healthy for _, is_healthy in devices)
            self._wake()

    def _wake(self) -> None:
        """Each stream once. The next ones wait for the next change: this plugin may serve again."""
        self._changed.set()
        self._changed = asyncio.Event()

    async def register(self, kubelet: KubeletId) -> None:
        """Serve, and tell the kubelet, which is that of this socket. Raises OSError or CallFailed."""
        self.kubelet = None
        if not self._server.is_there:
            await self._server.stop()
            await self._server.start()
        request = wire.RegisterRequest(
            version=VERSION,
            endpoint=self._server.path.name,
            resource_name=self.resource,
            options=wire.DevicePluginOptions(get_preferred_allocation_available=True),
        )
        await call(self._kubelet, "/v1beta1.Registration/Register", request, wire.Empty)
        self.registrations += 1
        self.kubelet = kubelet

    @property
    def is_there(self) -> bool:
        return self._server.is_there

    @property
    def is_replaced(self) -> bool:
        return self._server.is_replaced

    @property
    def inode(self) -> int:
        """Of its socket; 0: it does not serve."""
        return self._server.inode

    async def stop(self) -> None:
        """Another agent may have made its own socket of that name: that one stays."""
        self._wake()
        is_ours = self._server.is_there
        await self._server.stop()
        if is_ours:
            self._server.path.unlink(missing_ok=True)

    # ---- calls of the kubelet ----

    async def _options(self, _request: Any) -> Any:
        return wire.DevicePluginOptions(get_preferred_allocation_available=True)

    async def _watch(self, _request: Any) -> AsyncIterator[Any]:
        self.streams += 1
        try:
            while True:
                changed = self._changed
                # The generator goes on when the answer has been written.
                yield wire.ListAndWatchResponse(
                    devices=[wire.Device(ID=name, health=HEALTHY if good else UNHEALTHY) for name, good in self.devices]
                )
                if not self.is_taken:
                    self.is_taken = True
                    self._on_change()
                await changed.wait()
        finally:
            self.streams -= 1
            self.is_taken = self.is_taken and self.streams > 0
            self._on_change()

    async def _prefer(self, request: Any) -> Any:
        asked = [
            (tuple(one.available_deviceIDs), tuple(one.must_include_deviceIDs), one.allocation_size)
            for one in request.container_requests
        ]
        # Thousands of ids: cgpud's questions do not wait behind them.
        chosen = await asyncio.to_thread(lambda: [self._preferred(*one) for one in asked])
        return wire.PreferredAllocationResponse(
            container_responses=[wire.ContainerPreferredAllocationResponse(deviceIDs=ids) for ids in chosen]
        )

    def _preferred(self, available: Sequence[str], required: Sequence[str], size: int) -> list[str]:
        if self._apart:
            return preferred_apart(available, required, size, self.spread, self.links)
        return preferred(available, required, size, self.spread)

    async def _allocate(self, request: Any) -> Any:
        """A promise of the amount: no GPU is named here, since the kubelet does not name the pod that it asks for."""
        return wire.AllocateResponse(
            container_responses=[wire.ContainerAllocateResponse(envs=PROMISE) for _ in request.container_requests]
        )

    async def _pre_start(self, _request: Any) -> Any:
        return wire.PreStartContainerResponse()
