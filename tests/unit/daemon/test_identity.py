# SPDX-License-Identifier: MIT
"""Identity: a reused pid is another process, a reused name is another cgroup, and a caller is identified by its uid."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import socket
import struct
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from fakes import Node, eventually, read_reply

from cgpu_common import server
from cgpud.state import Trigger
from cgpud.values import Phase, Process, Record
from cgpud.watch import Facts, Key, Watcher

ID = "0123456789abcdef" * 4
NOBODY = 65534


def record_of(process: Process | None, phase: Phase = Phase.BOUND) -> Record:
    return Record("c", 1, "boot", "", phase, 0.0, process)


def later(process: Process | None) -> Process:
    """The process that had the pid before."""
    assert process is not None
    return replace(process, starttime=process.starttime - 1)


# ---- processes ----


@pytest.mark.parametrize(
    ("phase", "trigger"), [(Phase.BOUND, Trigger.INIT_EXITED), (Phase.PREPARED, Trigger.RUNTIME_EXITED)], ids=str
)
async def test_a_pid_that_another_one_has_by_now(node: Node, phase: Phase, trigger: Trigger) -> None:
    """The process of the record has ended, which is reported at once. The process that has its pid is not watched."""
    told: list[tuple[Key, Trigger]] = []

    facts = Facts()
    process = node.process()
    watcher = Watcher(facts, lambda key, trigger: told.append((key, trigger)))
    watcher.reopen(record_of(later(facts.process(process.pid)), phase))
    await asyncio.sleep(0.05)
    assert told == [(("c", 1), trigger)]
    process.kill()
    process.wait()
    await asyncio.sleep(0.05)
    assert told == [(("c", 1), trigger)]
    watcher.close()


async def test_a_pid_that_is_still_his(node: Node) -> None:
    told: list[Trigger] = []

    facts = Facts()
    process = node.process()
    watcher = Watcher(facts, lambda key, trigger: told.append(trigger))
    watcher.reopen(record_of(facts.process(process.pid)))
    await asyncio.sleep(0.05)
    assert told == []
    process.kill()
    await eventually(lambda: told == [Trigger.INIT_EXITED], "reported by its pidfd")
    watcher.close()


@pytest.mark.parametrize("phase", [Phase.BOUND, Phase.PREPARED], ids=str)
def test_alive_is_who_began_at_that_time(phase: Phase) -> None:
    facts = Facts()
    me = facts.process(os.getpid())
    assert facts.is_alive(record_of(me, phase))
    assert not facts.is_alive(record_of(later(me), phase))


# ---- cgroups ----


@pytest.mark.parametrize("version", [1, 2])
def test_a_cgroup_of_the_same_name(tmp_path: Path, version: int) -> None:
    """An engine that starts the container again makes a new cgroup. It has processes, but is not the recorded one."""
    if version == 1:
        (tmp_path / "devices").mkdir()
        (tmp_path / "devices/cgroup.procs").touch()
    facts = Facts(cgroups=tmp_path)
    directory = facts.cgroups / "docker/c"

    def make() -> None:
        directory.mkdir(parents=True)
        (directory / "cgroup.procs").write_text(f"{os.getpid()}\n")
        (directory / "cgroup.events").write_text("populated 1\n")

    make()
    first = facts.cgroup_at("/docker/c")
    assert first is not None
    record = replace(record_of(None), cgroup=first)
    assert facts.is_alive(record)
    directory.rename(tmp_path / "kept")  # kept, or the new directory could get its inode
    make()
    assert not facts.is_alive(record)
    assert facts.is_alive(replace(record, cgroup=facts.cgroup_at("/docker/c")))


async def test_the_same_name_after_a_restart(node: Node) -> None:
    """The container ended while no daemon ran, and a cgroup that is not the recorded one has its name."""

    async with node.running():
        await node.start(ID, "/docker/a")
    directory = node.directory / "cgroup/docker/a"
    directory.rename(directory.with_name("kept"))
    node.populate("/docker/a", True)
    async with node.running():
        await eventually(lambda: not node.link.containers, "released")


@pytest.mark.parametrize(
    ("about", "kind"),
    [
        ("cgroup2 cgroup2 rw,nsdelegate,memory_recursiveprot", "nsdelegate"),
        ("cgroup2 none rw", "v2"),
        ("cgroup2 none rw,xnsdelegate", "v2"),
        ("cgroup cgroup rw,devices", "v1"),
        ("tmpfs tmpfs rw", "v1"),
        (None, "v1"),
    ],
)
def test_which_cgroups_the_host_has(tmp_path: Path, about: str | None, kind: str) -> None:
    (tmp_path / "self").mkdir()
    lines = ["25 1 0:22 / /sys rw,nosuid shared:7 - sysfs sysfs rw", "9 1 0:7 / /other rw - cgroup2 x rw,nsdelegate"]
    lines += [f"30 25 0:26 / {tmp_path} ro,nosuid shared:4 - {about}"] if about else []
    (tmp_path / "self/mountinfo").write_text("\n".join([*lines, ""]))
    assert Facts(tmp_path, tmp_path).cgroup_kind() == kind
    (tmp_path / "devices").mkdir()
    (tmp_path / "devices/cgroup.procs").touch()
    assert Facts(tmp_path, tmp_path).cgroup_kind() == "v1", "v1 beside v2 has the devices"


# ---- callers ----


@pytest.mark.parametrize(
    ("own", "uid", "may"),
    [(0, 0, True), (0, 1, False), (0, NOBODY, False), (1000, 0, True), (1000, 1000, True), (1000, 1001, False)],
)
def test_which_users_are_allowed(monkeypatch: pytest.MonkeyPatch, own: int, uid: int, may: bool) -> None:
    """Root, and the user that runs the daemon, so that it can be tried without root."""
    monkeypatch.setattr(os, "geteuid", lambda: own)
    assert server.is_allowed(uid) is may


def ask_anyway(path: Path, request: dict[str, Any]) -> dict[str, Any]:
    """cgpud refuses before it reads, so the socket may be closed before the request is sent. The reply still comes."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as sock:
        sock.settimeout(10)
        sock.connect(str(path))
        body = json.dumps(request).encode()
        with contextlib.suppress(ConnectionError):
            sock.sendall(struct.pack(">I", len(body)) + body)
        return read_reply(sock)


async def test_another_user_is_refused(node: Node, monkeypatch: pytest.MonkeyPatch) -> None:
    """A caller that could connect although the socket's mode forbids it."""
    request = {"op": "prepare", "id": ID, "bundle": str(node.bundle(ID))}

    async with node.running():
        monkeypatch.setattr(server, "peer_of", lambda sock: (1, os.geteuid() + 1))
        reply = await asyncio.to_thread(ask_anyway, node.socket, request)
        assert reply == {"ok": False, "error": "only root may send requests to cgpud"}
        assert not node.link.calls
        assert not node.daemon.records


def test_the_other_end_as_the_kernel_has_it() -> None:
    ours, theirs = socket.socketpair(socket.AF_UNIX)
    with ours, theirs:
        assert server.peer_of(ours) == (os.getpid(), os.getuid())


#: Connects, passes the connection to its parent and ends.
PASS_ON = """
import socket, sys
to = socket.socket(fileno=int(sys.argv[1]))
made = socket.socket(socket.AF_UNIX)
made.connect(sys.argv[2])
socket.send_fds(to, [b"x"], [made.fileno()])
"""


def connection_of_one_that_has_ended(path: Path) -> socket.socket:
    ours, theirs = socket.socketpair(socket.AF_UNIX)
    with ours, theirs:
        words = [sys.executable, "-I", "-S", "-c", PASS_ON, str(theirs.fileno()), str(path)]
        subprocess.run(words, pass_fds=[theirs.fileno()], check=True, timeout=30)
        _, (fd,), _, _ = socket.recv_fds(ours, 1, 1)
    return socket.socket(fileno=fd)


async def test_a_caller_whose_pid_is_another_ones_by_now(node: Node, monkeypatch: pytest.MonkeyPatch) -> None:
    """A process of a container connects and ends, and one of the host gets its pid before it is looked at."""
    ours, theirs = socket.socketpair(socket.AF_UNIX)
    with ours, theirs:
        try:
            os.close(ours.getsockopt(socket.SOL_SOCKET, server.SO_PEERPIDFD))
        except OSError:
            assert not server.has_ended(ours)
            pytest.skip("the kernel is older than SO_PEERPIDFD")
        assert not server.has_ended(ours)
    monkeypatch.setattr(server, "is_outside_of_containers", lambda pid: True)  # the one of the host
    async with node.running():
        with connection_of_one_that_has_ended(node.socket) as sock:  # the daemon's loop waits meanwhile
            sock.settimeout(10)
            reply = await asyncio.to_thread(read_reply, sock)
    assert reply == {"ok": False, "error": "cgpud takes no requests from a container"}


@pytest.mark.parametrize(
    ("status", "outside"),
    [
        ("Name:\tx\nNSpid:\t7\nNSpgid:\t7\n", True),
        ("Name:\tx\nNSpid:\t7\t1\n", False),
        ("Name:\tNSpid: 7\nNSpid:\t7\t3\t1\n", False),
        ("Name:\tx\nNSpid:\t\n", False),
        ("Name:\tx\n", False),
        ("", False),
        (None, False),
    ],
    ids=ascii,
)
def test_who_is_in_a_container(tmp_path: Path, status: str | None, outside: bool) -> None:
    (tmp_path / "7").mkdir()
    if status is not None:
        (tmp_path / "7/status").write_text(status)
    assert server.is_outside_of_containers(7, tmp_path) is outside


@pytest.mark.skipif(os.geteuid() != 0, reason="only root makes a pid namespace")
@pytest.mark.parametrize("contained", [False, True])
async def test_root_of_a_container_is_refused(node: Node, contained: bool) -> None:
    """Uid 0 with the socket mounted, in a pid namespace of its own."""
    words = ["unshare", "--pid", "--fork"] if contained else []
    body = b'{"op":"status"}'

    def ask() -> bytes:
        done = subprocess.run(
            [*words, sys.executable, "-I", "-S", "-c", STATUS, str(node.socket)],
            input=struct.pack(">I", len(body)) + body,
            capture_output=True,
            timeout=30,
        )
        if b"Operation not permitted" in done.stderr:
            pytest.skip("this machine makes no pid namespace")
        assert done.returncode == 0, done.stderr.decode()
        return done.stdout

    async with node.running():
        reply = json.loads(await asyncio.to_thread(ask))
        assert reply["ok"] is not contained
        if contained:
            assert reply == {"ok": False, "error": "cgpud takes no requests from a container"}


@pytest.mark.parametrize(
    ("group", "answered"),
    [("/docker/a", False), ("/docker/a/inner/x", False), ("/docker/ab", True), ("/docker", True), (None, True)],
)
async def test_a_process_of_a_container_with_the_hosts_pid_namespace(
    node: Node, monkeypatch: pytest.MonkeyPatch, group: str | None, answered: bool
) -> None:
    """It sees /proc/PID/root of a process with no capabilities, and behind it the socket."""
    async with node.running():
        await node.start(ID, "/docker/a")
        monkeypatch.setattr(node.facts, "cgroup_path", lambda pid: group)
        reply = await node.ask(op="release", id=ID, cookie=node.cookie(ID))
        assert reply == (
            {"ok": True} if answered else {"ok": False, "error": "cgpud takes no requests from a container"}
        )
        assert bool(node.link.containers) is not answered


#: With what Docker gives, and the host's pid namespace: what is behind the process.
LOOK = """
import ctypes, os, sys
libc = ctypes.CDLL(None, use_errno=True)
for number in range(64):
    if number not in (0, 1, 3, 4, 5, 6, 7, 8, 10, 13, 18, 27, 29, 31):  # of Docker
        libc.prctl(24, number, 0, 0, 0)  # from the bounding set; the exec takes it from the others
os.execvp("ls", ["ls", f"/proc/{sys.argv[1]}/root/"])
"""


@pytest.mark.skipif(os.geteuid() != 0, reason="only root is to be protected from root")
@pytest.mark.parametrize("clears", [False, True])
def test_what_is_behind_a_process_without_capabilities(clears: bool) -> None:
    code = "from cgpu_common import dumpable; dumpable.clear();" if clears else ""
    words = ["setpriv", "--bounding-set", "-all", sys.executable, "-c", f"{code}print(flush=True); input()"]
    with subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdin is not None and process.stdout is not None
        process.stdout.readline()
        seen = subprocess.run([sys.executable, "-c", LOOK, str(process.pid)], capture_output=True, text=True)
        process.stdin.write("\n")
    assert ("etc" in seen.stdout.split(), "Permission denied" in seen.stderr) == (not clears, clears), seen


@pytest.mark.parametrize("file", ["cgpud/__main__.py", "cgpu_kube/node/command.py", "cgpu_kube/node/host_keeper.py"])
def test_the_programs_with_the_socket_close_theirs(file: str) -> None:
    assert "dumpable.clear()" in Path(file).read_text()


STATUS = """
import socket, sys
with socket.socket(socket.AF_UNIX) as sock:
    sock.settimeout(20)
    sock.connect(sys.argv[1])
    try:
        sock.sendall(sys.stdin.buffer.read())
    except OSError:
        pass  # refused before it was sent: the reply is there
    size = int.from_bytes(sock.recv(4, socket.MSG_WAITALL), "big")
    sys.stdout.buffer.write(sock.recv(size, socket.MSG_WAITALL))
"""


async def test_status_has_no_cookies(node: Node) -> None:
    """A request with id and cookie releases a container's slice."""

    async with node.running():
        await node.start(ID)
        assert node.cookie(ID) not in json.dumps(await node.ask(op="status"))


@pytest.fixture
def elsewhere() -> Iterator[int]:
    """A process in a network and a pid namespace of its own."""
    if os.geteuid() != 0:
        pytest.skip("only root makes namespaces")
    process = subprocess.Popen(["unshare", "--net", "--pid", "--fork", "--kill-child", "sleep", "1000"])
    children = Path(f"/proc/{process.pid}/task/{process.pid}/children")
    try:
        for _ in range(500):
            if process.poll() is not None:
                pytest.skip("this machine makes no namespaces")
            if pids := children.read_text().split():
                break
            time.sleep(0.02)
        yield int(pids[0])
    finally:
        process.kill()
        process.wait()


def test_a_namespace_is_known_by_its_identity(elsewhere: int, tmp_path: Path) -> None:
    facts = Facts()
    for kind, name in (("network", "net"), ("pid", "pid")):
        assert facts.is_own_namespace(kind, f"/proc/{elsewhere}/ns/{name}")
        assert not facts.is_own_namespace(kind, f"/proc/self/ns/{name}")
        assert not facts.is_own_namespace(kind, f"/proc/{os.getpid()}/ns/{name}")
        (tmp_path / name).symlink_to(f"/proc/self/ns/{name}")
        assert not facts.is_own_namespace(kind, str(tmp_path / name)), "by another name"
    (tmp_path / "file").touch()
    for path in (str(tmp_path / "file"), str(tmp_path / "none"), "a\0b", ""):
        assert not facts.is_own_namespace("network", path)
    assert not facts.is_own_namespace("cgroup", f"/proc/{elsewhere}/ns/cgroup"), "not a kind that counts"


async def test_a_pod_with_the_hosts_namespaces(node: Node, elsewhere: int) -> None:
    """As containerd's CRI writes it: each namespace by a path of the sandbox."""

    async def prepare(of: int) -> dict[str, Any]:
        spaces = (("network", "net"), ("pid", "pid"))
        with node.edited(ID) as spec:
            spec["linux"]["namespaces"] = [{"type": kind, "path": f"/proc/{of}/ns/{name}"} for kind, name in spaces]
            spec["process"]["capabilities"]["bounding"].append("CAP_NET_ADMIN")
        return await node.again(ID)

    async with node.running():
        assert "CAP_NET_ADMIN, the host's network and the host's processes" in (await prepare(os.getpid()))["error"]
        assert not node.link.calls
        assert (await prepare(elsewhere))["ok"]


def test_a_pid_namespace_that_may_not_be_looked_at(elsewhere: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """The process has more capabilities than the daemon has under its unit. NSpid in its status decides."""
    real = Path.stat

    def stat(path: Path, **more: Any) -> os.stat_result:
        if path.parts[:2] == ("/", "proc") and path.parts[2] != "self":
            raise PermissionError
        return real(path, **more)

    monkeypatch.setattr(Path, "stat", stat)
    facts = Facts()
    assert facts.is_own_namespace("pid", f"/proc/{elsewhere}/ns/pid")
    assert not facts.is_own_namespace("pid", f"/proc/{os.getpid()}/ns/pid")
    assert not facts.is_own_namespace("pid", f"/proc/{elsewhere}/root/../ns/pid")
    assert not facts.is_own_namespace("network", f"/proc/{elsewhere}/ns/net"), "an unknown one counts as the host's"


ASK = """
import socket, sys
with socket.socket(socket.AF_UNIX) as sock:
    sock.settimeout(10)
    sock.connect("d.sock")
    answer = b""
    while chunk := sock.recv(4096):
        answer += chunk
sys.stdout.buffer.write(answer)
"""


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can take another user")
async def test_another_user_in_person(node: Node) -> None:
    """The socket and its directory are open to all by mistake, and the caller has root's group."""
    python = os.path.realpath(sys.executable)

    def ask() -> subprocess.CompletedProcess[bytes]:
        return subprocess.run([python, "-I", "-S", "-c", ASK], cwd=node.directory, user=NOBODY, capture_output=True)

    async with node.running():
        node.directory.chmod(0o755)
        node.socket.chmod(0o666)
        try:
            done = await asyncio.to_thread(ask)
        except PermissionError:
            pytest.skip("no other user may run this Python here")
        assert done.returncode == 0, done.stderr.decode()
        body = b'{"ok":false,"error":"only root may send requests to cgpud"}'
        assert done.stdout == struct.pack(">I", len(body)) + body
