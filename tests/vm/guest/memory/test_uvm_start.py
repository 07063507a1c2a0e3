# SPDX-License-Identifier: MIT
"""CUDA's needs of uvm before its first kernel, also under uvm = deny: range groups and the semaphore pool."""

from __future__ import annotations

import contextlib
import errno
import mmap
import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from slicebox import MIB, PROC, Box, fb_used, rewriting, until, until_raced
from slicebox import nvclient as nv

pytestmark = [pytest.mark.checked, pytest.mark.once, pytest.mark.attached]

LIMIT_MIB = 64
POOL = 2 * MIB
POOLS_MIB = 256
DEBUGFS = Path("/sys/kernel/debug")


def refused(uvm: nv.Uvm, base: int, length: int) -> bool:
    """Whether a mapping there is EPERM, which libcuda makes CUDA_ERROR_OPERATING_SYSTEM or NOT_SUPPORTED of."""
    with pytest.raises(OSError) as caught:
        uvm.mapped(base, length)
    return caught.value.errno == errno.EPERM


def test_as_libcuda_does_it(box: Box, uvm: nv.Uvm):
    """The group, the pool, its mapping, and nothing for the card."""
    assert (PROC / "0/uvm").read_text() == "deny\n"
    before = fb_used()
    group = nv.UvmRangeGroup()
    assert uvm.uvm(nv.UVM_CREATE_RANGE_GROUP, group) == 0 != group.id
    base = nv.reserve(POOL)
    assert uvm.pool(base, POOL) == 0
    mapping = uvm.mapped(base, POOL)
    mapping.write64(POOL - 8, 7)
    assert mapping.read64(POOL - 8) == 7
    assert fb_used() == before and box.used == 0
    mapping.close()
    assert uvm.free(base, POOL) == 0
    assert uvm.uvm(nv.UVM_DESTROY_RANGE_GROUP, group) == 0


def test_no_other_mapping(uvm: nv.Uvm):
    """Exactly a pool that is there: no part, no more, none before it is made or after it is freed."""
    base = nv.reserve(4 * POOL)
    before = fb_used()
    assert refused(uvm, base, POOL)
    assert uvm.pool(base, POOL) == 0
    assert refused(uvm, base, POOL // 2)
    assert refused(uvm, base + POOL // 2, POOL // 2)
    assert refused(uvm, base, 2 * POOL)
    assert refused(uvm, base + POOL, POOL)
    uvm.mapped(base, POOL).close()
    assert uvm.free(base, POOL) == 0
    assert refused(uvm, base, POOL)
    assert fb_used() == before


def test_no_mapping_of_a_copy_in_another_process(uvm: nv.Uvm):
    base = nv.reserve(POOL)
    assert uvm.pool(base, POOL) == 0
    pid = os.fork()
    if not pid:
        try:
            os._exit(0 if refused(uvm, base, POOL) else 1)
        except BaseException:
            os._exit(2)
    # The driver's own answer to another process comes as EPERM too.
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0


def test_together_no_more_than_the_cap(box: Box, uvm: nv.Uvm, kernel_log):
    """System memory that no limit of the container's shows: 256 MiB for each GPU, over all its files."""
    at = nv.reserve(2 * POOLS_MIB * MIB)
    refused = box.stat("refused_calls")
    assert uvm.pool(at, 1 << 40) == nv.NV_ERR_NO_MEMORY
    assert box.stat("refused_calls") == refused + 1
    line = f"container {box.dir}: semaphore pool over the cap, uvm call 0x44 refused, pid {os.getpid()}"
    assert line in kernel_log.news()
    bases = [at + n * POOL for n in range(POOLS_MIB * MIB // POOL)]
    assert [uvm.pool(base, POOL) for base in bases] == [0] * len(bases)
    assert uvm.pool(at + POOLS_MIB * MIB, POOL) == nv.NV_ERR_NO_MEMORY
    with nv.Uvm(box.dev) as other:
        assert other.pool(at, POOL) == nv.NV_ERR_NO_MEMORY
        assert uvm.free(bases[3], POOL) == 0
        assert uvm.free(bases[3], POOL) != 0
        assert other.pool(at, POOL) == 0
        assert uvm.pool(bases[3], POOL) == nv.NV_ERR_NO_MEMORY
    until(lambda: uvm.pool(bases[3], POOL) == 0)


def test_its_page_tables_are_charged_until_it_is_freed(box: Box, gpu: nv.Gpu, uvm: nv.Uvm):
    """The charge above the page tables included for every container."""
    assert gpu.rm.alloc(0x50A0, gpu.device, nv.MemoryParams(owner=gpu.rm.handle, flags=0x80000, size=1 << 33))[0] == 0
    before = box.used
    base = nv.reserve(64 * MIB)
    assert uvm.pool(base, 64 * MIB) == 0
    assert box.used - before == 12 * 1024 + 33 * 4096
    assert uvm.free(base, 64 * MIB) == 0
    assert box.used == before


def test_more_by_rewriting_the_length(box: Box, gpu: nv.Gpu, uvm: nv.Uvm):
    """Neither a pool over the cap, nor a mapping of a range that is no pool."""
    shared = mmap.mmap(-1, 16384)
    arg = nv.UvmPool.from_buffer(shared)
    before = fb_used()
    big = 2 * POOLS_MIB * MIB
    base = nv.reserve(big)

    def attempt() -> int:
        arg.base, arg.gpu_count = base, 0
        assert uvm.raw(nv.UVM_ALLOC_SEMAPHORE_POOL, arg) == 0
        status = arg.status
        assert refused(uvm, base, big)
        assert uvm.free(base, big) != 0
        if status == 0:
            assert uvm.free(base, POOL) == 0
        return status

    with rewriting(shared, *(length.to_bytes(8, "little") for length in (POOL, big)), at=8):
        until_raced(attempt, {0, nv.NV_ERR_NO_MEMORY})
    assert fb_used() == before and box.used == 0


def test_its_mapping_is_no_managed_memory(box: Box, uvm: nv.Uvm):
    (PROC / "0/uvm").write_text("account\n")
    try:
        base = nv.reserve(POOL)
        assert uvm.pool(base, POOL) == 0
        mapping = uvm.mapped(base, POOL)
        assert box.used == 0
        other = uvm.managed(POOL)
        assert box.used == POOL
        other.close()
        mapping.close()
        until(lambda: box.used == 0)
    finally:
        (PROC / "0/uvm").write_text("deny\n")


@contextlib.contextmanager
def probes_off() -> Iterator[None]:
    """As root can: calls bypass a redirection by a kprobe."""
    if not (DEBUGFS / "kprobes").exists():
        subprocess.run(["mount", "-t", "debugfs", "none", DEBUGFS], check=True)
    switch = DEBUGFS / "kprobes/enabled"
    switch.write_text("0")
    try:
        yield
    finally:
        switch.write_text("1")


@pytest.mark.needs("ftrace")
def test_nothing_while_a_redirection_is_off(box: Box, uvm: nv.Uvm):
    """Not those of nvidia-uvm, which are permanent: no call of a container runs without all of them."""
    base = nv.reserve(2 * POOL)
    before = fb_used()
    with probes_off():
        for call in (uvm.pool, uvm.create_range, uvm.mapped):
            with pytest.raises(OSError) as caught:
                call(base, POOL)
            assert caught.value.errno == errno.EIO
        assert fb_used() == before
    assert uvm.pool(base, POOL) == 0
    uvm.mapped(base, POOL).close()
