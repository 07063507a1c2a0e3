# SPDX-License-Identifier: MIT
"""A socket on the module's events, without pyroute2: it is the only socket of the daemon that waits for messages.

Two exceptions end it. Resync: its buffer overflowed, so unknown events are missing. KernelMissing: the family was
unregistered, after which the socket would stay open and receive nothing.
"""

from __future__ import annotations

import asyncio
import errno
import socket
import struct
from collections.abc import Iterator
from enum import IntEnum
from types import TracebackType

from cgpu_common.attributes import U16, Table
from cgpu_common.errors import KernelMissing, Resync

NETLINK_GENERIC = 16
SOL_NETLINK = 270
NETLINK_ADD_MEMBERSHIP = 1
CTRL_ID = 0x10  # the generic netlink controller, and the number of its one group
CTRL_CMD_DELFAMILY = 2
DATAGRAM_MAX = 65536
_HEAD = struct.Struct("=IHHII")
_GENL = struct.Struct("=BBH")


class _Ctrl(IntEnum):
    FAMILY_ID = 1


_CTRL = Table({_Ctrl.FAMILY_ID: U16})


def split(data: bytes) -> Iterator[tuple[int, bytes]]:
    """(type, whole message) of every message in a datagram, up to a truncated one."""
    offset = 0
    while offset + _HEAD.size <= len(data):
        length, kind, _, _, _ = _HEAD.unpack_from(data, offset)
        if length < _HEAD.size or offset + length > len(data):
            return
        yield kind, data[offset : offset + length]
        offset += (length + 3) & ~3


def deleted_family(message: bytes) -> int | None:
    """The number of the family that a message of CTRL_ID reports as unregistered."""
    body = _HEAD.size + _GENL.size
    if len(message) < body or message[_HEAD.size] != CTRL_CMD_DELFAMILY:
        return None
    return dict(_CTRL.read(message[body:])).get(_Ctrl.FAMILY_ID.name)


class Listener:
    def __init__(self, rcvbuf: int | None = None) -> None:
        self._sock = socket.socket(socket.AF_NETLINK, socket.SOCK_RAW | socket.SOCK_CLOEXEC, NETLINK_GENERIC)
        self._sock.setblocking(False)
        if rcvbuf is not None:
            self._sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, rcvbuf)
        self._sock.bind((0, 0))  # unbound, its port is 0, that of the sender, which multicast skips
        self._family = -1
        self._add(CTRL_ID)  # before the family is looked up, or its end in between would be missed

    def _add(self, group: int) -> None:
        self._sock.setsockopt(SOL_NETLINK, NETLINK_ADD_MEMBERSHIP, group)

    def join(self, family: int, group: int) -> None:
        self._family = family
        try:
            self._add(group)
        except OSError as error:
            if error.errno in (errno.ENOENT, errno.EINVAL):  # unregistered since the look-up
                raise KernelMissing from error
            raise

    async def wait(self) -> bytes:
        """Wait for a datagram. Before join() it means that some family was registered or unregistered."""
        try:
            return await asyncio.get_running_loop().sock_recv(self._sock, DATAGRAM_MAX)
        except OSError as error:
            if error.errno == errno.ENOBUFS:
                raise Resync("events were lost") from error
            raise

    async def messages(self) -> list[bytes]:
        """Wait for a datagram; its messages of the family."""
        found = list(split(await self.wait()))
        if any(kind == CTRL_ID and deleted_family(message) == self._family for kind, message in found):
            raise KernelMissing
        return [message for kind, message in found if kind == self._family]

    def __enter__(self) -> Listener:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._sock.close()
