# SPDX-License-Identifier: MIT
"""The extender's TCP port with bounds: every pod of the cluster can reach it where no NetworkPolicy holds.

aiohttp bounds neither its connections nor the time of a TLS handshake below a minute, and each of either takes a
descriptor and some 100 KiB. The scheduler's own connections must find a place whatever a pod opens.
"""

from __future__ import annotations

import asyncio
import collections
import contextlib
import functools
import socket
import ssl
from collections.abc import Callable

from cgpu_common.sources import source

CONNECTIONS_MAX = 256  # in handshakes and served
SOURCE_MAX = 32  # of these, of one IPv4 address or one /64 of IPv6: a kube-scheduler keeps two or so
HANDSHAKE_TIMEOUT_S = 10.0
BACKLOG = 128

MakeProtocol = Callable[[], asyncio.Protocol]


class _Counted(asyncio.Protocol):
    """aiohttp's protocol of one connection, with a future that is done when the connection is lost."""

    def __init__(self, inner: asyncio.Protocol) -> None:
        self._inner = inner
        self.lost: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._inner.connection_made(transport)

    def data_received(self, data: bytes) -> None:
        self._inner.data_received(data)

    def eof_received(self) -> bool | None:
        return self._inner.eof_received()

    def pause_writing(self) -> None:
        self._inner.pause_writing()

    def resume_writing(self) -> None:
        self._inner.resume_writing()

    def connection_lost(self, exc: Exception | None) -> None:
        self._inner.connection_lost(exc)
        if not self.lost.done():
            self.lost.set_result(None)


class Listener:
    """@make: the protocol of a connection. @tls: of the server; None: HTTP."""

    def __init__(self, make: MakeProtocol, tls: ssl.SSLContext | None) -> None:
        self._make = make
        self._tls = tls
        self._socket: socket.socket | None = None
        self._accepting: asyncio.Task[None] | None = None
        self._tasks: set[asyncio.Task[None]] = set()
        self.by_source: collections.Counter[str] = collections.Counter()

    def start(self, host: str, port: int) -> int:
        """The port that it listens at. Raises OSError where that is not to be had."""
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        both = host == "::" and socket.has_dualstack_ipv6()
        self._socket = socket.create_server((host, port), family=family, backlog=BACKLOG, dualstack_ipv6=both)
        self._socket.setblocking(False)
        self._accepting = asyncio.get_running_loop().create_task(self._accept(self._socket))
        return int(self._socket.getsockname()[1])

    async def close(self) -> None:
        """No connection is accepted any more, and handshakes end. Those that are served end by aiohttp's clean-up."""
        if self._accepting is not None:
            self._accepting.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._accepting
        if self._socket is not None:
            self._socket.close()
        for task in list(self._tasks):
            task.cancel()

    async def _accept(self, listener: socket.socket) -> None:
        loop = asyncio.get_running_loop()
        while True:
            try:
                connection, peer = await loop.sock_accept(listener)
            except OSError:  # it broke off, or no descriptor is left
                await asyncio.sleep(0.1)
                continue
            origin = source(peer[0])
            if len(self._tasks) >= CONNECTIONS_MAX or self.by_source[origin] >= SOURCE_MAX:
                connection.close()
                await asyncio.sleep(0)  # a source without end must not keep the loop
                continue
            self.by_source[origin] += 1
            task = loop.create_task(self._serve(connection))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)
            task.add_done_callback(functools.partial(self._leave, origin))

    def _leave(self, origin: str, _task: object) -> None:
        self.by_source[origin] -= 1
        if not self.by_source[origin]:
            del self.by_source[origin]

    async def _serve(self, connection: socket.socket) -> None:
        limit = HANDSHAKE_TIMEOUT_S if self._tls is not None else None
        try:
            _, counted = await asyncio.get_running_loop().connect_accepted_socket(
                lambda: _Counted(self._make()), connection, ssl=self._tls, ssl_handshake_timeout=limit
            )
        except (OSError, asyncio.TimeoutError):  # a client that speaks no TLS, or says nothing; SSLError is an OSError
            connection.close()
            return
        await counted.lost
