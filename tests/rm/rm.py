# SPDX-License-Identifier: MIT
"""NVIDIA's resource manager in a process of its own: files, ioctls, mappings, and RM's own tables.

The other side of tests/rm/home/server.c. One Rm is one machine with the given chips as cards.
"""

from __future__ import annotations

import struct
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Self

BUILD = Path(__file__).resolve().parents[2] / "build/rm"
BRANCHES = ("550", "535")
CHIPS = ("TU104", "GA100", "GA102", "AD102", "GH100")

(
    DO_OPEN,
    DO_CLOSE,
    DO_IOCTL,
    DO_READ,
    DO_WRITE,
    DO_KERNEL,
    DO_CONTROL_INFO,
    DO_CLASS_INFO,
    DO_SEEN,
    DO_POLL,
    DO_MEMORY,
    DO_STUBS,
    DO_STOP,
    DO_START,
) = range(14)

CONTROL, ALLOC, FREE, OTHER = range(4)  #: enum gsp_request


class RmDied(Exception):
    """The process ended: the last lines of its stderr."""


@dataclass(frozen=True)
class Seen:
    """One request that reached the GSP."""

    card: int
    request: int
    client: int
    parent: int
    object: int
    number: int  #: control, class, or function
    params: bytes  #: at most the first 1024


@dataclass(frozen=True)
class HostMemory:
    """What RM holds of its operating system's memory."""

    blocks: int
    bytes: int
    pages: int


#: A buffer that a struct points to: the offset of the pointer, the content. For a pointer inside the n-th buffer
#: (from 1 on) the offset has n in bits 31:16.
Buffer = tuple[int, bytes]


class Rm:
    """The process. Use it as a context manager; cards are started by start()."""

    def __init__(self, branch: str, *chips: str, log: Path | None = None):
        self.branch = branch
        self.chips = chips
        self.log = (log or BUILD / branch / f"{'-'.join(chips)}.log").open("w+b")
        self.process = subprocess.Popen(
            [BUILD / branch / "rm", *chips], stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=self.log
        )

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        self.process.stdin.close()
        self.process.stdout.close()
        self.process.wait(timeout=30)
        self.log.close()

    def messages(self) -> str:
        """What RM and the card have printed."""
        self.log.seek(0)
        return self.log.read().decode(errors="replace")

    def call(self, operation: int, *parts: bytes) -> bytes:
        """One request and its answer."""
        body = b"".join(parts)
        try:
            self.process.stdin.write(struct.pack("<II", operation, len(body)) + body)
            self.process.stdin.flush()
            return self._read(*struct.unpack("<I", self._read(4)))
        except (BrokenPipeError, EOFError):
            status = self.process.wait(timeout=10)
            raise RmDied(f"status {status}: {self.messages()[-4000:]}") from None

    def _read(self, size: int) -> bytes:
        data = self.process.stdout.read(size)
        if len(data) < size:
            raise EOFError
        return data

    # ---- cards ----

    def start(self, card: int = 0) -> bool:
        """RmInitAdapter."""
        return struct.unpack("<I", self.call(DO_START, struct.pack("<I", card)))[0] == 1

    def stop(self, card: int = 0) -> None:
        """RmShutdownAdapter."""
        self.call(DO_STOP, struct.pack("<I", card))

    def poll(self) -> None:
        """Let the engines execute what is due."""
        self.call(DO_POLL)

    # ---- files ----

    def open(self, card: int | None = None) -> int:
        """A file of /dev/nvidiactl, or of /dev/nvidia<card>."""
        (fd,) = struct.unpack("<i", self.call(DO_OPEN, struct.pack("<I", 0 if card is None else card + 1)))
        return fd

    def close(self, fd: int) -> None:
        """Its last reference is gone."""
        self.call(DO_CLOSE, struct.pack("<I", fd))

    def ioctl(self, fd: int, nr: int, params: bytes, buffers: Sequence[Buffer] = ()) -> tuple[int, bytes, list[bytes]]:
        """rm_ioctl(): its status, and the struct and the buffers as they are afterwards."""
        answer = self.call(DO_IOCTL, struct.pack("<II", fd, nr), _arguments(params, buffers))
        return struct.unpack("<I", answer[:4])[0], *_results(answer[4:], params, buffers)

    def kernel(self, op: bytes, buffers: Sequence[Buffer] = ()) -> tuple[bytes, list[bytes]]:
        """rm_kernel_rmapi_op(): a call as another kernel module makes it."""
        return _results(self.call(DO_KERNEL, _arguments(op, buffers)), op, buffers)

    def read(self, fd: int, offset: int, size: int) -> bytes:
        """From what an mmap() of the file shows."""
        return self.call(DO_READ, struct.pack("<IQI", fd, offset, size))

    def write(self, fd: int, offset: int, data: bytes) -> None:
        """To what an mmap() of the file shows."""
        self.call(DO_WRITE, struct.pack("<IQI", fd, offset, len(data)), data)

    # ---- RM's own tables, and the home's ----

    def control_info(self, cmd: int) -> tuple[int, int, int, int]:
        """(status, flags, access rights, parameter bytes) of RM's export table."""
        return struct.unpack("<IIII", self.call(DO_CONTROL_INFO, struct.pack("<I", cmd)))

    def class_info(self, cls: int) -> tuple[bool, int, bool, int]:
        """(known, parameter bytes, whether they must be given, flags) of RM's class list."""
        known, size, required, flags = struct.unpack("<IIII", self.call(DO_CLASS_INFO, struct.pack("<I", cls)))
        return bool(known), size, bool(required), flags

    def seen(self) -> list[Seen]:
        """What reached the GSP since the last call, in order."""
        data = self.call(DO_SEEN)
        (n,) = struct.unpack("<I", data[:4])
        params = data[4 + 32 * n :]
        rows = struct.iter_unpack("<8I", data[4 : 4 + 32 * n])
        return [Seen(*row[:6], params[row[7] : row[7] + row[6]]) for row in rows]

    def host_memory(self) -> HostMemory:
        """RM's memory outside the card."""
        return HostMemory(*struct.unpack("<QQQ", self.call(DO_MEMORY)))

    def stubs(self) -> list[str]:
        """Functions of the operating system that RM called and the home does not have."""
        return sorted(name.decode() for name in self.call(DO_STUBS).split(b"\0") if name)


def _arguments(params: bytes, buffers: Sequence[Buffer]) -> bytes:
    head = struct.pack("<II", len(params), len(buffers)) + params
    return head + b"".join(struct.pack("<II", offset, len(data)) + data for offset, data in buffers)


def _results(answer: bytes, params: bytes, buffers: Sequence[Buffer]) -> tuple[bytes, list[bytes]]:
    out, at = [], len(params)
    for _, data in buffers:
        out.append(answer[at : at + len(data)])
        at += len(data)
    return answer[: len(params)], out
