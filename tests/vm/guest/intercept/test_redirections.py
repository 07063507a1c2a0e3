# SPDX-License-Identifier: MIT
"""An administrator can switch redirections off. Tenants' calls are then refused before the driver runs. After every
test, all memory in use on the card is charged.
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import os
import subprocess
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from missing_pages import PAGE, Pages
from slicebox import MIB, PROC, Box, clean_box, command, fb_used, fresh_id, until, vidmem
from slicebox import nvclient as nv

pytestmark = [pytest.mark.checked, pytest.mark.needs("ftrace")]

LIMIT_MIB = 256
OVER = 300 * MIB
KPROBES = Path("/sys/kernel/debug/kprobes/enabled")
FTRACE = Path("/proc/sys/kernel/ftrace_enabled")
#: Whether 0 in FTRACE ends tracing where nothing is permanent. 7.3 refuses it always: kernel/trace/ftrace.c,
#: ftrace_enable_sysctl().
FTRACE_ENDS = tuple(int(part) for part in os.uname().release.split(".")[:2]) < (7, 3)
TRACING = Path("/sys/kernel/tracing")

REDIRECTED = ("os_memcpy_from_user", "nv_get_file_private", "nvUvmInterfaceDupMemory", "uvm_va_space_create")
OBSERVED = ("dma_buf_fd",)
PROBED = ("rm_ioctl",)


@contextlib.contextmanager
def written(switch: Path, value: str, after: str = "") -> Iterator[None]:
    before = switch.read_text()
    switch.write_text(value)
    try:
        yield
    finally:
        switch.write_text(after or before)


@pytest.fixture(autouse=True)
def debugging() -> Iterator[None]:
    """Tracing without the names of tasks: to record these, the kernel changes the text of its scheduler while all
    processors run it, and an emulated processor may still see the old text (an int3 Oops in __schedule, on 6.12).
    """
    for kind, place in (("debugfs", KPROBES.parents[1]), ("tracefs", TRACING)):
        if not os.path.ismount(place):
            subprocess.run(["mount", "-t", kind, "none", place], check=True)
    with written(TRACING / "options/record-cmd", "0"):
        yield


def kprobes_off() -> contextlib.AbstractContextManager[None]:
    return written(KPROBES, "0")


def outcome(gpu: nv.Gpu, size: int) -> tuple[str, int]:
    """The outcome of an allocation: an errno, or a status of the driver."""
    try:
        return "status", gpu.alloc_vidmem(size)[0]
    except OSError as error:
        return "errno", error.errno


def redirections() -> str:
    return dict(line.split() for line in (PROC / "0/stat").read_text().splitlines())["redirections"]


def test_no_allocation_while_kprobes_are_off(box: Box, gpu: nv.Gpu, kernel_log):
    assert gpu.alloc_vidmem(16 * MIB)[0] == 0
    used, taken, refused = box.used, fb_used(), box.stat("refused_calls")
    assert redirections() == "on"
    with kprobes_off():
        got = {outcome(gpu, 16 * MIB) for _ in range(40)}
        assert (got, box.used, fb_used()) == ({("errno", errno.EIO)}, used, taken)
        assert redirections() == "off"
        until(lambda: "rm_ioctl is not redirected" in kernel_log.news())
    assert redirections() == "on"
    assert gpu.alloc_vidmem(16 * MIB)[0] == 0
    assert gpu.alloc_vidmem(OVER)[0] == nv.NV_ERR_NO_MEMORY
    assert box.stat("refused_calls") == refused, "not by the tenant's fault"
    until(lambda: "in effect again" in kernel_log.news())


def test_ftrace_cannot_be_switched_off(box: Box, gpu: nv.Gpu):
    with pytest.raises(OSError) as caught, written(FTRACE, "0"):
        got = [outcome(gpu, 16 * MIB) for _ in range(40)]
        assert (got, fb_used()) == ([], 0), "the driver ran"
    assert caught.value.errno == (errno.EBUSY if FTRACE_ENDS else errno.EOPNOTSUPP)
    assert gpu.alloc_vidmem(OVER)[0] == nv.NV_ERR_NO_MEMORY


@pytest.mark.parametrize(("switch", "why"), [(KPROBES, errno.ENODEV), (FTRACE, errno.EBUSY)], ids=["kprobes", "ftrace"])
def test_no_container_without(switch: Path, why: int, kernel_log):
    """After the last container ftrace can be switched off again: the module holds no probe."""
    if switch == FTRACE and not FTRACE_ENDS:
        with pytest.raises(OSError) as caught, written(switch, "0"):
            pass
        assert caught.value.errno == errno.EOPNOTSUPP
        return
    with written(switch, "0"):
        with pytest.raises(OSError) as caught:
            command(f"create {fresh_id()} gpu=0 memsize={LIMIT_MIB * MIB}")
        assert caught.value.errno == why
        assert "cannot be redirected" in kernel_log.news()
        assert redirections() == "none"
    with clean_box(LIMIT_MIB) as box, box.client() as client:
        assert client.gpu(0).alloc_vidmem(16 * MIB)[0] == 0


def flags(function: str) -> list[str]:
    """Flags in the kernel's list of traced functions: I if the instruction pointer is changed."""
    lines = (TRACING / "enabled_functions").read_text().splitlines()
    return next((line.partition("tramp")[0].split()[2:] for line in lines if line.split()[0] == function), [])


def test_what_is_only_observed_can_be_live_patched(box: Box):
    assert [function for function in REDIRECTED if "I" not in flags(function)] == []
    assert [function for function in OBSERVED if not flags(function) or "I" in flags(function)] == []
    assert [function for function in PROBED if flags(function)] == []


def kprobe_command(text: str) -> None:
    fd = os.open(TRACING / "kprobe_events", os.O_WRONLY | os.O_APPEND)
    try:
        os.write(fd, text.encode())
    finally:
        os.close(fd)


@contextlib.contextmanager
def kprobe_event(function: str) -> Iterator[None]:
    """A kprobe event as an administrator may set for another purpose."""
    kprobe_command(f"p:theirs {function}\n")
    try:
        with written(TRACING / "events/kprobes/theirs/enable", "1", "0"):
            yield
    finally:
        kprobe_command("-:kprobes/theirs\n")


@pytest.mark.parametrize("function", [REDIRECTED[0], OBSERVED[0]])
def test_beside_a_kprobe_of_another(function: str):
    """Theirs first, and ours first; either ends first. The kernel may not warn (no_splat).

    At rm_ioctl, which has no call to ftrace, the kernel refuses events.
    """

    def holds(gpu: nv.Gpu) -> bool:
        return gpu.alloc_vidmem(OVER)[0] == nv.NV_ERR_NO_MEMORY and gpu.alloc_vidmem(MIB)[0] == 0

    with kprobe_event(function), clean_box(LIMIT_MIB) as box, box.client() as client:
        assert holds(client.gpu(0))
    with clean_box(LIMIT_MIB) as box, box.client() as client:
        gpu = client.gpu(0)
        with kprobe_event(function):
            assert holds(gpu)
        assert holds(gpu)
    with contextlib.ExitStack() as theirs:
        theirs.enter_context(kprobe_event(function))
        with clean_box(LIMIT_MIB) as box, box.client() as client:
            theirs.close()
            assert holds(client.gpu(0))


def test_beside_a_tracer(box: Box, gpu: nv.Gpu):
    """It comes first in the kernel's list, and the same call leads to both."""
    (TRACING / "set_ftrace_filter").write_text("\n".join((*REDIRECTED, *OBSERVED, "ckm_call_begin")))
    try:
        with written(TRACING / "current_tracer", "function", "nop"):
            assert gpu.alloc_vidmem(OVER)[0] == nv.NV_ERR_NO_MEMORY
            assert gpu.alloc_vidmem(MIB)[0] == 0
            assert "os_memcpy_from_user" in (TRACING / "trace").read_text()
            assert redirections() == "on"
    finally:
        (TRACING / "set_ftrace_filter").write_text("")
    assert gpu.alloc_vidmem(OVER)[0] == nv.NV_ERR_NO_MEMORY


def test_nothing_by_a_switch_that_flips(box: Box):
    """Threads that allocate continuously."""
    stop = threading.Event()
    seen: list[tuple[str, int]] = []

    def allocate(gpu: nv.Gpu) -> None:
        handle = 0xCAFE0000
        while not stop.is_set():
            handle += 1
            try:
                seen.append(("status", gpu.alloc_vidmem(16 * MIB, handle)[0]))
                gpu.free(handle)
            except OSError as error:
                seen.append(("errno", error.errno))

    with contextlib.ExitStack() as files:
        gpus = [files.enter_context(box.client()).gpu(0) for _ in range(3)]
        threads = [threading.Thread(target=allocate, args=[gpu]) for gpu in gpus]
        for thread in threads:
            thread.start()
        try:
            for _ in range(40):
                with kprobes_off():
                    time.sleep(0.02)
                time.sleep(0.02)
        finally:
            stop.set()
            for thread in threads:
                thread.join()
        assert fb_used() <= box.used
    # A free that was refused leaves its handle, and its 16 MiB, behind.
    assert {("status", 0), ("errno", errno.EIO)} <= set(seen)
    assert set(seen) <= {("status", 0), ("status", nv.NV_ERR_NO_MEMORY), ("errno", errno.EIO)}


# ---- a call that waits for a page of the tenant ----


class Waiting:
    """An allocation of 16 MiB with its struct on page 0 and its parameters on page 1."""

    def __init__(self, gpu: nv.Gpu):
        self.pages = Pages(2)
        arg, params = vidmem(gpu, 16 * MIB, 0xCAFE0001)
        arg.params = self.pages.at + PAGE
        self.top, self.params = bytes(arg), bytes(params)
        self.pages.put(0, self.top)
        request = nv.request(nv.NV_ESC_RM_ALLOC, ctypes.sizeof(arg))
        self._thread = threading.Thread(target=lambda: self._run(gpu.rm.ctl, request))
        self._thread.start()

    def _run(self, ctl: nv.Ctl, request: int) -> None:
        self.got = ctl.raw(request, self.pages.at)

    def result(self) -> int:
        self._thread.join(30)
        return self.got


@pytest.mark.stock_only  # the debug kernel has no userfaultfd
def test_not_by_a_call_that_waits_in_our_check(box: Box, gpu: nv.Gpu):
    taken, used = fb_used(), box.used
    call = Waiting(gpu)
    assert call.pages.wait() == 1
    with kprobes_off():
        call.pages.put(1, call.params)
        assert call.result() == errno.EIO
    assert (fb_used(), box.used) == (taken, used)
    assert gpu.alloc_vidmem(16 * MIB)[0] == 0, "nothing had reached the driver"


@pytest.mark.stock_only
def test_not_by_a_call_that_waits_in_the_driver(box: Box, kernel_log):
    """The driver was called before the redirections failed. The call's effect is unknown, so its file is given up."""
    with contextlib.suppress(OSError), box.client() as client:
        gpu = client.gpu(0)
        taken = fb_used()
        call = Waiting(gpu)
        assert call.pages.wait() == 1
        call.pages.drop(0)
        call.pages.put(1, call.params)
        assert call.pages.wait() == 0
        with kprobes_off():
            call.pages.put(0, call.top)
            assert call.result() == errno.EIO
        assert fb_used() == taken
        assert "its file is given up" in kernel_log.news()
        assert outcome(gpu, MIB) == ("errno", errno.EIO)
        assert box.used >= 16 * MIB, "charged until the file is gone"
    until(lambda: box.used == 0)
    with box.client() as client:
        assert client.gpu(0).alloc_vidmem(16 * MIB)[0] == 0
