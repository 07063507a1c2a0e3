# SPDX-License-Identifier: MIT
"""The module's own calls as a kernel client: which of them RM refuses, on its own objects and on a tenant's."""

import struct

import nvclient as nv
import pytest
from corelib import C, ffi
from kernel import KernelClient

COPY2 = nv.NV2080_ENGINE_TYPE_COPY0 + 2


@pytest.fixture
def module(machine):
    client = KernelClient(machine.rm)
    yield client
    client.close()


def size_of(module, cmd):
    return module.rm.control_info(cmd)[3]


def fb_info(module, client, subdevice):
    data = struct.pack("<III", 1, nv.NV2080_CTRL_FB_INFO_INDEX_HEAP_FREE, 0).ljust(
        size_of(module, nv.NV2080_CTRL_CMD_FB_GET_INFO_V2), b"\0"
    )
    status, data = module.control(client, subdevice, nv.NV2080_CTRL_CMD_FB_GET_INFO_V2, data)
    return status, struct.unpack_from("<I", data, 8)[0] << 10


def test_its_own_client(machine, module):
    """Client, device and subdevice with handles of its choice; questions, UUID, ids, probe of the freeze control."""
    assert fb_info(module, module.handle, module.SUBDEVICE) == (0, machine.observer.heap_free())
    gid = struct.pack("<II", 0, 0).ljust(size_of(module, nv.NV2080_CTRL_CMD_GPU_GET_GID_INFO), b"\0")
    status, data = module.control(module.handle, module.SUBDEVICE, nv.NV2080_CTRL_CMD_GPU_GET_GID_INFO, gid)
    assert status == 0
    assert data[12:].startswith(b"GPU-")
    empty = bytes(ffi.sizeof("struct nv_disable_channels"))
    assert module.control(module.handle, module.SUBDEVICE, nv.NV2080_CTRL_CMD_FIFO_DISABLE_CHANNELS, empty)[0] == 0


def test_number_of_channel_ids(module):
    """FIFO_GET_INFO with the index that quota.c uses: RM's own count of groups."""
    params = struct.pack("<III", 1, C.NV2080_CTRL_FIFO_INFO_INDEX_MAX_CHANNEL_GROUPS_PER_ENGINE, 0).ljust(
        ffi.sizeof("struct nv_fifo_info") - 4, b"\0"
    )
    params += struct.pack("<I", C.NV2080_ENGINE_TYPE_GRAPHICS)
    status, data = module.control(module.handle, module.SUBDEVICE, C.NV2080_CTRL_CMD_FIFO_GET_INFO, params)
    assert status == 0
    assert 2030 <= struct.unpack_from("<I", data, 8)[0] <= 2048


def test_on_a_tenants_objects(machine, module):
    """Schedule, timeslice, preempt, restart, sizes and frees: RM takes them from the kernel for any client."""
    tenant = machine.client()
    gpu = tenant.gpu()
    context = gpu.context(COPY2)
    surface = gpu.surface(12345, attr=1 << 23)
    statuses = {}
    for name, handle, cmd, params in (
        ("schedule", context.tsg, nv.NVA06C_CTRL_CMD_GPFIFO_SCHEDULE, b"\1"),
        ("timeslice", context.tsg, nv.NVA06C_CTRL_CMD_SET_TIMESLICE, struct.pack("<Q", 2000)),
        ("preempt", context.tsg, nv.NVA06C_CTRL_CMD_PREEMPT, b"\1"),
        ("restart", context.channel, nv.NVA06F_CTRL_CMD_RESTART_RUNLIST, b"\1"),
    ):
        params = params.ljust(size_of(module, cmd), b"\0")
        statuses[name] = module.control(tenant.handle, handle, cmd, params)[0]
    statuses["fb_info"], free = fb_info(module, tenant.handle, gpu.subdevice)
    assert free == gpu.heap_free()
    row = struct.pack("<II", C.NV0041_CTRL_SURFACE_INFO_INDEX_PHYS_SIZE, 0)
    head = struct.pack("<IIQ", 1, 0, 0)
    statuses["surface"] = module.control(
        tenant.handle, surface.handle, C.NV0041_CTRL_CMD_GET_SURFACE_INFO, head, [(8, row)]
    )[0]
    assert set(statuses.values()) == {0}, statuses
    data = struct.unpack("<II", module.nested[0])[1] * C.NV0041_CTRL_SURFACE_INFO_PHYS_SIZE_SCALE_FACTOR
    assert data == surface.phys_size
    assert module.free(tenant.handle, gpu.device, surface.handle) == 0
    assert tenant.control(surface.handle, 0x410110, struct.pack("<IIQ", 0, 0, 0))[0] != 0


def test_freeze_from_the_modules_own_subdevice(machine, module):
    """DISABLE_CHANNELS on the module's subdevice with the tenant's client and channel in the list."""
    tenant = machine.client()
    gpu = tenant.gpu()
    context = gpu.context(COPY2)
    assert context.schedule() == 0
    memory = gpu.must_have(1 << 20)
    va = context.map(memory, 1 << 20)

    def disable(on):
        arg = nv.DisableChannels(disable=on, count=1)
        arg.client[0], arg.channel[0] = tenant.handle, context.channel
        return module.control(module.handle, module.SUBDEVICE, nv.NV2080_CTRL_CMD_FIFO_DISABLE_CHANNELS, bytes(arg))[0]

    assert disable(True) == 0
    context.fill(va, 1, 16, done=1)
    assert context.semaphore() == 0
    assert disable(False) == 0
    machine.rm.poll()
    assert context.semaphore() == 1


def test_an_object_lent_for_dups(machine, module):
    """ckm_rm_lend(): RM takes the share call from the kernel, for one client and back."""
    tenant, other = machine.client(), machine.client()
    gpu = tenant.gpu()
    surface = gpu.surface(1 << 20)
    assert module.share(tenant.handle, surface.handle, other.handle) == 0
    assert module.share(tenant.handle, surface.handle, other.handle, end=True) == 0


def test_utilisation_samples(module):
    """The effect check's question passes RM's checks and is the GSP's to answer."""
    size = module.rm.control_info(C.NV2080_CTRL_CMD_PERF_GET_GPUMON_PERFMON_UTIL_SAMPLES_V2)[3]
    module.rm.seen()
    assert (
        module.control(
            module.handle, module.SUBDEVICE, C.NV2080_CTRL_CMD_PERF_GET_GPUMON_PERFMON_UTIL_SAMPLES_V2, bytes(size)
        )[0]
        == 0
    )
    assert [seen.number for seen in module.rm.seen()] == [C.NV2080_CTRL_CMD_PERF_GET_GPUMON_PERFMON_UTIL_SAMPLES_V2]
