# SPDX-License-Identifier: MIT
"""The paths on the host of what a container binds: behind links and mounts."""

from __future__ import annotations

import errno
import posixpath
import re
from collections.abc import Sequence
from pathlib import Path

from cgpu_common.cgroup import Mount
from cgpu_common.errors import Refused
from cgpud.env import shorten

#: Of a file, or what it is of, that has ended.
GONE = (errno.ENOENT, errno.ENODEV, errno.ESRCH, errno.ENOTDIR)
_OF_PROCESS = re.compile(r"/proc/[0-9]+/", re.ASCII)
LINKS_MAX = 40  # as the kernel has it


def find(directory: str, mounts: Sequence[Mount], path: str) -> tuple[str, ...]:
    """The path behind its links, and the other paths of the same files by the mounts there are: a kubelet gives a
    subPath of a pod's volume as a bind mount in a directory of its own. Raises Refused."""
    found = behind_links(directory, path)
    return (found, *by_other_mounts(found, mounts))


def behind_links(directory: str, path: str) -> str:
    """The path behind all links, as the kernel follows them for a bind; a relative one begins at the directory.
    What is not there stays as it is written. Raises Refused for a link below /proc/PID: what it leads to is not
    what it reads as."""
    unknown = f"the container mounts {shorten(path)}, of which it is not known what it brings of the host"
    here, links, rest = "/", 0, posixpath.join(directory, path).split("/")[::-1]
    while rest:
        name = rest.pop()
        if name in ("", "."):
            continue
        if name == "..":
            here = posixpath.dirname(here)
            continue
        here = posixpath.join(here, name)
        try:
            target = str(Path(here).readlink())
        except OSError as error:
            if error.errno in (errno.EINVAL, *GONE):  # no link, or not there
                continue
            raise Refused(f"{unknown} ({here}: {error.strerror}); mount the directory by its own path") from error
        except ValueError as error:
            raise Refused(f"the container mounts {shorten(path)}, which is no path: {error}") from error
        links += 1
        if links > LINKS_MAX or _OF_PROCESS.match(here):
            raise Refused(f"{unknown}: it leads through the link {here}; mount the directory by its own path")
        here = "/" if target.startswith("/") else posixpath.dirname(here)
        rest.extend(target.split("/")[::-1])
    return here


def by_other_mounts(path: str, mounts: Sequence[Mount]) -> list[str]:
    """PURE: the paths that files at and below @path have by the mounts of the same device."""
    # Of two on one path the later one is seen.
    under = [(len(one.point), number) for number, one in enumerate(mounts) if _rest(path, one.point) is not None]
    if not under:
        return []
    seen = mounts[max(under)[1]]
    inside = _joined(seen.root, _rest(path, seen.point) or "")
    others = [(one.point, _rest(inside, one.root)) for one in mounts if one.device == seen.device]
    return [_joined(point, rest) for point, rest in others if rest is not None]


def _rest(path: str, directory: str) -> str | None:
    """What of the path is below the directory; None: it is not there."""
    top = directory.rstrip("/")
    return path[len(top) :] if path == directory or path.startswith(f"{top}/") else None


def _joined(directory: str, rest: str) -> str:
    return posixpath.normpath(posixpath.join(directory, rest.lstrip("/")))
