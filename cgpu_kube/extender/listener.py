# SPDX-License-Identifier: MIT
"""The extender's TCP port with bounds: every pod of the cluster can reach it where no NetworkPolicy holds.

aiohttp bounds neither its connections nor the time of a TLS handshake below a minute, and each of either takes a
descriptor and some 100 KiB. The scheduler's own connections must find a place whatever a pod opens.
"""

from __future__ import annotations

import asyncio
import socket
import ssl
from collections.abc import Callable

from cgpu_common.accepting import Accepting, listening

CONNECTIONS_MAX = 256  # in handshakes and served
SOURCE_MAX = 32  # of these, of one IPv4 address or one /64 of IPv6: a kube-scheduler keeps two or so
HANDSHAKE_TIMEOUT_S = 10.0

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
    """@make: the protocol of a connection. @tls: of the server; None: HTTP. Connections that are served end by
    aiohttp's clean-up."""

    def __init__(self, make: MakeProtocol, tls: ssl.SSLContext | None) -> None:
        self._make = make
        self._tls = tls
        self._accepting = Accepting(self._serve, SOURCE_MAX, most=CONNECTIONS_MAX)

    def start(self, host: str, port: int) -> int:
        """The port that it listens at. Raises OSError where that is not to be had."""
        listener = listening(host, port)
        self._accepting.start(listener)
        return int(listener.getsockname()[1])

    async def close(self) -> None:
        await self._accepting.stop()

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
