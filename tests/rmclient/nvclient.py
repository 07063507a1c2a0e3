# SPDX-License-Identifier: MIT
# ruff: noqa: F403, F405
"""The driver's user ABI from Python: any call, well formed or not.

The numbers are rmabi.py's, the structures rmlayout.py's; where a branch has others than 580, the calls use its own.

Layers, lowest first:

Node      one open device node and its ioctls
Ctl, Gpu node, Uvm    the three kinds of nodes
Client    an RM client: alloc, free, control, dup, map_memory return RM status numbers
Gpu       device and subdevice of one GPU under a client: memory, names, processes
Space     a GPU address space, managed through nvidia-uvm
Group, Channel        a TSG, and rings of work in it

The single calls return status numbers (0 = NV_OK) so that tests can ask for
failures. Building a context (Gpu, Space, Group, Channel) raises RmError.

    with Client() as rm:
        gpu = rm.gpu(0)
        status, mem = gpu.alloc_vidmem(64 << 20)
        channel = gpu.space().group().channel()
        channel.submit(kernel_ns=1_000_000)
        channel.wait()

docs/develop/nvsim.md is the contract. Only the standard library is used.
"""

from __future__ import annotations

import contextlib
import ctypes
import mmap
import os
import struct
import time
from collections.abc import Iterator
from ctypes import c_uint8, c_uint32, c_uint64

from rmabi import *
from rmlayout import *

DEV = os.environ.get("NVSIM_DEV") or "/dev"  # default directory of the nodes


class RmError(Exception):
    """A call that had to succeed did not: .call, .status."""

    def __init__(self, call: str, status: int):
        super().__init__(f"{call}: status {status:#x}")
        self.call = call
        self.status = status


def check(call: str, status: int) -> None:
    if status:
        raise RmError(call, status)


def request(nr: int, size: int) -> int:
    """_IOWR('F', nr, size)"""
    return 3 << 30 | size << 16 | ord("F") << 8 | nr


def in_branch(key: int, params: ctypes.Structure | bytes, branch: int) -> ctypes.Array:
    """Parameters as long as that branch has them."""
    return ctrl_params(bytes(params)[: bytes_of(key, branch)])


def ctrl_params(params) -> ctypes.Array | ctypes.Structure | None:
    """Accepted forms of a control's params: a structure, bytes, a size, None."""
    if params is None or isinstance(params, (ctypes.Structure, ctypes.Array)):
        return params
    if isinstance(params, int):
        return (c_uint8 * params)()
    return (c_uint8 * len(params)).from_buffer_copy(params)


# ---- nodes ----


class Node:
    """One open device node."""

    def __init__(self, name: str, directory: str = DEV, flags: int = os.O_RDWR):
        self.path = f"{directory}/{name}"
        self.directory = directory
        self.fd = os.open(self.path, flags | os.O_CLOEXEC)

    def raw(self, req: int, arg) -> int:
        """Any ioctl: @req is the whole number, @arg an int, bytearray or ctypes object. Returns 0 or the errno."""
        # Both names last until the call is over: what only this call refers to would be freed before it.
        kept = (c_uint8 * len(arg)).from_buffer(arg) if isinstance(arg, bytearray) else arg
        address = kept if isinstance(kept, int) else ctypes.addressof(kept)
        return 0 if libc.ioctl(self.fd, req, address) >= 0 else ctypes.get_errno()

    def call(self, nr: int, arg: ctypes.Structure) -> None:
        """An escape: _IOWR('F', nr, sizeof arg); OSError names the node and the number."""
        err = self.raw(request(nr, ctypes.sizeof(arg)), arg)
        if err:
            raise OSError(err, f"ioctl {nr:#x}: {os.strerror(err)}", self.path)

    def register(self, ctl: Ctl) -> None:
        self.call(NV_ESC_REGISTER_FD, RegisterFd(ctl.fd))

    def mmap(self, length: int, offset: int = 0, prot: int = mmap.PROT_READ | mmap.PROT_WRITE) -> Mapping:
        return Mapping(self, length, offset, prot)

    def close(self) -> None:
        if self.fd >= 0:
            os.close(self.fd)
        self.fd = -1

    def __enter__(self):
        return self

    def __exit__(self, *exc) -> None:
        self.close()


@contextlib.contextmanager
def closed_on_error(node: Node) -> Iterator[None]:
    """Close a file of an object that cannot be made: an open one would keep its container."""
    try:
        yield
    except BaseException:
        node.close()
        raise


libc = ctypes.CDLL(None, use_errno=True)
libc.ioctl.argtypes = [ctypes.c_int, ctypes.c_ulong, ctypes.c_void_p]
libc.mmap.restype = ctypes.c_void_p
libc.mmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int, ctypes.c_int, ctypes.c_int, ctypes.c_long]
libc.munmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t]
libc.mremap.restype = ctypes.c_void_p
libc.mremap.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_size_t, ctypes.c_int, ctypes.c_void_p]
libc.mprotect.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int]
libc.madvise.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int]


MAP_FIXED = 0x10
MAP_NORESERVE = 0x4000


class Mapping:
    """A CPU mapping made without Python's mmap, which would keep a file descriptor open beside it."""

    def __init__(self, node: Node, length: int, offset: int, prot: int, at: int | None = None):
        addr = libc.mmap(at, length, prot, mmap.MAP_SHARED | (MAP_FIXED if at else 0), node.fd, offset)
        if addr == ctypes.c_void_p(-1).value:
            err = ctypes.get_errno()
            raise OSError(err, f"mmap of {length} bytes: {os.strerror(err)}", node.path)
        self.addr = addr
        self.length = length
        self._parts = [(0, length)]  # still mapped: unmapped addresses may belong to another mapping by now

    def _at(self, ctype, offset: int):
        if not 0 <= offset <= self.length - ctypes.sizeof(ctype):
            raise IndexError(f"offset {offset:#x} of a mapping of {self.length:#x} bytes")
        return ctype.from_address(self.addr + offset)

    def read32(self, offset: int) -> int:
        return self._at(c_uint32, offset).value

    def write32(self, offset: int, value: int) -> None:
        self._at(c_uint32, offset).value = value

    def read64(self, offset: int) -> int:
        return self._at(c_uint64, offset).value

    def write64(self, offset: int, value: int) -> None:
        self._at(c_uint64, offset).value = value

    def unmap(self, offset: int, length: int) -> None:
        """A part of it."""
        end = offset + length
        kept = [((start, min(stop, offset)), (max(start, end), stop)) for start, stop in self._parts]
        self._parts = [part for both in kept for part in both if part[0] < part[1]]
        assert libc.munmap(self.addr + offset, length) == 0

    def close(self) -> None:
        for start, stop in self._parts:
            libc.munmap(self.addr + start, stop - start)
        self._parts = []
        self.addr = 0


def reserve(length: int) -> int:
    """Reserved addresses, 2 MiB aligned: inaccessible memory."""
    flags = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | MAP_NORESERVE
    addr = libc.mmap(None, length + (2 << 20), 0, flags, -1, 0)
    assert addr != ctypes.c_void_p(-1).value
    return -(-addr // (2 << 20)) * (2 << 20)


class Ctl(Node):
    """/dev/nvidiactl"""

    def __init__(self, directory: str = DEV, flags: int = os.O_RDWR):
        super().__init__("nvidiactl", directory, flags)

    def version(self, cmd: str = "2", text: str = "") -> tuple[int, str]:
        """CHECK_VERSION_STR: (reply, the driver's version)."""
        arg = Version(ord(cmd), 0, text.encode())
        self.call(NV_ESC_CHECK_VERSION_STR, arg)
        return arg.reply, arg.text.decode()

    def branch(self) -> int:
        """Of the driver: 550. That of the layouts where nothing answers, as on the recorder's fake nodes."""
        return int(self.version()[1].partition(".")[0] or 580)

    def cards(self) -> list:
        """CARD_INFO: the valid entries."""
        arg = (CardInfo * MAX_GPUS)()
        self.call(NV_ESC_CARD_INFO, arg)
        return [card for card in arg if card.valid]


class Uvm(Node):
    """/dev/nvidia-uvm: every method but open returns the rmStatus."""

    def __init__(self, directory: str = DEV, initialize: bool = True, flags: int = 0, branch: int = 0):
        super().__init__("nvidia-uvm", directory)
        self._branch = branch
        if initialize:
            with closed_on_error(self):
                check("UVM_INITIALIZE", self.initialize(flags))

    @property
    def branch(self) -> int:
        """Of the driver, which this node does not have: read from the control node once, where the caller gave none."""
        if not self._branch:
            with Ctl(self.directory) as ctl:
                self._branch = ctl.branch()
        return self._branch

    def uvm(self, nr: int, arg: ctypes.Structure) -> int:
        """A uvm call; OSError where the ioctl itself fails."""
        err = self.raw(nr, arg)
        if err:
            raise OSError(err, f"uvm ioctl {nr}: {os.strerror(err)}", self.path)
        return arg.status

    def initialize(self, flags: int = 0) -> int:
        return self.uvm(UVM_INITIALIZE, UvmInitialize(flags))

    def mm_initialize(self, other: Uvm) -> int:
        return self.uvm(UVM_MM_INITIALIZE, UvmMmInitialize(other.fd))

    def register_gpu(self, uuid: bytes) -> int:
        return self.uvm(UVM_REGISTER_GPU, UvmRegisterGpu(uuid=_uuid(uuid), ctl_fd=-1))

    def unregister_gpu(self, uuid: bytes) -> int:
        return self.uvm(UVM_UNREGISTER_GPU, UvmUuid(_uuid(uuid)))

    def register_vaspace(self, uuid: bytes, client: Client, vaspace: int) -> int:
        return self.uvm(
            UVM_REGISTER_GPU_VASPACE, UvmRegisterVaspace(_uuid(uuid), client.ctl.fd, client.handle, vaspace)
        )

    def unregister_vaspace(self, uuid: bytes) -> int:
        return self.uvm(UVM_UNREGISTER_GPU_VASPACE, UvmUuid(_uuid(uuid)))

    def register_channel(self, uuid: bytes, client: Client, channel: int, base: int = 0, length: int = 0) -> int:
        arg = UvmRegisterChannel(_uuid(uuid), client.ctl.fd, client.handle, channel, base=base, length=length)
        return self.uvm(UVM_REGISTER_CHANNEL, arg)

    def unregister_channel(self, client: Client, channel: int) -> int:
        """Without a UUID, as libcuda passes none."""
        layout = of_branch("UvmUnregisterChannel", client.branch)
        return self.uvm(UVM_UNREGISTER_CHANNEL, layout(client=client.handle, channel=channel))

    def create_range(self, base: int, length: int) -> int:
        return self.uvm(UVM_CREATE_EXTERNAL_RANGE, UvmRange(base, length))

    def reflect(self, uuid: bytes, base: int, length: int) -> int:
        """MAP_DYNAMIC_PARALLELISM_REGION: one page of a GPU's own."""
        return self.uvm(UVM_MAP_DYNAMIC_PARALLELISM_REGION, UvmMapDyn(base, length, _uuid(uuid)))

    def map(self, uuid: bytes, client: Client, memory: int, base: int, length: int, offset: int = 0) -> int:
        """MAP_EXTERNAL_ALLOCATION of one GPU's memory."""
        arg = of_branch("UvmMapExternal", client.branch)(
            base=base,
            length=length,
            offset=offset,
            gpu_count=1,
            ctl_fd=client.ctl.fd,
            client=client.handle,
            memory=memory,
        )
        arg.gpu[0].gpuUuid = _uuid(uuid)
        return self.uvm(UVM_MAP_EXTERNAL_ALLOCATION, arg)

    def managed(self, length: int, at: int | None = None) -> Mapping:
        """Managed memory: address and file offset are the same. OSError where it is refused."""
        at = at or reserve(length)
        return Mapping(self, length, at, mmap.PROT_READ | mmap.PROT_WRITE, at)

    def pool(self, base: int, length: int) -> int:
        """ALLOC_SEMAPHORE_POOL, for all GPUs alike."""
        return self.uvm(UVM_ALLOC_SEMAPHORE_POOL, of_branch("UvmPool", self.branch)(base=base, length=length))

    def mapped(self, base: int, length: int) -> Mapping:
        """A mapping of an existing range: of a pool."""
        return Mapping(self, length, base, mmap.PROT_READ | mmap.PROT_WRITE, base)

    def pageable(self) -> bool:
        """Whether the GPU can use any memory of the process (HMM)."""
        arg = UvmPageable()
        check("UVM_PAGEABLE_MEM_ACCESS", self.uvm(UVM_PAGEABLE_MEM_ACCESS, arg))
        return bool(arg.access)

    def prefer(self, uuid: bytes, base: int, length: int) -> int:
        return self.uvm(UVM_SET_PREFERRED_LOCATION, UvmPreferred(base, length, _uuid(uuid), -1))

    def migrate(self, uuid: bytes, base: int, length: int, **more: int) -> int:
        return self.uvm(UVM_MIGRATE, UvmMigrate(base, length, _uuid(uuid), node=-1, **more))

    def unmap(self, uuid: bytes, base: int, length: int) -> int:
        return self.uvm(UVM_UNMAP_EXTERNAL, UvmUnmapExternal(base, length, _uuid(uuid)))

    def free(self, base: int, length: int) -> int:
        """UVM_FREE of a whole range; up to branch 580 the driver refuses any other length."""
        arg = of_branch("UvmFree", self.branch)(base)
        if hasattr(arg, "length"):
            arg.length = length
        return self.uvm(UVM_FREE, arg)


def _uuid(raw: bytes):
    return (c_uint8 * 16).from_buffer_copy(raw)


# ---- the client ----


class Client:
    """An RM client on a control file of its own, or on the given one."""

    def __init__(self, directory: str = DEV, ctl: Ctl | None = None):
        self.directory = directory
        self.ctl = ctl or Ctl(directory)
        arg = Alloc(class_id=NV01_ROOT_CLIENT)
        with contextlib.nullcontext() if ctl else closed_on_error(self.ctl):
            self.ctl.call(NV_ESC_RM_ALLOC, arg)
            check("RM_ALLOC(0x41)", arg.status)
        self.handle = arg.handle
        self._held: list = []
        self._gpus: dict[int, Gpu] = {}
        self._branch = 0

    @property
    def branch(self) -> int:
        """Of the driver: 550."""
        self._branch = self._branch or self.ctl.branch()
        return self._branch

    def hold(self, thing):
        """Have close() close @thing: files and mappings that would keep the client alive. Returns it."""
        self._held.append(thing)
        return thing

    def p2p_caps(self, *ids: int, count: int | None = None) -> tuple[int, int, bytes, tuple[int, ...]]:
        """GET_P2P_CAPS_V2 of GPU ids: (status, capabilities, status by capability, numbers of peers)."""
        params = struct.pack(f"<{len(ids)}I", *ids).ljust(128, b"\xff")
        params += struct.pack("<I", len(ids) if count is None else count)
        params = params.ljust(bytes_of(NV0000_CTRL_CMD_SYSTEM_GET_P2P_CAPS_V2, self.branch), b"\0")
        status, answer = self.control(self.handle, NV0000_CTRL_CMD_SYSTEM_GET_P2P_CAPS_V2, params)
        return status, *struct.unpack_from("<I", answer, 132), answer[144:153], struct.unpack_from("<4I", answer, 156)

    def alloc(self, class_id: int, parent: int | None = None, params=None, handle: int = 0) -> tuple[int, int]:
        """RM_ALLOC: (status, handle). @handle 0: the driver picks one."""
        params = ctrl_params(params)
        arg = Alloc(
            root=self.handle,
            parent=self.handle if parent is None else parent,
            handle=handle,
            class_id=class_id,
            params=ctypes.addressof(params) if params is not None else 0,
            params_size=ctypes.sizeof(params) if params is not None else 0,
        )
        self.ctl.call(NV_ESC_RM_ALLOC, arg)
        return arg.status, arg.handle if not arg.status else 0

    def control(self, obj: int, cmd: int, params=None) -> tuple[int, bytes]:
        """RM_CONTROL: (status, params afterwards). A structure given as params is also updated in place."""
        params = ctrl_params(params)
        arg = Control(client=self.handle, object=obj, cmd=cmd)
        if params is not None:
            arg.params, arg.params_size = ctypes.addressof(params), ctypes.sizeof(params)
        self.ctl.call(NV_ESC_RM_CONTROL, arg)
        return arg.status, bytes(params) if params is not None else b""

    def free(self, handle: int | None = None, parent: int | None = None) -> int:
        """RM_FREE; without a handle the whole client."""
        handle = self.handle if handle is None else handle
        arg = Free(self.handle, self.handle if parent is None else parent, handle)
        self.ctl.call(NV_ESC_RM_FREE, arg)
        return arg.status

    def dup(self, parent: int, source: Client | int, source_handle: int, handle: int = 0) -> tuple[int, int]:
        """RM_DUP_OBJECT into this client: (status, handle)."""
        source = source.handle if isinstance(source, Client) else source
        arg = Dup(self.handle, parent, handle, source, source_handle)
        self.ctl.call(NV_ESC_RM_DUP_OBJECT, arg)
        return arg.status, arg.handle if not arg.status else 0

    def map_memory(
        self, node: Node, device: int, memory: int, length: int, offset: int = 0, flags: int = 0
    ) -> tuple[int, int]:
        """RM_MAP_MEMORY for a later mmap of @node, a fresh file: (status, address field)."""
        arg = MapMemory(
            client=self.handle, device=device, memory=memory, offset=offset, length=length, flags=flags, fd=node.fd
        )
        self.ctl.call(NV_ESC_RM_MAP_MEMORY, arg)
        return arg.status, arg.address

    def unmap_memory(self, device: int, memory: int, address: int) -> int:
        arg = UnmapMemory(client=self.handle, device=device, memory=memory, address=address)
        self.ctl.call(NV_ESC_RM_UNMAP_MEMORY, arg)
        return arg.status

    def map_dma(self, device: int, dma: int, memory: int, length: int, offset: int = 0) -> tuple[int, int]:
        """MAP_MEMORY_DMA into a VA space or a window on one: (status, GPU address)."""
        layout = of_branch("MapDma", self.branch)
        arg = layout(client=self.handle, device=device, dma=dma, memory=memory, offset=offset, length=length)
        self.ctl.call(NV_ESC_RM_MAP_MEMORY_DMA, arg)
        return arg.status, arg.dma_offset

    def unmap_dma(self, device: int, dma: int, memory: int, dma_offset: int) -> int:
        arg = of_branch("UnmapDma", self.branch)(self.handle, device, dma, memory, dma_offset=dma_offset)
        self.ctl.call(NV_ESC_RM_UNMAP_MEMORY_DMA, arg)
        return arg.status

    def attached_ids(self) -> list[int]:
        ids = (c_uint32 * MAX_GPUS)()
        status, _ = self.control(self.handle, NV0000_CTRL_CMD_GPU_GET_ATTACHED_IDS, ids)
        check("GPU_GET_ATTACHED_IDS", status)
        return [i for i in ids if i != NV0000_CTRL_GPU_INVALID_ID]

    def cards(self) -> list:
        """The cards with a node that opens here, in the order of the attached ids."""
        by_id = {card.gpu_id: card for card in self.ctl.cards()}
        return [by_id[i] for i in self.attached_ids() if i in by_id and self._opens(by_id[i].minor)]

    def _opens(self, minor: int) -> bool:
        try:
            Node(f"nvidia{minor}", self.directory).close()
        except OSError:
            return False
        return True

    def gpu(self, index: int = 0) -> Gpu:
        """The client's one device of that GPU: the driver gives it no second one."""
        if index not in self._gpus:
            self._gpus[index] = Gpu(self, self.cards()[index])
        return self._gpus[index]

    def close(self) -> None:
        """Close the control file and all that holds it: the driver frees the client."""
        while self._held:
            self._held.pop().close()
        self.ctl.close()

    def __enter__(self):
        return self

    def __exit__(self, *exc) -> None:
        self.close()


class Gpu:
    """A GPU node, registered, with a device and a subdevice."""

    def __init__(self, client: Client, card):
        self.rm = client
        self.card = card
        self.minor = card.minor
        self.node = client.hold(self.open_node())
        self.node.register(client.ctl)
        info = IdInfo(gpu_id=card.gpu_id)
        check("GPU_GET_ID_INFO_V2", client.control(client.handle, NV0000_CTRL_CMD_GPU_GET_ID_INFO_V2, info)[0])
        status, self.device = client.alloc(NV01_DEVICE_0, None, DeviceParams(device_id=info.device_instance))
        check("RM_ALLOC(0x80)", status)
        status, self.subdevice = client.alloc(NV20_SUBDEVICE_0, self.device, SubdeviceParams(info.sub_device_instance))
        check("RM_ALLOC(0x2080)", status)
        gid = GidInfo(flags=NV2080_GPU_CMD_GPU_GET_GID_FLAGS_FORMAT_BINARY)
        check("GPU_GET_GID_INFO", self.control(NV2080_CTRL_CMD_GPU_GET_GID_INFO, gid)[0])
        self.uuid = bytes(gid.data[:16])

    def open_node(self) -> Node:
        """A fresh file of the GPU's node, not registered."""
        return Node(f"nvidia{self.minor}", self.rm.directory)

    def registered_node(self) -> Node:
        """A fresh file of the GPU's node."""
        node = self.open_node()
        node.register(self.rm.ctl)
        return node

    def export_dmabuf(
        self, *memory: int, size: int, fd: int = -1, client: int = 0, node: Node | None = None
    ) -> tuple[int, int]:
        """Memory as a dma-buf, by a registered node that stays open, or one for this call: (status, its fd)."""
        layout = of_branch("ExportDmabuf", self.rm.branch)
        arg = layout(fd, client or self.rm.handle, len(memory), len(memory), 0, size * len(memory))
        for at, handle in enumerate(memory):
            arg.handles[at], arg.sizes[at] = handle, size
        with contextlib.nullcontext(node) if node else self.registered_node() as one:
            one.call(NV_ESC_EXPORT_TO_DMABUF_FD, arg)
        return arg.status, arg.fd

    def control(self, cmd: int, params=None) -> tuple[int, bytes]:
        """A control on the subdevice."""
        return self.rm.control(self.subdevice, cmd, params)

    def name(self) -> str:
        status, answer = self.control(
            NV2080_CTRL_CMD_GPU_GET_NAME_STRING, bytes_of(NV2080_CTRL_CMD_GPU_GET_NAME_STRING, self.rm.branch)
        )
        check("GPU_GET_NAME_STRING", status)
        return answer[4:].partition(b"\0")[0].decode()

    def fb_info(self, *indexes: int) -> list[int]:
        """FB_GET_INFO_V2 of the given indexes, in the driver's unit (KiB for sizes)."""
        arg = FbInfo(count=len(indexes))
        for i, index in enumerate(indexes):
            arg.list[i].index = index
        status, answer = self.control(
            NV2080_CTRL_CMD_FB_GET_INFO_V2, in_branch(NV2080_CTRL_CMD_FB_GET_INFO_V2, arg, self.rm.branch)
        )
        check("FB_GET_INFO_V2", status)
        return [struct.unpack_from("<I", answer, 8 + 8 * i)[0] for i in range(len(indexes))]

    def memory(self) -> dict[str, int]:
        """Bytes: ram (the card), total (its heap), free."""
        ram, total, free = self.fb_info(
            NV2080_CTRL_FB_INFO_INDEX_RAM_SIZE, NV2080_CTRL_FB_INFO_INDEX_HEAP_SIZE, NV2080_CTRL_FB_INFO_INDEX_HEAP_FREE
        )
        return {"ram": ram << 10, "total": total << 10, "free": free << 10}

    def processes(self) -> dict[int, int]:
        """Bytes by pid of the processes with a context, as this process may see them."""
        pids = Pids(id=KEPLER_CHANNEL_GROUP_A)
        check("GPU_GET_PIDS", self.control(NV2080_CTRL_CMD_GPU_GET_PIDS, pids)[0])
        info = PidInfo(count=min(pids.count, 200))
        for i in range(info.count):
            info.list[i].pid = pids.pid[i]
        if info.count:
            check("GPU_GET_PID_INFO", self.control(NV2080_CTRL_CMD_GPU_GET_PID_INFO, info)[0])
        return {e.pid: e.data.memPrivate + e.data.memSharedOwned for e in info.list[: info.count]}

    def classes(self, branch: int = 0) -> set[int]:
        branch = branch or self.rm.branch
        size = bytes_of(NV0080_CTRL_CMD_GPU_GET_CLASSLIST_V2, branch)
        status, answer = self.rm.control(self.device, NV0080_CTRL_CMD_GPU_GET_CLASSLIST_V2, size)
        check("GPU_GET_CLASSLIST_V2", status)
        count, *classes = struct.unpack(f"<{size // 4}I", answer)
        return set(classes[:count])

    def arch(self, branch: int = 0) -> tuple[int, int, int, int]:
        """(gpfifo, usermode, compute, copy) classes."""
        have = self.classes(branch)
        for classes in ARCHS.values():
            if classes[0] in have and classes[2] in have:
                return classes
        raise RmError("a channel class known here in GPU_GET_CLASSLIST_V2", NV_ERR_NOT_SUPPORTED)

    def video_class(self, engine: int) -> int:
        """Of the objects of a video engine; RmError where the GPU has none."""
        for one in self.classes():
            if one >= FIRST_VIDEO_CLASS and one & 0xFF == VIDEO[engine]:
                return one
        raise RmError(f"a class of engine {engine:#x} in GPU_GET_CLASSLIST_V2", NV_ERR_NOT_SUPPORTED)

    def alloc_vidmem(self, size: int, handle: int = 0, **fields) -> tuple[int, int]:
        """RM_ALLOC of class 0x40: (status, handle). @fields override MemoryParams."""
        huge = size % VA_ALIGN == 0
        values = {
            "owner": self.rm.handle,
            "size": size,
            "attr": ATTR_NONCONTIG_ALLOWED | (ATTR_PAGE_HUGE if huge else 0),
            "attr2": ATTR2_PAGE_2M if huge else 0,
        }
        params = in_branch(NV01_MEMORY_LOCAL_USER, MemoryParams(**(values | fields)), self.rm.branch)
        return self.rm.alloc(NV01_MEMORY_LOCAL_USER, self.device, params, handle)

    def alloc_sysmem(self, size: int, handle: int = 0, **fields) -> tuple[int, int]:
        """RM_ALLOC of class 0x3e: (status, handle)."""
        values = {"owner": self.rm.handle, "size": size, "attr": ATTR_NONCONTIG_ALLOWED | ATTR_LOCATION_PCI}
        params = in_branch(NV01_MEMORY_SYSTEM, MemoryParams(**(values | fields)), self.rm.branch)
        return self.rm.alloc(NV01_MEMORY_SYSTEM, self.device, params, handle)

    def map_cpu(self, memory: int, length: int, offset: int = 0, system: bool = False, parent: int = 0) -> Mapping:
        """A CPU mapping through a fresh file, which is closed again."""
        with Ctl(self.rm.directory) if system else self.open_node() as node:
            if not system:
                node.register(self.rm.ctl)
            status, _ = self.rm.map_memory(node, parent or self.device, memory, length, offset)
            check("RM_MAP_MEMORY", status)
            return self.rm.hold(node.mmap(length))

    def free(self, handle: int) -> int:
        return self.rm.free(handle, self.device)

    def space(self) -> Space:
        return Space(self)


# ---- contexts ----


#: More than the buffers of a context need.
CONTEXT_VA = 64 << 20


class Space:
    """A VA space registered with a uvm file of its own."""

    def __init__(self, gpu: Gpu):
        self.gpu = gpu
        self.uvm = gpu.rm.hold(Uvm(gpu.rm.directory, branch=gpu.rm.branch))
        self.next_va = FIRST_VA
        self.lengths: dict[int, int] = {}  # of the ranges made by map(), by GPU address
        params = in_branch(FERMI_VASPACE_A, VaspaceParams(flags=VASPACE_FLAGS), gpu.rm.branch)
        status, self.vaspace = gpu.rm.alloc(FERMI_VASPACE_A, gpu.device, params)
        check("RM_ALLOC(0x90f1)", status)
        self.mm = gpu.rm.hold(Uvm(gpu.rm.directory, initialize=False))
        status = self.mm.mm_initialize(self.uvm)
        check("UVM_MM_INITIALIZE", 0 if status == NV_WARN_NOTHING_TO_DO else status)
        check("UVM_REGISTER_GPU", self.uvm.register_gpu(gpu.uuid))
        check("UVM_REGISTER_GPU_VASPACE", self.uvm.register_vaspace(gpu.uuid, gpu.rm, self.vaspace))

    def reserve(self, length: int) -> int:
        """A GPU address range that is unused in this space."""
        base = self.next_va
        self.next_va += -(-length // VA_ALIGN) * VA_ALIGN
        return base

    def map(self, memory: int, length: int, offset: int = 0) -> tuple[int, int]:
        """Make a range and map memory into it: (status, GPU address)."""
        base = self.reserve(length)
        self.lengths[base] = -(-length // 0x10000) * 0x10000
        status = self.uvm.create_range(base, self.lengths[base])
        if not status:
            status = self.uvm.map(self.gpu.uuid, self.gpu.rm, memory, base, length, offset)
        return status, base

    def unmap(self, base: int) -> int:
        """Give back the range that map() made at this GPU address."""
        return self.uvm.free(base, self.lengths.pop(base))

    def bind(self, channel: Channel) -> int:
        """UVM_REGISTER_CHANNEL with a range for the context's buffers. NVIDIA's driver schedules no other channel."""
        base = self.reserve(CONTEXT_VA)
        return self.uvm.register_channel(self.gpu.uuid, self.gpu.rm, channel.handle, base, CONTEXT_VA)

    def group(self, engine: int = NV2080_ENGINE_TYPE_GRAPHICS, of: Group | None = None) -> Group:
        """A channel group, or a second handle of one of any client: its channels then are in this VA space."""
        return Group(self, engine, of)

    def close(self) -> None:
        self.uvm.close()
        self.gpu.free(self.vaspace)


class Group:
    """A TSG with its doorbell page; not enabled before its first channel is made."""

    def __init__(self, space: Space, engine: int, of: Group | None = None):
        self.space, self.gpu, self.engine = space, space.gpu, engine
        self.context_share = 0
        gpu = space.gpu
        self.gpfifo_class, usermode, self.compute_class, self.copy_class = gpu.arch()
        status, self.notifier = gpu.alloc_sysmem(4096)
        check("RM_ALLOC(0x3e)", status)
        self.notifier_cpu = gpu.map_cpu(self.notifier, 4096, system=True)
        if of:
            status, self.tsg = gpu.rm.dup(gpu.device, of.gpu.rm, of.tsg)
            check("RM_DUP_OBJECT", status)
            params = ContextShareParams(vaspace=space.vaspace)
            status, self.context_share = gpu.rm.alloc(FERMI_CONTEXT_SHARE_A, self.tsg, params)
            check("RM_ALLOC(0x9067)", status)
        else:
            params = TsgParams(error_object=self.notifier, vaspace=space.vaspace, engine=engine)
            status, self.tsg = gpu.rm.alloc(KEPLER_CHANNEL_GROUP_A, gpu.device, params)
            check("RM_ALLOC(0xa06c)", status)
        status, self.usermode = gpu.rm.alloc(usermode, gpu.subdevice)
        check(f"RM_ALLOC({usermode:#x})", status)
        self.doorbell = gpu.map_cpu(self.usermode, NVC361_NV_USERMODE__SIZE, parent=gpu.subdevice)

    def enable(self, on: bool = True) -> int:
        """GPFIFO_SCHEDULE: status."""
        params = in_branch(NVA06C_CTRL_CMD_GPFIFO_SCHEDULE, bytes([on, 0, 0]), self.gpu.rm.branch)
        return self.gpu.rm.control(self.tsg, NVA06C_CTRL_CMD_GPFIFO_SCHEDULE, params)[0]

    def control(self, cmd: int, params=None) -> tuple[int, bytes]:
        return self.gpu.rm.control(self.tsg, cmd, params)

    def fault(self) -> int:
        """0, or the error code that the driver wrote to the error notifier."""
        if not self.notifier_cpu.read32(12) >> 16:
            return 0
        return self.notifier_cpu.read32(8) or 1

    def channel(self, entries: int = 64, enable: bool = True, handle: int = 0, session: bool = True) -> Channel:
        """@session: with an object, where the engine is one of video."""
        return Channel(self, entries, enable, handle, session)

    def close(self) -> None:
        self.gpu.free(self.tsg)
        self.doorbell.close()
        self.notifier_cpu.close()
        self.gpu.free(self.usermode)
        self.gpu.free(self.notifier)


class Channel:
    """A ring. Work n (from 0) is complete when the semaphore in slot n % entries holds n + 1."""

    def __init__(self, group: Group, entries: int = 64, enable: bool = True, handle: int = 0, session: bool = True):
        self.group, self.gpu, self.entries = group, group.gpu, entries
        self.queued = 0
        self.done = 0
        gpu = self.gpu
        self.pb_at = entries * 16
        self.ring_at = self.pb_at + entries * 32
        self.userd_at = -(-(self.ring_at + entries * 8) // NV_RAMUSERD_CHAN_SIZE) * NV_RAMUSERD_CHAN_SIZE
        self.size = -(-(self.userd_at + NV_RAMUSERD_CHAN_SIZE) // 4096) * 4096
        status, self.memory = gpu.alloc_sysmem(self.size)
        check("RM_ALLOC(0x3e)", status)
        status, self.va = group.space.map(self.memory, self.size)
        check("UVM_MAP_EXTERNAL_ALLOCATION", status)
        self.cpu = gpu.map_cpu(self.memory, self.size, system=True)
        params = in_branch(group.gpfifo_class, self.params(), gpu.rm.branch)
        status, self.handle = gpu.rm.alloc(group.gpfifo_class, group.tsg, params, handle)
        check(f"RM_ALLOC({group.gpfifo_class:#x})", status)
        self.object = 0
        if group.engine in VIDEO:
            status = self.session()[0] if session else 0
        elif group.engine == NV2080_ENGINE_TYPE_GRAPHICS:
            status, self.object = gpu.rm.alloc(group.compute_class, self.handle)
        else:
            status, self.object = gpu.rm.alloc(group.copy_class, self.handle, CopyParams(1, group.engine))
        check("RM_ALLOC of the engine object", status)
        status, token = gpu.rm.control(self.handle, NVC36F_CTRL_CMD_GPFIFO_GET_WORK_SUBMIT_TOKEN, 4)
        check("GET_WORK_SUBMIT_TOKEN", status)
        self.token = int.from_bytes(token, "little")
        if enable:
            check("GPFIFO_SCHEDULE", group.enable())

    def session(self) -> tuple[int, int]:
        """An object of the channel's video engine: (status, handle)."""
        cls = self.gpu.video_class(self.group.engine)
        size = 8 if self.group.engine == NV2080_ENGINE_TYPE_OFA0 and self.gpu.rm.branch < 545 else 12
        return self.gpu.rm.alloc(cls, self.handle, struct.pack("<3I", size, 0, 0)[:size])

    def params(self) -> ctypes.Structure:
        arg = of_branch("ChannelParams", self.gpu.rm.branch)(
            error_object=self.group.notifier,
            gpfifo_va=self.va + self.ring_at,
            gpfifo_entries=self.entries,
            engine=self.group.engine,
            context_share=self.group.context_share,
        )
        arg.userd_memory[0] = self.memory
        arg.userd_offset[0] = self.userd_at
        return arg

    def submit(
        self,
        kernel_ns: int = 0,
        copy_bytes: int = 0,
        frame_ns: int = 0,
        count: int = 1,
        flags: int = 0,
        op: int | None = None,
        sem_va: int | None = None,
    ) -> None:
        """Queue @count works and ring the doorbell. @op and @sem_va may be garbage, to provoke a fault."""
        if self.queued - self.reap() + count >= self.entries:
            raise ValueError(f"the ring of {self.entries} entries has no room for {count} more")
        if op is None:
            op = OP_KERNEL if kernel_ns else OP_COPY if copy_bytes else OP_FRAME if frame_ns else OP_RELEASE
        for _ in range(count):
            slot = self.queued % self.entries
            self._describe(slot, op, flags, kernel_ns or copy_bytes or frame_ns, sem_va)
            va = self.va + self.pb_at + slot * 32
            self.cpu.write64(self.ring_at + slot * 8, va & 0xFFFFFFFC | (va >> 32 & 0xFF) << 32 | 8 << 42)
            self.queued += 1
        self.cpu.write32(self.userd_at + NV_USERD_GPPUT, self.queued % self.entries)
        self.ring()

    def _describe(self, slot: int, op: int, flags: int, amount: int, sem_va: int | None) -> None:
        at = self.pb_at + slot * 32
        self.cpu.write32(at, op)
        self.cpu.write32(at + 4, flags)
        self.cpu.write64(at + 8, amount)
        self.cpu.write64(at + 16, self.va + slot * 16 if sem_va is None else sem_va)
        self.cpu.write64(at + 24, self.queued + 1)

    def ring(self) -> None:
        self.group.doorbell.write32(NVC361_NOTIFY_CHANNEL_PENDING, self.token)

    def reap(self) -> int:
        """Works complete so far."""
        while self.done < self.queued and self.cpu.read64(self.done % self.entries * 16) == self.done + 1:
            self.done += 1
        return self.done

    def gpu_time(self, work: int) -> int:
        """When work number @work was complete, in the GPU's ns. It must be among the last @entries."""
        return self.cpu.read64(work % self.entries * 16 + 8)

    def pending(self) -> bool:
        """GPPut != GPGet, as a runlist sees it."""
        return self.cpu.read32(self.userd_at + NV_USERD_GPPUT) != self.cpu.read32(self.userd_at + NV_USERD_GPGET)

    def wait(self, timeout: float = 10.0, poll: float = 0.001) -> int:
        """Until everything queued is complete, or TimeoutError; returns the works complete."""
        end = time.monotonic() + timeout
        while self.reap() < self.queued:
            if time.monotonic() > end:
                raise TimeoutError(f"{self.done} of {self.queued} works complete after {timeout} s")
            time.sleep(poll)
        return self.done

    def control(self, cmd: int, params=None) -> tuple[int, bytes]:
        return self.gpu.rm.control(self.handle, cmd, params)

    def close(self) -> None:
        self.gpu.rm.free(self.handle, self.group.tsg)
        self.cpu.close()
        self.gpu.free(self.memory)
        self.group.space.unmap(self.va)
