# SPDX-License-Identifier: MIT
"""Hostile tenants that keep a mapping of video memory after the driver has given its part of BAR1 to the next one."""

from __future__ import annotations

import ctypes
import os
import signal
import threading
import time
from collections.abc import Callable, Iterator

import pytest
from slicebox import MIB, Box, clean_box, fresh_id, nvsim_as
from slicebox import nvclient as nv

pytestmark = [pytest.mark.once, pytest.mark.attached]

LENGTH = 2 * MIB
MINE, SECRET = 0x11111111, 0x5EC2E75E
HOPPER_USERMODE, DOORBELL_BYTES = 0xC661, 64 << 10


@pytest.fixture
def neighbour() -> Iterator[Box]:
    with Box(fresh_id(), 64) as made:
        yield made


@pytest.fixture
def box(neighbour: Box) -> Iterator[Box]:
    with clean_box(64) as made:
        yield made


class View:
    """Memory or a doorbell, mapped by a file that stays open."""

    def __init__(self, gpu: nv.Gpu, by: int = 0, doorbell: int = 0):
        """@by: the device or subdevice that the call names; 0: the memory's own device. @doorbell: it, not memory."""
        self.gpu, self.rm, self.memory = gpu, gpu.rm, doorbell
        self.length = DOORBELL_BYTES if doorbell else LENGTH
        if not doorbell:
            status, self.memory = gpu.alloc_vidmem(LENGTH)
            assert status == 0
        self.node = gpu.open_node()
        status, self.address = self.rm.map_memory(self.node, by or gpu.device, self.memory, self.length)
        assert status == 0
        self.mapping = self.node.mmap(self.length)
        self.mapping.write32(0, MINE)

    def close_files(self) -> None:
        """The client's control file, and the node that is registered on it and keeps it."""
        self.gpu.node.close()
        self.rm.ctl.close()

    def ends_by(self, way: str) -> None:
        calls: dict[str, Callable[[], int | None]] = {
            "unmap": lambda: self.rm.unmap_memory(self.gpu.device, self.memory, self.address),
            "memory": lambda: self.gpu.free(self.memory),
            "subdevice": lambda: self.gpu.free(self.gpu.subdevice),
            "device": lambda: self.rm.free(self.gpu.device, self.rm.handle),
            "client": lambda: self.rm.free(self.rm.handle, self.rm.handle),
            "file": self.close_files,
        }
        assert not calls[way]()

    def seen(self) -> int:
        """What a process reads there; 0: nothing, it is killed."""
        pid = os.fork()
        if not pid:
            signal.signal(signal.SIGBUS, signal.SIG_DFL)
            os._exit({MINE: 1, SECRET: 2}.get(self.mapping.read32(0), 3))
        status = os.waitpid(pid, 0)[1]
        assert not os.WIFSIGNALED(status) or os.WTERMSIG(status) == signal.SIGBUS
        return os.WEXITSTATUS(status) if os.WIFEXITED(status) else 0

    def close(self) -> None:
        self.mapping.close()
        self.node.close()


@pytest.fixture
def view(box: Box) -> Iterator[View]:
    with box.client() as client:
        made = View(client.gpu(0))
        yield made
        made.close()


@pytest.mark.parametrize("way", ["unmap", "memory", "device", "client", "file"])
def test_the_neighbours_memory_by_a_mapping_that_is_kept(view: View, neighbour: Box, way: str):
    assert view.seen() == 1
    view.ends_by(way)
    with neighbour.client() as client:
        gpu = client.gpu(0)
        for _ in range(4):  # its place in BAR1 is among those that are given to these
            status, memory = gpu.alloc_vidmem(LENGTH)
            assert status == 0
            gpu.map_cpu(memory, LENGTH).write32(0, SECRET)
        assert view.seen() == 0
    with pytest.raises(OSError):
        view.node.mmap(LENGTH)


@pytest.mark.alone
def test_the_neighbours_memory_by_a_doorbell_that_is_kept():
    """From Hopper on it is mapped through BAR1 if the allocation sets bBar1Mapping, as libcuda does."""
    with nvsim_as("h100"):
        for way in ("unmap", "renamed", "memory", "subdevice", "client", "file"):
            keeps_no_doorbell(way)


def keeps_no_doorbell(way: str) -> None:
    with Box(fresh_id(), 64) as other, clean_box(64) as box, box.client() as rm:
        gpu = rm.gpu(0)
        status, doorbell = rm.alloc(HOPPER_USERMODE, gpu.subdevice, (ctypes.c_uint8 * 2)(1, 0))
        assert (status, box.stat("bar1_bytes")) == (0, 0)
        view = View(gpu, gpu.subdevice, doorbell)
        assert (box.stat("bar1_bytes"), view.seen()) == (DOORBELL_BYTES, 1)
        if way == "renamed":
            arg = nv.RenameMap(rm.handle, gpu.subdevice, doorbell, view.address, 0x5000)
            rm.ctl.call(nv.NV_ESC_RM_UPDATE_DEVICE_MAPPING_INFO, arg)
            assert arg.status == 0
            view.address, way = 0x5000, "unmap"
        view.ends_by(way)
        with other.client() as client:
            theirs = client.gpu(0)
            for _ in range(4):
                theirs.map_cpu(theirs.alloc_vidmem(DOORBELL_BYTES)[1], DOORBELL_BYTES).write32(0, SECRET)
            assert view.seen() == 0, way
        view.close()


def test_nothing_else_is_mapped(box: Box):
    """Registers, and what the driver has in one page for channels of several processes (tests/rm)."""
    with box.client() as rm:
        gpu = rm.gpu(0)
        space = gpu.space()
        group = space.group()
        channel = group.channel()
        objects = [rm.handle, gpu.device, gpu.subdevice, space.vaspace, group.tsg, channel.handle]
        for n, handle in enumerate(objects):
            before = box.stat("refused_calls")
            with gpu.open_node() as node:
                status, address = rm.map_memory(node, gpu.device, handle, 4096)
                assert status == nv.NV_ERR_NOT_SUPPORTED, n
                assert box.stat("refused_calls") == before + 1
                assert rm.unmap_memory(gpu.device, handle, address)
                with pytest.raises(OSError):
                    node.mmap(4096)


def test_the_neighbours_memory_by_a_mapping_whose_subdevice_is_freed(box: Box, neighbour: Box):
    """The memory lives on, and by the memory's own device its mapping does, too."""
    with box.client() as rm, neighbour.client() as client:
        gpu, theirs = rm.gpu(0), client.gpu(0)
        view = View(gpu, gpu.subdevice)
        assert rm.free(gpu.subdevice, gpu.device) == 0
        for _ in range(4):
            theirs.map_cpu(theirs.alloc_vidmem(LENGTH)[1], LENGTH).write32(0, SECRET)
        assert view.seen() == 1
        view.ends_by("unmap")
        assert view.seen() == 0
        view.close()


def test_the_neighbours_memory_by_an_unmap_beside_the_free(
    view: View, neighbour: Box, personality: Callable[..., None]
):
    """The unmap begins before the memory is freed and is refused after it: the view stays gone."""
    personality(unmap_ms=400)
    free = threading.Thread(target=view.ends_by, args=("memory",))
    free.start()
    time.sleep(0.2)
    assert view.rm.unmap_memory(view.gpu.device, view.memory, view.address)
    free.join()
    personality(unmap_ms=0)
    with neighbour.client() as client:
        gpu = client.gpu(0)
        for _ in range(4):
            gpu.map_cpu(gpu.alloc_vidmem(LENGTH)[1], LENGTH).write32(0, SECRET)
        assert view.seen() == 0


def test_other_mappings_stay(view: View):
    """Of the same client and of the same memory; one that is unmapped for another's name is its own again."""
    again = View(view.gpu)
    status, _ = view.rm.map_memory(gpu_node := view.gpu.open_node(), view.gpu.device, view.memory, LENGTH)
    assert status == 0
    second = gpu_node.mmap(LENGTH)
    view.ends_by("unmap")
    assert (view.seen(), again.seen(), second.read32(0)) == (0, 1, MINE)
    view.ends_by("memory")
    assert again.seen() == 1
    second.close()
    gpu_node.close()
    again.close()


def test_a_mapping_is_split_before_it_is_touched(view: View):
    """The driver fills in at mmap; its fault fills in nothing of a mapping that was split."""
    mapping = view.node.mmap(LENGTH)
    mapping.unmap(0, LENGTH // 2)
    view.mapping.write32(LENGTH // 2, MINE)
    pid = os.fork()
    if not pid:
        signal.signal(signal.SIGBUS, signal.SIG_DFL)
        os._exit(mapping.read32(LENGTH // 2) != MINE)
    assert os.waitpid(pid, 0)[1] == 0
    view.ends_by("memory")
    assert view.seen() == 0
    mapping.close()
