# SPDX-License-Identifier: MIT
"""The part of HTTP that a scraper needs: one GET and one response per connection, with bounds on everything."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import ipaddress
import socket
import ssl
from collections import Counter
from collections.abc import Awaitable, Callable
from pathlib import Path

from cgpu_common import log
from cgpu_common.address import Tcp, Unix
from cgpu_common.python import timeout
from cgpu_common.server import open_socket
from cgpu_common.sources import source

REQUEST_MAX = 8192
CONNECTIONS_MAX = 16
# By TLS, where every host may connect: those without a certificate yet are counted apart, and end soon, so that they
# take no place of a scraper's.
HANDSHAKES_MAX = 16
HANDSHAKE_TIMEOUT_S = 1.0
SOURCE_MAX = 4  # of one IPv4 address or one /64 of IPv6, in handshakes and served
BACKLOG = 128  # in the kernel, without a descriptor
READ_TIMEOUT_S = 5.0
ANSWER_TIMEOUT_S = 30.0
PATH = "/metrics"

REASONS = {
    200: "OK",
    400: "Bad Request",
    404: "Not Found",
    405: "Method Not Allowed",
    431: "Request Header Fields Too Large",
    500: "Internal Server Error",
    503: "Service Unavailable",
}

#: The Accept header -> body, content type.
Page = Callable[[str], Awaitable[tuple[bytes, str]]]


def response(status: int, body: bytes, kind: str = "text/plain; charset=utf-8") -> bytes:
    head = [
        f"HTTP/1.1 {status} {REASONS[status]}",
        f"Content-Type: {kind}",
        f"Content-Length: {len(body)}",
        "Connection: close",
        *(["Allow: GET"] if status == 405 else []),
    ]
    return "\r\n".join(head).encode() + b"\r\n\r\n" + body


def parse(request: bytes) -> tuple[int, str]:
    """(200, the Accept header), or an error's status and sentence."""
    first, *rest = request.decode("latin-1").split("\r\n")
    words = first.split(" ")
    if len(words) != 3 or not words[2].startswith("HTTP/1."):
        return 400, "not an HTTP request"
    if words[1].partition("?")[0] != PATH:
        return 404, f"the only page is {PATH}"
    if words[0] != "GET":
        return 405, "only GET"
    headers = dict(line.lower().split(":", 1) for line in rest if ":" in line)
    return 200, headers.get("accept", "").strip()


def _listener(where: Tcp) -> socket.socket:
    """[::] is every address of the node, IPv4's too. Raises OSError, as for IPv6 where the kernel has none."""
    address = ipaddress.ip_address(where.host)
    family = socket.AF_INET6 if address.version == 6 else socket.AF_INET
    both = address.version == 6 and address.is_unspecified
    listener = socket.create_server((where.host, where.port), family=family, backlog=BACKLOG, dualstack_ipv6=both)
    listener.setblocking(False)
    return listener


class HttpServer:
    def __init__(self, page: Page) -> None:
        self._page = page
        self._server: asyncio.Server | None = None
        self._path: Path | None = None
        self.open = 0  # connections that are served
        self.by_source: Counter[str] = Counter()  # by TCP
        self._listener: socket.socket | None = None
        self._accepting: asyncio.Task[None] | None = None
        self._serving: set[asyncio.Task[None]] = set()

    async def start(self, where: Unix | Tcp, tls: ssl.SSLContext | None = None) -> None:
        """Raises OSError or CgpuError if the address cannot be used."""
        if isinstance(where, Tcp):
            self._listener = _listener(where)
            self._accepting = asyncio.create_task(self._accept(self._listener, tls))
            return
        self._path = Path(where.path)
        sock = open_socket(self._path)
        self._server = await asyncio.start_unix_server(self._serve, sock=sock, limit=REQUEST_MAX)

    async def stop(self) -> None:
        if self._server is not None:
            self._server.close()
            await self._server.wait_closed()
        if self._path is not None:
            self._path.unlink(missing_ok=True)
        self._server = self._path = None
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

    async def _accept(self, listener: socket.socket, tls: ssl.SSLContext | None) -> None:
        """At most HANDSHAKES_MAX without a certificate yet: the others wait in the kernel and take no descriptor of the
        daemon, which containers' starts need. One of a source that has SOURCE_MAX is closed at once."""
        loop, room = asyncio.get_running_loop(), asyncio.Semaphore(HANDSHAKES_MAX)
        while True:
            await room.acquire()
            try:
                connection, peer = await loop.sock_accept(listener)
            except OSError:  # it broke off, or no descriptor is left
                room.release()
                await asyncio.sleep(0.1)
                continue
            origin = source(peer[0])
            if self.by_source[origin] >= SOURCE_MAX:
                connection.close()
                room.release()
                await asyncio.sleep(0)  # a source without end must not keep the loop
                continue
            self.by_source[origin] += 1
            task = loop.create_task(self._serve_tcp(connection, tls, room))
            self._serving.add(task)
            task.add_done_callback(self._serving.discard)
            task.add_done_callback(functools.partial(self._leave, origin))

    def _leave(self, origin: str, _task: object) -> None:
        self.by_source[origin] -= 1
        if not self.by_source[origin]:
            del self.by_source[origin]

    async def _serve_tcp(self, connection: socket.socket, tls: ssl.SSLContext | None, room: asyncio.Semaphore) -> None:
        """@room: has a place for the handshake, which is given back at its end."""
        loop = asyncio.get_running_loop()
        reader = asyncio.StreamReader(limit=REQUEST_MAX)
        protocol = asyncio.StreamReaderProtocol(reader)
        try:
            transport, _ = await loop.connect_accepted_socket(
                lambda: protocol, connection, ssl=tls, ssl_handshake_timeout=HANDSHAKE_TIMEOUT_S if tls else None
            )
        except (OSError, asyncio.TimeoutError):  # no client of the authority; SSLError is an OSError
            connection.close()
            return
        finally:
            room.release()
        if self.open >= CONNECTIONS_MAX:
            transport.abort()
            return
        await self._serve(reader, asyncio.StreamWriter(transport, protocol, reader, loop))

    async def _answer(self, reader: asyncio.StreamReader) -> bytes:
        if self.open > CONNECTIONS_MAX:
            return b""
        try:
            async with timeout(READ_TIMEOUT_S):
                request = await reader.readuntil(b"\r\n\r\n")
        except asyncio.LimitOverrunError:
            return response(431, b"the request is too long\n")
        except (asyncio.IncompleteReadError, TimeoutError):
            return b""
        status, words = parse(request)
        if status != 200:
            return response(status, words.encode() + b"\n")
        try:
            async with timeout(ANSWER_TIMEOUT_S):
                return response(200, *await self._page(words))
        except TimeoutError:
            return response(503, b"reading the kernel's figures takes too long\n")
        except Exception as error:
            log.get().exception("metrics failed")
            return response(500, f"{type(error).__name__}: {error}\n".encode())

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.open += 1
        try:
            writer.write(await self._answer(reader))
            async with timeout(READ_TIMEOUT_S):
                await writer.drain()
                writer.close()
                await writer.wait_closed()
        except (OSError, TimeoutError):
            pass
        finally:
            self.open -= 1
            with contextlib.suppress(AttributeError):  # Python 3.11.2: a TLS transport that has been closed twice
                writer.transport.abort()
