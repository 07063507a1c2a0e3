# SPDX-License-Identifier: MIT
"""PURE: what the mounts of the host bring of its guarded directories, by other paths.

A bind of a directory brings its files, which may have other paths: a kubelet gives a subPath of a pod's volume as a
bind mount in a directory of its own. It brings what is mounted below the directory, too, as engines bind recursively.
A file system of the kernel is the same at each of its mounts, though a new mount of proc has a device of its own.

A start looks up each of its binds, and the author of one pod can make thousands of binds and as many mounts. So the
mounts are sorted once, and a look-up takes time by the mounts at and above the guarded directories alone.
"""

from __future__ import annotations

import posixpath
from bisect import bisect_left
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence

from cgpu_common.cgroup import Mount

KERNELS = {
    "proc": "/proc",
    "sysfs": "/sys",
    "cgroup2": "/sys/fs/cgroup",
    "debugfs": "/sys/kernel/debug",
    "tracefs": "/sys/kernel/tracing",
}


class Places:
    def __init__(self, mounts: Sequence[Mount], guarded: Iterable[str]) -> None:
        """@mounts: in the kernel's order. @guarded: directories, absolute and normalised."""
        self._guarded = frozenset(guarded)
        self._above = frozenset(above for one in self._guarded for above in _parents(one))
        self._below = tuple(f"{one}/" for one in sorted(self._guarded))
        self._seen = {one.point: one for one in mounts}  # of two on one path the later one is seen
        self._shown: dict[str, list[Mount]] = defaultdict(list)
        for one in mounts:
            if self._concerns(one.point):
                self._shown[one.device].append(one)
        bringing = ((one.point, (*self._paths(one, one.root),)) for one in mounts)
        self._bringing = sorted(pair for pair in bringing if pair[1])
        self._points = [point for point, _ in self._bringing]

    def of(self, path: str) -> list[str]:
        """The paths at, above or below a guarded directory that the files at and below this one have by mounts."""
        found: list[str] = []
        top = self.mount_of(path)
        if seen := self._seen.get(top):
            found += self._paths(seen, _joined(seen.root, _rest(path, top) or ""))
        prefix = f"{path.rstrip('/')}/"
        for place in range(bisect_left(self._points, prefix), len(self._points)):
            if not self._points[place].startswith(prefix):
                break
            found += self._bringing[place][1]
        return found

    def mount_of(self, path: str) -> str:
        """The point of the mount that the path is on."""
        while path != "/" and path not in self._seen:
            path = posixpath.dirname(path)
        return path

    def file_system_of(self, path: str) -> tuple[str, str]:
        """mount_of(), and the device of what is mounted there now: later it may be another one."""
        point = self.mount_of(path)
        return point, self._seen[point].device if point in self._seen else ""

    def _concerns(self, path: str) -> bool:
        return path in self._above or path in self._guarded or path.startswith(self._below)

    def _paths(self, mount: Mount, inside: str) -> Iterator[str]:
        """Of what is inside of the file system of this mount."""
        shown = [(one.point, one.root) for one in self._shown.get(mount.device, ())]
        if mount.kind in KERNELS:
            shown.append((KERNELS[mount.kind], "/"))
        for point, root in shown:
            rest = _rest(inside, root)
            if rest is not None and self._concerns(path := _joined(point, rest)):
                yield path


def _parents(path: str) -> Iterator[str]:
    while path != "/":
        path = posixpath.dirname(path)
        yield path


def _rest(path: str, directory: str) -> str | None:
    """What of the path is below the directory; None: it is not there."""
    top = directory.rstrip("/")
    return path[len(top) :] if path == directory or path.startswith(f"{top}/") else None


def _joined(directory: str, rest: str) -> str:
    return posixpath.normpath(posixpath.join(directory, rest.lstrip("/")))
