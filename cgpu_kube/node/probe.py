# SPDX-License-Identifier: MIT
"""/healthz and /readyz for the kubelet's probes: HTTP/1.1 by hand, since a server of aiohttp takes 4 MiB."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

READ_S = 5.0
HEAD_MAX = 4096


@asynccontextmanager
async def served(port: int, unready: Callable[[], str]) -> AsyncIterator[int]:
    """Serve on every address meanwhile; 0: not at all. @unready: why the program is not ready, or "". OSError: the port
    is in use."""
    if not port:
        yield 0
        return

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            async with asyncio.timeout(READ_S):
                head = await reader.readuntil(b"\r\n\r\n")
            writer.write(_reply(head, unready))
            await writer.drain()
        except (OSError, TimeoutError, asyncio.IncompleteReadError, asyncio.LimitOverrunError):
            pass  # no probe, or it has gone
        finally:
            writer.close()

    server = await asyncio.start_server(answer, None, port, limit=HEAD_MAX)
    try:
        yield server.sockets[0].getsockname()[1]
    finally:
        server.close()


def _reply(head: bytes, unready: Callable[[], str]) -> bytes:
    words = head.split(b"\r\n", 1)[0].split(b" ")
    path = words[1] if len(words) == 3 and words[0] == b"GET" else b""
    if path == b"/healthz":
        status, text = "200 OK", "ok"
    elif path == b"/readyz":
        why = unready()
        status, text = ("503 Service Unavailable", why) if why else ("200 OK", "ok")
    else:
        status, text = "404 Not Found", "there are /healthz and /readyz"
    body = text.encode()
    head_out = (
        f"HTTP/1.1 {status}\r\nContent-Type: text/plain\r\nContent-Length: {len(body)}\r\nConnection: close\r\n\r\n"
    )
    return head_out.encode() + body
