# SPDX-License-Identifier: MIT
"""Class 0xde, the driver's page of shared data: libcuda 580 needs it, and a container sees zeros in it."""

from __future__ import annotations

import ctypes
import errno
import mmap

import pytest
from slicebox import nvclient

pytestmark = [pytest.mark.debug_ok, pytest.mark.attached]

CLASS, SYSMEM = 0xDE, 1
GET_ADDR_SPACE_TYPE = 0xD01
HANDLE = 0x5C000001


def mapped(
    rm: nvclient.Client, gpu: nvclient.Gpu, shared: int, length: int = 4096, prot: int = mmap.PROT_READ
) -> bytes:
    with nvclient.Ctl(rm.directory) as node:
        status, address = rm.map_memory(node, gpu.subdevice, shared, length)
        assert status == 0 and address % 4096 == 0
        mapping = node.mmap(length, prot=prot)
        seen = ctypes.string_at(mapping.addr, length)
        mapping.close()
    assert rm.unmap_memory(gpu.subdevice, shared, address) == 0
    return seen


def test_the_driver_shows_the_cards_totals_there():
    """The bare driver's page is not zero: without this the next test could not fail."""
    with nvclient.Client() as rm:
        gpu = rm.gpu(0)
        assert any(mapped(rm, gpu, rm.alloc(CLASS, gpu.subdevice)[1]))


@pytest.mark.checked
def test_a_container_sees_zeros(box):
    with box.client() as rm:
        gpu = rm.gpu()
        refused = box.stat("refused_calls")
        status, shared = rm.alloc(CLASS, gpu.subdevice, handle=HANDLE)
        assert (status, shared) == (0, HANDLE)
        status, answer = rm.control(rm.handle, GET_ADDR_SPACE_TYPE, HANDLE.to_bytes(4, "little") + bytes(8))
        assert status == 0 and answer[8] == SYSMEM
        assert mapped(rm, gpu, shared) == bytes(4096)
        assert mapped(rm, gpu, shared) == bytes(4096), "and again"
        assert box.stat("refused_calls") == refused
        assert rm.free(shared, gpu.subdevice) == 0
        assert rm.alloc(CLASS, gpu.subdevice, handle=HANDLE)[0] == 0, "the handle is free again"


def test_zeros_cannot_be_written(box):
    with box.client() as rm:
        gpu = rm.gpu()
        rm.alloc(CLASS, gpu.subdevice, handle=HANDLE)
        with pytest.raises(OSError) as refused:
            mapped(rm, gpu, HANDLE, prot=mmap.PROT_READ | mmap.PROT_WRITE)
        assert refused.value.errno == errno.EACCES
        with nvclient.Ctl(rm.directory) as node:
            assert rm.map_memory(node, gpu.subdevice, HANDLE, 4096)[0] == 0
            mapping = node.mmap(4096, prot=mmap.PROT_READ)
            libc = ctypes.CDLL(None, use_errno=True)
            assert libc.mprotect(ctypes.c_void_p(mapping.addr), 4096, mmap.PROT_READ | mmap.PROT_WRITE) == -1
            assert ctypes.get_errno() == errno.EACCES
            mapping.close()


def test_the_driver_does_not_know_the_object(box):
    """No call that names it reaches the driver's page: neither a dup, nor a mapping for the GPU, nor a control."""
    with box.client() as rm:
        gpu = rm.gpu()
        space = gpu.space()
        rm.alloc(CLASS, gpu.subdevice, handle=HANDLE)
        assert rm.dup(gpu.subdevice, rm, HANDLE)[0] != 0
        assert rm.map_dma(gpu.device, space.vaspace, HANDLE, 4096)[0] != 0
        assert rm.control(HANDLE, 0xDE0001, bytes(8))[0] == nvclient.NV_ERR_NOT_SUPPORTED
        assert space.map(HANDLE, 4096)[0] != 0


def test_bad_maps_change_nothing(box):
    with box.client() as rm, nvclient.Ctl(rm.directory) as node:
        gpu = rm.gpu()
        rm.alloc(CLASS, gpu.subdevice, handle=HANDLE)
        bad = nvclient.NV_ERR_INVALID_ARGUMENT
        assert rm.map_memory(node, gpu.subdevice, HANDLE, 1 << 20)[0] == bad
        assert rm.map_memory(node, gpu.subdevice, HANDLE, 4096, offset=4096)[0] == bad
        with open("/dev/null", "rb") as other:
            node_fd, node.fd = node.fd, other.fileno()
            assert rm.map_memory(node, gpu.subdevice, HANDLE, 4096)[0] == bad
            node.fd = node_fd
        with pytest.raises(OSError):
            node.mmap(4096, prot=mmap.PROT_READ)
        assert rm.alloc(CLASS, gpu.device, handle=HANDLE + 1)[0] == 0x36
        assert rm.alloc(CLASS, gpu.subdevice)[0] == bad, "without a handle"
        assert rm.alloc(CLASS, gpu.subdevice, handle=HANDLE)[0] != 0, "the handle is taken"


def test_spaces_belong_to_no_process(box):
    """UVM_MM_INITIALIZE has nothing to do, and a GPU is registered without it."""
    with box.client() as rm, nvclient.Uvm(rm.directory, initialize=False) as second:
        gpu = rm.gpu()
        with nvclient.Uvm(rm.directory) as uvm:
            assert second.mm_initialize(uvm) == nvclient.NV_WARN_NOTHING_TO_DO
            vaspace = rm.alloc(
                nvclient.FERMI_VASPACE_A, gpu.device, nvclient.VaspaceParams(flags=nvclient.VASPACE_FLAGS)
            )[1]
            assert uvm.register_gpu(gpu.uuid) == 0
            assert uvm.register_vaspace(gpu.uuid, rm, vaspace) == 0
