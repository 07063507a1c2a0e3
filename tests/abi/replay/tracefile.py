# SPDX-License-Identifier: MIT
"""The trace format of docs/develop/replay.md: read, checked for form, written. The meaning of calls is ignored."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from pathlib import Path

HEADER = ("driver", "gpu", "arch", "gpus", "date", "program", "made-by", "memsize", "uvm")
NEEDED = ("driver", "gpu", "date", "program", "made-by")
VERBS = {
    # verb: (fewest, most) words without "="
    "as": (1, 1),
    "call": (2, 3),
    "check": (0, 0),
    "close": (1, 1),
    "dup": (2, 2),
    "exit": (0, 0),
    "fork": (1, 1),
    "mmap": (2, 2),
    "munmap": (1, 1),
    "open": (2, 2),
    "repeat": (1, 1),
    "send": (3, 3),
    "va": (1, 1),
}
SIDES = ("cgpu", "nvsim")
POINTER_BYTES = 8

ITEM = re.compile(
    r"(?P<word>[0-9a-f]{8})|(?P<byte>[0-9a-f]{2})|(?P<symbol>\$[\w.]+(?:\+0x[0-9a-f]+|![0-9a-f]*)?)|(?P<fd>@[\w.]+)"
    r'|(?P<pointer>&)|(?P<any>\?)|(?P<text>"[^"]*")'
)
BLOCK = re.compile(r"  (in|out|cgpu) ([\w.]+(?:@[\w.]+)*)(?:\+(0x[0-9a-f]+))?(?: (\d+))?:((?: \S.*)?)$")


class TraceError(Exception):
    """An error in a trace, with file and line."""


@dataclass(frozen=True)
class Item:
    """Some bytes: @count times the same, of @kind word, byte, symbol, fd, pointer, any or text."""

    kind: str
    text: str
    count: int = 1

    def __str__(self) -> str:
        return self.text + (f"*{self.count}" if self.count != 1 else "")

    @property
    def size(self) -> int:
        return self.count * {
            "word": 4,
            "byte": 1,
            "fd": 4,
            "pointer": POINTER_BYTES,
            "any": 1,
            "text": len(self.text) - 2,
            "symbol": symbol_bytes(self.text),
        }.get(self.kind, 0)


def symbol_bytes(text: str) -> int:
    """By the form of the name: a UUID has 16 bytes, an address ($va1, $addr1) 8, a handle or a number 4."""
    name = re.split(r"[+!]", text.removeprefix("$"))[0]
    if name.endswith(".uuid"):
        return 16
    return 8 if re.fullmatch(r"(va|addr)\d+", name) else 4


@dataclass
class Block:
    """Bytes behind a field (`params`) or behind the pointer at an offset of such bytes (`params@8`)."""

    way: str
    path: str
    items: list[Item]
    offset: int = 0
    size: int | None = None
    line: int = field(default=0, compare=False)

    def __str__(self) -> str:
        head = f"  {self.way} {self.path}"
        if self.offset:
            head += f"+{self.offset:#x}"
        if self.size is not None:
            head += f" {self.size}"
        return " ".join([f"{head}:", *map(str, self.items)])


@dataclass
class Expect:
    """Another machine's answer: the call table's refusal, or a call that nvsim does not have."""

    side: str
    refused: bool
    result: dict[str, str]
    note: str = ""
    line: int = field(default=0, compare=False)

    def __str__(self) -> str:
        words = ["expect", self.side, *(["refused"] if self.refused else []), *pairs(self.result)]
        return " ".join(words) + (f" # {self.note}" if self.note else "")


@dataclass
class Event:
    """One line with its blocks: a call, or an event of a file, a mapping, a process."""

    verb: str
    words: list[str] = field(default_factory=list)
    fields: dict[str, str] = field(default_factory=dict)
    result: dict[str, str] | None = None
    note: str = ""
    blocks: list[Block] = field(default_factory=list)
    expects: list[Expect] = field(default_factory=list)
    body: list[Event] = field(default_factory=list)
    line: int = field(default=0, compare=False)

    def head(self) -> str:
        words = [self.verb, *self.words, *pairs(self.fields)]
        if self.result is not None:
            words += ["->", *pairs(self.result)]
        return " ".join(words) + (f" # {self.note}" if self.note else "")

    def lines(self) -> list[str]:
        out = [*map(str, self.expects), self.head(), *map(str, self.blocks)]
        for event in self.body:
            out += event.lines()
        return [*out, "end"] if self.verb == "repeat" else out

    def block(self, way: str, path: str) -> Block | None:
        return next((b for b in self.blocks if (b.way, b.path) == (way, path)), None)


@dataclass
class Trace:
    header: dict[str, str]
    events: list[Event]
    path: str = field(default="trace", compare=False)

    @property
    def branch(self) -> int:
        return int(self.header["driver"].split(".")[0])

    def text(self) -> str:
        head = [f"{key} {self.header[key]}" for key in HEADER if key in self.header]
        body = [line for event in self.events for line in event.lines()]
        return "\n".join(["cgpu-trace 1", *head, "", *body]) + "\n"

    def where(self, thing: Event | Block | Expect) -> str:
        return f"{Path(self.path).name}:{thing.line}"


def pairs(values: dict[str, str]) -> list[str]:
    return [f"{key}={value}" if value != "" else key for key, value in values.items()]


# ---- reading ----


def parse_items(text: str) -> list[Item]:
    items, at = [], 0
    text = text.strip()
    while at < len(text):
        found = ITEM.match(text, at)
        if not found:
            raise TraceError(f"no item: {text[at : at + 20]!r}")
        at = found.end()
        times = re.compile(r"\*([1-9]\d*)").match(text, at)
        at = times.end() if times else at
        if at < len(text) and text[at] != " ":
            raise TraceError(f"no blank after {found[0]!r}")
        items.append(Item(found.lastgroup, found[0], int(times[1]) if times else 1))
        while at < len(text) and text[at] == " ":
            at += 1
    return items


def parse_block(text: str) -> Block:
    found = BLOCK.fullmatch(text.rstrip())
    if not found:
        raise TraceError(f"no block: {text.strip()[:40]!r}")
    items = parse_items(found[5])
    size = int(found[4]) if found[4] else None
    block = Block(found[1], found[2], items, int(found[3] or "0", 16), size)
    have = sum(item.size for item in items)
    if size is not None and have != size:
        raise TraceError(f"{block.path} has {have} bytes, {size} are announced")
    if (block.way == "in") != (size is not None):
        raise TraceError("only an in block has a size")
    return block


def split_words(words: list[str]) -> tuple[list[str], dict[str, str]]:
    plain, named = [], {}
    for word in words:
        key, sign, value = word.partition("=")
        if not sign:
            if named:
                raise TraceError(f"{word!r} after a field")
            plain.append(word)
        elif not key or not value or key in named:
            raise TraceError(f"no field: {word!r}")
        else:
            named[key] = value
    return plain, named


def parse_result(text: str) -> dict[str, str]:
    """ok, errno=NAME or fields."""
    plain, named = split_words(text.split())
    if plain not in ([], ["ok"]) or not (plain or named):
        raise TraceError(f"no result: {text!r}")
    return {**dict.fromkeys(plain, ""), **named}


def parse_event(text: str) -> Event:
    text, _, note = text.partition(" # ")
    head, arrow, tail = text.partition(" -> ")
    verb, *words = head.split()
    if verb not in VERBS:
        raise TraceError(f"no verb: {verb!r}")
    plain, named = split_words(words)
    fewest, most = VERBS[verb]
    if not fewest <= len(plain) <= most:
        raise TraceError(f"{verb} takes {fewest} to {most} words, not {len(plain)}")
    if verb == "call" and not arrow:
        raise TraceError("a call needs a result")
    if verb == "repeat" and not plain[0].isdecimal():
        raise TraceError(f"repeat how often: {plain[0]!r}")
    return Event(verb, plain, named, parse_result(tail) if arrow else None, note.strip())


def parse_expect(text: str) -> Expect:
    text, _, note = text.partition(" # ")
    _, side, *words = text.split()
    if side not in SIDES:
        raise TraceError(f"expect of whom: {side!r}")
    refused = words[:1] == ["refused"]
    return Expect(side, refused, parse_result(" ".join(words[refused:])), note.strip())


class Reader:
    """Puts lines together: expects before their call, blocks after it, repeats around events."""

    def __init__(self, name: str):
        self.name = name
        self.header: dict[str, str] = {}
        self.lists: list[list[Event]] = [[]]
        self.expects: list[Expect] = []
        self.last: Event | None = None

    def take(self, number: int, line: str) -> None:
        if not line.strip() or line.startswith("#"):
            return
        if line.startswith(" "):
            self.block(number, line)
        elif line.split()[0] in HEADER and not (self.lists[0] or self.expects):
            key, _, value = line.partition(" ")
            self.header[key] = value.strip()
        elif line.startswith("expect "):
            self.expects.append(parse_expect(line))
            self.expects[-1].line = number
        elif line.strip() == "end":
            if len(self.lists) == 1 or self.expects:
                raise TraceError("end without repeat, or after an expect")
            self.lists.pop()
            self.last = None
        else:
            self.event(number, line)

    def block(self, number: int, line: str) -> None:
        if not self.last or self.last.verb != "call":
            raise TraceError("a block without a call")
        block = parse_block(line)
        block.line = number
        self.last.blocks.append(block)

    def event(self, number: int, line: str) -> None:
        event = parse_event(line)
        event.line = number
        event.expects, self.expects = self.expects, []
        if event.expects and event.verb not in ("call", "mmap", "open"):
            raise TraceError("expect stands before a call, an mmap or an open")
        self.lists[-1].append(event)
        self.last = event
        if event.verb == "repeat":
            self.lists.append(event.body)

    def finish(self) -> Trace:
        missing = [key for key in NEEDED if key not in self.header]
        if missing or len(self.lists) > 1 or self.expects:
            raise TraceError(f"{self.name}: it ends too early; missing: {missing or 'a call or end'}")
        return Trace(self.header, self.lists[0], self.name)


def parse(text: str, name: str = "trace") -> Trace:
    first, *lines = text.split("\n")
    if first != "cgpu-trace 1":
        raise TraceError(f"{name}:1: not a trace of version 1")
    reader = Reader(name)
    for number, line in enumerate(lines, 2):
        try:
            reader.take(number, line)
        except TraceError as err:
            raise TraceError(f"{name}:{number}: {err}") from None
    return reader.finish()


def load(path: Path | str) -> Trace:
    return parse(Path(path).read_text(), str(path))


def flat(events: list[Event]):
    """Every event once, repeats opened."""
    for event in events:
        yield event
        yield from flat(event.body)


def unfolded(events: list[Event]) -> list[Event]:
    """Every event as often as it occurs."""
    out = []
    for event in events:
        out += unfolded(event.body) * int(event.words[0]) if event.verb == "repeat" else [event]
    return out


def symbols(event: Event) -> tuple[set[str], set[str]]:
    """Names of the symbols that an event needs, and of those that it binds.

    Among them files, by @name: a mmap maps the memory that NV_ESC_RM_MAP_MEMORY selected for the file.
    """
    texts = [*event.words[:1], *event.fields.values(), *(event.result or {}).values()]
    texts += [item.text for block in event.blocks for item in block.items if item.kind == "symbol"]
    needed, bound = set(), set()
    for text in texts:
        if text.startswith("$"):
            name = re.split(r"[+!]", text[1:])[0]
            (bound if "!" in text or (event.verb in ("va", "mmap") and text == event.words[0]) else needed).add(name)
    if event.verb == "mmap":
        needed.add(event.words[1])
    elif event.verb == "open":
        bound.add(event.words[0])
    elif event.verb == "call" and event.words[1].startswith("0x4e/") and "fd" in event.fields:
        bound.add(event.fields["fd"])
    return needed, bound
