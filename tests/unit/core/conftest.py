# SPDX-License-Identifier: MIT OR GPL-2.0-only
import os

from hypothesis import settings

settings.register_profile(
    "core", deadline=None, max_examples=int(os.environ.get("HYPOTHESIS_MAX_EXAMPLES", "200")), derandomize=True
)
settings.load_profile("core")
