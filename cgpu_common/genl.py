# SPDX-License-Identifier: MIT
"""Sockets of generic netlink: requests to a family, and its events (include/uapi/linux/netlink.h, genetlink.h).

Two exceptions end the listening. Resync: the buffer overflowed, so unknown events are missing. KernelMissing: the
family was unregistered, after which the socket would stay open and receive nothing.
"""

from __future__ import annotations

import asyncio
import errno
import os
import socket
import struct
from collections.abc import Iterator
from enum import IntEnum
from types import TracebackType

from cgpu_common.attributes import TEXT, U16, U32, Table
from cgpu_common.errors import KernelMissing, Resync

NETLINK_GENERIC = 16
SOL_NETLINK = 270
NETLINK_ADD_MEMBERSHIP, NETLINK_CAP_ACK, NETLINK_EXT_ACK = 1, 10, 11
NLM_F_REQUEST, NLM_F_ACK, NLM_F_DUMP = 0x1, 0x4, 0x300
NLM_F_DUMP_INTR, NLM_F_ACK_TLVS = 0x10, 0x200
NLMSG_ERROR, NLMSG_DONE = 2, 3
CTRL_ID = 0x10  # the generic netlink controller, and the number of its one group
CTRL_CMD_DELFAMILY, CTRL_CMD_GETFAMILY = 2, 3
DATAGRAM_MAX = 65536
_HEAD = struct.Struct("=IHHII")
_GENL = struct.Struct("=BBH")
_CODE = struct.Struct("=i")
BODY = _HEAD.size + _GENL.size  # where a message's attributes begin


class _Group(IntEnum):
    NAME = 1
    ID = 2


class _Groups(IntEnum):
    """A family's groups are numbered, from 1 on; ours has one."""

    FIRST = 1


class _Ctrl(IntEnum):
    FAMILY_ID = 1
    FAMILY_NAME = 2
    MCAST_GROUPS = 7


class _Ack(IntEnum):
    MSG = 1


_GROUPS = Table({_Groups.FIRST: Table({_Group.NAME: TEXT, _Group.ID: U32}).nest()})
_CTRL = Table({_Ctrl.FAMILY_ID: U16, _Ctrl.FAMILY_NAME: TEXT, _Ctrl.MCAST_GROUPS: _GROUPS.nest()})
_ACK = Table({_Ack.MSG: TEXT})


class Failed(Exception):
    """The kernel refused a request. @text: its words, "" without any."""

    def __init__(self, code: int, text: str = "") -> None:
        super().__init__(text or os.strerror(code))
        self.code, self.text = code, text


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


def _outcome(kind: int, flags: int, message: bytes) -> Failed | None:
    """The error of an acknowledgement or of the end of a dump; None: there is none."""
    (code,) = _CODE.unpack_from(message, _HEAD.size) if len(message) >= _HEAD.size + _CODE.size else (0,)
    if not code:
        return None
    words = _HEAD.size + _CODE.size + (_HEAD.size if kind == NLMSG_ERROR else 0)  # NETLINK_CAP_ACK: its head alone
    told = dict(_ACK.read(message[words:])) if flags & NLM_F_ACK_TLVS else {}
    return Failed(-code, told.get("MSG", ""))


class Requests:
    """A socket for requests. The caller makes one after the other."""

    def __init__(self) -> None:
        self._sock = socket.socket(socket.AF_NETLINK, socket.SOCK_RAW | socket.SOCK_CLOEXEC, NETLINK_GENERIC)
        self._sock.setblocking(False)
        for option in (NETLINK_CAP_ACK, NETLINK_EXT_ACK):
            self._sock.setsockopt(SOL_NETLINK, option, 1)
        self._number = 0

    async def request(self, family: int, cmd: int, version: int, attributes: bytes, flags: int) -> list[bytes]:
        """The messages of the answer. @flags: NLM_F_ACK or NLM_F_DUMP. Raises Failed."""
        self._number += 1
        body = _GENL.pack(cmd, version, 0) + attributes
        self._sock.send(_HEAD.pack(_HEAD.size + len(body), family, NLM_F_REQUEST | flags, self._number, 0) + body)
        found: list[bytes] = []
        while True:
            data = await asyncio.get_running_loop().sock_recv(self._sock, DATAGRAM_MAX)
            for kind, message in split(data):
                _, _, has, number, _ = _HEAD.unpack_from(message)
                if number != self._number:
                    continue
                if kind not in (NLMSG_ERROR, NLMSG_DONE):
                    found.append(message)
                elif (error := _outcome(kind, has, message)) is not None:
                    raise error
                elif has & NLM_F_DUMP_INTR:
                    raise Failed(errno.EINTR, "the list changed while it was read")
                else:
                    return found

    async def family(self, name: str) -> tuple[int, int]:
        """Its number, and that of its group. Raises KernelMissing."""
        try:
            (message,) = await self.request(
                CTRL_ID, CTRL_CMD_GETFAMILY, 1, _CTRL.write([("FAMILY_NAME", name)]), NLM_F_ACK
            )
        except Failed as error:
            if error.code == errno.ENOENT:
                raise KernelMissing from error
            raise
        values = dict(_CTRL.read(message[BODY:]))
        groups = [dict(pairs) for _, pairs in values.get("MCAST_GROUPS", [])]
        return values["FAMILY_ID"], groups[0]["ID"] if groups else 0

    def close(self) -> None:
        self._sock.close()


async def family_of(name: str) -> tuple[int, int]:
    """The numbers of a family and of its group. Raises KernelMissing."""
    sock = Requests()
    try:
        return await sock.family(name)
    finally:
        sock.close()


class Listener:
    """A socket on a family's events."""

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
