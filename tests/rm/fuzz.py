# SPDX-License-Identifier: MIT
"""Random sequences of calls that the module passes, made to NVIDIA's resource manager and to the module's ledger; after
each call, and at the end, what RM counts must be what the ledger has.

    python tests/rm/fuzz.py --seconds 600 --seed 17

A step is a tuple of numbers, and any part of a sequence is a sequence: each number chooses among what is there when
the step is made. So a sequence that fails is shortened by leaving steps out, and printed as a list that --replay takes.
"""

from __future__ import annotations

import argparse
import ast
import random
import struct
import sys
import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

if __name__ == "__main__":
    HERE = Path(__file__).resolve().parent
    sys.path[:0] = [str(HERE), str(HERE.parents[1] / "tests/rmclient"), str(HERE.parents[1] / "tests/unit/core")]

import nvclient as nv
from calltable import BRANCHES, C, Row, ffi, lib, table
from client import ALLOC_VIRTUAL, ARCHS, VIDEOS, Client
from ledger import Ledger, Object
from rm import CHIPS, Rm

KIB, MIB = 1 << 10, 1 << 20
Step = tuple[int, ...]
DRAWS = 6

#: Few names, so that steps meet objects, names that are taken, and names that were freed.
HANDLES = range(0x100, 0x118)
DESCRIPTORS = range(6)
CLIENTS, FILES = 5, 4
HANDLE_PROVIDED = 1  #: nvos.h: NVOS32_FREE_FLAGS_MEMORY_HANDLE_PROVIDED
CLASS_VIRTUAL, CLASS_EVENT, CLASS_OS_EVENT = 0x50A0, 0x05, 0x79
GET_HANDLE_INFO, INFO_CLASS = 0xD02, 2
OF_KIND = {
    lib.CGPU_KIND_CLIENT: 0,
    lib.CGPU_KIND_VIDMEM: 0x41,
    lib.CGPU_KIND_SYSMEM: 0x41,
    lib.CGPU_KIND_CHANNEL: 0xA06F,
}
SIZES = (1, 4 * KIB, 12345, 64 * KIB + 1, MIB, 2 * MIB, 3 * MIB + 5, 16 * MIB)
#: By what the ledger calls them.
ENGINES = {
    lib.CGPU_ENGINE_GR: nv.NV2080_ENGINE_TYPE_GRAPHICS,
    lib.CGPU_ENGINE_OTHER: nv.NV2080_ENGINE_TYPE_COPY0 + 2,
    lib.CGPU_ENGINE_NVDEC: nv.NV2080_ENGINE_TYPE_NVDEC0,
}
MEASURED = 256 * MIB  #: an upper bound of a context: RM's own is what is compared


class Mismatch(AssertionError):
    """RM and the ledger differ."""


@dataclass
class Known:
    """A client of the ledger as a handle in one of its files."""

    handle: int
    file: Client


@dataclass
class World:
    """A machine's state during a sequence."""

    rm: Rm
    observer: object
    files: list[Client] = field(default_factory=list)
    clients: list[Known] = field(default_factory=list)
    ledger: Ledger = field(default_factory=Ledger)
    done: Counter = field(default_factory=Counter)
    names: set[tuple[int, int]] = field(default_factory=set)  #: every name that was ever given

    def __post_init__(self) -> None:
        self.free_before = self.observer.heap_free()
        self.pages_before = self.rm.host_memory().pages
        self.controls = [row for row in table("control") if row.verdict == "PASS" and row.holds(int(self.rm.branch))]
        self.arch = ARCHS[self.rm.chips[0]]

    # ---- what RM has ----

    def taken(self) -> int:
        return self.free_before - self.observer.heap_free()

    def in_rm(self, client: Known, handle: int) -> bool:
        params = struct.pack("<IIQ", handle, INFO_CLASS, 0)
        return client.file.control(client.handle, GET_HANDLE_INFO, params, client=client.handle)[0] == 0

    # ---- choice ----

    def client(self, draw: int) -> Known | None:
        return self.clients[draw % len(self.clients)] if self.clients else None

    def below(self, client: Known, kinds: Sequence[int], draw: int) -> Object | None:
        """An object of the client of one of these kinds."""
        found = [obj for name, obj in self.ledger.objects.items() if name[0] == client.handle and obj.kind in kinds]
        return found[draw % len(found)] if found else None

    # ---- steps ----

    def step(self, step: Step) -> None:
        what, *draws = step
        work = STEPS[what % len(STEPS)]
        before, charged = self.taken(), self.ledger.charged
        ok, exact = work(self, *draws)
        self.done[work.__name__, ok] += 1
        taken, more = self.taken() - before, self.ledger.charged - charged
        if exact and taken != more:
            raise Mismatch(f"{work.__name__}: RM's heap fell by {taken}, the ledger was charged {more}")
        if self.taken() > self.ledger.charged:
            raise Mismatch(f"{work.__name__}: RM has given {self.taken()} bytes, {self.ledger.charged} are charged")

    def open(self, *_: int) -> tuple[bool, bool]:
        if len(self.files) < FILES:
            self.files.append(Client(self.rm, root=False))
        return True, True

    def new_client(self, which: int, *_: int) -> tuple[bool, bool]:
        if not self.files or len(self.clients) >= CLIENTS:
            return False, True
        file = self.files[which % len(self.files)]
        status, handle = file.alloc(nv.NV01_ROOT_CLIENT, 0)
        if status:
            return False, True
        if not self.ledger.add(handle, handle, nv.NV01_ROOT_CLIENT, lib.CGPU_KIND_CLIENT, None, id(file)):
            raise Mismatch(f"RM gave the client handle {handle:#x}, which the ledger has")
        self.clients.append(Known(handle, file))
        self.names.add((handle, handle))
        return True, True

    def _alloc(
        self, client: Known, parent: Object | None, handle: int, cls: int, kind: int, params: object, **more: object
    ) -> Object | None:
        """An allocation by the module's order: the ledger's object is there before the driver is called."""
        if not parent:
            return None
        obj = self.ledger.add(client.handle, handle, cls, kind, parent, id(client.file), **more)
        if not obj:
            return None
        file = client.file
        file.handle, before = client.handle, file.handle
        status, _ = file.alloc(cls, parent.core.hobject, params, handle)
        file.handle = before
        self.names.add(obj.name)
        if status:
            self.ledger.remove(obj)
            return None
        return obj

    def device(self, which: int, handle: int, *_: int) -> tuple[bool, bool]:
        client = self.client(which)
        if not client:
            return False, True
        parent = self.ledger.live(client.handle, client.handle)
        name = HANDLES[handle % len(HANDLES)]
        params = nv.DeviceParams(device_id=0, client_share=client.handle)
        obj = self._alloc(client, parent, name, nv.NV01_DEVICE_0, lib.CGPU_KIND_DEVICE, params)
        return bool(obj), not obj

    def subdevice(self, which: int, handle: int, under: int, *_: int) -> tuple[bool, bool]:
        client = self.client(which)
        if not client:
            return False, True
        parent = self.below(client, [lib.CGPU_KIND_DEVICE], under)
        name = HANDLES[handle % len(HANDLES)]
        obj = self._alloc(client, parent, name, nv.NV20_SUBDEVICE_0, lib.CGPU_KIND_SUBDEVICE, nv.SubdeviceParams(0))
        return bool(obj), not obj

    def vidmem(self, which: int, handle: int, under: int, size: int, attr: int, align: int) -> tuple[bool, bool]:
        """As ckm_alloc_check_params() and verify_size() charge it."""
        client = self.client(which)
        parent = client and self.below(client, [lib.CGPU_KIND_DEVICE], under)
        if not parent:
            return False, True
        size = SIZES[size % len(SIZES)] + (size >> 8) % 3
        page, physicality, compression = attr % 4, attr // 4 % 4, (attr // 16 % 2) * 2
        attr = page << 23 | physicality << 27 | compression << 12
        flags, alignment = 0, 0
        if align % 4 == 0:
            flags, alignment = C.NVOS32_ALLOC_FLAGS_ALIGNED, 64 * KIB << align // 4 % 8
        bytes_ = lib.cgpu_estimate_vidmem_bytes(size, attr, 0)
        params = nv.MemoryParams(owner=client.handle, size=size, attr=attr, flags=flags, alignment=alignment)
        name = HANDLES[handle % len(HANDLES)]
        obj = self._alloc(client, parent, name, nv.NV01_MEMORY_LOCAL_USER, lib.CGPU_KIND_VIDMEM, params)
        if not obj:
            return False, True
        obj.memory = self.ledger.charge(max(bytes_, alignment, self._phys_size(client, name)))
        obj.aligned = alignment > bytes_  # RM may take less
        return True, not obj.aligned

    def _phys_size(self, client: Known, handle: int) -> int:
        head, row = struct.pack("<IIQ", 1, 0, 0), struct.pack("<II", C.NV0041_CTRL_SURFACE_INFO_INDEX_PHYS_SIZE, 0)
        status, _ = client.file.control(
            handle, C.NV0041_CTRL_CMD_GET_SURFACE_INFO, head, [(8, row)], client=client.handle
        )
        if status:
            raise Mismatch(f"RM reports no size of {handle:#x}: {status:#x}")
        return struct.unpack("<II", client.file.nested[0])[1] * C.NV0041_CTRL_SURFACE_INFO_PHYS_SIZE_SCALE_FACTOR

    def sysmem(self, which: int, handle: int, under: int, size: int, contiguous: int, *_: int) -> tuple[bool, bool]:
        client = self.client(which)
        parent = client and self.below(client, [lib.CGPU_KIND_DEVICE], under)
        if not parent:
            return False, True
        size = SIZES[size % 6]
        attr = nv.ATTR_LOCATION_PCI | (2 if contiguous % 4 == 0 else 1) << 27
        name = HANDLES[handle % len(HANDLES)]
        pages = self.rm.host_memory().pages
        obj = self._alloc(
            client, parent, name, nv.NV01_MEMORY_SYSTEM, lib.CGPU_KIND_SYSMEM,
            nv.MemoryParams(owner=client.handle, size=size, attr=attr),
        )  # fmt: skip
        if obj:
            estimate = lib.cgpu_estimate_vidmem_bytes(size, attr, 0)
            real = self._phys_size(client, name)
            obj.memory = self.ledger.charge(0, min(estimate, real) if real else estimate)
            taken = (self.rm.host_memory().pages - pages) * 4 * KIB
            if taken > obj.memory.host_bytes:
                raise Mismatch(f"RM took {taken} bytes of system memory, {obj.memory.host_bytes} are charged")
        return bool(obj), True

    def virtual(self, which: int, handle: int, under: int, size: int, *_: int) -> tuple[bool, bool]:
        """Addresses in the device's own space, lazily, as libcuda takes them."""
        client = self.client(which)
        parent = client and self.below(client, [lib.CGPU_KIND_DEVICE], under)
        if not parent:
            return False, True
        flags = ALLOC_VIRTUAL | C.NVOS32_ALLOC_FLAGS_LAZY
        params = nv.MemoryParams(owner=client.handle, size=SIZES[size % len(SIZES)] + 32 * MIB, flags=flags)
        name = HANDLES[handle % len(HANDLES)]
        obj = self._alloc(client, parent, name, CLASS_VIRTUAL, lib.CGPU_KIND_PLAIN, params)
        return bool(obj), False

    def group(self, which: int, handle: int, under: int, engine: int, *_: int) -> tuple[bool, bool]:
        client = self.client(which)
        parent = client and self.below(client, [lib.CGPU_KIND_DEVICE], under)
        if not parent:
            return False, True
        kind = list(ENGINES)[engine % len(ENGINES)]
        params = nv.TsgParams(engine=ENGINES[kind])
        obj = self._alloc(
            client, parent, HANDLES[handle % len(HANDLES)], nv.KEPLER_CHANNEL_GROUP_A, lib.CGPU_KIND_TSG, params
        )
        if obj:
            obj.core.engine = kind
            obj.memory = self.ledger.charge(0 if kind == lib.CGPU_ENGINE_OTHER else MEASURED)
        return bool(obj), False

    def channel(self, which: int, handle: int, under: int, userd: int, *_: int) -> tuple[bool, bool]:
        """charge_channel() and hold_userd(): it keeps its TSG's memory, and the pages of its USERD."""
        client = self.client(which)
        parent = client and self.below(client, [lib.CGPU_KIND_TSG], under)
        memory = client and self.below(client, [lib.CGPU_KIND_VIDMEM, lib.CGPU_KIND_SYSMEM], userd)
        if not parent or not memory or memory.core.parent != parent.core.parent:
            return False, True
        params = nv.ChannelParams(gpfifo_va=2 * MIB, gpfifo_entries=64, engine=ENGINES[parent.core.engine])
        params.userd_memory[0] = memory.core.hobject
        name = HANDLES[handle % len(HANDLES)]
        obj = self._alloc(client, parent, name, self.arch[0], lib.CGPU_KIND_CHANNEL, params, dep=memory)
        if obj:
            obj.core.engine = parent.core.engine
            obj.memory = self.ledger.charge(0)
            obj.memory.under = self.ledger.get(parent.memory)
            obj.userd = self.ledger.get(memory.memory)
        return bool(obj), False

    def engine_object(self, which: int, handle: int, under: int, *_: int) -> tuple[bool, bool]:
        """Compute on a graphics engine, copies, or a decoder's session, which takes no more memory."""
        client = self.client(which)
        parent = client and self.below(client, [lib.CGPU_KIND_CHANNEL], under)
        if not parent:
            return False, True
        cls, kind, params = self.arch[2], lib.CGPU_KIND_COMPUTE, None
        if parent.core.engine == lib.CGPU_ENGINE_NVDEC:
            cls, kind, params = (
                VIDEOS[self.rm.chips[0]][nv.NV2080_ENGINE_TYPE_NVDEC0],
                lib.CGPU_KIND_NVDEC,
                struct.pack("<3I", 12, 0, 0),
            )
        elif parent.core.engine == lib.CGPU_ENGINE_OTHER:
            cls, kind, params = self.arch[3], lib.CGPU_KIND_COPY, nv.CopyParams(1, nv.NV2080_ENGINE_TYPE_COPY0 + 2)
        obj = self._alloc(client, parent, HANDLES[handle % len(HANDLES)], cls, kind, params)
        return bool(obj), False

    def event(self, which: int, handle: int, under: int, cls: int, index: int, *_: int) -> tuple[bool, bool]:
        """Of a subdevice: its source is the parent."""
        client = self.client(which)
        parent = client and self.below(client, [lib.CGPU_KIND_SUBDEVICE], under)
        if not parent:
            return False, True
        fd = next((fd for owner, fd in self.ledger.os_events if owner == client.handle), 0)
        kind = CLASS_OS_EVENT
        params = struct.pack("<4IQ", client.handle, parent.core.hobject, kind, 12 + index % 40, fd)
        number = (CLASS_EVENT, CLASS_OS_EVENT)[cls % 2]
        obj = self._alloc(client, parent, HANDLES[handle % len(HANDLES)], number, lib.CGPU_KIND_PLAIN, params)
        return bool(obj), True

    def dup(self, which: int, handle: int, source: int, what: int, under: int, *_: int) -> tuple[bool, bool]:
        """may_dup(): memory, TSGs and what is not charged."""
        client, other = self.client(which), self.client(source)
        if not client or not other:
            return False, True
        kinds = (lib.CGPU_KIND_VIDMEM, lib.CGPU_KIND_SYSMEM, lib.CGPU_KIND_TSG, lib.CGPU_KIND_PLAIN)
        src = self.below(other, kinds, what)
        parent = self.below(client, [lib.CGPU_KIND_DEVICE], under)
        if not src or not parent:
            return False, True
        name = HANDLES[handle % len(HANDLES)]
        obj = self.ledger.add(client.handle, name, src.core.cls, src.kind, parent, id(client.file))
        if not obj:
            return False, True
        self.names.add(obj.name)
        client.file.handle = client.handle
        status, _ = client.file.dup(parent.core.hobject, other.handle, src.core.hobject, name)
        if status:
            self.ledger.remove(obj)
            return False, True
        obj.core.engine = src.core.engine
        obj.memory = self.ledger.get(src.memory)
        return True, src.kind in (lib.CGPU_KIND_VIDMEM, lib.CGPU_KIND_SYSMEM)

    def free(self, which: int, handle: int, by_heap: int, *_: int) -> tuple[bool, bool]:
        """Any name: of an object, of none. A client by RM_FREE only now and then."""
        client = self.client(which)
        if not client:
            return False, True
        name = client.handle if handle % 32 == 0 else HANDLES[handle % len(HANDLES)]
        root = self.ledger.live(client.handle, name)
        if not root:
            return False, True  # the module answers that itself
        only_memory = root.kind in (lib.CGPU_KIND_VIDMEM, lib.CGPU_KIND_SYSMEM) and not root.dma_maps
        client.file.handle = client.handle
        heap = by_heap % 4 == 0
        freed = False
        while root.core.dependant:  # free_channels()
            channel = self.ledger.objects[root.core.dependant.of.hclient, root.core.dependant.of.hobject]
            if client.file.free(channel.core.hobject, channel.core.parent.hobject):
                raise Mismatch(f"RM does not free channel {channel.core.hobject:#x}")
            self.ledger.remove(channel)
            freed = True
        if self._free(client, name, root.core.parent.hobject if root.core.parent else 0, heap):
            return False, not freed
        self.ledger.free(client.handle, name, heap)
        if name == client.handle:
            self.clients.remove(client)
        return True, only_memory and not root.aligned and not freed

    @staticmethod
    def _free(client: Known, handle: int, parent: int, by_heap: bool) -> int:
        """The status of RM_FREE, or of NVOS32's function."""
        if not by_heap:
            return client.file.free(handle, parent)
        arg = bytearray(ffi.sizeof("struct nvos32"))
        struct.pack_into("<III", arg, 0, client.handle, parent, C.NVOS32_FUNCTION_FREE)
        struct.pack_into(
            "<III", arg, ffi.offsetof("struct nvos32", "data", "Free"), client.handle, handle, HANDLE_PROVIDED
        )
        status, data, _ = client.file.rm.ioctl(client.file.fd, nv.NV_ESC_RM_VID_HEAP_CONTROL, bytes(arg))
        return status or struct.unpack_from("<I", data, ffi.offsetof("struct nvos32", "status"))[0]

    def close(self, which: int, really: int, *_: int) -> tuple[bool, bool]:
        if not self.files or really % 4:
            return False, True
        self._close(self.files[which % len(self.files)])
        return True, False

    def _close(self, file: Client) -> None:
        self.files.remove(file)
        file.close()
        self.ledger.close(id(file))
        self.clients = [client for client in self.clients if client.file is not file]

    def map_cpu(self, which: int, what: int, length: int, offset: int, *_: int) -> tuple[bool, bool]:
        client = self.client(which)
        memory = client and self.below(client, [lib.CGPU_KIND_VIDMEM], what)
        if not memory or not memory.memory:
            return False, True
        offset = offset % 4 * 64 * KIB
        length = (1 + length % 16) * 64 * KIB
        client.file.handle = client.handle
        device = self._device_of(memory)
        status, _, address = client.file.map_memory(device, memory.core.hobject, length, card=0, offset=offset)
        if status:
            return False, True
        bytes_ = lib.cgpu_estimate_bar1_bytes(memory.memory.core.bytes, offset, length)
        memory.cpu_maps.append((address, bytes_))  # two of one place have one address here: BAR1 is not simulated
        return True, True

    def unmap_cpu(self, which: int, what: int, of: int, *_: int) -> tuple[bool, bool]:
        client = self.client(which)
        memory = client and self.below(client, [lib.CGPU_KIND_VIDMEM], what)
        if not memory or not memory.cpu_maps:
            return False, True
        address, bytes_ = memory.cpu_maps[of % len(memory.cpu_maps)]
        client.file.handle = client.handle
        status = client.file.unmap_memory(self._device_of(memory), memory.core.hobject, address)
        if status:
            raise Mismatch(f"RM does not know the mapping {address:#x} that is charged: {status:#x}")
        memory.cpu_maps.remove((address, bytes_))
        if all(one != address for one, _ in memory.cpu_maps) and not client.file.unmap_memory(
            self._device_of(memory), memory.core.hobject, address
        ):
            raise Mismatch(f"RM has another mapping {address:#x}, which is not charged")
        return True, True

    @staticmethod
    def _device_of(obj: Object) -> int:
        core = obj.core
        while core.kind != lib.CGPU_KIND_DEVICE:
            core = core.parent
        return core.hobject

    def map_gpu(self, which: int, what: int, space: int, *_: int) -> tuple[bool, bool]:
        client = self.client(which)
        memory = client and self.below(client, [lib.CGPU_KIND_VIDMEM, lib.CGPU_KIND_SYSMEM], what)
        ranges = client and [
            obj
            for name, obj in self.ledger.objects.items()
            if name[0] == client.handle and obj.core.cls == CLASS_VIRTUAL
        ]
        if not memory or not memory.memory or not ranges:
            return False, True
        at = ranges[space % len(ranges)]
        device = self._device_of(memory)
        client.file.handle = client.handle
        status, address = client.file.map_dma(device, at.core.hobject, memory.core.hobject, 4 * KIB)
        if status:
            return False, False
        self.ledger.map_dma(memory, (device, at.core.hobject, address), self._bytes_of(memory))
        return True, False

    @staticmethod
    def _bytes_of(memory: Object) -> int:
        return memory.memory.core.bytes or memory.memory.host_bytes

    def os_event(self, which: int, fd: int, on: int, free: int, *_: int) -> tuple[bool, bool]:
        """The driver finds one by client and descriptor, whichever file it was made on."""
        client = self.client(which)
        if not client or not self.files:
            return False, True
        file = self.files[on % len(self.files)]
        name = client.handle, DESCRIPTORS[fd % len(DESCRIPTORS)]
        number = nv.NV_ESC_FREE_OS_EVENT if free % 3 == 0 else nv.NV_ESC_ALLOC_OS_EVENT
        arg = nv.OsEvent(client=name[0], fd=name[1])
        file._call(number, arg)
        there = name in self.ledger.os_events
        made = number == nv.NV_ESC_ALLOC_OS_EVENT
        if (arg.status == 0) == (there if made else not there):
            raise Mismatch(f"OS event {name}: RM answers {arg.status:#x}, the ledger {'has' if there else 'lacks'} it")
        if arg.status == 0 and made:
            self.ledger.os_events[name] = id(file)
        elif arg.status == 0:
            del self.ledger.os_events[name]
        return arg.status == 0, True

    def control(self, which: int, row: int, what: int, *words: int) -> tuple[bool, bool]:
        """A control that is passed, with zeros for parameters, or a small number in front."""
        client = self.client(which)
        if not client:
            return False, True
        own = [obj for name, obj in self.ledger.objects.items() if name[0] == client.handle]
        obj = own[what % len(own)]
        # Controls of the object's class, now and then any.
        fitting = [one for one in self.controls if one.number >> 16 == OF_KIND.get(obj.kind, obj.core.cls)]
        fitting = fitting if fitting and row % 8 else self.controls
        chosen: Row = fitting[row % len(fitting)]
        params = bytearray(chosen.size)
        if chosen.size >= 4 and words[0] % 2:
            params[0] = words[1] % 4
        status, _ = client.file.control(obj.core.hobject, chosen.number, bytes(params), client=client.handle)
        self.done[f"control {chosen.name}", status == 0] += 1
        return status == 0, True

    # ---- the whole ----

    def compare(self) -> None:
        """Each name that was ever given, in every client that is there."""
        for client in self.clients:
            for _, handle in sorted(name for name in self.names if name[0] == client.handle):
                here, there = (client.handle, handle) in self.ledger.objects, self.in_rm(client, handle)
                if here != there:
                    raise Mismatch(f"object {handle:#x}: in the ledger {here}, in RM {there}")
            for fd in DESCRIPTORS:
                self._compare_os_event(client.handle, fd)
        pages = (self.rm.host_memory().pages - self.pages_before) * 4 * KIB
        if pages > self.ledger.host_bytes + self._host_slack():
            raise Mismatch(f"RM holds {pages} bytes of system memory, {self.ledger.host_bytes} are charged")

    def _host_slack(self) -> int:
        """What RM takes for itself: error notifiers, instance memory of channels."""
        return 64 * KIB * (1 + len(self.ledger.objects))

    def _compare_os_event(self, client: int, fd: int) -> None:
        if not self.files:
            return
        arg = nv.OsEvent(client=client, fd=fd)
        self.files[0]._call(nv.NV_ESC_ALLOC_OS_EVENT, arg)
        there, here = arg.status != 0, (client, fd) in self.ledger.os_events
        if arg.status == 0:
            self.files[0]._call(nv.NV_ESC_FREE_OS_EVENT, nv.OsEvent(client=client, fd=fd))
        if here != there:
            raise Mismatch(f"OS event {client:#x}/{fd}: in the ledger {here}, in RM {there}")

    def end(self) -> None:
        """Close everything: nothing is left on either side."""
        while self.files:
            self._close(self.files[0])
        left = self.taken()
        if left or self.ledger.charged or self.ledger.host_bytes or self.ledger.objects or self.ledger.os_events:
            raise Mismatch(f"at the end RM has {left} bytes, the ledger {self.ledger.charged}")


STEPS: tuple[Callable[..., tuple[bool, bool]], ...] = (
    World.open, World.new_client, World.device, World.device, World.subdevice, World.vidmem, World.vidmem,
    World.vidmem, World.sysmem, World.virtual, World.group, World.group, World.channel, World.channel,
    World.engine_object, World.event, World.dup, World.dup, World.free, World.free, World.close, World.map_cpu,
    World.unmap_cpu, World.unmap_cpu, World.map_gpu, World.os_event, World.os_event, World.control, World.control,
)  # fmt: skip


HEAD = (
    World.open, World.new_client, World.device, World.subdevice, World.os_event, World.event, World.vidmem, World.group,
    World.channel,
)  # fmt: skip


def draw(rng: random.Random, length: int) -> list[Step]:
    """Begins with a client that has some of each, as a program does."""
    head = [(STEPS.index(work), *(rng.randrange(1 << 16) for _ in range(DRAWS))) for work in HEAD]
    return head + [tuple(rng.randrange(1 << 16) for _ in range(1 + DRAWS)) for _ in range(length - len(head))]


class Machine:
    """A started RM, restarted after a failure: what is left of it is not trusted."""

    def __init__(self, branch: str, chip: str):
        self.branch, self.chip = branch, chip
        self.rm: Rm | None = None

    def world(self) -> World:
        if not self.rm or self.rm.process.poll() is not None:
            self.rm = Rm(self.branch, self.chip)
            assert self.rm.start(), self.rm.messages()[-2000:]
            first = Client(self.rm)
            first.gpu().context()  # RM keeps some of what its first channel takes
            first.close()
            self.observer = Client(self.rm).gpu()
        return World(self.rm, self.observer)

    def stop(self) -> None:
        if self.rm:
            self.rm.__exit__()
        self.rm = None

    def run(self, steps: Sequence[Step]) -> tuple[str, Counter]:
        """The difference, empty if there is none, and what was done."""
        world = self.world()
        try:
            for step in steps:
                world.step(step)
            world.compare()
            world.end()
        except Mismatch as wrong:
            self.stop()
            return str(wrong), world.done
        return "", world.done

    def shrink(self, steps: list[Step]) -> list[Step]:
        """Leave out parts, half of them at first, as long as there is a difference."""
        size = len(steps) // 2
        while size:
            at = 0
            while at < len(steps):
                fewer = steps[:at] + steps[at + size :]
                if self.run(fewer)[0]:
                    steps = fewer
                else:
                    at += size
            size //= 2
        return steps


def rounds(machine: Machine, seed: int, count: int, length: int = 60) -> tuple[str, list[Step], Counter]:
    """Up to the first difference: the difference, the shortest sequence that was found for it, what was done."""
    rng = random.Random(seed)
    done: Counter = Counter()
    for _ in range(count):
        steps = draw(rng, length)
        wrong, some = machine.run(steps)
        done += some
        if wrong:
            steps = machine.shrink(steps)
            return machine.run(steps)[0], steps, done
    return "", [], done


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=60)
    parser.add_argument("--seed", type=int, default=random.SystemRandom().randrange(1 << 32))
    parser.add_argument("--branch", choices=[str(branch) for branch in BRANCHES])
    parser.add_argument("--chip", choices=CHIPS)
    parser.add_argument("--replay", help="a list of steps, as it was printed")
    given = parser.parse_args()
    print(f"seed {given.seed}", flush=True)
    machines = [
        Machine(branch, chip)
        for branch in ([given.branch] if given.branch else ["550", "535"])
        for chip in ([given.chip] if given.chip else CHIPS)
    ]
    if given.replay:
        wrong, _ = machines[0].run(ast.literal_eval(given.replay))
        print(wrong or "no difference")
        return bool(wrong)
    done: Counter = Counter()
    end, seed = time.monotonic() + given.seconds, given.seed
    while time.monotonic() < end:
        for machine in machines:
            wrong, steps, some = rounds(machine, seed, 10)
            done += some
            if wrong:
                print(f"{machine.branch} {machine.chip}, seed {seed}: {wrong}\n{steps}")
                return 1
        seed += 1
    for (name, ok), count in sorted(done.items(), key=str):
        print(f"{name} {'done' if ok else 'refused'}: {count}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
