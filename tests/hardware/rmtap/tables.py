# SPDX-License-Identifier: MIT
"""Writes rmtap_tables.h: sizes that no ioctl number carries, from the core's call table. `--check` only compares.

The header is kept in the repository: the machine that takes a trace needs a C compiler and nothing else.
"""

from __future__ import annotations

import sys
from pathlib import Path

HERE = Path(__file__).resolve().parent
TESTS = HERE.parents[1]
sys.path[:0] = [str(TESTS / "unit/core"), str(TESTS / "abi/replay")]

import calltable  # noqa: E402
from layouts import POINTERS  # noqa: E402

HEADER = HERE / "rmtap_tables.h"


def rows(kind: str) -> list[str]:
    """Rows with a size; of the newest branch also for newer drivers."""
    last = max(calltable.BRANCHES)
    out = []
    for r in calltable.table(kind):
        if r.size:
            until = "UINT32_MAX" if r.last == last else str(r.last)
            out.append(f"\t{{ {r.number:#x}, {r.size}, {r.first}, {until} }},\t/* {r.name} */")
    return out


def text() -> str:
    pointers = [
        f"\t{{ {cmd:#x}, {at}, {count_at}, {each} }},"
        for cmd, places in sorted(POINTERS.items())
        for at, count_at, each, _ in places
    ]
    return "\n".join(
        [
            "/* SPDX-License-Identifier: MIT */",
            "/* Written by tables.py from the core's call table and tests/abi/replay/layouts.py. */",
            "#include <stdint.h>",
            "",
            "struct rmtap_size {",
            "\tuint32_t number, size, first, last;\t/* from branch to branch */",
            "};",
            "",
            "static const struct rmtap_size rmtap_uvm[] = {",
            *rows("uvm"),
            "};",
            "",
            "static const struct rmtap_size rmtap_classes[] = {",
            *rows("class"),
            "};",
            "",
            "/* Pointers in parameters: where, where their count is, and the bytes of one. */",
            "static const struct rmtap_pointer {",
            "\tuint32_t cmd, at, count_at, each;",
            "} rmtap_pointers[] = {",
            *pointers,
            "};",
            "",
        ]
    )


def main() -> int:
    if "--check" in sys.argv:
        return 0 if HEADER.read_text() == text() else 1
    HEADER.write_text(text())
    return 0


if __name__ == "__main__":
    sys.exit(main())
