# SPDX-License-Identifier: MIT
"""/healthz and /readyz for probes, and /metrics: HTTP/1.1 by hand, since a server of aiohttp takes 4 MiB."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager

from cgpu_kube.node.figures import PLAIN

READ_S = 1.0  # of a connection, from its first byte to the end of the answer
HEAD_MAX = 4096
CONNECTIONS_MAX = 16  # at a time: every pod can reach the port, and the descriptors are for the agent


@asynccontextmanager
async def served(port: int, unready: Callable[[], str], metrics: Callable[[], bytes] = bytes) -> AsyncIterator[int]:
    """Serve on every address meanwhile; 0: not at all. @unready: why the program is not ready, or ""; the reason is in
    the log, not in the answer. @metrics: figures for Prometheus. OSError: the port is in use."""
    if not port:
        yield 0
        return
    open_ones: dict[asyncio.WriteTransport, str] = {}  # the oldest first, with the address that it comes from

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        transport = writer.transport
        open_ones[transport] = (writer.get_extra_info("peername") or ("",))[0]
        if len(open_ones) > CONNECTIONS_MAX:
            excess = _one_too_many(open_ones)
            del open_ones[excess]
            excess.abort()
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
            transport.abort()
            open_ones.pop(transport, None)

    server = await asyncio.start_server(answer, None, port, limit=HEAD_MAX)
    try:
        yield server.sockets[0].getsockname()[1]
    finally:
        server.close()


def _one_too_many(open_ones: Mapping[asyncio.WriteTransport, str]) -> asyncio.WriteTransport:
    """The oldest connection of the address that has the most. The kubelet has one or two, whose requests come at once.
    Its address is not known here: the agent's pod has a network of its own, and sees the kubelet as it sees any pod."""
    count = Counter(open_ones.values())
    return max(open_ones, key=lambda one: count[open_ones[one]])  # the first of equals


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
