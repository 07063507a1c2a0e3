# SPDX-License-Identifier: MIT
"""Messages of the family, byte for byte. tests/vm covers the family itself."""

from __future__ import annotations

import asyncio
import errno
import struct
from collections.abc import AsyncIterator
from dataclasses import fields

import pytest

pytest.importorskip("pyroute2")

from pyroute2.netlink.exceptions import NetlinkError

from cgpu_common import netlink
from cgpu_common.errors import KernelRefused
from cgpu_common.kernel_abi import A, Cmd, Event, G, S
from cgpu_common.model import Container, KernelEvent, KernelGpu, Slot, SlotWant
from cgpu_common.netlink import CgpuMsg, container_of, event_of, gpu_message, gpu_of, message, refused

NESTED = 0x8000


def attr(number: int, payload: bytes) -> bytes:
    length = 4 + len(payload)
    return struct.pack("=HH", length, number) + payload + b"\0" * (-length % 4)


def u8(value: int) -> bytes:
    return struct.pack("=B", value)


def u32(value: int) -> bytes:
    return struct.pack("=I", value)


def u64(value: int) -> bytes:
    return struct.pack("=Q", value)


def nest(number: int, *attrs: bytes) -> bytes:
    return attr(number | NESTED, b"".join(attrs))


def genl(cmd: int, *attrs: bytes) -> CgpuMsg:
    """A message as the kernel would send it."""
    body = struct.pack("=BBH", cmd, 1, 0) + b"".join(attrs)
    msg = CgpuMsg(struct.pack("=IHHII", 16 + len(body), 30, 0, 1, 0) + body)
    msg.decode()
    return msg


def test_create_as_the_header_has_it() -> None:
    msg = message(
        Cmd.CREATE, "abc", 0xC69D000000000001, [SlotWant(0, 0, 6043 << 20, 2, True), SlotWant(1, 1, 1 << 20, 0)]
    )
    msg.encode()
    assert bytes(msg.data[16:]) == (
        struct.pack("=BBH", 1, 1, 0)
        + attr(A.ID, b"abc\0")
        + attr(A.COOKIE, u64(0xC69D000000000001))
        + nest(
            A.SLOTS,
            nest(
                A.SLOT,
                attr(S.GPU, u32(0)),
                attr(S.LIMIT, u64(6043 << 20)),
                attr(S.HIGHPRIO, u8(1)),
                attr(S.WEIGHT, u32(2)),
            ),
            nest(A.SLOT, attr(S.GPU, u32(1)), attr(S.LIMIT, u64(1 << 20)), attr(S.HIGHPRIO, u8(0))),
        )
    )


def test_destroy_without_a_cookie() -> None:
    msg = message(Cmd.DESTROY, "abc")
    msg.encode()
    assert bytes(msg.data[16:]) == struct.pack("=BBH", 2, 1, 0) + attr(A.ID, b"abc\0")


CONTAINER_ATTRS = (
    attr(A.ID, b"abc\0"),
    attr(A.PAD, b""),
    attr(A.COOKIE, u64(7)),
    attr(A.DIR, b"ab\0"),
    attr(A.MAJOR, u32(509)),
    attr(A.CTL_MINOR, u32(4)),
    attr(A.UVM_MINOR, u32(5)),
    attr(A.STATE, u8(1)),
    nest(
        A.SLOTS,
        nest(
            A.SLOT,
            attr(S.GPU, u32(0)),
            attr(S.MINOR, u32(6)),
            attr(S.NV_MINOR, u32(3)),
            attr(S.PAD, b""),
            attr(S.LIMIT, u64(1 << 40)),
            attr(S.USED, u64(5)),
            attr(S.WEIGHT, u32(2)),
            attr(S.HIGHPRIO, u8(1)),
        ),
        nest(A.SLOT, attr(S.GPU, u32(1)), attr(S.MINOR, u32(7)), attr(S.NV_MINOR, u32(2)), attr(S.LIMIT, u64(9))),
    ),
)
CONTAINER = Container(
    "abc", 7, "ab", 509, 4, 5, True, (Slot(0, 6, 3, 1 << 40, 5, 2, True), Slot(1, 7, 2, 9, 0, 0, False))
)


def test_container() -> None:
    assert container_of(genl(Cmd.LIST, *CONTAINER_ATTRS)) == CONTAINER


def test_event_with_an_attribute_from_the_future() -> None:
    msg = genl(Cmd.EVENT, attr(A.EVENT, u32(Event.GONE)), *CONTAINER_ATTRS, attr(99, u32(1)))
    assert event_of(msg) == KernelEvent(Event.GONE, CONTAINER)


def test_a_gpu_of_a_module_that_is_not_attached() -> None:
    gpu = gpu_of(genl(Cmd.GPUS, nest(A.GPU, attr(G.INDEX, u32(0)), attr(G.BORN, u64(1)))))
    assert gpu.driver_free is None


def test_set_gpu_as_the_header_has_it() -> None:
    msg = gpu_message(3, {G.POLICY: 2, G.DEFAULT_MEMSIZE: 1 << 33, G.SLICE_US: 0})
    msg.encode()
    assert bytes(msg.data[16:]) == struct.pack("=BBH", 7, 1, 0) + nest(
        A.GPU,
        attr(G.INDEX, u32(3)),
        attr(G.POLICY, u32(2)),
        attr(G.DEFAULT_MEMSIZE, u64(1 << 33)),
        attr(G.SLICE_US, u32(0)),
    )


@pytest.mark.parametrize(
    ("error", "text"),
    [
        (NetlinkError(17, "the id is taken"), "cgpu_km: the id is taken"),
        (NetlinkError(17, "File exists"), "cgpu_km: File exists"),
        (NetlinkError(17), "cgpu_km: File exists"),
    ],
)
def test_the_kernels_words(error: NetlinkError, text: str) -> None:
    assert str(refused(error)) == text
    assert refused(error).code == 17


def test_event_about_a_gpu_and_a_container() -> None:
    gpu = nest(
        A.GPU,
        attr(G.INDEX, u32(1)),
        attr(G.UUID, b"GPU-x\0"),
        attr(G.PCI, b"0000:01:00.0\0"),
        attr(G.NV_MINOR, u32(3)),
        attr(G.TOTAL, u64(15109 << 20)),
    )
    names = (attr(A.ID, b"abc\0"), attr(A.COOKIE, u64(7)), attr(A.DIR, b"ab\0"))
    values = (attr(A.PID, u32(42)), attr(A.ASKED, u64(1 << 40)), attr(A.SUPPRESSED, u32(0)), attr(A.LOST, u64(2)))
    event = event_of(genl(Cmd.EVENT, attr(A.EVENT, u32(Event.REFUSED)), *names, gpu, *values))
    assert event.kind == Event.REFUSED
    assert event.container == Container("abc", 7, "ab", 0, 0, 0)
    assert event.gpu is not None
    assert (event.gpu.index, event.gpu.uuid, event.gpu.pci) == (1, "GPU-x", "0000:01:00.0")
    assert (event.gpu.nv_minor, event.gpu.total) == (3, 15109 << 20)
    assert event.values == {"pid": 42, "asked": 1 << 40, "suppressed": 0, "lost": 2}


def test_event_about_a_gpu_alone() -> None:
    event = event_of(genl(Cmd.EVENT, attr(A.EVENT, u32(Event.DETACHED)), nest(A.GPU, attr(G.INDEX, u32(1)))))
    assert event.container is None
    assert event.gpu is not None and event.gpu.index == 1
    assert event.values == {}


def test_event_about_the_core() -> None:
    versions = (attr(A.CORE, b"0.1.0\0"), attr(A.CANDIDATE, b"0.1.1\0"))
    words = (*versions, attr(A.ERRNO, u32(5)), attr(A.WHY, b"it is ill\0"))
    event = event_of(genl(Cmd.EVENT, attr(A.EVENT, u32(Event.CORE)), *words))
    assert (event.container, event.gpu) == (None, None)
    assert event.values == {"core": "0.1.0", "candidate": "0.1.1", "errno": 5, "why": "it is ill"}


CONTENTS = {"u8": u8(1), "u32": u32(77), "u64": u64(77 << 40), "string": b"77\0"}
ONLY_IN_PROC = {
    Slot: {"id", "dir", "pids", "stat", "dying", "name", "at_ns"},
    KernelGpu: {"name", "stat", "control", "control_seen", "slots"},
}


@pytest.mark.parametrize(("kind", "attrs"), [(Slot, S), (KernelGpu, G)])
def test_each_attribute_is_read_into_its_field(kind: type, attrs: type[S] | type[G]) -> None:
    """By its name. A number that has no form in the table would be skipped as one of a later module."""
    known = [one for one in attrs if one.type]
    sent = [attr(one, CONTENTS[one.type]) for one in known]
    if kind is Slot:
        message_ = genl(Cmd.LIST, attr(A.ID, b"x\0"), nest(A.SLOTS, nest(A.SLOT, *sent)))
        (found,) = container_of(message_).slots
    else:
        found = gpu_of(genl(Cmd.GPUS, nest(A.GPU, *sent)))
    values = {"u8": 1, "u32": 77, "u64": 77 << 40, "string": "77"}
    wanted = {one.name: values[one.type] for one in known} | ({"SLICE_IS_SET": True} if kind is KernelGpu else {})
    assert {one.name: getattr(found, one.name.lower()) for one in known} == wanted
    assert {field.name for field in fields(kind)} == {one.name.lower() for one in known} | ONLY_IN_PROC[kind]


class Reloaded:
    """A kernel whose module was loaded again: the family has another number from the second look on."""

    families: tuple[int, ...] = (33, 34)
    code = errno.ENOENT  # of a request to the first one

    def __init__(self) -> None:
        made.append(self)
        self.asked: list[int] = []
        self.prid = self.families[min(len(made), len(self.families)) - 1]

    async def nlm_request(self, _msg: object, msg_type: int, msg_flags: int) -> AsyncIterator[object]:
        self.asked.append(msg_type)
        if msg_type == 33:
            raise NetlinkError(self.code)
        return replies()

    def close(self) -> None:
        pass


async def replies() -> AsyncIterator[object]:
    for none in ():
        yield none


async def reopened() -> Reloaded:
    return Reloaded()


made: list[Reloaded] = []


@pytest.fixture
def reloaded(monkeypatch: pytest.MonkeyPatch) -> list[Reloaded]:
    monkeypatch.setattr(netlink, "_open", reopened)
    made.clear()
    return made


async def test_a_request_is_repeated_where_the_family_has_another_number(reloaded: list[Reloaded]) -> None:
    assert await netlink.NetlinkLink().list() == ()
    assert [one.asked for one in reloaded] == [[33], [34]]


async def test_what_is_not_there_is_refused_once(reloaded: list[Reloaded], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Reloaded, "families", (33, 33))
    with pytest.raises(KernelRefused, match="No such file"):
        await netlink.NetlinkLink().list()
    assert [one.asked for one in reloaded] == [[33], []]


async def test_what_is_not_there_is_destroyed_and_nothing_else(
    reloaded: list[Reloaded], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Reloaded, "families", (33,))
    assert not await netlink.NetlinkLink().destroy("a", 1)
    monkeypatch.setattr(Reloaded, "code", errno.EBUSY)
    with pytest.raises(KernelRefused, match="busy"):
        await netlink.NetlinkLink().destroy("a", 1)


def test_each_loop_has_its_socket(reloaded: list[Reloaded], monkeypatch: pytest.MonkeyPatch) -> None:
    """A socket of a loop that has ended would never answer."""
    monkeypatch.setattr(Reloaded, "families", (34,))
    link = netlink.NetlinkLink()
    for _ in range(2):
        asyncio.run(link.list())
    assert [one.asked for one in reloaded] == [[34], [34]]
