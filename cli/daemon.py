# SPDX-License-Identifier: MIT
"""cgpud's status, over its socket: what /proc/cgpu_km does not contain."""

from __future__ import annotations

import os
import struct
from typing import TYPE_CHECKING, Any

from cgpu_common.proc import Paths

if TYPE_CHECKING:
    import socket

TIMEOUT_S = 2.0
REPLY_MAX = 16 << 20
_HEAD = struct.Struct(">I")


def _receive(sock: socket.socket, size: int) -> bytes:
    data = b""
    while len(data) < size:
        chunk = sock.recv(size - len(data))
        if not chunk:
            raise OSError("the connection was closed")
        data += chunk
    return data


def request(paths: Paths, operation: str, **more: Any) -> dict[str, Any] | None:
    """cgpud's answer; None without one. The commands that show the GPUs work without the daemon."""
    path = f"{paths.run}/cgpud.sock"
    if not os.path.exists(path):  # noqa: PTH110 - Path.exists() raises where the directory may not be searched
        return None
    import json  # slow to import, and needless without a daemon
    import socket

    body = json.dumps({"op": operation, **more}).encode()
    try:
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as sock:
            sock.settimeout(TIMEOUT_S)
            sock.connect(path)
            sock.sendall(_HEAD.pack(len(body)) + body)
            (size,) = _HEAD.unpack(_receive(sock, _HEAD.size))
            if size > REPLY_MAX:
                return None
            reply = json.loads(_receive(sock, size))
    except (OSError, ValueError):
        return None
    return reply if isinstance(reply, dict) and reply.get("ok") is True else None


def status(paths: Paths) -> dict[str, Any] | None:
    return request(paths, "status")


def rows(answer: dict[str, Any] | None, key: str) -> list[dict[str, Any]]:
    """A list of objects in an answer; what is none of them is left out."""
    found = (answer or {}).get(key)
    return [row for row in found if isinstance(row, dict)] if isinstance(found, list) else []


def drift_of(answer: dict[str, Any] | None) -> list[dict[str, Any]] | None:
    """GPU settings that differ from cgpu.toml, in an answer to status; None: it has none."""
    if not isinstance((answer or {}).get("drift"), list):
        return None
    return [row for row in rows(answer, "drift") if {"index", "key", "configured", "live"} <= row.keys()]


def drift(paths: Paths) -> list[dict[str, Any]] | None:
    """The same, read now; None: no answer from cgpud."""
    return drift_of(status(paths))
