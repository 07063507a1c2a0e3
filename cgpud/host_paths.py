# SPDX-License-Identifier: MIT
"""The paths on the host of what a container binds: behind links and mounts."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import os
import posixpath
import re
import threading
import time
from collections.abc import Callable, Collection

from cgpu_common.errors import Refused
from cgpu_common.python import timeout
from cgpud.env import shorten
from cgpud.places import Places

#: Of a file, or what it is of, that has ended.
GONE = (errno.ENOENT, errno.ENODEV, errno.ESRCH, errno.ENOTDIR)
_OF_PROCESS = re.compile(r"/proc/[0-9]+/", re.ASCII)
LINKS_MAX = 40  # as the kernel has it
WAIT_S = 10.0
LEFT_MAX = 64  # threads that still wait, of starts that were refused

Found = Callable[[str], Collection[str]]
Enter = Callable[[str], None]


class Lookups:
    """find() in threads: a file system whose server does not answer (NFS, FUSE) keeps the start of one container, not
    the daemon. Later starts do not go there until it has answered."""

    def __init__(self) -> None:
        self._left = 0  # threads of starts that were refused meanwhile
        self._silent: set[tuple[str, str]] = set()  # as Places.file_system_of() has them

    async def find(self, directory: str, places: Places, paths: Collection[str]) -> Found:
        """find() of each of these paths. Raises Refused."""
        if self._left >= LEFT_MAX:
            raise Refused(f"{self._left} starts wait for file systems that do not answer; try again later")
        loop = asyncio.get_running_loop()
        done: asyncio.Future[None] = loop.create_future()
        found: dict[str, tuple[str, ...]] = {}
        path, system, since = "", ("", ""), time.monotonic()  # what is looked up, where it is, from when on
        marked = ("", "")  # in self._silent

        def enter(here: str) -> None:
            nonlocal system, since
            if done.cancelled():  # the start was refused meanwhile
                raise TimeoutError
            system, since = places.file_system_of(here), time.monotonic()
            if system in self._silent:
                raise Refused(_silence(path, system[0]))

        def work() -> None:
            nonlocal path
            failure = None
            try:
                for path in paths:
                    found[path] = find(directory, places, path, enter)
            except Exception as error:
                failure = error
            with contextlib.suppress(RuntimeError):  # the loop has been closed meanwhile
                loop.call_soon_threadsafe(finish, failure)

        def finish(error: Exception | None) -> None:
            if done.cancelled():
                self._left -= 1
                self._silent.discard(marked)
            elif error is None:
                done.set_result(None)
            else:
                done.set_exception(error)

        # A daemon's thread: the process does not wait for it at its end, as for those of an executor.
        threading.Thread(target=work, daemon=True).start()
        try:
            async with timeout(WAIT_S):
                await done
        except TimeoutError as error:
            if not done.cancelled():  # it ended in the last moment
                done.result()
            elif time.monotonic() - since < WAIT_S / 2:  # it goes on, so no file system is silent
                raise Refused(_slowness(paths)) from error
            else:
                marked = system
                self._silent.add(marked)
                raise Refused(_silence(path, marked[0])) from error
        finally:
            self._left += done.cancelled()
        return found.__getitem__


def _slowness(paths: Collection[str]) -> str:
    return (
        f"the container mounts {len(paths)} paths of the host, and where they lead is not known after {WAIT_S:g} s; "
        f"start it with fewer, or again when the machine has less to do"
    )


def _silence(path: str, point: str) -> str:
    return f"the container mounts {shorten(path)}, and the file system at {shorten(point)} does not answer"


def find(directory: str, places: Places, path: str, enter: Enter = lambda path: None) -> tuple[str, ...]:
    """The path behind its links, then the other paths of what a bind of it brings. Raises Refused."""
    found = behind_links(directory, path, enter)
    return (found, *places.of(found))


def behind_links(directory: str, path: str, enter: Enter = lambda path: None) -> str:
    """The path behind all links, as the kernel follows them for a bind; a relative one begins at the directory.
    What is not there stays as it is written. Raises Refused for a link below /proc/PID: what it leads to is not
    what it reads as. @enter gets each path before it is looked at."""
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
        enter(here)
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
