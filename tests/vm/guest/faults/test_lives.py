# SPDX-License-Identifier: MIT
"""10,000 lives of containers: nothing grows."""

from __future__ import annotations

from pathlib import Path

import pytest
from failbox import grown, settled
from slicebox import MIB, PROC, Box, command, fb_used, fresh_id, until

pytestmark = pytest.mark.long

LIVES = 10_000
#: So many beside one container that stays: its end detaches the driver, which takes longer than a life.
BESIDE = 250
#: Every nth container is opened and used.
USED = 50
#: Containers that end at a time: each has its instance and its weight until the end is through; a GPU has 20 of both.
ENDING = 8
#: Bytes of the kernel's caches that a life may leave: partly filled pages, no object of 32 bytes.
LEFT = 16


def unreclaimable() -> int:
    """Bytes in the kernel's objects that nothing can be freed of under pressure."""
    rows = dict(line.split(":") for line in Path("/proc/meminfo").read_text().splitlines())
    return int(rows["SUnreclaim"].split()[0]) << 10


def full() -> str:
    """What the GPU has left, for a container that does not fit."""
    left = {name: (PROC / "0" / name).read_text().strip() for name in ("max_inst", "free_weight")}
    lines = Box.listed()
    return f"{left}, {len(lines)} containers, {sum('state=dying' in line for line in lines)} of them dying"


def live(n: int) -> None:
    name = fresh_id()
    if n % USED:
        try:
            command(f"create {name} gpu=0 memsize={64 * MIB} weight=1")
        except OSError as error:
            raise OSError(error.errno, full()) from error
        command(f"destroy {name}")
        return
    with Box(name, 64) as box, box.client() as rm:
        gpu = rm.gpu(0)
        assert gpu.alloc_vidmem(MIB)[0] == 0
        gpu.space().group().channel()


def lives(count: int) -> None:
    for start in range(0, count, BESIDE):
        with Box(fresh_id(), 64):
            for n in range(start, start + BESIDE):
                live(n)
                if n % ENDING == 0:
                    until(lambda: len(Box.listed()) == 1, step=0.002)
    until(lambda: not Box.listed())


def test_ten_thousand_lives() -> None:
    """The slopes of the second half count: what is made once and kept is there by then."""
    before = fb_used()
    lives(LIVES // 2)
    allocated, slab = settled(), unreclaimable()
    lives(LIVES // 2)
    settled()
    more = unreclaimable() - slab
    print(f"{LIVES} lives: {more} bytes more of unreclaimable slab in the second half")
    assert not grown(allocated)
    assert fb_used() == before
    assert more < LIVES // 2 * LEFT
