# SPDX-License-Identifier: MIT
import os
import sys
from pathlib import Path

from hypothesis import settings

TESTS = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(TESTS / "replay"), str(TESTS / "core"), str(TESTS / "gpu/rmtap")]
settings.register_profile(
    "replay", deadline=None, max_examples=int(os.environ.get("HYPOTHESIS_MAX_EXAMPLES", "200")), derandomize=True
)
settings.load_profile("replay")
