# SPDX-License-Identifier: MIT
"""Rules that mutation testing found without a test: each of these tests fails when its rule is taken out."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import json
import os
import socket
import struct
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from fakelink import FakeLink
from fakes import SHIM_TIMEOUT_S, Node, eventually
from test_shim import Answerer, Place, answerer, place  # noqa: F401  the fixtures

from cgpu_common import frames, server, wire
from cgpu_common.errors import KernelMissing, KernelRefused
from cgpu_common.netlink import NetlinkLink
from cgpu_common.server import Request, Server
from cgpud import http, watch
from cgpud.state import Trigger
from cgpud.values import Cgroup, Phase, Record
from cgpud.watch import Facts, Watcher

ID = "0123456789abcdef" * 4
NOBODY = 65534


def states(node: Node) -> list[Path]:
    return list((node.directory / "state").glob("*.json"))


def pidfds_of(pid: int) -> int:
    """How many descriptors of this process are pidfds of that one."""
    found = 0
    for path in Path("/proc/self/fdinfo").iterdir():
        try:
            found += f"\nPid:\t{pid}\n" in path.read_text()
        except OSError:  # the descriptor of the directory itself
            pass
    return found


# ---- cgpu-runtime ----


@pytest.fixture
def somebodys_daemon(place: Place) -> Iterator[Answerer]:  # noqa: F811
    """A daemon that listens on the socket as another user: the kernel keeps the uid of listen()."""

    class Foreign(Answerer):
        def _serve(self) -> None:
            with contextlib.suppress(struct.error):  # closed without a request
                super()._serve()

        def __post_init__(self) -> None:
            listen = socket.socket.listen

            class Sock(socket.socket):
                def listen(self, *_: Any) -> None:
                    os.seteuid(NOBODY)
                    try:
                        listen(self)
                    finally:
                        os.seteuid(0)

            with pytest.MonkeyPatch.context() as patch:
                patch.setattr(socket, "socket", Sock)
                super().__post_init__()

    daemon = Foreign(place.directory / "s")
    yield daemon
    daemon.stop()


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can take another user")
def test_the_runtime_trusts_no_daemon_of_another_user(place: Place, somebodys_daemon: Answerer) -> None:  # noqa: F811
    done = place.run("create", "x")
    assert (done.returncode, place.handed_over()) == (1, None)
    assert done.stderr.startswith("cgpu: cannot connect to cgpud on ")
    assert done.stderr.endswith(": Operation not permitted\n")
    assert somebodys_daemon.asked == []


@pytest.mark.parametrize("path", [".:{}", "bin:{}", "./bin:{}", ":{}", "{}/../bundle/bin/../../bundle/none:.:{}"])
def test_a_relative_entry_of_path_is_skipped(place: Place, path: str) -> None:  # noqa: F811
    """The working directory is the bundle, and not all of its files come from the engine."""
    for directory in (place.bundle, place.bundle / "bin"):
        directory.mkdir(exist_ok=True)
        (directory / "runc").write_text("#!/bin/sh\nexit 9\n")
        (directory / "runc").chmod(0o755)
    assert place.run("--version", PATH=path.format(place.directory, place.directory)).returncode == 7


class Hanging(Answerer):
    """A daemon that takes a request and sends no reply until it is stopped."""

    def _serve(self) -> None:
        with contextlib.suppress(OSError):
            self.conn, _ = self.sock.accept()
            self.conn.recv(1 << 16)


def test_a_daemon_that_sends_no_reply_is_not_waited_for_without_end(place: Place) -> None:  # noqa: F811
    daemon = Hanging(place.directory / "s")
    try:
        done = place.run("create", "x")
    finally:
        daemon.stop()
        daemon.conn.close()
    assert (done.returncode, place.handed_over()) == (1, None)
    assert done.stderr == f"cgpu: no answer from cgpud within {SHIM_TIMEOUT_S} s\n"


def test_a_daemon_that_accepts_no_connection_is_not_waited_for_without_end(place: Place) -> None:  # noqa: F811
    """The queue of connections is full: connect() waits, for as long as SO_SNDTIMEO permits."""
    path = str(place.directory / "s")
    with contextlib.ExitStack() as sockets:
        listening = sockets.enter_context(socket.socket(socket.AF_UNIX))
        listening.bind(path)
        sockets.callback(os.unlink, path)
        listening.listen(0)
        with contextlib.suppress(BlockingIOError):
            while True:
                waiting = sockets.enter_context(socket.socket(socket.AF_UNIX))
                waiting.setblocking(False)
                waiting.connect(path)
        done = place.run("create", "x")
    assert (done.returncode, place.handed_over()) == (1, None)
    assert done.stderr.startswith("cgpu: cannot connect to cgpud on ")


@pytest.mark.parametrize(("size", "status"), [(wire.REPLY_MAX, 7), (wire.REPLY_MAX + 1, 1)])
def test_the_size_of_a_reply_is_bounded(place: Place, answerer: Answerer, size: int, status: int) -> None:  # noqa: F811
    answerer.reply = b'{"ok":true,"x":"' + b"x" * (size - 18) + b'"}'
    assert len(answerer.reply) == size
    assert place.run("create", "x").returncode == status


# ---- records ----


async def test_a_record_that_cannot_be_written_leaves_the_last_one(node: Node, monkeypatch: pytest.MonkeyPatch) -> None:
    """A full disk says so when the data goes there."""

    def full(fd: int) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    async with node.running() as daemon:
        assert (await node.prepare(ID))["ok"]
        (path,) = states(node)
        before = path.read_bytes()
        (record,) = daemon.records.values()
        monkeypatch.setattr(os, "fsync", full)
        with pytest.raises(OSError, match="No space left"):
            daemon.deps.store.save(replace(record, phase=Phase.RELEASING))
        monkeypatch.undo()
        assert path.read_bytes() == before
        assert [one.name for one in path.parent.iterdir() if one.suffix == ".part"] == []


async def test_the_record_is_written_before_create(node: Node) -> None:
    """A daemon that is killed in between leaves a container of which the next one finds the record."""

    class Watching(FakeLink):
        found: list[tuple[str, int]]

        async def create(self, container_id: str, cookie: int, slots: Any) -> Any:
            records = [json.loads(path.read_text()) for path in states(node)]
            self.found = [(record["id"], record["cookie"]) for record in records]
            return await super().create(container_id, cookie, slots)

    node.link = link = Watching()
    async with node.running():
        assert (await node.prepare(ID))["ok"]
        assert link.found == [(ID, link.containers[ID].cookie)]


async def test_a_record_of_another_boot_has_no_process(node: Node, monkeypatch: pytest.MonkeyPatch) -> None:
    """Pid and start time may be those of an unrelated process by now."""
    opened: list[int] = []

    async with node.running():
        process = await node.start(ID)
    (path,) = states(node)
    path.write_text(json.dumps({**json.loads(path.read_text()), "boot_id": "another"}))
    real = node.facts.pidfd
    monkeypatch.setattr(node.facts, "pidfd", lambda pid: opened.append(pid) or real(pid))
    async with node.running():
        assert process.pid not in opened
        assert not node.link.containers, "the container that the kernel has is of this boot, but not of the record"


@pytest.mark.parametrize("code", [errno.EPERM, errno.EACCES, errno.EBUSY, errno.ETIMEDOUT])
async def test_a_refused_destroy_is_not_done(node: Node, code: int) -> None:
    """Without CAP_NET_ADMIN, for example: the container is there, and so is its record."""

    async with node.running() as daemon:
        await node.start(ID, "/docker/a")
        real = node.link.destroy

        async def refuse(container_id: str, cookie: int) -> bool:
            raise KernelRefused(code, f"cgpu_km: {os.strerror(code)}")

        node.link.destroy = refuse  # type: ignore[method-assign]
        await node.ask(op="release", id=ID, cookie=node.cookie(ID))
        assert [record.phase for record in daemon.records.values()] == [Phase.STUCK]
        assert len(states(node)) == 1
        node.link.destroy = real  # type: ignore[method-assign]
        await daemon.reconcile()
        assert not node.link.containers
        assert not states(node)


@pytest.mark.parametrize(
    ("error", "result"),
    [
        (None, True),
        (KernelMissing(), False),
        (KernelRefused(errno.ENOENT, ""), False),
        (KernelRefused(errno.EPERM, ""), KernelRefused),
        (KernelRefused(errno.EBUSY, ""), KernelRefused),
    ],
    ids=str,
)
async def test_only_no_such_container_is_as_good_as_destroyed(
    monkeypatch: pytest.MonkeyPatch, error: Exception | None, result: Any
) -> None:
    async def request(*_: Any) -> list[Any]:
        if error is not None:
            raise error
        return []

    link = NetlinkLink()
    monkeypatch.setattr(link, "_request", request)
    if isinstance(result, bool):
        assert await link.destroy(ID, 1) is result
    else:
        with pytest.raises(result):
            await link.destroy(ID, 1)


# ---- pidfds ----


async def test_a_refused_bind_closes_its_pidfd(node: Node) -> None:
    async with node.running():
        assert (await node.prepare(ID))["ok"]
        process = node.process()
        pidfd = os.pidfd_open(process.pid)
        before = pidfds_of(process.pid)
        try:
            for _ in range(3):
                assert not (await node.ask(op="bind", id=ID, cookie="1", fds=[pidfd]))["ok"]
            assert pidfds_of(process.pid) == before == 1
        finally:
            os.close(pidfd)


async def test_a_pidfd_of_a_later_process_is_closed(node: Node) -> None:
    """After a restart the pid of a record belongs to another process."""

    async with node.running():
        process = await node.start(ID, "/docker/a")
    (path,) = states(node)
    record = json.loads(path.read_text())
    record["process"]["starttime"] += 1
    path.write_text(json.dumps(record))
    async with node.running() as daemon:
        await asyncio.sleep(0.1)
        assert daemon.records, "its cgroup is populated"
        assert pidfds_of(process.pid) == 0


async def test_a_pidfd_of_a_process_that_has_left_is_closed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """cgroup v1: between two readings of the members."""
    monkeypatch.setattr(watch, "CHECK_AGAIN_S", (60.0,))
    (tmp_path / "devices").mkdir()
    (tmp_path / "devices/cgroup.procs").touch()

    class Leaving(Facts):
        readings = 0

        def is_empty(self, group: Cgroup) -> bool:
            return False

        def members(self, group: Cgroup) -> Iterator[int]:
            self.readings += 1
            yield from [os.getpid()] if self.readings == 1 else []

    facts = Leaving(cgroups=tmp_path)
    told: list[Trigger] = []
    watcher = Watcher(facts, lambda _, trigger: told.append(trigger))
    watcher.add(Record(ID, 1, "boot", "", Phase.BOUND, 0.0, None, Cgroup("/c", 1)), None)
    await eventually(lambda: facts.readings >= 2, "read twice")
    assert pidfds_of(os.getpid()) == 0
    watcher.close()


# ---- time ----


async def ask_for(path: Path) -> socket.socket:
    """A client that sends a request and reads nothing."""
    sock = socket.socket(socket.AF_UNIX)
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    sock.setblocking(False)
    await asyncio.get_running_loop().sock_connect(sock, str(path))
    sock.send(b"GET /metrics HTTP/1.1\r\n\r\n")
    return sock


async def test_a_page_that_takes_too_long_is_an_answer(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(http, "ANSWER_TIMEOUT_S", 0.2)

    async def never(_accept: str) -> tuple[bytes, str]:
        await asyncio.sleep(3600)
        raise AssertionError

    server = http.HttpServer(never)
    await server.start(http.Unix(str(tmp_path / "s")))
    reader, writer = await asyncio.open_connection(sock=await ask_for(tmp_path / "s"))
    answer = await asyncio.wait_for(reader.read(), 20)
    assert answer.startswith(b"HTTP/1.1 503 ")
    assert answer.endswith(b"reading the kernel's figures takes too long\n")
    writer.close()
    await server.stop()


async def test_a_scraper_that_reads_nothing_keeps_no_connection(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(http, "READ_TIMEOUT_S", 0.3)

    async def page(_accept: str) -> tuple[bytes, str]:
        return b"x" * (8 << 20), "text/plain"

    server = http.HttpServer(page)
    await server.start(http.Unix(str(tmp_path / "s")))
    with await ask_for(tmp_path / "s"):
        await eventually(lambda: server.open == 1, "it is open")
        await eventually(lambda: server.open == 0, "it is closed", 10)
    await server.stop()


async def test_a_peer_that_reads_no_reply_keeps_no_connection(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(server, "READ_TIMEOUT_S", 0.5)
    unsent: list[str] = []

    async def handle(_request: Request) -> dict[str, Any]:
        return {"ok": True, "text": "x" * (8 << 20)}

    async def undelivered(request: Request) -> None:
        unsent.append(request.message.op)

    serving = Server(tmp_path / "s", handle, undelivered)
    serving.start()
    with socket.socket(socket.AF_UNIX) as sock:
        sock.connect(str(tmp_path / "s"))
        sock.send(frames.encode({"op": "status"}))
        await eventually(lambda: unsent == ["status"], "given up", 10)
        sock.settimeout(10)
        while await asyncio.to_thread(sock.recv, 1 << 20):
            pass
    await serving.stop()
