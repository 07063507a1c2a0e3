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
COPY2 = nv.NV2080_ENGINE_TYPE_COPY0 + 2
CHANNEL_CLASS = 0xC46F  #: Turing's, which later chips have too
DECODERS = (0xC4B0, 0xC6B0, 0xC7B0, 0xC9B0, 0xB8B0)  #: of Turing to Hopper; each chip has one of them
COPIES = (0xC5B5, 0xC6B5, 0xC7B5, 0xC8B5)  #: the same of copy engines
SHARE_POLICY = 0xD04  #: of a client, inherited by its objects: 12 bytes
WINDOW, WINDOW_FLAGS = 0x50A0, 1 << 19  #: NV50_MEMORY_VIRTUAL: addresses of an address space
PEERS, P2P_CAPS_V2, OS_EVENT = 0x503B, 0x12B, 0x79
PAGE, PIECE, MEMORY = 4096, 1 << 16, 1 << 20  #: bytes


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
        return walk(NodeClient)


class NodeClient(nv.Client):
    """With the calls of the other driver's client (client.py) that are made otherwise on nodes."""

    def map_memory(self, device: int, memory: int, length: int, card: int | None = None, offset: int = 0):
        node = self.hold(nv.Node("nvidiactl" if card is None else f"nvidia{card}"))
        if card is not None:
            node.register(self.ctl)
        return super().map_memory(node, device, memory, length, offset)[0], node, 0

    def alloc(self, class_id: int, parent: int | None = None, params: Any = None, handle: int = 0) -> tuple[int, int]:
        """As large as the branch has the parameters."""
        like = nv.NV01_MEMORY_LOCAL_USER if class_id == WINDOW else class_id
        if params is not None and nv.varies(like):
            params = bytes(params)[: nv.bytes_of(like, self.branch)]
        return super().alloc(class_id, parent, params, handle)

    def sized(self, handle: int, cmd: int, params: bytes) -> int:
        assert cmd == P2P_CAPS_V2
        return self.control(handle, cmd, params.ljust(nv.bytes_of(cmd, self.branch), b"\0"))[0]


class Walk:
    """The objects of two clients, and the statuses so far."""

    DEVICE, SUBDEVICE, MEMORY, SPACE, GROUP, DECODERS, CHANNEL, USERD, WINDOW, PEERS, EVENT = range(0xA01, 0xA0C)

    def __init__(self, mine: Any, other: Any):
        self.mine, self.other = mine, other
        self.status: dict[str, int] = {}

    def run(self) -> dict[str, int]:
        self.objects()
        self.allocs()
        self.decoder()
        self.channels()
        self.gpu_maps()
        self.processor_maps()
        self.peers()
        self.events()
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
            self.alloc("device", nv.NV01_DEVICE_0, client.handle, nv.DeviceParams(), self.DEVICE, client)
            self.alloc("subdevice", nv.NV20_SUBDEVICE_0, self.DEVICE, nv.SubdeviceParams(0), self.SUBDEVICE, client)
        memory = nv.MemoryParams(owner=self.mine.handle, size=MEMORY, attr=nv.ATTR_NONCONTIG_ALLOWED)
        self.alloc("memory", nv.NV01_MEMORY_LOCAL_USER, self.DEVICE, memory, self.MEMORY)
        self.alloc("address space", nv.FERMI_VASPACE_A, self.DEVICE, nv.VaspaceParams(), self.SPACE)
        group = nv.TsgParams(vaspace=self.SPACE, engine=COPY2)
        self.alloc("channel group", nv.KEPLER_CHANNEL_GROUP_A, self.DEVICE, group, self.GROUP)

    def allocs(self) -> None:
        subdevice = nv.SubdeviceParams(0)
        self.alloc("alloc: a handle that exists", nv.NV20_SUBDEVICE_0, self.DEVICE, subdevice, self.MEMORY)
        self.alloc("alloc: a second subdevice", nv.NV20_SUBDEVICE_0, self.DEVICE, subdevice, 0xB01)
        self.alloc("alloc: a second device of the GPU", nv.NV01_DEVICE_0, self.mine.handle, nv.DeviceParams(), 0xB02)
        self.alloc("alloc: no such GPU", nv.NV01_DEVICE_0, self.mine.handle, nv.DeviceParams(device_id=7), 0xB03)
        self.alloc("alloc: no such class", 0x1234, self.DEVICE, None, 0xB04)
        self.alloc("alloc: no such parent", nv.NV20_SUBDEVICE_0, NOT_THERE, subdevice, 0xB05)
        self.alloc("alloc: a parent of another class", nv.NV20_SUBDEVICE_0, self.mine.handle, subdevice, 0xB06)
        empty = nv.MemoryParams(owner=self.mine.handle, size=0)
        self.alloc("alloc: memory of no size", nv.NV01_MEMORY_LOCAL_USER, self.DEVICE, empty, 0xB07)
        huge = nv.MemoryParams(owner=self.mine.handle, size=1 << 46)
        self.alloc("alloc: more memory than there is", nv.NV01_MEMORY_LOCAL_USER, self.DEVICE, huge, 0xB08)
        group = nv.TsgParams(vaspace=NOT_THERE, engine=COPY2)
        self.alloc("alloc: a group of no address space", nv.KEPLER_CHANNEL_GROUP_A, self.DEVICE, group, 0xB09)

    def decoder(self) -> None:
        """A video engine's group and channel, and objects on channels of its own and of another engine."""
        userd = nv.MemoryParams(owner=self.mine.handle, size=1 << 16, attr=nv.ATTR_NONCONTIG_ALLOWED)
        self.alloc("decoder: memory", nv.NV01_MEMORY_LOCAL_USER, self.DEVICE, userd, self.USERD)
        group = nv.TsgParams(vaspace=self.SPACE, engine=nv.NV2080_ENGINE_TYPE_NVDEC0)
        self.alloc("decoder: its group", nv.KEPLER_CHANNEL_GROUP_A, self.DEVICE, group, self.DECODERS)
        for n, (name, group, engine) in enumerate(
            (("its channel", self.DECODERS, nv.NV2080_ENGINE_TYPE_NVDEC0), ("a copy channel", self.GROUP, COPY2))
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

    def channels(self) -> None:
        """Parameters of a copy engine's channel, each wrong in one place."""
        userd = nv.MemoryParams(owner=self.mine.handle, size=PIECE, attr=nv.ATTR_NONCONTIG_ALLOWED)
        self.alloc("channel: memory", nv.NV01_MEMORY_LOCAL_USER, self.DEVICE, userd, self.USERD)

        def channel(name: str, parent: int = self.GROUP, cls: int = CHANNEL_CLASS, **more: int) -> None:
            userd = more.pop("userd", self.USERD)
            params = nv.ChannelParams(**({"gpfifo_va": 2 << 20, "gpfifo_entries": 64, "engine": COPY2} | more))
            params.userd_memory[0] = userd
            self.alloc(f"channel: {name}", cls, parent, params, self.CHANNEL)
            self.mine.free(self.CHANNEL, parent)

        channel("as it should be")
        channel("of no such USERD", userd=NOT_THERE)
        channel("of no USERD", userd=0)
        channel("without entries", gpfifo_entries=0)
        channel("with the address space of its group", vaspace=self.SPACE)
        channel("below the device", parent=self.DEVICE, vaspace=self.SPACE)
        channel("below the device, without an address space", parent=self.DEVICE)
        channel("below a subdevice", parent=self.SUBDEVICE)
        channel("below the client", parent=self.mine.handle)
        channel("of no such parent", parent=NOT_THERE)
        channel("of no such class", cls=0xC45F)
        self.mine.free(self.USERD, self.DEVICE)

    def gpu_maps(self) -> None:
        """RM_MAP_MEMORY_DMA and its end."""
        params = nv.MemoryParams(owner=self.mine.handle, size=MEMORY, flags=WINDOW_FLAGS, vaspace=self.SPACE)
        self.alloc("map: addresses", WINDOW, self.DEVICE, params, self.WINDOW)

        def mapped(name: str, length: int = PIECE, offset: int = 0, **other: int) -> int:
            what = {"device": self.DEVICE, "dma": self.WINDOW, "memory": self.MEMORY} | other
            self.status[f"map: {name}"], at = self.mine.map_dma(*what.values(), length, offset=offset)
            return at

        def unmapped(name: str, at: int, dma: int = 0) -> None:
            """By 535 the memory must be right too, 550 does not look at it."""
            self.status[f"unmap: {name}"] = self.mine.unmap_dma(self.DEVICE, dma or self.WINDOW, self.MEMORY, at)

        at = mapped("memory")
        unmapped("at another address", at + MEMORY)
        unmapped("from no such addresses", at, dma=NOT_THERE)
        unmapped("memory", at)
        unmapped("the same again", at)
        mapped("no such memory", memory=NOT_THERE)
        mapped("no such addresses", dma=NOT_THERE)
        mapped("no such device", device=NOT_THERE)
        mapped("of a subdevice", device=self.SUBDEVICE)
        mapped("a device as memory", memory=self.DEVICE)
        mapped("a device as addresses", dma=self.DEVICE)
        mapped("an address space as addresses", dma=self.SPACE)
        mapped("no bytes", length=0)
        mapped("more than there is", length=2 * MEMORY)
        mapped("from its end on", offset=MEMORY)
        mapped("over its end", offset=MEMORY - PAGE)
        self.status["map: its addresses freed"] = self.mine.free(self.WINDOW, self.DEVICE)

    def processor_maps(self) -> None:
        """RM_MAP_MEMORY, each on a fresh file."""

        def mapped(name: str, length: int = PAGE, card: int | None = 0, offset: int = 0, **other: int) -> None:
            what = {"device": self.DEVICE, "memory": self.MEMORY} | other
            self.status[f"processor: {name}"] = self.mine.map_memory(*what.values(), length, card, offset)[0]

        mapped("memory")
        mapped("no such memory", memory=NOT_THERE)
        mapped("no such device", device=NOT_THERE)
        mapped("a device", memory=self.DEVICE)
        mapped("an address space", memory=self.SPACE)
        mapped("no bytes", length=0)
        mapped("more than there is", length=2 * MEMORY)
        mapped("from its end on", offset=MEMORY)
        mapped("video memory on the control file", card=None)
        self.status["processor: no such memory unmapped"] = self.mine.unmap_memory(self.DEVICE, NOT_THERE, 0)
        self.status["processor: what is not mapped"] = self.mine.unmap_memory(self.DEVICE, self.MEMORY, 0x12345000)

    def peers(self) -> None:
        """Of one GPU: pairs are in tests/rm/test_peers.py and tests/vm/guest/memory/test_peers.py."""

        def pair(name: str, one: int, other: int, parent: int = 0) -> None:
            parent = parent or self.mine.handle
            self.alloc(f"peers: {name}", PEERS, parent, struct.pack("<2I", one, other).ljust(72, b"\0"), self.PEERS)
            self.mine.free(self.PEERS, parent)

        pair("a GPU with itself", self.SUBDEVICE, self.SUBDEVICE)
        pair("no such subdevice", self.SUBDEVICE, NOT_THERE)
        pair("a device", self.SUBDEVICE, self.DEVICE)
        pair("below a device", self.SUBDEVICE, self.SUBDEVICE, self.DEVICE)
        for name, ids, count in (("no GPU", (), 0), ("no such GPU", (0x7777,), 1), ("more than the list has", (), 33)):
            params = struct.pack(f"<{len(ids)}I", *ids).ljust(128, b"\0") + struct.pack("<I", count)
            self.status[f"peers: of {name}"] = self.mine.sized(self.mine.handle, P2P_CAPS_V2, params)

    def events(self) -> None:
        """Of the operating system, none of which is registered."""
        for name, parent, source in (
            ("of a subdevice", self.SUBDEVICE, self.SUBDEVICE),
            ("of no such parent", NOT_THERE, self.SUBDEVICE),
            ("of memory", self.MEMORY, self.MEMORY),
            ("of a device", self.DEVICE, self.DEVICE),
            ("of the client", self.mine.handle, self.mine.handle),
        ):
            params = struct.pack("<4IQ", self.mine.handle, source, OS_EVENT, 12, 0)
            self.alloc(f"event: {name}", OS_EVENT, parent, params, self.EVENT)
            self.mine.free(self.EVENT, parent)

    def controls(self) -> None:
        def control(name: str, handle: int, cmd: int, size: int) -> None:
            self.status[name] = self.mine.control(handle, cmd, bytes(size))[0]

        control("control: no such object", NOT_THERE, nv.NV2080_CTRL_CMD_GPU_GET_GID_INFO, 268)
        control("control: parameters too short", self.SUBDEVICE, nv.NV2080_CTRL_CMD_GPU_GET_GID_INFO, 4)
        control("control: parameters too long", self.SUBDEVICE, nv.NV2080_CTRL_CMD_GPU_GET_GID_INFO, 272)
        control("control: a client's parameters too short", self.mine.handle, nv.NV0000_CTRL_CMD_GPU_GET_ID_INFO_V2, 4)
        control("control: a client's share policy too long", self.mine.handle, SHARE_POLICY, 16)
        control("control: on an object of another class", self.DEVICE, nv.NV2080_CTRL_CMD_GPU_GET_GID_INFO, 268)
        control("control: a group without channels is preempted", self.GROUP, nv.NVA06C_CTRL_CMD_PREEMPT, 8)

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
