# SPDX-License-Identifier: MIT
"""PURE: the texts of /proc/<pid>/cgroup, cgroup.events, /proc/<pid>/stat and fdinfo."""

from __future__ import annotations

import re

_HEX_ID = re.compile(r"[0-9a-f]{64}", re.ASCII)


def unified_path(text: str) -> str | None:
    """The cgroup v2 path of /proc/<pid>/cgroup, or None where there is no v2 hierarchy or it is the root."""
    for line in text.splitlines():
        if line.startswith("0::"):
            path = line[3:].removesuffix(" (deleted)")
            return path if path.startswith("/") and path != "/" and "/../" not in f"{path}/" else None
    return None


def populated(text: str) -> bool:
    """Of cgroup.events; a text without the line counts as populated, since releasing too early is the worse mistake."""
    for line in text.splitlines():
        words = line.split()
        if words[:1] == ["populated"]:
            return words[1:] != ["0"]
    return True


def starttime(stat: str) -> int | None:
    """Field 22 of /proc/<pid>/stat. The name in field 2 may hold spaces and parentheses."""
    words = stat.rpartition(")")[2].split()
    return int(words[19]) if len(words) > 19 and words[19].isdecimal() else None


def pid_of_fdinfo(text: str) -> int | None:
    """The pid a pidfd stands for, from /proc/self/fdinfo/<fd>; None once the process is gone."""
    for line in text.splitlines():
        if line.startswith("Pid:"):
            pid = line[4:].strip()
            return int(pid) if pid.isdecimal() and int(pid) > 0 else None
    return None


def mentions_id(path: str, container_id: str) -> bool:
    """Is this the cgroup an engine would make for that container?"""
    if not _HEX_ID.fullmatch(container_id):
        return False
    return container_id in path
