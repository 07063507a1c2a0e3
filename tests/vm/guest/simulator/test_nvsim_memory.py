# SPDX-License-Identifier: MIT OR GPL-2.0-only
"""nvsim by itself: references on the framebuffer, and their end."""

from __future__ import annotations

import mmap
import os
import struct
import time
from pathlib import Path

import nvclient as nv
import pytest

pytestmark = [pytest.mark.bare, pytest.mark.debug_ok]

MIB = 1 << 20
GIB = 1 << 30
POOL = 2 * MIB
MIGRATE_ASYNC = 1
ADDRESS_IN_USE, INVALID_DEVICE = 0x68, 0x26
STATE = Path("/proc/driver/nvsim/0/state")
EXPORT_OBJECT_TO_FD, IMPORT_OBJECT_FROM_FD = 0x3D05, 0x3D06


def state(name: str) -> int:
    return int(dict(line.split("=") for line in STATE.read_text().splitlines()[:3])[name])


def used() -> int:
    return state("fb_used")


def until_used(bytes_: int) -> bool:
    end = time.monotonic() + 20
    while time.monotonic() < end and used() != bytes_:
        time.sleep(0.05)
    return used() == bytes_


@pytest.fixture
def before():
    """Memory in use before the test; the same amount has to be in use after it."""
    bytes_ = used()
    yield bytes_
    assert until_used(bytes_)


@pytest.fixture
def gpu(before):
    with nv.Client() as rm:
        gpu = rm.gpu(0)
        yield gpu
        gpu.node.close()


def test_memory_runs_out_for_everyone(gpu, before):
    free = state("fb_total") - before
    status, big = gpu.alloc_vidmem((free - 512 * MIB) // (2 * MIB) * 2 * MIB)
    assert status == 0
    with nv.Client() as other:
        neighbour = other.gpu(0)
        assert neighbour.memory()["free"] == state("fb_total") - used()
        assert neighbour.alloc_vidmem(GIB)[0] == nv.NV_ERR_NO_MEMORY
        assert neighbour.alloc_vidmem(256 * MIB)[0] == 0
        assert gpu.free(big) == 0
        assert neighbour.alloc_vidmem(GIB)[0] == 0
        neighbour.node.close()


def test_untouched_memory_costs_the_host_nothing(gpu):
    def available():
        words = dict(line.split(":") for line in Path("/proc/meminfo").read_text().splitlines())
        return int(words["MemAvailable"].split()[0]) << 10

    host = available()
    status, memory = gpu.alloc_vidmem(6 * GIB)
    assert status == 0
    assert host - available() < 64 * MIB
    assert gpu.free(memory) == 0


def test_classes_check_their_parameters(gpu, before):
    assert gpu.alloc_vidmem(MIB, attr=1 << 25)[0] == nv.NV_ERR_INVALID_ARGUMENT
    assert gpu.alloc_vidmem(MIB, flags=0x80000)[0] == nv.NV_ERR_INVALID_ARGUMENT
    assert gpu.alloc_sysmem(MIB, attr=0)[0] == nv.NV_ERR_INVALID_ARGUMENT
    assert gpu.alloc_sysmem(MIB)[0] == 0
    assert used() == before


def test_duplicates_keep_memory(gpu, before):
    status, memory = gpu.alloc_vidmem(8 * MIB)
    with nv.Client() as other:
        second = other.gpu(0)
        status, dup = other.dup(second.device, gpu.rm, memory)
        assert status == 0
        assert gpu.free(memory) == 0
        assert used() == before + 8 * MIB
        assert second.free(dup) == 0
        assert used() == before
        second.node.close()


def test_uvm_mappings_keep_memory(gpu, before):
    space = gpu.space()
    status, memory = gpu.alloc_vidmem(8 * MIB)
    status, base = space.map(memory, 8 * MIB)
    assert status == 0
    assert gpu.free(memory) == 0
    assert used() == before + 8 * MIB
    # a hole in the middle splits the mapping; both halves hold on
    assert space.uvm.unmap(gpu.uuid, base + 2 * MIB, 2 * MIB) == 0
    assert space.uvm.unmap(gpu.uuid, base, 2 * MIB) == 0
    assert used() == before + 8 * MIB
    assert space.uvm.unmap(gpu.uuid, base + 4 * MIB, 4 * MIB) == 0
    assert used() == before
    assert space.unmap(base) == 0


def test_uvm_maps_only_the_callers_memory(gpu, before):
    status, memory = gpu.alloc_vidmem(2 * MIB)
    pid = os.fork()
    if not pid:
        with nv.Client() as other:
            space = other.gpu(0).space()
            space.uvm.create_range(1 << 36, 2 * MIB)
            status = space.uvm.map(gpu.uuid, gpu.rm, memory, 1 << 36, 2 * MIB)
        os._exit(0 if status == nv.NV_ERR_INSUFFICIENT_PERMISSIONS else 1)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0


def test_what_drops_uvm_mappings(gpu, before):
    def mapped(space):
        memory = gpu.alloc_vidmem(4 * MIB)[1]
        status, base = space.map(memory, 4 * MIB)
        assert status == 0
        assert gpu.free(memory) == 0
        assert used() == before + 4 * MIB
        return base

    space = gpu.space()
    base = mapped(space)
    assert space.unmap(base) == 0
    assert used() == before
    base = mapped(space)
    other = gpu.alloc_vidmem(4 * MIB)[1]
    assert space.uvm.map(gpu.uuid, gpu.rm, other, base, 4 * MIB) == 0
    assert gpu.free(other) == 0
    assert used() == before + 4 * MIB
    assert space.uvm.unregister_vaspace(gpu.uuid) == 0
    assert used() == before
    assert space.uvm.register_vaspace(gpu.uuid, gpu.rm, space.vaspace) == 0
    mapped(space)
    space.uvm.close()
    assert used() == before + 4 * MIB, "the file that keeps the mm holds the space's file"
    space.mm.close()
    assert until_used(before)


def test_exports_keep_memory(gpu, before):
    status, memory = gpu.alloc_vidmem(4 * MIB)
    carrier = nv.Ctl()
    params = struct.pack("<IIIIiI", 1, gpu.device, gpu.device, memory, carrier.fd, 0)
    assert gpu.rm.control(gpu.rm.handle, EXPORT_OBJECT_TO_FD, params)[0] == 0
    assert gpu.free(memory) == 0
    assert used() == before + 4 * MIB
    params = struct.pack("<iIIII", carrier.fd, 1, gpu.device, gpu.device, 0)
    status, answer = gpu.rm.control(gpu.rm.handle, IMPORT_OBJECT_FROM_FD, params)
    assert status == 0
    imported = struct.unpack("<iIIII", answer)[4]
    carrier.close()
    time.sleep(0.2)
    assert used() == before + 4 * MIB
    assert gpu.free(imported) == 0
    assert until_used(before)


def context() -> int:
    """A context's part of the framebuffer: none on Turing, where it comes from the driver's reserve."""
    parameters = Path("/sys/module/nvsim/parameters")
    turing = (parameters / "arch").read_text().strip() == "turing"
    return 0 if turing else int((parameters / "ctx_mib").read_text()) * MIB


def channels(count: int) -> int:
    return count * 65536 if context() else 0


def test_context_buffers_belong_to_nobody(gpu, before):
    group = gpu.space().group()
    assert used() - before == context(), "with the group, not with its first engine object"
    first = group.channel()
    second = group.channel()
    assert used() - before == context() + channels(2)
    assert gpu.processes()[os.getpid()] == 0
    gpu.free(first.handle)
    gpu.free(second.handle)
    group.close()
    assert used() == before


def test_dma_maps_go_with_either_handle(gpu, before):
    space = gpu.space()
    window = gpu.rm.alloc(0x70, gpu.device, bytes(16) + struct.pack("<II", space.vaspace, 0))[1]
    for dma in (space.vaspace, window):
        _, memory = gpu.alloc_vidmem(4 * MIB)
        assert gpu.rm.map_dma(gpu.device, dma, memory, 4 * MIB)[0] == 0
        assert gpu.free(memory) == 0
        assert used() == before
    _, memory = gpu.alloc_vidmem(4 * MIB)
    assert gpu.rm.map_dma(gpu.device, dma, memory, 4 * MIB)[0] == 0
    assert gpu.free(dma) == 0
    assert gpu.free(memory) == 0
    assert used() == before


def test_uvm_keeps_the_context_of_a_channel(gpu, before):
    space = gpu.space()
    group = space.group()
    channel = group.channel()
    assert space.uvm.register_channel(gpu.uuid, gpu.rm, channel.handle) == 0
    assert space.uvm.register_channel(gpu.uuid, gpu.rm, channel.handle) == nv.NV_ERR_INVALID_CHANNEL
    assert space.uvm.unregister_channel(gpu.rm, channel.handle) == 0
    assert space.uvm.unregister_channel(gpu.rm, channel.handle) == nv.NV_ERR_INVALID_CHANNEL
    assert space.uvm.register_channel(gpu.uuid, gpu.rm, channel.handle) == 0, "the handle is free again"
    group.close()
    assert used() == before + context() + channels(1)
    assert space.uvm.unregister_channel(gpu.rm, channel.handle) == 0
    assert used() == before
    group = space.group()
    channel = group.channel()
    assert space.uvm.register_channel(gpu.uuid, gpu.rm, channel.handle) == 0
    group.close()
    space.close()
    assert until_used(before)


def test_memory_under_a_channel_takes_the_channel_along(gpu, before):
    channel = gpu.space().group().channel()
    assert gpu.free(channel.memory) == 0
    assert (
        gpu.rm.control(channel.handle, nv.NVC36F_CTRL_CMD_GPFIFO_GET_WORK_SUBMIT_TOKEN, 4)[0]
        == nv.NV_ERR_OBJECT_NOT_FOUND
    )


def test_free_gives_the_framebuffer_back_under_a_cpu_mapping(gpu, before):
    """The PTEs stay, the memory is free, and the place in BAR1 is the next mapping's, as on a card (rm_view.h)."""
    _status, memory = gpu.alloc_vidmem(4 * MIB)
    mapping = gpu.map_cpu(memory, 4 * MIB)
    mapping.write32(0, 0xCAFE)
    assert gpu.free(memory) == 0
    assert used() == before
    other = gpu.map_cpu(gpu.alloc_vidmem(4 * MIB)[1], 4 * MIB)
    other.write32(0, 1)
    assert mapping.read32(0) == 1


def test_processes_are_charged_for_what_they_hold(gpu, before):
    gpu.alloc_vidmem(32 * MIB)
    channel = gpu.space().group().channel()
    dup = gpu.alloc_vidmem(8 * MIB)[1]
    assert gpu.rm.dup(gpu.device, gpu.rm, dup)[0] == 0
    assert gpu.processes()[os.getpid()] == 40 * MIB
    del channel


def test_managed_memory(gpu, before):
    uvm = gpu.space().uvm
    mapping = uvm.managed(4 * MIB)
    assert used() == before + 4 * MIB
    mapping.write32(8192, 5)
    assert mapping.read32(8192) == 5
    assert uvm.prefer(gpu.uuid, mapping.addr, 4 * MIB) == uvm.migrate(gpu.uuid, mapping.addr, 4 * MIB) == 0
    mapping.unmap(1 * MIB, 1 * MIB)
    assert used() == before + 3 * MIB
    assert mapping.read32(8192) == 5
    assert uvm.migrate(gpu.uuid, mapping.addr, 4 * MIB) == nv.NV_ERR_INVALID_ADDRESS
    mapping.close()
    assert used() == before
    with pytest.raises(OSError):
        nv.Mapping(uvm, 4 * MIB, 4096, mmap.PROT_READ | mmap.PROT_WRITE)  # address and offset differ
    assert uvm.pageable()


def test_a_reflected_page(gpu, before):
    """As nvidia-uvm's: a range of one page, with no memory and no mappings; it outlives the VA space until UVM_FREE."""
    space, base = gpu.space(), 1 << 36
    uvm, (_, memory) = space.uvm, gpu.alloc_vidmem(2 * MIB)
    assert uvm.reflect(bytes(16), base, 4096) == INVALID_DEVICE
    assert uvm.reflect(gpu.uuid, base, 8192) == nv.NV_ERR_INVALID_ADDRESS, "no size of a page"
    assert uvm.reflect(gpu.uuid, base + 4096, 65536) == nv.NV_ERR_INVALID_ADDRESS, "not aligned"
    assert uvm.reflect(gpu.uuid, base, 4096) == 0
    assert uvm.reflect(gpu.uuid, base, 4096) == ADDRESS_IN_USE
    assert uvm.create_range(base, 2 * MIB) == ADDRESS_IN_USE
    assert uvm.map(gpu.uuid, gpu.rm, memory, base, 4096) == nv.NV_ERR_INVALID_ADDRESS
    assert uvm.unmap(gpu.uuid, base, 4096) == nv.NV_ERR_INVALID_ADDRESS
    assert uvm.unregister_vaspace(gpu.uuid) == 0
    assert uvm.free(base, 4096) == 0
    assert uvm.free(base, 4096) == nv.NV_ERR_INVALID_ADDRESS


def test_an_asynchronous_migration_writes_its_semaphore(gpu, before):
    """As cudaMemPrefetchAsync() waits for it: in a pool of the same space, aligned; a synchronous one has none."""
    uvm, base = gpu.space().uvm, nv.reserve(POOL)
    mapping = uvm.managed(2 * MIB)
    there = (gpu.uuid, mapping.addr, 2 * MIB)
    assert uvm.pool(base, POOL) == 0
    pool = uvm.mapped(base, POOL)
    assert uvm.migrate(*there, flags=MIGRATE_ASYNC, semaphore=base + 4096, payload=0xCAFE) == 0
    assert pool.read32(4096) == 0xCAFE
    assert uvm.migrate(gpu.uuid, 0, 0, flags=MIGRATE_ASYNC, semaphore=base + 4100, payload=3) == 0, "no range"
    assert pool.read32(4100) == 3
    for at in (mapping.addr, base + 2, base + POOL):
        status = uvm.migrate(*there, flags=MIGRATE_ASYNC, semaphore=at, payload=5)
        assert status == nv.NV_ERR_INVALID_ADDRESS, hex(at)
    no_range = uvm.migrate(gpu.uuid, base, POOL, flags=MIGRATE_ASYNC, semaphore=base, payload=5)
    assert no_range == nv.NV_ERR_INVALID_ADDRESS
    assert uvm.migrate(*there, semaphore=base, payload=5) == nv.NV_ERR_INVALID_ARGUMENT
    assert uvm.migrate(*there, flags=MIGRATE_ASYNC, payload=5) == nv.NV_ERR_INVALID_ARGUMENT
    assert pool.read32(0) == pool.read32(4) == 0
    pool.close()
    assert uvm.free(base, POOL) == 0
    mapping.close()
