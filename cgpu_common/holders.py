# SPDX-License-Identifier: MIT
"""Which living process holds the memory that cgpu_km counts under the process that opened the node.

After a fork the opener may end, and its child keeps the file, and with it the memory. The module knows the opener; who
has the file now is in /proc/PID/fd. A node is known by device and inode: its number is shown as the driver's.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from itertools import islice
from pathlib import Path

Held = tuple[tuple[int, int], ...]  # (pid, bytes)
#: Bounds of one search: a container can have many processes, with many files each.
PROCESSES_MAX = 4096
FILES_MAX = 65536


def _runs(proc: Path, pid: int) -> bool:
    """A zombie has no files."""
    try:
        text = (proc / f"{pid}/stat").read_text(errors="replace")
    except OSError:
        return False
    return text.rpartition(")")[2].split()[:1] not in ([], ["Z"], ["X"])


def _identities(directory: Path) -> set[tuple[int, int]]:
    try:
        return {(found.st_dev, found.st_ino) for found in (path.stat() for path in directory.iterdir())}
    except OSError:
        return set()


def _files(proc: Path, pid: int) -> Iterator[tuple[int, int]]:
    """None of a process that has ended or is another user's, and no file that was closed meanwhile."""
    with contextlib.suppress(OSError):
        for entry in (proc / f"{pid}/fd").iterdir():
            with contextlib.suppress(OSError):
                found = entry.stat()
                yield found.st_dev, found.st_ino


def _holders(proc: Path, nodes: set[tuple[int, int]]) -> Iterator[int]:
    left = FILES_MAX
    pids = sorted(int(path.name) for path in proc.iterdir() if path.name.isdecimal())
    for pid in pids[:PROCESSES_MAX]:
        for identity in _files(proc, pid):
            left -= 1
            if identity in nodes:
                yield pid
                break
            if left <= 0:
                return


def living(proc: Path, directory: Path, held: Held) -> Held:
    """`held` with a living holder of the container's nodes, which are in `directory`, in place of each process that has
    ended. Unchanged where there is none, or where it may not be seen."""
    ended = [pid for pid, _ in held if not _runs(proc, pid)]
    nodes = _identities(directory) if ended else set()
    if not nodes:
        return held
    known = {pid for pid, _ in held}
    found = list(islice((pid for pid in _holders(proc, nodes) if pid not in known), len(ended)))
    if not found:
        return held
    instead = {pid: found[min(place, len(found) - 1)] for place, pid in enumerate(ended)}
    out: dict[int, int] = {}
    for pid, size in held:
        holder = instead.get(pid, pid)
        out[holder] = out.get(holder, 0) + size
    return tuple(out.items())
