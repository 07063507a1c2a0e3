# SPDX-License-Identifier: MIT
from __future__ import annotations

import sys
from pathlib import Path

from hypothesis import HealthCheck, settings

sys.path.insert(0, str(Path(__file__).parent))
sys.path.append(str(Path(__file__).parents[1] / "unit/daemon"))  # fakes.py: a node with cgpud on the fake kernel

# A slow machine must not fail a test.
settings.register_profile("kube", deadline=None, derandomize=True, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("kube")
