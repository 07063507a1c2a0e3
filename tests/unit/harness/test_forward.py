# SPDX-License-Identifier: MIT
"""nvforwardd by its socket, on files that are no GPU's; what home.py makes of a step that ended, died or hung."""

from __future__ import annotations

import array
import errno
import itertools
import json
import os
import socket
import struct
import subprocess
import sys
import termios
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

REPO = Path(__file__).resolve().parents[3]
sys.path.insert(0, str(REPO / "tests/forward"))

import home  # noqa: E402

HELLO, OPEN, CLOSE, IOCTL, READ, POLL = range(1, 7)
BUFS, FDS = 6, 4
ADMIN = 1
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

    def __init__(self, path: Path, process: int, lane: int = 7) -> None:
        self.bell, writing = os.pipe()
        self.sock = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self.sock.connect(str(path))
        self.send(request(HELLO, fds=1, lane=lane, pid=5, flags=ADMIN, process=process), [writing])
        os.close(writing)
        self.number = lane

    def send(self, data: bytes, fds: list[int] | None = None) -> None:
        rights = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", fds))] if fds else []
        self.sock.sendmsg([data], rights)

    def call(self, data: bytes, fds: list[int] | None = None) -> tuple[int, bytes, int]:
        """Result, data, process; the bell must have rung with the lane's number."""
        self.send(data, fds)
        assert struct.unpack("=I", os.read(self.bell, 4)) == (self.number,)
        got = self.sock.recv(1 << 18)
        result, size, pid = REPLY.unpack(got[: REPLY.size])
        assert size == len(got) - REPLY.size
        return result, got[REPLY.size :], pid

    def close(self) -> None:
        self.sock.close()
        os.close(self.bell)


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    folder = tmp_path_factory.mktemp("forward")
    subprocess.run(["make", "-s", "-C", REPO / "tests/forward/host", f"OUT={folder}"], check=True)
    process = subprocess.Popen([folder / "nvforwardd", folder / "socket"])
    end = time.monotonic() + 20
    while not (folder / "socket").exists():
        assert time.monotonic() < end
        time.sleep(0.01)
    yield folder / "socket"
    process.kill()
    process.wait()


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
    name = b"version\0"
    pids = [lane.call(request(READ, bufs=[(len(name),)]) + name)[2] for lane in lanes]
    assert pids[0] == pids[2] != pids[1]
    for lane in lanes:
        lane.close()
    end = time.monotonic() + 10
    while any(Path(f"/proc/{pid}/exe").exists() for pid in set(pids)):  # a zombie has none
        assert time.monotonic() < end, "a process outlives its lanes"
        time.sleep(0.01)


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


def test_folders_that_are_hidden_are_mounted_once() -> None:
    paths = [Path("/tmp/x/y"), Path("/tmp/x"), Path("/usr/bin"), Path("/run/z")]
    assert home.covered(paths) == ["/run/z", "/tmp/x"]


def test_a_machine_that_hangs_is_ended_with_all_its_processes(tmp_path: Path) -> None:
    (tmp_path / "pid").touch()
    script = f"sleep 100 & echo $! >{tmp_path}/pid; wait"
    assert home.boot(["sh", "-c", script], tmp_path, 1.0) == "ended after 1 s"
    time.sleep(0.2)
    assert not Path("/proc", (tmp_path / "pid").read_text().strip(), "exe").exists()


def test_the_layout_is_that_of_the_header() -> None:
    assert len(request(HELLO)) == 16 + 16 * BUFS + 12 * FDS + 24 == 184
