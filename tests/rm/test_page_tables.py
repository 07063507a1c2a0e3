# SPDX-License-Identifier: MIT
"""Page tables that RM keeps when nothing is mapped by them: the module refuses or charges them (rm_map_dma.c)."""

import nvclient as nv
import pytest
from client import ALLOC_VIRTUAL, CLASS_VIRTUAL

KIB, MIB, GIB = 1 << 10, 1 << 20, 1 << 30
ALLOC_LAZY = 1 << 10  #: nvos.h: NVOS32_ALLOC_FLAGS_LAZY
REQUIRE_FIXED = 1 << 12  #: nvos.h: NV_VASPACE_ALLOCATION_FLAGS_REQUIRE_FIXED_OFFSET
NV_ERR_INVALID_LIMIT = 0x2E
VAS_DEVICE = 3  #: nvos.h: NV_VASPACE_ALLOCATION_INDEX_GPU_DEVICE


def reserved(client, gpu, space: int, size: int, flags: int = 0) -> int:
    """A range of addresses."""
    params = nv.MemoryParams(owner=client.handle, size=size, flags=ALLOC_VIRTUAL | flags, vaspace=space)
    status, handle = client.alloc(CLASS_VIRTUAL, gpu.device, params)
    assert status == 0
    return handle


def unmap(client, gpu, handle: int, memory: int, at: int) -> int:
    layout = nv.of_branch("UnmapDma", int(client.rm.branch))
    arg = layout(client=client.handle, device=gpu.device, dma=handle, memory=memory, dma_offset=at)
    client._call(nv.NV_ESC_RM_UNMAP_MEMORY_DMA, arg)
    return arg.status


def test_a_mapping_of_more_than_the_memory_has_leaves_tables(some_machine):
    """It is refused, and the card has 2 MiB less for each GiB that it named, as long as the address space is there."""
    client = some_machine.client()
    gpu = client.gpu()
    memory = gpu.must_have(64 * KIB)
    space = gpu.space()
    handle = reserved(client, gpu, space, 64 * GIB, ALLOC_LAZY)
    free = gpu.heap_free()
    assert client.map_dma(gpu.device, handle, memory, 64 * GIB)[0] == NV_ERR_INVALID_LIMIT
    assert free - gpu.heap_free() >= 128 * MIB
    assert gpu.free(handle) == 0
    assert free - gpu.heap_free() >= 128 * MIB
    assert gpu.free(space) == 0
    assert free - gpu.heap_free() < MIB


@pytest.mark.parametrize(("flags", "kept"), [(0, 2 * MIB), (ALLOC_LAZY, 0)], ids=["reserved", "lazy"])
def test_what_a_range_keeps_after_an_unmap(some_machine, flags: int, kept: int):
    """With its own tables at once, as many again for the largest mapping; without, none."""
    client = some_machine.client()
    gpu = client.gpu()
    memory = gpu.must_have(GIB)
    handle = reserved(client, gpu, gpu.space(), GIB, flags)
    free = gpu.heap_free()
    for _ in range(3):
        status, at = client.map_dma(gpu.device, handle, memory, GIB)
        assert status == 0
        assert free - gpu.heap_free() == pytest.approx(2 * MIB, abs=128 * KIB)
        assert unmap(client, gpu, handle, memory, at) == 0
        assert free - gpu.heap_free() == pytest.approx(kept, abs=128 * KIB)


def test_addresses_that_are_refused_leave_tables(some_machine):
    """As many as the largest request needs, as long as the address space is there."""
    client = some_machine.client()
    gpu = client.gpu()
    free = gpu.heap_free()
    status, space = client.alloc(nv.FERMI_VASPACE_A, gpu.device, nv.VaspaceParams(flags=REQUIRE_FIXED))
    assert status == 0
    for gib in (64, 64, 32):
        params = nv.MemoryParams(owner=client.handle, size=gib * GIB, flags=ALLOC_VIRTUAL, vaspace=space)
        assert client.alloc(CLASS_VIRTUAL, gpu.device, params)[0] == nv.NV_ERR_INVALID_ARGUMENT
        assert free - gpu.heap_free() == pytest.approx(136 * MIB, abs=MIB)
    assert gpu.free(space) == 0
    assert free - gpu.heap_free() < MIB


def test_what_an_address_space_keeps_of_ranges_that_are_freed(some_machine):
    """Their tables for pages of 64 KiB, as many as there were at once; another range does not take from them."""
    client = some_machine.client()
    gpu = client.gpu()
    space = gpu.space()
    free = gpu.heap_free()
    for count, kept in ((1, 4), (1, 4), (4, 16), (1, 16), (2, 16)):
        ranges = [reserved(client, gpu, space, 32 * GIB) for _ in range(count)]
        assert free - gpu.heap_free() <= (count * 68.5 + kept) * MIB
        assert [gpu.free(handle) for handle in ranges] == [0] * count
        assert free - gpu.heap_free() == pytest.approx(kept * MIB, abs=MIB / 2)
    assert gpu.free(space) == 0
    assert free - gpu.heap_free() < MIB


def test_a_devices_default_address_space_takes_none_of_the_cards_memory(some_machine):
    """Its tables are in what RM keeps of the card for itself: a range takes none, and a refused call leaves none."""
    client = some_machine.client()
    gpu = client.gpu()
    status, space = client.alloc(nv.FERMI_VASPACE_A, gpu.device, nv.VaspaceParams(index=VAS_DEVICE))
    assert status == 0
    memory = gpu.must_have(64 * KIB)
    free = gpu.heap_free()
    handle = reserved(client, gpu, space, 32 * GIB)
    assert gpu.heap_free() == free
    assert gpu.free(handle) == 0
    assert client.map_dma(gpu.device, space, memory, 64 * GIB)[0] == NV_ERR_INVALID_LIMIT
    assert gpu.heap_free() == free
