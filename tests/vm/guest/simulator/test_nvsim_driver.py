# SPDX-License-Identifier: MIT OR GPL-2.0-only
"""nvsim by itself: does it behave as the driver that it simulates? Symbols, files, refusals."""

from __future__ import annotations

import errno
import os
import signal
import subprocess
import time
from pathlib import Path

import nvclient as nv
import pytest

pytestmark = [pytest.mark.bare, pytest.mark.debug_ok]

MIB = 1 << 20
STATE = Path("/proc/driver/nvsim/0/state")
TSGS = Path("/proc/driver/nvsim/0/tsgs")


def fb_used() -> int:
    """Bytes of GPU 0 in use."""
    return int(dict(line.split("=") for line in STATE.read_text().splitlines()[:3])["fb_used"])


def until(condition, seconds: float = 60.0) -> bool:
    """Waits for the effects of a release after close()."""
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        if condition():
            return True
        time.sleep(0.05)
    return condition()


def tsg_lines() -> list[dict[str, str]]:
    return [dict(word.split("=") for word in line.split()) for line in TSGS.read_text().splitlines()]


# ---- symbols ----


def symbols() -> dict[str, str]:
    """Type by name of the module's symbols."""
    found = {}
    for line in Path("/proc/kallsyms").read_text().splitlines():
        words = line.split()
        if words[-1] == "[nvsim]":
            found[words[2]] = words[1]
    return found


def test_exports_are_the_drivers():
    exported = {name.removeprefix("__ksymtab_") for name in symbols() if name.startswith("__ksymtab_")}
    uvm = {"DupMemory", "FreeDupedHandle", "RetainChannel", "ReleaseChannel", "DupAddressSpace"}
    assert exported == {"nvidia_get_rm_ops", "nvidia_p2p_put_pages", *(f"nvUvmInterface{name}" for name in uvm)}


SEALED = [
    "nvidia_get_rm_ops",
    "rm_ioctl",
    "os_memcpy_from_user",
    "os_memcpy_to_user",
    "os_lock_user_pages",
    "os_unlock_user_pages",
    "nv_get_file_private",
    "nv_dma_buf_export",
    "nv_is_gpu_accessible",
    "nv_get_adapter_state",
    "nv_get_dev_minor",
    "nv_set_system_power_state",
    "uvm_va_space_create",
    "uvm_va_space_register_gpu",
    "uvm_api_alloc_semaphore_pool",
    "uvm_api_create_external_range",
    "uvm_api_free",
    "uvm_api_create_range_group",
    "uvm_api_destroy_range_group",
    "uvm_va_range_create_mmap",
]


def test_functions_that_a_probe_looks_for_are_whole():
    """There by their names, and not as a clone of the compiler's that a probe would miss."""
    found = symbols()
    assert [name for name in SEALED if found[name] not in "tT"] == []
    assert [name for name in found if name.partition(".")[0] in SEALED and "." in name] == []


def test_fops_are_static_as_in_the_driver():
    assert symbols()["nvidia_fops"] in "rd"


# ---- views of the kernel and of a process ----


@pytest.mark.parametrize("name", ["version", "params", "gpus/{gpu}/information"])
def test_the_drivers_files_are_for_processes_alone(name):
    """They have no read_iter (nv-procfs-utils.h): neither kernel_read() nor splice() gets anything."""
    gpu = next(Path("/proc/driver/nvidia/gpus").iterdir()).name
    file = Path("/proc/driver/nvidia") / name.format(gpu=gpu)
    assert file.read_text()
    ends = os.pipe()
    with file.open("rb") as opened:
        with pytest.raises(OSError) as caught:
            os.splice(opened.fileno(), ends[1], 4096)
        assert caught.value.errno == errno.EINVAL
    [os.close(end) for end in ends]


def test_a_device_needs_its_node_open():
    """nv_is_gpu_accessible(): an open file of the driver's, of this GPU, in the calling process."""
    with nv.Client() as rm:
        card = rm.cards()[0]
        params = nv.DeviceParams(device_id=0)
        assert rm.alloc(nv.NV01_DEVICE_0, None, params)[0] == nv.NV_ERR_INSUFFICIENT_PERMISSIONS
        with nv.Uvm() as uvm:
            uuid = next(iter(Path("/proc/driver/nvidia/gpus").iterdir())) / "information"
            text = next(line for line in uuid.read_text().splitlines() if line.startswith("GPU UUID:"))
            raw = bytes.fromhex(text.split("GPU-")[1].replace("-", ""))
            assert uvm.register_gpu(raw) == nv.NV_ERR_INSUFFICIENT_PERMISSIONS
            with nv.Node(f"nvidia{card.minor}"):
                assert uvm.register_gpu(raw) == nv.NV_OK
                assert rm.alloc(nv.NV01_DEVICE_0, None, params)[0] == nv.NV_OK


# ---- refusals ----


def test_unknown_things_are_refused():
    with nv.Client() as rm:
        gpu = rm.gpu(0)
        assert gpu.control(0x2080FF01, 8)[0] == nv.NV_ERR_NOT_SUPPORTED
        assert gpu.control(nv.NV2080_CTRL_CMD_GPU_GET_NAME_STRING, 8)[0] == nv.NV_ERR_INVALID_ARGUMENT
        assert rm.alloc(0xBEEF, gpu.device)[0] == nv.NV_ERR_INVALID_CLASS
        assert rm.control(0x1234567, nv.NV0000_CTRL_CMD_GPU_GET_ATTACHED_IDS, 128)[0] == nv.NV_ERR_OBJECT_NOT_FOUND
        assert rm.ctl.raw(nv.request(0x66, 16), bytearray(16)) == errno.EINVAL
        assert rm.ctl.raw(nv.request(nv.NV_ESC_RM_FREE, 12), bytearray(12)) == errno.EINVAL
        assert gpu.node.raw(nv.request(nv.NV_ESC_RM_FREE, 16), bytearray(16)) == errno.EINVAL


def test_privileged_controls_know_their_caller():
    """As a user without rights: NICE and PRIVILEGED are refused, the rest is not."""
    pid = os.fork()
    if not pid:
        code = 1
        try:
            os.setuid(65534)
            with nv.Client() as rm:
                gpu = rm.gpu(0)
                channel = gpu.space().group().channel()
                refused = [
                    rm.control(channel.handle, nv.NVA06F_CTRL_CMD_RESTART_RUNLIST, bytes([1, 0]))[0],
                    rm.control(channel.group.tsg, 0xA06C0107, 4)[0],
                    gpu.control(0x20801119, 516)[0],
                ]
                slice_ok = channel.group.control(nv.NVA06C_CTRL_CMD_SET_TIMESLICE, (2000).to_bytes(8, "little"))[0]
            code = 0 if refused == [nv.NV_ERR_INSUFFICIENT_PERMISSIONS] * 3 and slice_ok == 0 else 2
        finally:
            os._exit(code)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0


# ---- files ----


def test_a_client_belongs_to_its_file():
    with nv.Client() as rm, nv.Client() as other:
        other.handle = rm.handle
        assert other.control(rm.handle, nv.NV0000_CTRL_CMD_GPU_GET_ATTACHED_IDS, 128)[0] == nv.NV_ERR_INVALID_CLIENT
        assert other.free(rm.handle) == nv.NV_ERR_INVALID_CLIENT


def test_register_fd_wants_a_control_file():
    with nv.Ctl() as ctl, nv.Node("nvidia0") as gpu, open("/dev/null") as null:
        for fd in (gpu.fd, null.fileno(), -1, 4095):
            assert gpu.raw(nv.request(nv.NV_ESC_REGISTER_FD, 4), nv.RegisterFd(fd)) == errno.EINVAL
        assert ctl.raw(nv.request(nv.NV_ESC_REGISTER_FD, 4), nv.RegisterFd(ctl.fd)) == errno.EINVAL
        gpu.register(ctl)
        assert gpu.raw(nv.request(nv.NV_ESC_REGISTER_FD, 4), nv.RegisterFd(ctl.fd)) == errno.EINVAL


def test_register_fd_keeps_the_client():
    before = fb_used()
    rm = nv.Client()
    gpu = rm.gpu(0)
    assert gpu.alloc_vidmem(64 * MIB)[0] == 0
    node = os.dup(gpu.node.fd)
    rm.close()
    gpu.node.close()
    time.sleep(0.3)
    assert fb_used() == before + 64 * MIB
    os.close(node)
    assert until(lambda: fb_used() == before)


def test_a_mapping_keeps_the_client():
    before = fb_used()
    rm = nv.Client()
    gpu = rm.gpu(0)
    status, memory = gpu.alloc_vidmem(2 * MIB)
    assert status == 0
    node = gpu.open_node()
    node.register(rm.ctl)
    assert rm.map_memory(node, gpu.device, memory, 2 * MIB)[0] == 0
    mapping = node.mmap(2 * MIB)
    node.close()
    rm.close()
    gpu.node.close()
    time.sleep(0.3)
    mapping.write32(4096, 7)
    assert mapping.read32(4096) == 7
    assert fb_used() == before + 2 * MIB
    mapping.close()
    assert until(lambda: fb_used() == before)


def test_one_mapping_context_per_file():
    with nv.Client() as rm:
        gpu = rm.gpu(0)
        memory = gpu.alloc_vidmem(2 * MIB)[1]
        with gpu.open_node() as node:
            with pytest.raises(OSError):
                node.mmap(2 * MIB)
            node.register(rm.ctl)
            assert rm.map_memory(node, gpu.device, memory, 2 * MIB)[0] == 0
            assert rm.map_memory(node, gpu.device, memory, 2 * MIB)[0] == 0x63
            with pytest.raises(OSError):
                node.mmap(MIB)
            with pytest.raises(OSError):
                node.mmap(2 * MIB, offset=4096)
            node.mmap(2 * MIB).close()


def test_uvm_looks_at_the_file():
    with nv.Uvm() as uvm, nv.Uvm(initialize=False) as second, nv.Ctl() as ctl:
        assert second.uvm(nv.UVM_MM_INITIALIZE, nv.UvmMmInitialize(ctl.fd)) == nv.NV_ERR_INVALID_ARGUMENT
        assert second.mm_initialize(uvm) == 0
        assert second.mm_initialize(uvm) == nv.NV_ERR_INVALID_STATE
        with nv.Uvm(flags=nv.UVM_INIT_FLAGS_MULTI_PROCESS_SHARING_MODE) as shared, nv.Uvm(initialize=False) as third:
            assert third.mm_initialize(shared) == nv.NV_WARN_NOTHING_TO_DO


def test_a_space_without_its_process_takes_no_gpu():
    """As measured on an H100 with driver 580: REGISTER_GPU_VASPACE fails until UVM_MM_INITIALIZE."""
    with nv.Client() as rm:
        gpu = rm.gpu(0)
        vaspace = rm.alloc(nv.FERMI_VASPACE_A, gpu.device, nv.VaspaceParams(flags=nv.VASPACE_FLAGS))[1]
        with nv.Uvm() as uvm, nv.Uvm(initialize=False) as mm:
            assert uvm.register_gpu(gpu.uuid) == 0
            assert uvm.register_vaspace(gpu.uuid, rm, vaspace) == 0x5D
            assert mm.mm_initialize(uvm) == 0
            assert uvm.register_vaspace(gpu.uuid, rm, vaspace) == 0
            assert uvm.unregister_vaspace(gpu.uuid) == 0
            mm.close()
            assert uvm.register_vaspace(gpu.uuid, rm, vaspace) == 0x5D
    with pytest.raises(PermissionError):
        os.open("/dev/nvidia-uvm-tools", os.O_RDWR)


@pytest.mark.parametrize("whole", [True, False], ids=["file", "unregister"])
def test_a_space_that_ends_stops_its_channels_before_it_unmaps(whole):
    """uvm_va_space_destroy() and remove_gpu_va_space() of nvidia-uvm: what ends is no fault, which others hear of."""
    with nv.Client() as rm:
        space = rm.gpu(0).space()
        group = space.group()
        channel = group.channel(entries=4096)
        assert space.bind(channel) == 0
        channel.submit(kernel_ns=100_000, count=4000)
        assert until(lambda: channel.reap() > 10)
        if whole:
            space.mm.close()
            space.uvm.close()
        else:
            assert space.uvm.unregister_vaspace(space.gpu.uuid) == 0
        done = channel.reap()
        time.sleep(0.1)
        assert channel.reap() == done < 4000
        assert group.fault() == 0
        assert group.enable() == 0


def test_unload_is_refused_while_a_file_is_open():
    with nv.Ctl():
        done = subprocess.run(["rmmod", "nvsim"], capture_output=True, text=True)
        assert done.returncode != 0
        assert "in use" in done.stderr


# ---- a process that is killed ----


def test_sigkill_leaves_nothing_behind():
    before = fb_used()
    read, write = os.pipe()
    pid = os.fork()
    if not pid:
        rm = nv.Client()
        gpu = rm.gpu(0)
        channels = [gpu.space().group().channel() for _ in range(3)]
        gpu.alloc_vidmem(256 * MIB)
        for channel in channels:
            channel.submit(kernel_ns=50_000_000, count=60)
        os.write(write, b"x")
        time.sleep(60)
        os._exit(0)
    os.close(write)  # one that dies early is the end of the pipe
    assert os.read(read, 1)
    time.sleep(0.1)
    assert fb_used() > before
    os.kill(pid, signal.SIGKILL)
    os.waitpid(pid, 0)
    assert until(lambda: fb_used() == before)
    assert all("ended" in line for line in tsg_lines() if line["pid"] == str(pid))
