# SPDX-License-Identifier: MIT
"""The file of a bench's figures: JSON as its standard has it, which knows neither infinite figures nor NaN."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

INFINITE = "infinite: a container had nothing of what the figure is a ratio of"
UNDEFINED = "undefined: there was nothing to compute it from"


def finite(value: Any) -> Any:
    """@value with null for each such figure; beside it in its object, `not_finite` has the reason by its name."""
    if isinstance(value, list | tuple):
        return [finite(one) for one in value]
    if isinstance(value, float) and not math.isfinite(value):
        return None
    if not isinstance(value, dict):
        return value
    reasons = {
        str(name): UNDEFINED if math.isnan(one) else INFINITE
        for name, one in value.items()
        if isinstance(one, float) and not math.isfinite(one)
    }
    found = {name: finite(one) for name, one in value.items()}
    return found | {"not_finite": reasons} if reasons else found


def write_report(path: Path, report: dict[str, Any], indent: int = 2) -> None:
    """The report into @path, whose folder is made."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(finite(report), indent=indent, allow_nan=False) + "\n")
