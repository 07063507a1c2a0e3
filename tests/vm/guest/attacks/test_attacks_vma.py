# SPDX-License-Identifier: MIT
"""Hostile tenants through the kernel: system calls that call the driver's file or mapping operations on a backing file
themselves, outside of any ioctl or mmap of our nodes (docs/develop/boundary.md §2).
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import mmap
import os
import resource
import signal
import struct
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from slicebox import MIB, Box, fb_used, until
from slicebox import nvclient as nv

pytestmark = [pytest.mark.checked, pytest.mark.once, pytest.mark.attached]

LIMIT_MIB = 64
POOL = 2 * MIB
MAYMOVE_FIXED = 3

# Numbers of x86-64.
SYS_REMAP_FILE_PAGES = 216
SYS_VMSPLICE = 278
SYS_PROCESS_VM_READV = 310
SYS_USERFAULTFD = 323
SYS_IO_URING_SETUP = 425
SYS_IO_URING_REGISTER = 427
SYS_PIDFD_OPEN = 434
SYS_PROCESS_MADVISE = 440

MADV = {
    "WILLNEED": 3,
    "DONTNEED": 4,
    "REMOVE": 9,
    "DOFORK": 11,
    "MERGEABLE": 12,
    "HUGEPAGE": 14,
    "WIPEONFORK": 18,
    "COLD": 20,
    "PAGEOUT": 21,
    "POPULATE_READ": 22,
    "POPULATE_WRITE": 23,
    "COLLAPSE": 25,
    "GUARD_INSTALL": 102,
}


def call(number: int, *args: int) -> int:
    """0 or more, or minus the errno."""
    got = nv.libc.syscall(ctypes.c_long(number), *(ctypes.c_long(arg) for arg in args))
    return got if got >= 0 else -ctypes.get_errno()


def remap(address: int, length: int) -> int:
    """remap_file_pages(): the kernel maps the file of the mapping at @address again, at the offset @address."""
    return call(SYS_REMAP_FILE_PAGES, address, length, 0, address // mmap.PAGESIZE, 0)


@contextlib.contextmanager
def moved(mapping: nv.Mapping) -> Iterator[int]:
    """The mapping elsewhere: the same file, at an address that is not yet its offset. It is unmapped at the end."""
    there = nv.reserve(mapping.length)
    assert nv.libc.mremap(mapping.addr, mapping.length, mapping.length, MAYMOVE_FIXED, there) == there
    try:
        yield there
    finally:
        assert nv.libc.munmap(there, mapping.length) == 0


def pool(uvm: nv.Uvm) -> nv.Mapping:
    base = nv.reserve(POOL)
    assert uvm.pool(base, POOL) == 0
    return uvm.mapped(base, POOL)


@contextlib.contextmanager
def kinds(box: Box, gpu: nv.Gpu, uvm: nv.Uvm, managed: bool = False) -> Iterator[dict[str, nv.Mapping]]:
    """A mapping of each kind that a tenant can have."""
    _, video = gpu.alloc_vidmem(POOL)
    _, system = gpu.alloc_sysmem(POOL)
    found = {
        "video memory": gpu.map_cpu(video, POOL),
        "system memory": gpu.map_cpu(system, POOL, system=True),
        "pool": pool(uvm),
    }
    if managed:
        found["managed"] = uvm.managed(POOL)
    try:
        yield found
    finally:
        for mapping in found.values():
            mapping.close()
    assert gpu.free(video) == 0 and gpu.free(system) == 0


# ---- remap_file_pages ----


@pytest.mark.parametrize("answer", ["deny", "account"])
def test_no_managed_memory_by_remap_file_pages(box: Box, uvm: nv.Uvm, answer: str, request: pytest.FixtureRequest):
    """A pool is mapped, moved, and its mapping mapped again by the kernel: the driver would make a managed range."""
    if answer == "account":
        request.getfixturevalue("account")
    before = fb_used()
    for _ in range(8):
        mapping = pool(uvm)
        with moved(mapping) as there:
            assert remap(there, POOL) == -errno.ENODEV
        assert uvm.free(mapping.addr, POOL) == 0
    assert fb_used() == before
    assert box.used == 0


def test_no_mapping_is_made_again_by_remap_file_pages(account: None, box: Box, gpu: nv.Gpu, uvm: nv.Uvm):
    """At once, moved, in a child: whatever the kind."""
    with kinds(box, gpu, uvm, managed=True) as mappings:
        used, memory = box.used, fb_used()
        for name, mapping in mappings.items():
            assert remap(mapping.addr, mapping.length) == -errno.ENODEV, name
        pid = os.fork()
        if not pid:
            wrong = 0
            for mapping in mappings.values():  # pools and managed memory are not in a child: no mapping at all
                wrong |= remap(mapping.addr, mapping.length) >= 0
            os._exit(wrong)
        assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
        for mapping in mappings.values():
            with moved(mapping) as there:
                assert remap(there, mapping.length) == -errno.ENODEV
                assert fb_used() <= memory and box.used <= used  # moving managed memory gives it back


# ---- mremap, fork, madvise ----


def test_a_mapping_is_neither_copied_nor_grown(account: None, box: Box, gpu: nv.Gpu, uvm: nv.Uvm):
    """mremap with an old size of 0 makes a second mapping of a shared file, a larger new size a longer one."""
    with kinds(box, gpu, uvm, managed=True) as mappings:
        used, memory = box.used, fb_used()
        for name, mapping in mappings.items():
            for old, new in ((0, mapping.length), (mapping.length, 2 * mapping.length)):
                got = nv.libc.mremap(mapping.addr, old, new, 1, None)
                assert got == ctypes.c_void_p(-1).value, name
        assert (box.used, fb_used()) == (used, memory)


def test_a_child_that_gets_the_mappings_gets_no_memory(account: None, box: Box, gpu: nv.Gpu, uvm: nv.Uvm):
    """MADV_DOFORK hands all of them on. The parent's stay charged, once."""
    with kinds(box, gpu, uvm, managed=True) as mappings:
        for mapping in mappings.values():
            nv.libc.madvise(mapping.addr, mapping.length, MADV["DOFORK"])
        used, memory = box.used, fb_used()
        pid = os.fork()
        if not pid:
            bad = box.used != used
            for mapping in mappings.values():
                bad |= remap(mapping.addr, mapping.length) >= 0
                nv.libc.munmap(mapping.addr, mapping.length // 2)
            os._exit(bad)
        assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
        assert (box.used, fb_used()) == (used, memory)


def test_advice_changes_no_account(account: None, box: Box, gpu: nv.Gpu, uvm: nv.Uvm):
    """Each advice on each kind, by the process and by its pidfd: the kernel may refuse, the account may not move."""
    pidfd = call(SYS_PIDFD_OPEN, os.getpid(), 0)
    assert pidfd >= 0
    with kinds(box, gpu, uvm, managed=True) as mappings:
        used, memory = box.used, fb_used()
        for mapping in mappings.values():
            vector = ctypes.create_string_buffer(struct.pack("QQ", mapping.addr, mapping.length))
            for advice in MADV.values():
                nv.libc.madvise(mapping.addr, mapping.length, advice)
                call(SYS_PROCESS_MADVISE, pidfd, ctypes.addressof(vector), 1, advice, 0)
                assert (box.used, fb_used()) == (used, memory)
    os.close(pidfd)


# ---- other readers and writers of a mapping ----


def test_no_page_comes_by_userfaultfd(account: None, box: Box, gpu: nv.Gpu, uvm: nv.Uvm):
    fd = call(SYS_USERFAULTFD, os.O_CLOEXEC)
    if os.environ["KERNEL"] == "debug":
        assert fd == -errno.ENOSYS, "that kernel has none: no such way"
        return
    assert fd >= 0
    libc_ioctl = nv.libc.ioctl
    api = ctypes.create_string_buffer(struct.pack("QQQ", 0xAA, 0, 0))
    assert libc_ioctl(fd, 0xC018AA3F, ctypes.addressof(api)) == 0
    with kinds(box, gpu, uvm, managed=True) as mappings:
        for name, mapping in mappings.items():
            register = ctypes.create_string_buffer(struct.pack("QQQQ", mapping.addr, mapping.length, 1, 0))
            assert libc_ioctl(fd, 0xC020AA00, ctypes.addressof(register)) == -1, name
            assert ctypes.get_errno() == errno.EINVAL
    os.close(fd)


def test_reading_by_others_changes_no_account(account: None, box: Box, gpu: nv.Gpu, uvm: nv.Uvm):
    """/proc/PID/mem (as ptrace), process_vm_readv, vmsplice, buffers of io_uring."""
    with kinds(box, gpu, uvm, managed=True) as mappings:
        used, memory = box.used, fb_used()
        read, write = os.pipe()
        own = os.open("/proc/self/mem", os.O_RDWR)
        page = ctypes.create_string_buffer(4096)
        params = ctypes.create_string_buffer(120)
        ring = call(SYS_IO_URING_SETUP, 1, ctypes.addressof(params))
        for mapping in mappings.values():
            with contextlib.suppress(OSError):
                os.pwrite(own, os.pread(own, 64, mapping.addr), mapping.addr)
            here = ctypes.create_string_buffer(struct.pack("QQ", ctypes.addressof(page), 4096))
            there = ctypes.create_string_buffer(struct.pack("QQ", mapping.addr, 4096))
            for words in (
                (SYS_PROCESS_VM_READV, os.getpid(), ctypes.addressof(here), 1, ctypes.addressof(there), 1, 0),
                (SYS_VMSPLICE, write, ctypes.addressof(there), 1, 2),
                (SYS_IO_URING_REGISTER, ring, 0, ctypes.addressof(there), 1),
            ):
                call(*words)
            assert (box.used, fb_used()) == (used, memory)
        for fd in (own, read, write, *([ring] if ring >= 0 else [])):
            os.close(fd)


def test_a_core_dump_changes_no_account(account: None, box: Box, gpu: nv.Gpu, uvm: nv.Uvm, tmp_path: Path):
    """A dump reads every mapping of the process, shared ones too."""
    pattern = Path("/proc/sys/kernel/core_pattern")
    before = pattern.read_text()
    pattern.write_text(f"{tmp_path}/core\n")
    try:
        pid = os.fork()
        if not pid:
            resource.setrlimit(resource.RLIMIT_CORE, (256 * MIB, 256 * MIB))
            Path("/proc/self/coredump_filter").write_text("0x7f\n")
            with nv.Client(box.dev) as rm:
                own = rm.gpu(0)
                with kinds(box, own, own.space().uvm, managed=True):
                    os.kill(os.getpid(), signal.SIGQUIT)
        _, status = os.waitpid(pid, 0)
    finally:
        pattern.write_text(before)
    assert os.WCOREDUMP(status) and (tmp_path / "core").stat().st_size > 0
    until(lambda: box.used == 0)


# ---- the backing file itself ----


def backing_links(mapping: nv.Mapping) -> list[Path]:
    """In /proc/PID/map_files, which lists what a mapping's file is."""
    name = f"{mapping.addr:x}-{mapping.addr + mapping.length:x}"
    return [path for path in Path("/proc/self/map_files").iterdir() if path.name == name]


@pytest.mark.parametrize("flags", [os.O_RDWR, os.O_RDONLY, os.O_RDWR | os.O_NONBLOCK])
def test_a_backing_file_is_not_opened_by_a_mapping(account: None, box: Box, gpu: nv.Gpu, uvm: nv.Uvm, flags: int):
    """Not even by root of the host, whom the links let through."""
    with kinds(box, gpu, uvm, managed=True) as mappings:
        for name, mapping in mappings.items():
            links = backing_links(mapping)
            assert len(links) == 1, name
            with pytest.raises(OSError) as caught:
                os.open(links[0], flags)
            assert caught.value.errno == errno.EACCES, name
            fd = os.open(links[0], os.O_PATH)
            with pytest.raises(OSError) as caught:
                os.open(f"/proc/self/fd/{fd}", flags)
            assert caught.value.errno == errno.EACCES, name
            os.close(fd)


REFUSED = (errno.EINVAL, errno.ENODEV, errno.EOPNOTSUPP, errno.ESPIPE)
OTHER: dict[str, Callable[[int, int], object]] = {
    "read": lambda fd, _: os.read(fd, 1),
    "write": lambda fd, _: os.write(fd, b"x"),
    "pread": lambda fd, _: os.pread(fd, 1, 0),
    "fsync": lambda fd, _: os.fsync(fd),
    "ftruncate": lambda fd, _: os.ftruncate(fd, 1),
    "fallocate": lambda fd, _: os.posix_fallocate(fd, 0, 1),
    "splice from": lambda fd, pipe: os.splice(fd, pipe, 1),
    "splice to": lambda fd, pipe: os.splice(pipe, fd, 1),
    "sendfile": lambda fd, pipe: os.sendfile(pipe, fd, 0, 1),
    "copy_file_range": lambda fd, _: os.copy_file_range(fd, fd, 1),
}


@pytest.mark.parametrize("name", ["nvidiactl", "nvidia0", "nvidia-uvm"])
def test_our_files_have_no_other_operation(box: Box, name: str):
    """What a node's file can do is what ckm_front_fops has."""
    read, write = os.pipe()
    os.write(write, b"x")
    fd = os.open(f"{box.dev}/{name}", os.O_RDWR)
    try:
        for word, work in OTHER.items():
            try:
                work(fd, read if word == "splice to" else write)
            except OSError as error:
                assert error.errno in REFUSED, (word, error.errno)
            else:
                pytest.fail(f"{word} succeeded")
    finally:
        for each in (fd, read, write):
            os.close(each)
