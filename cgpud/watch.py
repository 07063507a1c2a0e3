# SPDX-License-Identifier: MIT
"""Sees the end of containers: pidfds and cgroup.events. Level-triggered, so nothing is lost by looking late.

inotify is called through ctypes; it needs three functions.
"""

from __future__ import annotations

import asyncio
import ctypes
import os
import struct
from collections.abc import Callable
from pathlib import Path

from cgpud import cgroup
from cgpud.model import Cgroup, Process, Record
from cgpud.state import Sign

Key = tuple[str, int]

IN_MODIFY = 0x00000002
IN_DELETE = 0x00000200
IN_IGNORED = 0x00008000
IN_ONLYDIR = 0x01000000
IN_NONBLOCK = os.O_NONBLOCK
IN_CLOEXEC = os.O_CLOEXEC
_EVENT = struct.Struct("iIII")

# The cgroup empties some milliseconds after init is gone; inotify says when, this is for when it does not.
LOOK_AGAIN_S = (0.1, 1.0)


class Facts:
    """Reads /proc and the cgroup tree. No memory, no decisions."""

    def __init__(self, proc: Path = Path("/proc"), cgroups: Path = Path("/sys/fs/cgroup")) -> None:
        self.proc = proc
        self.cgroups = cgroups
        if not (cgroups / "cgroup.controllers").exists() and (cgroups / "unified/cgroup.procs").exists():
            self.cgroups = cgroups / "unified"

    def _read(self, path: Path) -> str | None:
        try:
            return path.read_text(encoding="utf-8", errors="replace")
        except OSError:
            return None

    def boot_id(self) -> str:
        return (self._read(self.proc / "sys/kernel/random/boot_id") or "").strip()

    def devices(self) -> str:
        return self._read(self.proc / "devices") or ""

    def pid_of(self, pidfd: int) -> int | None:
        return cgroup.pid_of_fdinfo(self._read(self.proc / f"self/fdinfo/{pidfd}") or "")

    def process(self, pid: int) -> Process | None:
        start = cgroup.starttime(self._read(self.proc / f"{pid}/stat") or "")
        return Process(pid, start) if start is not None else None

    def cgroup_path(self, pid: int) -> str | None:
        return cgroup.unified_path(self._read(self.proc / f"{pid}/cgroup") or "")

    def directory(self, group: Cgroup) -> Path:
        return self.cgroups / group.path.lstrip("/")

    def cgroup_at(self, path: str) -> Cgroup | None:
        try:
            return Cgroup(path, (self.cgroups / path.lstrip("/")).stat().st_ino)
        except OSError:
            return None

    def is_empty(self, group: Cgroup) -> bool:
        """Nobody in it, gone, or replaced by another of the same name."""
        if self.cgroup_at(group.path) != group:
            return True
        text = self._read(self.directory(group) / "cgroup.events")
        return text is None or not cgroup.populated(text)

    def is_alive(self, record: Record) -> bool:
        if record.cgroup is not None:
            return not self.is_empty(record.cgroup)
        return record.process is not None and self.process(record.process.pid) == record.process

    def find_cgroup(self, container_id: str) -> Cgroup | None:
        """The populated cgroup an engine made for this id, if there is one."""
        for root, names, _ in os.walk(self.cgroups):
            for name in names:
                if cgroup.mentions_id(name, container_id):
                    found = self.cgroup_at("/" + str((Path(root) / name).relative_to(self.cgroups)))
                    if found is not None and not self.is_empty(found):
                        return found
        return None


class Inotify:
    """One descriptor, many watches."""

    def __init__(self) -> None:
        self._libc = ctypes.CDLL(None, use_errno=True)
        self.fd = self._libc.inotify_init1(IN_NONBLOCK | IN_CLOEXEC)
        if self.fd < 0:
            raise OSError(ctypes.get_errno(), "inotify_init1")

    def add(self, path: Path, mask: int) -> int | None:
        wd = self._libc.inotify_add_watch(self.fd, os.fsencode(path), mask)
        return wd if wd >= 0 else None

    def remove(self, wd: int) -> None:
        self._libc.inotify_rm_watch(self.fd, wd)

    def read(self) -> list[tuple[int, int]]:
        """(wd, mask) of everything that happened."""
        try:
            data = os.read(self.fd, 65536)
        except BlockingIOError:
            return []
        out = []
        offset = 0
        while offset + _EVENT.size <= len(data):
            wd, mask, _, length = _EVENT.unpack_from(data, offset)
            out.append((wd, mask))
            offset += _EVENT.size + length
        return out

    def close(self) -> None:
        os.close(self.fd)


class Watcher:
    """Calls `tell(key, sign)` from the event loop; the same sign may come more than once."""

    def __init__(self, facts: Facts, tell: Callable[[Key, Sign], None]) -> None:
        self._facts = facts
        self._tell = tell
        self._loop = asyncio.get_running_loop()
        self._inotify = Inotify()
        self._loop.add_reader(self._inotify.fd, self._on_inotify)
        self._pidfds: dict[Key, int] = {}
        self._groups: dict[Key, Cgroup] = {}
        self._wds: dict[int, set[Key]] = {}

    def close(self) -> None:
        for key in {*self._pidfds, *self._groups}:
            self.remove(key)
        self._loop.remove_reader(self._inotify.fd)
        self._inotify.close()

    def add(self, record: Record, pidfd: int | None) -> None:
        """Owns `pidfd` from here on."""
        self.remove(record.key)
        if pidfd is not None:
            self._pidfds[record.key] = pidfd
            self._loop.add_reader(pidfd, self._on_exit, record.key)
        if record.cgroup is not None:
            self._groups[record.key] = record.cgroup
            directory = self._facts.directory(record.cgroup)
            for path, mask in ((directory / "cgroup.events", IN_MODIFY), (directory.parent, IN_DELETE | IN_ONLYDIR)):
                wd = self._inotify.add(path, mask)
                if wd is not None:
                    self._wds.setdefault(wd, set()).add(record.key)
            self._loop.call_soon(self._look, record.key)  # it may have ended before the watch was there

    def reopen(self, record: Record) -> None:
        """After a restart: only the bare pid is known, so its start time decides whether it is still the same."""
        pidfd = None
        if record.process is not None:
            try:
                pidfd = os.pidfd_open(record.process.pid)
            except OSError:
                pidfd = None
            if pidfd is not None and self._facts.process(record.process.pid) != record.process:
                os.close(pidfd)
                pidfd = None
        self.add(record, pidfd)
        if pidfd is None:
            self._loop.call_soon(self._tell, record.key, Sign.INIT_EXITED)

    def remove(self, key: Key) -> None:
        pidfd = self._pidfds.pop(key, None)
        if pidfd is not None:
            self._loop.remove_reader(pidfd)
            os.close(pidfd)
        self._groups.pop(key, None)
        for wd in [wd for wd, keys in self._wds.items() if key in keys]:
            self._wds[wd].discard(key)
            if not self._wds[wd]:
                del self._wds[wd]
                self._inotify.remove(wd)

    def look(self, key: Key) -> None:
        """Now, and again in a moment."""
        self._look(key)
        for delay in LOOK_AGAIN_S:
            self._loop.call_later(delay, self._look, key)

    def _look(self, key: Key) -> None:
        group = self._groups.get(key)
        if group is not None and self._facts.is_empty(group):
            self._tell(key, Sign.CGROUP_EMPTY)

    def _on_exit(self, key: Key) -> None:
        pidfd = self._pidfds.pop(key, None)
        if pidfd is not None:  # stays readable for ever: once is enough
            self._loop.remove_reader(pidfd)
            os.close(pidfd)
            self._tell(key, Sign.INIT_EXITED)

    def _on_inotify(self) -> None:
        keys: set[Key] = set()
        for wd, mask in self._inotify.read():
            keys |= self._wds.get(wd, set())
            if mask & IN_IGNORED:
                self._wds.pop(wd, None)
        for key in keys:
            self._look(key)
