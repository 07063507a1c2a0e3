# SPDX-License-Identifier: MIT
"""The decoder in user space: words in, works and memory out. Numbers here are the class headers', not push*.c's."""

from __future__ import annotations

import ctypes
import struct
import subprocess
from dataclasses import dataclass
from itertools import chain
from pathlib import Path

HERE = Path(__file__).resolve().parent
ENGINE = HERE.parents[1] / "simgpu/engine"
SOURCES = [HERE / "home.c", *(ENGINE / name for name in ("push.c", "push_copy.c", "push_compute.c"))]
FLAGS = ["-O1", "-g", "-Wall", "-Wextra", "-Werror", "-fno-sanitize-recover=all"]
BASE = 0x200000000

END, WORK, WAIT, FAULT = 1, 2, 3, 4
WORDS, SEM, COPY, LAUNCH = range(4)
MORE, INTR, YIELD, COUNTED, BROKEN, SIGNALLED = (1 << bit for bit in range(6))


def build(directory: Path) -> ctypes.CDLL:
    """The decoder and its home as a library."""
    library = directory / "push.so"
    subprocess.run(
        ["cc", *FLAGS, "-fsanitize=undefined", "-shared", "-fPIC", "-o", library, *SOURCES], check=True, timeout=120
    )
    lib = ctypes.CDLL(str(library))
    lib.home_new.restype = ctypes.c_void_p
    lib.home_new.argtypes = [ctypes.c_uint64]
    lib.home_mem.restype = ctypes.c_void_p
    lib.home_value.restype = ctypes.c_uint64
    lib.home_why.restype = ctypes.c_char_p
    lib.home_log.restype = ctypes.POINTER(ctypes.c_uint64)
    for name in ("mem", "why", "log", "next", "ready", "free"):
        getattr(lib, f"home_{name}").argtypes = [ctypes.c_void_p]
    lib.home_value.argtypes = [ctypes.c_void_p, ctypes.c_uint32]
    lib.home_entry.argtypes = [ctypes.c_void_p, ctypes.c_uint32, ctypes.c_uint32]
    lib.home_finish.argtypes = [ctypes.c_void_p, ctypes.c_uint64]
    for name in ("lose", "move"):
        getattr(lib, f"home_{name}").argtypes = [ctypes.c_void_p, ctypes.c_uint64]
    return lib


def inc(sub: int, method: int, *data: int) -> list[int]:
    """Data to successive methods."""
    return [1 << 29 | len(data) << 16 | sub << 13 | method >> 2, *(word & 0xFFFFFFFF for word in data)]


def same(sub: int, method: int, *data: int) -> list[int]:
    """Data to one method."""
    return [3 << 29 | len(data) << 16 | sub << 13 | method >> 2, *data]


def halves(va: int) -> tuple[int, int]:
    """Upper and lower word."""
    return va >> 32, va & 0xFFFFFFFF


@dataclass
class Done:
    """One work: its kind, its time, the result of push_finish()."""

    kind: int
    ns: int
    did: int


class Machine:
    """A channel over 2 MiB of memory at BASE; the push buffer is read from its last half MiB."""

    SIZE = 2 << 20
    PUSH = BASE + (3 << 19)

    def __init__(self, lib: ctypes.CDLL) -> None:
        self.lib = lib
        self.home = lib.home_new(self.SIZE)
        self.memory = (ctypes.c_char * self.SIZE).from_address(lib.home_mem(self.home))
        self.now = 1000

    def close(self) -> None:
        self.lib.home_free(self.home)

    def write(self, va: int, data: bytes) -> None:
        self.memory[va - BASE : va - BASE + len(data)] = data

    def read(self, va: int, size: int) -> bytes:
        return self.memory[va - BASE : va - BASE + size]

    def word(self, va: int) -> int:
        return struct.unpack("<I", self.read(va, 4))[0]

    def long(self, va: int) -> int:
        return struct.unpack("<Q", self.read(va, 8))[0]

    def value(self, what: str) -> int:
        return self.lib.home_value(self.home, ("kind", "ns", "reads", "writes", "logged", "at").index(what))

    def why(self) -> str:
        return self.lib.home_why(self.home).decode()

    def writes(self) -> list[tuple[int, int]]:
        """Addresses and lengths of the writes, in order."""
        log = self.lib.home_log(self.home)
        return [(log[2 * i], log[2 * i + 1]) for i in range(self.value("logged"))]

    def entry(self, words: list[int]) -> None:
        self.write(self.PUSH, struct.pack(f"<{len(words)}I", *words))
        self.raw_entry(self.PUSH, len(words))

    def raw_entry(self, va: int, count: int) -> None:
        self.lib.home_entry(self.home, va & 0xFFFFFFFF, va >> 32 & 0xFF | count << 10)

    def next(self) -> int:
        return self.lib.home_next(self.home)

    def ready(self) -> bool:
        return bool(self.lib.home_ready(self.home))

    def finish(self) -> Done:
        kind, ns = self.value("kind"), self.value("ns")
        self.now += ns
        return Done(kind, ns, self.lib.home_finish(self.home, self.now))

    def play(self) -> tuple[list[Done], int]:
        """Works until the segment ends, waits or faults; and which of these. A broken work counts as a fault."""
        works: list[Done] = []
        while True:
            step = self.next()
            if step != WORK:
                return works, step
            while True:
                works.append(self.finish())
                if works[-1].did & BROKEN:
                    return works, FAULT
                if not works[-1].did & MORE:
                    break

    def run(self, *parts: list[int]) -> list[Done]:
        """Plays @parts to their end: they must have one."""
        self.entry(list(chain(*parts)))
        works, step = self.play()
        assert step == END, (step, self.why())
        return works

    def fault(self, *parts: list[int]) -> str:
        """Plays @parts, which must fault; returns the reason."""
        self.entry(list(chain(*parts)))
        _works, step = self.play()
        assert step == FAULT
        return self.why()
