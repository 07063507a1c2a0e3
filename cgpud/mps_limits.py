# SPDX-License-Identifier: MIT
"""Limits of cgroups for cgpud, in the program of cgpu-mps@UUID, which has root's capabilities: from driver 615 on.

A line {"directory", "bytes"} on a socket of root, answered by "ok" or the reason. Each is a child process, since a call
of NVML may never return.
"""

from __future__ import annotations

import contextlib
import json
import os
import socket
import subprocess
import sys
import threading
from collections.abc import Sequence
from pathlib import Path

from cgpu_common import server

CGROUPS = Path("/sys/fs/cgroup")
WAIT_S = 10.0
LINE_MAX = 8192
_PROGRAM = "import sys; sys.path.insert(0, sys.argv[1]); from cgpu_common.mps_nvml import limit; limit(*sys.argv[2:])"
COMMAND = (sys.executable, "-I", "-c", _PROGRAM, str(Path(__file__).resolve().parents[1]))


class Limits:
    """The socket of one GPU, until close(). A thread serves one request after the other."""

    def __init__(self, uuid: str, path: Path, command: Sequence[str] = COMMAND, cgroups: Path = CGROUPS) -> None:
        """OSError: the socket cannot be made."""
        self._uuid = uuid
        self._path = path
        self._command = command
        self._cgroups = cgroups
        path.unlink(missing_ok=True)
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_CLOEXEC)
        before = os.umask(0o177)
        try:
            self._socket.bind(str(path))
        finally:
            os.umask(before)
        self._socket.listen(16)
        threading.Thread(target=self._serve, daemon=True).start()

    def close(self) -> None:
        with contextlib.suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)  # wakes accept()
        self._socket.close()
        self._path.unlink(missing_ok=True)

    def _serve(self) -> None:
        while True:
            try:
                connection, _ = self._socket.accept()
            except OSError:
                return
            with connection, contextlib.suppress(OSError):
                if not server.is_of_the_host(connection):
                    continue
                connection.settimeout(WAIT_S)
                with connection.makefile("rb") as lines:
                    said = self._answer(lines.readline(LINE_MAX))
                connection.sendall(" ".join(said.split()).encode() + b"\n")

    def _answer(self, line: bytes) -> str:
        try:
            found = json.loads(line)
            directory, size = Path(found["directory"]), int(found["bytes"])
        except (ValueError, KeyError, TypeError):
            return "not a limit of a cgroup"
        inside = directory.is_relative_to(self._cgroups) and directory != self._cgroups and ".." not in directory.parts
        if not inside or not directory.is_dir() or size <= 0:
            return f"{directory} is no cgroup, or {size} bytes are no limit"
        words = [*self._command, self._uuid, str(directory), str(size)]
        try:
            done = subprocess.run(words, capture_output=True, text=True, timeout=WAIT_S, check=False)
        except (OSError, subprocess.TimeoutExpired) as error:
            return f"NVML gave no answer: {error}"
        if done.returncode == 0:
            return "ok"
        return (done.stderr.strip() or f"status {done.returncode}").splitlines()[-1]
