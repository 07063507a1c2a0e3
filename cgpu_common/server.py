# SPDX-License-Identifier: MIT
"""The root-only socket: one request and one reply per connection. The handler makes the reply."""

from __future__ import annotations

import array
import asyncio
import errno
import os
import select
import socket
import stat
import struct
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from cgpu_common import cgroup, frames, log, wire
from cgpu_common.errors import CgpuError, ProtocolError
from cgpu_common.python import timeout

READ_TIMEOUT_S = 10.0
CONNECTIONS_MAX = 128
_UCRED = struct.Struct("3i")
SO_PEERPIDFD = 77  # Linux 6.5; not in Python's socket


@dataclass(slots=True)
class Request:
    """A message and its descriptor. take_fd() passes the ownership of the descriptor to the caller."""

    message: wire.Message
    peer_pid: int
    peer_cgroup: str | None  # when it connected; None: of no cgroup below the root
    fd: int | None = None

    def take_fd(self) -> int | None:
        fd, self.fd = self.fd, None
        return fd


class Taken(CgpuError):
    """Another process serves the socket."""


Handler = Callable[[Request], Awaitable[dict[str, Any]]]
Undelivered = Callable[[Request], Awaitable[None]]


def open_socket(path: Path) -> socket.socket:
    """A listening socket that only root can reach. A stale one is replaced, a live one is an error."""
    path.parent.mkdir(parents=True, exist_ok=True)
    if path.exists() or path.is_symlink():
        if not stat.S_ISSOCK(path.lstat().st_mode):
            raise CgpuError(f"{path} exists and is no socket")
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_NONBLOCK) as probe:
            try:
                probe.connect(str(path))
            except BlockingIOError as error:  # alive, but its queue is full
                raise Taken(f"another process answers on {path}") from error
            except OSError:
                path.unlink()
            else:
                raise Taken(f"another process answers on {path}")
    sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_CLOEXEC | socket.SOCK_NONBLOCK)
    before = os.umask(0o177)
    try:
        sock.bind(str(path))
    finally:
        os.umask(before)
    sock.listen(CONNECTIONS_MAX)
    return sock


def _node_of(path: Path) -> tuple[int, int] | None:
    """Device and inode, which identify the socket even if a later one has the same path."""
    try:
        found = path.lstat()
    except OSError:
        return None
    return found.st_dev, found.st_ino


def peer_of(sock: socket.socket) -> tuple[int, int]:
    """(pid, uid) of the other end, from the kernel."""
    pid, uid, _ = _UCRED.unpack(sock.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _UCRED.size))
    return pid, uid


def is_allowed(uid: int) -> bool:
    return uid in (0, os.geteuid())


def is_outside_of_containers(pid: int, proc: Path = Path("/proc")) -> bool:
    """Is the process in the daemon's pid namespace, and not in one below it?

    Root of a container is uid 0 here as well, unless the container has a user namespace."""
    try:
        text = (proc / f"{pid}/status").read_text(errors="replace")
    except OSError:
        return False  # pid 0: outside of the daemon's namespace; else it has ended and waits for no reply
    return cgroup.pid_namespaces(text) == 1


def has_ended(sock: socket.socket) -> bool:
    """Has the process that connected ended, so that its pid may be another one's by now? False too where the kernel is
    older than SO_PEERPIDFD. A process of a container can pass its connection to another one, and end."""
    try:
        pidfd = sock.getsockopt(socket.SOL_SOCKET, SO_PEERPIDFD)
    except OSError as error:
        return error.errno != errno.ENOPROTOOPT
    try:
        poll = select.poll()
        poll.register(pidfd, select.POLLIN)
        return bool(poll.poll(0))
    finally:
        os.close(pidfd)


def is_of_the_host(sock: socket.socket) -> bool:
    """Is the other end a process of root, and of no container?"""
    pid, uid = peer_of(sock)
    # In this order: what was read by the pid is the caller's.
    return is_allowed(uid) and is_outside_of_containers(pid) and not has_ended(sock)


async def _readable(sock: socket.socket) -> None:
    loop = asyncio.get_running_loop()
    ready: asyncio.Future[None] = loop.create_future()

    def wake() -> None:
        if not ready.done():
            ready.set_result(None)

    loop.add_reader(sock, wake)
    try:
        await ready
    finally:
        loop.remove_reader(sock)


async def _receive(sock: socket.socket, size: int, fds: list[int]) -> bytes:
    """Exactly `size` bytes. All descriptors are collected, so that unexpected ones get closed."""
    data = b""
    room = socket.CMSG_SPACE(8 * array.array("i").itemsize)
    while len(data) < size:
        try:
            chunk, ancillary, _, _ = sock.recvmsg(size - len(data), room, socket.MSG_CMSG_CLOEXEC)
        except BlockingIOError:
            await _readable(sock)
            continue
        for level, kind, payload in ancillary:
            if level == socket.SOL_SOCKET and kind == socket.SCM_RIGHTS:
                found = array.array("i")
                found.frombytes(payload[: len(payload) - len(payload) % found.itemsize])
                fds.extend(found)
        if not chunk:
            raise ProtocolError("the connection was closed in the middle of a request")
        data += chunk
    return data


class Server:
    def __init__(
        self,
        path: Path,
        handler: Handler,
        undelivered: Undelivered,
        cgroup_of: Callable[[int], str | None] = lambda pid: None,
    ) -> None:
        """@cgroup_of: of a process."""
        self._cgroup_of = cgroup_of
        self._path = path
        self._handler = handler
        self._unsent = undelivered
        self._sock: socket.socket | None = None
        self._node: tuple[int, int] | None = None  # of the path, as it was bound
        self._tasks: set[asyncio.Task[None]] = set()
        self._accepting: asyncio.Task[None] | None = None

    @property
    def started(self) -> bool:
        return self._accepting is not None

    def start(self) -> None:
        self._sock = open_socket(self._path)
        self._node = _node_of(self._path)
        self._accepting = asyncio.create_task(self._accept(self._sock))

    def restore_socket(self) -> None:
        """restore(), with the reason for which it fails in the log alone."""
        try:
            self.restore()
        except (OSError, CgpuError) as error:
            log.get().error("the socket is gone and cannot be made again", socket=str(self._path), error=str(error))

    def restore(self) -> None:
        """Make the socket again after its path was removed with the contents of /run. A socket of another process on
        this path is left alone: raises Taken; OSError or CgpuError if it cannot be made."""
        if self._sock is None or self._accepting is None or self._is_ours():
            return
        old, accepting = self._sock, self._accepting
        self.start()
        log.get().warning("the socket was gone and is made again", socket=str(self._path))
        accepting.add_done_callback(lambda _: old.close())  # after the event loop has stopped using it
        accepting.cancel()

    def _is_ours(self) -> bool:
        return self._node is not None and _node_of(self._path) == self._node

    async def stop(self) -> None:
        """Accept no new requests; finish those in progress."""
        if self._accepting is not None:
            self._accepting.cancel()
            await asyncio.gather(self._accepting, return_exceptions=True)
        if self._sock is not None:
            if self._is_ours():
                self._path.unlink(missing_ok=True)
            self._sock.close()
            self._sock = None
        if self._tasks:
            await asyncio.wait(self._tasks, timeout=READ_TIMEOUT_S)

    async def _accept(self, listening: socket.socket) -> None:
        loop = asyncio.get_running_loop()
        while True:
            try:
                sock, _ = await loop.sock_accept(listening)
            except OSError as error:  # out of descriptors: retry, some may be closed soon
                log.get().warning("accept failed", error=str(error))
                await asyncio.sleep(0.1)
                continue
            sock.setblocking(False)
            if len(self._tasks) >= CONNECTIONS_MAX:
                sock.close()
                continue
            task = asyncio.create_task(self._serve(sock))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)

    async def _serve(self, sock: socket.socket) -> None:
        fds: list[int] = []
        request: Request | None = None
        try:
            pid, uid = peer_of(sock)
            group = self._cgroup_of(pid)  # before the looks that refuse a process that has ended
            if not is_allowed(uid):
                await self._reply(sock, wire.refusal("only root may send requests to cgpud"))
                return
            if not is_outside_of_containers(pid) or has_ended(sock):  # in this order: what was read is the caller's
                log.get().warning("a request from a container is refused", pid=pid)
                await self._reply(sock, wire.refusal("cgpud takes no requests from a container"))
                return
            async with timeout(READ_TIMEOUT_S):
                size = wire.length(await _receive(sock, frames.HEAD.size, fds))
                message = wire.decode(await _receive(sock, size, fds))
            request = Request(message, pid, group, fds.pop(0) if fds else None)
            reply = await self._handler(request)
            if not await self._reply(sock, reply):
                await self._unsent(request)
        except (ProtocolError, TimeoutError, OSError) as error:
            log.get().warning("bad request", error=str(error) or "timeout")
            await self._reply(sock, wire.refusal(f"cgpud did not understand the request: {str(error) or 'timeout'}"))
        finally:
            if request is not None and request.fd is not None:
                fds.append(request.fd)
            for fd in fds:
                os.close(fd)
            sock.close()

    async def _reply(self, sock: socket.socket, reply: dict[str, Any]) -> bool:
        """False if the peer has closed the connection."""
        try:
            async with timeout(READ_TIMEOUT_S):
                await asyncio.get_running_loop().sock_sendall(sock, frames.encode(reply))
        except (OSError, TimeoutError):
            return False
        return True
