# SPDX-License-Identifier: MIT
"""Hostile tenants. Each test is named after the gain it attempts; none may gain memory, time or sight.

After every attack: the card's memory in use for the attacker is no more than its charge, its neighbour is unchanged,
and once the attacker is gone nothing of it is left.
"""

from __future__ import annotations

import ctypes
import mmap
import os
import random
import socket
import struct
import threading
import time
from collections.abc import Iterator

import pytest
from missing_pages import PAGE, Pages
from slicebox import MIB, PROC, Box, clean_box, fb_used, until, vidmem
from slicebox import nvclient as nv

pytestmark = pytest.mark.attached

LIMIT_MIB = 256
NEIGHBOUR_MIB = 40


@pytest.fixture
def neighbour() -> Iterator[nv.Gpu]:
    """A container that does nothing but hold 40 MiB of the card."""
    with Box("0b" * 32, 512) as box, box.client() as client:
        gpu = client.gpu(0)
        context = gpu.space().group()
        memory = context.channel().memory
        context.close()
        gpu.free(memory)
        assert gpu.alloc_vidmem(NEIGHBOUR_MIB * MIB)[0] == 0
        gpu.box = box
        yield gpu
        assert box.used == NEIGHBOUR_MIB * MIB
        assert gpu.memory()["total"] == 512 * MIB


@pytest.fixture
def box(neighbour: nv.Gpu) -> Iterator[Box]:
    with clean_box(LIMIT_MIB) as made:
        yield made


def taken() -> int:
    """Memory of the attacker by the simulated card's own count."""
    return fb_used() - NEIGHBOUR_MIB * MIB


def held_in_check(box: Box) -> None:
    """The size of a context is known: the module measured it at the neighbour's."""
    assert taken() <= box.used <= LIMIT_MIB * MIB


@pytest.mark.checked
@pytest.mark.stock_only  # the debug kernel has no userfaultfd
def test_memory_by_a_size_that_grows_while_it_is_read(box: Box):
    """The first read of the parameters stops at a page that is missing, and their size grows: what was read then is
    what the driver gets.
    """
    with box.client() as client:
        gpu = client.gpu(0)
        arg, params = vidmem(gpu, 2 * MIB)
        raw, size_at = bytes(params), nv.MemoryParams.size.offset
        here, pages = size_at + 8, Pages(2)
        begin = pages.at + PAGE - here
        pages.put(0, raw[:here].rjust(PAGE, b"\0"))
        arg.params = begin
        call = threading.Thread(target=client.ctl.call, args=(nv.NV_ESC_RM_ALLOC, arg))
        call.start()
        assert pages.wait() == 1
        ctypes.c_uint64.from_address(begin + size_at).value = 2 * LIMIT_MIB * MIB
        pages.put(1, raw[here:])
        call.join()
        assert (arg.status, box.used, taken()) == (0, 2 * MIB, 2 * MIB)


class Flipper:
    """Another thread that keeps rewriting words of buffers while the driver reads them."""

    def __init__(self, *buffers: ctypes.Structure | ctypes.Array):
        self._random = random.Random(1)
        self._words = [
            ctypes.c_uint32.from_buffer(buffer, at)
            for buffer in buffers
            for at in range(0, ctypes.sizeof(buffer) - 3, 4)
        ]
        self._stop = False
        self._thread = threading.Thread(target=self._run)

    def _run(self) -> None:
        pool = (0, 1, 2, 0x40, 0x3E, 0x80, 0xFFFFFFFF, 0x80000000, 512 * MIB, 0xA06C0101, 0x2080110B, 0x5000)
        while not self._stop:
            word = self._random.choice(self._words)
            was = word.value
            word.value = self._random.choice(pool)
            word.value = was

    def __enter__(self) -> Flipper:
        self._thread.start()
        return self

    def __exit__(self, *exc: object) -> None:
        self._stop = True
        self._thread.join()


def test_another_call_by_rewriting_a_control(box: Box):
    with box.client() as client:
        gpu = client.gpu(0)
        group = gpu.space().group()
        group.channel()
        params = nv.FbInfo(count=1)
        arg = nv.Control(
            client=client.handle,
            object=gpu.subdevice,
            cmd=nv.NV2080_CTRL_CMD_FB_GET_INFO_V2,
            params=ctypes.addressof(params),
            params_size=ctypes.sizeof(params),
        )
        with Flipper(arg, params):
            for _ in range(300):
                params.count = 1
                params.list[0].index = nv.NV2080_CTRL_FB_INFO_INDEX_RAM_SIZE
                arg.status = 0
                params.list[0].data = 0
                client.ctl.raw(nv.request(nv.NV_ESC_RM_CONTROL, ctypes.sizeof(arg)), arg)
                # The card's own size must never be visible, not even by forged parameters.
                assert params.list[0].data != 15109 * 1024
        held_in_check(box)


class Frozen:
    """Parameters in read-only memory: the driver acts on them and cannot write its answer."""

    def __init__(self, params: ctypes.Structure | bytes):
        raw = bytes(params)
        self.size = len(raw)
        self._page = mmap.mmap(-1, -(-self.size // mmap.PAGESIZE) * mmap.PAGESIZE)
        self._page[: self.size] = raw
        self.address = ctypes.addressof(ctypes.c_char.from_buffer(self._page))
        nv.libc.mprotect(ctypes.c_void_p(self.address), ctypes.c_size_t(len(self._page)), mmap.PROT_READ)


def frozen_control(client: nv.Client, obj: int, cmd: int, params: ctypes.Structure | bytes) -> None:
    """Ignores status and errno, which may report either; the ledger has to be right in both cases."""
    frozen = Frozen(params)
    arg = nv.Control(client=client.handle, object=obj, cmd=cmd, params=frozen.address, params_size=frozen.size)
    client.ctl.raw(nv.request(nv.NV_ESC_RM_CONTROL, ctypes.sizeof(arg)), arg)


@pytest.mark.parametrize("named", [True, False])
def test_memory_by_parameters_that_cannot_be_answered(box: Box, named: bool):
    with box.client() as client:
        gpu = client.gpu(0)
        for n in range(8):
            arg, params = vidmem(gpu, 32 * MIB, 0x7000 + n if named else 0)
            frozen = Frozen(params)
            arg.params = frozen.address
            client.ctl.raw(nv.request(nv.NV_ESC_RM_ALLOC, ctypes.sizeof(arg)), arg)
            held_in_check(box)


def test_memory_by_exports_that_cannot_be_answered(box: Box):
    with box.client() as client, nv.Ctl(box.dev) as one, nv.Ctl(box.dev) as many:
        gpu = client.gpu(0)
        memory = [gpu.alloc_vidmem(64 * MIB)[1] for _ in range(2)]
        export = struct.pack("<IIIIiI", 1, gpu.device, gpu.device, memory[0], one.fd, 0)
        frozen_control(client, client.handle, 0x3D05, export)
        export = struct.pack("<iIH", many.fd, gpu.device, 4).ljust(76, b"\0")
        export += struct.pack("<I", memory[1]).ljust(2048, b"\0") + struct.pack("<HH", 1, 0)
        frozen_control(client, client.handle, 0x3D0B, export)
        for handle in memory:
            assert gpu.free(handle) == 0
            held_in_check(box)


def test_memory_by_imports_that_cannot_be_answered(box: Box):
    with box.client() as client:
        gpu = client.gpu(0)
        for handle in (0, 0x7100):
            _, memory = gpu.alloc_vidmem(64 * MIB)
            with nv.Ctl(box.dev) as carrier:
                export = struct.pack("<IIIIiI", 1, gpu.device, gpu.device, memory, carrier.fd, 0)
                assert client.control(client.handle, 0x3D05, export)[0] == 0
                take = struct.pack("<iIIII", carrier.fd, 1, gpu.device, gpu.device, handle)
                frozen_control(client, client.handle, 0x3D06, take)
            assert gpu.free(memory) == 0
            held_in_check(box)


def test_time_by_a_schedule_that_cannot_be_answered(box: Box, neighbour: nv.Gpu):
    """The channel is enabled out of turn and the call reports a failure: the channel is frozen nevertheless."""
    policy = PROC / "0/policy"
    policy.write_text("2\n")
    try:
        (box.proc / "weight").write_text("0\n")
        until(lambda: box.stat("running") == 0)
        with box.client() as client:
            group = client.gpu(0).space().group()
            channel = group.channel(enable=False)
            frozen_control(client, group.tsg, nv.NVA06C_CTRL_CMD_GPFIFO_SCHEDULE, bytes([1, 0, 0]))
            channel.submit(kernel_ns=1000)
            time.sleep(1)
            assert channel.reap() == 0
    finally:
        policy.write_text("5\n")


def test_memory_by_a_dma_mapping(box: Box):
    with box.client() as client:
        gpu = client.gpu(0)
        space = gpu.space()
        for _ in range(8):
            _, memory = gpu.alloc_vidmem(100 * MIB)
            assert client.map_dma(gpu.device, space.vaspace, memory, 100 * MIB)[0] == 0
            assert gpu.free(memory) == 0
            held_in_check(box)


def test_memory_by_many_tiny_allocations(box: Box):
    """An allocation of a byte is charged what the driver reserves for it: the limit is reached, and the card agrees."""
    with box.client() as client:
        gpu = client.gpu(0)
        arg, params = vidmem(gpu, 1)
        made = 0
        for handle in range(0x10000, 0x10000 + LIMIT_MIB * 16 + 100):
            arg.handle, params.size, params.attr = handle, 1, nv.ATTR_NONCONTIG_ALLOWED
            client.ctl.call(nv.NV_ESC_RM_ALLOC, arg)
            if arg.status:
                break
            made += 1
        assert arg.status == nv.NV_ERR_NO_MEMORY
        assert made == LIMIT_MIB * 16, "64 KiB each"
        held_in_check(box)
        begin = time.monotonic()
        assert gpu.memory()["free"] == 0
        assert time.monotonic() - begin < 5, "a full container does not stall its own calls"


@pytest.mark.parametrize("flags", [1, 2, 4, 1 << 31])
def test_parameters_in_another_form(box: Box, flags: int):
    """By FINN_SERIALIZED (4 of a control, 1 of an allocation) the driver decodes them: not what was checked."""
    with box.client() as client:
        gpu = client.gpu(0)
        refused = box.stat("refused_calls")
        arg, _params = vidmem(gpu, MIB)
        arg.flags = flags
        client.ctl.call(nv.NV_ESC_RM_ALLOC, arg)
        assert arg.status == nv.NV_ERR_INVALID_ARGUMENT
        name = (ctypes.c_uint8 * nv.bytes_of(nv.NV2080_CTRL_CMD_GPU_GET_NAME_STRING, client.branch))()
        for answered in (flags, 0):
            control = nv.Control(client.handle, gpu.subdevice, nv.NV2080_CTRL_CMD_GPU_GET_NAME_STRING, answered)
            control.params, control.params_size = ctypes.addressof(name), ctypes.sizeof(name)
            client.ctl.call(nv.NV_ESC_RM_CONTROL, control)
            assert control.status == (nv.NV_ERR_INVALID_ARGUMENT if answered else 0)
        assert box.stat("refused_calls") == refused + 2
        held_in_check(box)


def test_memory_by_overflowing_sizes(box: Box):
    with box.client() as client:
        gpu = client.gpu(0)
        space = gpu.space()
        top = 1 << 64
        for size in (0, 1 << 32, (1 << 32) + 4096, (1 << 52) + 1, 1 << 63, top - 65536, top - 65535, top - 1):
            for attr2 in (0, 1 << 20, 2 << 20, 3 << 20):
                for attr in (0, 1 << 23, 2 << 23, 3 << 23):
                    gpu.alloc_vidmem(size, attr=attr | nv.ATTR_NONCONTIG_ALLOWED, attr2=attr2)
                    held_in_check(box)
        status, memory = gpu.alloc_vidmem(2 * MIB)
        if not status:
            for length in (1 << 63, (1 << 64) - 1, 4 * MIB):
                assert client.map_dma(gpu.device, space.vaspace, memory, length)[0]
                assert space.uvm.map(gpu.uuid, client, memory, space.reserve(2 * MIB), length)


def test_the_neighbours_memory_by_its_handles(box: Box, neighbour: nv.Gpu):
    """Clients and handles are numbers that can be guessed."""
    theirs = neighbour.rm.handle
    with box.client() as client:
        gpu = client.gpu(0)
        for handle in (0, neighbour.device, neighbour.subdevice, *range(0xCAF00000, 0xCAF00020)):
            assert client.dup(gpu.device, theirs, handle)[0]
            arg = nv.Free(theirs, neighbour.device, handle)
            client.ctl.call(nv.NV_ESC_RM_FREE, arg)
            assert arg.status
            control = nv.Control(client=theirs, object=handle, cmd=nv.NV2080_CTRL_CMD_GPU_GET_NAME_STRING)
            client.ctl.call(nv.NV_ESC_RM_CONTROL, control)
            assert control.status
            with gpu.open_node() as node:
                node.register(client.ctl)
                mapping = nv.MapMemory(client=theirs, device=neighbour.device, memory=handle, length=4096, fd=node.fd)
                client.ctl.call(nv.NV_ESC_RM_MAP_MEMORY, mapping)
                assert mapping.status
        space = gpu.space()
        base = space.reserve(2 * MIB)
        assert space.uvm.create_range(base, 2 * MIB) == 0
        arg = nv.UvmMapExternal(base=base, length=2 * MIB, gpu_count=1, client=theirs, memory=0xCAF00002)
        arg.gpu[0].gpuUuid = nv._uuid(gpu.uuid)
        assert space.uvm.uvm(nv.UVM_MAP_EXTERNAL_ALLOCATION, arg)


def test_the_neighbours_channels_by_a_list(box: Box, neighbour: nv.Gpu):
    channel = neighbour.space().group().channel()
    channel.submit(kernel_ns=1000)
    channel.wait()
    with box.client() as client:
        gpu = client.gpu(0)
        mine = gpu.space().group().channel()
        lists = [[(neighbour.rm.handle, channel.handle)]]
        lists.append([(client.handle, mine.handle), *lists[0]])
        for pairs in lists:
            arg = nv.DisableChannels(disable=1, count=len(pairs))
            for i, (owner, handle) in enumerate(pairs):
                arg.client[i], arg.channel[i] = owner, handle
            assert gpu.control(nv.NV2080_CTRL_CMD_FIFO_DISABLE_CHANNELS, arg)[0]
        channel.submit(kernel_ns=1000)
        channel.wait()
    channel.group.close()
    neighbour.free(channel.memory)
    neighbour.rm._held.pop().close()  # the mapping of it
    until(lambda: neighbour.box.used == NEIGHBOUR_MIB * MIB)


def test_the_neighbours_files_over_a_socket(box: Box, neighbour: nv.Gpu):
    """A neighbour that passes its files on gives its own rights away, but these do not work through our files."""
    ours, theirs = socket.socketpair()
    socket.send_fds(theirs, [b"x"], [neighbour.rm.ctl.fd, neighbour.node.fd])
    _, (ctl, node), _, _ = socket.recv_fds(ours, 1, 2)
    with box.client() as client, gpu_node(box) as fresh:
        gpu = client.gpu(0)
        with pytest.raises(OSError):
            fresh.call(nv.NV_ESC_REGISTER_FD, nv.RegisterFd(ctl))
        _, memory = gpu.alloc_vidmem(2 * MIB)
        arg = nv.MapMemory(client=client.handle, device=gpu.device, memory=memory, length=4096, fd=node)
        client.ctl.call(nv.NV_ESC_RM_MAP_MEMORY, arg)
        assert arg.status
        assert box.used == 2 * MIB
    for fd in (ctl, node):
        os.close(fd)


CLONE_NEWUSER, SYS_PIDFD_OPEN, SYS_PIDFD_GETFD, SYS_PROCESS_VM_READV = 0x10000000, 434, 438, 310
PTRACE_ATTACH, PTRACE_SEIZE = 16, 0x4206


def ways_into(pid: int, fd: int, mapping: nv.Mapping) -> list[str]:
    """The ways into another process that this process has."""
    buffer = ctypes.create_string_buffer(16)
    local = (ctypes.c_uint64 * 2)(ctypes.addressof(buffer), 16)
    remote = (ctypes.c_uint64 * 2)(mapping.addr, 16)
    nv.libc.syscall.restype = ctypes.c_long
    pidfd = nv.libc.syscall(SYS_PIDFD_OPEN, pid, 0)
    calls = {
        "attach": lambda: nv.libc.ptrace(PTRACE_ATTACH, pid, None, None),
        "seize": lambda: nv.libc.ptrace(PTRACE_SEIZE, pid, None, None),
        "read": lambda: nv.libc.syscall(SYS_PROCESS_VM_READV, pid, local, 1, remote, 1, 0),
        "take": lambda: nv.libc.syscall(SYS_PIDFD_GETFD, pidfd, fd, 0),
    }
    found = [name for name, call in calls.items() if call() >= 0]
    place = f"{mapping.addr:x}-{mapping.addr + mapping.length:x}"
    for path in (f"fd/{fd}", "mem", f"map_files/{place}", "root/dev/nvidiactl"):
        try:
            os.close(os.open(f"/proc/{pid}/{path}", os.O_RDWR))
            found.append(path)
        except OSError:
            pass
    return found


def test_the_neighbours_process_by_ptrace(neighbour: nv.Gpu):
    """From a user namespace of its own, as a container has: there is no way in, although the process is visible."""
    status, memory = neighbour.alloc_vidmem(64 * 1024)
    assert status == 0
    mapping = neighbour.map_cpu(memory, 4096)
    pid = os.getpid()
    child = os.fork()
    if not child:
        try:
            left = ["no namespace"] if nv.libc.unshare(CLONE_NEWUSER) else ways_into(pid, neighbour.rm.ctl.fd, mapping)
            os.write(2, f"{left}\n".encode())
        finally:
            os._exit(len(left))
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    neighbour.rm._held.remove(mapping)
    mapping.close()
    neighbour.free(memory)
    until(lambda: neighbour.box.used == NEIGHBOUR_MIB * MIB)


def gpu_node(box: Box) -> nv.Node:
    return nv.Node("nvidia0", box.dev)


def shared_data(client: nv.Client, gpu: nv.Gpu):
    """The content of the page of class 0xde, for each way of mapping it."""
    status, shared = client.alloc(0xDE, gpu.subdevice, handle=0x5C000001)
    assert status == 0
    for length in (2600, 4096, 4 * 4096):
        with nv.Ctl(client.directory) as node:
            assert client.map_memory(node, gpu.subdevice, shared, length)[0] == 0
            mapping = node.mmap(-(-length // 4096) * 4096, prot=mmap.PROT_READ)
            yield ctypes.string_at(mapping.addr, mapping.length)
            mapping.close()


def test_sight_of_the_card(box: Box, neighbour: nv.Gpu):
    """Totals, processes and names of neighbours."""
    with box.client() as client:
        gpu = client.gpu(0)
        space = gpu.space()
        space.group().channel()
        assert gpu.memory()["ram"] == gpu.memory()["total"] == LIMIT_MIB * MIB
        for index in range(0x40):
            info = nv.FbInfo(count=1)
            info.list[0].index = index
            status, _ = gpu.control(nv.NV2080_CTRL_CMD_FB_GET_INFO_V2, info)
            if not status:
                assert info.list[0].data not in (15109 << 10, (15109 << 10) - (NEIGHBOUR_MIB << 10)), hex(index)
        assert gpu.processes() == {}
        for page in shared_data(client, gpu):
            assert page == bytes(len(page))
        for cmd in (0x20801320, 0x20801301, 0x2080180E):  # FB_GET_FB_REGION_INFO and others that return totals
            status, answer = gpu.control(cmd, bytes(2048))
            assert status or struct.pack("<I", 15109 << 10) not in answer, hex(cmd)
