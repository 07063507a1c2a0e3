# SPDX-License-Identifier: MIT
"""What an allocation takes of RM's own heap, against what cgpu charges: the module's formula, compiled."""

import itertools

import nvclient as nv
import pytest
from calltable import lib

KIB, MIB = 1 << 10, 1 << 20
SIZES = (
    1, 4 * KIB, 12345, 64 * KIB, 64 * KIB + 1, MIB, MIB + 4 * KIB, 2 * MIB, 2 * MIB + 1, 3 * MIB, 5 * MIB + 12345,
    64 * MIB, 300 * MIB + 77,
)  # fmt: skip
PAGE_SIZES = {"default": 0, "4K": 1, "big": 2, "huge": 3}
PHYSICALITIES = {"default": 0, "scattered": 1, "contiguous": 2, "either": 3}
COMPRESSION = {"none": 0, "any": 2}
HUGE_2M, HUGE_512M = 1, 2
MATRIX = list(itertools.product(SIZES, PAGE_SIZES, PHYSICALITIES, COMPRESSION))


def attributes(page: str, physicality: str, compression: str) -> int:
    return PAGE_SIZES[page] << 23 | PHYSICALITIES[physicality] << 27 | COMPRESSION[compression] << 12


def charged(size: int, attr: int, attr2: int, phys_size: int) -> int:
    """verify_size() of cgpu_km/intercept/rm_alloc.c: the estimate, and never less than the driver reports."""
    return max(lib.cgpu_estimate_vidmem_bytes(size, attr, attr2), phys_size)


def fall(gpu, size: int, attr: int, attr2: int = 0):
    """(surface, bytes by which HEAP_FREE fell); the memory is freed again and must be back."""
    before = gpu.heap_free()
    surface = gpu.surface(size, attr=attr, attr2=attr2)
    after = gpu.heap_free()
    if surface.status == 0:
        assert gpu.free(surface.handle) == 0
    assert gpu.heap_free() == before
    return surface, before - after


def test_charge_is_the_heaps_fall(machine):
    """416 allocations: sizes, page sizes, physicalities, compression."""
    gpu = machine.client().gpu()
    assert len(MATRIX) == 416
    wrong = []
    for size, *attrs in MATRIX:
        attr = attributes(*attrs)
        surface, taken = fall(gpu, size, attr)
        if surface.status or charged(size, attr, 0, surface.phys_size) != taken:
            wrong.append((size, *attrs, hex(surface.status), surface.phys_size, taken))
    assert not wrong


def test_phys_size_is_less_with_4k_pages_only(machine):
    """What GET_SURFACE_INFO reports falls short of the heap's fall only where small pages round up to 64 KiB."""
    gpu = machine.client().gpu()
    short = set()
    for size, *attrs in MATRIX:
        surface, taken = fall(gpu, size, attributes(*attrs))
        assert surface.phys_size <= taken
        if surface.phys_size != taken:
            short.add((size, *attrs))
    assert {row[1] for row in short} == {"4K"}
    assert {row[3] for row in short} == {"none"}, "compressed memory has big pages"
    assert {row[0] for row in short} == {size for size in SIZES if -(-size // 4096) * 4096 % (64 * KIB)}


@pytest.mark.parametrize("huge", [HUGE_2M, HUGE_512M])
def test_charge_of_huge_pages(machine, huge):
    """2 MiB pages, and 512 MiB from GA100 on."""
    if (machine.chip, huge) == ("TU104", HUGE_512M):
        return  # test_page_sizes.py
    gpu = machine.client().gpu()
    for size in (1, 2 * MIB, 2 * MIB + 1, 600 * MIB):
        attr, attr2 = PAGE_SIZES["huge"] << 23, huge << 20
        surface, taken = fall(gpu, size, attr, attr2)
        assert surface.status == 0
        assert charged(size, attr, attr2, surface.phys_size) == taken


def test_more_than_there_is(machine):
    """NV_ERR_NO_MEMORY, and nothing is taken."""
    gpu = machine.client().gpu()
    surface, taken = fall(gpu, gpu.heap_free() + MIB, 0)
    assert (surface.status, taken) == (nv.NV_ERR_NO_MEMORY, 0)


def test_system_memory_takes_none_of_the_card(machine):
    gpu = machine.client().gpu()
    before = gpu.heap_free()
    status, handle = gpu.memory(64 * MIB, nv.NV01_MEMORY_SYSTEM, attr=nv.ATTR_LOCATION_PCI | nv.ATTR_NONCONTIG_ALLOWED)
    assert (status, gpu.heap_free()) == (0, before)
    assert gpu.free(handle) == 0
