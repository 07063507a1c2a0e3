# SPDX-License-Identifier: MIT
"""Makes a trace (docs/develop/replay.md) of rmtap's output: names for files, handles and addresses, a line per call.

normalise.py --program 'vectorAdd' --gpu 'Tesla T4' --out vectoradd.trace rmtap-*.raw
"""

from __future__ import annotations

import argparse
import datetime
import struct
import sys
from pathlib import Path

HERE = Path(__file__).resolve().parent
TESTS = HERE.parents[1]
sys.path[:0] = [str(HERE), str(TESTS / "abi/replay"), str(TESTS / "unit/core")]

import layouts  # noqa: E402
import raw  # noqa: E402
import values  # noqa: E402
from call import Call  # noqa: E402
from check import check, found  # noqa: E402
from corelib import C, lib  # noqa: E402
from fold import fold  # noqa: E402
from state import State, learn_gpus, learn_ranges, learn_uuids  # noqa: E402
from tracefile import Event, Expect, Trace, TraceError, flat  # noqa: E402

CREATE_RANGE, PARALLELISM_REGION = 73, 65
OS_DESCRIPTOR = 0x71
#: Of kinds that the module duplicates no handle of: cgpu_km/intercept/rm_dup.c.
ONE_HANDLE = ("client", "device", "subdevice", "channel")
PROTECTIONS = {0: "none", 1: "r", 2: "w", 3: "rw"}


class Normaliser:
    def __init__(self, records: list[raw.Record], branch: int, whole: bool = False):
        self.records, self.branch, self.whole = records, branch, whole
        self.state = State()
        self.gpus = learn_gpus(self.state, records)
        learn_uuids(self.state, records)
        seen = {record.pid for record in records}
        for record in records:
            if record.verb == "fork" and record.number(0) in seen:
                self.state.process(record.number(0))
            self.state.process(record.pid)
        learn_ranges(self.state, self.intervals())
        self.events: list[Event] = []
        self.now = ""  # the process that the trace is in
        self.reserved: set[str] = set()
        self.arch = ""
        self.sent: list[tuple[str, str, str]] = []  # exports: process, file, node

    def intervals(self) -> dict[int, list[tuple[int, int]]]:
        out: dict[int, list[tuple[int, int]]] = {}
        for r in self.records:
            out.setdefault(r.pid, []).extend(intervals_of(r))
        return out

    def run(self) -> list[Event]:
        for pid in self.unrelated():
            self.events.append(Event("fork", [self.state.process(pid).name]))
        for record in self.records:
            getattr(self, f"do_{record.verb}")(record)
        return self.events

    def unrelated(self) -> list[int]:
        """Processes whose fork is not in the record: the trace's first one does, before it has anything."""
        forked = {record.pid for record in self.records if record.verb == "fork"}
        return [pid for pid in list(self.state.processes)[1:] if pid not in forked]

    def emit(self, record: raw.Record, event: Event) -> None:
        process = self.state.process(record.pid)
        if process.name != (self.now or "p1"):
            self.events.append(Event("as", [process.name]))
        self.now = process.name
        self.events.append(event)

    # files, processes, mappings

    def do_open(self, record: raw.Record) -> None:
        fd, node, flags = record.number(0), record.words[1], record.number(2, 16)
        name = self.state.open(record.pid, fd, node)
        fields = {"flags": "nonblock"} if flags & 0x800 else {}
        self.emit(record, Event("open", [f"@{name}", self.state.node(node)], fields))

    def do_close(self, record: raw.Record) -> None:
        name = self.state.close(record.pid, record.number(0))
        if name:
            self.emit(record, Event("close", [f"@{name}"]))

    def do_dup(self, record: raw.Record) -> None:
        old = self.file(record, record.number(0), record.words[2])
        new = self.state.open(record.pid, record.number(1), record.words[2])
        self.emit(record, Event("dup", [f"@{old}", f"@{new}"]))

    def do_fork(self, record: raw.Record) -> None:
        child = self.state.process(record.pid)
        # A parent that has no file of ours has no log: then the first process stands in for it.
        parent = self.state.processes.get(record.number(0)) or next(iter(self.state.processes.values()))
        if parent is child:
            return
        child.files, child.ranges = dict(parent.files), [*parent.ranges, *child.ranges]
        child.mappings = dict(parent.mappings)
        if parent.name != (self.now or "p1"):
            self.events.append(Event("as", [parent.name]))
        self.now = parent.name
        self.events.append(Event("fork", [child.name]))

    def do_mmap(self, record: raw.Record) -> None:
        file = self.file(record, record.number(0), record.words[1])
        address, length, prot, _, offset, err = (record.number(i, 16) for i in range(2, 8))
        err = record.number(7)
        fields = {"length": f"{length:#x}"}
        if record.words[1] == "nvidia-uvm":
            fields |= {"at": self.value("addr", offset, record), "offset": self.value("addr", offset, record)}
            self.reserve(record, offset)
        elif offset:
            fields["offset"] = f"{offset:#x}"
        if prot != 3:
            fields["prot"] = PROTECTIONS.get(prot & 3, "rw")
        name = self.state.pool.take("addr")
        if err:
            self.state.pool.give_back(name)
        else:
            self.state.process(record.pid).mappings[address] = (name, length)
        result = {"errno": values.errno_name(err)} if err else None
        self.emit(record, Event("mmap", [f"${name}", f"@{file}"], fields, result))

    def do_munmap(self, record: raw.Record) -> None:
        base, length = record.number(0, 16), record.number(1, 16)
        mappings = self.state.process(record.pid).mappings
        for address in sorted(a for a in mappings if base <= a < base + length):
            name, mapped = mappings.pop(address)
            size = min(length - (address - base), mapped)
            self.emit(record, Event("munmap", [f"${name}"], {"length": f"{size:#x}"}))
            self.state.pool.give_back(name)

    def file(self, record: raw.Record, fd: int, node: str) -> str:
        """A file whose opening is not in the record is of the one process that exported onto such a file."""
        process = self.state.process(record.pid)
        if fd in process.files and process.files[fd][1] == node:
            return process.files[fd][0]
        name = self.state.open(record.pid, fd, node)
        senders = [s for s in self.sent if s[0] != process.name and s[2] == node]
        if len(senders) != 1:
            raise TraceError(f"{record.where}: file {fd} ({node}) came from elsewhere: one of {len(senders)} files")
        sender, theirs, _ = senders[0]
        self.events += [Event("as", [sender])] if sender != (self.now or "p1") else []
        self.events.append(Event("send", [f"@{theirs}", process.name, f"@{name}"]))
        self.now = sender
        return name

    def reserve(self, record: raw.Record, address: int) -> None:
        for base, end, name in self.state.process(record.pid).ranges:
            if base <= address < end and name not in self.reserved:
                self.reserved.add(name)
                self.emit(record, Event("va", [f"${name}"], {"length": f"{end - base:#x}"}))

    def address(self, record: raw.Record, value: int) -> str | None:
        self.reserve(record, value)
        return self.state.address(record.pid, value)

    # calls

    def do_ioctl(self, record: raw.Record) -> None:
        fd, node = record.number(0), record.words[1]
        file = self.file(record, fd, node)
        way = layouts.UVM if node == "nvidia-uvm" else layouts.IOCTL
        memory, index, words = record.memory, 0, []
        number = record.number(2, 16)
        if way == layouts.IOCTL:
            number &= 0xFF
        if number == layouts.XFER and len(memory) > 1:
            number, index, words = struct.unpack_from("<I", memory[0].before)[0], 1, ["xfer"]
        size = len(memory[index].before) if memory else 0
        call = values.Target(way, number, size, "")
        row = self.row(call, node)
        call = values.Target(way, number, size, row.name if row else "")
        for base, _ in intervals_of(record):
            self.reserve(record, base)
        event = Call(self, record, call, index).event()
        event.words = [f"@{file}", str(call), *words]
        self.emit(record, event)

    def row(self, call: values.Target, node: str):
        if call.way == layouts.UVM:
            return found("uvm", lib.cgpu_call_uvm(self.branch, call.number))
        bit = C.CGPU_NODE_CTL if node == "nvidiactl" else C.CGPU_NODE_GPU
        return found("escape", lib.cgpu_call_escape(self.branch, call.number, call.size, bit))

    def value(self, kind: str, value: int, record: raw.Record, client: int = 0) -> str:
        """A field's number as the trace says it."""
        text = None
        if kind == "h":
            name = self.state.handle(client, value)
            text = f"${name}" if name else None
        elif kind == "addr":
            text = self.address(record, value)
        elif kind == "fd":
            if value >= 1 << 31:
                return str(value - (1 << 32))
            held = self.state.process(record.pid).files.get(value)
            text = f"@{held[0]}" if held else str(value)
        elif kind == "s32" and value >= 1 << 31:
            text = str(value - (1 << 32))
        return text or f"{value:#x}"


def intervals_of(r: raw.Record) -> list[tuple[int, int]]:
    """Base and length of what a call gives to the driver of the process's addresses."""
    uvm = r.verb in ("ioctl", "mmap") and r.words[1] == "nvidia-uvm"
    if uvm and r.verb == "mmap":
        return [(r.number(6, 16), r.number(3, 16))]
    if r.verb != "ioctl" or not r.memory:
        return []
    top, number = r.memory[0].before, r.number(2, 16)
    if uvm and number in (CREATE_RANGE, PARALLELISM_REGION):
        return [struct.unpack_from("<QQ", top)]
    memory = layouts.fields(layouts.IOCTL, layouts.ALLOC_MEMORY, len(top))
    if not uvm and number & 0xFF == layouts.ALLOC_MEMORY and memory:
        value = {f.name: int.from_bytes(top[f.at : f.at + f.size], "little") for f in memory}
        return [(value["memory"], value["limit"] + 1)] if value["class"] == OS_DESCRIPTOR else []
    return []


def mark(trace: Trace) -> int:
    """Have the trace expect what the table refuses or answers itself. Returns how many calls are refused."""
    verdicts = check(trace).verdicts
    dups = {v.line for v in verdicts if v.verdict == "DUP"}
    refused = {v.line: v for v in verdicts if v.refused}
    answers = {"ANSWER_OK": "0x0", "ANSWER_NOTHING": "0x10006"}
    answered = {v.line: answers[v.verdict] for v in verdicts if v.verdict in answers}
    marked = 0
    for event in flat(trace.events):
        answer = answered.get(event.line)
        if answer and event.verb == "call" and (event.result or {}).get("status", answer) != answer:
            event.expects.append(Expect("cgpu", False, {"status": answer}, "answered, not forwarded"))
        if event.line in dups and (kind := one_handle(event)):
            event.expects.append(Expect("cgpu", False, {"status": "0x56"}, f"no second handle of a {kind}"))
        if event.line not in refused or event.verb != "call" or any(e.refused for e in event.expects):
            continue
        number = int(event.words[1].partition("/")[0], 0)
        if "status" not in (event.result or {}) or event.words[0].startswith("@uvm"):
            result = {"errno": "EINVAL"}
        else:
            result = {"status": "0x22" if number == layouts.RM_ALLOC else "0x56"}
        event.expects.append(Expect("cgpu", True, result, refused[event.line].note))
        marked += 1
    return marked


def one_handle(event: Event) -> str:
    """The kind of what is duplicated, where the module refuses that."""
    kind = event.fields.get("source", "").strip("$0123456789")
    return kind if kind in ONE_HANDLE else ""


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("raw", nargs="+", type=Path)
    parser.add_argument("--program", required=True, help="what ran")
    parser.add_argument("--gpu", required=True, help="the card's name")
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--whole", action="store_true", help="every byte that the driver wrote must come again")
    parser.add_argument("--uvm", choices=("deny", "account"), help="of the GPUs of the container that plays it")
    parser.add_argument("--memsize", type=int, help="bytes of the slice of the container that plays it, if not 1 GiB")
    args = parser.parse_args()
    slice_of = {"memsize": str(args.memsize)} if args.memsize else {}
    slice_of |= {"uvm": args.uvm} if args.uvm else {}
    try:
        trace, marked = normalise(args.raw, args.program, args.gpu, args.whole, slice_of)
    except (TraceError, raw.RawError) as err:
        print(err, file=sys.stderr)
        return 1
    args.out.write_text(trace.text())
    calls = sum(event.verb == "call" for event in flat(trace.events))
    print(f"{args.out}: {calls} calls, {marked} of them refused by the table")
    return 0


def normalise(
    paths: list[Path], program: str, gpu: str, whole: bool = False, slice_of: dict[str, str] | None = None
) -> tuple[Trace, int]:
    driver, records = raw.read_all(paths)
    if not driver[0].isdigit():
        raise TraceError("the driver's version is not known: record again with RMTAP_DRIVER")
    branch = lib.cgpu_call_branch(driver.encode())
    run = Normaliser(records, branch, whole)
    events = fold(run.run())
    header = {
        "driver": driver,
        "gpu": gpu,
        **({"arch": run.arch} if run.arch else {}),
        "gpus": str(run.gpus),
        "date": datetime.date.today().isoformat(),
        "program": program,
        "made-by": "rmtap 1",
        **(slice_of or {}),
    }
    trace = Trace(header, events)
    for number, event in enumerate(flat(events), 1):
        event.line = number
    return trace, mark(trace)


if __name__ == "__main__":
    sys.exit(main())
