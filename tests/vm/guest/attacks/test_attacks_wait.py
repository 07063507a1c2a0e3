# SPDX-License-Identifier: MIT
"""Hostile tenants whose task stops, or is slow, where others might wait for it (docs/develop/bounds.md)."""

from __future__ import annotations

import contextlib
import ctypes
import itertools
import os
import select
import struct
import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from sharebox import stat
from slicebox import MIB, PROC, Box, child, clean_box, command, until
from slicebox import nvclient as nv

pytestmark = [pytest.mark.once, pytest.mark.attached]

NAMES = (f"{n:012x}" + "ee" * 26 for n in itertools.count(0xEE0000000000))
BLOCK = 2 * MIB
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
        clean_box(next(NAMES), 4096) as box,
        clean_box(next(NAMES), 64) as other,
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


def test_a_held_file_keeps_no_limit():
    """Files of a container that was destroyed, held elsewhere: others have what it does not use, and what it frees."""
    keep = 32 * MIB
    total, before = stat("total_bytes"), stat("limits_bytes")
    half = (total - before) // 2 // MIB + 1
    one = Box(next(NAMES), half)
    with one.client() as first:
        with one.client() as second:
            for held in (first, second):
                assert held.gpu(0).alloc_vidmem(keep)[0] == 0
            used = one.used
            command(f"destroy {one.name}")
            assert (one.used, stat("limits_bytes")) == (used, before + used)
            with Box(next(NAMES), half) as other, other.client() as rm:
                assert rm.gpu(0).alloc_vidmem(keep)[0] == 0
        until(lambda: one.used == used - keep)
        assert stat("limits_bytes") == before + used - keep
    until(lambda: not one.there())
    assert stat("limits_bytes") == before


SYS_USERFAULTFD, MADV_DONTNEED = 323, 4
UFFDIO_API, UFFDIO_REGISTER = 0xC018AA3F, 0xC020AA00


def missing_page() -> tuple[int, int]:
    """A userfaultfd and the address of its page, which is not there: who reads it waits without end."""
    libc = ctypes.CDLL(None, use_errno=True)
    libc.madvise.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int]
    libc.ioctl.argtypes = [ctypes.c_int, ctypes.c_ulong, ctypes.c_void_p]
    fd = libc.syscall(SYS_USERFAULTFD, os.O_CLOEXEC)
    at = nv.reserve(4096)
    libc.mprotect(ctypes.c_void_p(at), 4096, 3)
    assert fd >= 0
    assert libc.ioctl(fd, UFFDIO_API, ctypes.create_string_buffer(struct.pack("QQQ", 0xAA, 0, 0))) == 0
    assert libc.ioctl(fd, UFFDIO_REGISTER, ctypes.create_string_buffer(struct.pack("QQQQ", at, 4096, 1, 0))) == 0
    return fd, at


@pytest.mark.stock_only  # the debug kernel has no userfaultfd
@pytest.mark.parametrize("what", ["call", "memory", "channel"])
def test_others_call_while_one_stalls_in_its_own_memory(what: str):
    """Its parameters are on a page that does not come: no lock is held meanwhile, and it can be killed."""

    def stall() -> None:
        rm = box.client()
        gpu = rm.gpu(0)
        group = gpu.space().group()
        channel = group.channel()
        fd, page = missing_page()
        of = (group.gpfifo_class, group.tsg) if what == "channel" else (nv.CLASS_VIDMEM, gpu.device)
        params = channel.params() if what == "channel" else nv.MemoryParams(owner=rm.handle, size=MIB)
        params = nv.in_branch(of[0], params, rm.branch)
        arg = nv.Alloc(root=rm.handle, parent=of[1], class_id=of[0], params=page, params_size=ctypes.sizeof(params))
        number = nv.request(nv.ESC_RM_ALLOC, ctypes.sizeof(arg))
        threading.Thread(target=rm.ctl.raw, args=(number, page if what == "call" else arg), daemon=True).start()
        stalls = select.select([fd], [], [], 30)[0]
        assert gpu.alloc_vidmem(MIB)[0] == 0, "its other threads go on"
        os.write(ready, b"y" if stalls else b"n")

    wait, ready = os.pipe()
    name = next(NAMES)
    with Box(name, 256) as box, clean_box(next(NAMES), 64) as other, other.client() as rm:
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
        until(lambda: not box.there())


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
        with clean_box(next(NAMES), 512) as box, box.client() as rm:
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
