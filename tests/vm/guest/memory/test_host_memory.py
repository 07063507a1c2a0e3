# SPDX-License-Identifier: MIT
"""System memory that the driver allocates: no memory cgroup has it, so a container has a limit of it."""

from __future__ import annotations

import contextlib
import ctypes
import mmap
import os
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from slicebox import MIB, Box, clean_box, until
from slicebox import nvclient as nv

pytestmark = [pytest.mark.checked, pytest.mark.once, pytest.mark.attached]

LIMIT_MIB = 256
HOST_MIB = 16
KIB = 1024
OS_DESCRIPTOR = 0x71
OF_A_PINNED_PAGE = 64  # bytes that the driver keeps
OF_SPACE, OF_RANGE = 64 * KIB, 16 * KIB  # an address space and an external range of nvidia-uvm
PRIVATE, NORESERVE = mmap.MAP_PRIVATE, 0x4000
NOT_CONTIGUOUS = 1 << 4  # NVOS02_FLAGS
COHERENT = 1 << 12 | NOT_CONTIGUOUS  # cached
CONTIGUOUS = 2 << 27  # NVOS32_ATTR
BIG_PAGES = 2 << 23  # NVOS32_ATTR, without a word on contiguity: contiguous where the system's pages are of 4 KiB


@pytest.fixture
def box() -> Iterator[Box]:
    with clean_box(LIMIT_MIB) as box:
        limit(box, HOST_MIB * MIB)
        yield box
        until(lambda: box.stat("host_used_bytes") == 0)


def limit(box: Box, size: int) -> None:
    (box.proc / "host_memsize").write_text(f"{size}\n")
    assert (box.proc / "host_memsize").read_text() == f"{size}\n"
    assert box.stat("host_limit_bytes") == size


def by_alloc(gpu: nv.Gpu, size: int) -> tuple[int, int]:
    return gpu.alloc_sysmem(size)


def by_alloc_memory(gpu: nv.Gpu, size: int, fd: int = -1, flags: int = COHERENT) -> tuple[int, int]:
    """The older call, on the GPU's node: the size is in its own struct. It maps the memory by file @fd."""
    arg = nv.AllocMemory(
        root=gpu.rm.handle, parent=gpu.device, class_id=nv.NV01_MEMORY_SYSTEM, flags=flags, limit=size - 1, fd=fd
    )
    gpu.node.call(0x27, arg)
    return arg.status, arg.handle


def by_vid_heap(
    gpu: nv.Gpu, size: int, attr: int = nv.ATTR_NONCONTIG_ALLOWED | nv.ATTR_LOCATION_PCI
) -> tuple[int, int]:
    arg = (ctypes.c_uint32 * 46)()
    arg[0], arg[1], arg[2], arg[14] = gpu.rm.handle, gpu.device, 2, attr
    ctypes.c_uint64.from_buffer(arg, 88).value = size
    assert gpu.rm.ctl.raw(nv.request(nv.NV_ESC_RM_VID_HEAP_CONTROL, ctypes.sizeof(arg)), arg) == 0
    return arg[5], arg[11]


WAYS = [by_alloc, by_alloc_memory, by_vid_heap]


@pytest.mark.parametrize("way", WAYS, ids=lambda way: way.__name__)
def test_it_is_limited_by_each_call(box: Box, gpu: nv.Gpu, way: Callable[[nv.Gpu, int], tuple[int, int]]):
    before = box.stat("host_refused_allocs")
    used = box.used
    handles = []
    while len(handles) <= HOST_MIB:
        status, handle = way(gpu, MIB)
        if status:
            break
        handles.append(handle)
        assert box.stat("host_used_bytes") == len(handles) * MIB
    assert (status, len(handles)) == (nv.NV_ERR_NO_MEMORY, HOST_MIB)
    assert box.stat("host_refused_allocs") == before + 1
    assert box.used - used < MIB, "it is not the card's"
    assert gpu.free(handles.pop()) == 0
    assert box.stat("host_used_bytes") == len(handles) * MIB
    assert way(gpu, MIB)[0] == 0
    assert way(gpu, 1 << 62)[0] != 0
    assert way(gpu, 4 * KIB)[0] == nv.NV_ERR_NO_MEMORY
    assert box.stat("host_used_bytes") == HOST_MIB * MIB


def test_what_is_charged_is_what_the_driver_took(box: Box, gpu: nv.Gpu):
    for size, taken in ((4 * KIB, 4 * KIB), (1, 4 * KIB), (MIB + 1, MIB + 4 * KIB)):
        status, handle = gpu.alloc_sysmem(size)
        assert status == 0
        assert box.stat("host_used_bytes") == taken
        assert gpu.free(handle) == 0
    assert box.stat("host_used_bytes") == 0


def contiguous_by_alloc(gpu: nv.Gpu, size: int) -> tuple[int, int]:
    return gpu.alloc_sysmem(size, attr=CONTIGUOUS | nv.ATTR_LOCATION_PCI)


def contiguous_by_big_pages(gpu: nv.Gpu, size: int) -> tuple[int, int]:
    return gpu.alloc_sysmem(size, attr=BIG_PAGES | nv.ATTR_LOCATION_PCI)


def contiguous_by_alloc_memory(gpu: nv.Gpu, size: int) -> tuple[int, int]:
    return by_alloc_memory(gpu, size, flags=COHERENT & ~NOT_CONTIGUOUS)


def contiguous_by_vid_heap(gpu: nv.Gpu, size: int) -> tuple[int, int]:
    return by_vid_heap(gpu, size, attr=CONTIGUOUS | nv.ATTR_LOCATION_PCI)


IN_ONE_BLOCK = [contiguous_by_alloc, contiguous_by_big_pages, contiguous_by_alloc_memory, contiguous_by_vid_heap]


@pytest.mark.parametrize("way", IN_ONE_BLOCK, ids=lambda way: way.__name__)
def test_contiguous_memory_is_charged_as_a_power_of_two(
    box: Box, gpu: nv.Gpu, way: Callable[[nv.Gpu, int], tuple[int, int]]
):
    """The driver allocates 2^order pages (nv_alloc_contig_pages()), and reports those that were asked for."""
    for size, taken in ((5 * MIB, 8 * MIB), (4 * MIB, 4 * MIB), (12 * KIB, 16 * KIB)):
        status, handle = way(gpu, size)
        assert (status, box.stat("host_used_bytes")) == (0, taken)
        assert gpu.free(handle) == 0
    status, handle = way(gpu, 9 * MIB)
    assert (status, box.stat("host_used_bytes")) == (0, HOST_MIB * MIB)
    assert gpu.free(handle) == 0
    assert way(gpu, (HOST_MIB + 1) * MIB)[0] == nv.NV_ERR_NO_MEMORY
    assert box.stat("host_used_bytes") == 0


def test_an_allocation_that_the_driver_refuses_costs_nothing(box: Box, gpu: nv.Gpu):
    params = nv.MemoryParams(owner=gpu.rm.handle, size=MIB, attr=0)  # video memory, by its attributes
    assert gpu.rm.alloc(nv.NV01_MEMORY_SYSTEM, gpu.device, params)[0] != 0
    assert gpu.rm.alloc(nv.NV01_MEMORY_SYSTEM, 0x1234, nv.MemoryParams(size=MIB, attr=nv.ATTR_LOCATION_PCI))[0] != 0
    assert box.stat("host_used_bytes") == 0


def test_the_charge_stays_with_a_dup_and_with_uvm(box: Box, gpu: nv.Gpu):
    _, memory = gpu.alloc_sysmem(4 * MIB)
    status, dup = gpu.rm.dup(gpu.device, gpu.rm, memory)
    assert status == 0
    assert gpu.free(memory) == 0
    assert box.stat("host_used_bytes") == 4 * MIB
    space = gpu.space()
    base = nv.reserve(4 * MIB)
    assert box.stat("host_used_bytes") == 4 * MIB + OF_SPACE
    assert space.uvm.create_range(base, 4 * MIB) == 0
    assert box.stat("host_used_bytes") == 4 * MIB + OF_SPACE + OF_RANGE
    assert space.uvm.map(gpu.uuid, gpu.rm, dup, base, 4 * MIB) == 0
    assert gpu.free(dup) == 0
    assert box.stat("host_used_bytes") == 4 * MIB + OF_SPACE + OF_RANGE, "nvidia-uvm has a handle of its own"
    assert space.uvm.free(base, 4 * MIB) == 0
    assert box.stat("host_used_bytes") == OF_SPACE


def map_after(gpu: nv.Gpu, size: int, node: nv.Ctl) -> int:
    status, memory = gpu.alloc_sysmem(size)
    assert (status, gpu.rm.map_memory(node, gpu.device, memory, size)[0]) == (0, 0)
    return memory


def map_with_alloc(gpu: nv.Gpu, size: int, node: nv.Ctl) -> int:
    status, memory = by_alloc_memory(gpu, size, node.fd)
    assert status == 0
    return memory


@pytest.mark.parametrize("way", [map_after, map_with_alloc], ids=lambda way: way.__name__)
def test_freed_memory_that_is_mapped_stays_charged(box: Box, gpu: nv.Gpu, way: Callable[[nv.Gpu, int, nv.Ctl], int]):
    """The driver keeps the pages for the mapping, and then for the mapping's file (usage_count of nv_free_pages())."""
    mappings = []
    for _ in range(HOST_MIB // 4):
        with nv.Ctl(box.dev) as node:
            memory = way(gpu, 4 * MIB, node)
            mappings.append(node.mmap(4 * MIB))
        mappings[-1].write32(0, 0xB6)
        assert gpu.free(memory) == 0
        assert mappings[-1].read32(0) == 0xB6
        assert box.stat("host_used_bytes") == len(mappings) * 4 * MIB
    assert gpu.alloc_sysmem(4 * KIB)[0] == nv.NV_ERR_NO_MEMORY
    mappings.pop().close()
    until(lambda: box.stat("host_used_bytes") == (HOST_MIB - 4) * MIB)
    assert gpu.alloc_sysmem(4 * MIB)[0] == 0
    for mapping in mappings:
        mapping.close()
    until(lambda: box.stat("host_used_bytes") == 4 * MIB)


def test_a_file_keeps_the_one_memory_that_it_can_map(box: Box, gpu: nv.Gpu):
    with nv.Ctl(box.dev) as node:
        first = map_after(gpu, 4 * MIB, node)
        _, second = gpu.alloc_sysmem(2 * MIB)
        assert gpu.rm.map_memory(node, gpu.device, second, 2 * MIB)[0] != 0, "one context for each file"
        assert gpu.free(second) == 0
        assert box.stat("host_used_bytes") == 4 * MIB
        assert gpu.free(first) == 0
        assert box.stat("host_used_bytes") == 4 * MIB, "without a mapping too: the module does not count them"
    until(lambda: box.stat("host_used_bytes") == 0)


def test_a_mapping_that_the_driver_refuses_keeps_nothing(box: Box, gpu: nv.Gpu):
    with nv.Ctl(box.dev) as node:
        _, memory = gpu.alloc_sysmem(MIB)
        assert gpu.rm.map_memory(node, gpu.device, memory, 2 * MIB)[0] != 0
        assert gpu.free(memory) == 0
        assert box.stat("host_used_bytes") == 0


def test_semaphore_pools_count(box: Box, gpu: nv.Gpu):
    uvm = gpu.space().uvm
    assert box.stat("host_used_bytes") == OF_SPACE
    limit(box, 2 * MIB + OF_SPACE)
    status, handle = gpu.alloc_sysmem(MIB)
    assert status == 0
    assert uvm.pool(nv.reserve(2 * MIB), 2 * MIB) != 0
    assert box.stat("host_used_bytes") == MIB + OF_SPACE
    assert gpu.free(handle) == 0
    base = nv.reserve(2 * MIB)
    assert uvm.pool(base, 2 * MIB) == 0
    assert box.stat("host_used_bytes") == 2 * MIB + OF_SPACE
    assert gpu.alloc_sysmem(4 * KIB)[0] == nv.NV_ERR_NO_MEMORY
    assert uvm.free(base, 2 * MIB) == 0
    assert box.stat("host_used_bytes") == OF_SPACE


def test_the_limit_is_the_containers_and_can_be_changed(box: Box, gpu: nv.Gpu, other: Box):
    for _ in range(HOST_MIB):
        assert gpu.alloc_sysmem(MIB)[0] == 0
    with other.client() as rm:
        theirs = rm.gpu()
        assert theirs.alloc_sysmem(32 * MIB)[0] == 0, "without a limit"
        assert other.stat("host_used_bytes") == 32 * MIB
        limit(other, 8 * MIB)
        assert theirs.alloc_sysmem(4 * KIB)[0] == nv.NV_ERR_NO_MEMORY, "below what is in use: nothing more"
    until(lambda: other.stat("host_used_bytes") == 0)
    limit(box, 0)
    assert gpu.alloc_sysmem(MIB)[0] == 0
    with pytest.raises(OSError, match="Invalid"):
        (box.proc / "host_memsize").write_text("4096")


def test_the_sum_does_not_wrap_without_a_limit(box: Box, gpu: nv.Gpu):
    """What the driver is about to refuse is charged meanwhile: two such calls at once would wrap the sum."""
    limit(box, 0)
    assert gpu.alloc_sysmem(MIB)[0] == 0
    before = box.stat("host_refused_allocs")
    assert by_alloc_memory(gpu, (1 << 63) - 4 * KIB)[0] == nv.NV_ERR_NO_MEMORY
    assert box.stat("host_refused_allocs") == before + 1
    assert box.stat("host_used_bytes") == MIB


# ---- pages of the process ----


@contextlib.contextmanager
def memory_of(size: int, protection: int = mmap.PROT_READ | mmap.PROT_WRITE, fd: int = -1, flags: int = PRIVATE):
    address = nv.libc.mmap(None, size, protection, flags | (mmap.MAP_ANONYMOUS if fd < 0 else 0), fd, 0)
    assert address % 4096 == 0
    yield address
    nv.libc.munmap(ctypes.c_void_p(address), size)


def pin(gpu: nv.Gpu, address: int, size: int) -> tuple[int, int]:
    arg = nv.AllocMemory(
        root=gpu.rm.handle, parent=gpu.device, class_id=OS_DESCRIPTOR, flags=1 << 30 | COHERENT, memory=address,
        limit=size - 1, fd=-1,
    )  # fmt: skip
    gpu.node.call(0x27, arg)
    return arg.status, arg.handle


def test_pages_of_the_process_are_not_in_it(box: Box, gpu: nv.Gpu):
    """They are in its memory cgroup. What the driver keeps for each is in none."""
    size = 2 * HOST_MIB * MIB
    with memory_of(size) as memory:
        status, handle = pin(gpu, memory, size)
        assert (status, box.stat("host_used_bytes")) == (0, size // 4096 * OF_A_PINNED_PAGE)
        status, dup = gpu.rm.dup(gpu.device, gpu.rm, handle)
        assert (status, gpu.free(handle)) == (0, 0)
        assert box.stat("host_used_bytes") == size // 4096 * OF_A_PINNED_PAGE
        assert gpu.free(dup) == 0
        assert box.stat("host_used_bytes") == 0


@pytest.mark.parametrize("size", [32 << 30, 64 << 40, 1 << 63, (1 << 64) - 4096, 1 << 64])
def test_more_pages_than_the_process_has(box: Box, gpu: nv.Gpu, size: int):
    """The driver allocates a list of them before it looks for the first, for itself and in no memory cgroup."""
    limit(box, 0)
    before = box.stat("refused_calls")
    with memory_of(MIB) as memory:
        assert pin(gpu, memory, size)[0] == nv.NV_ERR_INVALID_ADDRESS
    assert box.stat("refused_calls") == before + 1
    assert box.stat("host_used_bytes") == 0


def test_registers_are_no_memory_of_the_process(box: Box, gpu: nv.Gpu, kernel_log):
    """Where NVIDIA's driver can pin nothing it looks for registers, and holds no reference to what it finds."""
    mapping = gpu.map_cpu(gpu.alloc_vidmem(2 * MIB)[1], 2 * MIB)
    before = box.stat("refused_calls")
    assert pin(gpu, mapping.addr, 4096)[0] == nv.NV_ERR_INVALID_ADDRESS
    assert box.stat("refused_calls") == before + 1
    with memory_of(MIB) as gone:
        pass
    assert pin(gpu, gone, 4096)[0] == nv.NV_ERR_INVALID_ADDRESS
    assert box.stat("refused_calls") == before + 1, "nothing is there"
    assert "looks for registers" not in kernel_log.news()


def test_pages_that_the_process_only_reserved(box: Box, gpu: nv.Gpu):
    """An address space costs nothing, so the list is charged."""
    before = box.stat("host_refused_allocs")
    with memory_of(32 << 30, 0, flags=PRIVATE | NORESERVE) as memory:
        assert pin(gpu, memory, 32 << 30)[0] == nv.NV_ERR_NO_MEMORY
    assert box.stat("host_refused_allocs") == before + 1
    assert box.stat("host_used_bytes") == 0


@pytest.mark.parametrize("flags", [mmap.MAP_SHARED, PRIVATE])
def test_pages_of_a_file(box: Box, gpu: nv.Gpu, flags: int):
    fd = os.memfd_create("pages")
    os.ftruncate(fd, MIB)
    with memory_of(MIB, fd=fd, flags=flags) as memory:
        os.close(fd)
        status, handle = pin(gpu, memory, MIB)
    assert (status, gpu.free(handle)) == (0, 0)


@pytest.mark.parametrize("before", [0, 4096, 2 * MIB])
def test_memory_that_the_driver_allocated_is_not_pinned(box: Box, gpu: nv.Gpu, before: int):
    """Pinned, it would stay without its handle, its mapping and its file, in no account."""
    refused = box.stat("refused_calls")
    with memory_of(before + MIB) as memory, nv.Ctl(box.dev) as node:
        handle = map_after(gpu, MIB, node)
        mapping = nv.Mapping(node, MIB, 0, mmap.PROT_READ | mmap.PROT_WRITE, memory + before)
        assert pin(gpu, memory, before + MIB)[0] == nv.NV_ERR_NOT_SUPPORTED
        assert box.stat("refused_calls") == refused + 1
        assert box.stat("host_used_bytes") == MIB
        mapping.write32(0, 0xB6)
        assert mapping.read32(0) == 0xB6
        mapping.close()
        assert gpu.free(handle) == 0
    until(lambda: box.stat("host_used_bytes") == 0)


def places(client: nv.Client, file: nv.Ctl, count: int, cmd: int = 0x3D0A) -> int:
    """Make @file ready for the export of @count objects."""
    fd_at, count_at, size = {0x3D0A: (72, 4, 76), 0x3D0B: (0, 8, 2128)}[cmd]
    params = bytearray(size)
    params[fd_at : fd_at + 4] = file.fd.to_bytes(4, "little")
    params[count_at : count_at + 2] = count.to_bytes(2, "little")
    return client.control(client.handle, cmd, bytes(params))[0]


@pytest.mark.parametrize("cmd", [0x3D0A, 0x3D0B])
def test_places_of_a_file_for_exports(box: Box, cmd: int):
    """The driver has four bytes for each, in no memory cgroup, until the file closes."""
    with box.client() as client, contextlib.ExitStack() as files:
        before = box.stat("host_used_bytes")
        one = files.enter_context(nv.Ctl(client.directory))
        assert places(client, one, 1000, cmd) == nv.NV_OK
        assert box.stat("host_used_bytes") - before == 4000
        places(client, one, 65535)  # it has its places: the driver makes no more
        first = box.stat("host_used_bytes")
        assert first - before == 4 * 65535, "counted before the driver says so"
        files.close()
        until(lambda: box.stat("host_used_bytes") == before)
        status = nv.NV_OK
        while status == nv.NV_OK:
            status = places(client, files.enter_context(nv.Ctl(client.directory)), 65535, cmd)
            assert box.stat("host_used_bytes") <= HOST_MIB * MIB
        assert status == nv.NV_ERR_NO_MEMORY and box.stat("host_used_bytes") > HOST_MIB * MIB - 4 * 65535
        files.close()
        until(lambda: box.stat("host_used_bytes") == before)


def test_a_killed_process_gives_it_back(box: Box):
    with box.client() as rm:
        gpu = rm.gpu()
        for _ in range(HOST_MIB):
            assert gpu.alloc_sysmem(MIB)[0] == 0
    until(lambda: box.stat("host_used_bytes") == 0)
    assert Path(box.proc / "meminfo").read_text().startswith("Free:")


def test_objects_are_within_the_limit(box: Box, kernel_log):
    """The driver keeps 2 to 4 KiB for each, in no memory cgroup: beyond 4,096 each counts 4 KiB."""
    most = 4096 + HOST_MIB * MIB // 4096
    with box.client() as rm:
        gpu = rm.gpu(0)
        memory, made = gpu.alloc_vidmem(64 * KIB)[1], []
        for _ in range(most + 1):
            status, dup = rm.dup(gpu.device, rm.handle, memory)
            if status:
                break
            made.append(dup)
        assert status == nv.NV_ERR_INSUFFICIENT_RESOURCES
        assert most - 16 < len(made) < most
        assert (box.stat("host_used_bytes"), box.stat("host_refused_allocs")) == (HOST_MIB * MIB, 1)
        assert "4096 bytes of system memory refused" in kernel_log.news()
        assert by_alloc(gpu, MIB)[0] == nv.NV_ERR_NO_MEMORY
        assert [gpu.free(handle) for handle in made[:4096]] == [0] * 4096
        assert box.stat("host_used_bytes") < 64 * KIB
        assert by_alloc(gpu, MIB)[0] == 0
