# SPDX-License-Identifier: MIT
"""CUDA IPC: memory on control files, inside one container and across two."""

from __future__ import annotations

import os
import socket
import struct
from collections.abc import Iterator

import pytest
from sharebox import stat
from slicebox import MIB, Box, command, ended, fb_used, until
from slicebox import nvclient as nv

pytestmark = pytest.mark.attached

LIMIT_MIB = 256

EXPORT_ONE, IMPORT_ONE, EXPORT_INFO, EXPORT_LIST, IMPORT_LIST = 0x3D05, 0x3D06, 0x3D08, 0x3D0B, 0x3D0C
INVALID_PARAMETER, NOT_SUPPORTED, NOT_FOUND, DUPLICATE, NO_RESOURCES = 0x3B, 0x56, 0x57, 0x19, 0x1A


def export(gpu: nv.Gpu, memory: int, fd: int) -> int:
    params = struct.pack("<IIIIiI", 1, gpu.device, gpu.device, memory, fd, 0)
    return gpu.rm.control(gpu.rm.handle, EXPORT_ONE, params)[0]


def take(gpu: nv.Gpu, fd: int, handle: int = 0) -> tuple[int, int]:
    """Import the object on the file: (status, handle)."""
    params = struct.pack("<iIIII", fd, 1, gpu.device, gpu.device, handle)
    status, answer = gpu.rm.control(gpu.rm.handle, IMPORT_ONE, params)
    return status, struct.unpack("<iIIII", answer)[4]


def export_list(gpu: nv.Gpu, fd: int, objects: list[int], index: int = 0, places: int = 16) -> int:
    params = struct.pack("<iIH", fd, gpu.device, places).ljust(76, b"\0")
    params += struct.pack(f"<{len(objects)}I", *objects).ljust(2048, b"\0") + struct.pack("<HH", len(objects), index)
    return gpu.rm.control(gpu.rm.handle, EXPORT_LIST, params)[0]


def take_list(gpu: nv.Gpu, fd: int, wanted: list[int], index: int = 0) -> tuple[int, list[int]]:
    """Import into handles of the given names, 0 for any: (status, handles)."""
    params = struct.pack("<iI", fd, gpu.device)
    params += struct.pack(f"<{len(wanted)}I", *wanted).ljust(640, b"\0") + struct.pack("<HH", len(wanted), index)
    status, answer = gpu.rm.control(gpu.rm.handle, IMPORT_LIST, params)
    return status, list(struct.unpack_from(f"<{len(wanted)}I", answer, 8))


def test_what_a_file_carries_is_charged(box: Box, gpu: nv.Gpu):
    _, memory = gpu.alloc_vidmem(4 * MIB)
    with nv.Ctl(box.dev) as carrier:
        assert export(gpu, memory, carrier.fd) == 0
        assert gpu.free(memory) == 0
        assert box.used == box.stat("used_data_bytes") == 4 * MIB
    until(lambda: box.used == 0)


def test_what_was_exported_to_a_mapped_file_is_the_cards():
    """A mapping keeps the control file of a destroyed container, and that the memory. The slot is free."""
    before, taken = stat("limits_bytes"), fb_used()
    with Box("e1" * 32, 64) as one:
        rm = one.client()
        gpu = rm.gpu(0)
        carrier = nv.Ctl(one.dev)
        assert gpu.alloc_vidmem(4 * MIB)[0] == 0
        status, system = gpu.alloc_sysmem(4096)
        assert (status, rm.map_memory(carrier, gpu.device, system, 4096)[0]) == (0, 0)
        mapping = carrier.mmap(4096)  # before the export: the driver maps no file that has objects
        assert export(gpu, gpu.alloc_vidmem(8 * MIB)[1], carrier.fd) == 0
        carrier.close()
        rm.close()
        command(f"destroy {one.name}")
        assert not one.there()
    assert (stat("limits_bytes") - before, stat("ended_bytes"), fb_used() - taken) == (8 * MIB, 8 * MIB, 8 * MIB)
    (line,) = ended()
    assert line.endswith(f" gpu=0:{8 * MIB}")
    mapping.close()
    until(lambda: not ended())
    assert (stat("limits_bytes"), stat("ended_bytes"), fb_used()) == (before, 0, taken)


@pytest.mark.checked
def test_an_import_is_a_reference(box: Box, gpu: nv.Gpu):
    _, memory = gpu.alloc_vidmem(4 * MIB)
    with nv.Ctl(box.dev) as carrier, box.client() as other:
        assert export(gpu, memory, carrier.fd) == 0
        theirs = other.gpu(0)
        status, named = take(theirs, carrier.fd, 0x7777)
        assert (status, named) == (0, 0x7777)
        status, chosen = take(theirs, carrier.fd)
        assert status == 0
        assert chosen not in (0, named)
        assert box.used == 4 * MIB, "one piece of memory, however many names"
        gpu.free(memory)
        carrier.close()
        assert theirs.free(named) == 0
        assert box.used == 4 * MIB
        assert theirs.free(chosen) == 0
        until(lambda: box.used == 0)


def test_a_taken_name_is_refused(box: Box, gpu: nv.Gpu):
    _, memory = gpu.alloc_vidmem(2 * MIB)
    with nv.Ctl(box.dev) as carrier:
        assert export(gpu, memory, carrier.fd) == 0
        assert take(gpu, carrier.fd, memory)[0] == DUPLICATE
        assert take(gpu, carrier.fd, 0x7000)[0] == 0


@pytest.mark.checked
def test_between_two_processes(box: Box, gpu: nv.Gpu):
    """The file goes over a socket; the receiver's number for it is another."""
    _, memory = gpu.alloc_vidmem(8 * MIB)
    ours, theirs = socket.socketpair()
    child = os.fork()
    if not child:
        status = 1
        try:
            _, (fd,), _, _ = socket.recv_fds(theirs, 1, 1)
            mine = nv.Client(box.dev).gpu(0)
            taken, handle = take(mine, fd)
            mapping = mine.map_cpu(handle, 4096)
            mapping.write32(0, 0xC0DE)
            theirs.send(b"x")
            theirs.recv(1)  # the owner has gone: our reference stays
            status = 0 if not taken and mapping.read32(0) == 0xC0DE else 2
        finally:
            os._exit(status)
    theirs.close()  # a child that dies early is the end of it
    with nv.Ctl(box.dev) as carrier:
        assert export(gpu, memory, carrier.fd) == 0
        socket.send_fds(ours, [b"x"], [carrier.fd])
        assert ours.recv(1)
        assert gpu.map_cpu(memory, 4096).read32(0) == 0xC0DE, "the same memory"
    gpu.rm.close()
    assert box.used == 8 * MIB
    ours.send(b"x")
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    until(lambda: box.used == 0)


def test_not_across_containers(box: Box, gpu: nv.Gpu):
    _, memory = gpu.alloc_vidmem(4 * MIB)
    with Box("2c" * 32, 256) as neighbour, nv.Ctl(box.dev) as carrier, neighbour.client() as stranger:
        assert export(gpu, memory, carrier.fd) == 0
        theirs = stranger.gpu(0)
        assert take(theirs, carrier.fd)[0] == INVALID_PARAMETER
        info = struct.pack("<i", carrier.fd).ljust(80, b"\0")
        assert stranger.control(stranger.handle, EXPORT_INFO, info)[0]
        _, theirs_memory = theirs.alloc_vidmem(2 * MIB)
        assert export(theirs, theirs_memory, carrier.fd) == INVALID_PARAMETER
        assert (box.used, neighbour.used) == (4 * MIB, 2 * MIB)


@pytest.fixture
def sharing(box: Box) -> Iterator[Box]:
    """A neighbour that an administrator lets share."""
    with Box("3c" * 32, 64) as neighbour:
        for one in (box, neighbour):
            (one.proc / "ipc").write_text("pod-7\n")
        yield neighbour


@pytest.mark.checked
def test_across_where_an_administrator_says_so(box: Box, gpu: nv.Gpu, sharing: Box):
    """Charged to both, so that either may go first."""
    before = fb_used()
    _, memory = gpu.alloc_vidmem(4 * MIB)
    with nv.Ctl(box.dev) as carrier, sharing.client() as other:
        assert export(gpu, memory, carrier.fd) == 0
        theirs = other.gpu(0)
        info = struct.pack("<i", carrier.fd).ljust(80, b"\0")
        assert other.control(other.handle, EXPORT_INFO, info)[0] == 0
        status, taken = take(theirs, carrier.fd)
        assert status == 0
        theirs.map_cpu(taken, 4096).write32(0, 0x5A5A)
        assert gpu.map_cpu(memory, 4096).read32(0) == 0x5A5A
        assert (box.used, sharing.used, fb_used() - before) == (4 * MIB, 4 * MIB, 4 * MIB)
        assert other.dup(theirs.device, other, taken)[0] == 0
        assert box.stat("used_data_bytes") == sharing.stat("used_imported_bytes") == 4 * MIB
        assert sharing.used == 4 * MIB, "a dup of it is a reference like any"
        carrier.close()
        gpu.free(memory)
        assert (box.used, sharing.used, fb_used() - before) == (0, 4 * MIB, 4 * MIB)
    until(lambda: sharing.used == 0)
    assert until(lambda: fb_used() == before)


def test_across_no_further_than_the_importer_may(box: Box, gpu: nv.Gpu, sharing: Box):
    _, memory = gpu.alloc_vidmem(62 * MIB)
    with nv.Ctl(box.dev) as carrier, sharing.client() as other:
        assert export(gpu, memory, carrier.fd) == 0
        theirs = other.gpu(0)
        assert theirs.alloc_vidmem(4 * MIB)[0] == 0
        assert take(theirs, carrier.fd)[0] == nv.NV_ERR_NO_MEMORY
        assert take_list(theirs, carrier.fd, [0])[0] == nv.NV_ERR_NO_MEMORY
        assert (box.used, sharing.used) == (62 * MIB, 4 * MIB)


def test_across_nothing_but_imports(box: Box, gpu: nv.Gpu, sharing: Box):
    """Not onto the other's file, not with the other's client, not when the name is taken back."""
    _, memory = gpu.alloc_vidmem(2 * MIB)
    with nv.Ctl(box.dev) as carrier, sharing.client() as other:
        assert export(gpu, memory, carrier.fd) == 0
        theirs = other.gpu(0)
        _, own = theirs.alloc_vidmem(2 * MIB)
        assert export(theirs, own, carrier.fd) == INVALID_PARAMETER
        assert other.dup(theirs.device, gpu.rm, memory)[0]
        with nv.Node("nvidia0", sharing.dev) as node, pytest.raises(OSError):
            node.register(carrier)
        (box.proc / "ipc").write_text("\n")
        assert take(theirs, carrier.fd)[0] == INVALID_PARAMETER
        (box.proc / "ipc").write_text("pod-8\n")
        assert take(theirs, carrier.fd)[0] == INVALID_PARAMETER
        (box.proc / "ipc").write_text("pod-7\n")
        assert take(theirs, carrier.fd)[0] == 0


@pytest.mark.parametrize("name", ["a b", "a/b", "a=b", "x" * 129, "pod\n\n", ".."])
def test_what_is_no_name(box: Box, name: str):
    (box.proc / "ipc").write_text("pod-7\n")
    with pytest.raises(OSError):
        (box.proc / "ipc").write_text(name)
    assert (box.proc / "ipc").read_text() == "pod-7\n"


def test_nor_from_the_real_node(box: Box, gpu: nv.Gpu):
    """A file of the driver's own, smuggled in, is none of the container's."""
    _, memory = gpu.alloc_vidmem(2 * MIB)
    with nv.Ctl("/dev") as carrier:
        assert export(gpu, memory, carrier.fd) == INVALID_PARAMETER
        assert take(gpu, carrier.fd)[0] == INVALID_PARAMETER


def test_lists_with_holes(box: Box, gpu: nv.Gpu):
    first, second = (gpu.alloc_vidmem(2 * MIB)[1] for _ in range(2))
    victim = gpu.alloc_vidmem(2 * MIB)[1]
    with nv.Ctl(box.dev) as carrier:
        assert export_list(gpu, carrier.fd, [first, 0, second]) == 0
        # An empty place and then a failure: the driver undoes by the names it was given.
        status, _ = take_list(gpu, carrier.fd, [0x7100, victim, first])
        assert status == DUPLICATE
        assert gpu.map_cpu(victim, 4096), "still there"
        status, handles = take_list(gpu, carrier.fd, [0x7100, victim, 0])
        assert status == 0
        assert handles[0] == 0x7100
        assert handles[2]
        assert gpu.map_cpu(victim, 4096)
        for handle in (first, second, victim):
            gpu.free(handle)
        assert box.used == 4 * MIB
        carrier.close()
        assert gpu.free(handles[0]) == 0
        assert gpu.free(handles[2]) == 0


def test_handles_that_a_tenant_takes_first(box: Box, gpu: nv.Gpu):
    """An import looks at 64 of the handles that the module may choose, however many have objects; the next goes on."""
    our_handles, taken = 0xB6700000, 600
    _, memory = gpu.alloc_vidmem(2 * MIB)
    for n in range(taken):
        assert gpu.rm.dup(gpu.device, gpu.rm.handle, memory, our_handles + n) == (0, our_handles + n)
    with nv.Ctl(box.dev) as carrier:
        assert export(gpu, memory, carrier.fd) == 0
        imports = [take(gpu, carrier.fd) for _ in range(taken // 64 + 2)]
        refused = [status for status, _ in imports if status]
        assert set(refused) == {NO_RESOURCES}
        assert taken // 64 - 1 <= len(refused) <= taken // 64 + 1
        assert imports[-1][1] >= our_handles + taken
        assert box.used == 2 * MIB


@pytest.mark.checked
def test_a_replaced_place_gives_back(box: Box, gpu: nv.Gpu):
    first, second = (gpu.alloc_vidmem(size * MIB)[1] for size in (4, 2))
    with nv.Ctl(box.dev) as carrier:
        assert export_list(gpu, carrier.fd, [first]) == 0
        gpu.free(first)
        assert box.used == 6 * MIB
        assert export_list(gpu, carrier.fd, [second]) == 0
        assert box.used == 2 * MIB
        assert export_list(gpu, carrier.fd, [0]) == 0
        gpu.free(second)
        assert box.used == 0


def test_what_cannot_be_carried(box: Box, gpu: nv.Gpu):
    group = gpu.space().group()
    _, memory = gpu.alloc_vidmem(2 * MIB)
    with nv.Ctl(box.dev) as carrier:
        assert export(gpu, group.tsg, carrier.fd) == NOT_SUPPORTED
        assert export(gpu, 0xDEAD, carrier.fd) == NOT_FOUND
        assert export(gpu, memory, 9999) == INVALID_PARAMETER
        assert export_list(gpu, carrier.fd, [memory] * 17) != 0
        assert export_list(gpu, carrier.fd, [memory], index=16) != 0
        assert take(gpu, carrier.fd)[0] == INVALID_PARAMETER, "nothing came onto it"
    group.close()


def test_system_memory_is_carried_and_costs_nothing(box: Box):
    with box.client() as client, nv.Ctl(box.dev) as carrier:
        gpu = client.gpu(0)
        _, memory = gpu.alloc_sysmem(1 * MIB)
        assert export(gpu, memory, carrier.fd) == 0
        status, handle = take(gpu, carrier.fd)
        assert status == 0
        assert box.used == 0, "system memory is not the card's"
        assert gpu.free(handle) == 0
