# SPDX-License-Identifier: MIT
"""Hostile tenants against the ledger: wrong or missing charges for page tables, and the measured size of a context."""

from __future__ import annotations

import ctypes
import mmap

import pytest
from slicebox import MIB, Box, fb_used, until
from slicebox import nvclient as nv

pytestmark = [pytest.mark.once, pytest.mark.attached]

LIMIT_MIB = 64
NV_ERR_INVALID_LIMIT = 0x2E
KIB = 1024
INCLUDED = 16 * MIB + LIMIT_MIB * MIB // 512
PAGES: list[mmap.mmap] = []  # read as long as their addresses are known


@pytest.fixture
def space(gpu: nv.Gpu) -> int:
    return gpu.rm.alloc(nv.FERMI_VASPACE_A, gpu.device, nv.VaspaceParams())[1]


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
    number = nv.request(nv.NV_ESC_RM_MAP_MEMORY_DMA, ctypes.sizeof(arg))
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
            part = nv.UnmapDma(rm.handle, gpu.device, space, memory, 0, at + hole * MIB, 2 * MIB)
            rm.ctl.call(nv.NV_ESC_RM_UNMAP_MEMORY_DMA, part)
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
        arg = nv.UnmapDma(rm.handle, gpu.device, space, memory, 0, at)
        number, address = nv.request(nv.NV_ESC_RM_UNMAP_MEMORY_DMA, ctypes.sizeof(arg)), frozen(arg)
        for _ in range(3):
            assert rm.ctl.raw(number, address)
        assert box.used == before


@pytest.mark.checked
def test_an_address_space_kept_by_a_dup(box: Box, gpu: nv.Gpu, space: int):
    """The first one's 128 KiB come back with it; the dup has its own."""
    before = filled(box, gpu, space)
    dups = []
    for _ in range(20):
        status, first = gpu.rm.alloc(nv.FERMI_VASPACE_A, gpu.device, nv.VaspaceParams())
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


VIRTUAL, LAZY, EXTERNAL, SPARSE = 0x80000, 0x400, 0x400000, 0x4000000
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
        assert gpu.rm.alloc(nv.FERMI_VASPACE_A, gpu.device, params, ALL_ONES)[0] == nv.NV_ERR_INVALID_ARGUMENT
        assert box.used == used
    assert gpu.free(memory) == 0
    assert box.used == used - 2 * MIB


@pytest.mark.checked
def test_tables_of_reserved_addresses(box: Box, gpu: nv.Gpu, space: int):
    """A terabyte of them is 2 GiB of tables, at once unless it is lazy and not sparse."""
    size = 1 << 40
    for flags in (0, SPARSE, SPARSE | LAZY, SPARSE | EXTERNAL):
        assert reservation(gpu, space, size, flags)[0] == nv.NV_ERR_NO_MEMORY
    for flags in (LAZY, EXTERNAL):
        status, handle = reservation(gpu, space, size, flags)
        assert status == 0
        assert gpu.free(handle) == 0
    before = filled(box, gpu, space)
    status, handle = reservation(gpu, space, 1 << 30)
    assert status == 0
    taken = box.used - before
    assert 2 * MIB < taken < 3 * MIB
    assert gpu.free(handle) == 0
    assert box.used == before + taken // 17, "the driver keeps those for pages of 64 KiB"


@pytest.mark.parametrize("flag", [1 << 9, 1 << 13], ids=["fla", "heap"])
def test_tables_of_the_drivers_own_heap(box: Box, gpu: nv.Gpu, flag: int):
    """What the driver keeps there is for the contexts of all containers."""
    refused = box.stat("refused_calls")
    assert gpu.rm.alloc(nv.FERMI_VASPACE_A, gpu.device, nv.VaspaceParams(flags=flag))[0] == nv.NV_ERR_INVALID_ARGUMENT
    assert box.stat("refused_calls") == refused + 1


def test_tables_of_mappings_in_reserved_addresses(box: Box, gpu: nv.Gpu, space: int):
    """The driver keeps them with the range, after the unmap too: as many again as for the range (tests/rm)."""
    rm = gpu.rm
    before = filled(box, gpu, space)
    status, handle = reservation(gpu, space, 64 * MIB)
    assert status == 0
    reserved = box.used - before
    memory = gpu.alloc_vidmem(2 * MIB)[1]
    before += 2 * MIB
    for n in range(40):
        status, at = rm.map_dma(gpu.device, handle, memory, 2 * MIB)
        assert status == 0
        assert box.used - before == min(reserved + (n + 1) * tables(2 * MIB), 2 * reserved)
        assert rm.unmap_dma(gpu.device, handle, memory, at) == 0
    assert box.used - before == 2 * reserved
    assert gpu.free(handle) == 0
    assert box.used == before + reserved // 17


REQUIRE_FIXED = 0x1000  # NV_VASPACE_ALLOCATION_FLAGS
VAS_DEVICE = 3  # NV_VASPACE_ALLOCATION_INDEX_GPU_DEVICE


@pytest.mark.checked
@pytest.mark.parametrize("dup", [False, True], ids=["alone", "with-a-dup"])
def test_tables_of_addresses_that_the_driver_refuses(box: Box, gpu: nv.Gpu, dup: bool):
    """It has made them by then, and keeps as much as the largest request needed until the address space goes, by its
    last handle."""
    made, card, filler = [], fb_used(), gpu.rm.alloc(nv.FERMI_VASPACE_A, gpu.device, nv.VaspaceParams())[1]
    before = filled(box, gpu, filler)
    for n in range(1, 4):
        status, space = gpu.rm.alloc(nv.FERMI_VASPACE_A, gpu.device, nv.VaspaceParams(flags=REQUIRE_FIXED))
        assert status == 0
        own = box.used
        for size in (1 << 30, 4 << 30, 4 << 30, 2 << 30):
            assert reservation(gpu, space, size)[0] == nv.NV_ERR_INVALID_ARGUMENT
        assert 8 * MIB < box.used - own < 9 * MIB
        assert reservation(gpu, space, 64 << 30, LAZY)[0] == nv.NV_ERR_INVALID_ARGUMENT
        assert 8 * MIB < box.used - own < 9 * MIB
        assert n * 8 * MIB <= fb_used() - card - 14 * MIB <= box.used
        if dup:
            status, second = gpu.rm.dup(gpu.device, gpu.rm.handle, space)
            assert (status, gpu.free(space)) == (0, 0)
            assert 8 * MIB < box.used - own < 9 * MIB, "the dup keeps them"
            space = second
        made.append(space)
    refused = [reservation(gpu, made[0], 40 << 30)[0] for _ in range(2)]
    assert refused == [nv.NV_ERR_NO_MEMORY] * 2, "over the limit: the driver does not get the call"
    for space in made:
        assert gpu.free(space) == 0
    assert box.used == before


def test_no_tables_of_a_devices_own_address_space(box: Box, gpu: nv.Gpu):
    """They are in what the driver keeps of the card for itself: it keeps none of the container's."""
    filler = gpu.rm.alloc(nv.FERMI_VASPACE_A, gpu.device, nv.VaspaceParams())[1]
    filled(box, gpu, filler)
    status, space = gpu.rm.alloc(nv.FERMI_VASPACE_A, gpu.device, nv.VaspaceParams(index=VAS_DEVICE))
    before = box.used
    assert status == 0
    status, handle = reservation(gpu, space, 4 << 30)
    assert (status, box.used - before > 8 * MIB) == (0, True)
    assert gpu.free(handle) == 0
    assert box.used == before


def test_tables_of_mappings_that_the_driver_refuses(box: Box, gpu: nv.Gpu, space: int):
    """In addresses that another mapping has."""
    memory = gpu.alloc_vidmem(16 * MIB)[1]
    before = filled(box, gpu, space)
    status, own = gpu.rm.alloc(nv.FERMI_VASPACE_A, gpu.device, nv.VaspaceParams())
    assert status == 0
    after = box.used
    for dma in (own, reservation(gpu, own, 64 * MIB, LAZY)[1]):
        status, at = gpu.rm.map_dma(gpu.device, dma, memory, 16 * MIB)
        assert status == 0
        for _ in range(3):
            layout = nv.of_branch("MapDma", gpu.rm.branch)
            arg = layout(client=gpu.rm.handle, device=gpu.device, dma=dma, memory=memory, length=16 * MIB)
            arg.flags, arg.dma_offset = 1 << 15, at
            gpu.rm.ctl.call(nv.NV_ESC_RM_MAP_MEMORY_DMA, arg)
            assert arg.status
        assert gpu.rm.unmap_dma(gpu.device, dma, memory, at) == 0
        assert box.used - after == tables(16 * MIB)
    assert gpu.free(own) == 0
    assert box.used == before


@pytest.mark.parametrize("size", [64 * KIB, 2 * MIB])
def test_tables_of_a_mapping_of_more_than_there_is(box: Box, gpu: nv.Gpu, space: int, size: int):
    """NVIDIA's driver makes them before it refuses, 2 MiB for each GiB: it does not get the call."""
    kinds = (gpu.alloc_vidmem(size)[1], gpu.alloc_sysmem(size)[1])
    before, refused = box.used, box.stat("refused_calls")
    for memory in kinds:
        for offset, length in ((0, 64 << 30), (size, 4096), (4096, size), (1 << 63, 1 << 63), (2**64 - 4096, 8192)):
            assert gpu.rm.map_dma(gpu.device, space, memory, length, offset)[0] == NV_ERR_INVALID_LIMIT
    assert (box.used, box.stat("refused_calls") - refused) == (before, 10)
    for memory in kinds:
        assert gpu.rm.map_dma(gpu.device, space, memory, size)[0] == 0


def test_a_mapping_takes_no_bar1_and_leaves_no_translation(box: Box, gpu: nv.Gpu, space: int):
    """By flags: KERNEL_MAPPING, and DEFER_TLB_INVALIDATION, with which the GPU goes on with the old one."""
    rm = gpu.rm
    memory = gpu.alloc_vidmem(2 * MIB)[1]

    def map_by(flags: int, at: int = 0) -> tuple[int, int]:
        layout = nv.of_branch("MapDma", rm.branch)
        arg = layout(client=rm.handle, device=gpu.device, dma=space, memory=memory, length=2 * MIB)
        arg.flags, arg.dma_offset = flags, at
        rm.ctl.call(nv.NV_ESC_RM_MAP_MEMORY_DMA, arg)
        return arg.status, arg.dma_offset

    refused = box.stat("refused_calls")
    assert map_by(1 << 5)[0]
    assert box.stat("refused_calls") == refused + 1
    status, at = map_by(1 << 31)
    assert status == 0
    arg = nv.of_branch("UnmapDma", rm.branch)(rm.handle, gpu.device, space, memory, 1, at)
    rm.ctl.call(nv.NV_ESC_RM_UNMAP_MEMORY_DMA, arg)
    assert arg.status == 0
    assert map_by(1 << 15, at) == (0, at), "nothing is left there"


def test_tables_of_addresses_reserved_the_old_way(gpu: nv.Gpu, space: int):
    """NVOS32 with FLAGS_VIRTUAL: a request over the limit is refused before the driver runs."""

    def alloc(size: int) -> int:
        arg = (ctypes.c_uint32 * 46)()
        arg[0], arg[1], arg[2] = gpu.rm.handle, gpu.device, 2
        arg[13] = VIRTUAL
        ctypes.c_uint64.from_buffer(arg, 88).value = size
        assert gpu.rm.ctl.raw(nv.request(nv.NV_ESC_RM_VID_HEAP_CONTROL, ctypes.sizeof(arg)), arg) == 0
        return arg[5]

    assert alloc(1 << 40) == nv.NV_ERR_NO_MEMORY
    assert alloc(1 << 30) == nv.NV_OK


@pytest.mark.parametrize("attr", [0, nv.ATTR_LOCATION_PCI], ids=["video memory", "system memory"])
def test_memory_of_the_cpu_side_the_old_way(box: Box, gpu: nv.Gpu, attr: int):
    """NVOS32 with ATTR2_USE_EGM: the driver makes class 0x42 of it, which RM_ALLOC refuses."""
    arg = (ctypes.c_uint32 * 46)()
    arg[0], arg[1], arg[2], arg[14], arg[36] = gpu.rm.handle, gpu.device, 2, attr, 1 << 24
    ctypes.c_uint64.from_buffer(arg, 88).value = 64 * KIB
    refused, used = box.stat("refused_calls"), box.used
    assert gpu.rm.ctl.raw(nv.request(nv.NV_ESC_RM_VID_HEAP_CONTROL, ctypes.sizeof(arg)), arg) == 0
    assert (arg[5], box.stat("refused_calls"), box.used) == (nv.NV_ERR_INVALID_CLASS, refused + 1, used)


def test_tables_of_uvms_own_ranges(box: Box, gpu: nv.Gpu, space: int):
    before = filled(box, gpu, space)
    uvm = gpu.space().uvm
    for n in range(100):
        arg = (ctypes.c_uint64 * 5)(n << 32, 4096)
        assert uvm.raw(65, arg) == 0
    assert box.used - before == (128 + 100 * 16) * KIB, "and an address space"
    uvm.close()
    until(lambda: box.used - before == 128 * KIB)
