# SPDX-License-Identifier: MIT
"""Memory exported as a dma-buf (NV_ESC_EXPORT_TO_DMABUF_FD) stays charged until the dma-buf is gone."""

from __future__ import annotations

import os
import resource
import socket
import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from sharebox import stat
from slicebox import MIB, Box, command, ended, fb_used, until
from slicebox import nvclient as nv

pytestmark = pytest.mark.attached

LIMIT_MIB = 64


def is_dmabuf(fd: int) -> bool:
    return str(Path(f"/proc/self/fd/{fd}").readlink()).startswith("/dmabuf:")


def test_charged_until_its_last_fd_is_closed(box: Box, gpu: nv.Gpu):
    memory = [gpu.alloc_vidmem(8 * MIB)[1] for _ in range(3)]
    status, fd = gpu.export_dmabuf(*memory, size=8 * MIB)
    assert status == 0
    assert is_dmabuf(fd)
    assert box.used == 24 * MIB
    for handle in memory:
        gpu.free(handle)
    assert box.used == 24 * MIB
    other = os.dup(fd)
    os.close(fd)
    assert box.used == 24 * MIB
    assert gpu.alloc_vidmem(41 * MIB)[0] == nv.NV_ERR_NO_MEMORY
    os.close(other)
    until(lambda: box.used == 0)


def test_it_outlives_its_maker(box: Box):
    """Over a socket into a process outside: charged to the container until it is closed there."""
    ours, theirs = socket.socketpair()
    pid = os.fork()
    if not pid:
        try:
            gpu = box.client().gpu(0)
            status, fd = gpu.export_dmabuf(gpu.alloc_vidmem(8 * MIB)[1], size=8 * MIB)
            socket.send_fds(theirs, [bytes([status])], [fd])
        finally:
            os._exit(0)
    os.waitpid(pid, 0)
    said, (fd,), _, _ = socket.recv_fds(ours, 1, 1)
    assert said == b"\0"
    assert box.used == 8 * MIB
    os.close(fd)
    until(lambda: box.used == 0)


def test_of_a_destroyed_container_its_memory_is_the_cards(box: Box):
    """The dma-buf keeps its memory. Name and slot are free; ended lists the memory, and no other container gets it."""

    def account() -> list[int]:
        return [stat(key) for key in ("limits_bytes", "used_bytes", "ended_bytes")]

    name, before, taken = "de" * 32, account(), fb_used()
    with Box(name, 64) as one, one.client() as client:
        gpu = client.gpu(0)
        status, fd = gpu.export_dmabuf(gpu.alloc_vidmem(8 * MIB)[1], size=8 * MIB)
        assert (status, gpu.alloc_vidmem(MIB)[0]) == (0, 0)
        command(f"destroy {name}")
        assert not one.there()
    assert account() == [value + 8 * MIB for value in before]
    assert fb_used() == taken + 8 * MIB
    (line,) = ended()
    assert line.startswith(f"{name} cookie=0x")
    assert line.endswith(f" gpu=0:{8 * MIB}")
    room = (stat("total_bytes") - stat("limits_bytes")) // MIB
    with pytest.raises(OSError):
        Box(name, room + 1)
    with Box(name, room) as other, other.client() as client:
        assert client.gpu(0).alloc_vidmem(8 * MIB)[0] == 0
    os.close(fd)
    until(lambda: not ended())
    assert (account(), fb_used()) == (before, taken)


def test_only_memory_of_the_container(box: Box, gpu: nv.Gpu):
    with Box("dc" * 32, 64) as neighbour, neighbour.client() as client:
        theirs = client.gpu(0)
        _, memory = theirs.alloc_vidmem(4 * MIB, 0x7777)
        assert gpu.export_dmabuf(memory, size=4 * MIB, client=client.handle)[0]
        assert gpu.export_dmabuf(memory, size=4 * MIB)[0]
        _, own = gpu.alloc_vidmem(4 * MIB)
        assert gpu.export_dmabuf(own, memory, size=4 * MIB)[0]
        assert gpu.export_dmabuf(own, gpu.device, size=4 * MIB)[0] == nv.NV_ERR_NOT_SUPPORTED
        assert (box.used, neighbour.used) == (4 * MIB, 4 * MIB)
        assert gpu.free(own) == 0, "nothing of a refused export holds it"
        assert box.used == 0


def test_onto_a_new_one_only(box: Box, gpu: nv.Gpu):
    _, memory = gpu.alloc_vidmem(4 * MIB)
    status, fd = gpu.export_dmabuf(memory, size=4 * MIB)
    assert status == 0
    assert gpu.export_dmabuf(memory, size=4 * MIB, fd=fd)[0] == nv.NV_ERR_NOT_SUPPORTED
    assert gpu.export_dmabuf(size=4 * MIB)[0] == nv.NV_ERR_INVALID_ARGUMENT
    os.close(fd)
    gpu.free(memory)
    assert box.used == 0


def test_one_that_gets_no_fd(box: Box, gpu: nv.Gpu, personality: Callable[..., None]):
    """The driver gives its memory back once the task is in user mode, which may be late: it is charged until then."""
    seen: list[int] = []
    _, memory = gpu.alloc_vidmem(32 * MIB)
    before = fb_used() - 32 * MIB
    limits = resource.getrlimit(resource.RLIMIT_NOFILE)
    personality(close_ms=1500)
    node = gpu.rm.hold(gpu.registered_node())
    os.close(free := os.dup(0))
    resource.setrlimit(resource.RLIMIT_NOFILE, (free, limits[1]))
    thread = threading.Thread(target=lambda: seen.append(gpu.export_dmabuf(memory, size=32 * MIB, node=node)[0]))
    try:
        thread.start()
        time.sleep(0.5)
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, limits)
    assert gpu.free(memory) == 0
    assert (fb_used() - before, box.used) == (32 * MIB, 32 * MIB)
    assert gpu.alloc_vidmem(33 * MIB)[0] == nv.NV_ERR_NO_MEMORY
    thread.join()
    assert seen != [0]
    until(lambda: (fb_used() - before, box.used) == (0, 0))


def test_system_memory_costs_nothing(box: Box, gpu: nv.Gpu):
    _, memory = gpu.alloc_sysmem(4 * MIB)
    status, fd = gpu.export_dmabuf(memory, size=4 * MIB)
    assert status == 0
    assert box.used == 0
    os.close(fd)


def test_a_thread_that_closes_and_swaps_fds(box: Box, gpu: nv.Gpu):
    """The module follows the dma-buf that the driver made, not a file that another thread puts under its number."""
    _, decoy_memory = gpu.alloc_vidmem(2 * MIB)
    _, decoy = gpu.export_dmabuf(decoy_memory, size=2 * MIB)
    gpu.free(decoy_memory)
    decoys = os.fstat(decoy).st_ino
    before, stop, kept = fb_used(), threading.Event(), []

    def swap() -> None:
        while not stop.is_set():
            for fd in range(decoy + 1, decoy + 12):
                try:
                    if is_dmabuf(fd) and os.fstat(fd).st_ino != decoys:
                        kept.append(os.dup(fd))
                        os.dup2(decoy, fd)
                except OSError:
                    continue

    thread = threading.Thread(target=swap)
    thread.start()
    try:
        for _ in range(60):
            status, memory = gpu.alloc_vidmem(2 * MIB)
            if status:
                break
            gpu.export_dmabuf(memory, size=2 * MIB)
            gpu.free(memory)
            assert fb_used() - before <= box.used
    finally:
        stop.set()
        thread.join()
        for fd in kept:
            os.close(fd)
        os.closerange(decoy, 1024)
