# SPDX-License-Identifier: MIT
"""cgpu_km over NVIDIA's own kernel driver, unchanged, on a simulated card (docs/develop/simulated-driver.md)."""

from __future__ import annotations

import importlib.util
import os
import signal
import time
import tomllib
from collections.abc import Iterator

import nvclient
import pytest
from driver_box import free_bytes
from pusher import Pusher, inc, listen, release
from runstatebox import stat, state
from slicebox import MIB, PROC, REPO, Box, until

pytestmark = pytest.mark.driver

NAMES = ("a" * 64, "b" * 64)
LIMIT_MIB = 1024
BATCH = 8
WORK_NS = 1_000_000


@pytest.fixture
def box() -> Iterator[Box]:
    with Box(NAMES[0], LIMIT_MIB) as box:
        yield box


class RmSpace:
    """A GPU address space of RM's own, without nvidia-uvm: as much as nvclient.Group and Channel need."""

    VIRTUAL, VIRTUAL_CLASS = 16 * MIB, 0x50A0
    FLAGS_VIRTUAL = 1 << 19  # NVOS32_ALLOC_FLAGS_VIRTUAL

    def __init__(self, gpu: nvclient.Gpu):
        self.gpu = gpu
        params = nvclient.in_branch(nvclient.FERMI_VASPACE_A, nvclient.VaspaceParams(), gpu.rm.branch)
        status, self.vaspace = gpu.rm.alloc(nvclient.FERMI_VASPACE_A, gpu.device, params)
        nvclient.check("RM_ALLOC(0x90f1)", status)

    def map(self, memory: int, length: int) -> tuple[int, int]:
        window = nvclient.MemoryParams(
            owner=self.gpu.rm.handle, size=self.VIRTUAL, flags=self.FLAGS_VIRTUAL, vaspace=self.vaspace
        )
        params = nvclient.in_branch(nvclient.NV01_MEMORY_LOCAL_USER, window, self.gpu.rm.branch)
        status, virtual = self.gpu.rm.alloc(self.VIRTUAL_CLASS, self.gpu.device, params)
        nvclient.check("RM_ALLOC(0x50a0)", status)
        return self.gpu.rm.map_dma(self.gpu.device, virtual, memory, length)


def test_rm_starts_again_after_its_last_file(starts):
    assert starts == [True] * len(starts)


def test_the_gpu_is_found(card):
    assert (PROC / "0").is_dir()
    assert card.uuid == bytes(range(0x10, 0x20))


def test_a_program_sees_its_slice(box):
    with box.client() as client:
        assert client.gpu(0).fb_info(nvclient.NV2080_CTRL_FB_INFO_INDEX_TOTAL_RAM_SIZE) == [LIMIT_MIB << 10]


@pytest.mark.parametrize("size", [2 * MIB, 300 * MIB, 12345, 65536 + 1, 7 * MIB + 4096])
def test_a_charge_is_what_the_heap_lost(box, card, size):
    with box.client() as client:
        gpu = client.gpu(0)
        before, used = free_bytes(card), box.used
        status, memory = gpu.alloc_vidmem(size)
        assert status == nvclient.NV_OK
        lost = before - free_bytes(card)
        assert (box.used - used, lost >= size) == (lost, True)
        assert gpu.free(memory) == nvclient.NV_OK
        assert (box.used, free_bytes(card)) == (used, before)


def test_over_the_limit(box, card):
    with box.client() as client:
        gpu = client.gpu(0)
        before = free_bytes(card)
        status, _ = gpu.alloc_vidmem((LIMIT_MIB + 2) * MIB)
        assert status == nvclient.NV_ERR_NO_MEMORY
        assert free_bytes(card) == before
        assert gpu.alloc_vidmem(512 * MIB)[0] == nvclient.NV_OK


def test_a_duplicate_keeps_its_charge(box, card):
    with box.client() as one, box.client() as other:
        source, target = one.gpu(0), other.gpu(0)
        used = box.used
        status, memory = source.alloc_vidmem(64 * MIB)
        assert status == nvclient.NV_OK
        status, copy = other.dup(target.device, one, memory)
        assert status == nvclient.NV_OK
        assert source.free(memory) == nvclient.NV_OK
        assert box.used == used + 64 * MIB
        assert target.free(copy) == nvclient.NV_OK
        assert box.used == used


def test_kill_gives_everything_back(box, card):
    with box.client() as client:
        RmSpace(client.gpu(0))  # the first address space of a card leaves pools of the resource manager's own
    before = free_bytes(card)
    pid = os.fork()
    if not pid:
        client = box.client()
        gpu = client.gpu(0)
        gpu.alloc_vidmem(256 * MIB)
        RmSpace(gpu)
        signal.pause()
    until(lambda: box.used >= 256 * MIB)
    os.kill(pid, signal.SIGKILL)
    os.waitpid(pid, 0)
    until(lambda: box.used == 0)
    time.sleep(1)
    assert before - free_bytes(card) == 0


def rm_walk() -> dict[str, int]:
    """tests/rm is a folder of host tests; only this file of it runs here."""
    spec = importlib.util.spec_from_file_location("rm_walk", REPO / "tests/rm/walk.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module.walk_nodes()


def test_the_answers_are_those_of_the_user_program(card):
    """The statuses that nvsim is held to are those of this home of the resource manager too."""
    assert rm_walk() == tomllib.loads((REPO / "tests/rm/answers.toml").read_text())


def test_uvm_registers_the_gpu(card):
    """nvidia-uvm makes channels on every copy engine, and waits for a push on each."""
    with nvclient.Uvm() as uvm:
        assert uvm.register_gpu(card.uuid) == nvclient.NV_OK
        assert uvm.unregister_gpu(card.uuid) == nvclient.NV_OK


def test_a_channel_is_scheduled_after_its_registration(box):
    """nvidia-uvm's page tables, which its own pushes write, under the channels of a program in a container."""
    with box.client() as client:
        space = client.gpu(0).space()
        group = space.group(nvclient.NV2080_ENGINE_TYPE_GRAPHICS)
        channel = group.channel(enable=False)
        assert group.enable() == nvclient.NV_ERR_INVALID_STATE
        assert space.bind(channel) == nvclient.NV_OK
        assert group.enable() == nvclient.NV_OK
        channel.submit(kernel_ns=WORK_NS, count=BATCH)
        assert channel.wait() == BATCH
        assert min(channel.gpu_time(work) - channel.gpu_time(work - 1) for work in range(1, BATCH)) >= WORK_NS


def test_the_registers_show_which_container_has_work(box):
    """In the card's BAR0, by the channel's number that RM returns to nvidia-uvm; from GA100 on at RM's address."""
    source = "pccsr" if os.environ["CHIPS"].startswith("TU") else "chram"
    with box.client() as client:
        space = client.gpu(0).space()
        group = space.group(nvclient.NV2080_ENGINE_TYPE_GRAPHICS)
        channel = group.channel(enable=False)
        assert space.bind(channel) == nvclient.NV_OK
        assert group.enable() == nvclient.NV_OK
        until(lambda: state() == (source, 1, 0), 5)
        channel.submit(kernel_ns=400 * WORK_NS)
        until(lambda: state() == (source, 1, 1), 5, step=0.001)
        channel.wait()
        until(lambda: state() == (source, 1, 0), 5, step=0.001)
    assert state() == ("none", 0, 0)
    assert stat()["run_state_errors"] == "0"


def test_two_containers_have_their_own(box):
    with Box(NAMES[1], 2 * LIMIT_MIB) as other, box.client() as one, other.client() as two:
        a, b = one.gpu(0), two.gpu(0)
        assert a.alloc_vidmem(600 * MIB)[0] == nvclient.NV_OK
        assert b.alloc_vidmem(1500 * MIB)[0] == nvclient.NV_OK
        assert a.alloc_vidmem(600 * MIB)[0] == nvclient.NV_ERR_NO_MEMORY
        assert (box.used >> 20, other.used >> 20) == (600, 1500)
        status, _ = a.rm.dup(a.device, two, b.device)
        assert status in (nvclient.NV_ERR_INVALID_CLIENT, nvclient.NV_ERR_OBJECT_NOT_FOUND)


def test_work_stops_and_goes_on(box):
    """GPFIFO_SCHEDULE and DISABLE_CHANNELS come to the GSP and act on its engine."""
    with box.client() as client:
        gpu = client.gpu(0)
        channel = nvclient.Group(RmSpace(gpu), nvclient.NV2080_ENGINE_TYPE_GRAPHICS).channel()
        channel.submit(kernel_ns=WORK_NS, count=BATCH)
        assert channel.wait() == BATCH
        times = [channel.gpu_time(work) - channel.gpu_time(work - 1) for work in range(1, BATCH)]
        assert min(times) >= WORK_NS
        (PROC / "0/policy").write_text("2")
        try:
            (box.proc / "weight").write_text("0")
            time.sleep(1)
            channel.submit(kernel_ns=WORK_NS, count=BATCH)
            time.sleep(1)
            assert channel.reap() < 2 * BATCH
            (box.proc / "weight").write_text("1")
            assert channel.wait() == 2 * BATCH
        finally:
            (PROC / "0/policy").write_text("5")


def test_an_interrupt_wakes_its_listener(box):
    """From the card's interrupt tree through the resource manager's service to a program that polls in a container."""
    with box.client() as client:
        gpu = client.gpu(0)
        one = Pusher(nvclient.Group(RmSpace(gpu), nvclient.NV2080_ENGINE_TYPE_GRAPHICS))
        with nvclient.Ctl(box.dev) as events:
            poll = listen(gpu, events)
            one.push(release(one.sem(0), 1))
            until(one.done)
            assert poll.poll(100) == []
            one.push(inc(0, 0x20, 0))
            assert poll.poll(10_000)
