# SPDX-License-Identifier: MIT
"""Output that is kept in tests/unit/cli/golden."""

from __future__ import annotations

import os
from pathlib import Path

GOLDEN = Path(__file__).parent / "golden"


def golden(name: str, text: str) -> None:
    """Compare with golden/<name>; CGPU_GOLDEN=write rewrites it."""
    path = GOLDEN / name
    if os.environ.get("CGPU_GOLDEN") == "write":
        path.write_text(text)
    assert text == path.read_text()
