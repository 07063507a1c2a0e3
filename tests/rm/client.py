# SPDX-License-Identifier: MIT
"""An RM client in a machine of rm.py, with the structures of tests/rmclient: both drivers get the same calls.

The single calls return status numbers; Gpu's and Context's own steps must succeed and raise RmError otherwise.
"""

from __future__ import annotations

import ctypes
import struct
from dataclasses import dataclass

import nvclient as nv
from nvclient import NV_OK, RmError, check
from rm import Rm

CLASS_VIRTUAL, CLASS_PEERS = 0x50A0, 0x503B
ATTR_PAGE_4K, ATTR_PAGE_BIG = 1 << 23, 2 << 23
ATTR_CONTIGUOUS, ATTR_NONCONTIGUOUS = 2 << 27, 1 << 27
MAP_PEER = 2 << 20  #: nvos.h: NVOS46_FLAGS_P2P_ENABLE_NOSLI, peer number 0
ALLOC_VIRTUAL = 1 << 19  #: nvos.h: NVOS32_ALLOC_FLAGS_VIRTUAL
SURFACE_PHYS_SIZE, SURFACE_UNIT = 0x7, 4096  #: ctrl0041.h

#: From driver 550 on: gpfifo, usermode, compute, copy.
ARCHS = {
    "TU104": nv.ARCHS["Turing"],
    "GA100": nv.ARCHS["Ampere"],
    "GA102": (0xC56F, 0xC561, 0xC7C0, 0xC7B5),
    "AD102": (0xC56F, 0xC661, 0xC9C0, 0xC7B5),
    "GH100": nv.ARCHS["Hopper"],
}

NVDEC, NVENC = nv.NV2080_ENGINE_TYPE_NVDEC0, nv.NV2080_ENGINE_TYPE_NVENC0
NVJPEG, OFA = nv.NV2080_ENGINE_TYPE_NVJPEG0, nv.NV2080_ENGINE_TYPE_OFA0
#: Video engines of each chip, by RM's list of its classes, and the class of a session.
VIDEOS = {
    "TU104": {NVDEC: 0xC4B0, NVENC: 0xC4B7},
    "GA100": {NVDEC: 0xC6B0, NVJPEG: 0xC4D1, OFA: 0xC6FA},
    "GA102": {NVDEC: 0xC7B0, NVENC: 0xC7B7, OFA: 0xC7FA},
    "AD102": {NVDEC: 0xC9B0, NVENC: 0xC9B7, NVJPEG: 0xC9D1, OFA: 0xC9FA},
    "GH100": {NVDEC: 0xB8B0, NVJPEG: 0xB8D1, OFA: 0xB8FA},
}


class Client:
    """A file of the control node and, unless told otherwise, a client on it."""

    def __init__(self, rm: Rm, root: bool = True):
        self.rm = rm
        self.fd = rm.open()
        self.files = [self.fd]
        self.handle = 0
        self.next_handle = 0x1000
        if root:
            status, self.handle = self.alloc(nv.NV01_ROOT_CLIENT, 0)
            check("RM_ALLOC(0x41)", status)

    def close(self) -> None:
        """Close its files, as a process does at its end."""
        for fd in reversed(self.files):
            self.rm.close(fd)
        self.files = []

    def _call(self, nr: int, arg: ctypes.Structure, buffers: list[tuple[int, bytes]] = ()) -> list[bytes]:
        status, data, out = self.rm.ioctl(self.fd, nr, bytes(arg), buffers)
        if status != NV_OK and not getattr(arg, "status", 0):
            arg.status = status
        ctypes.memmove(ctypes.addressof(arg), data, len(data))
        if status != NV_OK and arg.status == NV_OK:
            arg.status = status
        return out

    def alloc(self, cls: int, parent: int, params: ctypes.Structure | bytes | None = None, handle: int = 0):
        """RM_ALLOC: (status, handle). The params' content afterwards is in .answer."""
        data = bytes(params) if params is not None else b""
        if data and nv.varies(cls):
            data = data[: nv.bytes_of(cls, int(self.rm.branch))]
        if not handle and cls != nv.NV01_ROOT_CLIENT:
            self.next_handle += 1
            handle = self.next_handle
        arg = nv.Alloc(root=self.handle, parent=parent, handle=handle, class_id=cls, params_size=len(data))
        out = self._call(nv.NV_ESC_RM_ALLOC, arg, [(nv.Alloc.params.offset, data)] if data else [])
        self.answer = out[0] if out else b""
        return arg.status, arg.handle

    def free(self, handle: int, parent: int = 0) -> int:
        arg = nv.Free(root=self.handle, parent=parent, handle=handle)
        self._call(nv.NV_ESC_RM_FREE, arg)
        return arg.status

    def control(self, handle: int, cmd: int, params: ctypes.Structure | bytes = b"", nested=(), client: int = 0):
        """RM_CONTROL: (status, params). @nested: (offset of a pointer in the params, its buffer)."""
        data = bytes(params)
        arg = nv.Control(client=client or self.handle, object=handle, cmd=cmd, params_size=len(data))
        buffers = [(nv.Control.params.offset, data)] if data else []
        out = self._call(nv.NV_ESC_RM_CONTROL, arg, buffers + [(offset | 1 << 16, b) for offset, b in nested])
        self.nested = out[1:]
        return arg.status, out[0] if out else b""

    def sized(self, handle: int, cmd: int, params: bytes = b"") -> int:
        """A control with as many bytes of @params as RM's table wants: structures grow with the branches."""
        return self.control(handle, cmd, params.ljust(self.rm.control_info(cmd)[3], b"\0"))[0]

    def dup(self, parent: int, source_client: int, source: int, handle: int = 0) -> tuple[int, int]:
        """RM_DUP_OBJECT: (status, handle)."""
        self.next_handle += 1
        arg = nv.Dup(self.handle, parent, handle or self.next_handle, source_client, source)
        self._call(nv.NV_ESC_RM_DUP_OBJECT, arg)
        return arg.status, arg.handle

    def map_memory(self, device: int, memory: int, length: int, card: int | None = None, offset: int = 0):
        """RM_MAP_MEMORY on a fresh file: (status, file, the address that names the mapping)."""
        fd = self.rm.open(card)
        self.files.append(fd)
        arg = nv.MapMemory(client=self.handle, device=device, memory=memory, offset=offset, length=length, fd=fd)
        self._call(nv.NV_ESC_RM_MAP_MEMORY, arg)
        return arg.status, fd, arg.address

    def unmap_memory(self, device: int, memory: int, address: int) -> int:
        arg = nv.UnmapMemory(client=self.handle, device=device, memory=memory, address=address)
        self._call(nv.NV_ESC_RM_UNMAP_MEMORY, arg)
        return arg.status

    def map_dma(self, device: int, space: int, memory: int, length: int, flags: int = 0, offset: int = 0):
        """RM_MAP_MEMORY_DMA: (status, GPU address)."""
        layout = nv.of_branch("MapDma", int(self.rm.branch))
        what = {"device": device, "dma": space, "memory": memory, "offset": offset, "length": length}
        arg = layout(client=self.handle, **what, flags=flags)
        self._call(nv.NV_ESC_RM_MAP_MEMORY_DMA, arg)
        return arg.status, arg.dma_offset

    def unmap_dma(self, device: int, space: int, memory: int, address: int) -> int:
        layout = nv.of_branch("UnmapDma", int(self.rm.branch))
        arg = layout(client=self.handle, device=device, dma=space, memory=memory, dma_offset=address)
        self._call(nv.NV_ESC_RM_UNMAP_MEMORY_DMA, arg)
        return arg.status

    def peers(self, one: Gpu, other: Gpu) -> int:
        """NV50_P2P: each of the two is the other's peer while it exists. Its handle."""
        params = struct.pack("<2I", one.subdevice, other.subdevice).ljust(72, b"\0")
        status, handle = self.alloc(CLASS_PEERS, self.handle, params)
        check("RM_ALLOC(0x503b)", status)
        return handle

    def gpu(self, index: int = 0) -> Gpu:
        return Gpu(self, index)


@dataclass
class Surface:
    """An allocation of video memory and what RM says of it."""

    status: int
    handle: int
    size: int  #: RM's answer in the parameters
    phys_size: int  #: GET_SURFACE_INFO, as the module asks


class Gpu:
    """A device and a subdevice of one card."""

    def __init__(self, client: Client, index: int = 0):
        self.rm = client
        self.index = index
        status, self.device = client.alloc(nv.NV01_DEVICE_0, client.handle, nv.DeviceParams(device_id=index))
        check("RM_ALLOC(0x80)", status)
        status, self.subdevice = client.alloc(nv.NV20_SUBDEVICE_0, self.device, nv.SubdeviceParams(0))
        check("RM_ALLOC(0x2080)", status)

    def fb_info(self, *indexes: int) -> list[int]:
        """FB_GET_INFO_V2, KiB for sizes."""
        arg = nv.FbInfo(count=len(indexes))
        for i, index in enumerate(indexes):
            arg.list[i].index = index
        params = nv.in_branch(nv.NV2080_CTRL_CMD_FB_GET_INFO_V2, arg, int(self.rm.rm.branch))
        status, data = self.rm.control(self.subdevice, nv.NV2080_CTRL_CMD_FB_GET_INFO_V2, params)
        check("FB_GET_INFO_V2", status)
        return [struct.unpack_from("<I", data, 4 + 8 * i + 4)[0] for i in range(len(indexes))]

    def heap_free(self) -> int:
        """Bytes."""
        return self.fb_info(nv.NV2080_CTRL_FB_INFO_INDEX_HEAP_FREE)[0] << 10

    def memory(self, size: int, cls: int = nv.NV01_MEMORY_LOCAL_USER, **fields) -> tuple[int, int]:
        values = {"owner": self.rm.handle, "size": size} | fields
        return self.rm.alloc(cls, self.device, nv.MemoryParams(**values))

    def must_have(self, size: int, cls: int = nv.NV01_MEMORY_LOCAL_USER, **fields) -> int:
        """Such memory: its handle."""
        status, handle = self.memory(size, cls, **fields)
        check(f"RM_ALLOC({cls:#x})", status)
        return handle

    def space(self) -> int:
        """A GPU address space of RM's own."""
        status, handle = self.rm.alloc(nv.FERMI_VASPACE_A, self.device, nv.VaspaceParams())
        check("RM_ALLOC(0x90f1)", status)
        return handle

    def surface(self, size: int, **fields) -> Surface:
        """Video memory with its physical size; 0 where there is none."""
        status, handle = self.memory(size, **fields)
        if status:
            return Surface(status, 0, 0, 0)
        got = nv.MemoryParams.from_buffer_copy(self.rm.answer.ljust(ctypes.sizeof(nv.MemoryParams), b"\0")).size
        return Surface(status, handle, got, self.phys_size(handle))

    def phys_size(self, handle: int) -> int:
        """NV0041_CTRL_CMD_GET_SURFACE_INFO of PHYS_SIZE: bytes."""
        head, row = struct.pack("<IIQ", 1, 0, 0), struct.pack("<II", SURFACE_PHYS_SIZE, 0)
        status, _ = self.rm.control(handle, 0x410110, head, [(8, row)])
        check("GET_SURFACE_INFO", status)
        return struct.unpack("<II", self.rm.nested[0])[1] * SURFACE_UNIT

    def free(self, handle: int) -> int:
        return self.rm.free(handle, self.device)

    def context(self, engine: int = nv.NV2080_ENGINE_TYPE_GRAPHICS, **options) -> Context:
        return Context(self, engine, **options)


class Context:
    """An address space of RM's own, a TSG, a channel and an engine object, with its memory mapped."""

    RING, PUSH, SEMAPHORE = 0, 0x1000, 0x8000
    SYSTEM_BYTES = 64 << 10
    ENTRIES = 64

    def __init__(self, gpu: Gpu, engine: int, chip: str = "", with_object: bool = True):
        self.gpu, self.rm, self.engine = gpu, gpu.rm, engine
        rm = self.rm
        self.classes = ARCHS[chip or rm.rm.chips[gpu.index]]
        self.put = 0
        self.space = gpu.space()
        self.system = gpu.must_have(
            self.SYSTEM_BYTES, nv.NV01_MEMORY_SYSTEM, attr=nv.ATTR_LOCATION_PCI | ATTR_NONCONTIGUOUS
        )
        self.va = self.map(self.system, self.SYSTEM_BYTES)
        status, self.system_fd, _ = rm.map_memory(gpu.device, self.system, self.SYSTEM_BYTES)
        check("RM_MAP_MEMORY of system memory", status)
        self.userd = gpu.must_have(4096, attr=ATTR_PAGE_4K | ATTR_CONTIGUOUS)
        status, self.userd_fd, _ = rm.map_memory(gpu.device, self.userd, 4096, gpu.index)
        check("RM_MAP_MEMORY of USERD", status)
        self.before_group = gpu.heap_free()
        status, self.tsg = rm.alloc(
            nv.KEPLER_CHANNEL_GROUP_A, gpu.device, nv.TsgParams(vaspace=self.space, engine=engine)
        )
        check("RM_ALLOC(0xa06c)", status)
        self.before_channel = gpu.heap_free()
        status, self.channel = rm.alloc(self.classes[0], self.tsg, self.channel_params())
        check("RM_ALLOC of the channel", status)
        self.before_object = gpu.heap_free()
        if with_object:
            self.object = self.engine_object()
        self.after = gpu.heap_free()

    def map(self, memory: int, length: int, flags: int = 0) -> int:
        """GPU address of memory, through a virtual range of its own."""
        params = nv.MemoryParams(owner=self.rm.handle, size=length, flags=ALLOC_VIRTUAL, vaspace=self.space)
        status, dma = self.rm.alloc(CLASS_VIRTUAL, self.gpu.device, params)
        check("RM_ALLOC(0x50a0)", status)
        status, va = self.rm.map_dma(self.gpu.device, dma, memory, length, flags)
        check("RM_MAP_MEMORY_DMA", status)
        return va

    def channel_params(self) -> ctypes.Structure:
        arg = nv.ChannelParams(gpfifo_va=self.va + self.RING, gpfifo_entries=self.ENTRIES, engine=self.engine)
        arg.userd_memory[0] = self.userd
        return arg

    def engine_object(self) -> int:
        if self.engine == nv.NV2080_ENGINE_TYPE_GRAPHICS:
            status, handle = self.rm.alloc(self.classes[2], self.channel)
        else:
            status, handle = self.rm.alloc(self.classes[3], self.channel, nv.CopyParams(1, self.engine))
        check("RM_ALLOC of the engine object", status)
        return handle

    def session(self, channel: int = 0) -> tuple[int, int]:
        """An object of the context's video engine, on its channel or another: (status, handle)."""
        cls = VIDEOS[self.rm.rm.chips[self.gpu.index]].get(self.engine, 0)
        size = 8 if self.engine == nv.NV2080_ENGINE_TYPE_OFA0 and int(self.rm.rm.branch) < 545 else 12
        return self.rm.alloc(cls, channel or self.channel, struct.pack("<3I", size, 0, 0)[:size])

    def schedule(self) -> int:
        return self.rm.sized(self.tsg, nv.NVA06C_CTRL_CMD_GPFIFO_SCHEDULE, bytes([1]))

    # ---- work: fills by the copy engine, each with a semaphore ----

    def fill(self, va: int, value: int, words: int, done: int) -> None:
        """Queue a fill of @words 32-bit words at GPU address @va, after which the semaphore holds @done."""
        sem = self.va + self.SEMAPHORE
        push = b"".join(
            _method(m, *values)
            for m, values in (
                (0x000, (self.classes[3],)),
                (0x700, (value,)),
                (0x708, (4 | 3 << 16,)),  # component X: constant A, four bytes
                (0x408, (va >> 32, va & 0xFFFFFFFF)),
                (0x418, (words, 1)),
                (0x240, (sem >> 32, sem & 0xFFFFFFFF, done)),
                (0x300, (2 | 1 << 2 | 1 << 3 | 1 << 7 | 1 << 8 | 1 << 10,)),
            )
        )
        rm, at = self.rm.rm, self.PUSH + self.put % 16 * 0x100
        rm.write(self.system_fd, at, push)
        entry = (self.va + at) | len(push) // 4 << 42
        rm.write(self.system_fd, self.RING + 8 * self.put, struct.pack("<Q", entry))
        self.put = (self.put + 1) % self.ENTRIES
        rm.write(self.userd_fd, nv.NV_USERD_GPPUT, struct.pack("<I", self.put))
        rm.poll()

    def semaphore(self) -> int:
        return struct.unpack("<I", self.rm.rm.read(self.system_fd, self.SEMAPHORE, 4))[0]


def _method(method: int, *values: int) -> bytes:
    """An incrementing method on subchannel 4."""
    return struct.pack(f"<{1 + len(values)}I", 1 << 29 | len(values) << 16 | 4 << 13 | method >> 2, *values)


__all__ = ["ARCHS", "Client", "Context", "Gpu", "RmError", "Surface"]
