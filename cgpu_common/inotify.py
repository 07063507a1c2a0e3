# SPDX-License-Identifier: MIT
"""inotify(7), whose three functions are called through ctypes.

Instances and watches are limited per user (fs.inotify.max_user_instances, 128 by default), and any program of root may
use them up: a caller does without them, and tries again.
"""

from __future__ import annotations

import ctypes
import errno
import os
import struct
from pathlib import Path

IN_MODIFY = 0x00000002
IN_MOVED_TO = 0x00000080
IN_CREATE = 0x00000100
IN_DELETE = 0x00000200
IN_Q_OVERFLOW = 0x00004000
IN_IGNORED = 0x00008000
IN_ONLYDIR = 0x01000000
IN_NONBLOCK = os.O_NONBLOCK
IN_CLOEXEC = os.O_CLOEXEC
EXHAUSTED = (errno.EMFILE, errno.ENFILE, errno.ENOMEM, errno.ENOSPC)
_EVENT = struct.Struct("iIII")


class Inotify:
    """One descriptor, many watches."""

    def __init__(self) -> None:
        self._libc = ctypes.CDLL(None, use_errno=True)
        self.fd = self._libc.inotify_init1(IN_NONBLOCK | IN_CLOEXEC)
        if self.fd < 0:
            code = ctypes.get_errno()
            raise OSError(code, f"{os.strerror(code)} (fs.inotify.max_user_instances)")

    @classmethod
    def available(cls) -> Inotify | None:
        """None: no instance, or no descriptor, is left."""
        try:
            return cls()
        except OSError as error:
            if error.errno in EXHAUSTED:
                return None
            raise

    def add(self, path: Path, mask: int) -> int | None:
        """None: the path cannot be watched, as it is gone. OSError: no watch is left."""
        wd = self._libc.inotify_add_watch(self.fd, os.fsencode(path), mask)
        code = ctypes.get_errno()
        if wd < 0 and code in EXHAUSTED:
            raise OSError(code, f"{os.strerror(code)} (fs.inotify.max_user_watches)")
        return wd if wd >= 0 else None

    def remove(self, wd: int) -> None:
        self._libc.inotify_rm_watch(self.fd, wd)

    def read(self) -> list[tuple[int, int, str]]:
        """(wd, mask, name) of every event; the name is that of a directory's entry, or empty."""
        try:
            data = os.read(self.fd, 65536)
        except BlockingIOError:
            return []
        out = []
        offset = 0
        while offset + _EVENT.size <= len(data):
            wd, mask, _, length = _EVENT.unpack_from(data, offset)
            offset += _EVENT.size
            out.append((wd, mask, os.fsdecode(data[offset : offset + length].rstrip(b"\0"))))
            offset += length
        return out

    def close(self) -> None:
        os.close(self.fd)
