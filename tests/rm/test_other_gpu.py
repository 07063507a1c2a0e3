# SPDX-License-Identifier: MIT
"""Calls that name objects of two GPUs of one client: what RM makes of them, and that the module refuses it before RM.

Two cards of a kind, on each some memory at the same addresses: on the first that of a neighbour, on the second that of
the client, which has both cards.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from pathlib import Path

import nvclient as nv
import pytest
from calltable import CLASS_KINDS, ffi, lib
from client import ALLOC_VIRTUAL, CLASS_VIRTUAL, MAP_PEER, Client, Gpu
from rm import BRANCHES, Rm

SIZE = 2 << 20
COUNT = 16
MINE, NEIGHBOURS = 0xC0FFEE, 0x5EC0000
VIRTUAL_01 = 0x70


class Pair:
    """The two cards, a neighbour's memory on the first, and a client with both."""

    def __init__(self, rm: Rm):
        self.rm = rm
        self.mine = Client(rm)
        self.first, self.second = self.mine.gpu(0), self.mine.gpu(1)
        self.neighbour = Client(rm)
        theirs = self.neighbour.gpu(0)
        self.theirs = [self._mapped(self.neighbour, theirs, 0) for _ in range(COUNT)]
        self.memory = [self.second.memory(SIZE)[1] for _ in range(COUNT)]
        for n, fd in enumerate(self.theirs):
            rm.write(fd, 0, struct.pack("<Q", NEIGHBOURS + n))

    def _mapped(self, client: Client, gpu: Gpu, card: int) -> int:
        memory = gpu.must_have(SIZE)
        status, fd, _ = client.map_memory(gpu.device, memory, 4096, card)
        assert status == 0
        return fd

    def neighbours(self) -> list[int]:
        return [struct.unpack("<Q", self.rm.read(fd, 0, 8))[0] for fd in self.theirs]

    def space(self, gpu: Gpu) -> int:
        status, space = self.mine.alloc(nv.FERMI_VASPACE_A, gpu.device, nv.VaspaceParams())
        assert status == 0
        return space

    def virtual(self, gpu: Gpu, space: int) -> tuple[int, int]:
        params = nv.MemoryParams(owner=self.mine.handle, size=SIZE, flags=ALLOC_VIRTUAL, vaspace=space)
        return self.mine.alloc(CLASS_VIRTUAL, gpu.device, params)

    def map_dma(self, gpu: Gpu, space: int, memory: int, flags: int = 0) -> tuple[int, int]:
        return self.mine.map_dma(gpu.device, space, memory, SIZE, flags)


@pytest.fixture(params=BRANCHES)
def pair(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Pair]:
    with Rm(request.param, "TU104", "TU104", log=tmp_path / "log") as rm:
        assert rm.start(0)
        assert rm.start(1)
        yield Pair(rm)


def module_maps(memory: int, device: int, space: int, kind: str = "VIDMEM", flags: int = 0) -> bool:
    kinds = {name: value for value, name in CLASS_KINDS.items()}
    return lib.cgpu_call_may_map_dma(ffi.new("struct cgpu_dma_map *", [flags, kinds[kind], memory, device, space]))


def test_a_cpu_mapping_by_the_other_gpus_device_shows_the_neighbours_memory(pair: Pair):
    """rm_map.c refuses it: hold_device()."""
    seen = set()
    for memory in pair.memory:
        status, fd, _ = pair.mine.map_memory(pair.first.device, memory, 4096, 0)
        assert status == 0
        seen.add(struct.unpack("<Q", pair.rm.read(fd, 0, 8))[0])
    assert seen & set(pair.neighbours())


def test_a_gpu_mapping_by_the_other_gpus_device_writes_the_neighbours_memory(pair: Pair):
    context = pair.first.context()
    assert context.schedule() == 0
    before = pair.neighbours()
    for n, memory in enumerate(pair.memory):
        status, space = pair.virtual(pair.first, context.space)
        assert status == 0
        status, va = pair.map_dma(pair.first, space, memory)
        assert status == 0
        context.fill(va, MINE, 2, n + 1)
        assert context.semaphore() == n + 1
    assert pair.neighbours() != before
    assert not module_maps(memory=1, device=0, space=0)
    assert module_maps(memory=1, device=1, space=1)


def test_flags_of_a_peer_need_a_peer_and_stay_with_its_number(pair: Pair):
    """Without a peer object refused; the mapping outlives the object."""
    space = pair.space(pair.first)
    _, virtual = pair.virtual(pair.first, space)
    assert pair.map_dma(pair.first, virtual, pair.memory[0], MAP_PEER)[0] == nv.NV_ERR_INVALID_STATE
    peers = pair.mine.peers(pair.first, pair.second)
    _, virtual = pair.virtual(pair.first, space)
    assert pair.map_dma(pair.first, virtual, pair.memory[0], MAP_PEER)[0] == 0
    assert pair.mine.free(peers, pair.mine.handle) == 0
    assert not module_maps(memory=1, device=0, space=0, flags=MAP_PEER)
    assert not module_maps(memory=0, device=0, space=0, flags=MAP_PEER)


def test_system_memory_has_no_gpu(pair: Pair):
    attr = nv.ATTR_LOCATION_PCI | nv.ATTR_NONCONTIG_ALLOWED
    status, memory = pair.first.memory(SIZE, nv.NV01_MEMORY_SYSTEM, attr=attr)
    assert status == 0
    _, virtual = pair.virtual(pair.second, pair.space(pair.second))
    assert pair.map_dma(pair.second, virtual, memory)[0] == 0
    assert module_maps(memory=0, device=1, space=1, kind="SYSMEM")


def test_memory_is_duplicated_below_the_other_gpus_device(pair: Pair):
    """libcuda does it with system memory. Of video memory the new handle's addresses would be the first GPU's: the
    module refuses that (check_parent() of rm_dup.c).
    """
    attr = nv.ATTR_LOCATION_PCI | nv.ATTR_NONCONTIG_ALLOWED
    status, system = pair.second.memory(SIZE, nv.NV01_MEMORY_SYSTEM, attr=attr)
    assert status == 0
    for memory in (system, pair.memory[0]):
        assert pair.mine.dup(pair.first.device, pair.mine.handle, memory)[0] == 0


def test_an_address_space_of_the_other_gpu_is_accepted(pair: Pair):
    """By each class that takes one: the module refuses it (ckm_alloc_hold_space())."""
    theirs = pair.space(pair.second)
    own = pair.space(pair.first)
    alloc, device = pair.mine.alloc, pair.first.device
    status, group = alloc(
        nv.KEPLER_CHANNEL_GROUP_A, device, nv.TsgParams(vaspace=own, engine=nv.NV2080_ENGINE_TYPE_GRAPHICS)
    )
    assert status == 0
    accepted = [
        alloc(nv.KEPLER_CHANNEL_GROUP_A, device, nv.TsgParams(vaspace=theirs, engine=nv.NV2080_ENGINE_TYPE_GRAPHICS)),
        alloc(nv.FERMI_CONTEXT_SHARE_A, group, nv.ContextShareParams(vaspace=theirs)),
        alloc(VIRTUAL_01, device, struct.pack("<QQII", 0, 0, theirs, 0)),
        pair.virtual(pair.first, theirs),
    ]
    assert [status for status, _ in accepted] == [0] * 4
