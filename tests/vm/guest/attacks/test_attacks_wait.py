# SPDX-License-Identifier: MIT
"""Hostile tenants whose task stops, or is slow, where others might wait for it (docs/develop/bounds.md)."""

from __future__ import annotations

import contextlib
import ctypes
import errno
import gc
import mmap
import os
import random
import re
import select
import signal
import socket
import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from missing_pages import Pages
from pusher import Pusher, inc, listen
from sharebox import stat
from slicebox import MIB, PROC, Box, child, clean_box, command, ended, fb_used, fresh_id, until
from slicebox import nvclient as nv

pytestmark = [pytest.mark.once, pytest.mark.attached]

BLOCK = 2 * MIB
STALLS = 400
MAPPINGS = 1100  # more than work items of one queue may be active at once


@pytest.mark.checked
def test_a_neighbours_recount_beside_one_that_stalls(account: None, personality: Callable[..., None]):
    """A process keeps its mmap_lock for as long as its driver takes to unmap: its own recounts wait for that alone."""
    libc = ctypes.CDLL(None, use_errno=True)
    libc.munmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t]

    def unmap_all() -> None:
        uvm = box.client().gpu(0).space().uvm
        base = nv.reserve(MAPPINGS * BLOCK)
        kept = [uvm.managed(BLOCK, base + n * BLOCK) for n in range(MAPPINGS)]
        os.write(ready, b"m")
        os.read(go, 1)
        assert libc.munmap(base, MAPPINGS * BLOCK) == 0
        del kept

    wait, ready = os.pipe()
    go, say = os.pipe()
    with (
        clean_box(4096) as box,
        clean_box(64) as other,
        other.client() as rm,
        child(unmap_all),
    ):
        mapping = rm.gpu(0).space().uvm.managed(BLOCK)
        assert os.read(wait, 1) == b"m"
        assert (box.used, other.used) == (MAPPINGS * BLOCK, BLOCK)
        personality(close_ms=20)
        os.write(say, b"g")
        time.sleep(1)
        mapping.close()
        until(lambda: not other.used, timeout=10)
        assert box.used == MAPPINGS * BLOCK, "its process still unmaps"
        personality(close_ms=0)


def test_files_of_destroyed_containers_keep_nothing():
    """Held elsewhere, and waited for: the slot, the limit and the memory are free at once, however often."""
    before, places = stat("limits_bytes"), int((PROC / "0/max_inst").read_text())
    ended = select.epoll()
    with contextlib.ExitStack() as held:
        for _ in range(places + 2):
            one = Box(fresh_id(), 64)
            rm = held.enter_context(one.client())
            gpu = rm.gpu(0)
            assert gpu.alloc_vidmem(32 * MIB)[0] == 0
            ended.register(gpu.node.fd, select.EPOLLIN)
            assert ended.poll(0) == []
            command(f"destroy {one.name}")
            assert [event for _, event in ended.poll(30)] == [select.EPOLLERR | select.EPOLLHUP]
            ended.unregister(gpu.node.fd)
            until(lambda one=one: not one.there())
            assert stat("limits_bytes") == before
            with pytest.raises(OSError) as caught:
                gpu.alloc_vidmem(MIB)
            assert caught.value.errno == errno.ENODEV
            with pytest.raises(OSError) as caught:
                mmap.mmap(rm.ctl.fd, 4096)
            assert caught.value.errno == errno.ENODEV


def test_a_waiter_is_woken_by_the_card_and_by_the_end():
    """The driver's queue ends with its file, so waiters are on one of ours: each interrupt has to reach them."""
    woken: list[int] = []
    box = Box(fresh_id(), 64)
    with box.client() as rm, nv.Ctl(box.dev) as events, select.epoll() as ready:
        gpu = rm.gpu(0)
        one = Pusher(gpu.space().group())
        poll = listen(gpu, events)
        ready.register(events.fd, select.EPOLLIN | select.EPOLLPRI | select.EPOLLET)
        assert (poll.poll(100), ready.poll(0)) == ([], [])
        for _ in range(3):
            waiter = threading.Thread(target=lambda: woken.extend(mask for _, mask in ready.poll(30)))
            waiter.start()
            time.sleep(0.2)
            one.push(inc(0, 0x20, 0))
            waiter.join()
            assert poll.poll(100) == [], "the first poll takes an event without data"
        assert len(woken) == 3 and all(mask & (select.EPOLLIN | select.EPOLLPRI) for mask in woken)
        waiter = threading.Thread(target=lambda: woken.extend(mask for _, mask in poll.poll(30_000)))
        waiter.start()
        time.sleep(0.2)
        command(f"destroy {box.name}")
        waiter.join()
        assert woken[3:] == [select.POLLERR | select.POLLHUP]
        assert ready.poll(1) == [(events.fd, select.EPOLLERR | select.EPOLLHUP)]
    del one, gpu  # with their mappings, which keep the limit that the next test would find
    gc.collect()
    until(lambda: not box.there())


def mapped(box: Box, size: int) -> tuple[nv.Client, mmap.mmap]:
    """A client with memory of `size`, and a mapping that keeps both."""
    rm = box.client()
    gpu = rm.gpu(0)
    status, memory = gpu.alloc_vidmem(size)
    node = gpu.open_node()
    node.register(rm.ctl)
    assert (status, rm.map_memory(node, gpu.device, memory, size)[0]) == (0, 0)
    mapping = mmap.mmap(node.fd, size)
    node.close()
    return rm, mapping


def reads(mapping: mmap.mmap) -> bool:
    """False: a process that does is killed."""
    pid = os.fork()
    if not pid:
        signal.signal(signal.SIGBUS, signal.SIG_DFL)
        os._exit(mapping[0] & 0)
    status = os.waitpid(pid, 0)[1]
    assert status in (0, signal.SIGBUS)
    return status == 0


@pytest.mark.parametrize("closed", [False, True], ids=["and-files", "alone"])
def test_mappings_of_destroyed_containers_keep_nothing(closed: bool):
    """When destroy returns, name, slot, limit and memory are free, however often."""
    name, places = fresh_id(), PROC / "0/max_inst"
    before, most, taken = stat("limits_bytes"), places.read_text(), fb_used()
    with contextlib.ExitStack() as held:
        held.callback(places.write_text, most)
        places.write_text("2\n")
        for _ in range(4):
            one = Box(name, 64)
            rm, mapping = mapped(one, 32 * MIB)
            held.enter_context(mapping)
            if closed:
                rm.close()
            else:
                held.callback(rm.close)
            assert one.used == 32 * MIB
            assert reads(mapping)
            command(f"destroy {name}")
            assert not one.there()
            assert (stat("limits_bytes"), stat("ended_bytes"), fb_used()) == (before, 0, taken)
            assert not reads(mapping)
        lines = ended()
        assert len(lines) == 4
        assert all(line.startswith(f"{name} cookie=0x") and line.endswith(" gpu=0:0") for line in lines)
    until(lambda: not ended())


@pytest.mark.checked
@pytest.mark.parametrize("where", ["beside", "behind"])
def test_a_containers_end_beside_a_mapping_of_one_that_stalls(
    account: None, personality: Callable[..., None], where: str
):
    """A process outlives its container and keeps its mmap_lock, for which many recounts wait. What it sees of video
    memory is taken away meanwhile, and not waited for if it is among what the process unmaps, gone and not closed yet.
    """
    size = STALLS * BLOCK

    def unmap_all() -> None:
        rm = box.client()
        gpu = rm.gpu(0)
        uvm = gpu.space().uvm
        base = nv.reserve(size + BLOCK)
        kept = [uvm.managed(BLOCK, base + n * BLOCK) for n in range(STALLS)]
        node = gpu.open_node()
        assert rm.map_memory(node, gpu.device, gpu.alloc_vidmem(BLOCK)[1], BLOCK)[0] == 0
        fixed = (base + size, mmap.MAP_SHARED | 0x10) if where == "behind" else (None, mmap.MAP_SHARED)  # MAP_FIXED
        at = nv.libc.mmap(fixed[0], BLOCK, mmap.PROT_READ, fixed[1], node.fd, 0)
        assert at == (fixed[0] or at)
        os.write(ready, b"m")
        os.read(go, 1)
        assert nv.libc.munmap(ctypes.c_void_p(base), ctypes.c_size_t(size + BLOCK)) == 0
        os.write(ready, b"u")
        if where == "beside":
            os.write(ready, bytes([ctypes.c_uint8.from_address(at).value]))
        del kept

    wait, ready = os.pipe()
    go, say = os.pipe()
    box = Box(fresh_id(), 4096)
    with child(unmap_all) as pid:
        assert os.read(wait, 1) == b"m"
        personality(close_ms=20)
        os.write(say, b"g")
        time.sleep(0.5)
        command(f"destroy {box.name}")
        until(lambda: not box.there(), timeout=3)
        assert select.select([wait], [], [], 0)[0] == [], "its process still unmaps"
        personality(close_ms=0)
        assert os.read(wait, 1) == b"u"
        if where == "beside":
            os.waitid(os.P_PID, pid, os.WEXITED | os.WNOWAIT)
            assert select.select([wait], [], [], 0)[0] == [], "it sees nothing"
    until(lambda: not ended())


def hammer(box: Box, seed: int, until_s: float, made: mmap.mmap) -> None:
    """Random calls on two clients by four threads, each of which may free what another uses. @made: 1 in the first byte
    once a mapping was made, in the second once an OS event was."""
    rng = random.Random(seed)
    clients = [box.client() for _ in range(2)]
    gpus = [client.gpu(0) for client in clients]
    nodes = [gpu.open_node() for gpu in gpus]
    memory: list[tuple[nv.Gpu, int]] = []
    maps: list[tuple[nv.Gpu, int, int]] = []
    mappings: list[nv.Mapping] = []

    def one() -> None:
        gpu, what = rng.choice(gpus), rng.randrange(10)
        if what < 2:
            memory.append((gpu, gpu.alloc_vidmem(2 * MIB)[1]))
        elif what < 4 and memory:
            gpu, handle = rng.choice(memory)
            node = gpu.open_node()
            maps.append((gpu, handle, gpu.rm.map_memory(node, gpu.device, handle, 2 * MIB)[1]))
            mappings.append(node.mmap(2 * MIB))
            made[0] = 1
            node.close()
        elif what < 6 and maps:
            gpu, handle, address = maps.pop(rng.randrange(len(maps)))
            gpu.rm.unmap_memory(gpu.device, handle, address)
        elif what < 7 and memory:
            gpu, handle = memory.pop(rng.randrange(len(memory)))
            gpu.free(handle)
        elif what < 9:
            number = nv.NV_ESC_ALLOC_OS_EVENT if what < 8 else nv.NV_ESC_FREE_OS_EVENT
            event = nv.OsEvent(client=gpu.rm.handle, fd=rng.randrange(6))
            rng.choice(nodes).call(number, event)
            if what < 8 and event.status == 0:
                made[1] = 1
        elif rng.randrange(8) == 0:
            clients[0].ctl.close()

    def work() -> None:
        while time.monotonic() < until_s:
            with contextlib.suppress(OSError, IndexError, nv.RmError):
                one()

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


@pytest.mark.checked
@pytest.mark.parametrize("seed", range(2))
def test_a_container_ends_under_the_calls_of_its_processes(seed: int):
    """Whatever runs meanwhile, and is mapped: slot, charges, OS events and the card are as before."""
    before, taken = (stat("limits_bytes"), os_events()), fb_used()
    box, made = Box(fresh_id(), 128), mmap.mmap(-1, mmap.PAGESIZE)
    with contextlib.ExitStack() as there:
        for n in range(3):
            there.enter_context(child(lambda n=n: hammer(box, 10 * seed + n, time.monotonic() + 3, made)))
        time.sleep(1 + seed / 4)
        until(lambda: made[:2] == b"\1\1")
        command(f"destroy {box.name}")
        until(lambda: not box.there(), 10)
        assert os_events() == before[1]
    until(lambda: not ended())
    assert (stat("limits_bytes"), os_events(), fb_used()) == (*before, taken)


def os_events() -> int:
    """Of all, by the simulated driver's own count."""
    return int(re.search(r"os_events=(\d+)", Path("/proc/driver/nvsim/0/state").read_text())[1])


NEWPID = 0x20000000


def test_a_file_is_mapped_by_its_container_only():
    """A process that cannot be seen where the file was opened could outlive the container, and the mapping with it."""
    ours, theirs = socket.socketpair()

    def in_container() -> None:
        """The first process of a pid namespace opens the file, maps it, and passes it on."""
        ours.close()
        assert nv.libc.unshare(NEWPID) == 0
        if os.fork():
            os.wait()
            return
        rm = box.client()
        gpu = rm.gpu(0)
        memory = gpu.alloc_vidmem(2 * MIB)[1]
        nodes = [gpu.open_node() for _ in range(2)]
        for node in nodes:
            node.register(rm.ctl)
            assert rm.map_memory(node, gpu.device, memory, 2 * MIB)[0] == 0
        mapping = mmap.mmap(nodes[0].fd, 2 * MIB)
        socket.send_fds(theirs, [b"f"], [node.fd for node in nodes])
        theirs.recv(1)  # until the other end is closed
        mapping.close()
        os._exit(0)

    box = Box(fresh_id(), 64)
    with child(in_container):
        theirs.close()
        ours.settimeout(30)
        fds = socket.recv_fds(ours, 1, 2)[1]
        assert len(fds) == 2
        with pytest.raises(OSError) as caught:
            mmap.mmap(fds[1], 2 * MIB)
        assert caught.value.errno == errno.EACCES
        assert box.used >= 2 * MIB
        command(f"destroy {box.name}")
        ours.close()
        until(lambda: not box.there())
    for fd in fds:
        os.close(fd)


@pytest.mark.stock_only  # the debug kernel has no userfaultfd
@pytest.mark.parametrize("what", ["call", "memory", "channel"])
def test_others_call_while_one_stalls_in_its_own_memory(what: str):
    """Its parameters are on a page that does not come: no lock is held meanwhile, and it can be killed."""

    def stall() -> None:
        rm = box.client()
        gpu = rm.gpu(0)
        group = gpu.space().group()
        channel = group.channel()
        pages = Pages(1)  # which does not come
        of = (group.gpfifo_class, group.tsg) if what == "channel" else (nv.NV01_MEMORY_LOCAL_USER, gpu.device)
        params = channel.params() if what == "channel" else nv.MemoryParams(owner=rm.handle, size=MIB)
        params = nv.in_branch(of[0], params, rm.branch)
        arg = nv.Alloc(root=rm.handle, parent=of[1], class_id=of[0], params=pages.at, params_size=ctypes.sizeof(params))
        number = nv.request(nv.NV_ESC_RM_ALLOC, ctypes.sizeof(arg))
        threading.Thread(target=rm.ctl.raw, args=(number, pages.at if what == "call" else arg), daemon=True).start()
        stalls = select.select([pages.fd], [], [], 30)[0]
        assert gpu.alloc_vidmem(MIB)[0] == 0, "its other threads go on"
        os.write(ready, b"y" if stalls else b"n")

    wait, ready = os.pipe()
    name = fresh_id()
    with Box(name, 256) as box, clean_box(64) as other, other.client() as rm:
        gpu = rm.gpu(0)
        group = gpu.space().group()
        channel = group.channel()
        with child(stall):
            assert os.read(wait, 1) == b"y"
            begin = time.monotonic()
            status, memory = gpu.alloc_vidmem(MIB)
            assert (status, gpu.free(memory), group.enable(False), group.enable()) == (0, 0, 0, 0)
            channel.submit(kernel_ns=1000)
            channel.wait()
            (box.proc / "weight").write_text("0\n")
            assert box.meminfo()[1]
            command(f"destroy {name}")
            assert time.monotonic() - begin < 10
            assert box.there(), "until its process ends"
            with pytest.raises(OSError) as caught:
                command(f"create {name} gpu=0 memsize={64 * MIB}")
            assert caught.value.errno == errno.EBUSY
        until(lambda: not box.there())


def test_a_reader_of_stat_waits_for_no_hand_over(personality: Callable[..., None]):
    """So that none waits for it: its cgroup may throttle it while it reads.

    Under policy 1: under 2 an idle container beside it has its part of the time, in which there is nothing to freeze.
    """
    late_ms, before = 1500, (PROC / "0/policy").read_text()
    (PROC / "0/policy").write_text("1\n")
    try:
        with clean_box(512) as box, box.client() as rm:
            rm.gpu(0).space().group().channel()
            time.sleep(0.2)
            personality(missing_ms=late_ms)
            begin = time.monotonic()
            (box.proc / "weight").write_text("0\n")  # the thread is in a call, or is about to be
            longest = 0.0
            while (now := time.monotonic()) < begin + late_ms / 2000:
                stat("control_calls")
                longest = max(longest, time.monotonic() - now)
            personality(missing_ms=0)
            assert longest < late_ms / 4000
            until(lambda: stat("control_max_us") >= late_ms * 1000)
    finally:
        personality(missing_ms=0)
        (PROC / "0/policy").write_text(before)


def test_no_task_of_a_tenant_makes_the_calls_of_a_freeze(personality: Callable[..., None]):
    """It would keep the lock for which the next hand-over waits, for as long as its cgroup throttles it."""
    seen: set[str] = set()

    def running() -> set[str]:
        """What kernel workers do: the queue of its work is part of a worker's name."""
        names = set()
        for comm in Path("/proc").glob("[0-9]*/comm"):
            with contextlib.suppress(OSError):
                names.add(comm.read_text().strip())
        return {name for name in names if name.startswith("kworker/")}

    before = (PROC / "0/policy").read_text()
    (PROC / "0/policy").write_text("2\n")
    try:
        with clean_box(512) as box, box.client() as rm:
            (box.proc / "weight").write_text("0\n")
            group = rm.gpu(0).space().group()
            group.channel(enable=False)
            time.sleep(0.2)
            calls = stat("control_calls")
            personality(control_us=300_000)
            thread = threading.Thread(target=group.enable)
            thread.start()
            while thread.is_alive():
                seen |= running()
                time.sleep(0.005)
            personality(control_us=0)
            assert stat("control_calls") > calls, "there was a freeze"
    finally:
        (PROC / "0/policy").write_text(before)
    assert any("cgpu_freeze" in name for name in seen), seen
