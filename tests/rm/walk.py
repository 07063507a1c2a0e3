# SPDX-License-Identifier: MIT
"""One set of calls for NVIDIA's resource manager and for nvsim: mostly wrong ones, each with the status it gets.

`python tests/rm/walk.py` prints the statuses of the driver of this machine. Neither the order of calls nor a handle
differs between the two; a client is anything with the calls of nvclient.Client.
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from typing import Any

import nvclient as nv

NOT_THERE = 0x4711
COPY2 = nv.ENGINE_COPY0 + 2
CHANNEL_CLASS = 0xC46F  #: Turing's, which later chips have too
DECODERS = (0xC4B0, 0xC6B0, 0xC7B0, 0xC9B0, 0xB8B0)  #: of Turing to Hopper; each chip has one of them
COPIES = (0xC5B5, 0xC6B5, 0xC7B5, 0xC8B5)  #: the same of copy engines
SHARE_POLICY = 0xD04  #: of a client, inherited by its objects: 12 bytes


def walk(new_client: Callable[[], Any]) -> dict[str, int]:
    """Statuses by name. Every client is used as one process uses it, and closed."""
    mine, other = new_client(), new_client()
    try:
        return Walk(mine, other).run()
    finally:
        other.close()
        mine.close()


def walk_nodes() -> dict[str, int]:
    """Of the driver behind this machine's nodes. It gives a device only to a process that has the GPU's node open."""
    with nv.Node("nvidia0"):
        return walk(nv.Client)


class Walk:
    """The objects of two clients, and the statuses so far."""

    DEVICE, SUBDEVICE, MEMORY, SPACE, GROUP, DECODERS, CHANNEL, USERD = range(0xA01, 0xA09)

    def __init__(self, mine: Any, other: Any):
        self.mine, self.other = mine, other
        self.status: dict[str, int] = {}

    def run(self) -> dict[str, int]:
        self.objects()
        self.allocs()
        self.decoder()
        self.controls()
        self.dups()
        self.frees()
        return self.status

    def alloc(self, name: str, cls: int, parent: int, params: Any = None, handle: int = 0, client: Any = None) -> None:
        self.status[name] = (client or self.mine).alloc(cls, parent, params, handle)[0]

    def dup(self, name: str, source: int, parent: int | None = None, handle: int = 0, client: int = 0) -> None:
        parent = self.DEVICE if parent is None else parent
        status, new = self.other.dup(parent, client or self.mine.handle, source, handle or 0xD00 + len(self.status))
        self.status[name] = status
        if not status:
            self.other.free(new, parent)

    def objects(self) -> None:
        """Which must succeed for the rest to mean something."""
        for client in (self.other, self.mine):
            self.alloc("device", nv.CLASS_DEVICE, client.handle, nv.DeviceParams(), self.DEVICE, client)
            self.alloc("subdevice", nv.CLASS_SUBDEVICE, self.DEVICE, nv.SubdeviceParams(0), self.SUBDEVICE, client)
        memory = nv.MemoryParams(owner=self.mine.handle, size=1 << 20, attr=nv.ATTR_NONCONTIG_ALLOWED)
        self.alloc("memory", nv.CLASS_VIDMEM, self.DEVICE, memory, self.MEMORY)
        self.alloc("address space", nv.CLASS_VASPACE, self.DEVICE, nv.VaspaceParams(), self.SPACE)
        group = nv.TsgParams(vaspace=self.SPACE, engine=COPY2)
        self.alloc("channel group", nv.CLASS_TSG, self.DEVICE, group, self.GROUP)

    def allocs(self) -> None:
        subdevice = nv.SubdeviceParams(0)
        self.alloc("alloc: a handle that exists", nv.CLASS_SUBDEVICE, self.DEVICE, subdevice, self.MEMORY)
        self.alloc("alloc: a second subdevice", nv.CLASS_SUBDEVICE, self.DEVICE, subdevice, 0xB01)
        self.alloc("alloc: a second device of the GPU", nv.CLASS_DEVICE, self.mine.handle, nv.DeviceParams(), 0xB02)
        self.alloc("alloc: no such GPU", nv.CLASS_DEVICE, self.mine.handle, nv.DeviceParams(device_id=7), 0xB03)
        self.alloc("alloc: no such class", 0x1234, self.DEVICE, None, 0xB04)
        self.alloc("alloc: no such parent", nv.CLASS_SUBDEVICE, NOT_THERE, subdevice, 0xB05)
        self.alloc("alloc: a parent of another class", nv.CLASS_SUBDEVICE, self.mine.handle, subdevice, 0xB06)
        empty = nv.MemoryParams(owner=self.mine.handle, size=0)
        self.alloc("alloc: memory of no size", nv.CLASS_VIDMEM, self.DEVICE, empty, 0xB07)
        huge = nv.MemoryParams(owner=self.mine.handle, size=1 << 46)
        self.alloc("alloc: more memory than there is", nv.CLASS_VIDMEM, self.DEVICE, huge, 0xB08)
        group = nv.TsgParams(vaspace=NOT_THERE, engine=COPY2)
        self.alloc("alloc: a group of no address space", nv.CLASS_TSG, self.DEVICE, group, 0xB09)

    def decoder(self) -> None:
        """A video engine's group and channel, and objects on channels of its own and of another engine."""
        userd = nv.MemoryParams(owner=self.mine.handle, size=1 << 16, attr=nv.ATTR_NONCONTIG_ALLOWED)
        self.alloc("decoder: memory", nv.CLASS_VIDMEM, self.DEVICE, userd, self.USERD)
        group = nv.TsgParams(vaspace=self.SPACE, engine=nv.ENGINE_NVDEC0)
        self.alloc("decoder: its group", nv.CLASS_TSG, self.DEVICE, group, self.DECODERS)
        for n, (name, group, engine) in enumerate(
            (("its channel", self.DECODERS, nv.ENGINE_NVDEC0), ("a copy channel", self.GROUP, COPY2))
        ):
            params = nv.ChannelParams(gpfifo_va=2 << 20, gpfifo_entries=64, engine=engine)
            params.userd_memory[0], params.userd_offset[0] = self.USERD, 512 * n
            self.alloc(f"decoder: {name}", CHANNEL_CLASS, group, params, self.CHANNEL + 0x10 * n)
        cls = next(cls for cls in DECODERS if self.mine.alloc(cls, self.CHANNEL, None, 0xB20)[0] == nv.NV_OK)
        self.mine.free(0xB20, self.CHANNEL)
        # RM takes a channel's engine from its first object; nvsim from its group.
        copies = (self.mine.alloc(one, self.CHANNEL + 0x10, nv.CopyParams(1, COPY2), 0xB21)[0] for one in COPIES)
        self.status["decoder: a copy object"] = min(copies)

        def session(name: str, parent: int, *params: int) -> None:
            self.alloc(f"decoder: {name}", cls, parent, struct.pack("<3I", *params) if params else None, 0xB20)
            self.mine.free(0xB20, parent)

        session("a session", self.CHANNEL, 12, 0, 0)
        session("without parameters", self.CHANNEL)
        session("of a second engine", self.CHANNEL, 12, 0, 1)
        session("with another size of parameters", self.CHANNEL, 8, 0, 0)
        session("on a copy engine's channel", self.CHANNEL + 0x10, 12, 0, 0)
        session("below a device", self.DEVICE, 12, 0, 0)
        for handle, parent in (
            (self.CHANNEL + 0x10, self.GROUP),
            (self.DECODERS, self.DEVICE),
            (self.USERD, self.DEVICE),
        ):
            self.mine.free(handle, parent)

    def controls(self) -> None:
        def control(name: str, handle: int, cmd: int, size: int) -> None:
            self.status[name] = self.mine.control(handle, cmd, bytes(size))[0]

        control("control: no such object", NOT_THERE, nv.CTRL_GET_GID_INFO, 268)
        control("control: parameters too short", self.SUBDEVICE, nv.CTRL_GET_GID_INFO, 4)
        control("control: parameters too long", self.SUBDEVICE, nv.CTRL_GET_GID_INFO, 272)
        control("control: a client's parameters too short", self.mine.handle, nv.CTRL_GET_ID_INFO_V2, 4)
        control("control: a client's share policy too long", self.mine.handle, SHARE_POLICY, 16)
        control("control: on an object of another class", self.DEVICE, nv.CTRL_GET_GID_INFO, 268)
        control("control: a group without channels is preempted", self.GROUP, nv.CTRL_TSG_PREEMPT, 8)

    def dups(self) -> None:
        self.dup("dup: memory", self.MEMORY)
        self.dup("dup: address space", self.SPACE)
        self.dup("dup: channel group", self.GROUP)
        self.dup("dup: subdevice", self.SUBDEVICE)
        self.dup("dup: device", self.DEVICE, self.other.handle)
        self.dup("dup: no such object", NOT_THERE)
        self.dup("dup: of no such client", self.MEMORY, client=0xC1DFFFFF)
        self.dup("dup: no such parent", self.MEMORY, parent=NOT_THERE)
        self.dup("dup: onto a handle that exists", self.MEMORY, handle=self.SUBDEVICE)

    def frees(self) -> None:
        self.status["free: memory"] = self.mine.free(self.MEMORY, self.DEVICE)
        self.status["free: the same again"] = self.mine.free(self.MEMORY, self.DEVICE)
        self.status["free: no such object"] = self.mine.free(NOT_THERE, self.DEVICE)
        self.status["free: no such parent"] = self.mine.free(self.SPACE, NOT_THERE)


def main() -> None:
    """Of the nodes of this machine."""
    import json

    print(json.dumps(walk_nodes(), indent=1))


if __name__ == "__main__":
    main()
