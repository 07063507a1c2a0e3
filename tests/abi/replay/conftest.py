# SPDX-License-Identifier: MIT
import os
import sys
from pathlib import Path

from hypothesis import settings

TESTS = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(TESTS / "abi/replay"), str(TESTS / "unit/core"), str(TESTS / "hardware/rmtap")]
settings.register_profile(
    "replay", deadline=None, max_examples=int(os.environ.get("HYPOTHESIS_MAX_EXAMPLES", "100")), derandomize=True
)
settings.load_profile("replay")
