# SPDX-License-Identifier: MIT
"""The listening socket, without a module: the meaning of datagrams. tests/vm covers overflow and unloading."""

from __future__ import annotations

import asyncio
import errno
import os
import socket
import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cgpu_common.errors import KernelMissing, Resync
from cgpu_common.listener import CTRL_ID, Listener, deleted_family, split

FAMILY = 0x21


def message(kind: int, body: bytes) -> bytes:
    text = struct.pack("=IHHII", 16 + len(body), kind, 0, 0, 0) + body
    return text + b"\0" * (-len(text) % 4)


def gone(family: int, cmd: int = 2) -> bytes:
    name = struct.pack("=HH", 9, 2) + b"cgpu\0" + b"\0" * 3
    number = struct.pack("=HH", 6, 1) + struct.pack("=H", family) + b"\0\0"
    return message(CTRL_ID, struct.pack("=BBH", cmd, 2, 0) + name + number)


class Wire(Listener):
    """The other end of a socket pair, or an error, in place of netlink."""

    def __init__(self, data: bytes = b"", error: int = 0) -> None:
        self._sock, other = socket.socketpair(socket.AF_UNIX, socket.SOCK_DGRAM)
        self._sock.setblocking(False)
        self._family = FAMILY
        if error:
            self._sock.close()
            self._sock = Failing(error)  # type: ignore[assignment]
        else:
            other.send(data)
        other.close()


class Failing(socket.socket):
    def __init__(self, number: int) -> None:
        super().__init__(socket.AF_UNIX, socket.SOCK_DGRAM)
        self.setblocking(False)
        self.number = number

    def recv(self, *_: object) -> bytes:
        raise OSError(self.number, os.strerror(self.number))


def hear(wire: Wire) -> list[bytes]:
    with wire:
        return asyncio.run(wire.messages())


def test_messages_of_the_family_only() -> None:
    ours = [message(FAMILY, b"one"), message(FAMILY, b"twoo")]
    heard = hear(Wire(ours[0] + message(FAMILY + 1, b"not ours") + gone(FAMILY + 1) + ours[1]))
    assert [one[16:] for one in heard] == [b"one", b"twoo"]


def test_the_end_of_the_family() -> None:
    with pytest.raises(KernelMissing):
        hear(Wire(gone(FAMILY)))
    assert hear(Wire(gone(FAMILY, cmd=1))) == []  # it has come


def test_an_overflow_is_a_resync() -> None:
    with pytest.raises(Resync):
        hear(Wire(error=errno.ENOBUFS))
    with pytest.raises(OSError, match="Connection reset"):
        hear(Wire(error=errno.ECONNRESET))


def test_a_group_that_is_not_there() -> None:
    try:
        ear = Listener()
    except OSError as error:
        pytest.skip(f"no generic netlink here: {error}")
    with ear, pytest.raises(KernelMissing):
        ear.join(FAMILY, 0x7FFFFFF)


@given(st.binary(max_size=200))
def test_any_bytes(data: bytes) -> None:
    for _, one in split(data):
        assert one in data
        deleted_family(one)
    deleted_family(data)
