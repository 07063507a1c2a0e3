# SPDX-License-Identifier: MIT
"""The only module that imports pyroute2: the generic netlink family of cgpu_km/uapi.h.

pyroute2 handles sockets, families, acknowledgements and extended acks; attributes.py the attributes. After a reload of
the module the family has another number: a request that fails with ENOENT is repeated if the number has changed.
"""

from __future__ import annotations

import asyncio
import errno
import os
import struct
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from typing import Any

from pyroute2.netlink import NLM_F_ACK, NLM_F_DUMP, NLM_F_REQUEST, genlmsg
from pyroute2.netlink.exceptions import NetlinkError
from pyroute2.netlink.generic import AsyncGenericNetlinkSocket

from cgpu_common import listener
from cgpu_common.attributes import TEXT, U8, U32, U64, Pairs, Table
from cgpu_common.errors import KernelMissing, KernelRefused
from cgpu_common.kernel_abi import GENL_MCGRP_EVENTS, GENL_NAME, GENL_VERSION, A, Attribute, Cmd, G, S
from cgpu_common.link import Joined
from cgpu_common.model import Container, KernelEvent, KernelGpu, Slot, SlotWant
from cgpu_common.python import timeout

TIMEOUT_S = 30.0
_LENGTH = struct.Struct("=I")  # first field of a netlink header
_BODY = 20  # offset behind the headers of netlink and generic netlink

#: Top-level attributes that only events have.
EVENT_VALUES = tuple(member.name for member in A if member >= A.PID)

_FORMS = {"u8": U8, "u32": U32, "u64": U64, "string": TEXT}


def _table(kind: type[Attribute], **nests: Table) -> Table:
    """Of the attributes of one enum; `nests` are the contents of those that are nests."""
    return Table({one: nests[one.name].nest() if one.type == "nest" else _FORMS[one.type] for one in kind if one.type})


SLOT = _table(S)
GPU = _table(G)
MESSAGE = _table(A, SLOTS=Table({A.SLOT: SLOT.nest()}), SLOT=SLOT, GPU=GPU)


class CgpuMsg(genlmsg):  # type: ignore[misc]
    """genlmsg with `attrs` as pairs of attributes.py."""

    def encode(self) -> None:
        super().encode()
        self.data += MESSAGE.write(self["attrs"])
        self.length = self["header"]["length"] = len(self.data)
        _LENGTH.pack_into(self.data, 0, self.length)

    def decode(self) -> None:
        super().decode()
        self["attrs"] = MESSAGE.read(bytes(self.data[self.offset + _BODY : self.offset + self.length]))


# ---- values <-> messages ----


def slot_attrs(slot: SlotWant) -> Pairs:
    """Weight 0 is left out: the kernel decides on the weight when none is free."""
    given = [(name, value) for name, value in (("WEIGHT", slot.weight), ("CEILING", slot.ceiling)) if value]
    return [("GPU", slot.gpu), ("LIMIT", slot.limit), ("HIGHPRIO", int(slot.highprio)), *given]


def _message(cmd: Cmd, attrs: Pairs) -> CgpuMsg:
    msg = CgpuMsg()
    msg["cmd"] = int(cmd)
    msg["version"] = GENL_VERSION
    msg["attrs"] = attrs
    return msg


def message(cmd: Cmd, container_id: str | None = None, cookie: int = 0, slots: Sequence[SlotWant] = ()) -> CgpuMsg:
    attrs: Pairs = []
    if container_id is not None:
        attrs.append(("ID", container_id))
    if cookie:
        attrs.append(("COOKIE", cookie))
    if slots:
        attrs.append(("SLOTS", [("SLOT", slot_attrs(slot)) for slot in slots]))
    return _message(cmd, attrs)


def set_message(container_id: str, cookie: int, values: Mapping[int, Mapping[S, int]]) -> CgpuMsg:
    slots: Pairs = [
        ("SLOT", [("GPU", gpu), *((attr.name, value) for attr, value in given.items())])
        for gpu, given in values.items()
    ]
    return _message(Cmd.SET, [("ID", container_id), *([("COOKIE", cookie)] if cookie else []), ("SLOTS", slots)])


def gpu_message(index: int, values: Mapping[G, int]) -> CgpuMsg:
    settings = [(attr.name, value) for attr, value in values.items()]
    return _message(Cmd.SET_GPU, [("GPU", [("INDEX", index), *settings])])


#: Numbers of messages that are true or false.
_FLAGS = {"HIGHPRIO", "SLICE_IS_SET"}
_OF_CONTAINER = ("ID", "COOKIE", "DIR", "MAJOR", "CTL_MINOR", "UVM_MINOR")


def _fields(pairs: Pairs) -> dict[str, Any]:
    """By the names of the dataclass's fields. One that a message lacks has the dataclass's default."""
    return {name.lower(): bool(value) if name in _FLAGS else value for name, value in pairs}


def _container(values: Mapping[str, Any]) -> Container:
    plain = _fields([(name, values[name]) for name in _OF_CONTAINER if name in values])
    slots = tuple(Slot(**_fields(pairs)) for _, pairs in values.get("SLOTS", ()))
    return Container(**plain, dying=bool(values.get("STATE", 0)), slots=slots)


def container_of(msg: CgpuMsg) -> Container | None:
    values = dict(msg["attrs"])
    return _container(values) if "ID" in values else None


def gpu_of(msg: CgpuMsg) -> KernelGpu | None:
    values = dict(msg["attrs"])
    return KernelGpu(**_fields(values["GPU"])) if "GPU" in values else None


def event_of(msg: CgpuMsg) -> KernelEvent | None:
    values = dict(msg["attrs"])
    if "EVENT" not in values:
        return None
    return KernelEvent(
        kind=values["EVENT"],
        container=_container(values) if "ID" in values else None,
        gpu=gpu_of(msg),
        values={name.lower(): values[name] for name in EVENT_VALUES if name in values},
    )


def refused(error: NetlinkError) -> KernelRefused:
    """With the text of the extended ack, if there is one."""
    text = str(error.args[1]) if len(error.args) > 1 and error.args[1] else ""
    number = os.strerror(error.code)
    return KernelRefused(error.code, f"cgpu_km: {text}" if text and text != number else f"cgpu_km: {number}")


# ---- the link ----


async def _open() -> Any:
    sock = AsyncGenericNetlinkSocket(ext_ack=True)
    sock.module_err_level = "debug"
    try:
        await sock.bind(GENL_NAME, CgpuMsg)
    except BaseException as error:
        sock.close()
        if not isinstance(error, NetlinkError):
            raise
        if error.code == errno.ENOENT:
            raise KernelMissing from error
        raise refused(error) from error
    return sock


class NetlinkLink:
    """KernelLink over generic netlink.

    One socket for all requests, one after the other: opening one and resolving the family costs more than a request.
    """

    def __init__(self, rcvbuf: int | None = None) -> None:
        self._rcvbuf = rcvbuf  # of events(), bytes; None: the kernel's default
        self._sock: Any = None
        self._loop: asyncio.AbstractEventLoop | None = None  # of the socket
        self._lock = asyncio.Lock()

    async def _request(self, make: Callable[[], CgpuMsg], flags: int) -> list[Any]:
        try:
            async with timeout(TIMEOUT_S), self._lock:
                try:
                    return await self._request_once(make, flags)
                except NetlinkError as error:
                    # No such container, or the module was loaded again and the family has another number.
                    if error.code != errno.ENOENT or not await self._family_changed():
                        raise
                return await self._request_once(make, flags)
        except NetlinkError as error:
            raise refused(error) from error
        except TimeoutError as error:
            raise KernelRefused(errno.ETIMEDOUT, f"cgpu_km did not answer within {TIMEOUT_S:.0f} s") from error

    async def _request_once(self, make: Callable[[], CgpuMsg], flags: int) -> list[Any]:
        if self._sock is None or self._loop is not asyncio.get_running_loop():
            self._sock, self._loop = await _open(), asyncio.get_running_loop()
        try:
            request = await self._sock.nlm_request(make(), msg_type=self._sock.prid, msg_flags=NLM_F_REQUEST | flags)
            return [reply async for reply in request]
        except NetlinkError:
            raise  # the socket stays usable
        except BaseException:
            self.close()  # a late answer must not be taken for that of the next request
            raise

    async def _family_changed(self) -> bool:
        before = self._sock.prid
        self.close()
        self._sock = await _open()
        return bool(self._sock.prid != before)

    def close(self) -> None:
        if self._sock is not None:
            self._sock.close()
            self._sock = None

    async def create(self, container_id: str, cookie: int, slots: Sequence[SlotWant]) -> Container:
        for reply in await self._request(lambda: message(Cmd.CREATE, container_id, cookie, slots), NLM_F_ACK):
            if (container := container_of(reply)) is not None:
                return container
        raise KernelRefused(errno.EPROTO, "cgpu_km created a container and did not return it")

    async def destroy(self, container_id: str, cookie: int) -> bool:
        try:
            await self._request(lambda: message(Cmd.DESTROY, container_id, cookie), NLM_F_ACK)
        except KernelMissing:
            return False
        except KernelRefused as error:
            if error.code == errno.ENOENT:
                return False
            raise
        return True

    async def set(self, container_id: str, cookie: int, values: Mapping[int, Mapping[S, int]]) -> None:
        await self._request(lambda: set_message(container_id, cookie, values), NLM_F_ACK)

    async def set_gpu(self, index: int, values: Mapping[G, int]) -> None:
        await self._request(lambda: gpu_message(index, values), NLM_F_ACK)

    async def list(self) -> tuple[Container, ...]:
        replies = await self._request(lambda: message(Cmd.LIST), NLM_F_DUMP)
        return tuple(found for reply in replies if (found := container_of(reply)) is not None)

    async def gpus(self) -> tuple[KernelGpu, ...]:
        replies = await self._request(lambda: message(Cmd.GPUS), NLM_F_DUMP)
        return tuple(found for reply in replies if (found := gpu_of(reply)) is not None)

    async def arrival(self) -> None:
        with listener.Listener() as events_socket:
            while True:
                try:
                    sock = await _open()
                except KernelMissing:
                    await events_socket.wait()
                else:
                    sock.close()
                    return

    async def events(self, joined: Joined | None = None) -> AsyncIterator[KernelEvent]:
        """Raises KernelMissing when the module is unloaded."""
        with listener.Listener(self._rcvbuf) as events_socket:
            sock = await _open()
            events_socket.join(sock.prid, sock.mcast_groups[GENL_MCGRP_EVENTS])
            sock.close()
            if joined is not None:
                await joined()
            while True:
                for data in await events_socket.messages():
                    msg = CgpuMsg(data)
                    msg.decode()
                    if (event := event_of(msg)) is not None:
                        yield event
