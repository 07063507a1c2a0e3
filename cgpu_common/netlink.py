# SPDX-License-Identifier: MIT
"""The generic netlink family of cgpu_km/uapi.h: its messages, and KernelLink over it.

genl.py has the sockets, attributes.py the encoding. After a reload of the module the family has another number: a
request that fails with ENOENT is repeated if the number has changed.
"""

from __future__ import annotations

import asyncio
import errno
from collections.abc import AsyncIterator, Mapping, Sequence
from typing import Any

from cgpu_common.attributes import TEXT, U8, U32, U64, Pairs, Table
from cgpu_common.errors import KernelMissing, KernelRefused
from cgpu_common.genl import BODY, NLM_F_ACK, NLM_F_DUMP, Failed, Listener, Requests, family_of
from cgpu_common.kernel_abi import GENL_NAME, GENL_VERSION, A, Attribute, Cmd, G, S
from cgpu_common.link import Joined
from cgpu_common.model import Container, KernelEvent, KernelGpu, Slot, SlotWant
from cgpu_common.python import timeout

TIMEOUT_S = 30.0

#: Top-level attributes that only events have.
EVENT_VALUES = tuple(member.name for member in A if member >= A.PID)

_FORMS = {"u8": U8, "u32": U32, "u64": U64, "string": TEXT}


def _table(kind: type[Attribute], **nests: Table) -> Table:
    """Of the attributes of one enum; `nests` are the contents of those that are nests."""
    return Table({one: nests[one.name].nest() if one.type == "nest" else _FORMS[one.type] for one in kind if one.type})


SLOT = _table(S)
GPU = _table(G)
MESSAGE = _table(A, SLOTS=Table({A.SLOT: SLOT.nest()}), SLOT=SLOT, GPU=GPU)


Values = dict[str, Any]  #: of a message's attributes, by name


def values_of(message: bytes) -> Values:
    return dict(MESSAGE.read(message[BODY:]))


# ---- values <-> messages ----


def slot_attrs(slot: SlotWant) -> Pairs:
    """Weight 0 is left out: the kernel decides on the weight when none is free."""
    given = [(name, value) for name, value in (("WEIGHT", slot.weight), ("CEILING", slot.ceiling)) if value]
    return [("GPU", slot.gpu), ("LIMIT", slot.limit), ("HIGHPRIO", int(slot.highprio)), *given]


def attributes(container_id: str | None = None, cookie: int = 0, slots: Sequence[SlotWant] = ()) -> bytes:
    attrs: Pairs = []
    if container_id is not None:
        attrs.append(("ID", container_id))
    if cookie:
        attrs.append(("COOKIE", cookie))
    if slots:
        attrs.append(("SLOTS", [("SLOT", slot_attrs(slot)) for slot in slots]))
    return MESSAGE.write(attrs)


def set_attributes(container_id: str, cookie: int, values: Mapping[int, Mapping[S, int]]) -> bytes:
    slots: Pairs = [
        ("SLOT", [("GPU", gpu), *((attr.name, value) for attr, value in given.items())])
        for gpu, given in values.items()
    ]
    return MESSAGE.write([("ID", container_id), *([("COOKIE", cookie)] if cookie else []), ("SLOTS", slots)])


def gpu_attributes(index: int, values: Mapping[G, int]) -> bytes:
    settings = [(attr.name, value) for attr, value in values.items()]
    return MESSAGE.write([("GPU", [("INDEX", index), *settings])])


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


def container_of(values: Values) -> Container | None:
    return _container(values) if "ID" in values else None


def gpu_of(values: Values) -> KernelGpu | None:
    return KernelGpu(**_fields(values["GPU"])) if "GPU" in values else None


def event_of(values: Values) -> KernelEvent | None:
    if "EVENT" not in values:
        return None
    return KernelEvent(
        kind=values["EVENT"],
        container=_container(values) if "ID" in values else None,
        gpu=gpu_of(values),
        values={name.lower(): values[name] for name in EVENT_VALUES if name in values},
    )


def refused(error: Failed) -> KernelRefused:
    """With the text of the extended ack, if there is one."""
    return KernelRefused(error.code, f"cgpu_km: {error}")


# ---- the link ----


class NetlinkLink:
    """KernelLink over generic netlink.

    One socket for all requests, one after the other: opening one and resolving the family costs more than a request.
    """

    def __init__(self, rcvbuf: int | None = None) -> None:
        self._rcvbuf = rcvbuf  # of events(), bytes; None: the kernel's default
        self._sock: Requests | None = None
        self._family = 0
        self._loop: asyncio.AbstractEventLoop | None = None  # of the socket
        self._lock = asyncio.Lock()

    async def _request(self, cmd: Cmd, attrs: bytes, flags: int = NLM_F_ACK) -> list[Values]:
        try:
            async with timeout(TIMEOUT_S), self._lock:
                try:
                    return await self._request_once(cmd, attrs, flags)
                except Failed as error:
                    # No such container, or the module was loaded again and the family has another number.
                    if error.code != errno.ENOENT or not await self._family_changed():
                        raise
                return await self._request_once(cmd, attrs, flags)
        except Failed as error:
            raise refused(error) from error
        except TimeoutError as error:
            raise KernelRefused(errno.ETIMEDOUT, f"cgpu_km did not answer within {TIMEOUT_S:.0f} s") from error

    async def _request_once(self, cmd: Cmd, attrs: bytes, flags: int) -> list[Values]:
        if self._sock is None or self._loop is not asyncio.get_running_loop():
            await self._open()
        assert self._sock is not None
        try:
            found = await self._sock.request(self._family, cmd, GENL_VERSION, attrs, flags)
        except Failed:
            raise  # the socket stays usable
        except BaseException:
            self.close()  # a late answer must not be taken for that of the next request
            raise
        return [values_of(one) for one in found]

    async def _open(self) -> None:
        self.close()
        self._sock, self._loop = Requests(), asyncio.get_running_loop()
        try:
            self._family, _ = await self._sock.family(GENL_NAME)
        except BaseException:
            self.close()
            raise

    async def _family_changed(self) -> bool:
        before = self._family
        await self._open()
        return self._family != before

    def close(self) -> None:
        if self._sock is not None:
            self._sock.close()
            self._sock = None

    async def create(self, container_id: str, cookie: int, slots: Sequence[SlotWant]) -> Container:
        for reply in await self._request(Cmd.CREATE, attributes(container_id, cookie, slots)):
            if (container := container_of(reply)) is not None:
                return container
        raise KernelRefused(errno.EPROTO, "cgpu_km created a container and did not return it")

    async def destroy(self, container_id: str, cookie: int) -> bool:
        try:
            await self._request(Cmd.DESTROY, attributes(container_id, cookie))
        except KernelMissing:
            return False
        except KernelRefused as error:
            if error.code == errno.ENOENT:
                return False
            raise
        return True

    async def set(self, container_id: str, cookie: int, values: Mapping[int, Mapping[S, int]]) -> None:
        await self._request(Cmd.SET, set_attributes(container_id, cookie, values))

    async def set_gpu(self, index: int, values: Mapping[G, int]) -> None:
        await self._request(Cmd.SET_GPU, gpu_attributes(index, values))

    async def list(self) -> tuple[Container, ...]:
        replies = await self._request(Cmd.LIST, b"", NLM_F_DUMP)
        return tuple(found for reply in replies if (found := container_of(reply)) is not None)

    async def gpus(self) -> tuple[KernelGpu, ...]:
        replies = await self._request(Cmd.GPUS, b"", NLM_F_DUMP)
        return tuple(found for reply in replies if (found := gpu_of(reply)) is not None)

    async def arrival(self) -> None:
        with Listener() as events_socket:
            while True:
                try:
                    await family_of(GENL_NAME)
                except KernelMissing:
                    await events_socket.wait()
                else:
                    return

    async def events(self, joined: Joined | None = None) -> AsyncIterator[KernelEvent]:
        """Raises KernelMissing when the module is unloaded."""
        with Listener(self._rcvbuf) as events_socket:
            events_socket.join(*await family_of(GENL_NAME))
            if joined is not None:
                await joined()
            while True:
                for data in await events_socket.messages():
                    if (event := event_of(values_of(data))) is not None:
                        yield event
