# SPDX-License-Identifier: MIT
"""The memory of a process that is suspended, taken again: cuda-checkpoint in the calls that it makes for it.

A suspended process has nothing of the GPU; what it had is an image in the host's memory. NVIDIA's own program and
libcuda do it in tests/vm/guest/cuda/test_cuda_ways.py, where that program is there.
"""

from __future__ import annotations

import re
from collections.abc import Callable

import pytest
from slicebox import MIB, Box, fb_used, until
from slicebox import nvclient as nv

pytestmark = [pytest.mark.once, pytest.mark.attached]

LIMIT_MIB, PIECE_MIB, PIECES = 256, 64, 3
SMALLER_MIB = 128


class Image:
    """The pieces of a process, which are there or suspended; a piece holds its number."""

    def __init__(self, box: Box) -> None:
        self.rm = box.client()
        self.gpu = self.rm.gpu()
        self.pieces: list[int] = []

    def restore(self) -> int:
        """The first status that is not 0; nothing stays of what was taken until then."""
        for number in range(PIECES):
            status, piece = self.gpu.alloc_vidmem(PIECE_MIB * MIB)
            if status:
                self.suspend()
                return status
            self.gpu.map_cpu(piece, 4096).write64(0, number)
            self.pieces.append(piece)
        return 0

    def suspend(self) -> None:
        for piece in self.pieces:
            assert self.gpu.free(piece) == 0
        self.pieces = []


def smaller(box: Box, other: nv.Gpu) -> Callable[[], None]:
    """The slice has been made smaller meanwhile; returns what undoes it."""
    (box.proc / "memsize").write_text(f"{SMALLER_MIB * MIB}\n")

    def end() -> None:
        (box.proc / "memsize").write_text(f"{LIMIT_MIB * MIB}\n")

    return end


def taken(box: Box, other: nv.Gpu) -> Callable[[], None]:
    """Another process of the container has taken the room."""
    status, memory = other.alloc_vidmem(SMALLER_MIB * MIB)
    assert status == 0
    seen = other.map_cpu(memory, 4096)
    seen.write64(0, 0x5EED)

    def end() -> None:
        assert seen.read64(0) == 0x5EED, "what it holds is as it was"
        assert other.free(memory) == 0

    return end


@pytest.mark.parametrize("happens", [smaller, taken])
def test_an_image_that_no_longer_fits(happens: Callable[[Box, nv.Gpu], Callable[[], None]], kernel_log) -> None:
    """It is refused with a sentence, costs nobody anything, and fits again when there is room again."""
    before = fb_used()
    with Box("1a" * 32, LIMIT_MIB) as box, box.client() as rm:
        other, image = rm.gpu(), Image(box)
        assert image.restore() == 0
        assert box.used == PIECES * PIECE_MIB * MIB
        image.suspend()
        assert box.used == 0
        undo = happens(box, other)
        used = box.used
        kernel_log.news()
        assert image.restore() == nv.NV_ERR_NO_MEMORY
        limit = int((box.proc / "memsize").read_text())
        full = used + (limit - used) // (PIECE_MIB * MIB) * PIECE_MIB * MIB
        assert re.search(f"GPU 0: {PIECE_MIB * MIB} bytes refused, {full} of {limit} in use", kernel_log.news())
        assert (box.used, box.stat("refused_allocs")) == (used, 1)
        undo()
        assert image.restore() == 0
        assert box.used == PIECES * PIECE_MIB * MIB
        image.rm.close()
    until(lambda: fb_used() == before)
