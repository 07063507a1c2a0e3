# SPDX-License-Identifier: MIT
"""Pages that are missing until a test provides them: the kernel's access to one waits for it (userfaultfd)."""

from __future__ import annotations

import ctypes
import mmap
import os

SYS_USERFAULTFD = 323
UFFDIO_API, UFFDIO_REGISTER, UFFDIO_COPY = 0xC018AA3F, 0xC020AA00, 0xC028AA03
MISSING = 1
PAGE = mmap.PAGESIZE
MADV_DONTNEED = 4


class Pages:
    """Memory with missing pages: an access in the kernel waits until put() provides the page."""

    def __init__(self, count: int):
        self._libc = ctypes.CDLL(None, use_errno=True)
        self._memory = mmap.mmap(-1, count * PAGE, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
        self.at = ctypes.addressof(ctypes.c_char.from_buffer(self._memory))
        self.fd = self._libc.syscall(SYS_USERFAULTFD, os.O_CLOEXEC)
        assert self.fd >= 0
        self._ioctl(UFFDIO_API, 0xAA, 0, 0)
        self._ioctl(UFFDIO_REGISTER, self.at, count * PAGE, MISSING, 0)

    def _ioctl(self, request: int, *words: int) -> None:
        arg = (ctypes.c_uint64 * len(words))(*words)
        if self._libc.ioctl(self.fd, ctypes.c_ulong(request), arg):
            raise OSError(ctypes.get_errno(), "userfaultfd")

    def wait(self) -> int:
        """The page that the kernel waits for."""
        message = os.read(self.fd, 32)
        return (int.from_bytes(message[16:24], "little") - self.at) // PAGE

    def put(self, page: int, content: bytes) -> None:
        source = ctypes.create_string_buffer(2 * PAGE)
        start = -ctypes.addressof(source) % PAGE
        source[start : start + len(content)] = content
        self._ioctl(UFFDIO_COPY, self.at + page * PAGE, ctypes.addressof(source) + start, PAGE, 0, 0)

    def drop(self, page: int) -> None:
        address = ctypes.c_void_p(self.at + page * PAGE)
        assert self._libc.madvise(address, ctypes.c_size_t(PAGE), MADV_DONTNEED) == 0
