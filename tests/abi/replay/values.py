# SPDX-License-Identifier: MIT
"""Between a trace's text and the bytes of a call: structs are built from it, answers are compared with it."""

from __future__ import annotations

import errno
import struct
from dataclasses import dataclass
from typing import Protocol

import layouts
from layouts import IOCTL, UVM, Field
from tracefile import Block, Event, Item, TraceError

FORMATS = {1: "B", 2: "H", 4: "I", 8: "Q"}


class Names(Protocol):
    """Where symbols and files get their values: a player's run, or a checker's list of what is bound."""

    def symbol(self, name: str) -> int | bytes: ...
    def bind(self, name: str, value: int | bytes) -> None: ...
    def fd(self, name: str) -> int: ...


@dataclass(frozen=True)
class Target:
    """Which call it is: 0x2b/48:NV_ESC_RM_ALLOC on a file."""

    way: str
    number: int
    size: int
    name: str

    @property
    def fields(self) -> tuple[Field, ...] | None:
        return layouts.fields(self.way, self.number, self.size)

    def field(self, name: str) -> Field | None:
        return next((f for f in self.fields or () if f.name == name), None)

    def __str__(self) -> str:
        return f"{self.number:#x}/{self.size}" + (f":{self.name}" if self.name else "")


def target(event: Event, node: str) -> Target:
    """@node is the node on which the file was opened."""
    number, _, name = event.words[1].partition(":")
    number, slash, size = number.partition("/")
    if not slash:
        raise TraceError(f"a call is number/size:name, not {event.words[1]!r}")
    return Target(UVM if node == "nvidia-uvm" else IOCTL, int(number, 0), int(size, 0), name)


def number_of(text: str) -> int:
    """0x201:NAME, 12, -1"""
    return int(text.partition(":")[0], 0)


def symbol_parts(text: str) -> tuple[str, int, int | None, bool]:
    """$name, $name+0x10, $name! (bound here), $name!5c000001 (bound here to this): name, offset, value, bound here."""
    name, mark, value = text.removeprefix("$").partition("!")
    name, _, offset = name.partition("+")
    return name, int(offset or "0", 16), int(value, 16) if value else None, bool(mark)


def symbol_value(text: str, names: Names) -> int | bytes:
    """As an input."""
    name, offset, value, here = symbol_parts(text)
    if here:
        if value is None:
            raise TraceError(f"{text}: an input needs a value")
        names.bind(name, value)
        return value
    got = names.symbol(name)
    return got + offset if offset else got


def to_bytes(value: int | bytes, size: int) -> bytes:
    return (
        value[:size].ljust(size, b"\0")
        if isinstance(value, bytes)
        else (value % (1 << 8 * size)).to_bytes(size, "little")
    )


def item_bytes(item: Item, names: Names) -> bytes:
    one = item.size // item.count
    if item.kind == "word":
        return struct.pack("<I", int(item.text, 16)) * item.count
    if item.kind == "byte":
        return bytes([int(item.text, 16)]) * item.count
    if item.kind == "symbol":
        return to_bytes(symbol_value(item.text, names), one) * item.count
    if item.kind == "fd":
        return to_bytes(names.fd(item.text[1:]), one) * item.count
    if item.kind == "text":
        return item.text[1:-1].encode() * item.count
    if item.kind == "pointer":
        return bytes(one) * item.count
    raise TraceError(f"{item}: not in an input")


def block_bytes(block: Block, names: Names) -> bytes:
    return b"".join(item_bytes(item, names) for item in block.items)


def field_bytes(field: Field, text: str, names: Names) -> bytes:
    if text.startswith("$"):
        return to_bytes(symbol_value(text, names), field.size)
    if text.startswith("@"):
        return to_bytes(names.fd(text[1:]), field.size)
    if text.startswith('"'):
        return to_bytes(text[1:-1].encode(), field.size)
    if field.kind == "uuid":
        return bytes.fromhex(text)
    return to_bytes(number_of(text), field.size)


@dataclass
class Built:
    """A call as bytes: the struct, and blocks with (path of the block, offset in it) of the pointer to each."""

    target: Target
    top: bytearray
    blocks: dict[str, bytearray]
    pointers: dict[str, tuple[str, int]]


def build(event: Event, call: Target, names: Names) -> Built:
    blocks = {b.path: bytearray(block_bytes(b, names)) for b in event.blocks if b.way == "in"}
    top, pointers = bytearray(call.size), {}
    if call.fields is None:
        if event.fields:
            raise TraceError(f"{call} has no layout: its bytes are in arg")
        top[:] = blocks.pop("arg", top)
        if len(top) != call.size:
            raise TraceError(f"arg has {len(top)} bytes, the call {call.size}")
    for path in list(blocks):
        parent, _, offset = path.rpartition("@")
        field = call.field(path)
        if parent:
            if parent not in blocks and not (parent == "arg" and call.fields is None):
                raise TraceError(f"{path}: there is no block {parent}")
            pointers[path] = ("" if parent == "arg" else parent, int(offset))
        elif field and field.kind == "ptr":
            pointers[path] = ("", field.at)
        elif field and field.kind == "b" and len(blocks[path]) == field.size:
            top[field.at : field.at + field.size] = blocks.pop(path)
        else:
            raise TraceError(f"{path}: {call} has no such block")
    for name, text in event.fields.items():
        field = call.field(name)
        if not field or not field.read or field.kind == "b":
            raise TraceError(f"{name}: {call} has no such field to read")
        top[field.at : field.at + field.size] = field_bytes(field, text, names)
    size = call.field("params_size")
    if size and "params_size" not in event.fields:
        top[size.at : size.at + 4] = to_bytes(len(blocks.get("params", b"")), 4)
    return Built(call, top, blocks, pointers)


# ---- answers ----


def same(text: str, got: bytes, names: Names) -> bool:
    """Whether an output's symbol holds, where it is not bound by it."""
    name, offset, _, here = symbol_parts(text)
    value = got if len(got) == 16 else int.from_bytes(got, "little") - offset
    if here:
        names.bind(name, value)
        return True
    want = names.symbol(name)
    return got == to_bytes(want + offset if offset else want, len(got))


def item_wrong(item: Item, got: bytes, names: Names) -> bool:
    one = item.size // item.count
    if item.kind in ("any", "pointer"):
        return False
    if item.kind == "symbol":
        return not all(same(item.text, got[i : i + one], names) for i in range(0, len(got), one))
    return got != item_bytes(item, names)


def block_wrong(block: Block, got: bytes, names: Names) -> str:
    """The difference from the recording; empty if there is none."""
    at = block.offset
    for item in block.items:
        part = bytes(got[at : at + item.size])
        if len(part) != item.size:
            return f"{block.path}+{at:#x}: only {len(got)} bytes"
        if item_wrong(item, part, names):
            return f"{block.path}+{at:#x}: {words(part)}, recorded {item}"
        at += item.size
    return ""


def words(data: bytes) -> str:
    """At most 32 bytes, as a trace writes them."""
    shown = data[:32]
    whole = len(shown) // 4 * 4
    out = [f"{w:08x}" for w in struct.unpack(f"<{whole // 4}I", shown[:whole])] + [f"{b:02x}" for b in shown[whole:]]
    return " ".join(out) + (" …" if len(data) > len(shown) else "")


def errno_name(number: int) -> str:
    return errno.errorcode.get(number, str(number))


def result_wrong(result: dict[str, str], built: Built, err: int, names: Names) -> str:
    """The difference of the call's own result from @result."""
    if "errno" in result or err:
        want = result.get("errno", "none")
        return "" if want == errno_name(err) else f"errno {errno_name(err) if err else 'none'}, recorded {want}"
    for name, text in result.items():
        field = built.target.field(name)
        if name == "ok":
            continue
        if not field or not field.written:
            return f"{name}: {built.target} has no such field to write"
        got = bytes(built.top[field.at : field.at + field.size])
        symbol = text.startswith("$")
        if not same(text, got, names) if symbol else got != field_bytes(field, text, names):
            return f"{name} {int.from_bytes(got, 'little'):#x}, recorded {text}"
    return ""


def symbol_bytes_of(text: str, names: Names) -> bytes:
    """A number or a symbol as 8 bytes: of mmap and the like."""
    return to_bytes(symbol_value(text, names) if text.startswith("$") else number_of(text), 8)
