# SPDX-License-Identifier: MIT
"""Hostile tenants that try to use another container's GPU, or to choose an address in their own GPU's memory."""

from __future__ import annotations

import ctypes
import itertools
import mmap
from collections.abc import Iterator

import pytest
from slicebox import MIB, PROC, Box, clean_box, command, fb_used, rewriting, until_raced
from slicebox import nvclient as nv

pytestmark = [pytest.mark.checked, pytest.mark.once, pytest.mark.attached]

LIMIT_MIB = 64
NV_ERR_GPU_UUID_NOT_FOUND = 0x12
NV_ERR_INVALID_ARGUMENT = 0x1F
NAMES = (f"{n:012x}" + "a" * 52 for n in itertools.count(0xA90000000000))


def uuid_of(index: int) -> bytes:
    """The UUID in uvm's form, as the module read it from the driver."""
    text = (PROC / str(index) / "uuid").read_text().strip()
    assert text.startswith("GPU-")
    return bytes.fromhex(text.removeprefix("GPU-").replace("-", ""))


@pytest.fixture
def box() -> Iterator[Box]:
    with clean_box(next(NAMES), LIMIT_MIB) as box:
        yield box


@pytest.fixture
def other() -> Iterator[nv.Gpu]:
    """GPU 1, in use by its own container: it is registered with uvm and RM."""
    with Box(next(NAMES), LIMIT_MIB, gpu=1) as box, box.client() as client:
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
    name = next(NAMES)
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
    gpu.rm.control(gpu.rm.handle, nv.CTRL_GET_ID_INFO_V2, info)
    for instance in (1, info.device_instance or 1):
        assert gpu.rm.alloc(nv.CLASS_DEVICE, None, nv.DeviceParams(device_id=instance))[0] != nv.NV_OK


# ---- a place in video memory ----

FIXED, BEGIN_END, VIRTUAL, LAZY = 0x10, 0x20000, 0x80000, 0x400
ALIGNMENT_FORCE = 0x100
PLACES = [{"flags": FIXED, "offset": 4 * MIB}, {"flags": BEGIN_END, "range_lo": 4 * MIB, "range_hi": 6 * MIB - 1}]


@pytest.mark.parametrize("place", PLACES)
def test_one_block_in_each_frame_by_its_address(box: Box, gpu: nv.Gpu, place: dict[str, int]):
    refused = box.stat("refused_calls")
    assert gpu.alloc_vidmem(64 << 10, **place)[0] == NV_ERR_INVALID_ARGUMENT
    assert box.stat("refused_calls") == refused + 1
    assert box.used == 0
    assert gpu.alloc_sysmem(64 << 10, flags=place["flags"])[0] == nv.NV_OK, "its own memory"


@pytest.mark.parametrize("flags", [FIXED, BEGIN_END])
def test_one_block_in_each_frame_by_the_old_call(box: Box, gpu: nv.Gpu, flags: int):
    arg = (ctypes.c_uint32 * 46)()
    arg[0], arg[1], arg[2], arg[13] = gpu.rm.handle, gpu.device, 2, flags
    ctypes.c_uint64.from_buffer(arg, 88).value = 64 << 10
    gpu.rm.ctl.raw(nv.request(nv.ESC_RM_VID_HEAP_CONTROL, ctypes.sizeof(arg)), arg)
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
