# SPDX-License-Identifier: MIT
"""The part of HTTP that a scraper needs: one GET and one response per connection, with bounds on everything."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import ssl
from collections.abc import Awaitable, Callable
from pathlib import Path

from cgpu_common import log
from cgpu_common.accepting import Accepting, listening
from cgpu_common.address import Tcp, Unix
from cgpu_common.python import timeout
from cgpu_common.server import open_socket

REQUEST_MAX = 8192
CONNECTIONS_MAX = 16
# By TLS, where every host may connect: those without a certificate yet are counted apart, and end soon, so that they
# take no place of a scraper's.
HANDSHAKES_MAX = 16
HANDSHAKE_TIMEOUT_S = 1.0
SOURCE_MAX = 4  # of one IPv4 address or one /64 of IPv6, in handshakes and served
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


class HttpServer:
    def __init__(self, page: Page) -> None:
        self._page = page
        self._server: asyncio.Server | None = None
        self._path: Path | None = None
        self.open = 0  # connections that are served
        # Those without a certificate yet wait in the kernel beyond HANDSHAKES_MAX: containers' starts need the daemon's
        # descriptors.
        self._handshakes = asyncio.Semaphore(HANDSHAKES_MAX)
        self._tls: ssl.SSLContext | None = None
        self._tcp = Accepting(self._serve_tcp, SOURCE_MAX, room=self._handshakes)
        self.by_source = self._tcp.by_source

    async def start(self, where: Unix | Tcp, tls: ssl.SSLContext | None = None) -> None:
        """Raises OSError or CgpuError if the address cannot be used."""
        if isinstance(where, Tcp):
            self._tls = tls
            self._tcp.start(listening(where.host, where.port))
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
        await self._tcp.stop()

    async def _serve_tcp(self, connection: socket.socket) -> None:
        loop = asyncio.get_running_loop()
        reader = asyncio.StreamReader(limit=REQUEST_MAX)
        protocol = asyncio.StreamReaderProtocol(reader)
        try:
            transport, _ = await loop.connect_accepted_socket(
                lambda: protocol,
                connection,
                ssl=self._tls,
                ssl_handshake_timeout=HANDSHAKE_TIMEOUT_S if self._tls else None,
            )
        except (OSError, asyncio.TimeoutError):  # no client of the authority; SSLError is an OSError
            connection.close()
            return
        finally:
            self._handshakes.release()
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
