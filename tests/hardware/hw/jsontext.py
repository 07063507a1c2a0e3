# SPDX-License-Identifier: MIT
"""JSON as dense as a page: jsontext.py FILE… writes files anew in this form."""

from __future__ import annotations

import json
import sys
from pathlib import Path

WIDTH = 140


def text(value: object, indent: str = "") -> str:
    """One line if it fits; else simple members share lines and each object or list begins one."""
    flat = json.dumps(value, ensure_ascii=False)
    if not value or not isinstance(value, (dict, list)) or len(indent) + len(flat) <= WIDTH:
        return flat
    inner = indent + " "
    named = isinstance(value, dict)
    lines, open_line = [], False
    for key in value if named else range(len(value)):
        simple = not isinstance(value[key], (dict, list))
        member = (f"{json.dumps(key, ensure_ascii=False)}: " if named else "") + text(value[key], inner)
        if simple and open_line and len(inner) + len(lines[-1]) + len(member) + 2 <= WIDTH:
            lines[-1] += f", {member}"
        else:
            lines.append(member)
        open_line = simple
    begin, end = "{}" if named else "[]"
    return f"{begin}\n{inner}" + f",\n{inner}".join(lines) + f"\n{indent}{end}"


if __name__ == "__main__":
    for name in sys.argv[1:]:
        path = Path(name)
        path.write_text(text(json.loads(path.read_text())) + "\n")
