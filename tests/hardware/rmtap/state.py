# SPDX-License-Identifier: MIT
"""What a recorded run has at a moment: files, handles, addresses, GPUs, and the names that a trace gives them.

A name is given back with what it named: a loop that allocates and frees reads the same each time, and folds.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass, field

from raw import Record

VA_ALIGN = 2 << 20
STEMS = {
    **dict.fromkeys((0x0, 0x1, 0x41), "client"),
    **dict.fromkeys((0x3E, 0x40, 0x71), "mem"),
    0x80: "device",
    0x2080: "subdevice",
    0x90F1: "vaspace",
    0xA06C: "tsg",
    0x9067: "share",
    **dict.fromkeys((0x5, 0x79), "event"),
    **dict.fromkeys((0xC36F, 0xC46F, 0xC56F, 0xC86F, 0xC96F, 0xCA6F), "channel"),
    **dict.fromkeys((0xC361, 0xC461, 0xC561, 0xC661, 0xC761), "usermode"),
}
ID_INFO, UUID_FROM_ID, GID_INFO = 0x205, 0x275, 0x2080014A
CARD_BYTES, CARD_ID, CARD_MINOR = 72, 16, 56
BINARY = 2  # the flag of GET_GID_INFO and GET_UUID_FROM_GPU_ID


class Pool:
    """stem1, stem2, …: the lowest that is free."""

    def __init__(self) -> None:
        self.taken: set[str] = set()

    def take(self, stem: str) -> str:
        number = 1
        while f"{stem}{number}" in self.taken:
            number += 1
        self.taken.add(f"{stem}{number}")
        return f"{stem}{number}"

    def give_back(self, name: str) -> None:
        self.taken.discard(name)


@dataclass
class Handle:
    name: str
    parent: int
    file: str = ""  # a client's: its control file


@dataclass
class Process:
    name: str
    files: dict[int, tuple[str, str]] = field(default_factory=dict)  # fd: name, node
    mappings: dict[int, tuple[str, int]] = field(default_factory=dict)  # address: name and length
    ranges: list[tuple[int, int, str]] = field(default_factory=list)  # reserved addresses: base, end, name


class State:
    def __init__(self) -> None:
        self.pool = Pool()
        self.processes: dict[int, Process] = {}
        self.handles: dict[tuple[int, int], Handle] = {}
        self.gpu_ids: dict[int, str] = {}
        self.uuids: dict[bytes, str] = {}
        self.minors: dict[int, int] = {}  # of the machine: the trace's
        self.instances: dict[int, str] = {}

    def process(self, pid: int) -> Process:
        return self.processes.setdefault(pid, Process(f"p{len(self.processes) + 1}"))

    # files

    def open(self, pid: int, fd: int, node: str) -> str:
        stem = {"nvidiactl": "ctl", "nvidia-uvm": "uvm"}.get(node, "gpu")
        name = self.pool.take(stem)
        self.process(pid).files[fd] = (name, node)
        return name

    def close(self, pid: int, fd: int) -> str | None:
        """The file's name; clients go with the last file of it."""
        name, _ = self.process(pid).files.pop(fd, (None, None))
        if name and not any(name == n for p in self.processes.values() for n, _ in p.files.values()):
            self.pool.give_back(name)
            for client in [h for (c, h), held in self.handles.items() if c == h and held.file == name]:
                self.free(client, client)
        return name

    def node(self, node: str) -> str:
        """nvidia3 as the trace's first GPU is nvidia0."""
        digits = node.removeprefix("nvidia")
        return f"nvidia{self.minors.get(int(digits), int(digits))}" if digits.isdecimal() else node

    # handles

    def bind(self, client: int, handle: int, parent: int, stem: str, file: str = "") -> str:
        self.free(client, handle)
        name = self.pool.take(stem)
        self.handles[client, handle] = Handle(name, parent, file)
        return name

    def free(self, client: int, handle: int) -> None:
        """With all below it; a client with all it has."""
        held = self.handles.pop((client, handle), None)
        if not held:
            return
        self.pool.give_back(held.name)
        below = [h for (c, h), o in self.handles.items() if c == client and (o.parent == handle or handle == client)]
        for child in below:
            self.free(client, child)

    def handle(self, client: int, handle: int) -> str | None:
        found = self.handles.get((client, handle)) or self.handles.get((handle, handle))
        return found.name if found else None

    # addresses

    def address(self, pid: int, value: int) -> str | None:
        process = self.process(pid)
        for base, end, name in process.ranges:
            if base <= value < end:
                return f"${name}" + (f"+{value - base:#x}" if value != base else "")
        name, _ = process.mappings.get(value, (None, 0))
        return f"${name}" if name else None


# ---- what must be known beforehand ----


def learn_gpus(state: State, records: list[Record]) -> int:
    """Number the GPUs: those whose node was opened first, by minor. Returns how many there are."""
    ids: dict[int, int] = {}
    opened: set[int] = set()
    for r in records:
        digits = r.words[1].removeprefix("nvidia") if r.verb in ("open", "ioctl") else ""
        if digits.isdecimal():
            opened.add(int(digits))
        if r.verb == "ioctl" and r.number(2, 16) & 0xFF == 200 and r.memory and r.words[1] == "nvidiactl":
            cards = r.memory[0].after
            for at in range(0, len(cards) - CARD_BYTES + 1, CARD_BYTES):
                if cards[at]:
                    ids[struct.unpack_from("<I", cards, at + CARD_MINOR)[0]] = struct.unpack_from(
                        "<I", cards, at + CARD_ID
                    )[0]
    minors = sorted(opened) + sorted(set(ids) - opened)
    for number, minor in enumerate(minors):
        state.minors[minor] = number
        if minor in ids:
            state.gpu_ids[ids[minor]] = f"gpu{number}"
    return max(len(opened), 1)


def controls(records: list[Record]):
    """(client, object, cmd, parameters before, after) of each control that came back."""
    for r in records:
        if r.verb != "ioctl" or r.words[1] == "nvidia-uvm":
            continue
        for index, top in enumerate(r.memory):
            nested = [m for m in r.memory if m.parent == index and m.at == 16]
            if len(top.before) == 32 and nested and (r.number(2, 16) & 0xFF == 0x2A or index == 1):
                client, obj, cmd = struct.unpack_from("<III", top.before)
                yield client, obj, cmd, nested[0].before, nested[0].after


def learn_uuids(state: State, records: list[Record]) -> None:
    """Device instances and UUIDs, from the calls that requested them."""
    for _, _, cmd, _, after in controls(records):
        if cmd == ID_INFO and len(after) >= 12:
            gpu_id, _, instance = struct.unpack_from("<III", after)
            if gpu_id in state.gpu_ids:
                state.instances[instance] = state.gpu_ids[gpu_id]
        if cmd == UUID_FROM_ID and len(after) >= 24 and after[4] & 3 == BINARY:
            gpu = state.gpu_ids.get(struct.unpack_from("<I", after)[0])
            if gpu:
                state.uuids[after[8:24]] = gpu
    # Asked of a subdevice: whose it is shows where there is one GPU, or the rest is known.
    seen = {a[12:28] for _, _, cmd, _, a in controls(records) if cmd == GID_INFO and a[4:5] == bytes([BINARY])}
    left = [f"gpu{n}" for n in sorted(state.minors.values()) if f"gpu{n}" not in state.uuids.values()]
    for uuid, gpu in zip([u for u in seen if u not in state.uuids], left[:1], strict=False):
        state.uuids[uuid] = gpu


def learn_ranges(state: State, intervals: dict[int, list[tuple[int, int]]]) -> None:
    """Addresses that a process gave to uvm, as few ranges of whole 2 MiB: how it reserved them is not recorded."""
    for pid, found in intervals.items():
        merged: list[list[int]] = []
        for base, length in sorted(found):
            low, high = base // VA_ALIGN * VA_ALIGN, -(-(base + length) // VA_ALIGN) * VA_ALIGN
            if merged and low <= merged[-1][1]:
                merged[-1][1] = max(merged[-1][1], high)
            else:
                merged.append([low, high])
        process = state.process(pid)
        process.ranges = [(low, high, state.pool.take("va")) for low, high in merged]
