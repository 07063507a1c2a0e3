# SPDX-License-Identifier: MIT OR GPL-2.0-only
"""nvsim by itself: which release it is, and that sizes are those of its branch and no others."""

from __future__ import annotations

import ctypes
import mmap
import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

import nvclient as nv
import pytest
from slicebox import load_nvsim

REPO = Path(__file__).resolve().parents[4]

pytestmark = [pytest.mark.bare]

MODULE = Path(os.environ.get("CGPU_MODULES", "")) / "nvsim.ko"  # only the machine has one
OK, INVALID_ARGUMENT = 0, 0x1F
ILLEGAL_ACTION, NOT_FOUND, ADDRESS_IN_USE, INVALID_ADDRESS = 0x16, 0x57, 0x68, 0x1E
MIB2 = 2 << 20

# Of each release: control on its object, size. From ctrl*.h of the public driver.
SIZES = {
    "535.261.03": {0x214: 256, 0x800292: 644, 0x20800102: 516, 0x20800170: 252, 0x20801303: 436, 0x20802A0A: 68},
    "550.163.01": {0x214: 256, 0x800292: 700, 0x20800102: 524, 0x20800170: 260, 0x20801303: 444, 0x20802A0A: 136},
    "555.58.02": {0x214: 256, 0x800292: 404, 0x20800102: 524, 0x20800170: 260, 0x20801303: 444, 0x20802A0A: 136},
    "580.105.08": {0x214: 384, 0x800292: 804, 0x20800102: 564, 0x20800170: 340, 0x20801303: 1028, 0x20802A0A: 136},
}
VASPACE = {"535.261.03": 48, "550.163.01": 48, "555.58.02": 48, "580.105.08": 56}
POOL = {"535.261.03": 1184, "550.163.01": 9248, "555.58.02": 9248, "580.105.08": 9248}


@pytest.fixture(params=sorted(SIZES), scope="module")
def release(request) -> Iterator[str]:
    """nvsim as that release, and as it was afterwards."""
    load_nvsim(version=request.param)
    yield request.param
    subprocess.run(["rmmod", "nvsim"], check=True)
    subprocess.run(["sh", Path(os.environ["CGPU_RUN"], "nvsim")], check=True)


def objects(rm: nv.Client) -> tuple[int, int]:
    """A device and a subdevice of GPU 0; the driver requires the GPU's node open in this process."""
    rm.hold(nv.Node("nvidia0"))
    status, device = rm.alloc(nv.NV01_DEVICE_0, None, nv.DeviceParams(device_id=0))
    assert status == OK
    status, subdevice = rm.alloc(nv.NV20_SUBDEVICE_0, device, nv.SubdeviceParams(0))
    assert status == OK
    return device, subdevice


def test_the_release_is_what_was_asked_for(release: str) -> None:
    with nv.Ctl() as ctl:
        assert ctl.version() == (1, release)
    assert release in Path("/proc/driver/nvidia/version").read_text()


def test_a_size_of_another_branch_is_refused(release: str) -> None:
    rm = nv.Client()
    device, subdevice = objects(rm)
    every = {cmd: {sizes[cmd] for sizes in SIZES.values()} for cmd in SIZES[release]}
    for cmd, sizes in every.items():
        target = rm.handle if cmd < 0x10000 else device if cmd >> 16 == 0x80 else subdevice
        for size in sizes | {SIZES[release][cmd] - 4, SIZES[release][cmd] + 4}:
            wanted = OK if size == SIZES[release][cmd] else INVALID_ARGUMENT
            assert rm.control(target, cmd, bytearray(size))[0] == wanted, f"{cmd:#x} of {size} bytes"
    rm.close()


def test_a_class_has_the_size_of_its_branch_whatever_the_call_names(release: str) -> None:
    rm = nv.Client()
    device, _ = objects(rm)
    for size in {*VASPACE.values(), VASPACE[release] - 8}:
        wanted = OK if size >= VASPACE[release] else INVALID_ADDRESS
        for named in (0, 8, size, 4096):
            status, space = alloc(rm, device, nv.FERMI_VASPACE_A, last_of_its_page(size), named)
            assert status == wanted, f"VA space of {size} bytes, {named} in the call"
            if status == OK:
                assert rm.free(space, device) == OK
    rm.close()


def last_of_its_page(size: int) -> ctypes.Array[ctypes.c_char]:
    """Zeros that end where nothing can be read."""
    memory = mmap.mmap(-1, 2 * mmap.PAGESIZE)
    zeros = (ctypes.c_char * size).from_buffer(memory, mmap.PAGESIZE - size)
    after = ctypes.c_void_p(ctypes.addressof(zeros) + size)
    assert ctypes.CDLL(None).mprotect(after, ctypes.c_size_t(mmap.PAGESIZE), 0) == 0
    return zeros


def alloc(rm: nv.Client, parent: int, cls: int, params: ctypes.Array[ctypes.c_char], named: int) -> tuple[int, int]:
    """RM_ALLOC with another size of the parameters in the call than they have: (status, handle)."""
    arg = nv.Alloc(root=rm.handle, parent=parent, class_id=cls, params=ctypes.addressof(params), params_size=named)
    rm.ctl.call(nv.NV_ESC_RM_ALLOC, arg)
    return arg.status, arg.handle


def test_the_share_policy_is_12_bytes_and_inherited() -> None:
    """0xd04 is the client's policy, 0xd06 one object's: a dup by another process goes by them."""
    rm = nv.Client()
    policy = (0).to_bytes(4, "little") + (1).to_bytes(4, "little") + b"\1\0\0\0"  # to all
    assert rm.control(rm.handle, 0xD04, bytearray(16))[0] == INVALID_ARGUMENT
    assert rm.control(rm.handle, 0xD06, bytearray(12))[0] == INVALID_ARGUMENT
    assert rm.control(rm.handle, 0xD04, bytearray(policy))[0] == OK
    assert rm.control(rm.handle, 0xD06, bytearray(rm.handle.to_bytes(4, "little") + policy))[0] == OK
    rm.close()


def pool_call(uvm: nv.Uvm, size: int, base: int, length: int) -> int:
    """UVM_ALLOC_SEMAPHORE_POOL without GPUs of its own: its rmStatus."""
    arg = bytearray(base.to_bytes(8, "little") + length.to_bytes(8, "little") + bytes(size - 16))
    assert uvm.raw(68, arg) == 0
    return int.from_bytes(arg[size - 8 : size - 4], "little")


def free(uvm: nv.Uvm, base: int, length: int) -> int:
    arg = bytearray(base.to_bytes(8, "little") + length.to_bytes(8, "little") + bytes(8))
    assert uvm.raw(34, arg) == 0
    return int.from_bytes(arg[16:20], "little")


def test_a_pool_is_mapped_once_at_its_own_place(release: str) -> None:
    """The mmap() behind the ioctl maps the pool; with a mapping it cannot be freed."""
    base = 0x2_0000_0000
    with nv.Uvm() as uvm:
        assert pool_call(uvm, POOL[release], base, MIB2) == OK
        assert pool_call(uvm, POOL[release], base, MIB2) == ADDRESS_IN_USE
        half = map_at(uvm.fd, base, MIB2 // 2)
        assert half is None, "half of a pool was mapped"
        assert map_at(uvm.fd, base, MIB2) == base
        assert free(uvm, base, MIB2) == INVALID_ARGUMENT
        unmap(base, MIB2)
        assert free(uvm, base, MIB2 // 2) == INVALID_ADDRESS
        assert free(uvm, base, MIB2) == OK
        assert free(uvm, base, MIB2) == INVALID_ADDRESS


def map_at(fd: int, base: int, length: int) -> int | None:
    """mmap() of a uvm file at the address that it is about; None where it is refused."""
    libc = ctypes.CDLL(None, use_errno=True)
    libc.mmap.restype = ctypes.c_void_p
    libc.mmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t, *[ctypes.c_int] * 3, ctypes.c_long]
    flags = mmap.MAP_SHARED | 0x10  # MAP_FIXED
    at = libc.mmap(base, length, mmap.PROT_READ | mmap.PROT_WRITE, flags, fd, base)
    return None if at == ctypes.c_void_p(-1).value else at


def unmap(base: int, length: int) -> None:
    libc = ctypes.CDLL(None, use_errno=True)
    libc.munmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t]
    assert libc.munmap(base, length) == 0


def group_call(uvm: nv.Uvm, nr: int, number: int) -> tuple[int, int]:
    """UVM_CREATE_RANGE_GROUP and UVM_DESTROY_RANGE_GROUP: (rmStatus, the group's number)."""
    arg = bytearray(number.to_bytes(8, "little") + bytes(8))
    assert uvm.raw(nr, arg) == 0
    return int.from_bytes(arg[8:12], "little"), int.from_bytes(arg[:8], "little")


def test_range_groups_are_counted_by_space() -> None:
    with nv.Uvm() as uvm, nv.Uvm() as other:
        assert group_call(uvm, 23, 0) == (OK, 1)
        assert group_call(uvm, 23, 0) == (OK, 2)
        assert group_call(other, 24, 1)[0] == NOT_FOUND
        assert group_call(uvm, 24, 1)[0] == OK
        assert group_call(uvm, 24, 1)[0] == NOT_FOUND
    with nv.Uvm(initialize=False) as uvm:
        assert group_call(uvm, 23, 0)[0] == ILLEGAL_ACTION


def test_a_release_that_is_not_in_the_tables_is_refused() -> None:
    subprocess.run(["rmmod", "nvsim"], check=True)
    done = subprocess.run(["insmod", MODULE, "version=550.54.14"], capture_output=True, text=True)
    subprocess.run(["sh", Path(os.environ["CGPU_RUN"], "nvsim")], check=True)
    assert done.returncode != 0 and "nvalid" in done.stderr
