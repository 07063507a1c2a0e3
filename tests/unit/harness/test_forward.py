# SPDX-License-Identifier: MIT
"""nvforwardd by its socket, on files that are no GPU's; what home.py makes of a step that ended, died or hung."""

from __future__ import annotations

import array
import contextlib
import ctypes
import errno
import itertools
import json
import os
import select
import signal
import socket
import struct
import subprocess
import termios
import time
from collections.abc import Iterator
from pathlib import Path
from typing import IO

import alloc
import home
import inside
import parts
import pytest
import ways

REPO = Path(__file__).resolve().parents[3]

HELLO, OPEN, CLOSE, IOCTL, READ, POLL = range(1, 7)
BUFS, FDS, DATA_MAX = 6, 4, 96 << 10
ADMIN = 1
NOBODY = 65534
PROCESSES = itertools.count(100)  # wire.h: a number is not used again after its last lane
REPLY = struct.Struct("=qII")


def request(op: int, cmd: int = 0, bufs: list[tuple[int, ...]] | None = None, fds: int = 0, **hello: int) -> bytes:
    """struct fwd_request; a buffer is (size, parent, at, pages_of)."""
    rows = bufs or []
    packed = b"".join(struct.pack("=4I", *(row + (0,) * 4)[:4]) for row in rows) + bytes(16 * (BUFS - len(rows)))
    packed += b"".join(struct.pack("=3I", *hello.get(f"fd{n}", (0, 0, 0))) for n in range(FDS))
    head = struct.pack("=4I", op, cmd & 0xFFFFFFFF, len(rows), fds)
    tail = struct.pack("=4IQ", *(hello.get(key, 0) for key in ("lane", "pid", "uid", "flags", "process")))
    return head + packed + tail


class Lane:
    """A lane of nvforwardd, as the module has them."""

    def __init__(self, path: Path, process: int, lane: int = 7, uid: int = 0, flags: int = ADMIN) -> None:
        self.bell, writing = os.pipe()
        self.sock = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self.sock.connect(str(path))
        self.send(request(HELLO, fds=1, lane=lane, pid=5, uid=uid, flags=flags, process=process), [writing])
        os.close(writing)
        self.number = lane

    def send(self, data: bytes, fds: list[int] | None = None) -> None:
        rights = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", fds))] if fds else []
        self.sock.sendmsg([data], rights)

    def call(self, data: bytes, fds: list[int] | None = None) -> tuple[int, bytes, int]:
        """Result, data, process; the bell must have rung with the lane's number."""
        self.send(data, fds)
        assert select.select([self.bell], [], [], 20)[0], "no answer"
        assert struct.unpack("=I", os.read(self.bell, 4)) == (self.number,)
        got = self.sock.recv(1 << 18)
        result, size, pid = REPLY.unpack(got[: REPLY.size])
        assert size == len(got) - REPLY.size
        return result, got[REPLY.size :], pid

    def pid(self) -> int:
        """Of its process; a call that changes nothing."""
        name = b"version\0"
        return self.call(request(READ, bufs=[(len(name),)]) + name)[2]

    def is_closed(self) -> bool:
        """Whether the other end is gone, without a reply."""
        self.sock.settimeout(10)
        with contextlib.suppress(ConnectionResetError):
            return self.sock.recv(1 << 18) == b""
        return True

    def close(self) -> None:
        self.sock.close()
        os.close(self.bell)


def until(condition, why: str, limit_s: float = 10) -> None:
    end = time.monotonic() + limit_s
    while not condition():
        assert time.monotonic() < end, why
        time.sleep(0.01)


def is_there(pid: int) -> bool:
    return Path(f"/proc/{pid}/exe").exists()  # a zombie has none


def files_of(pid: int) -> list[str]:
    return sorted(path.name for path in Path(f"/proc/{pid}/fd").iterdir())


@contextlib.contextmanager
def started(program: Path, folder: Path, stderr: IO[str] | None = None) -> Iterator[tuple[subprocess.Popen, Path]]:
    process = subprocess.Popen([program, folder / "socket"], stderr=stderr)
    try:
        until((folder / "socket").exists, "nvforwardd does not start", 20)
        yield process, folder / "socket"
    finally:
        process.kill()
        process.wait()


@pytest.fixture(scope="module")
def program(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("nvforwardd")
    subprocess.run(["make", "-s", "-C", REPO / "tests/forward/host", f"OUT={folder}"], check=True)
    return folder / "nvforwardd"


@pytest.fixture(scope="module")
def path(program: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    with started(program, tmp_path_factory.mktemp("forward")) as (_, socket_path):
        yield socket_path


@pytest.fixture
def lane(path: Path) -> Iterator[Lane]:
    lane = Lane(path, process=next(PROCESSES))
    yield lane
    lane.close()


@pytest.mark.parametrize("op", [OPEN, READ])
@pytest.mark.parametrize("name", [b"../etc/passwd\0", b"/etc/passwd\0", b"\0", b"no end"])
def test_names_lead_nowhere_else(lane: Lane, op: int, name: bytes) -> None:
    assert lane.call(request(op, bufs=[(len(name),)]) + name)[0] == -errno.EINVAL


def test_only_nodes_of_the_driver_are_opened(lane: Lane) -> None:
    for name, wanted in ((b"null\0", errno.EINVAL), (b"nvidia-that-is-not-there\0", errno.ENOENT)):
        assert lane.call(request(OPEN, bufs=[(len(name),)]) + name)[0] == -wanted


def test_an_ioctl_has_its_result_in_the_buffer(lane: Lane) -> None:
    reading, writing = os.pipe()
    os.write(writing, b"12345")
    result, data, pid = lane.call(request(IOCTL, termios.FIONREAD, [(4,)], fds=1) + bytes(8), [reading])
    assert (result, struct.unpack("=I", data[:4])[0]) == (0, 5)
    assert pid not in (0, os.getpid())
    os.close(reading)
    os.close(writing)


def test_a_call_that_the_file_refuses_is_its_error(lane: Lane) -> None:
    reading, writing = os.pipe()
    assert lane.call(request(IOCTL, 0xC020462A, [(32,)], fds=1) + bytes(32), [reading])[0] == -errno.ENOTTY
    os.close(reading)
    os.close(writing)


@pytest.mark.parametrize(
    "bufs",
    [
        [(1 << 20,)],  # more than there is
        [(16,), (8, 1, 0)],  # its own parent
        [(16,), (8, 0, 12)],  # the address beyond the parent's end
        [(16,), (48, 0, 0, 3)],  # pages of a file that did not come
    ],
)
def test_a_message_that_does_not_fit_is_refused(lane: Lane, bufs: list[tuple[int, ...]]) -> None:
    reading, writing = os.pipe()
    assert lane.call(request(IOCTL, termios.FIONREAD, bufs, fds=1) + bytes(128), [reading])[0] == -errno.EINVAL
    os.close(reading)
    os.close(writing)


def test_processes_of_the_guest_are_processes(path: Path) -> None:
    lanes = [Lane(path, process=process, lane=number) for number, process in enumerate((11, 12, 11), start=1)]
    pids = [lane.pid() for lane in lanes]
    assert pids[0] == pids[2] != pids[1]
    for lane in lanes:
        lane.close()
    until(lambda: not any(map(is_there, pids)), "a process outlives its lanes")


def test_a_poll_is_answered_when_there_is_something(lane: Lane) -> None:
    reading, writing = os.pipe()
    assert lane.call(request(POLL, 0, fds=1), [reading])[0] == 0
    lane.send(request(POLL, -1, fds=1), [reading])
    os.set_blocking(lane.bell, False)
    with pytest.raises(BlockingIOError):
        os.read(lane.bell, 4)
    os.set_blocking(lane.bell, True)
    os.write(writing, b"x")
    os.read(lane.bell, 4)
    assert REPLY.unpack(lane.sock.recv(REPLY.size))[0] == 1  # POLLIN
    os.close(reading)
    os.close(writing)


def test_a_file_is_released_with_the_poll_that_is_taken_back(path: Path) -> None:
    lane = Lane(path, process=20)
    reading, writing = os.pipe()
    lane.send(request(POLL, -1, fds=1), [reading])
    os.close(reading)
    time.sleep(0.1)
    lane.close()
    end = time.monotonic() + 10
    while True:
        try:
            os.write(writing, b"x")
        except BrokenPipeError:
            break
        assert time.monotonic() < end, "nvforwardd keeps the file open"
        time.sleep(0.01)
    os.close(writing)


# ---- what does not keep to wire.h ----


@pytest.mark.parametrize(
    ("message", "files"),
    [
        (request(READ)[:-1], 0),  # cut off in its header
        (b"", 0),
        (request(IOCTL, termios.FIONREAD, [(DATA_MAX,)], fds=1) + bytes(DATA_MAX + 8), 1),  # longer than a message
        (request(IOCTL, termios.FIONREAD, [(4,)], fds=2) + bytes(8), 1),  # a file is missing
        (request(IOCTL, termios.FIONREAD, [(4,)], fds=FDS) + bytes(8), FDS + 1),
        (
            request(IOCTL, termios.FIONREAD, [(4,)] * BUFS, fds=1).replace(b"\x06\0\0\0", b"\x07\0\0\0", 1) + bytes(64),
            1,
        ),
    ],
    ids=["short", "empty", "long", "a file too few", "a file too many", "a buffer too many"],
)
def test_a_message_of_another_form_ends_its_lane_only(path: Path, message: bytes, files: int) -> None:
    process = next(PROCESSES)
    good, bad = Lane(path, process, lane=1), Lane(path, process, lane=2)
    pid = good.pid()
    assert bad.pid() == pid
    before = len(files_of(pid))
    reading, writing = os.pipe()
    bad.send(message, [reading] * files)
    os.close(reading)
    assert bad.is_closed()
    assert good.pid() == pid
    assert len(files_of(pid)) == before - 2, "the lane and its bell, and no file of the message"
    with pytest.raises(BrokenPipeError):
        os.write(writing, b"x")
    os.close(writing)
    good.close()
    bad.close()


def test_a_hello_of_another_form_is_refused(path: Path, lane: Lane) -> None:
    for message in (request(READ), request(HELLO), request(HELLO)[:20], b"\xff" * 184):
        sock = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        sock.connect(str(path))
        sock.send(message)
        sock.settimeout(10)
        with contextlib.suppress(ConnectionResetError):
            assert sock.recv(16) == b""
        sock.close()
    assert lane.pid() and Lane(path, next(PROCESSES)).pid()


def test_a_connection_without_a_hello_does_not_hold_up_the_others(path: Path) -> None:
    mute = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    mute.connect(str(path))
    lane = Lane(path, next(PROCESSES))
    lane.sock.settimeout(10)
    assert lane.pid()
    mute.close()
    lane.close()


def test_a_call_leaves_no_file_in_its_process(path: Path) -> None:
    """Whether it succeeds, fails or is refused; a lane leaves none either, the first one of a process included."""
    process = next(PROCESSES)
    lane, first = Lane(path, process, lane=1), Lane(path, process, lane=2)
    first.close()
    pid = lane.pid()
    until(lambda: len(files_of(pid)) < 12, "the first lane's files stay")
    files = files_of(pid)
    reading, writing = os.pipe()
    for _ in range(20):
        lane.call(request(IOCTL, termios.FIONREAD, [(4,)], fds=1) + bytes(8), [reading])
        lane.call(request(IOCTL, 0xC020462A, [(32,)], fds=1) + bytes(32), [reading])
        lane.call(request(IOCTL, termios.FIONREAD, [(16,), (8, 1, 0)], fds=1) + bytes(128), [reading])
        lane.call(request(99, fds=1), [reading])
        lane.call(request(POLL, 0, fds=1), [reading])
        lane.call(request(CLOSE, fds=1), [reading])
        Lane(path, process, lane=3).close()
    until(lambda: files_of(pid) == files, "a file stays open in the process of the guest's")
    os.close(reading)
    os.close(writing)
    lane.close()


def test_the_only_lane_of_a_process_is_open_once(path: Path) -> None:
    """The process inherits the first connection and has it as a lane: with both the guest would never see its end."""
    lane = Lane(path, next(PROCESSES))
    pid = lane.pid()
    targets = [str(Path(f"/proc/{pid}/fd/{fd}").readlink()) for fd in files_of(pid)]
    sockets = [target for target in targets if target.startswith("socket:")]
    assert len(sockets) == len(set(sockets)) == 2, "the lane, and the one over which lanes come"
    lane.close()


# ---- what hangs, dies, or comes in crowds ----

SECCOMP_SET_MODE_FILTER, NEW_LISTENER, NOTIF_RECV, NOTIF_BYTES = 1, 8, 0xC0502100, 80
SYS_SECCOMP, PR_SET_NO_NEW_PRIVS = 317, 38


class Filter(ctypes.Structure):
    """struct sock_fprog of one instruction: allow."""

    _fields_ = (("count", ctypes.c_ushort), ("instructions", ctypes.c_void_p))


@pytest.fixture
def hanging() -> Iterator[int]:
    """A file whose ioctl NOTIF_RECV waits without end: seccomp's, of a process that makes no call of which it says."""
    ours, theirs = socket.socketpair()
    pid = os.fork()
    if not pid:
        allow = ctypes.create_string_buffer(struct.pack("=HBBI", 0x06, 0, 0, 0x7FFF0000), 8)
        libc = ctypes.CDLL(None)
        libc.prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0)
        rules = Filter(1, ctypes.cast(allow, ctypes.c_void_p))
        fd = libc.syscall(SYS_SECCOMP, SECCOMP_SET_MODE_FILTER, NEW_LISTENER, ctypes.byref(rules))
        socket.send_fds(theirs, [b"x"], [fd])
        signal.pause()
        os._exit(0)
    _, (fd,), _, _ = socket.recv_fds(ours, 1, 1)
    yield fd
    os.close(fd)
    os.kill(pid, signal.SIGKILL)
    os.waitpid(pid, 0)
    ours.close()
    theirs.close()


def hang(lane: Lane, fd: int) -> None:
    """A call of the driver that does not return."""
    lane.send(request(IOCTL, NOTIF_RECV, [(NOTIF_BYTES,)], fds=1) + bytes(NOTIF_BYTES), [fd])
    lane.sock.settimeout(0.3)
    with pytest.raises(TimeoutError):
        lane.sock.recv(1 << 18)


def test_a_call_that_hangs_stops_its_caller_only(path: Path, hanging: int) -> None:
    process = next(PROCESSES)
    stuck, free, other = Lane(path, process, 1), Lane(path, process, 2), Lane(path, next(PROCESSES), 3)
    hang(stuck, hanging)
    for lane in (free, other):
        lane.sock.settimeout(5)
        assert lane.pid()
    assert free.pid() != other.pid()
    for lane in (stuck, free, other):
        lane.close()


def test_a_process_whose_call_hangs_ends_with_nvforwardd(program: Path, tmp_path: Path, hanging: int) -> None:
    """A step that hangs is ended, and nothing of it stays: the guest cannot close the lane of a call under way."""
    with started(program, tmp_path) as (_, path):
        process = next(PROCESSES)
        stuck, free = Lane(path, process, 1), Lane(path, process, 2)
        pid = free.pid()
        hang(stuck, hanging)
        free.close()
        stuck.close()
        time.sleep(0.2)
        assert is_there(pid), "its call is under way"
    until(lambda: not is_there(pid), "a process outlives nvforwardd")


FIONREAD = termios.FIONREAD


def test_a_call_is_logged_before_it_is_made(program: Path, tmp_path: Path, monkeypatch) -> None:
    """So that the log names one that hangs; with the command, the class and the status of the driver's own calls."""
    monkeypatch.setenv("NVFORWARDD_VERBOSE", "1")
    control, alloc = 0xC020462A, 0xC030462B
    with (tmp_path / "log").open("w") as log, started(program, tmp_path, stderr=log) as (_, path):
        lane = Lane(path, next(PROCESSES))
        reading, writing = os.pipe()
        os.write(writing, b"abc")
        lane.call(request(IOCTL, FIONREAD, [(4,)], fds=1) + bytes(8), [reading])
        lane.call(
            request(IOCTL, control, [(32,)], fds=1) + struct.pack("=8I", 1, 2, 0x20801234, *[0] * 4, 0x56), [reading]
        )
        lane.call(
            request(IOCTL, alloc, [(48,)], fds=1) + struct.pack("=12I", 1, 2, 3, 0xC36F, *[0] * 6, 0x1B, 0), [reading]
        )
        lane.call(request(IOCTL, 72, [(400,)], fds=1) + struct.pack("=100I", *range(100)), [reading])
        lane.close()
        os.close(reading)
        os.close(writing)
    said = [line.split(": ", 3)[3] for line in (tmp_path / "log").read_text().splitlines()]
    assert said[:2] == [f"begins ioctl {FIONREAD:#x}: 0: 0", f"ended ioctl {FIONREAD:#x}: 0: 3"]
    assert said[2].startswith(f"begins ioctl {control:#x} control 0x20801234 status 0x56: 0: 1 2 20801234")
    assert said[3].startswith(f"ended ioctl {control:#x} control 0x20801234 status 0x56: -{errno.ENOTTY}: ")
    assert said[4].startswith(f"begins ioctl {alloc:#x} class 0xc36f status 0x1b: 0: 1 2 3 c36f")
    assert said[6] == "begins ioctl 0x48: 0: 0 1 2 3 4 5 6 7 8 9 a b c d e f 60 61 62 63"


@pytest.mark.parametrize(("uid", "flags"), [(0, ADMIN), (0, 0), (NOBODY, 0)], ids=["admin", "root", "no capability"])
def test_when_nvforwardd_dies_its_processes_do(program: Path, tmp_path: Path, uid: int, flags: int) -> None:
    """Those that changed their user too; the guest sees the end of each lane."""
    with started(program, tmp_path) as (process, path):
        lane = Lane(path, next(PROCESSES), uid=uid, flags=flags)
        pid = lane.pid()
        process.kill()
        process.wait()
        until(lambda: not is_there(pid), "a process outlives nvforwardd")
        assert lane.is_closed()
        lane.close()


def test_a_process_that_dies_is_made_anew(path: Path, lane: Lane) -> None:
    """Its lanes end; the others do not, and the guest process's next lane has a process again."""
    process = next(PROCESSES)
    first = Lane(path, process, 1)
    pid = first.pid()
    os.kill(pid, signal.SIGKILL)
    assert first.is_closed()
    assert lane.pid()
    again = Lane(path, process, 2)
    assert again.pid() not in (0, pid)
    first.close()
    again.close()


def test_the_rights_are_those_of_the_guest_process(path: Path) -> None:
    def status(**of: int) -> dict[str, list[str]]:
        lane = Lane(path, next(PROCESSES), **of)
        lines = Path(f"/proc/{lane.pid()}/status").read_text().splitlines()
        lane.close()
        return {line.split()[0]: line.split()[1:] for line in lines if line}

    own = Path("/proc/self/status").read_text()
    assert status(uid=0, flags=ADMIN)["CapEff:"][0] in own
    for uid in (0, NOBODY):
        found = status(uid=uid, flags=0)
        assert found["Uid:"] == [str(uid)] * 4
        assert int(found["CapEff:"][0], 16) == int(found["CapPrm:"][0], 16) == 0


def test_forty_processes_at_once(path: Path) -> None:
    """Each with four lanes whose calls are under way together; then all of it is gone."""
    lanes = [Lane(path, process, lane=number) for process in itertools.islice(PROCESSES, 40) for number in range(1, 5)]
    name = b"version\0"
    for lane in lanes:
        lane.send(request(READ, bufs=[(len(name),)]) + name)
    pids = [REPLY.unpack(lane.sock.recv(1 << 18)[: REPLY.size])[2] for lane in lanes]
    assert len(set(pids)) == 40
    assert all(len(set(pids[at : at + 4])) == 1 for at in range(0, len(pids), 4))
    for lane in lanes:
        lane.close()
    until(lambda: not any(map(is_there, pids)), "a process outlives its lanes")


def test_files_up_to_the_hard_limit(program: Path, tmp_path: Path) -> None:
    """A guest with many processes has more than the usual thousand open."""
    with started(program, tmp_path) as (_, path):
        lane = Lane(path, next(PROCESSES))
        line = next(one for one in Path(f"/proc/{lane.pid()}/limits").read_text().splitlines() if "open files" in one)
        soft, hard = line.split()[3:5]
        assert soft == hard
        lane.close()


# ---- home.py ----


def folder_of(tmp_path: Path, **files: str) -> Path:
    for name, text in files.items():
        (tmp_path / name.replace("_json", ".json").replace("_log", ".log")).write_text(text)
    return tmp_path


def test_a_step_that_ended_well(tmp_path: Path) -> None:
    (tmp_path / "results.jsonl").write_text('{"name": "a", "ok": true}\n')
    outcome = home.judge(folder_of(tmp_path, end_json='{"status": 0}'), "a", 1.0, "")
    assert outcome.ok
    assert outcome.results == [{"name": "a", "ok": True}]


def test_results_of_a_step_that_died_stay(tmp_path: Path) -> None:
    (tmp_path / "results.jsonl").write_text('{"name": "a", "ok": true}\n{"name": "b", "o')
    outcome = home.judge(tmp_path, "a", 1.0, "ended after 30 s")
    assert not outcome.ok
    assert [line["name"] for line in outcome.results] == ["a"]


def test_a_step_that_left_nothing_is_not_well(tmp_path: Path) -> None:
    assert not home.judge(tmp_path, "a", 1.0, "").ok


def test_why_a_step_failed_is_its_last_line(tmp_path: Path) -> None:
    said = json.dumps({"error": "Traceback\nOSError: nvidia.ko cannot be loaded"})
    assert home.judge(folder_of(tmp_path, end_json=said), "a", 1.0, "").why == "OSError: nvidia.ko cannot be loaded"
    assert "status 3" in home.judge(folder_of(tmp_path, end_json='{"status": 3}'), "a", 1.0, "").why


@pytest.mark.parametrize(
    ("line", "wanted"),
    [
        (
            "[    2.380000] WARNING: CPU: 0 PID: 1 at host.c:7 run+0x5/0x9",
            "the guest's kernel: WARNING: WARNING: CPU: 0",
        ),
        ("[    2.380000] rcu: INFO: rcu_sched self-detected stall on CPU", ""),  # a busy host
        ("[    2.380000] nvidia: loading out-of-tree module taints kernel.", ""),
    ],
)
def test_a_report_of_the_guests_kernel_is_why_a_step_failed(tmp_path: Path, line: str, wanted: str) -> None:
    outcome = home.judge(folder_of(tmp_path, end_json='{"status": 0}', console_log=f"{line}\n"), "a", 1.0, "")
    assert outcome.why.startswith(wanted)
    assert outcome.ok is not bool(wanted)


def test_folders_that_are_hidden_are_mounted_once() -> None:
    paths = [Path("/tmp/x/y"), Path("/tmp/x"), Path("/usr/bin"), Path("/run/z")]
    assert home.covered(paths) == ["/run/z", "/tmp/x"]


@pytest.mark.parametrize(("nested", "judged"), [(True, "0"), (False, "1")])
def test_shares_are_not_judged_in_a_nested_machine(tmp_path: Path, monkeypatch, nested: bool, judged: str) -> None:
    monkeypatch.setattr(home, "nested", lambda: nested)
    parts = home.Home(linux=tmp_path, modules=tmp_path, nvforwardd=tmp_path)
    said = home.card_environment(parts, tmp_path / "gpuload-that-is-not-there")
    assert said["SHARES_ARE_JUDGED"] == judged
    assert "GPULOAD_ITERATIONS" not in said


def test_a_machine_that_hangs_is_ended_with_all_its_processes(tmp_path: Path) -> None:
    (tmp_path / "pid").touch()
    script = f"sleep 100 & echo $! >{tmp_path}/pid; wait"
    assert home.boot(["sh", "-c", script], tmp_path, 1.0) == "ended after 1 s"
    time.sleep(0.2)
    assert not Path("/proc", (tmp_path / "pid").read_text().strip(), "exe").exists()


def test_a_process_that_hangs_in_the_driver_is_left_behind(capsys) -> None:
    class Hung:
        pid = 4711

        def wait(self, limit_s: float) -> None:
            raise subprocess.TimeoutExpired("nvforwardd", limit_s)

    home.reaped(Hung(), "nvforwardd")
    assert "nvforwardd 4711 does not end" in capsys.readouterr().err


def test_a_call_on_the_host_ends_with_its_limit(tmp_path: Path) -> None:
    """And what it started, which has its pipes."""
    began = time.monotonic()
    with pytest.raises(subprocess.TimeoutExpired):
        home.call(["sh", "-c", "sleep 100 & sleep 100"], 0.3)
    assert time.monotonic() - began < 20
    assert home.call(["sh", "-c", "echo $SAID; exit 3"], 30, SAID="x").stdout == "x\n"


@pytest.mark.parametrize(
    ("asked", "room", "wanted"),
    [
        ("16G", {"/dev/shm": 20000, "/tmp": 90000}, ("/dev/shm", 16384)),
        ("16G", {"/dev/shm": 9000, "/tmp": 90000}, ("/dev/shm", 9000)),
        ("16G", {"/dev/shm": 51, "/tmp": 90000}, ("/tmp", 16384)),  # a container's 64 MiB
        ("700M", {"/dev/shm": 51, "/tmp": 400}, ("/tmp", 400)),
        ("700M", {"/tmp": 4000}, ("/tmp", 700)),
    ],
)
def test_the_machine_has_no_more_memory_than_there_is_room(monkeypatch, asked, room, wanted) -> None:
    """A page of the file for which there is none is a SIGBUS."""
    monkeypatch.setattr(home, "room_mib", lambda: room)
    assert home.memory(asked) == wanted
    parts_ = home.Home(Path("linux"), Path("modules"), Path("nvforwardd"), memory=asked)
    words = home.command_line(parts_, Path("/tmp/out"), Path("/tmp/x/socket"))
    assert f"mem={wanted[1]}M" in words
    assert "seccomp=on" in words


def test_the_room_is_a_part_of_what_is_free() -> None:
    found = os.statvfs("/tmp")
    assert 0 < home.room_mib()["/tmp"] <= found.f_bavail * found.f_frsize * home.MEMORY_PCT // 100 >> 20


# ---- what the steps are made of ----


@pytest.fixture
def box(tmp_path: Path, monkeypatch) -> parts.Box:
    """A container of a card whose number is 3, without the module."""
    monkeypatch.setattr(parts, "NODES", tmp_path / "cgpu")
    (tmp_path / "cgpu/d").mkdir(parents=True)
    for name in ("nvidiactl", "nvidia3", "nvidia-uvm"):
        (tmp_path / "cgpu/d" / name).touch()
    made = parts.Box.__new__(parts.Box)
    made.dir = "d"
    return made


@pytest.mark.parametrize("refused", ["", "nvidia3"])
def test_a_program_runs_in_its_container_or_not_at_all(box, tmp_path, monkeypatch, refused: str) -> None:
    """Where a node cannot be put in place it would be on the driver's, and its result the container's."""
    folder = tmp_path / "bin"
    folder.mkdir()
    scripts = {"unshare": 'shift; exec "$@"', "setpriv": 'shift 2; exec "$@"'}
    scripts["mount"] = f'echo "$3" >>{tmp_path}/mounted; [ "$3" != /dev/{refused or "none"} ]'
    for name, script in scripts.items():
        (folder / name).write_text(f"#!/bin/sh\n{script}\n")
        (folder / name).chmod(0o755)
    monkeypatch.setenv("PATH", f"{folder}:{os.environ['PATH']}")
    done = parts.call(*box.head(), "echo", "ran")
    assert done.stdout == ("" if refused else "ran\n")
    mounted = (tmp_path / "mounted").read_text().split()
    assert "/dev/nvidia3" in mounted
    assert refused or mounted == ["/dev/nvidia-uvm", "/dev/nvidia3", "/dev/nvidiactl"]


def test_without_setpriv_no_program_is_an_administrator(box, monkeypatch) -> None:
    monkeypatch.setattr(parts.shutil, "which", lambda name: None)
    with pytest.raises(RuntimeError, match="setpriv is not installed"):
        box.head()


class Endless:
    """A driver that never refuses managed memory."""

    def __init__(self) -> None:
        self.device, self.taken = ctypes.c_int(), 0

    def must(self, name: str, *args) -> None:
        if name == "cuDeviceTotalMem_v2":
            args[0]._obj.value = 1 << 30

    def status(self, name: str, *args) -> int:
        self.taken += 1
        assert self.taken < 100
        return 0

    def context(self) -> ctypes.c_void_p:
        return ctypes.c_void_p()

    def free(self, at) -> None:
        pass


def test_memory_without_an_end_is_had_up_to_the_total(monkeypatch, capsys) -> None:
    """And one piece more, so that the result says that there was no limit."""
    monkeypatch.setattr(alloc, "Cuda", Endless)
    monkeypatch.setattr("sys.argv", ["alloc.py", "managed", "256"])
    assert alloc.main() == 0
    said = json.loads(capsys.readouterr().out)
    assert (said["allocated_mib"], said["refusal"]) == (1280, 0)


def way(script: str, limit_s: float | None = None) -> ways.Outcome:
    return ways.run(["sh", "-c", script], "a way", lambda: 5, limit_s)


def test_a_way_that_hangs_is_ended_with_its_children() -> None:
    began = time.monotonic()
    assert way("sleep 100 & sleep 100", 0.3).problem == "ended after 0 s"
    assert time.monotonic() - began < 20


PHASES = """echo '{"phase": "none", "bytes": 0}'; read x; echo '{"phase": "all", "bytes": 7}'; read x;"""


def test_a_charge_does_not_hide_a_call_that_failed() -> None:
    assert way(PHASES).problem == way(PHASES).charge == "all: 0 bytes are charged, not 7"
    failed = way(f"{PHASES} echo cuMemCreate: 2; exit 1")
    assert (failed.problem, failed.charge) == ("cuMemCreate: 2", "all: 0 bytes are charged, not 7")


@pytest.mark.parametrize(
    ("simulated", "problem", "ok"), [(False, "charged", None), (True, "charged", False), (False, "status 1", False)]
)
def test_another_drivers_charge_is_reported_and_no_failure(tmp_path, monkeypatch, simulated, problem, ok) -> None:
    found = ways.Outcome(problem=problem, charge="charged")
    monkeypatch.setattr(inside.ways, "run", lambda *words: found)
    monkeypatch.setattr(inside.ways, "WAYS", {"a way": {550}})
    monkeypatch.setattr(inside.ways, "LATER", {})
    monkeypatch.setattr(inside, "SIMULATED", simulated)
    monkeypatch.setattr(inside, "slices", lambda: (1, 2))
    monkeypatch.setattr(inside, "Box", EmptyBox)
    inside.newer(parts.Report(tmp_path))
    (line,) = map(json.loads, (tmp_path / "results.jsonl").read_text().splitlines())
    assert line["ok"] is ok


class EmptyBox:
    """A container whose programs leave nothing."""

    def __init__(self, *words) -> None:
        pass

    def __enter__(self):
        return self

    def __exit__(self, *exc) -> None:
        pass

    def head(self) -> list[str]:
        return []

    def used(self) -> int:
        return 0

    def is_empty(self) -> bool:
        return True


def test_a_walk_that_stalls_names_its_step() -> None:
    def done(stdout: str, stderr: str = "") -> subprocess.CompletedProcess[str]:
        return subprocess.CompletedProcess([], 3, stdout, stderr)

    assert inside.results(done('{"results": {"a": 0}, "stalled": null}')) == ({"a": 0}, {})
    assert inside.results(done('{"results": {"a": 0}, "stalled": "launch"}')) == ({}, {"stalled": "launch"})
    assert inside.results(done("", "ended after 28 s")) == ({}, {"stalled": "ended after 28 s"})


def test_on_a_card_nothing_takes_longer_than_its_step(tmp_path: Path) -> None:
    """Of the limits that are not a card's, in a program of its own: they follow from the environment."""
    program = "import json, inside, card, parts; print(json.dumps([parts.CALL_S, parts.START_S, parts.PROGRESS_S,"
    program += "inside.WAY_S, inside.WALK_S, float(inside.WALK_STALL_S), card.FINE_MIB]))"
    folders = f"{REPO}/tests/forward"
    for simulated, wanted in (("0", [25, 60, 30, 15, 28, 12, 64]), ("1", [300, 240, 120, 300, 300, 300, 2])):
        done = home.call([home.sys.executable, "-c", program], 60, CARD_IS_SIMULATED=simulated, PYTHONPATH=folders)
        assert json.loads(done.stdout) == wanted, done.stderr


def test_the_layout_is_that_of_the_header() -> None:
    assert len(request(HELLO)) == 16 + 16 * BUFS + 12 * FDS + 24 == 184
