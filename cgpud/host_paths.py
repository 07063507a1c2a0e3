# SPDX-License-Identifier: MIT
"""The paths on the host of what a container binds: behind links and mounts."""

from __future__ import annotations

import errno
import os
import posixpath
import re

from cgpu_common.errors import Refused
from cgpud.env import shorten
from cgpud.places import Places

#: Of a file, or what it is of, that has ended.
GONE = (errno.ENOENT, errno.ENODEV, errno.ESRCH, errno.ENOTDIR)
_OF_PROCESS = re.compile(r"/proc/[0-9]+/", re.ASCII)
LINKS_MAX = 40  # as the kernel has it


def find(directory: str, places: Places, path: str) -> tuple[str, ...]:
    """The path behind its links, then the other paths of what a bind of it brings. Raises Refused."""
    found = behind_links(directory, path)
    return (found, *places.of(found))


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
            target = os.readlink(here)  # Path.readlink() costs four times as much  # noqa: PTH115
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
