# SPDX-License-Identifier: MIT
"""The module over releases of the simulated driver that its own calls have to be made differently for."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from slicebox import Box, nvsim_as, until

pytestmark = [pytest.mark.once]


def external() -> int:
    """Kernel modules that the driver counts as openers of the GPU which do not know of a reset."""
    return int(re.search(r"external=(-?\d+)", Path("/proc/driver/nvsim/0/state").read_text())[1])


@pytest.mark.parametrize("release", ["580.105.08", "595.45.04"])
def test_the_driver_counts_the_module_while_it_has_the_gpu(release: str):
    """From 595 on open_gpu and close_gpu have an argument for it: left out, it is what the register held."""
    with nvsim_as("t4", version=release):
        assert external() == 0
        for _ in range(3):
            with Box("b5" * 32, 256) as box, box.client() as client:
                status, memory = client.gpu(0).alloc_vidmem(2 << 20)
                assert status == 0 and box.used == 2 << 20
                assert external() == 1
                assert client.gpu(0).free(memory) == 0
            until(lambda: external() == 0)
