# SPDX-License-Identifier: MIT
"""Every call of a trace through the core's call table, for the branch that the trace was taken on.

Checks: the table has the call, its size and the sizes of its parameters; a file is exactly where the driver looks one
up by the table; the table refuses the calls that the trace marks as refused, and no others; symbols and files are used
after they were made. `python tests/abi/replay/check.py FILE…` lists the verdicts.
"""

from __future__ import annotations

import sys
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE), str(HERE.parents[1] / "unit/core")]

import calltable  # noqa: E402
import values  # noqa: E402
from calltable import found  # noqa: E402
from corelib import C, lib  # noqa: E402
from layouts import ALLOC_MEMORY, RM_ALLOC, RM_CONTROL, UVM  # noqa: E402
from tracefile import Block, Event, Trace, TraceError, load  # noqa: E402

LOOKED_UP = {"CTL": {"ctl"}, "GPU": {"gpu"}, "RM": {"ctl", "gpu"}, "UVM": {"uvm"}}
GPU_SYMBOLS = ("id", "minor", "uuid", "instance")


@dataclass
class Verdict:
    """The table's verdict on one call."""

    line: int
    call: str
    verdict: str
    name: str
    refused: bool = False
    note: str = ""
    wrong: list[str] = field(default_factory=list)


def node_kind(node: str) -> str:
    return {"nvidiactl": "ctl", "nvidia-uvm": "uvm"}.get(node, "gpu")


class Checker:
    """Walks a trace once. Also the Names of values.build(): values are ignored, only their presence is checked."""

    def __init__(self, trace: Trace):
        self.trace = trace
        self.process = "p1"
        self.files: dict[str, dict[str, str]] = {"p1": {}}
        self.symbols: set[str] = set()
        self.verdicts: list[Verdict] = []
        self.problems: list[str] = []
        for gpu in range(int(trace.header.get("gpus", "1"))):
            self.symbols |= {f"gpu{gpu}.{what}" for what in GPU_SYMBOLS}

    # Names

    def symbol(self, name: str) -> int | bytes:
        if name not in self.symbols:
            raise TraceError(f"${name} is not bound yet")
        return bytes(16) if name.endswith(".uuid") else 0

    def bind(self, name: str, value: int | bytes) -> None:
        self.symbols.add(name)

    def fd(self, name: str) -> int:
        self.node(name)
        return 0

    def node(self, name: str) -> str:
        try:
            return self.files[self.process][name.removeprefix("@")]
        except KeyError:
            raise TraceError(f"{name} is not open in {self.process}") from None

    # events

    def walk(self, events: list[Event]) -> None:
        for event in events:
            try:
                self.event(event)
            except (TraceError, ValueError) as err:
                self.problems.append(f"{self.trace.where(event)}: {event.verb}: {err}")
            self.walk(event.body)

    def event(self, event: Event) -> None:
        getattr(self, f"do_{event.verb}", lambda event: None)(event)

    def do_as(self, event: Event) -> None:
        self.process = event.words[0].partition(".")[0]
        if self.process not in self.files:
            raise TraceError(f"there is no process {self.process}")

    def do_open(self, event: Event) -> None:
        if not event.result or "errno" not in event.result:
            self.files[self.process][event.words[0].removeprefix("@")] = event.words[1]

    def do_close(self, event: Event) -> None:
        self.node(event.words[0])
        del self.files[self.process][event.words[0].removeprefix("@")]

    def do_dup(self, event: Event) -> None:
        self.files[self.process][event.words[1].removeprefix("@")] = self.node(event.words[0])

    def do_send(self, event: Event) -> None:
        name, process, new = event.words
        self.files[process][new.removeprefix("@")] = self.node(name)

    def do_fork(self, event: Event) -> None:
        self.files[event.words[0]] = dict(self.files[self.process])

    def do_va(self, event: Event) -> None:
        self.bind(event.words[0].removeprefix("$"), 0)

    def do_mmap(self, event: Event) -> None:
        self.node(event.words[1])
        self.bind(event.words[0].removeprefix("$"), 0)

    def do_munmap(self, event: Event) -> None:
        self.symbol(event.words[0].removeprefix("$"))

    def do_call(self, event: Event) -> None:
        node = self.node(event.words[0])
        call = values.target(event, node)
        values.build(event, call, self)
        row, inner = self.rows(event, call, node)
        seen = Verdict(event.line, str(call), row.verdict if row else "unknown", row.name if row else "")
        self.verdicts.append(seen)
        if inner is not None:
            seen.verdict, seen.name = (inner.verdict, inner.name) if inner else ("unknown", "")
        denied = row and row.verdict == "UVM_MANAGED" and self.trace.header.get("uvm", "deny") == "deny"
        seen.refused = bool(denied or (row and (row.refused or (inner and self.inner_refused(call, inner)))))
        seen.note = (inner or row).note if row else ""
        seen.wrong += self.of_row(event, call, row, inner, seen)
        self.bind_outputs(event)
        self.problems += [f"{self.trace.where(event)}: {call}: {what}" for what in seen.wrong]

    def rows(self, event: Event, call: values.Target, node: str):
        """The call's row, and that of the control or class in it: None without one, False where it is missing."""
        branch = self.trace.branch
        if call.way == UVM:
            return found("uvm", lib.cgpu_call_uvm(branch, call.number)), None
        bit = C.CGPU_NODE_CTL if node_kind(node) == "ctl" else C.CGPU_NODE_GPU
        row = found("escape", lib.cgpu_call_escape(branch, call.number, call.size, bit))
        if call.number not in (RM_CONTROL, RM_ALLOC, ALLOC_MEMORY):
            return row, None
        numbers = (values.number_of(event.fields.get(key, "0")) for key in ("cmd", "class"))
        return row, inner_row(branch, call.number, *numbers) or False

    def of_row(self, event: Event, call: values.Target, row, inner, seen: Verdict) -> list[str]:
        if not row:
            return ["not in the table, or not with this size on this node"]
        wrong = []
        if call.way == UVM and row.size != call.size:
            wrong.append(f"{call.size} bytes, the table says {row.size}")
        if call.name != row.name:
            wrong.append(f"the table calls it {row.name}")
        if inner is False:
            wrong.append("the table does not know its control or class")
        wrong += self.of_inner(event, call, inner) if inner else []
        expected = any(e.side == "cgpu" and e.refused for e in event.expects)
        if seen.refused and not expected:
            wrong.append(f"refused by the table ({seen.note}), which the trace does not expect")
        if expected and not seen.refused:
            wrong.append("not refused by the table, which the trace expects")
        return wrong + self.of_files(event, call, row, inner)

    @staticmethod
    def inner_refused(call: values.Target, inner) -> bool:
        return inner.refused or (call.number == ALLOC_MEMORY and inner.verdict != "SYSMEM")

    @staticmethod
    def of_inner(event: Event, call: values.Target, inner) -> list[str]:
        wrong = []
        what = "cmd" if call.number == RM_CONTROL else "class"
        name = event.fields.get(what, "").partition(":")[2]
        if name and name != inner.name:
            wrong.append(f"the table calls {what} {inner.name}, not {name}")
        if call.number == ALLOC_MEMORY or inner.number != values.number_of(event.fields.get(what, "0")):
            return wrong  # no parameters, or a row for all of a kind
        if inner.refused and not inner.size:
            return wrong  # a control of an unknown size
        block = event.block("in", "params")
        have = block.size if block else 0
        if have != inner.size and (have or inner.copied_in):
            wrong.append(f"{inner.name} with {have} bytes of parameters, the table says {inner.size}")
        return wrong

    def of_files(self, event: Event, call: values.Target, row, inner) -> list[str]:
        """Files stand where the driver looks them up, of the right kind, and nowhere else."""
        nested = inner if inner and inner.fd_kind != "NONE" else None
        places = dict(file_places(event, call))
        wrong = []
        for where, name in places.items():
            table = row if where[0] == "" else nested
            if not table or table.fd_kind == "NONE" or table.fd_at != where[1]:
                wrong.append(f"@{name} at {where[0] or 'the struct'}+{where[1]}, where the table names no file")
            elif node_kind(self.node(name)) not in LOOKED_UP.get(table.fd_kind, {node_kind(self.node(name))}):
                wrong.append(f"@{name} is a file of {self.node(name)}, the driver looks for {table.fd_kind}")
        if nested and nested.fd_kind in LOOKED_UP and ("params", nested.fd_at) not in places:
            wrong.append(f"no file at params+{nested.fd_at}, where {nested.name} looks one up")
        if row.fd_kind in LOOKED_UP and ("", row.fd_at) not in places and not negative(event, call, row.fd_at):
            wrong.append(f"no file at offset {row.fd_at}, where {row.name} looks one up")
        return wrong

    def bind_outputs(self, event: Event) -> None:
        texts = [*(event.result or {}).values()]
        texts += [i.text for b in event.blocks if b.way == "out" for i in b.items if i.kind == "symbol"]
        for text in texts:
            if text.startswith("$"):
                name, _, _, here = values.symbol_parts(text)
                if here:
                    self.bind(name, 0)
                else:
                    self.symbol(name)


def inner_row(branch: int, number: int, cmd: int, cls: int):
    """The row of the control or class that a call is about."""
    if number == RM_CONTROL:
        return found("control", lib.cgpu_call_control(branch, cmd))
    if number in (RM_ALLOC, ALLOC_MEMORY):
        return found("class", lib.cgpu_call_class(branch, cls))
    return None


def file_places(event: Event, call: values.Target):
    """((block, offset), file name) of every file among the call's inputs."""
    for name, text in event.fields.items():
        if text.startswith("@"):
            yield ("", call.field(name).at), text[1:]
    for block in event.blocks:
        if block.way == "in":
            yield from files_of_block(block)


def files_of_block(block: Block):
    at = 0
    for item in block.items:
        if item.kind == "fd":
            yield (block.path if block.path != "arg" else "", at), item.text[1:]
        at += item.size


def negative(event: Event, call: values.Target, at: int) -> bool:
    """Whether the trace has -1, no file."""
    return any(f.at == at and event.fields.get(f.name) == "-1" for f in call.fields or ())


def check(trace: Trace) -> Checker:
    checker = Checker(trace)
    if checker.trace.branch not in calltable.BRANCHES:
        checker.problems.append(f"{trace.path}: driver {trace.header['driver']}: not a branch of the table")
    checker.walk(trace.events)
    return checker


def main(paths: list[str]) -> int:
    bad = 0
    for path in paths:
        try:
            checker = check(load(path))
        except TraceError as err:
            print(err)
            bad += 1
            continue
        for v in checker.verdicts:
            name = v.name if v.name not in v.call else ""
            print(f"{Path(path).name}:{v.line}: {v.verdict:<10} {v.call} {name}".rstrip())
        print(*checker.problems, sep="\n", end="\n" if checker.problems else "")
        tally = ", ".join(f"{n} {v}" for v, n in Counter(v.verdict for v in checker.verdicts).most_common())
        print(f"{path}: {len(checker.verdicts)} calls: {tally}; {len(checker.problems)} problems")
        bad += bool(checker.problems)
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
