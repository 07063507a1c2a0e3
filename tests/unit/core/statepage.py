# SPDX-License-Identifier: MIT OR GPL-2.0-only
"""docs/develop/scheduler-state.md: words of struct cgpu_sched and cgpu_step, their writers, what holds of them."""

import re
from dataclasses import dataclass
from types import CodeType

import _build
from corelib import ffi, lib

PAGE = _build.ROOT / "docs/develop/scheduler-state.md"
NONE = "–"
APART = {"slot", "rr", "pad"}  # named below the table


@dataclass(frozen=True)
class Word:
    name: str
    writers: tuple[str, ...]
    holds: tuple[str, ...]


def words(section: str = "# ") -> list[Word]:
    """Of the table before the first section, or of the one in @section."""
    found = []
    parts = re.split(r"^## ", PAGE.read_text(), flags=re.MULTILINE)
    for line in next(part for part in parts if part.startswith(section)).splitlines():
        row = re.match(r"\| `(\w+)` \| ([^|]+) \| (.+?) \| [^|]+ \|$", line)
        if row:
            writers = () if row[2] == NONE else tuple(row[2].split(", "))
            found.append(Word(row[1], writers, tuple(re.findall(r"`([^`]+)`", row[3]))))
    return found


def fields(struct: str = "struct cgpu_sched") -> set[str]:
    return {name for name, _ in ffi.typeof(struct).fields} - APART


def compiled(found: list[Word]) -> dict[str, CodeType]:
    return {text: compile(text, text, "eval") for word in found for text in word.holds}


HOLDS = compiled(words())
STEP_WORDS = words("The thread")
STEP_HOLDS = compiled(STEP_WORDS)


def broken(record, holds=HOLDS) -> list[str]:
    """The expressions of the page that are not true of a struct cgpu_sched, or by STEP_HOLDS of a struct cgpu_step."""
    values = {name: getattr(record, name) for name, _ in ffi.typeof(record).item.fields}
    values["policies"] = lib.CGPU_POLICY_COUNT
    return [text for text, code in holds.items() if not eval(code, {"__builtins__": {}}, values)]
