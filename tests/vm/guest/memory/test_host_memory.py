# SPDX-License-Identifier: MIT
"""System memory that the driver allocates: no memory cgroup has it, so a container has a limit of it."""

from __future__ import annotations

import ctypes
import itertools
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from slicebox import MIB, Box, clean_box, until
from slicebox import nvclient as nv

pytestmark = [pytest.mark.checked, pytest.mark.once, pytest.mark.attached]

LIMIT_MIB = 256
HOST_MIB = 16
KIB = 1024
NAMES = (f"{n:012x}" + "b6" * 26 for n in itertools.count(0xB60000000000))
OS_DESCRIPTOR = 0x71
NOT_CONTIGUOUS = 1 << 4  # NVOS02_FLAGS
COHERENT = 1 << 12 | NOT_CONTIGUOUS  # cached
CONTIGUOUS = 2 << 27  # NVOS32_ATTR
BIG_PAGES = 2 << 23  # NVOS32_ATTR, without a word on contiguity: contiguous where the system's pages are of 4 KiB
AllocMemory = nv.structure(
    "AllocMemory", "root parent handle class_id flags pad0 memory:u64 limit:u64 status pad1 fd:s32 pad2"
)


@pytest.fixture
def box() -> Iterator[Box]:
    with clean_box(next(NAMES), LIMIT_MIB) as box:
        limit(box, HOST_MIB * MIB)
        yield box
        until(lambda: box.stat("host_used_bytes") == 0)


@pytest.fixture
def other() -> Iterator[Box]:
    with clean_box(next(NAMES), LIMIT_MIB) as box:
        yield box


def limit(box: Box, size: int) -> None:
    (box.proc / "host_memsize").write_text(f"{size}\n")
    assert (box.proc / "host_memsize").read_text() == f"{size}\n"
    assert box.stat("host_limit_bytes") == size


def by_alloc(gpu: nv.Gpu, size: int) -> tuple[int, int]:
    return gpu.alloc_sysmem(size)


def by_alloc_memory(gpu: nv.Gpu, size: int, fd: int = -1, flags: int = COHERENT) -> tuple[int, int]:
    """The older call, on the GPU's node: the size is in its own struct. It maps the memory by file @fd."""
    arg = AllocMemory(
        root=gpu.rm.handle, parent=gpu.device, class_id=nv.CLASS_SYSMEM, flags=flags, limit=size - 1, fd=fd
    )
    gpu.node.call(0x27, arg)
    return arg.status, arg.handle


def by_vid_heap(
    gpu: nv.Gpu, size: int, attr: int = nv.ATTR_NONCONTIG_ALLOWED | nv.ATTR_LOCATION_PCI
) -> tuple[int, int]:
    arg = (ctypes.c_uint32 * 46)()
    arg[0], arg[1], arg[2], arg[14] = gpu.rm.handle, gpu.device, 2, attr
    ctypes.c_uint64.from_buffer(arg, 88).value = size
    assert gpu.rm.ctl.raw(nv.request(nv.ESC_RM_VID_HEAP_CONTROL, ctypes.sizeof(arg)), arg) == 0
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
    assert gpu.rm.alloc(nv.CLASS_SYSMEM, gpu.device, params)[0] != 0
    assert gpu.rm.alloc(nv.CLASS_SYSMEM, 0x1234, nv.MemoryParams(size=MIB, attr=nv.ATTR_LOCATION_PCI))[0] != 0
    assert box.stat("host_used_bytes") == 0


def test_the_charge_stays_with_a_dup_and_with_uvm(box: Box, gpu: nv.Gpu):
    _, memory = gpu.alloc_sysmem(4 * MIB)
    status, dup = gpu.rm.dup(gpu.device, gpu.rm, memory)
    assert status == 0
    assert gpu.free(memory) == 0
    assert box.stat("host_used_bytes") == 4 * MIB
    space = gpu.space()
    base = nv.reserve(4 * MIB)
    assert space.uvm.create_range(base, 4 * MIB) == 0
    assert space.uvm.map(gpu.uuid, gpu.rm, dup, base, 4 * MIB) == 0
    assert gpu.free(dup) == 0
    assert box.stat("host_used_bytes") == 4 * MIB, "nvidia-uvm has a handle of its own"
    assert space.uvm.free(base, 4 * MIB) == 0
    assert box.stat("host_used_bytes") == 0


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
    """The driver keeps the pages until the mapping and its file are gone (usage_count of nv_free_pages())."""
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
        assert box.stat("host_used_bytes") == 4 * MIB, "without a mapping too: there can be one at any time"
    until(lambda: box.stat("host_used_bytes") == 0)


def test_a_mapping_that_the_driver_refuses_keeps_nothing(box: Box, gpu: nv.Gpu):
    with nv.Ctl(box.dev) as node:
        _, memory = gpu.alloc_sysmem(MIB)
        assert gpu.rm.map_memory(node, gpu.device, memory, 2 * MIB)[0] != 0
        assert gpu.free(memory) == 0
        assert box.stat("host_used_bytes") == 0


def test_semaphore_pools_count(box: Box, gpu: nv.Gpu):
    limit(box, 2 * MIB)
    uvm = gpu.space().uvm
    status, handle = gpu.alloc_sysmem(MIB)
    assert status == 0
    assert uvm.pool(nv.reserve(2 * MIB), 2 * MIB) != 0
    assert box.stat("host_used_bytes") == MIB
    assert gpu.free(handle) == 0
    base = nv.reserve(2 * MIB)
    assert uvm.pool(base, 2 * MIB) == 0
    assert box.stat("host_used_bytes") == 2 * MIB
    assert gpu.alloc_sysmem(4 * KIB)[0] == nv.NV_ERR_NO_MEMORY
    assert uvm.free(base, 2 * MIB) == 0
    assert box.stat("host_used_bytes") == 0


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


def test_pages_of_the_process_are_not_in_it(box: Box, gpu: nv.Gpu):
    """They are in its memory cgroup."""
    memory = nv.libc.mmap(None, 2 * HOST_MIB * MIB, 3, 0x22, -1, 0)
    arg = AllocMemory(
        root=gpu.rm.handle, parent=gpu.device, class_id=OS_DESCRIPTOR, flags=1 << 30 | COHERENT, memory=memory,
        limit=2 * HOST_MIB * MIB - 1, fd=-1,
    )  # fmt: skip
    gpu.node.call(0x27, arg)
    assert (arg.status, box.stat("host_used_bytes")) == (0, 0)
    assert gpu.free(arg.handle) == 0
    nv.libc.munmap(ctypes.c_void_p(memory), 2 * HOST_MIB * MIB)


def test_a_killed_process_gives_it_back(box: Box):
    with box.client() as rm:
        gpu = rm.gpu()
        for _ in range(HOST_MIB):
            assert gpu.alloc_sysmem(MIB)[0] == 0
    until(lambda: box.stat("host_used_bytes") == 0)
    assert Path(box.proc / "meminfo").read_text().startswith("Free:")
