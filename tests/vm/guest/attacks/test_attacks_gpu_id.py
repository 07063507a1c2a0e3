# SPDX-License-Identifier: MIT
"""Hostile tenants that name another container's GPU by the driver's id, or set what is the host's."""

from __future__ import annotations

import ctypes
import errno
import re
from pathlib import Path

import pytest
from slicebox import Box, fresh_id
from slicebox import nvclient as nv

pytestmark = [pytest.mark.once, pytest.mark.attached]

LIMIT_MIB = 64
ATTACH_GPUS_TO_FD, SYS_PARAMS = 212, 214
ASYNC_ATTACH_ID, WAIT_ATTACH_ID = 0x289, 0x290


def external(index: int) -> int:
    """Openers of a GPU from inside the kernel."""
    return int(re.search(r"external=(-?\d+)", Path(f"/proc/driver/nvsim/{index}/state").read_text())[1])


def attach(ctl: nv.Ctl, *ids: int) -> int:
    arg = (ctypes.c_uint32 * len(ids))(*ids)
    return ctl.raw(nv.request(ATTACH_GPUS_TO_FD, ctypes.sizeof(arg)), arg)


def own_id(gpu: nv.Gpu) -> int:
    return gpu.card.gpu_id


def test_ids_of_ones_own_gpus_are_accepted_once(box: Box, gpu: nv.Gpu):
    before = external(0)
    with nv.Ctl(box.dev) as ctl:
        assert attach(ctl, own_id(gpu), 0, own_id(gpu)) == 0
        assert attach(ctl, own_id(gpu)) == errno.EINVAL
    assert external(0) == before, "the module keeps it, not the file"


@pytest.mark.parametrize("ids", [(0xFFFFFFFF,), (0x1234,), (0, 0x1234)])
def test_no_other_gpu_is_kept(box: Box, gpu: nv.Gpu, ids: tuple[int, ...]):
    refused = box.stat("refused_calls")
    with nv.Ctl(box.dev) as ctl:
        assert attach(ctl, own_id(gpu), *ids) == errno.EINVAL
        assert ctl.raw(nv.request(ATTACH_GPUS_TO_FD, 3), bytearray(4)) == errno.EINVAL
        assert attach(ctl, own_id(gpu)) == 0, "what was refused has changed nothing"
    assert box.stat("refused_calls") > refused


@pytest.mark.gpus(2)
def test_the_neighbours_gpu_is_not_kept(box: Box, gpu: nv.Gpu):
    with Box(fresh_id(), LIMIT_MIB, gpu=1) as other, other.client() as rm:
        theirs, before = own_id(rm.gpu(0)), external(1)
        with nv.Ctl(box.dev) as ctl:
            assert attach(ctl, theirs) == errno.EINVAL
        for control in (ASYNC_ATTACH_ID, WAIT_ATTACH_ID):
            status, _ = gpu.rm.control(gpu.rm.handle, control, theirs.to_bytes(4, "little"))
            assert status == nv.NV_ERR_INVALID_ARGUMENT
        assert external(1) == before


def test_the_hosts_block_size_is_not_a_tenants(box: Box, gpu: nv.Gpu):
    """The driver takes the first value that anyone gives, and refuses all others from then on."""
    for size in (1 << 30, 2 << 30):
        assert gpu.rm.ctl.raw(nv.request(SYS_PARAMS, 8), bytearray(size.to_bytes(8, "little"))) == 0


def test_an_address_space_of_another_container(box: Box, gpu: nv.Gpu):
    """Its client is of this very process, which is all that the driver looks at."""
    with Box(fresh_id(), LIMIT_MIB) as other, other.client() as rm:
        theirs = rm.gpu(0)
        status, space = rm.alloc(nv.FERMI_VASPACE_A, theirs.device, nv.VaspaceParams())
        assert status == 0
        with nv.Uvm(box.dev) as uvm:
            assert uvm.register_gpu(gpu.uuid) == 0
            assert uvm.register_vaspace(gpu.uuid, rm, space) == nv.NV_ERR_OBJECT_NOT_FOUND
            status, mine = gpu.rm.alloc(nv.FERMI_VASPACE_A, gpu.device, nv.VaspaceParams())
            assert status == 0
            assert uvm.register_vaspace(gpu.uuid, gpu.rm, mine) == 0
