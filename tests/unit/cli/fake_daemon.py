# SPDX-License-Identifier: MIT
"""A socket at the path of cgpud's, with a reply for each operation."""

from __future__ import annotations

import json
import socket
import struct
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


def packed(value: object) -> bytes:
    body = json.dumps(value).encode()
    return struct.pack(">I", len(body)) + body


@contextmanager
def daemon_at(root: Path, replies: dict[str, bytes]) -> Iterator[None]:
    """Until the end of the block. An operation without a reply gets none."""
    path = root / "run/cgpu/cgpud.sock"
    path.parent.mkdir(parents=True, exist_ok=True)
    sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    sock.bind(str(path))
    sock.listen()

    def serve() -> None:
        while True:
            try:
                conn, _ = sock.accept()
            except OSError:
                return
            with conn:
                (size,) = struct.unpack(">I", conn.recv(4))
                conn.sendall(replies.get(json.loads(conn.recv(size))["op"], b""))

    thread = threading.Thread(target=serve, daemon=True)
    thread.start()
    try:
        yield
    finally:
        sock.shutdown(socket.SHUT_RDWR)
        sock.close()
        thread.join(5)
        path.unlink()
