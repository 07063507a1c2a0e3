# SPDX-License-Identifier: MIT
"""A tenant stalls the host by freeing: what one call, one lock and one RCU section can be made to cost."""

from __future__ import annotations

import ctypes
import errno
import json
import mmap
import os
import signal
import subprocess
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from slicebox import CLIENTS, MIB, Box, fresh_id, until
from slicebox import nvclient as nv
from tracebox import calls_of, held

pytestmark = pytest.mark.attached

PARAMETERS = Path("/sys/module/cgpu_km/parameters")
OS_DESCRIPTOR = 0x71
NO_MAP_CACHED = 1 << 30 | 1 << 12 | 1 << 4  # NVOS02_FLAGS: not mapped, cached, not contiguous

DEBUG = os.environ["KERNEL"].endswith("debug")

#: What a single call of a hostile tenant may hold: the bar. Measured on the debug kernel, in emulation.
LONGEST_MS = 50.0


@pytest.fixture
def all_ids() -> Iterator[None]:
    """One container may take all channel ids."""
    parameter = PARAMETERS / "quota_floor_pct"
    before = parameter.read_text()
    parameter.write_text("0\n")
    yield
    parameter.write_text(before)


def pinned_page(gpu: nv.Gpu, handle: int) -> mmap.mmap:
    """A page of this process as memory of the driver: a channel whose USERD it is dies with it."""
    pages = mmap.mmap(-1, 1 << 16)
    address = ctypes.addressof(ctypes.c_char.from_buffer(pages))
    arg = nv.AllocMemory(gpu.rm.handle, gpu.device, handle, OS_DESCRIPTOR, NO_MAP_CACHED, address, (1 << 16) - 1)
    arg.fd = -1
    gpu.node.call(nv.NV_ESC_RM_ALLOC_MEMORY, arg)
    assert arg.status == 0
    return pages


class Hoard:
    """Objects of one client: dups of a page of memory, and channels that depend on another one."""

    def __init__(self, box: Box, dups: int, channels: int):
        self.rm = box.client()
        gpu = self.gpu = self.rm.gpu()
        self.pages = pinned_page(gpu, 0x7171)
        first = gpu.space().group(nv.NV2080_ENGINE_TYPE_COPY0).channel()
        params = first.params()
        params.userd_memory[0], params.userd_offset[0] = 0x7171, 0
        self.channels = 0
        for _ in range(channels):
            status, _ = gpu.rm.alloc(first.group.gpfifo_class, first.group.tsg, params)
            if status:
                break
            self.channels += 1
        status, memory = gpu.alloc_sysmem(4096)
        assert status == 0
        for _ in range(dups):
            assert gpu.rm.dup(gpu.device, gpu.rm, memory)[0] == 0

    def close(self) -> None:
        self.rm.close()
        self.pages.close()


# ---- dependants ----


@pytest.mark.checked
def test_freeing_dups_beside_channels(box: Box, all_ids: None):
    """8,000 dups and all channels of a card, which depend on one page, freed by one call. Each object was compared
    with each channel, in one RCU section. The debug kernel, which is here for its locks, has a sixth of both.
    """
    hoard = Hoard(box, 1400, 300) if DEBUG else Hoard(box, 8000, 2000)
    assert hoard.channels > (250 if DEBUG else 1700)
    began = time.process_time()
    assert hoard.gpu.free(hoard.gpu.device) == 0
    took = time.process_time() - began
    hoard.close()
    assert box.used == 0
    # 16 million comparisons took 8 s; 10,000 objects take a tenth of one, and a debug kernel twenty times as long.
    assert took < (5 if DEBUG else 2)


@pytest.mark.more
@pytest.mark.debug_only
@pytest.mark.checked
def test_freeing_holds_no_lock_for_long(box: Box, all_ids: None):
    """Neither the container's lock nor an RCU section, while one call frees thousands of objects.

    A long hold of the module's own comes with every call; one that the host caused by taking the machine's
    processor away does not, so the least of three counts. Beside two other machines all three were 115 to 154 ms, as
    the clock goes on while the processor is away: run it alone.
    """
    worst = []
    for _ in range(3):
        hoard = Hoard(box, 1500, 150)
        with held("&ct->rm_lock", "rcu_read_lock", "&gpu->lock") as longest:
            assert hoard.gpu.free(hoard.gpu.device) == 0
        hoard.close()
        print(f"longest holds while 1,650 objects are freed, ms: {longest.longest_ms}")
        assert longest.longest_ms["&ct->rm_lock"] > 0
        worst.append(max(longest.longest_ms.values()))
        if worst[-1] < LONGEST_MS:
            break
    assert min(worst) < LONGEST_MS, worst


@pytest.mark.checked
def test_what_is_depended_on_takes_its_channels_along(box: Box):
    """As in the driver: the page goes, and with it the channels on it and their ids."""
    hoard = Hoard(box, 0, 20)
    assert box.stat("channels") == 21
    assert hoard.gpu.free(0x7171) == 0
    assert box.stat("channels") == 1
    again = pinned_page(hoard.gpu, 0x7171)
    assert hoard.gpu.free(0x7171) == 0
    again.close()
    hoard.close()


# ---- a free that is cancelled ----


@pytest.mark.checked
def test_a_free_that_cannot_be_answered_has_freed(box: Box):
    """EFAULT for the result: the driver has freed, and so has the module."""
    with box.client() as rm:
        gpu = rm.gpu()
        status, memory = gpu.alloc_vidmem(2 * MIB)
        assert status == 0
        used = box.used
        readonly = mmap.mmap(-1, 4096)
        arg = nv.Free.from_buffer(readonly)
        arg.root, arg.parent, arg.handle = rm.handle, gpu.device, memory
        libc = ctypes.CDLL(None, use_errno=True)
        assert libc.mprotect(ctypes.c_void_p(ctypes.addressof(arg)), 4096, mmap.PROT_READ) == 0
        assert rm.ctl.raw(nv.request(nv.NV_ESC_RM_FREE, ctypes.sizeof(arg)), arg) == errno.EFAULT
        assert libc.mprotect(ctypes.c_void_p(ctypes.addressof(arg)), 4096, mmap.PROT_READ | mmap.PROT_WRITE) == 0
        assert box.used == used - 2 * MIB
        assert gpu.alloc_vidmem(2 * MIB, handle=memory) == (0, memory), "the name is free"
        del arg


@pytest.mark.checked
@pytest.mark.needs("ftrace")
def test_a_free_that_is_cancelled_has_changed_nothing(box: Box):
    """Another thread takes the argument away, before the driver reads it or after: freed and uncharged, or neither.
    It goes on until a free that had begun was cancelled.
    """
    libc = ctypes.CDLL(None, use_errno=True)
    size = 16 * MIB
    with box.client() as rm, calls_of("cgpu_tree_free_cancel") as cancels:
        gpu = rm.gpu()
        page = mmap.mmap(-1, 4096)
        arg = nv.Free.from_buffer(page)
        at = ctypes.c_void_p(ctypes.addressof(arg))
        stop = threading.Event()

        def flip() -> None:
            while not stop.is_set():
                libc.mprotect(at, 4096, 0)
                libc.mprotect(at, 4096, mmap.PROT_READ | mmap.PROT_WRITE)

        results = {True: 0, False: 0}
        deadline = time.monotonic() + 300
        while not (cancels.count and results[True]) or sum(results.values()) < 60:
            assert time.monotonic() < deadline, f"{results}, {cancels.count} cancelled"
            status, memory = gpu.alloc_vidmem(size, handle=0x7000)
            assert status == 0
            used = box.used
            arg.root, arg.parent, arg.handle, arg.status = rm.handle, gpu.device, memory, 0
            stop.clear()
            thread = threading.Thread(target=flip)
            thread.start()
            failed = rm.ctl.raw(nv.request(nv.NV_ESC_RM_FREE, ctypes.sizeof(arg)), arg)
            stop.set()
            thread.join()
            libc.mprotect(at, 4096, mmap.PROT_READ | mmap.PROT_WRITE)
            freed = box.used == used - size
            assert freed or box.used == used
            assert freed or failed
            results[freed] += 1
            # It is gone, with its name, or works as before.
            assert gpu.rm.dup(gpu.device, gpu.rm, memory, 0x7001)[0] == (nv.NV_ERR_OBJECT_NOT_FOUND if freed else 0)
            assert [gpu.free(0x7001), gpu.free(memory), box.used] == [0, 0, used - size]
        print(f"freed {results[True]}, not freed {results[False]}, of these cancelled {cancels.count}")
        del arg


# ---- as many objects as there may be ----


def hoard(box: Box, *options: object) -> dict[str, int]:
    argv = [CLIENTS / "hoard", "--dev", box.dev, *options]
    return json.loads(subprocess.run([str(word) for word in argv], capture_output=True, text=True, check=True).stdout)


@pytest.mark.icount
@pytest.mark.needs("instructions")
def test_a_call_costs_the_same_with_240000_objects():
    """In exact time. The longest call includes the growing of a table."""
    with Box(fresh_id(), 1024) as box:
        found = hoard(box, "--objects", 240000)
        print(found)
        assert found["all_dup_ns"] < 3 * found["few_dup_ns"]
        assert found["all_control_ns"] < 1.5 * found["few_control_ns"]
        assert found["longest_dup_ns"] < LONGEST_MS * 1e6
        until(lambda: box.used == 0, timeout=600)


@pytest.mark.parametrize(
    "count",
    [
        pytest.param(4000, marks=[pytest.mark.checked, pytest.mark.debug_only]),
        pytest.param(40000, marks=pytest.mark.stock_only),
        pytest.param(240000, marks=[pytest.mark.stock_only, pytest.mark.more]),  # all that a container may have
    ],
)
def test_others_call_while_many_objects_go(box: Box, count: int):
    """A process with that many objects is killed: its neighbour's calls go on, and so do the reader of its container's
    meminfo and RCU.
    """
    argv = [CLIENTS / "hoard", "--dev", box.dev, "--objects", str(count), "--wait"]
    with Box(fresh_id(), 512) as other, other.client() as rm:
        gpu = rm.gpu()
        with subprocess.Popen([str(word) for word in argv], stdout=subprocess.PIPE) as victim:
            assert victim.stdout and victim.stdout.readline()
            victim.send_signal(signal.SIGKILL)
            longest = {"call": 0.0, "meminfo": 0.0}
            while victim.poll() is None:
                for name, call in (("call", gpu.name), ("meminfo", box.meminfo)):
                    began = time.monotonic()
                    call()
                    longest[name] = max(longest[name], time.monotonic() - began)
        print(f"longest while {count} objects went, s: {longest}")
        assert longest["meminfo"] < 2
        status, memory = gpu.alloc_vidmem(2 * MIB)
        assert status == 0
        gpu.free(memory)
    until(lambda: box.used == 0)
