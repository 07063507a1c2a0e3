# SPDX-License-Identifier: MIT
"""Repeats: the same lines over and over become `repeat N`."""

from __future__ import annotations

from tracefile import Event

LONGEST = 64  # events of a body
FEWEST = 3


def repeats(texts: list[str], at: int, length: int) -> int:
    """How often the @length events from @at stand there one after the other."""
    count, body = 1, texts[at : at + length]
    while texts[at + count * length : at + (count + 1) * length] == body:
        count += 1
    return count


def best(texts: list[str], at: int) -> tuple[int, int]:
    """(length, count) of the repeat from @at that covers most; (1, 1) where there is none."""
    found = (1, 1)
    for length in range(1, LONGEST + 1):
        if at + length >= len(texts) or texts[at] != texts[at + length]:
            continue
        count = repeats(texts, at, length)
        if count >= FEWEST and length * count > found[0] * found[1]:
            found = (length, count)
    return found


def fold(events: list[Event]) -> list[Event]:
    texts = ["\n".join(event.lines()) for event in events]
    out, at = [], 0
    while at < len(events):
        length, count = best(texts, at)
        if count > 1:
            out.append(Event("repeat", [str(count)], body=events[at : at + length]))
        else:
            out.append(events[at])
        at += length * count
    return out
