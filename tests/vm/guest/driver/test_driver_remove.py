# SPDX-License-Identifier: MIT
"""A card is taken from NVIDIA's driver while containers run, and comes again.

By unbind and bind: the driver's part is the one that a hotplug slot or `nvidia-smi drain -m 1` reaches too.
"""

from __future__ import annotations

import errno
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from driver_box import compute_and_fill
from slicebox import PROC, Box, until

pytestmark = [pytest.mark.driver_two, pytest.mark.usefixtures("no_cards")]

NAMES = ("a" * 64, "b" * 64)
LIMIT_MIB = 1024
DRIVER = Path("/sys/bus/pci/drivers/nvidia")
GOES_S, STAYS_S = 60, 3


def address(number: int) -> str:
    """Domain, bus, slot and function."""
    return (PROC / str(number) / "pci").read_text().strip()


def works(box: Box) -> None:
    with box.client() as client:
        compute_and_fill(client, LIMIT_MIB)


@pytest.fixture
def second() -> Iterator[str]:
    """The address of the second card, which the driver has again afterwards."""
    where = address(1)
    yield where
    until(lambda: (DRIVER / where).exists() or bind(where), timeout=GOES_S)


def bind(where: str) -> bool:
    (DRIVER / "bind").write_text(where)
    return (DRIVER / where).exists()


@pytest.mark.parametrize("used", [0, 1])
def test_a_card_that_is_taken_waits_for_the_containers(second: str, used: int):
    """The driver's rule for whatever holds a card open. cgpu_km holds all of them while there is a container."""
    with Box(NAMES[0], LIMIT_MIB, gpu=used) as box:
        works(box)
        removal = subprocess.Popen(["sh", "-c", f"echo {second} >{DRIVER}/unbind"])
        time.sleep(STAYS_S)
        assert removal.poll() is None
        assert "control" in (PROC / "1/stat").read_text()
        if used == 0:
            works(box)
    assert removal.wait(GOES_S) == 0
    with Box(NAMES[0], LIMIT_MIB, gpu=0) as box:
        works(box)
        with pytest.raises(OSError) as refused:
            Box(NAMES[1], LIMIT_MIB, gpu=1)
        assert refused.value.errno == errno.ENODEV
        assert not (PROC / "1").exists()
    assert bind(second)
    with Box(NAMES[0], LIMIT_MIB, gpu=0) as one, Box(NAMES[1], LIMIT_MIB, gpu=1) as two:
        works(one)
        works(two)
