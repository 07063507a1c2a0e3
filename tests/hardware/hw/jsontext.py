# SPDX-License-Identifier: MIT
"""JSON with a line for each member of the whole, so that a change shows which are others; json.tool prints the rest."""

from __future__ import annotations

import json


def text(value: dict[str, object]) -> str:
    """Of an object."""
    members = [f"{json.dumps(name)}: {json.dumps(one, ensure_ascii=False)}" for name, one in value.items()]
    return "{\n" + ",\n".join(members) + "\n}\n"
