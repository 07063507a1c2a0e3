# SPDX-License-Identifier: MIT
"""/healthz and /readyz for probes, and /metrics: HTTP/1.1 by hand, since a server of aiohttp takes 4 MiB."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

from cgpu_kube.node.figures import PLAIN

READ_S = 1.0  # of a connection, from its first byte to the end of the answer
HEAD_MAX = 4096
CONNECTIONS_MAX = 8  # at a time: every pod can reach the port, and the descriptors are for the agent


@asynccontextmanager
async def served(port: int, unready: Callable[[], str], metrics: Callable[[], bytes] = bytes) -> AsyncIterator[int]:
    """Serve on every address meanwhile; 0: not at all. @unready: why the program is not ready, or ""; the reason is in
    the log, not in the answer. @metrics: figures for Prometheus. OSError: the port is in use."""
    if not port:
        yield 0
        return
    open_ones = {True: 0, False: 0}  # of this host, where the kubelet is, and of others: they leave it its part

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        here, there = (writer.get_extra_info(name) or ("",) for name in ("sockname", "peername"))
        is_own = here[0] == there[0]
        if open_ones[is_own] >= CONNECTIONS_MAX:
            writer.transport.abort()
            return
        open_ones[is_own] += 1
        try:
            async with asyncio.timeout(READ_S):
                head = await reader.readuntil(b"\r\n\r\n")
                writer.write(_reply(head, unready, metrics))
                await writer.drain()
                writer.close()
                await writer.wait_closed()
        except (OSError, TimeoutError, asyncio.IncompleteReadError, asyncio.LimitOverrunError):
            pass  # no probe, or it has gone
        finally:
            writer.transport.abort()
            open_ones[is_own] -= 1

    server = await asyncio.start_server(answer, None, port, limit=HEAD_MAX)
    try:
        yield server.sockets[0].getsockname()[1]
    finally:
        server.close()


def _reply(head: bytes, unready: Callable[[], str], metrics: Callable[[], bytes]) -> bytes:
    words = head.split(b"\r\n", 1)[0].split(b" ")
    path = words[1] if len(words) == 3 and words[0] == b"GET" else b""
    kind = "text/plain"
    if path == b"/healthz":
        status, body = "200 OK", b"ok"
    elif path == b"/readyz":
        status, body = ("503 Service Unavailable", b"not ready") if unready() else ("200 OK", b"ok")
    elif path == b"/metrics":
        status, body, kind = "200 OK", metrics(), PLAIN
    else:
        status, body = "404 Not Found", b"there are /healthz, /readyz and /metrics"
    head_out = f"HTTP/1.1 {status}\r\nContent-Type: {kind}\r\nContent-Length: {len(body)}\r\nConnection: close\r\n\r\n"
    return head_out.encode() + body
