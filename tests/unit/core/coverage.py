# SPDX-License-Identifier: MIT OR GPL-2.0-only
"""The call table against a list of the calls under which real CUDA programs run: tests/abi/nvproxy.txt."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import calltable

LIST = Path(__file__).resolve().parents[2] / "abi/nvproxy.txt"

NEWER = "fabric management; only in 620, which has no public source"
# What the list has and the table has not.
MISSING = {
    ("control", 0x208030A0): NEWER,
    ("control", 0x208030A1): NEWER,
    ("control", 0x208030A2): NEWER,
    ("control", 0x208030A3): NEWER,
}


@dataclass(frozen=True)
class Call:
    """One line of the list."""

    kind: str
    number: int
    name: str
    since: str
    until: str
    capabilities: frozenset[str]

    @property
    def compute(self) -> bool:
        """Programs that compute and tools that look use it."""
        return "Compute" in self.capabilities


def calls() -> list[Call]:
    found = []
    for line in LIST.read_text().splitlines():
        if line and not line.startswith("#"):
            kind, number, name, since, until, capabilities = line.split()
            found.append(Call(kind, int(number, 16), name, since, until, frozenset(capabilities.split("|"))))
    return found


def rows_of(call: Call) -> list[calltable.Row]:
    return [r for r in calltable.table(call.kind) if r.number == call.number]


def refused(compute: bool) -> list[tuple[Call, str]]:
    """Calls of the list that are refused in every branch, with the table's reason."""
    found = []
    for call in calls():
        rows = rows_of(call)
        if call.compute == compute and rows and all(r.refused for r in rows):
            found.append((call, rows[-1].note))
    return found
