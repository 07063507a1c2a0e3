# SPDX-License-Identifier: MIT
from __future__ import annotations

import struct
from enum import IntEnum
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cgpu_common.attributes import TEXT, U8, U32, U64, Table


class Inner(IntEnum):
    SMALL = 1
    NAME = 2


class Outer(IntEnum):
    LONG = 1
    NAME = 2
    INNER = 3
    WORD = 4


INNER = Table({Inner.SMALL: U8, Inner.NAME: TEXT})
TABLE = Table({Outer.LONG: U64, Outer.NAME: TEXT, Outer.INNER: INNER.nest(), Outer.WORD: U32})

TEXTS = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0"))
INNER_PAIRS = st.lists(st.tuples(st.just("SMALL"), st.integers(0, 255)) | st.tuples(st.just("NAME"), TEXTS))
PAIRS = st.lists(
    st.tuples(st.just("LONG"), st.integers(0, 2**64 - 1))
    | st.tuples(st.just("WORD"), st.integers(0, 2**32 - 1))
    | st.tuples(st.just("NAME"), TEXTS)
    | st.tuples(st.just("INNER"), INNER_PAIRS)
)


@given(PAIRS)
def test_what_is_written_is_read(pairs: list[tuple[str, Any]]) -> None:
    data = TABLE.write(pairs)
    assert len(data) % 4 == 0
    assert TABLE.read(data) == pairs


@given(st.binary(max_size=200) | st.tuples(PAIRS, st.integers(0, 400)).map(lambda cut: TABLE.write(cut[0])[: cut[1]]))
def test_garbage_is_read_as_far_as_it_goes(data: bytes) -> None:
    assert {name for name, _ in TABLE.read(data)} <= {"LONG", "NAME", "INNER", "WORD"}


def test_what_came_later_is_left_out() -> None:
    later = struct.pack("=HHI", 8, 77, 5)
    assert TABLE.read(later + TABLE.write([("WORD", 1)]) + later) == [("WORD", 1)]


def test_the_flags_of_a_number_are_no_part_of_it() -> None:
    assert TABLE.read(struct.pack("=HHI", 8, 4 | 0x4000, 7)) == [("WORD", 7)]


def test_an_attribute_that_ends_behind_the_message() -> None:
    assert TABLE.read(struct.pack("=HHI", 9, 4, 7)) == []
    assert TABLE.read(struct.pack("=HH", 3, 4)) == []


@pytest.mark.parametrize(
    ("pair", "error"), [(("WORD", 1 << 32), OverflowError), (("WORD", -1), OverflowError), (("ELSE", 1), KeyError)]
)
def test_what_has_no_room(pair: tuple[str, int], error: type[Exception]) -> None:
    with pytest.raises(error):
        TABLE.write([pair])
