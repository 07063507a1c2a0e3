# SPDX-License-Identifier: MIT
"""What nvidia-uvm allocates for its ranges, groups and address spaces: the host's memory, in no memory cgroup."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator

import pytest
from slicebox import MIB, Box, clean_box, until
from slicebox import nvclient as nv

pytestmark = [pytest.mark.checked, pytest.mark.once, pytest.mark.attached]

KIB = 1024
PAGE = 4096
SPACE, RANGE, GROUP = 64 * KIB, 16 * KIB, KIB
RANGES_MAX, GROUPS_MAX = 65536, 16384


@pytest.fixture
def box() -> Iterator[Box]:
    with clean_box(64) as box:
        yield box
        until(lambda: box.stat("host_used_bytes") == 0)


@pytest.fixture
def uvm(box: Box) -> Iterator[nv.Uvm]:
    with nv.Uvm(box.dev) as uvm:
        yield uvm


def used(box: Box) -> int:
    return box.stat("host_used_bytes")


def limit(box: Box, size: int) -> None:
    (box.proc / "host_memsize").write_text(f"{size}\n")


def group(uvm: nv.Uvm) -> tuple[int, nv.UvmRangeGroup]:
    made = nv.UvmRangeGroup()
    return uvm.uvm(nv.UVM_CREATE_RANGE_GROUP, made), made


def test_each_is_charged_while_it_is_there(box: Box, uvm: nv.Uvm):
    assert used(box) == SPACE
    base = nv.reserve(MIB)
    assert uvm.create_range(base, PAGE) == 0
    assert uvm.create_range(base + PAGE, MIB - PAGE) == 0
    assert used(box) == SPACE + 2 * RANGE
    status, made = group(uvm)
    assert (status, used(box)) == (0, SPACE + 2 * RANGE + GROUP)
    assert uvm.free(base, PAGE) == 0
    assert used(box) == SPACE + RANGE + GROUP
    assert uvm.uvm(nv.UVM_DESTROY_RANGE_GROUP, made) == 0
    assert uvm.uvm(nv.UVM_DESTROY_RANGE_GROUP, made) != 0
    assert used(box) == SPACE + RANGE
    with nv.Uvm(box.dev) as other:
        assert used(box) == 2 * SPACE + RANGE
        assert other.initialize() == 0, "the same space once more"
        assert other.create_range(base, PAGE) == 0
        assert group(other)[0] == 0
        assert used(box) == 2 * SPACE + 2 * RANGE + GROUP
    until(lambda: used(box) == SPACE + RANGE)


def test_what_the_driver_refuses_costs_nothing(box: Box, uvm: nv.Uvm):
    base = nv.reserve(MIB)
    assert uvm.create_range(base, MIB) == 0
    before = used(box)
    assert uvm.create_range(base, PAGE) != 0, "an address in use"
    assert uvm.create_range(base + 1, PAGE) != 0
    assert uvm.free(base + PAGE, PAGE) != 0
    assert used(box) == before


def test_over_the_limit_there_is_no_more(box: Box, uvm: nv.Uvm):
    limit(box, MIB)
    at = nv.reserve(MIB)
    refused = box.stat("host_refused_allocs")
    room = (MIB - SPACE) // RANGE
    assert [uvm.create_range(at + n * PAGE, PAGE) for n in range(room)] == [0] * room
    assert uvm.create_range(at + room * PAGE, PAGE) == nv.NV_ERR_NO_MEMORY
    assert group(uvm)[0] == nv.NV_ERR_NO_MEMORY
    assert uvm.pool(nv.reserve(MIB), MIB) == nv.NV_ERR_NO_MEMORY
    with pytest.raises(nv.RmError, match="UVM_INITIALIZE"):
        nv.Uvm(box.dev)
    assert box.stat("host_refused_allocs") == refused + 4
    assert used(box) == SPACE + room * RANGE
    assert uvm.free(at, PAGE) == 0
    assert uvm.create_range(at, PAGE) == 0


def test_without_a_limit_there_is_a_cap_of_groups(box: Box, uvm: nv.Uvm, kernel_log):
    refused = box.stat("refused_calls")
    made = [group(uvm) for _ in range(GROUPS_MAX)]
    assert not any(status for status, _ in made)
    with nv.Uvm(box.dev) as other:
        assert group(other)[0] == nv.NV_ERR_NO_MEMORY
    assert box.stat("refused_calls") == refused + 1
    assert f"container {box.dir}: range group over the cap, uvm call 0x17 refused" in kernel_log.news()
    assert uvm.uvm(nv.UVM_DESTROY_RANGE_GROUP, made[0][1]) == 0
    assert group(uvm)[0] == 0


@pytest.mark.more
def test_without_a_limit_there_is_a_cap_of_ranges(box: Box, uvm: nv.Uvm):
    """Minutes: the simulated driver walks its ranges for each."""
    at = nv.reserve(RANGES_MAX * PAGE)
    assert not any(uvm.create_range(at + n * PAGE, PAGE) for n in range(RANGES_MAX))
    with nv.Uvm(box.dev) as other:
        assert other.create_range(at, PAGE) == nv.NV_ERR_NO_MEMORY


def test_frees_that_race_with_new_ones_leave_none_uncharged(box: Box, uvm: nv.Uvm):
    base = nv.reserve(PAGE)
    stop = threading.Event()

    def change() -> None:
        while not stop.is_set():
            uvm.create_range(base, PAGE)
            uvm.free(base, PAGE)

    threads = [threading.Thread(target=change) for _ in range(3)]
    for thread in threads:
        thread.start()
    with contextlib.ExitStack() as ends:
        ends.callback(lambda: [thread.join() for thread in threads])
        ends.callback(stop.set)
        for _ in range(200):
            box.stat("host_used_bytes")
    uvm.create_range(base, PAGE)
    assert used(box) >= SPACE + RANGE, "there is one, by this call or before"
    assert uvm.free(base, PAGE) == 0
