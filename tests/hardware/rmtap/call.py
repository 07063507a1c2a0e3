# SPDX-License-Identifier: MIT
"""One recorded ioctl as an event of a trace: its struct as fields, its parameters as words and names."""

from __future__ import annotations

from itertools import groupby
from typing import TYPE_CHECKING

import layouts
import raw
import values
from check import inner_row
from state import STEMS
from tracefile import Block, Event, Item

if TYPE_CHECKING:
    from normalise import Normaliser

STACK = 0x7F << 40  # an address there that no call has given away is what was left on the stack
KERNEL = range(0xFFFF_8000 << 32, 0xFFFF_FF80 << 32)  # its data; its code reads like a number before a -1
SMALLEST_HANDLE = 0x10000  # numbers below are taken for numbers
GPFIFO_OFFSET = 8
CLIENTS = (0x0, 0x1, 0x41)
GPU_ID_CALLS = (200, 212)
NEW_OBJECTS = {0x3D06: (16, None), 0x3D0C: (8, 648)}  # handles that the driver answers: where, where their count is
# By the class of compute objects, and of doorbells where no other architecture has it.
ARCHS = {0xC5C0: "turing", 0xC6C0: "ampere", 0xC7C0: "ampere", 0xC9C0: "ada", 0xCBC0: "hopper", 0xC661: "hopper"}


class Call:
    """One ioctl on its way to an event."""

    def __init__(self, run: Normaliser, record: raw.Record, call: values.Target, index: int):
        self.run, self.record, self.call, self.index = run, record, call, index
        self.top = record.memory[index] if record.memory else raw.Memory(-1, 0, b"", b"")
        self.fields = {f.name: f for f in call.fields or ()}
        self.client = self.before("root") or self.before("client")
        if call.number == layouts.RM_ALLOC and self.before("class") in CLIENTS and not self.client:
            self.client = self.after("new")
        self.inner = inner_row(run.branch, call.number, self.before("cmd"), self.before("class"))
        self.unnamed = bool(call.number == layouts.RM_CONTROL and call.fields and not self.public)
        self.failed = record.number(4)
        self.paths: dict[int, str] = {}
        self.chosen: dict[int, str] = {}  # new objects in parameters: offset to text
        self.answered: dict[int, str] = {}

    @property
    def public(self) -> bool:
        """A control of the public headers. What the parameters of another mean is not known."""
        return bool(self.inner and self.inner.number == self.before("cmd") and self.inner.name != "unnamed")

    def before(self, name: str) -> int:
        return self.number(self.top.before, name)

    def after(self, name: str) -> int:
        return self.number(self.top.after, name)

    def number(self, data: bytes, name: str) -> int:
        field = self.fields.get(name)
        return int.from_bytes(data[field.at : field.at + field.size], "little") if field else 0

    @property
    def worked(self) -> bool:
        return not self.failed and not self.after("status")

    def event(self) -> Event:
        event = Event("call")
        # UVM_DEINITIALIZE takes no struct: its argument is NULL.
        if self.call.fields is None and self.record.memory:
            self.paths[self.index] = "arg"
        for name, field in self.fields.items():
            self.add_field(event, name, field)
        event.blocks += self.nested()
        event.fields = self.ordered(event)
        event.result = self.result()
        event.blocks += self.changed(event)
        self.note_objects()
        return event

    def add_field(self, event: Event, name: str, field: layouts.Field) -> None:
        data = self.top.before[field.at : field.at + field.size]
        if field.kind == "b":
            if any(data) or field.written:
                event.blocks.append(Block("in", name, self.items(data), 0, len(data)))
        elif not field.read or field.kind == "ptr" or not any(data):
            pass
        elif field.kind == "t":
            event.fields[name] = f'"{text_of(data)}"'
        elif field.kind == "uuid":
            event.fields[name] = self.uuid(data) or data.hex()
        elif field.kind == "h" and name == "new":
            event.fields[name] = self.new_name(self.before("new"), chosen=True)
        else:
            client = self.before("client_src") if name == "source" else self.client
            text = self.run.value(field.kind, self.before(name), self.record, client)
            row = self.inner if name in ("cmd", "class") else None
            event.fields[name] = text + (f":{row.name}" if row and row.number == self.before(name) else "")

    def ordered(self, event: Event) -> dict[str, str]:
        """Without the size of parameters where the block says it."""
        block = event.block("in", "params")
        size = self.before("params_size")
        if "params_size" in self.fields:
            event.fields.pop("params_size", None)
            if size != (block.size if block else 0):
                event.fields["params_size"] = f"{size:#x}"
        return event.fields

    def uuid(self, data: bytes) -> str | None:
        gpu = self.run.state.uuids.get(bytes(data))
        return f"${gpu}.uuid" if gpu else None

    def new_name(self, handle: int, chosen: bool) -> str:
        if not self.worked:
            return f"{handle:#x}"
        cls = self.before("class")
        stem = STEMS.get(cls, "obj")
        if not cls:
            source = self.run.state.handle(self.before("client_src"), self.before("source"))
            stem = source.rstrip("0123456789") if source else "client" if "rights" in self.fields else "obj"
        file = self.run.state.process(self.record.pid).files[self.record.number(0)][0]
        name = self.run.state.bind(self.client, handle, self.before("parent"), stem, file)
        return f"${name}!{handle:x}" if chosen else f"${name}!"

    def result(self) -> dict[str, str]:
        if self.failed:
            return {"errno": values.errno_name(self.failed)}
        out = {}
        for name, field in self.fields.items():
            if not field.written or field.kind == "b" or name == "status":
                continue
            before, after = self.before(name), self.after(name)
            if name == "new":
                if self.worked and after and not before:
                    out[name] = self.new_name(after, chosen=False)
            elif field.kind == "t" and after != before:
                out[name] = f'"{text_of(self.top.after[field.at : field.at + field.size])}"'
            elif field.kind == "addr" and after != before:
                name_of = self.run.state.address(self.record.pid, after)
                out |= {name: name_of} if name_of else {}
        if "status" in self.fields:
            out["status"] = f"{self.after('status'):#x}"
        return out or {"ok": ""}

    # bytes

    def nested(self) -> list[Block]:
        out = []
        memory = self.record.memory
        names = {f.at: f.name for f in self.call.fields or () if f.kind == "ptr"}
        for number, m in enumerate(memory):
            if m.parent == self.index and number != self.index and self.call.fields is not None:
                self.paths[number] = names.get(m.at, f"at{m.at}")
            elif m.parent in self.paths:
                self.paths[number] = f"{self.paths[m.parent]}@{m.at}"
        for number, path in self.paths.items():
            pointers = {m.at for m in memory if m.parent == number}
            if path == "params":
                self.new_objects(memory[number].before, memory[number].after)
            out.append(
                Block("in", path, self.items(memory[number].before, pointers, path), 0, len(memory[number].before))
            )
        return out

    def items(self, data: bytes, pointers: set[int] = frozenset(), path: str = "") -> list[Item]:
        """Bytes as words, with names where something has one."""
        out, at = [], 0
        places = {0, *pointers, *(self.chosen if path == "params" else ())}
        places |= {self.inner.fd_at} if self.inner and path == "params" and self.inner.fd_kind != "NONE" else set()
        while at < len(data):
            item = zeros(data, at, places) or (self.special(data, at, pointers, path) if at % 4 == 0 else None)
            if not item:
                word = int.from_bytes(data[at : at + 4], "little")
                word = 0 if self.unnamed and word >= SMALLEST_HANDLE else word
                item = Item("word", f"{word:08x}") if len(data) - at >= 4 else None
            item = item or Item("byte", f"{data[at]:02x}")
            at += item.size
            last = out[-1] if out else None
            if last and (last.kind, last.text) == (item.kind, item.text) and item.kind in ("word", "byte"):
                out[-1] = Item(last.kind, last.text, last.count + item.count)
            else:
                out.append(item)
        return out

    def special(self, data: bytes, at: int, pointers: set[int], path: str) -> Item | None:
        if at in pointers:
            return Item("pointer", "&")
        if path == "params" and at in self.chosen:
            return Item("symbol", self.chosen[at])
        if len(data) - at >= 16 and (uuid := self.uuid(data[at : at + 16])):
            return Item("symbol", uuid)
        if len(data) - at < 4:
            return None
        word = int.from_bytes(data[at : at + 4], "little")
        if self.file_at(path, at):
            return self.file(word)
        # Not in answers: a number of the driver's may be one that the program chose as an address.
        if path != "answer" and at % 8 == 0 and len(data) - at >= 8:
            address = int.from_bytes(data[at : at + 8], "little")
            if address in KERNEL:
                return Item("word", "00000000", 2)
            given = address >> (32 if self.low_addresses(at) else 40) and not self.unnamed
            name = self.run.address(self.record, address) if given else None
            if name:
                return Item("symbol", name)
            if address >> 40 == STACK >> 40 and path:
                return Item("word", "00000000", 2)
        return self.special_word(word, at)

    def low_addresses(self, at: int) -> bool:
        """Whether one below 1 TiB is one here: libcuda's begin at 8 GiB, where pairs of small numbers look like them.

        No control takes such an address, and of the classes a channel only: its ring's.
        """
        if self.call.way != layouts.IOCTL or self.call.number not in (layouts.RM_CONTROL, layouts.RM_ALLOC):
            return True
        return STEMS.get(self.before("class")) == "channel" and at == GPFIFO_OFFSET

    def special_word(self, word: int, at: int) -> Item | None:
        cmd = self.before("cmd")
        if word in self.run.state.gpu_ids and (
            cmd >> 8 in (1, 2, 0xB) or cmd == 0x20800142 or self.call.number in GPU_ID_CALLS
        ):
            return Item("symbol", f"${self.run.state.gpu_ids[word]}.id")
        if self.before("class") == 0x80 and at == 0 and word in self.run.state.instances:
            return Item("symbol", f"${self.run.state.instances[word]}.instance")
        name = self.run.state.handle(self.client, word) if word >= SMALLEST_HANDLE else None
        return Item("symbol", f"${name}") if name else None

    def file(self, fd: int) -> Item | None:
        """Where the driver looks up a control file, one came from elsewhere if it was not opened here."""
        held = self.run.state.process(self.record.pid).files.get(fd)
        if not held and self.inner.fd_kind == "CTL" and fd < 1 << 31 and self.worked:
            return Item("fd", f"@{self.run.file(self.record, fd, 'nvidiactl')}")
        return Item("fd", f"@{held[0]}") if held else None

    def file_at(self, path: str, at: int) -> bool:
        return bool(path == "params" and self.inner and self.inner.fd_kind != "NONE" and self.inner.fd_at == at)

    def changed(self, event: Event) -> list[Block]:
        """What the driver wrote and must write again: names, or all."""
        out = []
        if self.failed:
            return out
        memory = self.record.memory
        for number, path in self.paths.items():
            out += self.differences(path, memory[number].before, memory[number].after)
        for name, field in self.fields.items():
            if field.kind == "b":
                part = slice(field.at, field.at + field.size)
                out += self.differences(name, self.top.before[part], self.top.after[part])
        return out

    def differences(self, path: str, before: bytes, after: bytes) -> list[Block]:
        out: list[Block] = []
        end = 0
        fresh = self.answered if path == "params" else {}
        for low, high, hidden in spans_shown(before, after):
            at = low
            shown = [Item("any", "?", high - low)] if hidden else self.items(after[low:high], path="answer")
            for item in shown:
                item = Item("symbol", fresh[at]) if at in fresh else item
                if item.kind == "symbol" or self.run.whole:
                    if out and end == at:
                        out[-1].items.append(item)
                    else:
                        out.append(Block("out", path, [item], at))
                    end = at + item.size
                at += item.size
        return out

    def new_objects(self, before: bytes, after: bytes) -> None:
        """Handles made by parameters: bound in the input where the program chose them, else in the answer."""
        cmd = self.before("cmd")
        if cmd not in NEW_OBJECTS or not self.worked:
            return
        at, count_at = NEW_OBJECTS[cmd]
        count = int.from_bytes(after[count_at : count_at + 2], "little") if count_at else 1
        for place in range(at, at + 4 * count, 4):
            old, new = (int.from_bytes(data[place : place + 4], "little") for data in (before, after))
            if new:
                name = self.run.state.bind(self.client, new, self.client, "mem")
                if old:
                    self.chosen[place] = f"${name}!{old:x}"
                else:
                    self.answered[place] = f"${name}!"

    # what it did

    def note_objects(self) -> None:
        if not self.worked:
            return
        self.run.arch = ARCHS.get(self.before("class"), self.run.arch)
        if self.call.way == layouts.IOCTL and self.call.number == layouts.RM_FREE:
            self.run.state.free(self.client, self.before("old"))
        if self.inner and self.inner.verdict == "EXPORT":
            held = self.run.state.process(self.record.pid).files
            for m in self.record.memory:
                if m.parent == self.index:
                    fd = int.from_bytes(m.before[self.inner.fd_at : self.inner.fd_at + 4], "little")
                    if fd in held and (self.run.now, *held[fd]) not in self.run.sent:
                        self.run.sent.append((self.run.state.process(self.record.pid).name, *held[fd]))


def text_of(data: bytes) -> str:
    return data.partition(b"\0")[0].decode("ascii", "replace")


def zeros(data: bytes, at: int, places: set[int]) -> Item | None:
    """Words that are 0, up to the next place where even that means something."""
    if at % 4 or at in places or data[at : at + 4] != bytes(4):
        return None
    end = min([place for place in places if place > at], default=len(data))
    rest = data[at:end]
    count = (len(rest) - len(rest.lstrip(b"\0"))) // 4
    return Item("word", "00000000", count) if count else None


def spans(before: bytes, after: bytes):
    """Places, in whole words, that differ."""
    low = None
    if before == after:
        return
    for at in range(0, len(after) + 4, 4):
        if at < len(after) and before[at : at + 4] != after[at : at + 4]:
            low = at if low is None else low
        elif low is not None:
            yield low, min(at, len(after))
            low = None


def spans_shown(before: bytes, after: bytes):
    """Those places, apart by whether an address of the kernel stands there: it names nothing and is not kept."""
    kernel = {
        at + half
        for at in range(0, len(after) - 7, 8)
        if int.from_bytes(after[at : at + 8], "little") in KERNEL
        for half in (0, 4)
    }
    for low, high in spans(before, after):
        for hidden, words in groupby(range(low, high, 4), kernel.__contains__):
            places = [*words]
            yield places[0], min(places[-1] + 4, high), hidden
