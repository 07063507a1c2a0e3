# SPDX-License-Identifier: MIT
"""Plays a trace on the nodes of a machine: every call again, with the handles and files that this run got.

Each process of the trace is one of ours, forked where the trace forks; one event at a time, in the trace's order. A
difference from the recording ends the run with Mismatch: trace and line, the call, the result and the recorded one.
"""

from __future__ import annotations

import contextlib
import ctypes
import mmap
import os
import pickle
import re
import socket
import struct
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

import values
from layouts import IOCTL, XFER, request
from tracefile import Event, Expect, Trace, TraceError, load, symbols

MAP_FIXED, MAP_FIXED_NOREPLACE, MAP_NORESERVE = 0x10, 0x100000, 0x4000
FIRST_VA, VA_ALIGN = 1 << 36, 2 << 20  # nvsim's GPFIFO holds 40 bits
PROTECTIONS = {"none": 0, "r": mmap.PROT_READ, "w": mmap.PROT_WRITE, "rw": mmap.PROT_READ | mmap.PROT_WRITE}

# Unknown control, unknown class, unknown call; where the trace has something better.
NOT_HERE = re.compile(r"(status|errno) (0x56|0x22|EINVAL), recorded")

libc = ctypes.CDLL(None, use_errno=True)
libc.ioctl.argtypes = [ctypes.c_int, ctypes.c_ulong, ctypes.c_void_p]
libc.mmap.restype = ctypes.c_void_p
libc.mmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int, ctypes.c_int, ctypes.c_int, ctypes.c_long]
libc.munmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t]


class Mismatch(Exception):
    """Not as recorded."""


@dataclass
class Machine:
    """Where a trace is played. @side is cgpu or nvsim; cards are (id, minor, uuid, instance) in the trace's order."""

    side: str
    dev: str
    cards: list[tuple[int, int, bytes, int]]
    ledger: Callable[[], int] | None = None  # bytes charged; None: there is no ledger
    context_bytes: int = 0
    classes: dict[int, int] = field(default_factory=dict)  # this card's class for a class of the trace's card

    def symbols(self) -> dict[str, int | bytes]:
        names = ("id", "minor", "uuid", "instance")
        return {
            f"gpu{n}.{key}": value for n, card in enumerate(self.cards) for key, value in zip(names, card, strict=True)
        }


#: Escapes that make, end and rename a mapping of memory for the CPU.
MAP, UNMAP, RENAME = 0x4E, 0x4F, 0x5E


def number_in(built: values.Built, name: str) -> int:
    """A field of the call's struct as it is now."""
    inside = built.target.field(name)
    return int.from_bytes(built.top[inside.at : inside.at + inside.size], "little") if inside else 0


@dataclass
class Worker:
    """One process of the trace, in that process. Also the Names of values.build()."""

    machine: Machine
    trace: Trace
    names: dict[str, int | bytes]
    files: dict[str, int] = field(default_factory=dict)
    nodes: dict[str, str] = field(default_factory=dict)
    fresh: dict[str, int | bytes] = field(default_factory=dict)
    maps: dict[int, list[int]] = field(default_factory=dict)  #: by memory object, addresses that the driver answered

    # Names

    def symbol(self, name: str) -> int | bytes:
        if name not in self.names:
            raise TraceError(f"${name} is not bound")
        return self.names[name]

    def bind(self, name: str, value: int | bytes) -> None:
        self.names[name] = self.fresh[name] = value

    def fd(self, name: str) -> int:
        if name.removeprefix("@") not in self.files:
            raise TraceError(f"{name} is not open here")
        return self.files[name.removeprefix("@")]

    # events

    def play(self, event: Event, result: dict[str, str], whole: bool) -> str:
        """Run the event; return the differences from @result. @whole: compare the blocks too."""
        if event.verb == "call":
            return self.call(event, result, whole)
        return getattr(self, f"do_{event.verb}")(event, result) or ""

    def call(self, event: Event, result: dict[str, str], whole: bool) -> str:
        file = event.words[0].removeprefix("@")
        built = values.build(event, values.target(event, self.nodes.get(file, "")), self)
        self.translate(built)
        if result.get("status") == "0x0":
            self.name_map(built)
        err = self.ioctl(built, self.fd(file), wrapped="xfer" in event.words)
        self.note_map(built, err)
        wrong = values.result_wrong(result, built, err, self)
        ways = ("out", self.machine.side)
        for block in event.blocks if whole and not wrong else ():
            if block.way in ways:
                wrong = wrong or values.block_wrong(block, self.output(built, block.path), self)
        return wrong

    def translate(self, built: values.Built) -> None:
        """A trace of another architecture: its channel, copy, compute and doorbell classes have other numbers here."""
        inside = built.target.field("class")
        if inside:
            cls = int.from_bytes(built.top[inside.at : inside.at + 4], "little")
            struct.pack_into("<I", built.top, inside.at, self.machine.classes.get(cls, cls))

    def name_map(self, built: values.Built) -> None:
        """RM_UNMAP_MEMORY and UPDATE_DEVICE_MAPPING_INFO name a mapping by the address that the driver answered: here
        that of this machine's driver, where the trace has the one of the driver that was recorded.
        """
        inside = built.target.field("old") or (built.target.field("address") if built.target.number == UNMAP else None)
        mine = self.maps.get(number_in(built, "memory"), []) if inside else []
        if mine and number_in(built, inside.name) not in mine:
            struct.pack_into("<Q", built.top, inside.at, mine[-1])

    def note_map(self, built: values.Built, err: int) -> None:
        if err or built.target.number not in (MAP, UNMAP, RENAME) or not built.target.field("memory"):
            return
        if number_in(built, "status"):
            return
        mine = self.maps.setdefault(number_in(built, "memory"), [])
        if built.target.number == MAP:
            mine.append(number_in(built, "address"))
        elif built.target.number == UNMAP and number_in(built, "address") in mine:
            mine.remove(number_in(built, "address"))
        elif built.target.number == RENAME and number_in(built, "old") in mine:
            mine[mine.index(number_in(built, "old"))] = number_in(built, "new_address")

    @staticmethod
    def output(built: values.Built, path: str) -> bytes:
        if path in built.blocks:
            return bytes(built.blocks[path])
        inside = built.target.field(path)
        return bytes(built.top[inside.at : inside.at + inside.size] if inside else built.top)

    @staticmethod
    def ioctl(built: values.Built, fd: int, wrapped: bool) -> int:
        """Issue it; the bytes are the driver's answer then. Returns 0 or the errno."""
        memory = {path: (ctypes.c_uint8 * len(data)).from_buffer(data) for path, data in built.blocks.items()}
        for path, (parent, offset) in built.pointers.items():
            data = built.blocks[parent] if parent else built.top
            struct.pack_into("<Q", data, offset, ctypes.addressof(memory[path]))
        arg = (ctypes.c_uint8 * max(len(built.top), 1)).from_buffer(built.top if built.top else bytearray(1))
        number = built.target.number
        if wrapped:
            inner = arg
            arg = (ctypes.c_uint8 * 16)(*struct.pack("<IIQ", number, built.target.size, ctypes.addressof(inner)))
            req = request(XFER, 16)
        else:
            req = request(number, built.target.size) if built.target.way == IOCTL else number
        return 0 if libc.ioctl(fd, req, ctypes.addressof(arg)) >= 0 else ctypes.get_errno()

    def do_open(self, event: Event, result: dict[str, str]) -> str:
        name, node = event.words[0].removeprefix("@"), event.words[1]
        self.nodes[name] = node
        if node not in ("nvidiactl", "nvidia-uvm"):
            node = f"nvidia{self.machine.cards[int(node.removeprefix('nvidia'))][1]}"
        flags = os.O_NONBLOCK if event.fields.get("flags") == "nonblock" else 0
        try:
            self.files[name] = os.open(f"{self.machine.dev}/{node}", os.O_RDWR | os.O_CLOEXEC | flags)
        except OSError as err:
            return self.other_errno(result, err.errno)
        return self.other_errno(result, 0)

    @staticmethod
    def other_errno(result: dict[str, str], err: int) -> str:
        got, want = values.errno_name(err) if err else "none", result.get("errno", "none")
        return "" if got == want else f"errno {got}, recorded {want}"

    def do_close(self, event: Event, result: dict[str, str]) -> None:
        os.close(self.files.pop(event.words[0].removeprefix("@")))

    def do_dup(self, event: Event, result: dict[str, str]) -> None:
        old, new = (word.removeprefix("@") for word in event.words)
        self.files[new], self.nodes[new] = os.dup(self.fd(old)), self.nodes[old]

    def do_va(self, event: Event, result: dict[str, str]) -> str:
        """Reserve addresses, as a CUDA program does: nothing else will be there. What a call pins of them is memory."""
        length = self.number(event.fields["length"])
        base = self.names.get(":va", FIRST_VA)
        flags = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | MAP_NORESERVE | MAP_FIXED_NOREPLACE
        if libc.mmap(base, length, PROTECTIONS["rw"], flags, -1, 0) != base:
            return f"no address space at {base:#x}"
        self.bind(":va", base + -(-length // VA_ALIGN) * VA_ALIGN)
        self.bind(event.words[0].removeprefix("$"), base)
        return ""

    def number(self, text: str) -> int:
        return int.from_bytes(values.symbol_bytes_of(text, self), "little")

    def do_mmap(self, event: Event, result: dict[str, str]) -> str:
        words = event.fields
        at = self.number(words["at"]) if "at" in words else None
        flags = mmap.MAP_SHARED | (MAP_FIXED if at is not None else 0)
        length, offset = self.number(words["length"]), self.number(words.get("offset", "0"))
        got = libc.mmap(at, length, PROTECTIONS[words.get("prot", "rw")], flags, self.fd(event.words[1]), offset)
        failed = got == ctypes.c_void_p(-1).value
        if not failed:
            self.bind(event.words[0].removeprefix("$"), got)
        return self.other_errno(result, ctypes.get_errno() if failed else 0)

    def do_munmap(self, event: Event, result: dict[str, str]) -> str:
        base, length = self.number(event.words[0]), self.number(event.fields["length"])
        return "" if libc.munmap(base, length) == 0 else f"errno {values.errno_name(ctypes.get_errno())}"


# ---- the processes ----


def tell(sock: socket.socket, thing: object, fds: tuple[int, ...] = ()) -> None:
    data = pickle.dumps(thing)
    socket.send_fds(sock, [struct.pack("<I", len(data))], fds)
    sock.sendall(data)


def hear(sock: socket.socket) -> tuple[object, list[int]]:
    head, fds, _, _ = socket.recv_fds(sock, 4, 1)
    if not head:
        raise EOFError
    size, data = struct.unpack("<I", head)[0], b""
    while len(data) < size:
        part = sock.recv(size - len(data))
        if not part:
            raise EOFError
        data += part
    return pickle.loads(data), fds


def serve(sock: socket.socket, worker: Worker, events: list[Event]) -> None:
    """A process's life: one order after the other, until an order ends it or the other end of the socket is closed."""
    while True:
        (order, *args), fds = hear(sock)
        answer, gift = "", ()
        worker.fresh = {}
        try:
            if order == "play":
                index, names, result, whole = args
                worker.names.update(names)
                answer = worker.play(events[index], result, whole)
            elif order == "give":
                gift = (worker.fd(args[0]),)
                worker.fresh = {":node": worker.nodes[args[0]]}
            elif order == "take":
                worker.files[args[0]], worker.nodes[args[0]] = fds[0], args[1]
            elif order == "fork":
                if os.fork() == 0:
                    sock.close()
                    sock = socket.socket(fileno=fds[0])
                    continue
                os.close(fds[0])
            else:
                return
        except (TraceError, ValueError, OSError, KeyError, struct.error) as err:
            answer = f"{type(err).__name__}: {err}"
        tell(sock, (answer, worker.fresh), gift)


class Player:
    """with Player(trace, machine) as player: player.run()

    @mark: a call that nvsim does not have is marked so in the trace, and the run goes on.
    """

    def __init__(self, trace: Trace, machine: Machine, mark: bool = False):
        self.trace, self.machine, self.mark = trace, machine, mark
        self.events: list[Event] = []
        self.number(trace.events)
        self.place = {id(event): i for i, event in enumerate(self.events)}
        self.process = "p1"
        self.sockets: dict[str, socket.socket] = {}
        self.names: dict[str, int | bytes] = machine.symbols()
        self.calls = 0
        self.lost: set[str] = set()  # symbols that this machine's refusals left without a value
        self.skipped: list[Event] = []  # events that need one of them

    def number(self, events: list[Event]) -> None:
        for event in events:
            self.events.append(event)
            self.number(event.body)

    def __enter__(self) -> Player:
        ours, theirs = socket.socketpair()
        self.pid = os.fork()
        if self.pid == 0:
            ours.close()
            with contextlib.suppress(EOFError):
                serve(theirs, Worker(self.machine, self.trace, {}), self.events)
            os._exit(0)
        theirs.close()
        self.sockets["p1"] = ours
        return self

    def __exit__(self, *exc) -> None:
        for sock in self.sockets.values():
            sock.close()
        os.waitpid(self.pid, 0)

    def order(self, process: str, *words: object, fd: int | None = None) -> tuple[str, list[int]]:
        sock = self.sockets[process]
        try:
            tell(sock, words, () if fd is None else (fd,))
            (answer, fresh), fds = hear(sock)
        except (EOFError, OSError) as err:
            raise Mismatch(f"process {process} is gone: {err}") from None
        self.names.update(fresh)
        return answer, fds

    # events

    def run(self) -> None:
        self.play(self.trace.events)

    def play(self, events: list[Event]) -> None:
        for event in events:
            if event.verb == "repeat":
                for _ in range(int(event.words[0])):
                    self.play(event.body)
                continue
            wrong = getattr(self, f"do_{event.verb}", self.do_there)(event)
            if wrong and not (self.mark and self.marked(event, wrong)):
                what = event.words[1] if event.verb == "call" else event.head()
                raise Mismatch(f"{self.trace.where(event)}: on {self.machine.side}: {what}: {wrong}")

    def marked(self, event: Event, wrong: str) -> bool:
        """Whether the machine's answer means that it does not have this call; the trace is then marked so."""
        found = NOT_HERE.match(wrong)
        if not found or event.verb != "call":
            return False
        event.expects.append(Expect("nvsim", False, {found[1]: found[2]}, "not in nvsim"))
        self.lost |= symbols(event)[1]
        return True

    def do_there(self, event: Event) -> str:
        """In the process that the trace is in."""
        needed, bound = symbols(event)
        result, whole = self.wanted(event)
        skip = bool(needed & self.lost)
        self.lost = self.lost | bound if skip or not whole else self.lost - bound
        if skip:
            self.skipped.append(event)
            return ""
        self.calls += event.verb == "call"
        return self.order(self.process, "play", self.place[id(event)], self.names, result, whole)[0]

    def wanted(self, event: Event) -> tuple[dict[str, str], bool]:
        """The result that must come here, and whether the recorded outputs must."""
        found = expected(event, self.machine.side)
        return (found.result, False) if found else (event.result or {}, True)

    def do_as(self, event: Event) -> None:
        self.process = event.words[0].partition(".")[0]

    def do_fork(self, event: Event) -> str:
        ours, theirs = socket.socketpair()
        answer, _ = self.order(self.process, "fork", fd=theirs.fileno())
        theirs.close()
        self.sockets[event.words[0]] = ours
        return answer

    def do_exit(self, event: Event) -> None:
        self.sockets.pop(self.process).close()

    def do_send(self, event: Event) -> str:
        name, process, new = (word.removeprefix("@") for word in event.words)
        answer, fds = self.order(self.process, "give", name)
        if answer:
            return answer
        with closing_fd(fds[0]) as fd:
            return self.order(process, "take", new, self.names[":node"], fd=fd)[0]

    def do_check(self, event: Event) -> str:
        """check bytes=N contexts=M: what is charged then."""
        if self.machine.ledger is None:
            return ""
        want = int(event.fields["bytes"], 0)
        want += int(event.fields.get("contexts", "0"), 0) * self.machine.context_bytes
        got = self.machine.ledger()
        return "" if got == want else f"{got} bytes are charged, {want} should be"


@contextlib.contextmanager
def closing_fd(fd: int) -> Iterator[int]:
    try:
        yield fd
    finally:
        os.close(fd)


def expected(event: Event, side: str) -> Expect | None:
    """Behind cgpu its own expectation applies; calls that nvsim does not have are missing in both places."""
    order = ("cgpu", "nvsim") if side == "cgpu" else ("nvsim",)
    return next((e for wanted in order for e in event.expects if e.side == wanted), None)


def cards(dev: str) -> list[tuple[int, int, bytes, int]]:
    """The cards of a machine, for Machine."""
    import nvclient as nv

    with nv.Client(dev) as rm:
        found = []
        for index, card in enumerate(rm.cards()):
            info = nv.IdInfo(gpu_id=card.gpu_id)
            nv.check("GPU_GET_ID_INFO_V2", rm.control(rm.handle, nv.NV0000_CTRL_CMD_GPU_GET_ID_INFO_V2, info)[0])
            found.append((card.gpu_id, card.minor, rm.gpu(index).uuid, info.device_instance))
        return found


def classes(dev: str, trace: Trace) -> dict[int, int]:
    """The first card's classes for the classes of the trace's card, for Machine."""
    import nvclient as nv

    if "arch" not in trace.header:
        return {}
    with nv.Client(dev) as rm:
        return dict(zip(nv.ARCHS[trace.header["arch"].capitalize()], rm.gpu().arch(trace.branch), strict=True))


def main(words: list[str]) -> int:
    """player.py [--mark] FILE…: on the driver of this machine, assumed to be nvsim."""
    sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "rmclient"))
    for path in (word for word in words if word != "--mark"):
        trace = load(path)
        machine = Machine("nvsim", "/dev", cards("/dev"), classes=classes("/dev", trace))
        with Player(trace, machine, mark="--mark" in words) as player:
            try:
                player.run()
            except Mismatch as err:
                print(err)
                return 1
        if "--mark" in words:
            Path(path).write_text(trace.text())
        print(f"{path}: {player.calls} calls, {len(player.skipped)} skipped")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
