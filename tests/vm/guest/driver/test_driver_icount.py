# SPDX-License-Identifier: MIT
"""Shares over NVIDIA's own kernel driver, in exact guest time: its libcuda in two containers, 1 : 2 by weight.

Each freeze goes through the resource manager to the card's GSP, and acts on the engine that nvsim has as well.
"""

from __future__ import annotations

import pytest
from exact_box import TOLERANCE_PCT, one_to_two

pytestmark = pytest.mark.driver_icount


def test_one_to_two_in_exact_time() -> None:
    error, clients = one_to_two()
    assert clients == [1, 1]
    assert error <= TOLERANCE_PCT
