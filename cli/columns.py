# SPDX-License-Identifier: MIT
"""Tables that fit a width: names are shortened with an ellipsis, then columns are left out, then each row takes several
lines. An id or a figure is never cut. Pure."""

from __future__ import annotations

import re
import textwrap
import unicodedata
from collections.abc import Sequence
from dataclasses import dataclass

ELLIPSIS = "…"
GAP = 2
#: The blank between a figure and its unit, and one at which no line is folded.
_OF_UNIT = re.compile(r"(?<=[0-9]) (?=(?:[mu]?s|[KMG]iB|MHz|W|C)\b)")
_BOUND = "\u00a0"


@dataclass(frozen=True)
class Column:
    """A column. @least: its cells may be shortened to so many characters; 0: never. @tail: a shortened cell keeps its
    end too. @drop: the columns with the
    smallest number above 0 are left out first where shortening does not suffice; 0: never."""

    head: str
    right: bool = False
    least: int = 0
    drop: int = 0
    tail: bool = True


def _char_width(char: str) -> int:
    if unicodedata.combining(char):
        return 0
    return 2 if unicodedata.east_asian_width(char) in "WF" else 1


def cells(text: str) -> int:
    """How many cells of a terminal the text takes."""
    return len(text) if text.isascii() else sum(map(_char_width, text))


def printable(text: str) -> str:
    """With a question mark for each control character: a tenant chooses the names of its processes."""
    return text if text.isprintable() else "".join(char if char.isprintable() else "?" for char in text)


def _head(text: str, width: int) -> str:
    taken = 0
    for place, char in enumerate(text):
        taken += _char_width(char)
        if taken > width:
            return text[:place]
    return text


def shorten(text: str, width: int) -> str:
    """The text in `width` cells, without its middle: names of pods differ at their ends."""
    if cells(text) <= width:
        return text
    if width < 1:
        return ""
    left = (width - 1) // 2
    tail = _head(text[::-1], width - 1 - left)[::-1]
    return _head(text, left) + ELLIPSIS + tail


def cut(text: str, width: int | None) -> str:
    """The beginning of a line that has no columns."""
    return text if width is None or cells(text) <= width else _head(text, max(0, width - 1)) + ELLIPSIS


def _total(widths: Sequence[int], gap: int) -> int:
    return sum(widths) + gap * (len(widths) - 1)


def _narrowed(columns: Sequence[Column], widths: Sequence[int], most: int) -> list[int]:
    """The widths, those that may shrink made smaller, the widest first."""
    found = list(widths)
    while _total(found, 1) > most:
        able = [place for place, one in enumerate(columns) if one.least and found[place] > one.least]
        if not able:
            break
        found[max(able, key=lambda place: found[place])] -= 1
    return found


def natural_width(columns: Sequence[Column], rows: Sequence[Sequence[str]]) -> int:
    """The width of the table with no cell shortened."""
    return _total(_widths(columns, rows), GAP)


def _widths(columns: Sequence[Column], rows: Sequence[Sequence[str]]) -> list[int]:
    heads = [one.head for one in columns]
    return [max(cells(row[place]) for row in (heads, *rows)) for place in range(len(columns))]


def folded(text: str, width: int | None, first: str = "", rest: str = "  ") -> list[str]:
    """The text behind @first, its further lines behind @rest. A word is never cut: it may be a path or a figure,
    and a figure stays beside its unit."""
    if width is None:
        return [first + text]
    wrap = textwrap.TextWrapper(max(width, len(rest) + 20), break_long_words=False, break_on_hyphens=False)
    wrap.initial_indent, wrap.subsequent_indent = first, rest
    return [line.replace(_BOUND, " ") for line in wrap.wrap(_OF_UNIT.sub(_BOUND, text))]


def _stacked(columns: Sequence[Column], rows: Sequence[Sequence[str]], width: int) -> list[str]:
    """A paragraph for each row, of `HEAD value` pairs."""
    out: list[str] = []
    for row in rows:
        line = ""
        for column, cell in zip(columns, row, strict=True):
            room = max(column.least, width - cells(column.head) - 3)
            value = shorten(cell, room) if column.least else cell
            pair = f"{column.head} {value}".strip()
            if line and cells(line) + GAP + cells(pair) > width:
                out.append(line)
                *more, line = folded(pair, width, "  ", "    ")
                out += more
            else:
                line = f"{line}{' ' * GAP}{pair}" if line else pair
        out.append(line)
    return out


def table(columns: Sequence[Column], rows: Sequence[Sequence[str]], width: int | None = None) -> list[str]:
    """The head and a line for each row. @width None: as wide as it needs to be."""
    rows = [[printable(cell) for cell in row] for row in rows]
    gap = GAP
    widths = _widths(columns, rows)
    if width is not None and _total(widths, gap) > width:
        gap = 1
        narrow = _narrowed(columns, widths, width)
        droppable = sorted((one.drop, place) for place, one in enumerate(columns) if one.drop)
        if _total(narrow, gap) > width and not droppable:
            return _stacked(columns, rows, width)
        if _total(narrow, gap) > width:
            out = droppable[0][1]
            rest = [place for place in range(len(columns)) if place != out]
            return table([columns[place] for place in rest], [[row[place] for place in rest] for row in rows], width)
        widths = narrow

    def line(row: Sequence[str]) -> str:
        words = []
        for column, cell, most in zip(columns, row, widths, strict=True):
            shown = shorten(cell, most) if column.tail else cut(cell, most)
            pad = " " * (most - cells(shown))
            words.append(pad + shown if column.right else shown + pad)
        return (" " * gap).join(words).rstrip()

    return [line([one.head for one in columns]), *map(line, rows)]


def bar(part: float, width: int) -> str:
    """A bar such as [####......]; @part 0 to 1."""
    inner = width - 2
    full = min(inner, max(0, round(part * inner)))
    if part > 0 and full == 0:
        full = 1
    return "[" + "#" * full + "." * (inner - full) + "]"
