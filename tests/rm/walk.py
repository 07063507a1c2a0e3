# SPDX-License-Identifier: MIT
"""One set of calls for NVIDIA's resource manager and for nvsim: mostly wrong ones, each with the status it gets.

`python tests/rm/walk.py` prints the statuses of the driver of this machine. Neither the order of calls nor a handle
differs between the two; a client is anything with the calls of nvclient.Client.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import nvclient as nv

NOT_THERE = 0x4711
COPY2 = nv.ENGINE_COPY0 + 2
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

    DEVICE, SUBDEVICE, MEMORY, SPACE, GROUP = range(0xA01, 0xA06)

    def __init__(self, mine: Any, other: Any):
        self.mine, self.other = mine, other
        self.status: dict[str, int] = {}

    def run(self) -> dict[str, int]:
        self.objects()
        self.allocs()
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
