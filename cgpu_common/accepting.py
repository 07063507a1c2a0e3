# SPDX-License-Identifier: MIT
"""TCP connections that are accepted with bounds, where every host may connect."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import ipaddress
import socket
from collections import Counter
from collections.abc import Callable, Coroutine
from typing import Any

BACKLOG = 128  # in the kernel, without a descriptor


def source(host: str) -> str:
    """What a limit by source counts: an IPv4 address, or a host's network of IPv6, of which it has all addresses."""
    address = ipaddress.ip_address(host.partition("%")[0])
    if isinstance(address, ipaddress.IPv4Address):
        return str(address)
    if address.ipv4_mapped is not None:
        return str(address.ipv4_mapped)
    return str(ipaddress.IPv6Network((address, 64), strict=False))


def listening(host: str, port: int) -> socket.socket:
    """[::] is every address of the node, IPv4's too. Raises OSError, as for IPv6 where the kernel has none."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    both = family == socket.AF_INET6 and not host.strip(":0") and socket.has_dualstack_ipv6()
    listener = socket.create_server((host, port), family=family, backlog=BACKLOG, dualstack_ipv6=both)
    listener.setblocking(False)
    return listener


class Accepting:
    """A task for each connection, from its handshake to its end. @serve closes the connection. @source_max: of one
    source(); a further one is closed at once, as is one beyond @most in all. @room: has a place for each that is
    accepted, which @serve gives back; the others wait in the kernel and take no descriptor."""

    def __init__(
        self,
        serve: Callable[[socket.socket], Coroutine[Any, Any, None]],
        source_max: int,
        *,
        most: int | None = None,
        room: asyncio.Semaphore | None = None,
    ) -> None:
        self._serve = serve
        self._source_max = source_max
        self._most = most
        self._room = room
        self._listener: socket.socket | None = None
        self._accepting: asyncio.Task[None] | None = None
        self._serving: set[asyncio.Task[None]] = set()
        self.by_source: Counter[str] = Counter()

    def start(self, listener: socket.socket) -> None:
        """@listener: listening()'s; closed by stop()."""
        self._listener = listener
        self._accepting = asyncio.get_running_loop().create_task(self._accept(listener))

    async def stop(self) -> None:
        """No further connection is accepted; the tasks of the others are cancelled."""
        if self._accepting is not None:
            self._accepting.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._accepting
            self._accepting = None
        if self._listener is not None:  # also of a task that was cancelled before its first step
            self._listener.close()
            self._listener = None
        for task in list(self._serving):
            task.cancel()

    async def _accept(self, listener: socket.socket) -> None:
        loop = asyncio.get_running_loop()
        while True:
            if self._room is not None:
                await self._room.acquire()
            try:
                connection, peer = await loop.sock_accept(listener)
            except OSError:  # it broke off, or no descriptor is left
                self._release()
                await asyncio.sleep(0.1)
                continue
            origin = source(peer[0])
            is_full = self._most is not None and len(self._serving) >= self._most
            if is_full or self.by_source[origin] >= self._source_max:
                connection.close()
                self._release()
                await asyncio.sleep(0)  # a source without end must not keep the loop
                continue
            self.by_source[origin] += 1
            task = loop.create_task(self._serve(connection))
            self._serving.add(task)
            task.add_done_callback(self._serving.discard)
            task.add_done_callback(functools.partial(self._leave, origin))

    def _release(self) -> None:
        if self._room is not None:
            self._room.release()

    def _leave(self, origin: str, _task: object) -> None:
        self.by_source[origin] -= 1
        if not self.by_source[origin]:
            del self.by_source[origin]
