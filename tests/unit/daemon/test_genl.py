# SPDX-License-Identifier: MIT
"""Generic netlink without the module: the meaning of datagrams, and requests to the running kernel's own families.
tests/vm covers overflow and unloading."""

from __future__ import annotations

import asyncio
import errno
import os
import socket
import struct
from collections.abc import Iterator

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cgpu_common import genl
from cgpu_common.errors import KernelMissing, Resync
from cgpu_common.genl import CTRL_ID, NLM_F_ACK, NLM_F_DUMP, Failed, Listener, Requests, deleted_family, split

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


# ---- requests ----

GETFAMILY = genl.CTRL_CMD_GETFAMILY


@pytest.fixture
def kernel() -> Iterator[Requests]:
    """A socket to the running kernel, which has the family nlctrl in any case."""
    try:
        sock = Requests()
    except OSError as error:
        pytest.skip(f"no generic netlink here: {error}")
    yield sock
    sock.close()


async def test_a_family_and_its_group(kernel: Requests) -> None:
    assert await kernel.family("nlctrl") == (CTRL_ID, CTRL_ID)


async def test_a_family_that_is_not_there(kernel: Requests) -> None:
    with pytest.raises(KernelMissing):
        await kernel.family("none of us")
    assert await kernel.family("nlctrl"), "the socket is usable after an error"


async def test_a_dump_is_read_to_its_end(kernel: Requests) -> None:
    found = await kernel.request(CTRL_ID, GETFAMILY, 1, b"", NLM_F_DUMP)
    names = [dict(genl._CTRL.read(one[genl.BODY :]))["FAMILY_NAME"] for one in found]
    assert "nlctrl" in names and len(set(names)) == len(names) > 1
    assert await kernel.family("nlctrl") == (CTRL_ID, CTRL_ID), "nothing of it is left in the socket"


async def test_a_refusal_has_the_kernels_words(kernel: Requests) -> None:
    """A name that is longer than a family's can be: an extended acknowledgement says so."""
    with pytest.raises(Failed) as caught:
        await kernel.request(CTRL_ID, GETFAMILY, 1, genl._CTRL.write([("FAMILY_NAME", "x" * 40)]), NLM_F_ACK)
    assert caught.value.code in (errno.EINVAL, errno.ERANGE)
    assert caught.value.text


async def test_an_answer_to_an_earlier_request_is_left_out(kernel: Requests) -> None:
    body = struct.pack("=BBH", GETFAMILY, 1, 0)
    kernel._sock.send(struct.pack("=IHHII", 20, CTRL_ID, 1 | NLM_F_DUMP, 77, 0) + body)
    assert await kernel.family("nlctrl") == (CTRL_ID, CTRL_ID)


def acknowledged(code: int, flags: int, more: bytes = b"") -> Failed | None:
    text = struct.pack("=IHHII", 0, genl.NLMSG_ERROR, flags, 1, 0) + struct.pack("=i", code) + b"\0" * 16 + more
    return genl._outcome(genl.NLMSG_ERROR, flags, text)


def test_what_an_acknowledgement_means() -> None:
    words = struct.pack("=HH", 9, 1) + b"busy\0" + b"\0" * 3
    assert acknowledged(0, genl.NLM_F_ACK_TLVS, words) is None
    for flags, text in ((genl.NLM_F_ACK_TLVS, "busy"), (0, "")):
        found = acknowledged(-errno.EBUSY, flags, words)
        assert found and (found.code, found.text, str(found)) == (errno.EBUSY, text, text or os.strerror(errno.EBUSY))


class Answered(Requests):
    """The other end of a socket pair, which has sent these datagrams, in place of the kernel."""

    def __init__(self, *datagrams: bytes) -> None:
        self._sock, self._other = socket.socketpair(socket.AF_UNIX, socket.SOCK_DGRAM)
        self._sock.setblocking(False)
        self._number = 0
        for one in datagrams:
            self._other.send(one)

    async def dump(self) -> list[bytes]:
        try:
            return [one[16:] for one in await self.request(FAMILY, 2, 1, b"", NLM_F_DUMP)]
        finally:
            self._other.close()
            self.close()


def numbered(kind: int, body: bytes, flags: int = 2, number: int = 1) -> bytes:
    return struct.pack("=IHHII", 16 + len(body), kind, flags, number, 0) + body


def end(code: int = 0, flags: int = 2) -> bytes:
    return numbered(genl.NLMSG_DONE, struct.pack("=i", code), flags)


async def test_the_end_of_a_dump() -> None:
    first, second = numbered(FAMILY, b"one."), numbered(FAMILY, b"two.")
    late = numbered(FAMILY, b"old.", number=0)
    assert await Answered(late + first, second, end()).dump() == [b"one.", b"two."]
    for last, code in ((end(-errno.ENOMEM), errno.ENOMEM), (end(0, 2 | genl.NLM_F_DUMP_INTR), errno.EINTR)):
        with pytest.raises(Failed) as caught:
            await Answered(first, last).dump()
        assert caught.value.code == code
