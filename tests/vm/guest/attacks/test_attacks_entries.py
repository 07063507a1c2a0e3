# SPDX-License-Identifier: MIT
"""Hostile tenants that reach a node by other ways than a system call of their own on a file that they opened: io_uring,
descriptors that are moved or replaced, a tracer, a memory cgroup that is full, and a process number that is used again
(docs/develop/boundary.md §3).
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import fcntl
import itertools
import mmap
import os
import random
import signal
import struct
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from slicebox import MIB, Box, child, until
from slicebox import nvclient as nv

pytestmark = [pytest.mark.checked, pytest.mark.once, pytest.mark.attached]

LIMIT_MIB = 64
NODES = ("nvidiactl", "nvidia0", "nvidia-uvm")

# Numbers of x86-64.
SYS_IOCTL = 16
SYS_PTRACE = 101
SYS_SECCOMP = 317
SYS_IO_URING_SETUP, SYS_IO_URING_ENTER, SYS_IO_URING_REGISTER = 425, 426, 427
SYS_CLONE3 = 435
SYS_PIDFD_OPEN = 434
SYS_PIDFD_GETFD = 438


def call(number: int, *args: int) -> int:
    """0 or more, or minus the errno."""
    got = nv.libc.syscall(ctypes.c_long(number), *(ctypes.c_long(arg) for arg in args))
    return got if got >= 0 else -ctypes.get_errno()


# ---- io_uring ----

OP_READV, OP_WRITEV, OP_FSYNC, OP_FALLOCATE, OP_READ, OP_WRITE, OP_SPLICE, OP_URING_CMD = 1, 2, 3, 17, 22, 23, 30, 46
OPERATIONS = {
    "readv": OP_READV,
    "writev": OP_WRITEV,
    "fsync": OP_FSYNC,
    "fallocate": OP_FALLOCATE,
    "read": OP_READ,
    "write": OP_WRITE,
    "splice": OP_SPLICE,
    "uring_cmd": OP_URING_CMD,
}
WAIT = (OP_READV, OP_WRITEV, OP_READ, OP_WRITE)  # for the file's poll, before they are tried
FIXED_FILE, ASYNC = 1, 16  # IOSQE_*
REGISTER_FILES = 2


class Ring:
    """An io_uring with one request at a time."""

    def __init__(self, entries: int = 4):
        params = (ctypes.c_uint32 * 30)()
        self.fd = call(SYS_IO_URING_SETUP, entries, ctypes.addressof(params))
        assert self.fd >= 0, self.fd
        sq, cq = params[10:20], params[20:30]  # head, tail, mask, entries, flags, dropped, array | head, tail, mask, …
        self.sq_tail, self.sq_array = sq[1], sq[6]
        self.cq_head, self.cq_tail, self.cq_mask, self.cqes = cq[0], cq[1], cq[2], cq[5]
        self.sq = mmap.mmap(self.fd, sq[6] + 4 * params[0], offset=0)
        self.cq = mmap.mmap(self.fd, cq[5] + 16 * params[1], offset=0x8000000)
        self.sqes = mmap.mmap(self.fd, 64 * params[0], offset=0x10000000)

    def register(self, fd: int) -> None:
        files = (ctypes.c_int32 * 1)(fd)
        assert call(SYS_IO_URING_REGISTER, self.fd, REGISTER_FILES, ctypes.addressof(files), 1) == 0

    def submit(self, op: int, flags: int, fd: int, address: int, command: int) -> int | None:
        """What the completion says: 0 or more, or minus the errno. None: it waits."""
        # opcode, flags, ioprio, fd, off (or command), addr, len, rw_flags, user_data, buf_index, personality, splice_fd
        self.sqes[:64] = struct.pack("BBHiQQIIQHHi16x", op, flags, 0, fd, command, address, 1, 0, op, 0, 0, fd)
        tail = struct.unpack_from("I", self.sq, self.sq_tail)[0]
        struct.pack_into("I", self.sq, self.sq_array + 4 * (tail & 3), 0)
        struct.pack_into("I", self.sq, self.sq_tail, tail + 1)
        assert call(SYS_IO_URING_ENTER, self.fd, 1, 0, 0, 0, 0) == 1
        for _ in range(5 if op in WAIT else 500):
            head = struct.unpack_from("I", self.cq, self.cq_head)[0]
            if head != struct.unpack_from("I", self.cq, self.cq_tail)[0]:
                mask = struct.unpack_from("I", self.cq, self.cq_mask)[0]
                asked, result = struct.unpack_from("Qi", self.cq, self.cqes + 16 * (head & mask))
                struct.pack_into("I", self.cq, self.cq_head, head + 1)
                if asked == op:
                    return result
            time.sleep(0.01)
        return None

    def close(self) -> None:
        for part in (self.sq, self.cq, self.sqes):
            part.close()
        os.close(self.fd)


@pytest.mark.parametrize("fixed", [False, True], ids=["by descriptor", "registered"])
@pytest.mark.parametrize("later", [False, True], ids=["at once", "by a worker"])
@pytest.mark.parametrize("node", NODES)
def test_no_operation_of_io_uring_reaches_a_node(box: Box, node: str, fixed: bool, later: bool):
    """A call of ours comes by ioctl only: there is no uring_cmd that would be one without a task of the tenant."""
    alloc = nv.Alloc(class_id=nv.NV01_ROOT_CLIENT)
    vector = (ctypes.c_uint64 * 2)(ctypes.addressof(alloc), ctypes.sizeof(alloc))
    flags = FIXED_FILE * fixed | ASYNC * later
    ring = Ring()
    fd = os.open(f"{box.dev}/{node}", os.O_RDWR)
    try:
        if fixed:
            ring.register(fd)
        for name, op in OPERATIONS.items():
            request = nv.request(nv.NV_ESC_RM_ALLOC, ctypes.sizeof(alloc)) if op == OP_URING_CMD else 0
            at = ctypes.addressof(vector if op in (OP_READV, OP_WRITEV) else alloc)
            got = ring.submit(op, flags, 0 if fixed else fd, at, request)
            if got is None:
                assert op in WAIT, name
                continue
            assert got < 0, (name, got)
            assert -got in (errno.EINVAL, errno.EOPNOTSUPP, errno.ENODEV, errno.EBADF, errno.ESPIPE), (name, got)
        assert alloc.handle == 0
    finally:
        os.close(fd)
        ring.close()
    assert box.stat("refused_calls") == 0, "the module saw none of it"


# ---- descriptors that move ----


def register(node: nv.Node, ctl: int) -> int:
    return node.raw(nv.request(nv.NV_ESC_REGISTER_FD, 4), nv.RegisterFd(ctl))


def moved_fd(pid: int, fd: int) -> int:
    pidfd = call(SYS_PIDFD_OPEN, pid, 0)
    try:
        got = call(SYS_PIDFD_GETFD, pidfd, fd, 0)
        assert got >= 0, got
        return got
    finally:
        os.close(pidfd)


def test_a_file_taken_from_another_process_stays_its_containers(box: Box, other: Box):
    """pidfd_getfd, as a socket would move it: charged where it was opened, no part of the taker's container, until the
    taker closes it too."""
    told, tell = os.pipe()

    def owner() -> None:
        client = nv.Client(other.dev)
        client.gpu(0)
        os.write(tell, struct.pack("iI", client.ctl.fd, client.handle))

    before = box.used
    with child(owner) as pid:
        fd, handle = struct.unpack("iI", os.read(told, 8))
        taken = moved_fd(pid, fd)
    # Its process is gone: the file, with the client, is the taker's alone.
    try:
        ctl = nv.Ctl.__new__(nv.Ctl)
        ctl.fd = taken
        with box.client() as mine:
            node = mine.gpu(0).open_node()
            mine.hold(node)
            assert register(node, taken) == errno.EINVAL
            own, here = other.used, box.used
            arg = nv.Control(client=mine.handle, object=mine.handle, cmd=nv.NV0000_CTRL_CMD_GPU_GET_ATTACHED_IDS)
            ctl.call(nv.NV_ESC_RM_CONTROL, arg)
            assert arg.status, "a client of the taker's container on that file"
            second = nv.Client(other.dev, ctl)
            status, _ = mine.dup(mine.handle, handle, handle)
            assert status
            _, device = second.alloc(nv.NV01_DEVICE_0, None, nv.DeviceParams())
            params = nv.MemoryParams(owner=second.handle, size=4 * MIB, attr=nv.ATTR_NONCONTIG_ALLOWED)
            assert second.alloc(nv.NV01_MEMORY_LOCAL_USER, device, params)[0] == 0
            assert (other.used - own, box.used) == (4 * MIB, here)
    finally:
        os.close(taken)
        os.close(told)
        os.close(tell)
    until(lambda: other.used == 0)
    assert box.used == before


RET_ALLOW, RET_USER_NOTIF = 0x7FFF0000, 0x7FC00000
NOTIF_RECV, NOTIF_SEND, NOTIF_ADDFD = 0xC0502100, 0xC0182101, 0x40182103
ADDFD_SETFD, CONTINUE = 1, 1


def notify_of(request: int) -> int:
    """Calls of this ioctl by this process wait for a supervisor: its descriptor."""

    def op(code: int, jt: int, jf: int, k: int) -> bytes:
        return struct.pack("HBBI", code, jt, jf, k)

    program = [
        op(0x20, 0, 0, 0),  # the number of the system call
        op(0x15, 0, 3, SYS_IOCTL),
        op(0x20, 0, 0, 24),  # the low half of its second argument
        op(0x15, 0, 1, request),
        op(0x06, 0, 0, RET_USER_NOTIF),
        op(0x06, 0, 0, RET_ALLOW),
    ]
    text = ctypes.create_string_buffer(b"".join(program))
    head = ctypes.create_string_buffer(struct.pack("HxxxxxxQ", len(program), ctypes.addressof(text)))
    assert nv.libc.prctl(38, 1, 0, 0, 0) == 0  # PR_SET_NO_NEW_PRIVS
    return call(SYS_SECCOMP, 1, 8, ctypes.addressof(head))


def supervise(listener: int, srcfd: int) -> None:
    """The next call that waits goes on, its descriptor another file's by then."""
    got = bytearray(80)
    fcntl.ioctl(listener, NOTIF_RECV, got)
    ident, target = struct.unpack_from("Q", got)[0], struct.unpack_from("Q", got, 32)[0]
    fcntl.ioctl(listener, NOTIF_ADDFD, struct.pack("QIIII", ident, ADDFD_SETFD, srcfd, target, 0))
    fcntl.ioctl(listener, NOTIF_SEND, bytearray(struct.pack("QqiI", ident, 0, 0, CONTINUE)))


@pytest.mark.parametrize("into", ["another container's", "another file of its own", "no node"])
def test_a_call_whose_file_is_replaced_before_it_runs(box: Box, other: Box, into: str):
    """seccomp's ADDFD: the call is the new file's. A client of the old file is none of its."""
    told, tell = os.pipe()
    done, end = os.pipe()

    def target() -> None:
        with box.client() as client:
            gpu = client.gpu(0)
            params = nv.in_branch(
                nv.NV01_MEMORY_LOCAL_USER, nv.MemoryParams(owner=client.handle, size=MIB), client.branch
            )
            arg = nv.Alloc(
                root=client.handle, parent=gpu.device, class_id=nv.NV01_MEMORY_LOCAL_USER,
                params=ctypes.addressof(params), params_size=ctypes.sizeof(params),
            )  # fmt: skip
            number = nv.request(nv.NV_ESC_RM_ALLOC, ctypes.sizeof(arg))
            os.write(tell, struct.pack("i", notify_of(number)))
            result = client.ctl.raw(number, arg)
            os.write(end, struct.pack("iI", result, arg.status))
            signal.pause()

    path = {"another container's": f"{other.dev}/nvidiactl", "another file of its own": f"{box.dev}/nvidiactl"}
    source = os.open(path.get(into, "/dev/null"), os.O_RDWR)
    try:
        with child(target) as pid:
            listener = struct.unpack("i", os.read(told, 4))[0]
            assert listener >= 0, listener
            mine = moved_fd(pid, listener)
            before = box.used, other.used
            supervise(mine, source)
            result, status = struct.unpack("iI", os.read(done, 8))
            os.close(mine)
            assert result or status, "memory by a client that is not the file's"
            assert (box.used, other.used) == before
    finally:
        for fd in (source, told, tell, done, end):
            os.close(fd)


# ---- a memory cgroup that is full ----


@pytest.fixture
def group() -> Iterator[Path]:
    made = Path("/sys/fs/cgroup/full")
    made.mkdir()
    try:
        yield made
    finally:
        until(lambda: not (made / "cgroup.procs").read_text())
        made.rmdir()


def ooms(group: Path) -> int:
    """How often the kernel found no memory in it."""
    events = dict(line.split() for line in (group / "memory.events").read_text().splitlines())
    return int(events["oom"])


@pytest.mark.parametrize("ends", ["killed", "refused"])
def test_a_memory_cgroup_that_is_full_in_a_call(box: Box, other: Box, group: Path, ends: str):
    """What the module keeps for an object is in the cgroup: the process is ended, or the call fails whole. The other
    container's calls go on. Where the kernel may end none, the process waits in its call until a signal comes."""
    told, tell = os.pipe()
    full_since = 0.0

    def work() -> None:
        if ends == "refused":
            Path("/proc/self/oom_score_adj").write_text("-1000")
            signal.alarm(60)  # of a cgroup that does not become full
        (group / "cgroup.procs").write_text(str(os.getpid()))
        with box.client() as client:
            gpu = client.gpu(0)
            _, memory = gpu.alloc_vidmem(MIB)
            (group / "memory.max").write_text(str(int((group / "memory.current").read_text()) + MIB))
            for _ in range(100_000):
                try:
                    status, _ = client.dup(gpu.device, client, memory)
                except OSError as error:
                    status = error.errno
                if status:
                    os.write(tell, struct.pack("I", status))
                    break
        signal.pause()

    pid = os.fork()
    if not pid:
        with contextlib.suppress(BaseException):
            work()
        os._exit(1)
    try:
        with other.client() as client:
            gpu = client.gpu(0)
            os.set_blocking(told, False)
            ended = answer = b""
            while not (ended or answer):
                status, memory = gpu.alloc_vidmem(MIB)
                assert (status, gpu.free(memory)) == (0, 0)
                with contextlib.suppress(BlockingIOError):
                    answer = os.read(told, 4)
                ended = b"y" if os.waitpid(pid, os.WNOHANG)[0] else b""
                if not full_since and ooms(group):
                    full_since = time.monotonic()
                if full_since and not ended and time.monotonic() > full_since + 5:
                    os.kill(pid, signal.SIGALRM)
            assert ooms(group) > 0
    finally:
        if not ended:
            os.kill(pid, signal.SIGKILL)
            os.waitpid(pid, 0)
        os.close(told)
        os.close(tell)
    assert ended if ends == "killed" else answer or ended
    until(lambda: box.used == 0)


# ---- the number of a process ----


class CloneArgs(ctypes.Structure):
    _fields_ = [(name, ctypes.c_uint64) for name in (
        "flags", "pidfd", "child_tid", "parent_tid", "exit_signal", "stack", "stack_size", "tls", "set_tid",
        "set_tid_size",
    )]  # fmt: skip


def forked_as(pid: int) -> bool:
    """A child with this number, which does nothing until it is killed."""
    number = ctypes.c_int32(pid)
    args = CloneArgs(exit_signal=signal.SIGCHLD, set_tid=ctypes.addressof(number), set_tid_size=1)
    got = call(SYS_CLONE3, ctypes.addressof(args), ctypes.sizeof(args))
    if got == 0:
        while True:
            signal.pause()
    return got == pid


def test_a_process_is_not_shown_with_the_memory_of_one_before_it(box: Box):
    """The opener has ended, its file is held elsewhere, and its number is a process's that never had the GPU."""
    told, tell = os.pipe()

    def opener() -> None:
        client = nv.Client(box.dev)
        assert client.gpu(0).alloc_vidmem(2 * MIB)[0] == 0
        os.write(tell, struct.pack("i", client.ctl.fd))

    with child(opener) as pid:
        held = moved_fd(pid, struct.unpack("i", os.read(told, 4))[0])
        used = box.used
        assert used >= 2 * MIB and box.meminfo()[1] == {pid: used}
    assert box.meminfo()[1] == {pid: used}, "it has ended, and its number is free"
    assert forked_as(pid)
    try:
        assert box.meminfo()[1] == {0: used}
    finally:
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)
        os.close(held)
        os.close(told)
        os.close(tell)


# ---- a tracer ----

CONT, GETREGS, SETREGS, SYSCALL, SEIZE, INTERRUPT = 7, 12, 13, 24, 0x4206, 0x4207
GET_SYSCALL_INFO, AT_ENTRY = 0x420E, 1
TRACESYSGOOD, EXITKILL = 1, 1 << 20
RAX, RDX, RDI, ORIG_RAX = 10, 12, 14, 15  # places in struct user_regs_struct


def ptrace(what: int, pid: int, address: int = 0, data: int = 0) -> None:
    got = call(SYS_PTRACE, what, pid, address, data)
    assert got == 0, got


def stopped(pid: int) -> int:
    """The signal that stopped it; -1: it has ended."""
    _, status = os.waitpid(pid, 0)
    return os.WSTOPSIG(status) if os.WIFSTOPPED(status) else -1


def registers(pid: int) -> ctypes.Array:
    found = (ctypes.c_uint64 * 27)()
    ptrace(GETREGS, pid, 0, ctypes.addressof(found))
    return found


def at_entry(pid: int) -> bool:
    """Of a system call, not at its end."""
    info = ctypes.create_string_buffer(88)
    assert call(SYS_PTRACE, GET_SYSCALL_INFO, pid, len(info), ctypes.addressof(info)) > 0
    return info.raw[0] == AT_ENTRY


@contextlib.contextmanager
def allocating(box: Box) -> Iterator[int]:
    """A process that allocates and frees, whatever the answers are."""

    def work() -> None:
        with box.client() as client:
            gpu = client.gpu(0)
            while True:
                with contextlib.suppress(OSError, nv.RmError):
                    _, memory = gpu.alloc_vidmem(MIB)
                    gpu.free(memory)

    with child(work) as pid:
        until(lambda: box.used >= 0 and box.meminfo()[1])
        yield pid


def test_a_tracer_that_stops_a_process_in_its_calls(box: Box):
    """Anywhere: a call that was begun is not made twice, and what it says it has is what is charged."""
    told, tell = os.pipe()

    def work() -> None:
        with box.client() as client:
            gpu = client.gpu(0)
            space = box.used
            for _ in range(400):
                status, memory = gpu.alloc_vidmem(MIB)
                if status or box.used - space != MIB or gpu.free(memory) or box.used != space:
                    os.write(tell, b"n")
                    signal.pause()
            os.write(tell, b"y")
            signal.pause()

    with child(work) as pid:
        ptrace(SEIZE, pid, 0, EXITKILL)
        os.set_blocking(told, False)
        answer, stops = b"", 0
        while not answer:
            time.sleep(stops % 13 * 0.0002)
            ptrace(INTERRUPT, pid)
            assert stopped(pid) >= 0
            stops += 1
            ptrace(CONT, pid)
            with contextlib.suppress(BlockingIOError):
                answer = os.read(told, 1)
        assert answer == b"y" and stops > 20
    os.close(told)
    os.close(tell)


def test_a_tracer_that_rewrites_a_calls_memory(box: Box):
    """/proc/PID/mem writes to pages of the process while it is in a call: the copy that was checked is what runs."""
    size = mmap.PAGESIZE
    page = mmap.mmap(-1, size)
    most = LIMIT_MIB * MIB
    with box.client() as client:
        gpu = client.gpu(0)
        params = nv.in_branch(nv.NV01_MEMORY_LOCAL_USER, nv.MemoryParams(owner=client.handle, size=MIB), client.branch)
        base = (ctypes.c_char * size).from_buffer(page)
        raw = bytes(params)
        place = raw.index(struct.pack("Q", MIB))
        page[: len(raw)] = raw
        pid = os.fork()
        if not pid:
            memory = os.open(f"/proc/{os.getppid()}/mem", os.O_RDWR)
            address = ctypes.addressof(base) + place
            for value in itertools.cycle((MIB, 2 * most)):
                os.pwrite(memory, struct.pack("Q", value), address)
        try:
            seen = set()
            for n in range(600):
                arg = nv.Alloc(
                    root=client.handle, parent=gpu.device, class_id=nv.NV01_MEMORY_LOCAL_USER,
                    params=ctypes.addressof(base), params_size=len(raw),
                )  # fmt: skip
                page[: len(raw)] = raw
                client.ctl.call(nv.NV_ESC_RM_ALLOC, arg)
                seen.add(arg.status)
                assert box.used <= most
                if not arg.status:
                    assert gpu.free(arg.handle) == 0
                if n % 16 == 0:
                    time.sleep(n % 7 * 0.0003)
            assert 0 in seen
        finally:
            os.kill(pid, signal.SIGKILL)
            os.waitpid(pid, 0)
        del base


CHANGES: dict[str, Callable[[random.Random, ctypes.Array], None]] = {
    "its descriptor": lambda rng, regs: regs.__setitem__(RDI, rng.randrange(12)),
    "its argument": lambda rng, regs: regs.__setitem__(RDX, rng.choice((0, 1, 1 << 47, (1 << 64) - 4096))),
    "its number": lambda rng, regs: regs.__setitem__(ORIG_RAX, rng.choice((39, (1 << 64) - 1))),
    "nothing": lambda rng, regs: None,
}


@pytest.mark.parametrize("seed", range(2))
def test_a_tracer_that_changes_a_calls_registers(box: Box, seed: int):
    """At the entry: what runs is what the registers say then; at the exit: the answer only. And an end in between."""
    rng = random.Random(seed)
    with allocating(box) as pid:
        ptrace(SEIZE, pid, 0, TRACESYSGOOD | EXITKILL)
        ptrace(INTERRUPT, pid)
        stopped(pid)
        entries, end = 0, time.monotonic() + 60
        while entries < 300:
            assert time.monotonic() < end, entries
            ptrace(SYSCALL, pid)
            if (why := stopped(pid)) != signal.SIGTRAP | 0x80:
                assert why == signal.SIGTRAP, why
                continue
            regs = registers(pid)
            entry = at_entry(pid)
            if regs[ORIG_RAX] != SYS_IOCTL:
                continue
            if entry:
                entries += 1
                CHANGES[rng.choice(list(CHANGES))](rng, regs)
            elif rng.random() < 0.1:
                regs[RAX] = (1 << 64) - errno.EINTR
            ptrace(SETREGS, pid, 0, ctypes.addressof(regs))
    until(lambda: box.used == 0)
