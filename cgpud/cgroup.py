# SPDX-License-Identifier: MIT
"""PURE: the texts of /proc/<pid>/cgroup, cgroup.events, /proc/<pid>/stat and fdinfo."""

from __future__ import annotations

import re

_HEX_ID = re.compile(r"[0-9a-f]{64}", re.ASCII)
_SCOPES = ("runc", "crun", "libpod", "docker", "nerdctl", "cri-containerd", "crio")


def path_of(text: str, controller: str = "") -> str | None:
    """The path in the hierarchy of a controller of cgroup v1, or in that of v2, of /proc/<pid>/cgroup; None where there
    is no such hierarchy or it is its root."""
    for line in text.splitlines():
        _, _, rest = line.partition(":")
        controllers, _, path = rest.partition(":")
        if controller in controllers.split(","):
            path = path.removesuffix(" (deleted)")
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


def mentions_id(name: str, container_id: str) -> bool:
    """Is a cgroup of this name (the last part of its path) the one an engine would make for that container?

    An id of an engine's own, 64 hex digits, may stand anywhere, but for the scope of who watches over the container
    (libpod-conmon-…), which may end before it does; one that a person chose is the whole name, or in a
    scope of systemd's what follows the runtime's.
    """
    if _HEX_ID.fullmatch(container_id):
        return container_id in name and "conmon" not in name
    return name == container_id or name in (f"{prefix}-{container_id}.scope" for prefix in _SCOPES)
