# SPDX-License-Identifier: MIT
"""What the kernel traces of the module: how long a task holds its locks and stays in RCU read sections (from lockdep's
events, so on the debug kernel only), and how often a function is called."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path

TRACING = Path("/sys/kernel/tracing")
LINE = re.compile(r"\s(?P<at>\d+\.\d+): lock_(?P<what>acquire|release): (?P<lock>\S+) (?P<rest>.*)$")


class Held:
    """The longest hold of each lock class, in milliseconds, by the task's own clock."""

    def __init__(self) -> None:
        self.longest_ms: dict[str, float] = {}

    def read(self, lines: Iterable[str]) -> None:
        """Pairs the events of one task. A read section inside of another one belongs to the outer one."""
        since: dict[str, tuple[float, int]] = {}
        for line in lines:
            if not (found := LINE.search(line)):
                continue
            at = float(found["at"])
            # lock_acquire: address [trylock] [read] name; lock_release: address name
            name = found["rest"].split()[-1]
            start, depth = since.get(name, (at, 0))
            if found["what"] == "acquire":
                since[name] = (start if depth else at, depth + 1)
            elif depth:
                since[name] = (start, depth - 1)
                if depth == 1:
                    self.longest_ms[name] = max(self.longest_ms.get(name, 0.0), (at - start) * 1000)


def _write(name: str, text: str) -> None:
    (TRACING / name).write_text(text)


def _mount() -> None:
    if not (TRACING / "trace").exists():
        os.system(f"mount -t tracefs tracefs {TRACING}")


class Calls:
    """Of one function of the kernel or a module, by any task, since the context began."""

    def __init__(self, event: str):
        self.event = event

    @property
    def count(self) -> int:
        for line in (TRACING / "kprobe_profile").read_text().splitlines():
            name, hits, _missed = line.split()
            if name == self.event:
                return int(hits)
        raise LookupError(self.event)


@contextmanager
def calls_of(function: str) -> Iterator[Calls]:
    """Counts with a kprobe. @function is a symbol that is not inlined."""
    _mount()
    event = f"calls_{function}"
    _write("kprobe_events", f"p:kprobes/{event} {function}\n")
    _write(f"events/kprobes/{event}/enable", "1")
    try:
        yield Calls(event)
    finally:
        _write(f"events/kprobes/{event}/enable", "0")
        _write("kprobe_events", "")
        _write("trace", "")


@contextmanager
def held(*locks: str) -> Iterator[Held]:
    """Measures this process. The names are lockdep's: of a mutex `&ct->rm_lock`, of RCU `rcu_read_lock`."""
    _mount()
    result = Held()
    condition = " || ".join(f'name == "{name}"' for name in locks)
    before = {name: (TRACING / name).read_text().split()[0] for name in ("buffer_size_kb", "tracing_on")}
    clock = re.search(r"\[(\w+)\]", (TRACING / "trace_clock").read_text())
    _write("buffer_size_kb", "65536")
    _write("trace_clock", "mono")
    for event in ("lock_acquire", "lock_release"):
        _write(f"events/lock/{event}/filter", f"common_pid == {os.getpid()} && ({condition})")
        _write(f"events/lock/{event}/enable", "1")
    _write("trace", "")
    _write("tracing_on", "1")
    try:
        yield result
    finally:
        _write("tracing_on", "0")
        for event in ("lock_acquire", "lock_release"):
            _write(f"events/lock/{event}/enable", "0")
            _write(f"events/lock/{event}/filter", "0")
        # Line by line: the whole text is some 100 MB, and in User-Mode Linux each page of a process can be a mapping of
        # the host's, which allows vm.max_map_count of them (65,530): beyond it the process gets SIGSEGV.
        with (TRACING / "trace").open() as trace:
            result.read(trace)
        _write("trace", "")
        _write("trace_clock", clock[1] if clock else "local")
        for name, value in before.items():
            _write(name, value)
