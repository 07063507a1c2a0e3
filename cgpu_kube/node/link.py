# SPDX-License-Identifier: MIT
"""The agent's end of the pair of sockets to the process that serves the device plugins (keeper.py)."""

from __future__ import annotations

import asyncio
import itertools
import json
import socket
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from cgpu_kube.errors import KubeError
from cgpu_kube.node import keeper
from cgpu_kube.node.host import Device
from cgpu_kube.node.keeper import LINE_MAX
from cgpu_kube.node.plugin import AnyPlugin, KubeletId, Offered, socket_of
from cgpu_kube.node.rpc import inode_of


class KeeperGone(KubeError):
    """The process that serves the plugins has ended; the agent ends, too."""


class Link:
    """The agent's end of the pair."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader = reader
        self._writer = writer
        self._plugins: dict[str, KeptPlugin] = {}
        self._state: dict[str, list[Any]] = {}
        self._numbers = itertools.count(1)
        self._waiting: dict[int, asyncio.Future[str]] = {}
        self._serves = False

    @classmethod
    async def connect(cls, fd: int) -> Link:
        """With the registrations of the last agent, if there was one. Raises KeeperGone."""
        reader, writer = await asyncio.open_connection(sock=socket.socket(fileno=fd), limit=LINE_MAX)
        link = cls(reader, writer)
        await link._read()
        return link

    async def run(self) -> None:
        """Raises KeeperGone when the other process has ended."""
        beat = asyncio.create_task(self._beat())
        try:
            while True:
                await self._read()
        finally:
            beat.cancel()

    async def _beat(self) -> None:
        while True:
            self._say_alive()
            await asyncio.sleep(keeper.BEAT_S)

    def _say_alive(self) -> None:
        self.send({"alive": True, "serves": self._serves})

    def say_serving(self, serves: bool) -> None:
        """@serves: the agent has the agents' lock. To the host's keeper the lock of another one means sockets of its
        own."""
        self._serves = serves
        self._say_alive()

    async def _read(self) -> None:
        try:
            line = await self._reader.readline()
        except ConnectionError:
            line = b""
        if not line:
            raise KeeperGone("the process that serves the device plugins has ended")
        message = json.loads(line)
        if "done" in message:
            waiting = self._waiting.pop(message["done"], None)
            if waiting is not None and not waiting.done():
                waiting.set_result(message["error"])
            return
        self._state = message["state"]
        for name, plugin in self._plugins.items():
            plugin.update(self._state.get(name))

    def send(self, message: dict[str, Any]) -> None:
        self._writer.write(json.dumps(message).encode() + b"\n")

    async def ask(self, **message: Any) -> None:
        """Raises KubeError with the sentence."""
        number = next(self._numbers)
        answer = self._waiting[number] = asyncio.get_running_loop().create_future()
        self.send({**message, "number": number})
        if error := await answer:
            raise KubeError(error)

    def plugin(
        self,
        directory: Path,
        resource: str,
        name: str,
        on_change: Callable[[], None] = lambda: None,
        *,
        apart: bool = False,
    ) -> AnyPlugin:
        found = self._plugins[resource] = KeptPlugin(self, directory, resource, name, on_change, apart)
        found.update(self._state.get(resource))
        return found


class KeptPlugin(Offered):
    """A Plugin of the other process, with its state as last reported."""

    is_kept = True

    def __init__(
        self, link: Link, directory: Path, resource: str, name: str, on_change: Callable[[], None], apart: bool
    ) -> None:
        super().__init__(resource, on_change)
        self._inode = 0
        self._path = socket_of(directory, name)
        self._link = link
        self._name = name
        self._apart = apart
        self._sent: dict[str, object] = {}

    def update(self, state: Sequence[Any] | None) -> None:
        if state is None:
            return
        self.streams, self.is_taken, self.registrations, kubelet, self._inode = state
        self.kubelet = (kubelet[0], kubelet[1]) if kubelet else None
        self._on_change()

    @property
    def is_there(self) -> bool:
        return self._inode != 0 and inode_of(self._path) == self._inode

    @property
    def is_replaced(self) -> bool:
        return self._inode != 0 and inode_of(self._path) not in (0, self._inode)

    def offer(self, devices: Sequence[Device]) -> None:
        self.devices = tuple(devices)
        self.healthy = sum(is_healthy for _, is_healthy in devices)
        offered = {"devices": self.devices, "spread": self.spread, "links": self.links}
        if self._sent != offered:
            self._sent = offered
            self._link.send({"offer": self.resource, **offered, "name": self._name, "apart": self._apart})

    async def register(self, kubelet: KubeletId) -> None:
        await self._link.ask(register=self.resource, kubelet=kubelet)

    async def stop(self) -> None:
        await self._link.ask(stop=self.resource)
