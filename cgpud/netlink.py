# SPDX-License-Identifier: MIT
"""The only module that imports pyroute2: the generic netlink family of cgpu_km/uapi.h.

Every command opens its own socket and resolves the family again. That costs a millisecond and makes a reloaded module,
whose family has another number, a non-event.
"""

from __future__ import annotations

import asyncio
import errno
import os
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import Any

from pyroute2.netlink import NLM_F_ACK, NLM_F_DUMP, NLM_F_REQUEST, genlmsg, nla
from pyroute2.netlink.exceptions import NetlinkError
from pyroute2.netlink.generic import AsyncGenericNetlinkSocket

from cgpud.errors import KernelMissing, KernelRefused, Resync
from cgpud.kernel_abi import GENL_MCGRP_EVENTS, GENL_NAME, GENL_VERSION, A, Cmd, G, S
from cgpud.model import Container, KernelEvent, KernelGpu, Slot, SlotWant

TIMEOUT_S = 30.0


class SlotNla(nla):  # type: ignore[misc]
    nla_map = (
        (int(S.PAD), "PAD", "hex", 0),
        (int(S.GPU), "GPU", "uint32", 0),
        (int(S.MINOR), "MINOR", "uint32", 0),
        (int(S.NV_MINOR), "NV_MINOR", "uint32", 0),
        (int(S.LIMIT), "LIMIT", "uint64", 0),
        (int(S.USED), "USED", "uint64", 0),
        (int(S.WEIGHT), "WEIGHT", "uint32", 0),
        (int(S.HIGHPRIO), "HIGHPRIO", "uint8", 0),
    )


class SlotsNla(nla):  # type: ignore[misc]
    nla_map = ((int(A.SLOT), "SLOT", "slot|nested", 0),)
    slot = SlotNla


class GpuNla(nla):  # type: ignore[misc]
    nla_map = (
        (int(G.PAD), "PAD", "hex", 0),
        (int(G.INDEX), "INDEX", "uint32", 0),
        (int(G.UUID), "UUID", "asciiz", 0),
        (int(G.PCI), "PCI", "asciiz", 0),
        (int(G.NV_MINOR), "NV_MINOR", "uint32", 0),
        (int(G.TOTAL), "TOTAL", "uint64", 0),
        (int(G.POLICY), "POLICY", "uint32", 0),
        (int(G.MAX_INST), "MAX_INST", "uint32", 0),
        (int(G.FREE_WEIGHT), "FREE_WEIGHT", "uint32", 0),
        (int(G.PRIO_RATIO), "PRIO_RATIO", "uint32", 0),
        (int(G.SLICE_US), "SLICE_US", "uint32", 0),
        (int(G.INSTANCES), "INSTANCES", "uint32", 0),
    )


class CgpuMsg(genlmsg):  # type: ignore[misc]
    nla_map = (
        (int(A.PAD), "PAD", "hex", 0),
        (int(A.ID), "ID", "asciiz", 0),
        (int(A.COOKIE), "COOKIE", "uint64", 0),
        (int(A.DIR), "DIR", "asciiz", 0),
        (int(A.MAJOR), "MAJOR", "uint32", 0),
        (int(A.CTL_MINOR), "CTL_MINOR", "uint32", 0),
        (int(A.UVM_MINOR), "UVM_MINOR", "uint32", 0),
        (int(A.STATE), "STATE", "uint8", 0),
        (int(A.SLOTS), "SLOTS", "slots|nested", 0),
        (int(A.EVENT), "EVENT", "uint32", 0),
        (int(A.GPU), "GPU", "gpu|nested", 0),
    )
    slots = SlotsNla
    gpu = GpuNla


# ---- values <-> messages ----


def slot_attrs(slot: SlotWant) -> dict[str, Any]:
    """Weight 0 is not asked for but left out: what the kernel grants when nothing is free is its own decision."""
    attrs: list[list[Any]] = [["GPU", slot.gpu], ["LIMIT", slot.limit], ["HIGHPRIO", int(slot.highprio)]]
    if slot.weight:
        attrs.append(["WEIGHT", slot.weight])
    return {"attrs": attrs}


def message(cmd: Cmd, container_id: str | None = None, cookie: int = 0, slots: Sequence[SlotWant] = ()) -> CgpuMsg:
    msg = CgpuMsg()
    msg["cmd"] = int(cmd)
    msg["version"] = GENL_VERSION
    if container_id is not None:
        msg["attrs"].append(["ID", container_id])
    if cookie:
        msg["attrs"].append(["COOKIE", cookie])
    if slots:
        msg["attrs"].append(["SLOTS", {"attrs": [["SLOT", slot_attrs(slot)] for slot in slots]}])
    return msg


def _slot(attrs: Any) -> Slot:
    return Slot(
        gpu=attrs.get_attr("GPU"),
        minor=attrs.get_attr("MINOR", 0),
        nv_minor=attrs.get_attr("NV_MINOR", 0),
        limit=attrs.get_attr("LIMIT", 0),
        used=attrs.get_attr("USED", 0),
        weight=attrs.get_attr("WEIGHT", 0),
        highprio=bool(attrs.get_attr("HIGHPRIO", 0)),
    )


def container_of(msg: Any) -> Container:
    slots = msg.get_attr("SLOTS")
    return Container(
        id=msg.get_attr("ID"),
        cookie=msg.get_attr("COOKIE", 0),
        dir=msg.get_attr("DIR", ""),
        major=msg.get_attr("MAJOR", 0),
        ctl_minor=msg.get_attr("CTL_MINOR", 0),
        uvm_minor=msg.get_attr("UVM_MINOR", 0),
        dying=bool(msg.get_attr("STATE", 0)),
        slots=tuple(_slot(slot) for slot in slots.get_attrs("SLOT")) if slots else (),
    )


def gpu_of(msg: Any) -> KernelGpu:
    nest = msg.get_attr("GPU")
    return KernelGpu(
        index=nest.get_attr("INDEX"),
        uuid=nest.get_attr("UUID", "") or "",
        pci=nest.get_attr("PCI", "") or "",
        nv_minor=nest.get_attr("NV_MINOR", 0),
        total=nest.get_attr("TOTAL", 0),
        policy=nest.get_attr("POLICY", 5),
        max_inst=nest.get_attr("MAX_INST", 20),
        free_weight=nest.get_attr("FREE_WEIGHT", 0),
        prio_ratio=nest.get_attr("PRIO_RATIO", 80),
        slice_us=nest.get_attr("SLICE_US", 0),
        instances=nest.get_attr("INSTANCES", 0),
    )


def event_of(msg: Any) -> KernelEvent:
    return KernelEvent(msg.get_attr("EVENT", 0), container_of(msg))


def refused(error: NetlinkError) -> KernelRefused:
    """The kernel's own words (extended ack) where it gave some."""
    text = str(error.args[1]) if len(error.args) > 1 and error.args[1] else ""
    number = os.strerror(error.code)
    return KernelRefused(error.code, f"cgpu_km: {text}" if text and text != number else f"cgpu_km: {number}")


# ---- the link ----


@asynccontextmanager
async def _socket() -> AsyncIterator[Any]:
    sock = AsyncGenericNetlinkSocket(ext_ack=True)
    sock.module_err_level = "debug"
    try:
        try:
            await sock.bind(GENL_NAME, CgpuMsg)
        except NetlinkError as error:
            if error.code == errno.ENOENT:
                raise KernelMissing from error
            raise refused(error) from error
        yield sock
    finally:
        sock.close()


class NetlinkLink:
    """KernelLink over generic netlink."""

    async def _ask(self, msg: CgpuMsg, flags: int) -> list[Any]:
        try:
            async with asyncio.timeout(TIMEOUT_S), _socket() as sock:
                request = await sock.nlm_request(msg, msg_type=sock.prid, msg_flags=NLM_F_REQUEST | flags)
                return [reply async for reply in request]
        except NetlinkError as error:
            raise refused(error) from error
        except TimeoutError as error:
            raise KernelRefused(errno.ETIMEDOUT, f"cgpu_km did not answer within {TIMEOUT_S:.0f} s") from error

    async def create(self, container_id: str, cookie: int, slots: Sequence[SlotWant]) -> Container:
        for reply in await self._ask(message(Cmd.CREATE, container_id, cookie, slots), NLM_F_ACK):
            if reply.get_attr("ID") is not None:
                return container_of(reply)
        raise KernelRefused(errno.EPROTO, "cgpu_km created a container and did not say which")

    async def destroy(self, container_id: str, cookie: int) -> bool:
        try:
            await self._ask(message(Cmd.DESTROY, container_id, cookie), NLM_F_ACK)
        except KernelMissing:
            return False
        except KernelRefused as error:
            if error.code == errno.ENOENT:
                return False
            raise
        return True

    async def set(self, container_id: str, cookie: int, slots: Sequence[SlotWant]) -> None:
        await self._ask(message(Cmd.SET, container_id, cookie, slots), NLM_F_ACK)

    async def list(self) -> tuple[Container, ...]:
        replies = await self._ask(message(Cmd.LIST), NLM_F_DUMP)
        return tuple(container_of(reply) for reply in replies if reply.get_attr("ID") is not None)

    async def gpus(self) -> tuple[KernelGpu, ...]:
        replies = await self._ask(message(Cmd.GPUS), NLM_F_DUMP)
        return tuple(gpu_of(reply) for reply in replies if reply.get_attr("GPU") is not None)

    async def events(self) -> AsyncIterator[KernelEvent]:
        async with _socket() as sock:
            sock.add_membership(GENL_MCGRP_EVENTS)
            while True:
                try:
                    async for msg in sock.get():
                        if msg.get_attr("EVENT") is not None:
                            yield event_of(msg)
                except OSError as error:
                    if error.errno == errno.ENOBUFS:
                        raise Resync("events were lost") from error
                    raise
