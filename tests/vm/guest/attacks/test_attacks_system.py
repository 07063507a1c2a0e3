# SPDX-License-Identifier: MIT
"""Hostile tenants that map system memory by a control file after the driver has freed its record.

The file's mapping context has the record's address and no reference: the driver would take pages by what that memory
has become. The simulated driver knows of freed memory, and warns of a mapping of it.
"""

from __future__ import annotations

import ctypes
import errno
import threading
import time
from collections.abc import Callable

import pytest
from slicebox import MIB, Box
from slicebox import nvclient as nv

pytestmark = [pytest.mark.once, pytest.mark.attached]

LIMIT_MIB = 64
LENGTH = MIB
MAPPED_CACHED = 1 << 4 | 1 << 12  # NVOS02_FLAGS: not contiguous; mapped, since there is no NO_MAP


def map_after(gpu: nv.Gpu, node: nv.Ctl) -> int:
    status, memory = gpu.alloc_sysmem(LENGTH)
    assert (status, gpu.rm.map_memory(node, gpu.device, memory, LENGTH)[0]) == (0, 0)
    return memory


def map_with_alloc(gpu: nv.Gpu, node: nv.Ctl) -> int:
    arg = nv.AllocMemory(
        root=gpu.rm.handle, parent=gpu.device, class_id=nv.NV01_MEMORY_SYSTEM, flags=MAPPED_CACHED, limit=LENGTH - 1,
        fd=node.fd,
    )  # fmt: skip
    gpu.node.call(0x27, arg)
    assert arg.status == 0
    return arg.handle


def close_files(gpu: nv.Gpu) -> None:
    """The client's control file, and the node that is registered on it and keeps it."""
    gpu.node.close()
    gpu.rm.ctl.close()


ENDS: dict[str, Callable[[nv.Gpu, int], int | None]] = {
    "memory": lambda gpu, memory: gpu.free(memory),
    "device": lambda gpu, memory: gpu.rm.free(gpu.device, gpu.rm.handle),
    "client": lambda gpu, memory: gpu.rm.free(gpu.rm.handle, gpu.rm.handle),
    "file": lambda gpu, memory: close_files(gpu),
}


def maps_nothing(node: nv.Ctl) -> None:
    with pytest.raises(OSError) as caught:
        node.mmap(LENGTH)
    assert caught.value.errno == errno.ENXIO


@pytest.mark.parametrize("way", [map_after, map_with_alloc], ids=lambda way: way.__name__)
@pytest.mark.parametrize("end", ENDS)
def test_memory_that_was_freed_before_it_is_mapped(box: Box, gpu: nv.Gpu, way: Callable[..., int], end: str):
    with nv.Ctl(box.dev) as node:
        memory = way(gpu, node)
        assert not ENDS[end](gpu, memory)
        maps_nothing(node)


@pytest.mark.parametrize("end", ENDS)
def test_memory_that_the_file_of_its_last_mapping_has_freed(box: Box, gpu: nv.Gpu, end: str):
    """Of two files with the memory, the first has its last mapping, and frees it when it is closed."""
    first, second = nv.Ctl(box.dev), nv.Ctl(box.dev)
    memory = map_after(gpu, first)
    assert gpu.rm.map_memory(second, gpu.device, memory, LENGTH)[0] == 0
    mapping = first.mmap(LENGTH)
    mapping.write32(0, 0xB6)
    assert not ENDS[end](gpu, memory)
    assert mapping.read32(0) == 0xB6
    mapping.close()
    maps_nothing(first)
    first.close()
    maps_nothing(second)
    second.close()


def test_memory_that_is_being_freed(box: Box, gpu: nv.Gpu, personality: Callable[..., None]):
    personality(unmap_ms=400)
    with nv.Ctl(box.dev) as node:
        memory = map_after(gpu, node)
        free = threading.Thread(target=gpu.free, args=(memory,))
        free.start()
        time.sleep(0.2)
        maps_nothing(node)
        free.join()
        maps_nothing(node)
    personality(unmap_ms=0)


def test_threads_that_map_and_free(box: Box, gpu: nv.Gpu):
    """A mapping that was made has its memory, whatever was first."""

    def show(node: nv.Ctl, made: list[nv.Mapping]) -> None:
        try:
            made.append(node.mmap(LENGTH))
        except OSError as error:
            assert error.errno == errno.ENXIO

    for _ in range(100):
        made: list[nv.Mapping] = []
        with nv.Ctl(box.dev) as node:
            memory = map_after(gpu, node)
            thread = threading.Thread(target=show, args=(node, made))
            thread.start()
            assert gpu.free(memory) == 0
            thread.join()
        for mapping in made:
            mapping.write32(0, 0xB6)
            assert mapping.read32(0) == 0xB6
            mapping.close()


def test_memory_that_has_another_handle(box: Box, gpu: nv.Gpu):
    """A file shows what it was given by a handle, as long as that exists: a dup's is another one."""
    with nv.Ctl(box.dev) as node, nv.Ctl(box.dev) as other:
        memory = map_after(gpu, node)
        status, dup = gpu.rm.dup(gpu.device, gpu.rm, memory)
        assert (status, gpu.rm.map_memory(other, gpu.device, dup, LENGTH)[0]) == (0, 0)
        assert gpu.free(memory) == 0
        maps_nothing(node)
        other.mmap(LENGTH).close()
        other.mmap(LENGTH).close()
        assert gpu.free(dup) == 0
        maps_nothing(other)


def test_memory_that_is_unmapped_only(box: Box, gpu: nv.Gpu):
    """RM_UNMAP_MEMORY ends no context in the driver either."""
    with nv.Ctl(box.dev) as node:
        _, memory = gpu.alloc_sysmem(LENGTH)
        status, address = gpu.rm.map_memory(node, gpu.device, memory, LENGTH)
        assert (status, gpu.rm.unmap_memory(gpu.device, memory, address)) == (0, 0)
        node.mmap(LENGTH).close()
        assert gpu.free(memory) == 0
        maps_nothing(node)


def test_a_file_that_was_given_nothing(box: Box, gpu: nv.Gpu):
    with nv.Ctl(box.dev) as node, pytest.raises(OSError) as caught:
        node.mmap(LENGTH)
    assert caught.value.errno == errno.EINVAL


def test_a_second_memory_does_not_revive_a_file(box: Box, gpu: nv.Gpu):
    """The driver refuses a second context of a file, and RM_ALLOC_MEMORY keeps the memory all the same."""
    with nv.Ctl(box.dev) as node:
        assert gpu.free(map_after(gpu, node)) == 0
        _, memory = gpu.alloc_sysmem(LENGTH)
        assert gpu.rm.map_memory(node, gpu.device, memory, LENGTH)[0] != 0
        arg = nv.AllocMemory(
            root=gpu.rm.handle, parent=gpu.device, class_id=nv.NV01_MEMORY_SYSTEM, flags=MAPPED_CACHED,
            limit=LENGTH - 1,
            fd=node.fd,
        )  # fmt: skip
        gpu.node.raw(nv.request(0x27, ctypes.sizeof(arg)), arg)
        maps_nothing(node)
