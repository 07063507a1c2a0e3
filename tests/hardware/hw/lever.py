# SPDX-License-Identifier: MIT
"""rmlever in a process, over its socket."""

from __future__ import annotations

import json
import socket
import time
from pathlib import Path


class LeverError(Exception):
    """The process is gone, or does not know the request."""


class Lever:
    """One process with librmlever.so in it. A verb of requests.c is a method call."""

    def __init__(self, path: Path, wait_s: float = 10):
        self.path, self.timeout_s = path, 30.0
        self._socket = self._connect(time.monotonic() + wait_s)
        self._in = self._socket.makefile("r")

    def _connect(self, until: float) -> socket.socket:
        while True:
            sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
            try:
                sock.connect(str(self.path))
                return sock
            except OSError as error:
                sock.close()
                if time.monotonic() > until:
                    raise LeverError(f"no rmlever answers at {self.path.name}: {error.strerror}") from None
                time.sleep(0.02)

    def __call__(self, verb: str, **options: object) -> dict:
        words = [verb, *(f"{name}={value}" for name, value in options.items())]
        self._socket.settimeout(self.timeout_s)
        try:
            self._socket.sendall((" ".join(words) + "\n").encode())
            line = self._in.readline()
        except OSError as error:
            raise LeverError(f"{verb}: {error}") from None
        if not line:
            raise LeverError(f"{verb}: the process ended")
        answer = json.loads(line)
        if "error" in answer:
            raise LeverError(f"{verb}: {answer['error']}")
        return answer

    def channels(self, graphics: bool = True) -> list[str]:
        """client:channel of each, as `list=` takes them."""
        found = self("list")["channels"]
        return [f"{c['client']}:{c['handle']}" for c in found if not graphics or c["engine"] <= 8]

    def close(self) -> None:
        self._in.close()
        self._socket.close()


def status_text(answer: dict) -> str:
    """The status of an answer as the driver's headers write it; "no call" where there was no object for one."""
    names = {
        0x1A: "INSUFFICIENT_RESOURCES",
        0x1B: "INSUFFICIENT_PERMISSIONS",
        0x1F: "INVALID_ARGUMENT",
        0x22: "INVALID_CLASS",
        0x23: "INVALID_CLIENT",
        0x40: "INVALID_STATE",
        0x56: "NOT_SUPPORTED",
        0x57: "OBJECT_NOT_FOUND",
        0x65: "TIMEOUT",
    }
    if not answer["calls"]:
        return "no call"
    status = answer["status"]
    if not status:
        return "NV_OK"
    if status < 0:
        return f"errno {-status}"
    return f"{names[status]} (0x{status:x})" if status in names else f"0x{status:x}"


def took_us(answer: dict) -> list[float]:
    return [ns / 1000 for ns in answer["ns"]]
