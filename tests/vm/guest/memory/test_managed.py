# SPDX-License-Identifier: MIT
"""Managed memory (cudaMallocManaged): refused under uvm = deny, charged under uvm = account."""

from __future__ import annotations

import errno
import mmap
import os
import signal
import threading

import pytest
from slicebox import MIB, PROC, Box, child, command, fb_used, fresh_id, until
from slicebox import nvclient as nv

pytestmark = [pytest.mark.once, pytest.mark.attached]

BLOCK = 2 * MIB
LIMIT_MIB = 64
MADV_DOFORK = 11


def is_charged(box: Box, mib: int) -> None:
    """Waits until exactly this is charged: freed memory is counted later."""
    until(lambda: box.used == mib * MIB)


# ---- deny ----


def test_denied_unless_told(box: Box, gpu: nv.Gpu, uvm: nv.Uvm):
    assert (PROC / "0/uvm").read_text() == "deny\n"
    with pytest.raises(OSError) as caught:
        uvm.managed(BLOCK)
    assert caught.value.errno == errno.EPERM
    for call in (uvm.prefer, uvm.migrate):
        with pytest.raises(OSError) as caught:
            call(gpu.uuid, nv.reserve(BLOCK), BLOCK)
        assert caught.value.errno == errno.EINVAL
    assert box.stat("refused_calls") >= 2
    assert box.used == 0


@pytest.mark.parametrize("word", ["", "Account", "account ", "account\n\n", "1", "deny account", "a" * 100])
def test_the_node_takes_two_words(word: str):
    with pytest.raises(OSError) as caught:
        (PROC / "0/uvm").write_text(word)
        assert not word, "an empty write does not reach the module"
        raise OSError(errno.EINVAL, "")
    assert caught.value.errno == errno.EINVAL
    assert (PROC / "0/uvm").read_text() == "deny\n"


def test_no_address_space_has_hmm(box: Box, uvm: nv.Uvm):
    """For every flag of the tenant; a concurrent process on the bare driver has it."""
    assert not uvm.pageable()
    assert uvm.initialize(0) == 0
    assert uvm.initialize(1) == nv.NV_ERR_INVALID_ARGUMENT
    with nv.Uvm(box.dev, flags=1) as other:
        assert not other.pageable()
        assert other.initialize(1) == 0
    with nv.Uvm() as bare:
        assert bare.pageable()


def test_a_file_without_a_space_takes_no_calls(box: Box, account: None):
    with nv.Uvm(box.dev, initialize=False) as uvm:
        assert uvm.create_range(nv.reserve(BLOCK), BLOCK) == nv.NV_ERR_ILLEGAL_ACTION
        with pytest.raises(OSError) as caught:
            uvm.managed(BLOCK)
        assert caught.value.errno == errno.EBADFD
    assert box.used == 0


# ---- account ----


def test_charged_while_it_is_mapped(account: None, box: Box, gpu: nv.Gpu, uvm: nv.Uvm):
    mapping = uvm.managed(10 * MIB)
    assert box.used == box.stat("used_managed_bytes") == 10 * MIB
    assert box.meminfo() == ((LIMIT_MIB - 10) * MIB, {os.getpid(): 10 * MIB})
    assert gpu.memory()["free"] == (LIMIT_MIB - 10) * MIB
    assert uvm.prefer(gpu.uuid, mapping.addr, 10 * MIB) == uvm.migrate(gpu.uuid, mapping.addr, 10 * MIB) == 0
    mapping.write64(9 * MIB, 7)
    assert mapping.read64(9 * MIB) == 7
    mapping.close()
    is_charged(box, 0)


def test_small_ones_cost_the_block_they_are_in(account: None, box: Box, uvm: nv.Uvm):
    at = nv.reserve(4 * BLOCK)
    with_one = uvm.managed(64 << 10, at)
    assert box.used == BLOCK
    across = uvm.managed(128 << 10, at + 2 * BLOCK - (64 << 10))
    assert box.used == 3 * BLOCK
    with_one.close()
    across.close()
    is_charged(box, 0)


@pytest.mark.checked
def test_over_the_limit_nothing_is_mapped(account: None, box: Box, gpu: nv.Gpu, uvm: nv.Uvm):
    before = fb_used()
    kept = uvm.managed(40 * MIB)
    with pytest.raises(OSError) as caught:
        uvm.managed(26 * MIB)
    assert caught.value.errno == errno.ENOMEM
    assert gpu.alloc_vidmem(26 * MIB)[0] == nv.NV_ERR_NO_MEMORY
    assert (box.used, fb_used() - before) == (40 * MIB, 40 * MIB)
    status, memory = gpu.alloc_vidmem(24 * MIB)
    assert status == 0
    with pytest.raises(OSError):
        uvm.managed(4096)
    gpu.free(memory)
    kept.close()
    is_charged(box, 0)


def test_what_the_driver_refuses_is_not_charged(account: None, box: Box, uvm: nv.Uvm):
    at = nv.reserve(4 * MIB)
    with pytest.raises(OSError):  # address and offset differ
        nv.Mapping(uvm, 4 * MIB, at + 4096, mmap.PROT_READ | mmap.PROT_WRITE, at)
    with pytest.raises(OSError):  # not writable
        nv.Mapping(uvm, 4 * MIB, at, mmap.PROT_READ, at)
    assert box.used == 0


@pytest.mark.checked
def test_given_back_part_by_part(account: None, box: Box, uvm: nv.Uvm):
    mapping = uvm.managed(12 * MIB)
    mapping.unmap(4 * MIB, 2 * MIB)  # a hole
    is_charged(box, 10)
    mapping.unmap(11 * MIB, MIB)  # half a block stays a block
    nv.libc.mprotect(mapping.addr, 2 * MIB, mmap.PROT_READ)  # splits, frees nothing
    mapping.unmap(8 * MIB, 2 * MIB)
    is_charged(box, 8)
    assert mapping.read32(0) == 0
    mapping.unmap(0, 4 * MIB)
    is_charged(box, 4)
    mapping.close()
    is_charged(box, 0)


def test_a_hole_mapped_again_is_charged_once(account: None, box: Box, uvm: nv.Uvm):
    mapping = uvm.managed(12 * MIB)
    for _ in range(20):
        mapping.unmap(4 * MIB, 4 * MIB)
        inner = uvm.managed(4 * MIB, mapping.addr + 4 * MIB)
        is_charged(box, 12)
        inner.unmap(0, 2 * MIB)
        is_charged(box, 10)
        again = uvm.managed(2 * MIB, inner.addr)
        is_charged(box, 12)
        del again
    nv.libc.munmap(mapping.addr, 12 * MIB)  # any mapping that is there by now
    is_charged(box, 0)


@pytest.mark.checked
def test_mapped_over_at_once(account: None, box: Box, uvm: nv.Uvm):
    """MAP_FIXED takes the old mapping away in the same call."""
    at = nv.reserve(16 * MIB)
    for _ in range(20):
        uvm.managed(16 * MIB, at)
        until(lambda: box.used == 16 * MIB)
    nv.libc.munmap(at, 16 * MIB)
    is_charged(box, 0)


def test_unmapped_and_at_once_wanted_again(account: None, box: Box, gpu: nv.Gpu, uvm: nv.Uvm):
    """The recount of the remaining memory takes time; no allocation fails with "out of memory" meanwhile."""
    at = nv.reserve(40 * MIB)
    for _ in range(20):
        mapping = uvm.managed(40 * MIB, at)
        uvm.managed(40 * MIB, at)  # over itself
        mapping.close()
        status, memory = gpu.alloc_vidmem(40 * MIB)
        assert status == 0
        gpu.free(memory)
    assert box.stat("refused_allocs") == 0


def test_shrinking_gives_back_and_moving_too(account: None, box: Box, uvm: nv.Uvm):
    mapping = uvm.managed(8 * MIB)
    assert nv.libc.mremap(mapping.addr, 8 * MIB, 4 * MIB, 0, None) == mapping.addr
    is_charged(box, 4)
    there = nv.reserve(8 * MIB)
    maymove_fixed = 1 | 2
    assert nv.libc.mremap(mapping.addr, 4 * MIB, 4 * MIB, maymove_fixed, there) == there
    is_charged(box, 0)  # the driver keeps nothing behind a mapping that moved
    nv.libc.munmap(there, 4 * MIB)


def test_dontneed_gives_nothing_back(account: None, box: Box, uvm: nv.Uvm):
    mapping = uvm.managed(4 * MIB)
    mapping.write32(0, 3)
    madv_dontneed = 4
    nv.libc.madvise(mapping.addr, 4 * MIB, madv_dontneed)
    assert mapping.read32(0) == 3
    uvm.managed(2 * MIB).close()  # one recount later
    is_charged(box, 4)
    mapping.close()
    is_charged(box, 0)


def test_a_child_has_no_part_in_it(account: None, box: Box, uvm: nv.Uvm):
    mapping = uvm.managed(4 * MIB)
    nv.libc.madvise(mapping.addr, 4 * MIB, MADV_DOFORK)
    with child(lambda: None):
        is_charged(box, 4)
        mapping.close()
        is_charged(box, 0)


@pytest.mark.checked
@pytest.mark.parametrize("end", ["exit", "kill", "exec"])
def test_given_back_when_the_process_ends(account: None, box: Box, end: str):
    go, wait = os.pipe()[::-1]

    def work() -> None:
        box.client().gpu(0).space().uvm.managed(20 * MIB)
        os.read(wait, 1)
        if end == "exec":
            os.execv("/bin/sleep", ["sleep", "60"])
        if end == "exit":
            os._exit(0)

    with child(work) as pid:
        until(lambda: box.used == 20 * MIB)
        os.write(go, b"x")
        if end == "kill":
            os.kill(pid, signal.SIGKILL)
        is_charged(box, 0)
    os.close(go)
    os.close(wait)


@pytest.mark.checked
def test_kept_while_another_process_has_the_file(account: None, box: Box):
    """Its address space is gone, its file is not: nothing is uncharged too early."""
    file = nv.Uvm(box.dev, initialize=False)

    def work() -> None:
        file.initialize()
        file.managed(6 * MIB)

    with child(work):
        until(lambda: box.used == 6 * MIB)
    assert box.used == 6 * MIB
    file.close()
    is_charged(box, 0)


def test_back_to_deny_keeps_what_is_there(account: None, box: Box, uvm: nv.Uvm):
    mapping = uvm.managed(4 * MIB)
    (PROC / "0/uvm").write_text("deny\n")
    with pytest.raises(OSError):
        uvm.managed(2 * MIB)
    assert box.used == 4 * MIB
    mapping.close()
    is_charged(box, 0)


@pytest.mark.checked
def test_threads_that_map_and_unmap(account: None, box: Box, gpu: nv.Gpu, uvm: nv.Uvm):
    """The charge is never less than the memory in use on the card; nothing is left at the end."""
    before, errors = fb_used(), []

    def churn(n: int) -> None:
        try:
            for turn in range(60):
                try:
                    mapping = uvm.managed((2 + 2 * ((n + turn) % 4)) * MIB)
                except OSError as error:
                    assert error.errno == errno.ENOMEM
                    continue
                mapping.unmap(0, MIB)
                mapping.close()
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=churn, args=(n,)) for n in range(4)]
    [thread.start() for thread in threads]
    while any(thread.is_alive() for thread in threads):
        assert fb_used() - before <= LIMIT_MIB * MIB
    [thread.join() for thread in threads]
    assert not errors
    is_charged(box, 0)
    assert fb_used() == before


@pytest.mark.gpus(2)
def test_charged_on_every_gpu_that_may_hold_it(account: None):
    """uvm may put a page on any of them; each has to have it allowed."""
    name = fresh_id()
    command(f"create {name} gpu=0,1 memsize={LIMIT_MIB * MIB},{LIMIT_MIB * MIB}")
    try:
        used = [PROC / str(n) / name[:12] / "meminfo" for n in (0, 1)]
        with nv.Uvm(f"/dev/cgpu/{name[:12]}") as uvm:
            with pytest.raises(OSError):
                uvm.managed(4 * MIB)
            (PROC / "1/uvm").write_text("account\n")
            mapping = uvm.managed(4 * MIB)
            assert [path.read_text().split("\n")[0] for path in used] == [f"Free: {(LIMIT_MIB - 4) * MIB}"] * 2
            mapping.close()
            until(lambda: all(path.read_text() == f"Free: {LIMIT_MIB * MIB}\n" for path in used))
    finally:
        (PROC / "1/uvm").write_text("deny\n")
        command(f"destroy {name}")
