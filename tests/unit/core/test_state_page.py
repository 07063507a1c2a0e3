# SPDX-License-Identifier: MIT OR GPL-2.0-only
"""docs/develop/scheduler-state.md agrees with the code. test_turn_machine.py evaluates what it says holds."""

import re

import _build
import pytest
from corelib import Turn
from statepage import broken, fields, words

SOURCES = {path.stem.removeprefix("sched_"): path.read_text() for path in sorted(_build.CORE.glob("*.c"))}


def written_by(name: str) -> tuple[str, ...]:
    """The files that assign to it, in their alphabetical order, without sched_ and .c."""
    target = rf"\bt->{name}\b(?:\[[^]]*\])*"
    assigns = re.compile(rf"{target}\s*(?:=(?!=)|[-+|&^/*]=|\+\+|--)|(?:\+\+|--){target}")
    return tuple(stem for stem, text in SOURCES.items() if assigns.search(text))


def test_each_word_has_a_row():
    assert sorted(word.name for word in words()) == sorted(fields())


@pytest.mark.parametrize("word", words(), ids=lambda word: word.name)
def test_its_writers_are_those_of_the_page(word):
    assert written_by(word.name) == word.writers


@pytest.mark.parametrize("word", [word for word in words() if word.holds], ids=lambda word: word.name)
def test_what_holds_is_about_the_word(word):
    assert any(re.search(rf"\b{word.name}\b", text) for text in word.holds)


def test_it_holds_at_the_beginning_and_can_break():
    t = Turn().t
    assert broken(t) == []
    t.busy_mask = 1
    assert broken(t) == ["busy_mask & ~known_mask == 0"]
