# SPDX-License-Identifier: MIT
"""Hostile tenants: pages of 512 MiB on a card that has none, after which driver 535 never allocates again."""

from __future__ import annotations

import ctypes
from collections.abc import Iterator

import pytest
from slicebox import MIB, Box, clean_box, nvsim_as
from slicebox import nvclient as nv

pytestmark = pytest.mark.once

LOST_LOCK = "535.261.03"
PAGES_512M = {"attr": nv.ATTR_PAGE_HUGE | nv.ATTR_NONCONTIG_ALLOWED, "attr2": 2 << 20}
VIRTUAL = 0x80000
NV_ERR_STATE_IN_USE = 0x63


@pytest.fixture(scope="module")
def turing() -> Iterator[None]:
    with nvsim_as("t4", version=LOST_LOCK):
        yield


@pytest.fixture
def box(turing: None) -> Iterator[Box]:
    with clean_box(1024) as box:
        yield box


def reserve(gpu: nv.Gpu) -> int:
    params = nv.MemoryParams(owner=gpu.rm.handle, flags=VIRTUAL, size=1 << 30, **PAGES_512M)
    return gpu.rm.alloc(0x50A0, gpu.device, nv.in_branch(nv.NV01_MEMORY_LOCAL_USER, params, gpu.rm.branch))[0]


def by_the_old_call(gpu: nv.Gpu, flags: int = 0) -> int:
    """NVOS32 ALLOC_SIZE: its status."""
    arg = (ctypes.c_uint32 * 46)()
    arg[0], arg[1], arg[2], arg[13] = gpu.rm.handle, gpu.device, 2, flags
    arg[14], arg[36] = PAGES_512M["attr"], PAGES_512M["attr2"]
    ctypes.c_uint64.from_buffer(arg, 88).value = MIB
    gpu.rm.ctl.raw(nv.request(nv.NV_ESC_RM_VID_HEAP_CONTROL, ctypes.sizeof(arg)), arg)
    return arg[5]


@pytest.mark.parametrize(
    "attack",
    [
        lambda gpu: gpu.alloc_vidmem(MIB, **PAGES_512M)[0],
        lambda gpu: gpu.alloc_sysmem(MIB, attr=PAGES_512M["attr"] | nv.ATTR_LOCATION_PCI, attr2=PAGES_512M["attr2"])[0],
        reserve,
        by_the_old_call,
        lambda gpu: by_the_old_call(gpu, VIRTUAL),
    ],
    ids=["video memory", "system memory", "addresses", "the old call", "addresses by the old call"],
)
def test_pages_that_the_card_does_not_have(box: Box, gpu: nv.Gpu, attack):
    """Refused with the driver's own status, and before the driver sees it: others can still allocate."""
    refused, used = box.stat("refused_calls"), box.used
    assert attack(gpu) == nv.NV_ERR_INVALID_STATE
    assert (box.stat("refused_calls"), box.used) == (refused + 1, used)
    status, memory = gpu.alloc_vidmem(2 * MIB)
    assert (status, gpu.free(memory)) == (0, 0)


def test_what_it_would_do_to_the_card():
    """Without the module: no one can allocate any more. It is another nvsim, which is not used afterwards."""
    with nvsim_as("t4", version=LOST_LOCK), nv.Client() as rm:
        gpu = rm.gpu(0)
        assert gpu.alloc_vidmem(MIB)[0] == 0
        assert gpu.alloc_vidmem(MIB, **PAGES_512M)[0] == nv.NV_ERR_INVALID_STATE
        assert gpu.alloc_vidmem(MIB)[0] == NV_ERR_STATE_IN_USE


def test_a_card_that_has_them():
    """They are charged whole."""
    with nvsim_as("a100", version=LOST_LOCK), clean_box(1024) as box, box.client() as rm:
        gpu = rm.gpu(0)
        before = box.used
        status, memory = gpu.alloc_vidmem(MIB, **PAGES_512M)
        assert (status, box.used - before) == (0, 512 * MIB)
        assert gpu.alloc_vidmem(600 * MIB, **PAGES_512M)[0] == nv.NV_ERR_NO_MEMORY
        assert gpu.free(memory) == 0
