# SPDX-License-Identifier: MIT
"""Hostile tenants that try to use another container's GPU, or to choose an address in their own GPU's memory."""

from __future__ import annotations

import ctypes
import mmap
import os
import struct
from collections.abc import Iterator

import pytest
from slicebox import MIB, PROC, Box, command, fb_used, fresh_id, rewriting, until_raced
from slicebox import nvclient as nv

pytestmark = [pytest.mark.checked, pytest.mark.once, pytest.mark.attached]

LIMIT_MIB = 64
NV_ERR_GPU_UUID_NOT_FOUND = 0x12
NV_ERR_INVALID_ARGUMENT = 0x1F


def uuid_of(index: int) -> bytes:
    """The UUID in uvm's form, as the module read it from the driver."""
    text = (PROC / str(index) / "uuid").read_text().strip()
    assert text.startswith("GPU-")
    return bytes.fromhex(text.removeprefix("GPU-").replace("-", ""))


@pytest.fixture
def other() -> Iterator[nv.Gpu]:
    """GPU 1, in use by its own container: it is registered with uvm and RM."""
    with Box(fresh_id(), LIMIT_MIB, gpu=1) as box, box.client() as client:
        gpu = client.gpu(0)
        gpu.space()
        yield gpu


# ---- another GPU ----


@pytest.mark.gpus(2)
def test_another_gpu_by_its_uuid(gpu: nv.Gpu, other: nv.Gpu):
    assert (gpu.uuid, other.uuid) == (uuid_of(0), uuid_of(1))
    with nv.Uvm(gpu.rm.directory) as uvm:
        assert uvm.register_gpu(other.uuid) == NV_ERR_GPU_UUID_NOT_FOUND
        assert uvm.register_gpu(bytes(16)) == NV_ERR_GPU_UUID_NOT_FOUND
        assert uvm.register_gpu(gpu.uuid) == nv.NV_OK
        assert uvm.unregister_gpu(other.uuid) != nv.NV_OK, "the GPU is not registered"
        peers = (ctypes.c_uint8 * 36).from_buffer_copy(gpu.uuid + other.uuid + bytes(4))
        assert uvm.raw(29, peers) == 0
        assert int.from_bytes(bytes(peers[32:]), "little") != nv.NV_OK


@pytest.mark.gpus(2)
def test_both_gpus_of_ones_own():
    name = fresh_id()
    dev = f"/dev/cgpu/{name[:12]}"
    command(f"create {name} gpu=0,1 memsize={LIMIT_MIB * MIB},{LIMIT_MIB * MIB}")
    try:
        with nv.Client(dev) as client, nv.Uvm(dev) as uvm:
            gpus = [client.gpu(n) for n in (0, 1)]
            assert [uvm.register_gpu(gpu.uuid) for gpu in gpus] == [nv.NV_OK] * 2
    finally:
        command(f"destroy {name}")


@pytest.mark.gpus(2)
def test_another_gpu_by_rewriting_the_uuid(gpu: nv.Gpu, other: nv.Gpu):
    """Whichever UUID is in memory at the check, uvm uses the one that was checked."""
    shared = mmap.mmap(-1, 4096)
    arg = nv.UvmRegisterGpu.from_buffer(shared)
    with nv.Uvm(gpu.rm.directory) as uvm, rewriting(shared, gpu.uuid, other.uuid):

        def attempt() -> int:
            arg.ctl_fd = -1
            assert uvm.raw(nv.UVM_REGISTER_GPU, arg) == 0
            status = arg.status
            assert uvm.unregister_gpu(other.uuid) != nv.NV_OK
            uvm.unregister_gpu(gpu.uuid)
            return status

        until_raced(attempt, {nv.NV_OK, NV_ERR_GPU_UUID_NOT_FOUND}, at_least=3000)


@pytest.mark.gpus(2)
def test_another_gpu_by_its_instance(gpu: nv.Gpu, other: nv.Gpu):
    card = other.card
    info = nv.IdInfo(gpu_id=card.gpu_id)
    gpu.rm.control(gpu.rm.handle, nv.NV0000_CTRL_CMD_GPU_GET_ID_INFO_V2, info)
    for instance in (1, info.device_instance or 1):
        assert gpu.rm.alloc(nv.NV01_DEVICE_0, None, nv.DeviceParams(device_id=instance))[0] != nv.NV_OK


# ---- objects of one GPU in calls for the other, of a container with both ----


class Both:
    """A client of a container with slices of GPUs 0 and 1."""

    def __init__(self, name: str, rm: nv.Client):
        self.name, self.rm = name, rm
        self.first, self.second = rm.gpu(0), rm.gpu(1)

    def stat(self, key: str, gpu: int = 0) -> int:
        text = (PROC / str(gpu) / self.name[:12] / "stat").read_text()
        return int(dict(line.split() for line in text.splitlines())[key])

    def refused(self) -> int:
        """Of a call by a file of no GPU each slice counts it."""
        return self.stat("refused_calls")


@pytest.fixture
def both() -> Iterator[Both]:
    name = fresh_id()
    command(f"create {name} gpu=0,1 memsize={LIMIT_MIB * MIB},{LIMIT_MIB * MIB}")
    try:
        with nv.Client(f"/dev/cgpu/{name[:12]}") as rm:
            yield Both(name, rm)
    finally:
        command(f"destroy {name}")


@pytest.mark.gpus(2)
def test_the_first_gpus_memory_by_mapping_the_seconds(both: Both):
    """The driver would map for the CPU, or for the GPU, what is at the same addresses of the first: a neighbour's
    (tests/rm/test_other_gpu.py).
    """
    rm, first, second = both.rm, both.first, both.second
    _, memory = second.alloc_vidmem(2 * MIB)
    space = first.space()
    refused = both.refused()
    for device in (first.device, first.subdevice):
        with first.open_node() as node:
            node.register(rm.ctl)
            assert rm.map_memory(node, device, memory, 4096)[0] == nv.NV_ERR_INVALID_OBJECT_PARENT
        assert rm.map_dma(device, space.vaspace, memory, 2 * MIB)[0] == nv.NV_ERR_INVALID_OBJECT_PARENT
    assert rm.map_dma(second.device, space.vaspace, memory, 2 * MIB)[0] == nv.NV_ERR_INVALID_OBJECT_PARENT
    assert both.refused() == refused + 5
    with second.open_node() as node:
        node.register(rm.ctl)
        assert rm.map_memory(node, second.device, memory, 4096)[0] == nv.NV_OK
    assert rm.map_dma(second.device, second.space().vaspace, memory, 2 * MIB)[0] == nv.NV_OK


@pytest.mark.gpus(2)
@pytest.mark.parametrize("flags", [1 << 20, 2 << 20, 3 << 20, 1 << 22, 7 << 25])
def test_a_peers_number_by_the_flags_of_a_mapping(both: Both, flags: int):
    """The number outlives the peers, and may be another pair's by then. Peers are mapped by nvidia-uvm."""
    rm, first = both.rm, both.first
    space = first.space().vaspace
    layout = nv.of_branch("MapDma", rm.branch)
    for gpu in (first, both.second):
        _, memory = gpu.alloc_vidmem(2 * MIB)
        arg = layout(client=rm.handle, device=first.device, dma=space, memory=memory, length=2 * MIB, flags=flags)
        rm.ctl.call(nv.NV_ESC_RM_MAP_MEMORY_DMA, arg)
        assert arg.status == nv.NV_ERR_INVALID_OBJECT_PARENT


@pytest.mark.gpus(2)
def test_the_first_gpus_memory_by_page_tables_on_the_second(both: Both):
    """A channel of the first GPU in an address space of the second would use whatever lies there as page tables."""
    rm, first = both.rm, both.first
    theirs, own = both.second.space(), first.space()
    group = own.group()
    virtual = nv.MemoryParams(owner=rm.handle, flags=VIRTUAL | LAZY, size=4 * MIB, vaspace=theirs.vaspace)
    heap = (ctypes.c_uint32 * 46)()
    heap[0], heap[1], heap[2], heap[3], heap[13] = rm.handle, first.device, 2, theirs.vaspace, VIRTUAL | LAZY
    ctypes.c_uint64.from_buffer(heap, 88).value = 4 * MIB
    refused = both.refused()
    for vaspace, expected in ((theirs.vaspace, nv.NV_ERR_INVALID_OBJECT_PARENT), (0xDEAD, nv.NV_ERR_OBJECT_NOT_FOUND)):
        virtual.vaspace = heap[3] = vaspace
        tsg = nv.TsgParams(error_object=group.notifier, vaspace=vaspace, engine=nv.NV2080_ENGINE_TYPE_GRAPHICS)
        share = nv.ContextShareParams(vaspace=vaspace)
        got = [
            rm.alloc(nv.KEPLER_CHANNEL_GROUP_A, first.device, tsg),
            rm.alloc(nv.FERMI_CONTEXT_SHARE_A, group.tsg, share),
            rm.alloc(0x50A0, first.device, virtual),
            rm.alloc(0x70, first.device, struct.pack("<QQII", 0, 0, vaspace, 0)),
        ]
        assert [status for status, _ in got] == [expected] * 4
        rm.ctl.raw(nv.request(nv.NV_ESC_RM_VID_HEAP_CONTROL, ctypes.sizeof(heap)), heap)
        assert heap[5] == expected
    assert both.refused() == refused + 10
    group.channel().close()


@pytest.mark.gpus(2)
def test_the_first_gpus_memory_by_a_channels_own_space(both: Both):
    """By its address space, and by a context share."""
    rm, first = both.rm, both.first
    group = first.space().group(nv.NV2080_ENGINE_TYPE_COPY0)
    theirs = both.second.space()
    params = nv.ContextShareParams(vaspace=theirs.vaspace)
    status, share = rm.alloc(nv.FERMI_CONTEXT_SHARE_A, theirs.group().tsg, params)
    assert status == nv.NV_OK
    channel = group.channel()
    for field, handle in (("vaspace", theirs.vaspace), ("context_share", share)):
        arg = channel.params()
        setattr(arg, field, handle)
        arg = nv.in_branch(group.gpfifo_class, arg, rm.branch)
        assert rm.alloc(group.gpfifo_class, group.tsg, arg)[0] == nv.NV_ERR_INVALID_OBJECT_PARENT


@pytest.mark.gpus(2)
def test_the_first_gpus_memory_by_a_second_handle_of_the_seconds(both: Both):
    """System memory may have one below either device: libcuda makes it for contexts on both. It is charged once."""
    rm, first, second = both.rm, both.first, both.second
    _, memory = second.alloc_vidmem(2 * MIB)
    assert rm.dup(first.device, rm, memory)[0] == nv.NV_ERR_INVALID_OBJECT_PARENT
    status, system = second.alloc_sysmem(2 * MIB)
    assert status == nv.NV_OK
    status, handle = rm.dup(first.device, rm, system)
    assert status == nv.NV_OK
    assert second.free(system) == nv.NV_OK
    assert rm.map_dma(first.device, first.space().vaspace, handle, 2 * MIB)[0] == nv.NV_OK
    assert first.free(handle) == nv.NV_OK


@pytest.mark.gpus(2)
def test_the_first_gpus_memory_by_a_dma_buf_of_the_seconds(both: Both):
    _, memory = both.second.alloc_vidmem(2 * MIB)
    assert both.first.export_dmabuf(memory, size=2 * MIB)[0] == nv.NV_ERR_INVALID_OBJECT_PARENT
    status, fd = both.second.export_dmabuf(memory, size=2 * MIB)
    assert status == nv.NV_OK
    os.close(fd)


# ---- a place in video memory ----

FIXED, BEGIN_END, VIRTUAL, LAZY = 0x10, 0x20000, 0x80000, 0x400
ALIGNMENT_FORCE = 0x100
WPR1, WPR2 = 1 << 30, 1 << 31
SCANOUT_CARVEOUT = 1 << 10
PLACES = [{"flags": FIXED, "offset": 4 * MIB}, {"flags": BEGIN_END, "range_lo": 4 * MIB, "range_hi": 6 * MIB - 1}]


@pytest.mark.parametrize("place", PLACES)
def test_one_block_in_each_frame_by_its_address(box: Box, gpu: nv.Gpu, place: dict[str, int]):
    refused = box.stat("refused_calls")
    assert gpu.alloc_vidmem(64 << 10, **place)[0] == NV_ERR_INVALID_ARGUMENT
    assert box.stat("refused_calls") == refused + 1
    assert box.used == 0
    assert gpu.alloc_sysmem(64 << 10, flags=place["flags"])[0] == nv.NV_OK, "its own memory"


@pytest.mark.parametrize("place", [{"flags": WPR1}, {"flags": WPR2}, {"attr2": SCANOUT_CARVEOUT}])
def test_memory_that_the_driver_keeps_for_the_contexts_of_all(box: Box, gpu: nv.Gpu, place: dict[str, int]):
    """Where scrubbing is disabled, memory of a protected region or of a carveout comes from there."""
    refused = box.stat("refused_calls")
    assert gpu.alloc_vidmem(64 << 10, **place)[0] == NV_ERR_INVALID_ARGUMENT
    assert (box.stat("refused_calls"), box.used) == (refused + 1, 0)


@pytest.mark.parametrize(("flags", "attr2"), [(FIXED, 0), (BEGIN_END, 0), (WPR1, 0), (WPR2, 0), (0, SCANOUT_CARVEOUT)])
def test_one_block_in_each_frame_by_the_old_call(box: Box, gpu: nv.Gpu, flags: int, attr2: int):
    arg = (ctypes.c_uint32 * 46)()
    arg[0], arg[1], arg[2], arg[13], arg[36] = gpu.rm.handle, gpu.device, 2, flags, attr2
    ctypes.c_uint64.from_buffer(arg, 88).value = 64 << 10
    gpu.rm.ctl.raw(nv.request(nv.NV_ESC_RM_VID_HEAP_CONTROL, ctypes.sizeof(arg)), arg)
    assert arg[5] == NV_ERR_INVALID_ARGUMENT
    assert box.used == 0


def test_one_block_in_each_frame_by_its_alignment(box: Box, gpu: nv.Gpu):
    """The charge includes the memory that the alignment makes unusable for others."""
    status, handle = gpu.alloc_vidmem(64 << 10, flags=ALIGNMENT_FORCE, alignment=2 * MIB)
    assert status == nv.NV_OK
    assert box.used == 2 * MIB
    assert gpu.free(handle) == nv.NV_OK
    assert box.used == 0
    for alignment in (LIMIT_MIB * 2 * MIB, (1 << 64) - 1):
        assert gpu.alloc_vidmem(64 << 10, flags=ALIGNMENT_FORCE, alignment=alignment)[0] == nv.NV_ERR_NO_MEMORY
    assert gpu.alloc_vidmem(4 * MIB, flags=ALIGNMENT_FORCE, alignment=2 * MIB)[0] == nv.NV_OK
    assert box.used == 4 * MIB == fb_used()


def test_fixed_addresses_of_ones_own_space_stay(gpu: nv.Gpu):
    """As libcuda reserves them: LAZY, VIRTUAL, FIXED."""
    space = gpu.space()
    params = nv.MemoryParams(
        owner=gpu.rm.handle, flags=VIRTUAL | LAZY | FIXED, size=64 * MIB, offset=0x5000000, vaspace=space.vaspace
    )
    assert gpu.rm.alloc(0x50A0, gpu.device, params)[0] == nv.NV_OK
