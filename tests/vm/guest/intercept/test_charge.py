# SPDX-License-Identifier: MIT
"""Clients in a slice: their view of the GPU, their charges and the end of these."""

from __future__ import annotations

import ctypes
import errno
import os
import signal
import subprocess
import threading
import time
from pathlib import Path

import pytest
from slicebox import (
    MIB,
    PROC,
    Box,
    child,
    command,
    ended,
    fb_used,
    fresh_id,
    insert_nvsim,
    nvclient,
    result,
    until,
)

pytestmark = [pytest.mark.debug_ok, pytest.mark.attached]

B = "b" * 64


@pytest.fixture
def box():
    with Box(fresh_id(), 1024) as made:
        yield made


@pytest.fixture(autouse=True)
def nothing_left():
    """After every test the card has as much memory in use as before."""
    before = fb_used()
    yield
    until(lambda: fb_used() == before)


def alloc(gpu: nvclient.Gpu, mib: int) -> int:
    status, handle = gpu.alloc_vidmem(mib * MIB)
    assert status == nvclient.NV_OK
    return handle


# ---- memory ----


@pytest.mark.checked
def test_two_clients_one_over_its_limit(box):
    """A client sees the slice only; beyond it an allocation fails with the driver's 0x51; the neighbour continues."""
    with Box(B, 2048) as other, other.client() as theirs, box.client() as ours:
        ours_gpu, theirs_gpu = ours.gpu(), theirs.gpu()
        assert ours_gpu.memory()["total"] == 1024 * MIB
        assert theirs_gpu.memory()["total"] == 2048 * MIB
        alloc(ours_gpu, 1000)
        status, _ = ours_gpu.alloc_vidmem(32 * MIB)
        assert status == nvclient.NV_ERR_NO_MEMORY
        assert box.stat("refused_allocs") == 1
        assert box.used == 1000 * MIB == ours_gpu.memory()["total"] - ours_gpu.memory()["free"]
        alloc(theirs_gpu, 2000)
        assert other.stat("refused_allocs") == 0
        free, by_pid = box.meminfo()
        assert free == 24 * MIB and by_pid == {os.getpid(): 1000 * MIB}


@pytest.mark.parametrize("size", [1, 4096, 65536, 65537, 2 * MIB, 3 * MIB + 1, 100 * MIB])
def test_what_is_charged_is_what_the_driver_took(box, size):
    before = fb_used()
    with box.client() as rm:
        status, _ = rm.gpu().alloc_vidmem(size)
        assert status == nvclient.NV_OK
        assert box.used == fb_used() - before > 0
    until(lambda: box.used == 0)


@pytest.mark.parametrize("size", [1 << 40, (1 << 64) - 1, (1 << 64) - 4096, 1 << 63, 1025 * MIB])
def test_absurd_sizes_are_refused(box, size):
    with box.client() as rm:
        status, _ = rm.gpu().alloc_vidmem(size)
        assert status == nvclient.NV_ERR_NO_MEMORY
        assert box.used == 0


def test_free_gives_back(box):
    with box.client() as rm:
        gpu = rm.gpu()
        for _ in range(20):
            handle = alloc(gpu, 900)
            assert gpu.free(handle) == nvclient.NV_OK
        assert box.used == 0


@pytest.mark.checked
def test_charge_follows_the_last_dup(box):
    with box.client() as rm:
        gpu = rm.gpu()
        handle = alloc(gpu, 300)
        status, copy = rm.dup(gpu.device, rm, handle)
        assert status == nvclient.NV_OK
        assert box.used == 300 * MIB
        assert gpu.free(handle) == nvclient.NV_OK
        assert box.used == 300 * MIB, "the dup still holds it"
        assert gpu.free(copy) == nvclient.NV_OK
        assert box.used == 0


def test_free_before_unmap(box):
    """RM_FREE first and UVM second, as honest programs do: charged until uvm lets go."""
    with box.client() as rm:
        gpu = rm.gpu()
        space = gpu.space()
        handle = alloc(gpu, 200)
        before = box.used
        status, base = space.map(handle, 200 * MIB)
        assert status == nvclient.NV_OK
        assert gpu.free(handle) == nvclient.NV_OK
        assert box.used == before, "uvm's own reference keeps the memory"
        # A hole in the middle splits the mapping; each part holds it.
        assert space.uvm.unmap(gpu.uuid, base + 50 * MIB, 50 * MIB) == nvclient.NV_OK
        assert space.uvm.unmap(gpu.uuid, base, 50 * MIB) == nvclient.NV_OK
        assert box.used == before
        assert space.uvm.unmap(gpu.uuid, base + 100 * MIB, 100 * MIB) == nvclient.NV_OK
        assert box.used == before - 200 * MIB


@pytest.mark.checked
def test_uvm_mapping_outlives_the_client(box):
    """Every RM file closed: memory mapped by uvm stays charged until uvm's file is closed."""
    rm = box.client()
    gpu = rm.gpu()
    space = gpu.space()
    status, _ = space.map(alloc(gpu, 128), 128 * MIB)
    assert status == nvclient.NV_OK
    uvm = os.dup(space.uvm.fd)
    rm.close()
    until(lambda: box.used == 128 * MIB)
    assert fb_used() >= 128 * MIB
    os.close(uvm)
    until(lambda: box.used == 0)


@pytest.mark.checked
def test_mapping_outlives_every_file(box):
    """alloc, mmap, close every fd: charged until unmapped, or until the end of the container, with which it goes."""
    rm = box.client()
    gpu = rm.gpu()
    handle = alloc(gpu, 64)
    node = gpu.open_node()
    node.register(rm.ctl)
    status, _ = rm.map_memory(node, gpu.device, handle, 64 * MIB)
    assert status == nvclient.NV_OK
    libc = ctypes.CDLL(None, use_errno=True)
    libc.mmap.restype = ctypes.c_void_p
    libc.mmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int, ctypes.c_int, ctypes.c_int, ctypes.c_long]
    libc.munmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t]
    address = libc.mmap(None, 64 * MIB, 3, 1, node.fd, 0)
    assert address != ctypes.c_void_p(-1).value
    node.close()
    rm.close()
    time.sleep(0.3)
    assert box.used == 64 * MIB
    command(f"destroy {box.name}")
    assert not box.there()
    child = os.fork()
    if child == 0:
        signal.signal(signal.SIGBUS, signal.SIG_DFL)
        ctypes.memset(address, 1, 4096)
        os._exit(0)
    assert os.waitpid(child, 0)[1] == signal.SIGBUS
    assert libc.munmap(address, 64 * MIB) == 0
    until(lambda: not ended())


@pytest.mark.checked
def test_register_fd_keeps_a_client(box):
    """A GPU file holds the control file it was registered with, and so the client and its memory."""
    rm = box.client()
    gpu = rm.gpu()
    alloc(gpu, 78)
    node = nvclient.Node("nvidia0", box.dev)
    node.register(rm.ctl)
    rm.close()
    time.sleep(0.3)
    assert box.used == 78 * MIB
    node.close()
    until(lambda: box.used == 0)


@pytest.mark.checked
def test_fork_of_a_client(box):
    """A child has the files: the client lives until the child is gone too."""
    rm = box.client()
    gpu = rm.gpu()
    alloc(gpu, 50)
    child = os.fork()
    if child == 0:
        signal.pause()
        os._exit(0)
    rm.close()
    time.sleep(0.3)
    assert box.used == 50 * MIB
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)
    until(lambda: box.used == 0)


def test_context_costs_memory_and_a_bomb_ends_in_its_own_limit(box):
    with box.client() as rm:
        gpu = rm.gpu()
        space = gpu.space()
        groups = []
        before = box.used
        with pytest.raises(nvclient.RmError) as caught:
            groups.extend(space.group() for _ in range(200))
        assert caught.value.status == nvclient.NV_ERR_NO_MEMORY
        assert 4 < len(groups) < 40
        assert box.used > before
    until(lambda: box.used == 0)


@pytest.mark.checked
def test_uvm_keeps_a_context_charged(box):
    """A channel registered with uvm keeps its TSG's context, which stays charged to the container."""
    with box.client() as rm:
        gpu = rm.gpu()
        space = gpu.space()
        held = 0
        with pytest.raises(nvclient.RmError) as caught:
            for _ in range(200):
                group = space.group()
                channel = group.channel()
                assert space.uvm.register_channel(gpu.uuid, rm, channel.handle) == 0
                group.close()
                gpu.free(channel.memory)
                held += 1
        assert caught.value.status == nvclient.NV_ERR_NO_MEMORY
        assert 4 < held < 40
        assert box.used >= held * 16 * MIB
        space.uvm.close()
        until(lambda: box.used < 32 * MIB)


@pytest.mark.checked
def test_killed_in_the_middle_of_allocating(box):
    """kill -9 at any moment: every charge is dropped."""

    def allocate() -> None:
        gpu = box.client().gpu()
        os.write(ready, b"y")
        while True:
            got = [gpu.alloc_vidmem(9 * MIB)[1] for _ in range(8)]
            [gpu.free(handle) for handle in got]

    wait, ready = os.pipe()
    for delay in (0.0, 0.003, 0.01, 0.03, 0.1, 0.2):
        with child(allocate):
            os.read(wait, 1)
            time.sleep(delay)
        until(lambda: box.used == 0)
    os.close(wait)
    os.close(ready)


def test_a_lower_memsize_refuses_until_below(box):
    with box.client() as rm:
        gpu = rm.gpu()
        first, second = alloc(gpu, 300), alloc(gpu, 300)
        (box.proc / "memsize").write_text(f"{400 * MIB}\n")
        assert gpu.memory()["free"] == 0
        assert gpu.alloc_vidmem(MIB)[0] == nvclient.NV_ERR_NO_MEMORY
        gpu.free(first)
        alloc(gpu, 99)
        gpu.free(second)


# ---- permissions ----


def test_the_log_says_that_a_class_is_of_graphics(box, kernel_log):
    with box.client() as rm:
        gpu = rm.gpu()
        kernel_log.news()
        for cls, what in ((0xC597, "graphics: class"), (0x81, "class")):
            assert rm.alloc(cls, parent=gpu.device)[0] == nvclient.NV_ERR_INVALID_CLASS
            assert f"container {box.dir}: {what} {cls:#x} refused, pid {os.getpid()}" in kernel_log.news()


@pytest.mark.checked
def test_unknown_calls_are_refused_and_counted(box):
    with box.client() as rm:
        gpu = rm.gpu()
        before = box.stat("refused_calls")
        assert gpu.control(0x20809999)[0] == nvclient.NV_ERR_NOT_SUPPORTED
        assert gpu.control(0x20808001)[0] == nvclient.NV_ERR_NOT_SUPPORTED
        assert rm.alloc(0x81, parent=gpu.subdevice)[0] == nvclient.NV_ERR_INVALID_CLASS
        assert rm.alloc(0xC2, parent=gpu.device)[0] == nvclient.NV_ERR_INVALID_CLASS
        assert rm.ctl.raw(nvclient.request(0x5D, 16), bytearray(16)) == errno.EINVAL
        assert box.stat("refused_calls") == before + 5


def test_a_client_is_its_files_own(box):
    with box.client() as one, box.client() as two:
        one_gpu = one.gpu()
        two.handle, own = one.handle, two.handle
        assert two.free(one_gpu.device) != nvclient.NV_OK
        assert two.control(one_gpu.subdevice, nvclient.NV2080_CTRL_CMD_GPU_GET_NAME_STRING, bytes(132))[0] == (
            nvclient.NV_ERR_INVALID_CLIENT
        )
        two.handle = own
        assert one_gpu.name()


def test_tenants_do_not_schedule_themselves(box):
    with Box(B, 512) as other, box.client() as rm, other.client() as foreign:
        group = rm.gpu().space().group()
        channel = group.channel()
        theirs = foreign.gpu().space().group().channel()
        status, after = group.control(nvclient.NVA06C_CTRL_CMD_SET_TIMESLICE, (50_000).to_bytes(8, "little"))
        assert status == nvclient.NV_OK
        status, after = group.control(nvclient.NVA06C_CTRL_CMD_GET_TIMESLICE, bytes(8))
        assert int.from_bytes(after, "little") == 50_000, "remembered"
        assert channel.control(nvclient.NVA06F_CTRL_CMD_RESTART_RUNLIST, b"\1\0")[0] == nvclient.NV_OK

        def disable(client: int, handle: int) -> int:
            params = bytearray(536)
            params[0] = 1
            params[4:8] = (1).to_bytes(4, "little")
            params[24:28] = client.to_bytes(4, "little")
            params[280:284] = handle.to_bytes(4, "little")
            return rm.gpu().control(nvclient.NV2080_CTRL_CMD_FIFO_DISABLE_CHANNELS, bytes(params))[0]

        assert disable(rm.handle, channel.handle) == nvclient.NV_OK
        assert disable(foreign.handle, theirs.handle) == nvclient.NV_ERR_INSUFFICIENT_PERMISSIONS
        # Neither did anything: both still run.
        for each in (channel, theirs):
            each.submit(kernel_ns=100_000)
            each.wait(timeout=60)


# ---- life ----


@pytest.mark.checked
def test_two_containers_started_at_once():
    """Concurrent creates and destroys of many: no id twice, nothing left."""
    errors: list[BaseException] = []

    def live(n: int) -> None:
        try:
            for turn in range(5):
                with Box(f"{n:012x}{turn:04x}", 64) as made, made.client() as rm:
                    alloc(rm.gpu(), 32)
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=live, args=(n,)) for n in range(6)]
    [thread.start() for thread in threads]
    [thread.join() for thread in threads]
    assert not errors
    assert not [line for line in Box.listed() if line.startswith("00000000000")]


def modules() -> set[str]:
    with open("/proc/modules") as file:
        return {line.split()[0] for line in file}


def rmmod(name: str) -> int:
    return subprocess.run(["rmmod", name], capture_output=True).returncode


@pytest.mark.checked
@pytest.mark.alone
def test_modules_are_busy_while_something_is_open(box):
    core = next(name for name in modules() if name.startswith("cgpu_core"))
    with box.client() as rm:
        alloc(rm.gpu(), 8)
        assert rmmod("cgpu_km") and rmmod(core) and rmmod("nvsim")
        assert {"cgpu_km", core, "nvsim"} <= modules()
        command(f"destroy {box.name}")
        assert rmmod("cgpu_km")
        assert "cgpu_km" in modules()
        with pytest.raises(OSError) as caught:
            os.open(f"{box.dev}/nvidiactl", os.O_RDWR)
        assert caught.value.errno in (errno.ENOENT, errno.ENODEV)


def test_simload_runs_unchanged(box):
    got = result(box.simload("--alloc-mib", 100, "--seconds", 2))
    assert got["first_error"] is None
    assert got["total_bytes"] == 1024 * MIB
    assert got["works"] > 100
    got = result(box.simload("--alloc-mib", 2000, "--seconds", 2))
    assert got["first_error"]["status"] == nvclient.NV_ERR_NO_MEMORY


@pytest.mark.checked
@pytest.mark.alone
def test_the_driver_can_be_reloaded_without_containers():
    """Without containers the module holds no reference on the driver; afterwards everything works again."""
    if Box.listed():
        pytest.fail(f"containers left behind: {Box.listed()}")
    policy = PROC / "0/policy"
    policy.write_text("2\n")
    until(lambda: rmmod("nvsim") == 0, step=0.2)
    assert not Path("/dev/nvidiactl").exists()
    with pytest.raises(OSError) as caught:
        command(f"create {B} gpu=0 memsize={64 * MIB}")
    assert caught.value.errno == errno.ENODEV
    insert_nvsim("--profile", os.environ["PROFILE"] or "t4", "--gpus", os.environ["GPUS"] or "1")
    try:
        assert policy.read_text() == "2\n", "the card keeps its settings"
        with Box(B, 64) as made, made.client() as rm:
            alloc(rm.gpu(), 32)
    finally:
        policy.write_text("5\n")


def put(buffer: bytearray, at: int, value: int, size: int = 4) -> None:
    buffer[at : at + size] = value.to_bytes(size, "little")


@pytest.mark.parametrize("flags", [0, 0x4000])
def test_the_heap_call_charges_whatever_handle_comes_out(box, flags):
    """NVOS32 without "the handle is mine": the driver picks another one than the struct names."""
    before = fb_used()
    with box.client() as rm:
        gpu = rm.gpu()
        for n in range(4):
            arg = bytearray(184)
            put(arg, 0, rm.handle)
            put(arg, 4, gpu.device)
            put(arg, 8, 2)  # ALLOC_SIZE
            put(arg, 44, 0x1234 + n)
            put(arg, 52, flags)
            put(arg, 88, 64 * MIB, 8)
            assert rm.ctl.raw(nvclient.request(nvclient.NV_ESC_RM_VID_HEAP_CONTROL, 184), arg) == 0
            assert int.from_bytes(arg[20:24], "little") == nvclient.NV_OK
            assert int.from_bytes(arg[24:32], "little") == 1024 * MIB, "the slice's total"
            assert box.used == fb_used() - before == (n + 1) * 64 * MIB


def test_a_status_the_driver_did_not_write_is_no_success(box):
    """RM_ALLOC of a TSG on a GPU's file ends before it has a status: nothing is filed or charged."""
    with box.client() as rm:
        gpu = rm.gpu()
        node = nvclient.Node("nvidia0", box.dev)
        node.register(rm.ctl)
        params = (ctypes.c_uint8 * 20)()
        params[12] = 1
        arg = bytearray(48)
        for at, value in (
            (0, rm.handle),
            (4, gpu.device),
            (8, 0x7777),
            (12, nvclient.KEPLER_CHANNEL_GROUP_A),
            (32, 20),
        ):
            put(arg, at, value)
        put(arg, 16, ctypes.addressof(params), 8)
        node.raw(nvclient.request(nvclient.NV_ESC_RM_ALLOC, 48), arg)
        assert int.from_bytes(arg[40:44], "little") != nvclient.NV_OK
        assert box.used == 0
        node.close()
