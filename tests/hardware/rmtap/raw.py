# SPDX-License-Identifier: MIT
"""What rmtap wrote, read: records of all processes in the order in which they happened."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from pathlib import Path

HEX = re.compile(r"_(\d+)_|((?:[0-9a-f]{2})+)")


class RawError(Exception):
    """What is wrong, with file and line."""


@dataclass
class Memory:
    """Some of the caller's memory: @at says where in block @parent the pointer to it is; -1 is the struct itself."""

    parent: int
    at: int
    before: bytes
    after: bytes


@dataclass
class Record:
    """One line: what happened, by its words."""

    ns: int
    pid: int
    tid: int
    verb: str
    words: list[str]
    memory: list[Memory] = field(default_factory=list)
    where: str = ""

    def number(self, index: int, base: int = 10) -> int:
        return int(self.words[index], base)


def unhex(text: str) -> bytes:
    out, at = [], 0
    while at < len(text):
        found = HEX.match(text, at)
        if not found:
            raise ValueError(f"no hex: {text[at : at + 16]!r}")
        out.append(bytes(int(found[1])) if found[1] else bytes.fromhex(found[2]))
        at = found.end()
    return b"".join(out)


def memory(word: str) -> Memory:
    parent, at, size, before, after = word.split(":")
    first = unhex(before)
    second = first if after == "=" else unhex(after)
    if not len(first) == len(second) == int(size):
        raise ValueError(f"{len(first)} and {len(second)} bytes, {size} are announced")
    return Memory(int(parent), int(at), first, second)


def parse(line: str, pid: int) -> Record:
    ns, tid, verb, *words = line.split()
    memories = []
    if verb == "ioctl":
        words, blocks = words[:5], words[5:]
        memories = [memory(word) for word in blocks]
    return Record(int(ns), pid, int(tid), verb, words, memories)


def read(path: Path) -> tuple[str, list[Record]]:
    """The driver's version, and the records of one process. A last line that was cut off is dropped: it was killed."""
    lines = path.read_text().split("\n")
    found = re.fullmatch(r"rmtap 1 (\d+) (\S+)", lines[0])
    if not found:
        raise RawError(f"{path}:1: not written by rmtap 1")
    records, latest = [], 0
    for number, line in enumerate(lines[1:-1], 2):
        try:
            record = parse(line, int(found[1]))
        except (ValueError, IndexError) as err:
            raise RawError(f"{path}:{number}: {err}") from None
        # Threads take the time before they queue for the file: the file's order is the one that holds.
        record.ns = latest = max(latest, record.ns)
        record.where = f"{path.name}:{number}"
        records.append(record)
    return found[2], records


def read_all(paths: list[Path]) -> tuple[str, list[Record]]:
    versions, records = set(), []
    for path in sorted(paths):
        version, found = read(path)
        versions.add(version)
        records += found
    if len(versions) != 1:
        raise RawError(f"one driver, not {len(versions)}: {sorted(versions)}")
    return versions.pop(), sorted(records, key=lambda record: record.ns)
