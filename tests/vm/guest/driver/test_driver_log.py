# SPDX-License-Identifier: MIT
"""What the driver has said in the whole boot: pytest runs the files in the order of their names, this one last."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

pytestmark = pytest.mark.driver


def test_the_driver_complains_of_nothing():
    """Objects that the resource manager has to free at its own end are a leak of cgpu_km's."""
    log = Path("/dev/kmsg")
    fd = os.open(log, os.O_RDONLY | os.O_NONBLOCK)
    text = []
    try:
        while True:
            text.append(os.read(fd, 16384).decode(errors="replace"))
    except BlockingIOError:
        pass
    finally:
        os.close(fd)
    assert not [line for line in text if "leak" in line and "NVRM" in line]
