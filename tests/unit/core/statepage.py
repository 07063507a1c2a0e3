# SPDX-License-Identifier: MIT OR GPL-2.0-only
"""docs/develop/scheduler.md: the words of struct cgpu_sched, the files that write them, and what holds of them."""

import re
from dataclasses import dataclass

import _build
from corelib import ffi

PAGE = _build.ROOT / "docs/develop/scheduler.md"
NONE = "–"
APART = {"slot", "rr", "pad"}  # named below the table


@dataclass(frozen=True)
class Word:
    name: str
    writers: tuple[str, ...]
    holds: tuple[str, ...]


def words() -> list[Word]:
    found = []
    for line in PAGE.read_text().splitlines():
        row = re.match(r"\| `(\w+)` \| ([^|]+) \| (.+?) \| [^|]+ \|$", line)
        if row:
            writers = () if row[2] == NONE else tuple(row[2].split(", "))
            found.append(Word(row[1], writers, tuple(re.findall(r"`([^`]+)`", row[3]))))
    return found


def fields() -> set[str]:
    return {name for name, _ in ffi.typeof("struct cgpu_sched").fields} - APART


HOLDS = {text: compile(text, text, "eval") for word in words() for text in word.holds}


def broken(t) -> list[str]:
    """The expressions of the page that are not true of a struct cgpu_sched."""
    values = {name: getattr(t, name) for name in fields()}
    return [text for text, code in HOLDS.items() if not eval(code, {"__builtins__": {}}, values)]
