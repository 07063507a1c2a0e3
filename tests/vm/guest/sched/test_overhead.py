# SPDX-License-Identifier: MIT
"""Memory that the driver adds to a request: no tenant fills the card with page tables and channels."""

from __future__ import annotations

import os

import pytest
from slicebox import MIB, Box
from slicebox import nvclient as nv

pytestmark = pytest.mark.once

LIMIT_MIB = 32
LIMIT = LIMIT_MIB * MIB
KIB = 1024
INCLUDED = 16 * MIB + LIMIT // 512


def until_refused(work, most: int) -> int:
    """The number of successful calls; the tenant's own limit stops them."""
    for n in range(most):
        status = work(n)
        if status:
            assert status == nv.NV_ERR_NO_MEMORY
            return n
    raise AssertionError(f"{most} times and no end")


def test_page_tables_of_one_page_mapped_everywhere(box: Box, gpu: nv.Gpu):
    """MAP_MEMORY_DMA of 64 KiB: 16 KiB each, of which 16 MiB and a 512th of the limit are included."""
    memory = gpu.alloc_vidmem(64 * KIB)[1]
    space = gpu.rm.alloc(nv.FERMI_VASPACE_A, gpu.device, nv.VaspaceParams())[1]
    n = until_refused(lambda _: gpu.rm.map_dma(gpu.device, space, memory, 64 * KIB)[0], 8000)
    assert abs(n * 16 * KIB - (INCLUDED + LIMIT)) < MIB
    assert LIMIT - 16 * KIB <= box.used <= LIMIT
    assert box.meminfo() == (LIMIT - box.used, {os.getpid(): box.used})
    assert gpu.alloc_vidmem(64 * KIB)[0] == nv.NV_ERR_NO_MEMORY
    gpu.free(memory)
    assert box.used == 0


@pytest.mark.stock_only  # 8000 equal calls take minutes of the debug kernel, and repeat the same check
def test_unmapped_and_mapped_again_costs_once(box: Box, gpu: nv.Gpu):
    memory = gpu.alloc_vidmem(64 * KIB)[1]
    space = gpu.rm.alloc(nv.FERMI_VASPACE_A, gpu.device, nv.VaspaceParams())[1]
    for _ in range(4000):
        status, at = gpu.rm.map_dma(gpu.device, space, memory, 64 * KIB)
        assert status == 0
        assert gpu.rm.unmap_dma(gpu.device, space, memory, at) == 0
    assert box.used == 64 * KIB


def test_page_tables_of_uvm_mappings(box: Box, gpu: nv.Gpu):
    """The same by MAP_EXTERNAL_ALLOCATION, of system memory too; given back by unmapping."""
    space = gpu.space()
    memory = gpu.alloc_sysmem(64 * KIB)[1]
    step = 2 * MIB
    base = nv.reserve(8000 * step)
    assert space.uvm.create_range(base, 8000 * step) == 0

    def map_one(n: int) -> int:
        return space.uvm.map(gpu.uuid, gpu.rm, memory, base + n * step, 64 * KIB)

    n = until_refused(map_one, 8000)
    assert abs(n * 16 * KIB - (INCLUDED + LIMIT)) < MIB
    assert box.used >= LIMIT - 16 * KIB
    for at in range(n):
        assert space.uvm.unmap(gpu.uuid, base + at * step, 64 * KIB) == 0
    assert box.used == 0


@pytest.mark.checked
def test_address_spaces_without_end(box: Box, gpu: nv.Gpu):
    made: list[int] = []

    def make(_: int) -> int:
        status, handle = gpu.rm.alloc(nv.FERMI_VASPACE_A, gpu.device, nv.VaspaceParams())
        made.append(handle)
        return status

    n = until_refused(make, 1000)
    assert abs(n * 128 * KIB - (INCLUDED + LIMIT)) < MIB
    for handle in made[:n]:
        assert gpu.free(handle) == 0
    assert box.used == 0


def test_mapping_the_whole_limit_is_included(box: Box, gpu: nv.Gpu):
    space = gpu.space()
    for _ in range(16):
        status, _ = space.map(gpu.alloc_vidmem(2 * MIB)[1], 2 * MIB)
        assert status == 0
    assert box.used == LIMIT


def test_a_lower_limit_undoes_nothing(box: Box, gpu: nv.Gpu):
    memory = gpu.alloc_vidmem(64 * KIB)[1]
    space = gpu.rm.alloc(nv.FERMI_VASPACE_A, gpu.device, nv.VaspaceParams())[1]
    for _ in range(1500):
        assert gpu.rm.map_dma(gpu.device, space, memory, 64 * KIB)[0] == 0
    assert box.used > 64 * KIB
    (box.proc / "memsize").write_text(str(MIB))
    assert gpu.rm.map_dma(gpu.device, space, memory, 64 * KIB)[0] == nv.NV_ERR_NO_MEMORY
    gpu.free(memory)
    assert box.used == 0
