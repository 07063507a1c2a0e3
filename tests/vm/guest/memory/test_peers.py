# SPDX-License-Identifier: MIT
"""Peers: a container with slices of two GPUs, one of which reaches the other's memory. A neighbour has one GPU."""

from __future__ import annotations

import errno
import os
import socket
import struct
from collections.abc import Iterator

import pytest
from peers_box import DISABLE, ENABLE, NO_NUMBER, NV_ERR_INVALID_DEVICE, PAIR, Pair, access, shared_space
from slicebox import MIB, Box, command, ended, fb_used, fresh_id, nvsim_as, until
from slicebox import nvclient as nv

pytestmark = [pytest.mark.gpus(2), pytest.mark.once, pytest.mark.attached]

CAPS, MATRIX, P2P = 0x127, 0x13A, 0x503B
SELF = 0x67
LIMIT_MIB = 64
KIB = 1 << 10


class Both(Pair):
    """With one client of the container."""

    def __init__(self) -> None:
        super().__init__(LIMIT_MIB)
        self.rm = nv.Client(self.dev)
        self.first, self.second = self.rm.gpu(0), self.rm.gpu(1)

    def peers(self, one: int, other: int, *more: int, parent: int | None = None, handle: int = 0):
        """NV50_P2P with these subdevices, and the further words of its parameters: (status, handle, words after)."""
        words = [one, other, *more]
        params = nv.ctrl_params(struct.pack(f"<{len(words)}I", *words).ljust(72 if self.rm.branch < 590 else 88, b"\0"))
        status, handle = self.rm.alloc(P2P, parent, params, handle)
        return status, handle, struct.unpack_from("<10I", bytes(params))


@pytest.fixture
def both() -> Iterator[Both]:
    before = fb_used(0), fb_used(1)
    with Both() as both:
        try:
            yield both
        finally:
            both.rm.close()
    until(lambda: (fb_used(0), fb_used(1)) == before)


# ---- which GPUs can be peers ----


def test_two_gpus_of_one_container_can(both: Both):
    """As the driver says it of the cards."""
    ids = both.first.card.gpu_id, both.second.card.gpu_id
    assert both.rm.p2p_caps(*ids) == (0, PAIR, bytes([0, 0, 5, 5, 0, 5, 0, 5, 5]), (NO_NUMBER,) * 4)
    matrix = struct.pack("<4I", 2, 0, *ids).ljust(1352, b"\0")
    status, answer = both.rm.control(both.rm.handle, MATRIX, matrix)
    assert (status, struct.unpack_from("<2I", answer, 72), struct.unpack_from("<2I", answer, 104)) == (
        *(0, (SELF, PAIR), (PAIR, SELF)),
    )


def test_the_older_question_with_a_list_behind_a_pointer(both: Both):
    numbers = nv.ctrl_params(16)
    params = struct.pack("<2I", both.first.card.gpu_id, both.second.card.gpu_id).ljust(128, b"\0")
    params += struct.pack("<I", 2).ljust(32, b"\0") + struct.pack("<Q", nv.ctypes.addressof(numbers))
    status, answer = both.rm.control(both.rm.handle, CAPS, params.ljust(176 if both.rm.branch >= 550 else 168, b"\0"))
    assert (status, struct.unpack_from("<I", answer, 132)[0], bytes(numbers)) == (0, PAIR, b"\xff" * 16)


def test_a_gpu_of_nobody_is_refused(both: Both):
    first = both.first.card.gpu_id
    refused = both.stat("refused_calls")
    assert both.rm.p2p_caps(first, 0x7777)[0] == nv.NV_ERR_INVALID_ARGUMENT
    assert both.rm.p2p_caps(first, count=0)[0] == both.rm.p2p_caps(first, count=33)[0] == nv.NV_ERR_INVALID_ARGUMENT
    for groups in ((1, 1, first, 0x7777), (2, 0, first, 0x7777), (0, 0, 0, 0), (9, 0, first, first)):
        a, b, one, other = groups
        params = struct.pack("<10I", a, b, one, other if not b else 0, *[0] * 6) + struct.pack("<I", other)
        assert both.rm.control(both.rm.handle, MATRIX, params.ljust(1352, b"\0"))[0] == nv.NV_ERR_INVALID_ARGUMENT
    assert both.stat("refused_calls") == refused + 7


def test_the_neighbours_gpu_is_no_peer(both: Both):
    """A container with one GPU has none, whichever it asks about."""
    with Box(fresh_id(), LIMIT_MIB) as box, box.client() as rm:
        assert rm.p2p_caps(both.first.card.gpu_id, both.second.card.gpu_id)[:3] == (0, 0, b"\x05" * 9)
        gpu = rm.gpu(0)
        params = struct.pack("<2I", gpu.subdevice, both.second.subdevice).ljust(72 if rm.branch < 590 else 88, b"\0")
        assert rm.alloc(P2P, None, params)[0] == nv.NV_ERR_INVALID_ARGUMENT


@pytest.mark.alone
def test_two_architectures_in_one_container(kernel_log):
    """Each GPU has its own limit, and neither reaches the other's memory; the kernel log has the reason."""
    with nvsim_as(os.environ["PROFILE"] or "t4", mixed=1), Both() as both:
        rm, first, second = both.rm, both.first, both.second
        kernel_log.news()
        assert rm.p2p_caps(first.card.gpu_id, second.card.gpu_id) == (0, 0, b"\x05" * 9, (NO_NUMBER,) * 4)
        assert "GPUs of different architectures are no peers: copies" in kernel_log.news()
        assert both.peers(first.subdevice, second.subdevice)[0] == nv.NV_ERR_NOT_SUPPORTED
        space = second.space()
        _, memory = first.alloc_vidmem(4 * MIB)
        assert access(shared_space(space, first), ENABLE, first, second) == nv.NV_ERR_NOT_SUPPORTED
        assert space.map(memory, 4 * MIB)[0] == NV_ERR_INVALID_DEVICE
        for gpu in (first, second):
            assert gpu.memory()["total"] == LIMIT_MIB * MIB
            assert gpu.alloc_vidmem(LIMIT_MIB * MIB + MIB)[0] == nv.NV_ERR_NO_MEMORY
        assert second.alloc_vidmem(8 * MIB)[0] == 0
        assert both.used() == (4 * MIB, 8 * MIB)
        rm.close()
        space.uvm.close()


# ---- peer objects ----


@pytest.mark.checked
def test_a_peer_object_goes_with_either_subdevice(both: Both):
    rm, first, second = both.rm, both.first, both.second
    for gpu in (first, second):
        status, peers, _ = both.peers(first.subdevice, second.subdevice, handle=0x9E9E)
        assert (status, peers) == (0, 0x9E9E)
        assert rm.p2p_caps(first.card.gpu_id, second.card.gpu_id)[3] == (NO_NUMBER, 0, 0, NO_NUMBER)
        assert both.peers(first.subdevice, second.subdevice, handle=0x9E9E)[0] == 0x19, "the name is taken"
        assert rm.free(gpu.subdevice, gpu.device) == 0
        assert rm.p2p_caps(first.card.gpu_id, second.card.gpu_id)[3] == (NO_NUMBER,) * 4
        status, gpu.subdevice = rm.alloc(nv.NV20_SUBDEVICE_0, gpu.device, nv.SubdeviceParams(0))
        assert status == 0
    assert [both.peers(second.subdevice, first.subdevice)[0] for _ in range(3)] == [0] * 3


def test_numbers_and_mailboxes_are_the_drivers_choice(both: Both):
    """A number may be another pair's, and a mailbox has a physical address: what the tenant wrote does not arrive."""
    wanted = (8, 4, 0x1000, 0x1, 0x10000, 0, 2, 2)
    status, _, words = both.peers(both.first.subdevice, both.second.subdevice, *wanted)
    assert (status, words) == (0, (both.first.subdevice, both.second.subdevice, *[0] * 8))


@pytest.mark.checked
def test_peers_that_are_refused(both: Both):
    rm, first, second = both.rm, both.first, both.second
    refused = both.stat("refused_calls")
    with nv.Client(both.dev) as other:
        theirs = other.gpu(1)
        for one, peer in ((first.subdevice, theirs.subdevice), (first.device, second.subdevice), (first.subdevice, 0)):
            if peer not in (second.subdevice, first.subdevice):
                assert both.peers(one, peer)[0] == nv.NV_ERR_INVALID_ARGUMENT
    assert both.peers(first.subdevice, first.subdevice)[0] == nv.NV_ERR_NOT_SUPPORTED
    assert both.peers(first.subdevice, second.subdevice, 0, 0, 0, 0, 0, 1)[0] == nv.NV_ERR_NOT_SUPPORTED, "SPA"
    assert both.stat("refused_calls") >= refused + 3
    assert both.peers(first.subdevice, second.subdevice, parent=first.device)[0] == nv.NV_ERR_INVALID_OBJECT_PARENT
    assert rm.p2p_caps(first.card.gpu_id, second.card.gpu_id)[3] == (NO_NUMBER,) * 4, "none was made"


# ---- memory of a peer ----


@pytest.mark.checked
def test_a_peers_memory_is_charged_where_it_lies_and_once(both: Both):
    first, space = both.first, both.second.space()
    uvm = shared_space(space, first)
    status, memory = first.alloc_vidmem(4 * MIB)
    assert (status, both.used()) == (0, (4 * MIB, 0))
    assert space.map(memory, 4 * MIB)[0] == NV_ERR_INVALID_DEVICE, "no access yet"
    assert access(uvm, DISABLE, first, both.second) == NV_ERR_INVALID_DEVICE
    assert access(uvm, ENABLE, first, both.second) == 0
    assert access(uvm, ENABLE, first, both.second) == NV_ERR_INVALID_DEVICE, "it is enabled"
    status, at = space.map(memory, 4 * MIB)
    assert (status, both.used()) == (0, (4 * MIB, 0))
    assert first.free(memory) == 0
    assert both.used() == (4 * MIB, 0), "the peer still has it"
    assert space.unmap(at) == 0
    assert both.used() == (0, 0)


@pytest.mark.checked
@pytest.mark.parametrize("end", ["disable", "unregister", "close"])
def test_the_charge_ends_with_the_access(both: Both, end: str):
    first, second, space = both.first, both.second, both.second.space()
    uvm = shared_space(space, first)
    assert access(uvm, ENABLE, first, second) == 0
    _, memory = first.alloc_vidmem(4 * MIB)
    assert space.map(memory, 4 * MIB)[0] == 0
    assert first.free(memory) == 0
    assert both.used() == (4 * MIB, 0)
    if end == "disable":
        assert access(uvm, DISABLE, first, second) == 0
    elif end == "unregister":
        assert uvm.unregister_gpu(first.uuid) == 0
    else:
        uvm.close()
    until(lambda: both.used() == (0, 0))


def test_the_peers_copy_engine_reaches_it(both: Both):
    """A release of the second GPU's channel, into the first GPU's memory."""
    first, space = both.first, both.second.space()
    assert access(shared_space(space, first), ENABLE, first, both.second) == 0
    _, memory = first.alloc_vidmem(2 * MIB)
    seen = first.map_cpu(memory, 4096)
    status, at = space.map(memory, 2 * MIB)
    assert status == 0
    channel = space.group(nv.NV2080_ENGINE_TYPE_COPY0).channel()
    channel.submit(op=nv.OP_RELEASE, sem_va=at + 64)
    until(lambda: seen.read64(64) == 1)


def test_page_tables_are_charged_on_the_gpu_that_maps(both: Both):
    """1,400 mappings of a page of the first GPU: 16 KiB each; 16 MiB and a 512th of the limit are included."""
    first, second, space = both.first, both.second, both.second.space()
    uvm = shared_space(space, first)
    assert access(uvm, ENABLE, first, second) == 0
    _, memory = first.alloc_vidmem(64 * KIB)
    step, count = 2 * MIB, 1400
    base = nv.reserve(count * step)
    assert uvm.create_range(base, count * step) == 0
    before = both.used()[1]
    for n in range(count):
        assert uvm.map(second.uuid, both.rm, memory, base + n * step, 64 * KIB) == 0
    used = both.used()
    assert used[0] == 64 * KIB
    assert abs(used[1] - before - (count * 16 * KIB - 16 * MIB - LIMIT_MIB * MIB // 512)) < MIB
    assert uvm.free(base, count * step) == 0
    assert both.used() == (64 * KIB, before)


def test_page_tables_of_system_memory_too(both: Both):
    """By MAP_MEMORY_DMA: the first GPU's system memory in page tables of the second."""
    _, memory = both.first.alloc_sysmem(64 * KIB)
    vaspace = both.second.space().vaspace
    for _ in range(1400):
        assert both.rm.map_dma(both.second.device, vaspace, memory, 64 * KIB)[0] == 0
    first, second = both.used()
    assert (first, second > 4 * MIB) == (0, True)
    assert both.first.free(memory) == 0
    assert both.used() == (0, 0)


@pytest.mark.checked
def test_the_owner_ends_while_a_peer_of_another_process_maps(both: Both):
    """cuIpcOpenMemHandle on the other GPU: the memory stays charged to its GPU until the peer lets it go."""
    share = nv.Share
    owner = nv.Client(both.dev)
    _, memory = owner.gpu(0).alloc_vidmem(8 * MIB)
    arg = share(client=owner.handle, object=memory, target=owner.handle, mask=1, kind=1)
    owner.ctl.call(nv.NV_ESC_RM_SHARE, arg)
    assert arg.status == 0
    ours, theirs = socket.socketpair()
    child = os.fork()
    if not child:
        status = 1
        try:
            mine = Process(both.dev)
            status = mine.run(owner.handle, memory, theirs)
        finally:
            os._exit(status)
    theirs.close()
    assert ours.recv(1) == b"m", "mapped"
    assert both.used() == (8 * MIB, 0)
    owner.close()
    ours.send(b"x")
    assert ours.recv(1) == b"w", "written by the second GPU after the owner has gone"
    assert both.used() == (8 * MIB, 0)
    ours.send(b"x")
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    until(lambda: both.used() == (0, 0))


@pytest.mark.checked
def test_the_container_ends_while_a_peer_maps():
    """What open files hold is given back at once, the peer's mapping too; a later call says that it is gone."""
    before = fb_used(0), fb_used(1)
    both = Both()
    first, space = both.first, both.second.space()
    uvm = shared_space(space, first)
    assert access(uvm, ENABLE, first, both.second) == 0
    _, memory = first.alloc_vidmem(8 * MIB)
    assert space.map(memory, 8 * MIB)[0] == 0
    command(f"destroy {both.name}")
    until(lambda: (fb_used(0), fb_used(1)) == before)
    until(lambda: not ended())
    assert uvm.raw(DISABLE, bytearray(first.uuid + both.second.uuid + bytes(4))) == errno.ENODEV
    uvm.close()
    both.rm.close()


class Process:
    """What the other process does: it takes memory of the first GPU by its name and maps it on the second."""

    def __init__(self, dev: str):
        self.rm = nv.Client(dev)
        self.first, self.second = self.rm.gpu(0), self.rm.gpu(1)
        self.space = self.second.space()

    def run(self, client: int, memory: int, pipe: socket.socket) -> int:
        assert access(shared_space(self.space, self.first), ENABLE, self.first, self.second) == 0
        status, mine = self.rm.dup(self.first.device, client, memory)
        assert status == 0
        status, at = self.space.map(mine, 8 * MIB)
        assert status == 0
        seen = self.first.map_cpu(mine, 4096)
        pipe.send(b"m")
        pipe.recv(1)
        channel = self.space.group(nv.NV2080_ENGINE_TYPE_COPY0).channel()
        channel.submit(op=nv.OP_RELEASE, sem_va=at)
        until(lambda: seen.read64(0) == 1)
        pipe.send(b"w")
        pipe.recv(1)
        return 0
