# SPDX-License-Identifier: MIT OR GPL-2.0
import os
import sys
from pathlib import Path

from hypothesis import settings

sys.path.insert(0, str(Path(__file__).parent))
settings.register_profile(
    "core", deadline=None, max_examples=int(os.environ.get("HYPOTHESIS_MAX_EXAMPLES", "200")), derandomize=True
)
settings.load_profile("core")
