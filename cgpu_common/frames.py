# SPDX-License-Identifier: MIT
"""What the sockets of cgpud and cgpu-kube carry: a 4-byte big-endian length, then one JSON object, each way."""

from __future__ import annotations

import json
import struct
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import socket

HEAD = struct.Struct(">I")
PART = 65536
CLOSED = "the connection was closed in the middle of an answer"


def encode(value: dict[str, Any]) -> bytes:
    """A lone surrogate, possible in JSON but not in UTF-8, becomes a question mark; msgspec would raise."""
    body = json.dumps(value, ensure_ascii=False, separators=(",", ":")).encode(errors="replace")
    return HEAD.pack(len(body)) + body


def _size(data: bytes, most: int) -> int:
    (size,) = HEAD.unpack_from(data)
    if size > most:
        raise ValueError(f"an answer of {size} bytes")
    return int(size)


def exchange(sock: socket.socket, request: dict[str, Any], most: int) -> Any:
    """The answer, of at most so many bytes. Raises OSError, and ValueError for what is no JSON or larger."""
    sock.sendall(encode(request))
    data = _received(sock, HEAD.size)
    return json.loads(_received(sock, _size(data, most)))


def _received(sock: socket.socket, size: int) -> bytes:
    data = b""
    while len(data) < size:
        part = sock.recv(size - len(data))
        if not part:
            raise ConnectionError(CLOSED)
        data += part
    return data


async def ask(sock: socket.socket, request: dict[str, Any], most: int) -> Any:
    """exchange() on a socket that does not block; without asyncio's streams, which take twice the time."""
    from asyncio import get_running_loop  # slow to import, and the command line does without

    await get_running_loop().sock_sendall(sock, encode(request))
    data = await _more(sock, HEAD.size, b"")
    size = _size(data, most)
    data = await _more(sock, HEAD.size + size, data)
    return json.loads(data[HEAD.size : HEAD.size + size])


async def _more(sock: socket.socket, size: int, data: bytes) -> bytes:
    """@data and what follows it, at least @size bytes."""
    from asyncio import get_running_loop

    parts, there = [data], len(data)
    while there < size:
        part = await get_running_loop().sock_recv(sock, PART)
        if not part:
            raise ConnectionError(CLOSED)
        parts.append(part)
        there += len(part)
    return b"".join(parts)
