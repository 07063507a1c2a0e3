# SPDX-License-Identifier: MIT
"""Ids of channels and groups, and BAR1: a card has a fixed amount. No container can take another's floor."""

from __future__ import annotations

import ctypes
import random
import re
import signal
from pathlib import Path

import pytest
from slicebox import MIB, Box, child, until
from slicebox import nvclient as nv

pytestmark = pytest.mark.once

LIMIT_MIB = 1024
KIB = 1024
NV_ERR_NO_FREE_FIFOS = 0x4F
CTRL_FIFO_GET_INFO = 0x20801109
FB_BAR1_SIZE, FB_BAR1_AVAIL = 0x05, 0x1D


def groups(gpu: nv.Gpu, space: nv.Space, upto: int = 5000) -> tuple[int, list[int]]:
    """Groups on a copy engine until one is refused: its status, and those that were made."""
    made: list[int] = []
    params = nv.TsgParams(vaspace=space.vaspace, engine=nv.NV2080_ENGINE_TYPE_COPY0)
    for _ in range(upto):
        status, handle = gpu.rm.alloc(nv.KEPLER_CHANNEL_GROUP_A, gpu.device, params)
        if status:
            return status, made
        made.append(handle)
    return 0, made


def channels(first: nv.Channel, upto: int = 5000) -> tuple[int, list[int]]:
    """Channels beside @first, with its ring: the status that ended it, and those that were made."""
    made: list[int] = []
    for _ in range(upto):
        status, handle = first.gpu.rm.alloc(first.group.gpfifo_class, first.group.tsg, first.params())
        if status:
            return status, made
        made.append(handle)
    return 0, made


# ---- ids ----


def test_the_card_says_how_many_there_are(gpu: nv.Gpu, box: Box):
    """2,048 of Turing: an eighth is the driver's own, half of the rest is floors of twenty."""
    assert (box.stat("channels"), box.stat("channels_floor")) == (0, (2048 - 256) // 2 // 20)
    assert box.stat("channels_left") == 44 + 1792 - 20 * 44
    space = gpu.space()
    first = space.group().channel()
    assert (box.stat("channels"), box.stat("groups")) == (1, 1)
    gpu.free(first.handle)
    assert (box.stat("channels"), box.stat("groups")) == (0, 1)


@pytest.mark.checked
def test_one_container_cannot_take_all_groups(box: Box, gpu: nv.Gpu, other: Box):
    """Empty ones cost nothing else. The neighbour makes as many as are its own, and a context."""
    refused = box.stat("refused_calls")
    status, made = groups(gpu, gpu.space())
    assert status == NV_ERR_NO_FREE_FIFOS
    assert len(made) == 44 + 1792 - 20 * 44
    assert (box.stat("groups"), box.stat("groups_left")) == (len(made), 0)
    assert box.stat("refused_calls") == refused + 1
    with other.client() as rm:
        gpu2 = rm.gpu()
        space = gpu2.space()
        space.group().channel().submit(kernel_ns=1000)
        status, own = groups(gpu2, space)
        assert (status, len(own)) == (NV_ERR_NO_FREE_FIFOS, 44 - 1)
    for handle in made[:100]:
        assert gpu.free(handle) == 0
    assert box.stat("groups_left") == 100


@pytest.mark.checked
def test_one_container_cannot_take_all_channels(box: Box, gpu: nv.Gpu, other: Box):
    first = gpu.space().group(nv.NV2080_ENGINE_TYPE_COPY0).channel()
    status, made = channels(first)
    assert status == NV_ERR_NO_FREE_FIFOS
    assert len(made) + 1 == box.stat("channels") == 44 + 1792 - 20 * 44
    with other.client() as rm:
        channel = rm.gpu().space().group().channel()
        assert len(channels(channel)[1]) == 44 - 1
        channel.submit(kernel_ns=1000)
        channel.wait()
    until(lambda: other.stat("channels") == 0)


@pytest.mark.checked
def test_an_id_that_uvm_keeps_is_kept(box: Box, gpu: nv.Gpu):
    """The driver keeps a registered channel's id after the channel was freed (uvm_channel_retainer.c)."""
    space = gpu.space()
    group = space.group()
    for n in range(1, 6):
        channel = group.channel()
        assert space.uvm.register_channel(gpu.uuid, gpu.rm, channel.handle) == 0
        gpu.free(channel.handle)
        assert box.stat("channels") == n
    group.close()
    assert (box.stat("channels"), box.stat("groups")) == (5, 1)
    space.uvm.close()
    until(lambda: (box.stat("channels"), box.stat("groups")) == (0, 0))


@pytest.mark.checked
def test_ids_of_a_killed_process_come_back(box: Box):
    def work() -> None:
        gpu = box.client().gpu()
        groups(gpu, gpu.space(), 50)
        signal.pause()

    with child(work):
        until(lambda: box.stat("groups") == 50)
    until(lambda: box.stat("groups") == 0)


def test_a_refused_channel_takes_no_id(box: Box, gpu: nv.Gpu):
    """Neither one that the driver refuses, nor one over the memory limit."""
    space = gpu.space()
    first = space.group().channel()
    bad = first.params()
    bad.userd_memory[0] = 0x12345
    for _ in range(20):
        assert gpu.rm.alloc(first.group.gpfifo_class, first.group.tsg, bad)[0]
    assert box.stat("channels") == 1


# ---- BAR1 ----


class Window:
    """Mappings of one piece of video memory, each through a file of its own, as the driver requires."""

    def __init__(self, gpu: nv.Gpu, size: int):
        self.gpu, self.size = gpu, size
        status, self.memory = gpu.alloc_vidmem(size)
        assert status == 0
        self.at: list[int] = []

    def map(self) -> int:
        with self.gpu.open_node() as node:
            node.register(self.gpu.rm.ctl)
            status, at = self.gpu.rm.map_memory(node, self.gpu.device, self.memory, self.size)
        if not status:
            self.at.append(at)
        return status

    def unmap(self) -> int:
        return self.gpu.rm.unmap_memory(self.gpu.device, self.memory, self.at.pop())

    def fill(self) -> int:
        while not (status := self.map()):
            pass
        return status


@pytest.mark.checked
def test_one_container_cannot_take_all_of_bar1(box: Box, gpu: nv.Gpu, other: Box):
    """256 MiB of a T4: 224 for containers, half of it floors. Without a limit the neighbour could map nothing."""
    floor = 224 * MIB // 2 // 20
    assert (box.stat("bar1_bytes"), box.stat("bar1_bytes_floor")) == (0, floor)
    window = Window(gpu, 2 * MIB)
    assert window.fill() == nv.NV_ERR_NO_MEMORY
    taken = box.stat("bar1_bytes")
    assert taken == len(window.at) * 2 * MIB
    assert floor + 112 * MIB - 2 * MIB < taken <= floor + 224 * MIB - 20 * floor
    with other.client() as rm:
        theirs = Window(rm.gpu(), 2 * MIB)
        theirs.fill()
        assert 2 * MIB * len(theirs.at) <= floor + 2 * MIB
        assert len(theirs.at) >= floor // (2 * MIB) == 2
    for _ in range(3):
        assert window.unmap() == 0
    assert box.stat("bar1_bytes") == taken - 6 * MIB
    assert gpu.free(window.memory) == 0
    assert box.stat("bar1_bytes") == 0, "the driver unmaps memory that it frees"


def test_what_is_told_of_bar1_is_the_slices(box: Box, gpu: nv.Gpu, other: Box):
    """NVML shows total, used and free: used is the container's own, and the neighbour's shows nowhere."""
    window = Window(gpu, 2 * MIB)
    for _ in range(4):
        assert window.map() == 0
    size, free = (kib << 10 for kib in gpu.fb_info(FB_BAR1_SIZE, FB_BAR1_AVAIL))
    assert size - free == box.stat("bar1_bytes") == 8 * MIB
    with other.client() as rm:
        assert [kib << 10 for kib in rm.gpu().fb_info(FB_BAR1_SIZE, FB_BAR1_AVAIL)] == [size, size]


@pytest.mark.checked
def test_bar1_by_unmapping_what_is_not_there(box: Box, gpu: nv.Gpu):
    """A call that the driver refuses gives nothing back, and neither does the same one twice."""
    window = Window(gpu, 2 * MIB)
    for _ in range(3):
        assert window.map() == 0
    rm = gpu.rm
    assert rm.unmap_memory(gpu.device, window.memory, 0x1234000)
    assert rm.unmap_memory(gpu.subdevice + 77, window.memory, window.at[0]) in (0, nv.NV_ERR_OBJECT_NOT_FOUND)
    assert box.stat("bar1_bytes") in (4 * MIB, 6 * MIB)
    while window.at:
        window.unmap()
    gpu.free(window.memory)
    assert box.stat("bar1_bytes") == 0


def test_bar1_by_a_mapping_that_cannot_be_answered(box: Box, gpu: nv.Gpu):
    """A length that overflows is refused, and takes nothing."""
    window = Window(gpu, 2 * MIB)
    with gpu.open_node() as node:
        node.register(gpu.rm.ctl)
        for length in (2**64 - 1, 1 << 40, 0):
            status, _ = gpu.rm.map_memory(node, gpu.device, window.memory, length, offset=4096)
            assert status
    assert box.stat("bar1_bytes") == 0


def test_system_memory_takes_nothing_of_it(box: Box, gpu: nv.Gpu):
    _, memory = gpu.alloc_sysmem(4 * MIB)
    gpu.map_cpu(memory, 4 * MIB, system=True)
    assert box.stat("bar1_bytes") == 0


def test_bar1_of_a_dup_is_its_own(box: Box, gpu: nv.Gpu):
    window = Window(gpu, 2 * MIB)
    assert window.map() == 0
    status, dup = gpu.rm.dup(gpu.device, gpu.rm, window.memory)
    assert status == 0
    window.memory, first = dup, window.memory
    assert window.map() == 0
    assert box.stat("bar1_bytes") == 4 * MIB
    assert gpu.free(first) == 0
    assert box.stat("bar1_bytes") == 2 * MIB
    assert gpu.free(dup) == 0
    assert box.stat("bar1_bytes") == 0


# ---- renamed mappings ----


def rename(gpu: nv.Gpu, memory: int, old: int, new: int, client: int = 0) -> int:
    """UPDATE_DEVICE_MAPPING_INFO: the mapping has another address from now on, which its unmapping names."""
    arg = nv.RenameMap(client or gpu.rm.handle, gpu.device, memory, old, new)
    gpu.rm.ctl.call(nv.NV_ESC_RM_UPDATE_DEVICE_MAPPING_INFO, arg)
    return arg.status


def driver_bar1() -> int:
    """Of all containers, by the simulated card's own count."""
    return int(re.search(r"bar1_used=(\d+)", Path("/proc/driver/nvsim/0/state").read_text())[1])


def test_bar1_is_given_back_under_the_new_name(box: Box, gpu: nv.Gpu):
    """As libcuda does it: it names the subdevice when it maps, renames and unmaps."""
    window = Window(gpu, 2 * MIB)
    before = driver_bar1()
    assert window.map() == 0
    (at,) = window.at
    assert rename(gpu, window.memory, at, 0x7000_0000_0000) == 0
    assert (box.stat("bar1_bytes"), driver_bar1() - before) == (2 * MIB, 2 * MIB)
    assert gpu.rm.unmap_memory(gpu.subdevice, window.memory, at) == nv.NV_ERR_OBJECT_NOT_FOUND
    assert (box.stat("bar1_bytes"), driver_bar1() - before) == (2 * MIB, 2 * MIB)
    assert gpu.rm.unmap_memory(gpu.subdevice, window.memory, 0x7000_0000_0000) == 0
    assert (box.stat("bar1_bytes"), driver_bar1() - before) == (0, 0)
    assert rename(gpu, window.memory, 0x7000_0000_0000, at) == nv.NV_ERR_OBJECT_NOT_FOUND
    assert gpu.free(window.memory) == 0


def test_bar1_by_one_name_for_many(box: Box, gpu: nv.Gpu, other: Box):
    """Mappings of different sizes get the same name: what an unmap gives back is what the driver unmaps."""
    before = driver_bar1()
    sizes = [16 * MIB, 64 * KIB, 4 * MIB]
    _, memory = gpu.alloc_vidmem(16 * MIB)
    for size in sizes:
        with gpu.open_node() as node:
            node.register(gpu.rm.ctl)
            status, at = gpu.rm.map_memory(node, gpu.device, memory, size)
        assert status == 0
        assert rename(gpu, memory, at, 0x1000) == 0
    for _ in sizes:
        assert box.stat("bar1_bytes") == driver_bar1() - before > 0
        assert gpu.rm.unmap_memory(gpu.device, memory, 0x1000) == 0
    assert box.stat("bar1_bytes") == driver_bar1() - before == 0
    assert gpu.free(memory) == 0


@pytest.mark.checked
def test_bar1_by_any_order_of_names(box: Box, gpu: nv.Gpu):
    """Maps, renames and unmaps by chance: the module's figure is the driver's after each."""
    rng = random.Random(5)
    before = driver_bar1()
    _, memory = gpu.alloc_vidmem(8 * MIB)
    names = [0, 0x1000, 0x2000, 0x3000]
    seen: list[int] = []
    for _ in range(300):
        what = rng.randrange(4)
        if what == 0:
            with gpu.open_node() as node:
                node.register(gpu.rm.ctl)
                status, at = gpu.rm.map_memory(node, gpu.device, memory, rng.choice([64 * KIB, 2 * MIB, 8 * MIB]))
            if not status:
                seen.append(at)
        elif what == 3:
            gpu.rm.unmap_memory(gpu.device, memory, rng.choice(names + seen[-8:]))
        else:
            rename(gpu, memory, rng.choice(names + seen[-8:]), rng.choice(names + seen[-8:]))
        assert box.stat("bar1_bytes") == driver_bar1() - before
    assert gpu.free(memory) == 0
    assert box.stat("bar1_bytes") == driver_bar1() - before == 0


def test_no_mapping_of_another_container_is_renamed(box: Box, gpu: nv.Gpu, other: Box):
    """The driver does not ask whose client it is, only for the process."""
    with other.client() as rm:
        theirs = Window(rm.gpu(), 2 * MIB)
        assert theirs.map() == 0
        assert rename(gpu, theirs.memory, theirs.at[0], 0x1000, rm.handle) == nv.NV_ERR_OBJECT_NOT_FOUND
        assert theirs.unmap() == 0
        assert other.stat("bar1_bytes") == 0


# ---- the driver's own ----


def test_bare_driver_has_so_many_ids():
    """With the query that the module makes."""
    with nv.Client("/dev") as rm:
        gpu = rm.gpu()
        info = (ctypes.c_uint32 * 514)(1, 8)
        info[513] = nv.NV2080_ENGINE_TYPE_GRAPHICS
        status, _ = gpu.control(CTRL_FIFO_GET_INFO, info)
        assert (status, info[2]) == (0, 2048)
