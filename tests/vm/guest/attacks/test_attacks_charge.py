# SPDX-License-Identifier: MIT
"""Hostile tenants against the ledger: wrong or missing charges for page tables, and the measured size of a context."""

from __future__ import annotations

import ctypes
import itertools
import mmap
from collections.abc import Iterator

import pytest
from slicebox import MIB, Box, clean_box, until
from slicebox import nvclient as nv

pytestmark = [pytest.mark.once, pytest.mark.attached]

LIMIT_MIB = 64
KIB = 1024
INCLUDED = 16 * MIB + LIMIT_MIB * MIB // 512
PAGES: list[mmap.mmap] = []  # read as long as their addresses are known
NAMES = (f"{n:012x}" + "c4" * 26 for n in itertools.count(0xC40000000000))


@pytest.fixture
def box() -> Iterator[Box]:
    with clean_box(next(NAMES), LIMIT_MIB) as box:
        yield box


@pytest.fixture
def space(gpu: nv.Gpu) -> int:
    return gpu.rm.alloc(nv.CLASS_VASPACE, gpu.device, nv.VaspaceParams())[1]


def frozen(arg: ctypes.Structure) -> int:
    """The address of a read-only copy."""
    page = mmap.mmap(-1, mmap.PAGESIZE)
    page[: ctypes.sizeof(arg)] = bytes(arg)
    address = ctypes.addressof(ctypes.c_char.from_buffer(page))
    assert nv.libc.mprotect(address, mmap.PAGESIZE, mmap.PROT_READ) == 0
    PAGES.append(page)
    return address


def tables(size: int) -> int:
    """The charge for one mapping: docs/decisions/0008."""
    return (12 + (size // (2 * MIB) + 1) * 4) * KIB


def filled(box: Box, gpu: nv.Gpu, space: int) -> int:
    """The charge once the included page tables are used up: from here on each further table is charged."""
    _, memory = gpu.alloc_vidmem(14 * MIB)
    for _ in range(INCLUDED // tables(14 * MIB) + 1):
        assert gpu.rm.map_dma(gpu.device, space, memory, 14 * MIB)[0] == 0
    return box.used


# ---- MAP_MEMORY_DMA and back ----


@pytest.mark.checked
def test_tables_by_a_mapping_that_cannot_be_answered(box: Box, gpu: nv.Gpu, space: int):
    """The driver maps, cannot write its answer, and the call fails with EFAULT."""
    _, memory = gpu.alloc_vidmem(16 * MIB)
    arg = nv.MapDma(client=gpu.rm.handle, device=gpu.device, dma=space, memory=memory, length=16 * MIB)
    number = nv.request(nv.ESC_RM_MAP_MEMORY_DMA, ctypes.sizeof(arg))
    address = frozen(arg)
    before = filled(box, gpu, space)
    for _ in range(100):
        assert gpu.rm.ctl.raw(number, address)
    assert box.used - before == 100 * tables(16 * MIB)
    gpu.free(memory)
    assert box.used == before - 16 * MIB


@pytest.mark.checked
def test_tables_by_unmapping_in_the_name_of_another(box: Box, gpu: nv.Gpu, space: int):
    """The driver unmaps by the address. The charge of the mapping at that address is dropped."""
    rm = gpu.rm
    _, large = gpu.alloc_vidmem(16 * MIB)
    _, small = gpu.alloc_vidmem(64 * KIB)
    before = filled(box, gpu, space)
    mapped = [rm.map_dma(gpu.device, space, large, 16 * MIB) for _ in range(20)]
    assert box.used - before == 20 * tables(16 * MIB)
    for _ in range(20):
        status, at = rm.map_dma(gpu.device, space, small, 64 * KIB)
        assert status == 0
        assert rm.unmap_dma(gpu.device, space, large, at) == 0
        assert box.used - before == 20 * tables(16 * MIB)
        assert rm.unmap_dma(gpu.device, space, large, at) == nv.NV_ERR_OBJECT_NOT_FOUND
    for status, at in mapped:
        assert status == 0
        assert rm.unmap_dma(gpu.device, space, small, at) == 0
    assert box.used == before


@pytest.mark.checked
def test_tables_by_unmapping_in_parts(box: Box, gpu: nv.Gpu, space: int):
    """Each part that is left can be unmapped as a whole: not one of them gives back the whole."""
    rm = gpu.rm
    _, memory = gpu.alloc_vidmem(16 * MIB)
    before = filled(box, gpu, space)
    for _ in range(10):
        status, at = rm.map_dma(gpu.device, space, memory, 16 * MIB)
        assert status == 0
        for hole in (4, 8):
            part = nv.UnmapDma(rm.handle, gpu.device, space, memory, 0, 0, at + hole * MIB, 2 * MIB)
            rm.ctl.call(nv.ESC_RM_UNMAP_MEMORY_DMA, part)
            assert part.status == 0
        for rest in (0, 6):
            assert rm.unmap_dma(gpu.device, space, memory, at + rest * MIB) == 0
    assert box.used - before == 10 * tables(16 * MIB), "10 MiB of each are still mapped"
    gpu.free(memory)
    assert box.used == before - 16 * MIB


def test_tables_by_an_unmapping_that_cannot_be_answered(box: Box, gpu: nv.Gpu, space: int):
    """The charge is dropped once, whatever the call returns."""
    rm = gpu.rm
    _, memory = gpu.alloc_vidmem(16 * MIB)
    before = filled(box, gpu, space)
    for _ in range(10):
        _, at = rm.map_dma(gpu.device, space, memory, 16 * MIB)
        arg = nv.UnmapDma(rm.handle, gpu.device, space, memory, 0, 0, at)
        number, address = nv.request(nv.ESC_RM_UNMAP_MEMORY_DMA, ctypes.sizeof(arg)), frozen(arg)
        for _ in range(3):
            assert rm.ctl.raw(number, address)
        assert box.used == before


@pytest.mark.checked
def test_an_address_space_kept_by_a_dup(box: Box, gpu: nv.Gpu, space: int):
    """The first one's 128 KiB come back with it; the dup has its own."""
    before = filled(box, gpu, space)
    dups = []
    for _ in range(20):
        status, first = gpu.rm.alloc(nv.CLASS_VASPACE, gpu.device, nv.VaspaceParams())
        assert status == 0
        status, dup = gpu.rm.dup(gpu.device, gpu.rm.handle, first)
        assert status == 0
        assert gpu.free(first) == 0
        dups.append(dup)
    assert box.used - before == 20 * 128 * KIB
    for dup in dups:
        assert gpu.free(dup) == 0
    assert box.used == before


# ---- tables that come without a mapping ----


VIRTUAL, LAZY, EXTERNAL = 0x80000, 0x400, 0x400000
CLASS_RESERVATION = 0x50A0


def reservation(gpu: nv.Gpu, space: int, size: int, flags: int = 0) -> tuple[int, int]:
    params = nv.MemoryParams(owner=gpu.rm.handle, flags=VIRTUAL | flags, size=size, vaspace=space)
    return gpu.rm.alloc(CLASS_RESERVATION, gpu.device, params)


ALL_ONES = 0xFFFFFFFF


@pytest.mark.checked
def test_a_handle_of_all_ones(box: Box, gpu: nv.Gpu, space: int):
    """What the module takes for a lie of the driver, and keeps charged, is no handle that a tenant can choose."""
    memory = gpu.alloc_vidmem(2 * MIB)[1]
    used = box.used
    for _ in range(3):
        assert gpu.alloc_vidmem(2 * MIB, ALL_ONES)[0] == nv.NV_ERR_INVALID_ARGUMENT
        assert gpu.alloc_sysmem(2 * MIB, ALL_ONES)[0] == nv.NV_ERR_INVALID_ARGUMENT
        assert gpu.rm.dup(gpu.device, gpu.rm, memory, ALL_ONES)[0] == nv.NV_ERR_INVALID_ARGUMENT
        params = nv.VaspaceParams()
        assert gpu.rm.alloc(nv.CLASS_VASPACE, gpu.device, params, ALL_ONES)[0] == nv.NV_ERR_INVALID_ARGUMENT
        assert box.used == used
    assert gpu.free(memory) == 0
    assert box.used == used - 2 * MIB


@pytest.mark.checked
def test_tables_of_reserved_addresses(box: Box, gpu: nv.Gpu, space: int):
    """A terabyte of them is 2 GiB of tables, at once unless it is lazy."""
    size = 1 << 40
    assert reservation(gpu, space, size)[0] == nv.NV_ERR_NO_MEMORY
    for flags in (LAZY, EXTERNAL):
        status, handle = reservation(gpu, space, size, flags)
        assert status == 0
        assert gpu.free(handle) == 0
    before = filled(box, gpu, space)
    status, handle = reservation(gpu, space, 1 << 30)
    assert status == 0
    assert 2 * MIB < box.used - before < 3 * MIB
    assert gpu.free(handle) == 0
    assert box.used == before


def test_tables_of_addresses_reserved_the_old_way(gpu: nv.Gpu, space: int):
    """NVOS32 with FLAGS_VIRTUAL: a request over the limit is refused before the driver runs."""

    def alloc(size: int) -> int:
        arg = (ctypes.c_uint32 * 46)()
        arg[0], arg[1], arg[2] = gpu.rm.handle, gpu.device, 2
        arg[13] = VIRTUAL
        ctypes.c_uint64.from_buffer(arg, 88).value = size
        assert gpu.rm.ctl.raw(nv.request(nv.ESC_RM_VID_HEAP_CONTROL, ctypes.sizeof(arg)), arg) == 0
        return arg[5]

    assert alloc(1 << 40) == nv.NV_ERR_NO_MEMORY
    assert alloc(1 << 30) == nv.NV_OK


def test_tables_of_uvms_own_ranges(box: Box, gpu: nv.Gpu, space: int):
    before = filled(box, gpu, space)
    uvm = gpu.space().uvm
    for n in range(100):
        arg = (ctypes.c_uint64 * 5)(n << 32, 4096)
        assert uvm.raw(65, arg) == 0
    assert box.used - before == (128 + 100 * 16) * KIB, "and an address space"
    uvm.close()
    until(lambda: box.used - before == 128 * KIB)
