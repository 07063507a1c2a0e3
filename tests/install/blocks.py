# SPDX-License-Identifier: MIT
"""The commands of a page of documentation that are marked as tested. Pure: text in, commands out.

A line `<!-- tested: NAME -->`, then a block of code: its commands belong to NAME. Blocks of one name are one sequence.
"""

from __future__ import annotations

import re

FENCE = re.compile(r"^ *```.*\n((?:.*\n)*?) *```$", re.MULTILINE)
MARK = re.compile(r"<!--\s*tested:\s*(.*?)\s*-->")


class BadMark(ValueError):
    """A mark that no block follows, or a name that is none."""


def marked(text: str) -> dict[str, list[str]]:
    """Commands by name, in the order of the page; comments are left to the shell."""
    found: dict[str, list[str]] = {}
    lines = text.splitlines()
    for number, line in enumerate(lines):
        mark = MARK.fullmatch(line.strip())
        if not mark:
            continue
        if not re.fullmatch(r"[a-z-]+", mark[1]):
            raise BadMark(f"line {number + 1}: {mark[1]!r} is no name")
        if not (number + 1 < len(lines) and lines[number + 1].startswith("```")):
            raise BadMark(f"line {number + 1}: no block of code after the mark")
        body = lines[number + 2 :]
        if "```" not in body:
            raise BadMark(f"line {number + 2}: the block has no end")
        found.setdefault(mark[1], []).extend(line for line in body[: body.index("```")] if line.strip())
    return found


def unmarked(text: str) -> list[str]:
    """The first command of each block of code that has no mark before it, also of those that are indented."""
    first = []
    for block in FENCE.finditer(text):
        before = text[: block.start()].rsplit("\n", 2)[-2:]
        if not MARK.fullmatch(before[0].strip()):
            first.append(block[1].strip().split("\n")[0])
    return first
