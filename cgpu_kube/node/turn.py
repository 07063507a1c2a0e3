# SPDX-License-Identifier: MIT
"""Which agent of a node serves, of the unit's and the DaemonSet's, or of a DaemonSet's last and next one."""

from __future__ import annotations

import fcntl
import os
import time
from collections.abc import Callable
from pathlib import Path

#: is_free() has the lock for microseconds, and an agent that is refused for them may end what it serves.
TRIES, AGAIN_S = 3, 0.005


class Turn:
    """The lock of a file, which the kernel takes from a process that ends. A socket in /run does not do: when /run
    is cleared, the next agent gets it while the last one serves."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._fd = -1
        self._is_taken = False
        self.on_change: Callable[[bool], None] = lambda _: None  # whether it is this agent's

    def take(self) -> bool:
        """Is it this agent's, now or from now on? A file that was removed counts for nothing. Raises OSError."""
        if self._is_mine():
            return True
        self.give()
        self.path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        self._fd = os.open(self.path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
        try:
            is_ours = _lock(self._fd)
        except OSError:
            self.give()
            raise
        if not is_ours:
            self.give()  # an open file without the lock would count as taken
        if not self._is_mine():
            return False  # or it was removed meanwhile: the next look makes another one
        self._is_taken = True
        self.on_change(True)
        return True

    def is_free(self) -> bool:
        """Whether no agent has it, without taking it. Raises OSError."""
        try:
            fd = os.open(self.path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW)
        except FileNotFoundError:
            return True
        try:
            fcntl.flock(fd, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
        finally:
            os.close(fd)
        return True

    def _is_mine(self) -> bool:
        if self._fd < 0:
            return False
        try:
            return os.path.samestat(os.fstat(self._fd), self.path.stat())
        except OSError:
            return False

    def give(self) -> None:
        if self._fd >= 0:
            os.close(self._fd)
        self._fd = -1
        if self._is_taken:
            self._is_taken = False
            self.on_change(False)


def _lock(fd: int) -> bool:
    """False: another process has it. Raises OSError."""
    for left in reversed(range(TRIES)):
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            if left:
                time.sleep(AGAIN_S)
        else:
            return True
    return False
