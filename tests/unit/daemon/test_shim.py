# SPDX-License-Identifier: MIT
"""cgpu-runtime, built for a socket in a temporary directory, in front of a runtime that only records."""

from __future__ import annotations

import array
import json
import os
import shutil
import signal
import socket
import stat
import struct
import subprocess
import sys
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from test_config import ASKS

VARIABLE = "ALIYUN_COM_GPU_MEM_CONTAINER=6"


@dataclass
class Answerer:
    """A daemon that sends the reply that a test sets."""

    path: Path
    reply: bytes = b'{"ok":true,"action":"edited"}'
    asked: list[dict[str, Any]] = field(default_factory=list)
    fdinfo: list[str] = field(default_factory=list)
    closes: int = 0  # so many connections at once, without a reply

    def __post_init__(self) -> None:
        self.sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self.sock.bind(str(self.path))
        self.sock.listen()
        self.thread = threading.Thread(target=self._serve, daemon=True)
        self.thread.start()

    def _serve(self) -> None:
        while True:
            try:
                conn, _ = self.sock.accept()
            except OSError:
                return
            with conn:
                if self.closes:
                    self.closes -= 1
                    continue
                data, fds, _, _ = socket.recv_fds(conn, 4, 4)
                (size,) = struct.unpack(">I", data)
                self.asked.append(json.loads(conn.recv(size, socket.MSG_WAITALL)))
                for fd in array.array("i", fds):
                    self.fdinfo.append(Path(f"/proc/self/fdinfo/{fd}").read_text())
                    os.close(fd)
                conn.sendall(struct.pack(">I", len(self.reply)) + self.reply)

    def stop(self) -> None:
        self.sock.shutdown(socket.SHUT_RDWR)
        self.sock.close()
        self.thread.join(5)
        self.path.unlink(missing_ok=True)


@dataclass
class Place:
    """The shim, the recorder and a bundle."""

    directory: Path

    def __post_init__(self) -> None:
        self.shim = self.directory / "cgpu-runtime"
        self.record = self.directory / "argv"
        self.next = self.directory / "runc"
        self.conf = self.directory / "runtime.conf"
        self.next.write_text(f'#!/bin/sh\nprintf "%s\\n" "$@" > {self.record}\nexit 7\n')
        self.next.chmod(0o755)
        self.bundle = self.directory / "bundle"
        self.bundle.mkdir()
        self.config([VARIABLE])
        self.conf.write_text("wait_s = 0\n")

    def config(self, env: list[str], **more: Any) -> None:
        (self.bundle / "config.json").write_text(json.dumps({"process": {"env": env}, **more}))

    def reset(self) -> None:
        self.record.unlink(missing_ok=True)

    def run(self, *argv: str, stdin: str = "", name: str | None = None, **env: str) -> subprocess.CompletedProcess[str]:
        self.record.unlink(missing_ok=True)
        return subprocess.run(
            [name or str(self.shim), *argv],
            executable=str(self.shim),
            input=stdin,
            capture_output=True,
            text=True,
            timeout=20,
            cwd=self.bundle,
            env={"PATH": f"{self.directory}:/usr/bin:/bin", "ASAN_OPTIONS": "detect_leaks=0", **env},
        )

    def handed_over(self) -> list[str] | None:
        return self.record.read_text().splitlines() if self.record.exists() else None


@pytest.fixture
def place(shim: Path) -> Place:
    for name in ("bundle", "runtime.conf", "argv", "log.json", "nodes", "numbers", "state"):
        target = shim / name
        shutil.rmtree(target) if target.is_dir() else target.unlink(missing_ok=True)
    return Place(shim)


@pytest.fixture
def answerer(place: Place) -> Iterator[Answerer]:
    answerer = Answerer(place.directory / "s")
    yield answerer
    answerer.stop()


# ---- straight through ----


@pytest.mark.parametrize(
    "argv",
    [
        [],
        ["features"],
        ["--root", "/r", "--log", "/nowhere/l", "--log-format", "json", "state", "x"],
        ["--root", "create", "state", "x"],
        ["delete", "--force", "create"],
        ["kill", "run", "9"],
        ["exec", "-t", "x", "sh", "-c", "run"],
        ["start", "restore"],
    ],
    ids=" ".join,
)
def test_other_commands_go_straight_through(place: Place, argv: list[str]) -> None:
    """No daemon is there, and the bundle in the working directory has our variables."""
    done = place.run(*argv)
    assert done.returncode == 7
    assert place.handed_over() == (argv or [""])
    assert done.stderr == ""


@pytest.mark.parametrize(
    "env",
    [
        [],
        ["PATH=/bin", "NVIDIA_VISIBLE_DEVICES=all"],
        ["X=ALIYUN_COM_GPU_MEM_DEV=15"],
        ["X=NVIDIA_GPU_MEMORY_LIMIT=4096"],
        ["ALIYUN_COM_GPU"],
        ["X=\\u0041LIYUN_COM_GPU_MEM_DEV=1"],
    ],
    ids=str,
)
def test_bundles_without_variables_go_straight_through(place: Place, env: list[str]) -> None:
    place.config(env, annotations={"ALIYUN_COM_GPU_MEM_IDX": "0"})
    before = (place.bundle / "config.json").read_bytes()
    assert place.run("create", "--bundle", str(place.bundle), "x").returncode == 7
    assert place.handed_over() == ["create", "--bundle", str(place.bundle), "x"]
    assert (place.bundle / "config.json").read_bytes() == before


def test_nvidias_memory_limit_asks_too(place: Place, answerer: Answerer) -> None:
    """Whether it makes a slice is the daemon's configuration."""
    place.config(["PATH=/bin", "NVIDIA_GPU_MEMORY_LIMIT=4096"])
    assert place.run("create", "--bundle", str(place.bundle), "x").returncode == 7
    assert [asked["op"] for asked in answerer.asked] == ["prepare"]


def test_no_bundle_is_for_the_runtime_to_say(place: Place) -> None:
    assert place.run("create", "-b", "/nowhere", "x").returncode == 7


# ---- requests to the daemon ----


@pytest.mark.parametrize(
    "argv",
    [
        ["create", "--bundle", "B", "x"],
        ["create", "--bundle=B", "x"],
        ["create", "-b", "B", "x"],
        ["create", "-bB", "x"],
        ["create", "-b=B", "x"],
        ["run", "-dbB", "x"],
        ["run", "-db", "B", "x"],
        ["create", "-f", "config.json", "-bB", "x"],
        ["create", "--config=B/config.json", "-bB", "x"],
        ["-debug", "create", "-bB", "x"],
        ["create", "-bundle", "B", "x"],
        ["create", "x"],
        ["run", "-d", "--pid-file", "/p", "--bundle", "B", "--", "x"],
        ["restore", "--image-path", "/i", "--bundle", "B", "x"],
        ["--root", "/run/r", "--log", "/nowhere/l", "--log-format=json", "--systemd-cgroup", "create",
         "--bundle", "B", "--pid-file", "/p", "--console-socket", "/c", "x"],
        ["--cgroup-manager", "systemd", "create", "--bundle", "B", "--no-pivot", "x"],
        ["--unknown-option", "value", "create", "--bundle", "B", "x"],
    ],
    ids=" ".join,
)  # fmt: skip
def test_create_asks_and_hands_over(place: Place, answerer: Answerer, argv: list[str]) -> None:
    argv = [arg.replace("B", str(place.bundle)) if "B" in arg else arg for arg in argv]
    assert place.run(*argv).returncode == 7
    assert place.handed_over() == argv
    (asked,) = answerer.asked
    assert (asked["op"], asked["id"], asked["bundle"]) == ("prepare", "x", str(place.bundle))
    assert asked["runtime"] == str(place.shim)


@pytest.mark.parametrize(
    "argv",
    [
        ["create", "-f", "other.json", "x"],
        ["create", "-fother.json", "x"],
        ["run", "-dfother.json", "x"],
        ["create", "--config", "other.json", "x"],
        ["create", "--config=other.json", "--bundle", "B", "x"],
        ["create", "-bB", "-f", "B/other.json", "x"],
    ],
    ids=" ".join,
)
def test_another_file_than_config_json_does_not_start(place: Place, answerer: Answerer, argv: list[str]) -> None:
    """crun takes the name of the file; cgpud would edit config.json, which would not be used."""
    argv = [arg.replace("B", str(place.bundle)) for arg in argv]
    (place.bundle / "config.json").rename(place.bundle / "other.json")
    place.config([])
    done = place.run(*argv)
    assert (done.returncode, place.handed_over(), answerer.asked) == (1, None, [])
    assert "cgpu: a container with cGPU variables or NVIDIA's memory limit cannot start from " in done.stderr
    assert "without -f (--config)" in done.stderr
    (place.bundle / "other.json").write_text(json.dumps({"process": {"env": []}}))
    place.config([VARIABLE])
    assert place.run(*argv).returncode == 7, "the file that counts has no variables"
    assert answerer.asked == []
    place.conf.write_text("ask = always\n")
    assert "(ask = always in runtime.conf) cannot start from" in place.run(*argv).stderr


def test_without_the_nodes_there_is_no_start(place: Place, answerer: Answerer) -> None:
    """This machine has no cgpu_km."""
    answerer.reply = b'{"ok":true,"action":"edited","dir":"0123456789ab"}'
    done = place.run("create", "x")
    assert (done.returncode, place.handed_over()) == (1, None)
    (sentence,) = done.stderr.splitlines()
    assert sentence.startswith(f"cgpu: the device nodes of containers are not mounted on {place.directory}/nodes")
    assert "cgpu_km is not loaded" in sentence


def test_with_the_nodes_it_is_handed_over(place: Place, answerer: Answerer) -> None:
    (place.directory / "nodes/0123456789ab").mkdir(parents=True)
    answerer.reply = b'{"ok":true,"action":"edited","dir":"0123456789ab"}'
    done = place.run("create", "x")
    assert (done.returncode, done.stderr, place.handed_over()) == (7, "", ["create", "x"])


@pytest.mark.parametrize("name", ["", "..//etc", "a/b", "/"])
def test_a_directory_that_is_no_name_is_not_looked_for(place: Place, answerer: Answerer, name: str) -> None:
    answerer.reply = json.dumps({"ok": True, "action": "edited", "dir": name}).encode()
    done = place.run("create", "x")
    assert (done.returncode, place.handed_over()) == ((7, ["create", "x"]) if not name else (1, None))
    assert not (place.directory / "nodes").exists()


@pytest.mark.parametrize("env", [[VARIABLE], ["CGPU_DISABLE=1"], ["ALIYUN_COM_GPU_=", "A=1"]], ids=str)
def test_what_counts_as_a_variable(place: Place, answerer: Answerer, env: list[str]) -> None:
    place.config(env)
    place.run("create", "x")
    assert len(answerer.asked) == 1


def test_escapes_do_not_hide_a_variable(place: Place, answerer: Answerer) -> None:
    text = '{"process":{"env":["\\u0041LIYUN_COM\\u005fGPU_MEM_DEV=15"]}}'
    (place.bundle / "config.json").write_text(text)
    place.run("create", "x")
    assert len(answerer.asked) == 1


def test_ask_always(place: Place, answerer: Answerer) -> None:
    place.config([])
    place.conf.write_text("# comment\nask = always\n")
    place.run("create", "x")
    assert len(answerer.asked) == 1


def test_ask_always_and_nobody_answers(place: Place) -> None:
    place.config([])
    place.conf.write_text("ask = always\nwait_s = 0\n")
    assert "so a container (ask = always in runtime.conf) cannot start" in place.run("create", "x").stderr


@pytest.mark.parametrize(("conf", "asks"), ASKS, ids=lambda value: ascii(value)[:48])
def test_the_file_as_the_daemon_reads_it(place: Place, answerer: Answerer, conf: bytes, asks: bool) -> None:
    place.config([])
    place.conf.write_bytes(conf)
    place.run("create", "x")
    assert len(answerer.asked) == asks
    assert place.handed_over() is not None


# ---- not starting ----


def test_no_daemon_no_start(place: Place) -> None:
    done = place.run("create", "x")
    assert done.returncode == 1
    assert place.handed_over() is None
    assert "cgpud does not answer" in done.stderr
    assert done.stderr.count("\n") == 1


def test_a_refusal_is_one_sentence_here_and_in_the_log(place: Place, answerer: Answerer) -> None:
    sentence = 'GPU 0 has 5 MiB left; held by: "a" \\ é'
    answerer.reply = json.dumps({"ok": False, "error": sentence}, ensure_ascii=False).encode()
    log = place.directory / "log.json"
    log.write_text('{"level":"info","msg":"before","time":"2026-01-01T00:00:00Z"}\n')
    done = place.run("--log", str(log), "--log-format", "json", "create", "x")
    assert done.returncode == 1
    assert done.stderr == f"cgpu: {sentence}\n"
    assert place.handed_over() is None
    records = [json.loads(line) for line in log.read_text().splitlines()]
    assert [record["level"] for record in records] == ["info", "error"]
    assert records[1]["msg"] == f"cgpu: {sentence}"
    assert len(records[1]["time"]) == len("2026-01-01T00:00:00Z")


def test_a_warning_is_said_and_the_container_starts(place: Place, answerer: Answerer) -> None:
    answerer.reply = json.dumps({"ok": True, "action": "edited", "warning": "GPU 0 has no weight left"}).encode()
    log = place.directory / "log.json"
    done = place.run("--log", str(log), "--log-format", "json", "create", "x")
    assert done.stderr == "cgpu: warning: GPU 0 has no weight left\n"
    assert place.handed_over() == ["--log", str(log), "--log-format", "json", "create", "x"]
    (record,) = [json.loads(line) for line in log.read_text().splitlines()]
    assert record["level"] == "warning"
    assert record["msg"] == "cgpu: GPU 0 has no weight left"


def test_the_text_log(place: Place, answerer: Answerer) -> None:
    answerer.reply = b'{"ok":false,"error":"no"}'
    log = place.directory / "log.json"
    place.run("--log", str(log), "create", "x")
    assert 'level=error msg="cgpu: no"' in log.read_text()


@pytest.mark.parametrize(
    "reply",
    [
        b"",
        b"{}",
        b"[]",
        b'"ok"',
        b"true",
        b'{"ok":"true"}',
        b'{"ok":1}',
        b'{"ok":false}',
        b'{"ok":false,"error":""}',
        b'{"error":"x","ok"',
        b'{"x":{"ok":true}}',
        b'{"x":"\\"ok\\":true"}',
        b"\xff\xfe\0\0",
    ],
    ids=repr,
)
def test_strange_answers_do_not_start(place: Place, answerer: Answerer, reply: bytes) -> None:
    answerer.reply = reply
    done = place.run("create", "x")
    assert done.returncode == 1
    assert place.handed_over() is None
    assert done.stderr.startswith("cgpu: ")


def test_a_closed_connection_does_not_start(place: Place, answerer: Answerer) -> None:
    answerer.closes = 1
    assert "does not answer" in place.run("create", "x").stderr
    assert place.handed_over() is None


# ---- waiting for a daemon that is started again ----


def test_a_daemon_that_went_away_over_it_is_asked_again(place: Place, answerer: Answerer) -> None:
    place.conf.write_text("wait_s = 60\n")
    answerer.closes = 3
    assert place.run("create", "x").returncode == 7
    assert len(answerer.asked) == 1


@pytest.mark.parametrize("value", ["", "-1", "61", "ten", "1.5", "1 s"])
def test_a_wait_that_makes_no_sense(place: Place, value: str) -> None:
    place.conf.write_text(f"wait_s = {value}\n")
    done = place.run("create", "x")
    assert done.returncode == 1
    assert "wait_s" in done.stderr
    assert "from 0 to 60" in done.stderr


def test_a_socket_that_may_not_be_asked_is_not_waited_for(place: Place) -> None:
    place.conf.write_text("wait_s = 60\n")
    (place.directory / "s").symlink_to("s")  # a circle: ELOOP
    try:
        done = place.run("create", "x")
    finally:
        (place.directory / "s").unlink()
    assert done.returncode == 1
    assert "Too many levels" in done.stderr  # and the call ended within its 20 s


@pytest.mark.parametrize("argv", [["create"], ["create", "x", "y"], ["create", "--unknown", "v", "x"]], ids=" ".join)
def test_an_unclear_id_does_not_start(place: Place, answerer: Answerer, argv: list[str]) -> None:
    done = place.run(*argv)
    assert done.returncode == 1
    assert "id of the container" in done.stderr
    assert not answerer.asked


def test_a_config_that_cannot_be_opened_does_not_start(place: Place) -> None:
    """The next runtime could read what the shim could not. Without the file it has the better message."""
    path = place.bundle / "config.json"
    path.unlink()
    assert (place.run("create", "x").returncode, place.handed_over()) == (7, ["create", "x"])
    path.symlink_to(path)
    done = place.run("create", "x")
    assert (done.returncode, place.handed_over()) == (1, None)
    assert f"{path} cannot be read: Too many levels of symbolic links" in done.stderr


def test_an_unreadable_config_does_not_start(place: Place) -> None:
    (place.bundle / "config.json").unlink()
    (place.bundle / "config.json").mkdir()
    done = place.run("create", "x")
    assert done.returncode == 1
    assert "cannot be read" in done.stderr


def test_a_configuration_that_cannot_be_read_starts_nothing(place: Place) -> None:
    """It may contain `ask = always`, so no container starts. Running containers can still be deleted."""
    place.config([])
    place.conf.write_text(("#" + "x" * 99 + "\n") * 700)
    done = place.run("create", "x")
    assert (done.returncode, place.handed_over()) == (1, None)
    assert f"{place.conf} cannot be read or is larger than 64 KiB" in done.stderr
    place.conf.unlink()
    place.conf.mkdir()
    assert place.run("create", "x").returncode == 1
    assert place.run("delete", "x").returncode == 7
    place.conf.rmdir()
    place.conf.write_text(f"next = /{'x' * 5000}\n")
    assert "no runtime to execute after cgpu-runtime: cannot find /xxx" in place.run("create", "x").stderr
    place.conf.unlink()
    assert place.run("create", "x").returncode == 7, "without the file the defaults apply"


# ---- which runtime ----


def test_next_by_environment_and_by_file(place: Place) -> None:
    other = place.directory / "other"
    other.write_text("#!/bin/sh\nexit 9\n")
    other.chmod(0o755)
    assert place.run("--version", CGPU_RUNTIME_NEXT=str(other)).returncode == 9
    place.conf.write_text(f'next = "{other}"\n')
    assert place.run("--version").returncode == 9


@pytest.mark.parametrize("option", ["--version", "-v"])
def test_its_own_version_is_on_stderr(place, option):
    """Engines parse the answer of runc, which has stdout for itself."""
    done = place.run(option)
    version = (Path(__file__).parents[3] / "VERSION").read_text().strip()
    assert done.stderr == f"cgpu-runtime {version}, which executes:\n"
    assert place.handed_over() == [option]


@pytest.mark.parametrize("word", ["--help", "-h", "help"])
def test_a_help_names_its_configuration_and_the_runtime_behind_it(place: Place, word: str) -> None:
    """runc's help alone would hide that cgpu-runtime is there, and where it is set up."""
    done = place.run(word)
    assert str(place.conf) in done.stderr and f"over to {place.next}, whose help follows" in done.stderr
    assert (done.returncode, done.stdout, place.handed_over()) == (7, "", [word])
    other = place.directory / "other"
    other.write_text("#!/bin/sh\nexit 9\n")
    other.chmod(0o755)
    done = place.run(word, CGPU_RUNTIME_NEXT=str(other))
    assert done.returncode == 9 and f"over to {other}, whose" in done.stderr
    done = place.run(word, CGPU_RUNTIME_NEXT="/nowhere/runc")
    assert done.returncode == 1 and "over to /nowhere/runc, whose" in done.stderr and "cannot find" in done.stderr
    assert place.run("exec", word).stderr.count("cgpu-runtime") == 0, "a command's own help is the runtime's"


def test_a_runtime_that_calls_us_again(place: Place) -> None:
    """nvidia-container-runtime executes the first of its runtimes, which is cgpu-runtime: once, not for ever."""
    nvidia = place.directory / "nvidia-container-runtime"
    nvidia.write_text(f'#!/bin/sh\nexec {place.shim} "$@"\n')
    nvidia.chmod(0o755)
    done = place.run("--version", CGPU_RUNTIME_NEXT=str(nvidia))
    assert done.returncode == 1
    assert f"{nvidia}, calls cgpu-runtime again: name runc or crun instead" in done.stderr
    # Executed by it for the first time: no loop. A mark in the environment with the pid of another process is ignored.
    done = subprocess.run(
        [str(nvidia), "--version"],
        env={"PATH": f"{place.directory}:/usr/bin:/bin", "CGPU_RUNTIME_PID": "1"},
        check=False,
        timeout=20,
    )
    assert done.returncode == 7
    assert place.handed_over() == ["--version"]


def test_never_itself(place: Place) -> None:
    done = place.run("--version", CGPU_RUNTIME_NEXT=str(place.shim))
    assert done.returncode == 1
    assert "cannot find" in done.stderr
    trap = place.directory / "trap"
    trap.mkdir(exist_ok=True)
    link = trap / "runc"
    link.unlink(missing_ok=True)
    link.symlink_to(place.shim)
    assert place.run("--version", PATH=f"{trap}:{place.directory}").returncode == 7


def test_the_environment_is_handed_over(place: Place) -> None:
    place.next.write_text(f"#!/bin/sh\necho $$ >{place.record}\nexec env >>{place.record}\n")
    given = {f"NAME_{n}": "x" * n for n in range(300)} | {"EMPTY": "", "CGPU_RUNTIME_PID": "1"}
    place.run("state", "x", **given)
    pid, *lines = place.handed_over() or []
    seen = dict(line.split("=", 1) for line in lines)
    assert given | {"CGPU_RUNTIME_PID": pid} == {name: seen.get(name) for name in given}
    assert len([line for line in lines if line.startswith("CGPU_RUNTIME_PID=")]) == 1


# ---- hooks ----


def state(**values: Any) -> str:
    return json.dumps({"ociVersion": "1.0.2", "annotations": {"id": "wrong", "pid": 1}, **values})


def test_bind_sends_a_pidfd(place: Place, answerer: Answerer) -> None:
    pid = os.getpid()
    done = place.run("hook", "bind", "--cookie=77", stdin=state(id="x", status="creating", pid=pid, bundle="/b"))
    assert (done.returncode, done.stderr) == (0, "")
    assert answerer.asked == [{"op": "bind", "id": "x", "cookie": "77"}]
    assert f"Pid:\t{pid}\n" in answerer.fdinfo[0]


def test_bind_refused_is_a_failed_hook(place: Place, answerer: Answerer) -> None:
    answerer.reply = b'{"ok":false,"error":"lease is over"}'
    done = place.run("hook", "bind", "--cookie=7", stdin=state(id="x", pid=os.getpid()))
    assert done.returncode == 1
    assert done.stderr == "cgpu: lease is over\n"


@pytest.mark.parametrize(
    "text",
    ["", "{}", "[]", state(id="x"), state(pid=1), state(id="x", pid="1"), state(id="x", pid=-1), state(id=7, pid=1)],
)
def test_bind_without_state_fails(place: Place, answerer: Answerer, text: str) -> None:
    assert place.run("hook", "bind", "--cookie=7", stdin=text).returncode == 1
    assert not answerer.asked


def test_release(place: Place, answerer: Answerer) -> None:
    assert place.run("hook", "release", "--cookie=7", stdin=state(id="x", pid=0)).returncode == 0
    assert answerer.asked == [{"op": "release", "id": "x", "cookie": "7"}]
    assert answerer.fdinfo == []


def test_release_without_a_daemon_is_only_a_remark(place: Place) -> None:
    done = place.run("hook", "release", "--cookie=7", stdin=state(id="x", pid=0))
    assert done.returncode == 0
    assert "releases the slice when it runs again" in done.stderr


def test_an_unknown_hook(place: Place) -> None:
    assert place.run("hook", "nope", stdin=state(id="x")).returncode == 1


# ---- what another hook has opened ----

NULL = "1:3-3"


def closed_reply(closed: str) -> bytes:
    return json.dumps({"ok": True, "action": "edited", "closed": closed}).encode()


def test_the_nodes_of_the_check_are_made(place: Place, answerer: Answerer) -> None:
    answerer.reply = closed_reply("1:3-3,195:254-255")
    for _ in range(2):
        assert place.run("create", "x").returncode == 7
    made = {path.name: path.stat() for path in (place.directory / "numbers").iterdir()}
    assert {name: (os.major(one.st_rdev), os.minor(one.st_rdev)) for name, one in made.items()} == {
        "1:3": (1, 3), "195:254": (195, 254), "195:255": (195, 255),
    }  # fmt: skip
    assert all(stat.S_ISCHR(one.st_mode) and one.st_mode & 0o77 == 0 for one in made.values())
    assert (place.directory / "numbers").stat().st_mode & 0o777 == 0o700


@pytest.mark.parametrize("closed", ["1", "1:3", "1:3-", "1:4-3", "x", "1:3-3;2:0-0", "1:0-99999", "1:3-3,,2:0-1"])
def test_a_list_that_is_none_does_not_start(place: Place, answerer: Answerer, closed: str) -> None:
    answerer.reply = closed_reply(closed)
    done = place.run("create", "x")
    assert (done.returncode, place.handed_over()) == (1, None)
    assert "list of device numbers" in done.stderr


@pytest.mark.parametrize("hook", [["check"], ["params", "--root=/nowhere/at/all"]])
def test_an_open_number_fails_the_hook(place: Place, answerer: Answerer, tmp_path: Path, hook: list[str]) -> None:
    """Tests run where the kernel permits 1:3."""
    answerer.reply = closed_reply(NULL)
    place.run("create", "x")
    hook = [word.replace("/nowhere/at/all", str(tmp_path)) for word in hook]
    given = state(id="x", status="created", pid=os.getpid(), bundle="/b")
    done = place.run("hook", *hook, f"--closed={NULL}", stdin=given)
    assert done.returncode == 1
    assert done.stderr.startswith("cgpu: the container may open the GPU device 1:3, which config.json does not give")
    assert place.run("hook", *hook, stdin=given).returncode == 0
    assert place.run("hook", *hook, f"--close={NULL}", stdin=given).returncode == 1, "no option is lost"


@pytest.mark.parametrize("other", [None, "file", "number", "link"])
def test_a_check_without_its_node_fails(place: Place, other: str | None) -> None:
    node = place.directory / "numbers/1:3"
    node.parent.mkdir()
    match other:
        case "file":
            node.touch()
        case "number":
            os.mknod(node, 0o600 | stat.S_IFCHR, os.makedev(1, 5))
        case "link":
            node.symlink_to("/dev/null")
    done = place.run("hook", "check", f"--closed={NULL}", stdin=state(id="x", pid=1))
    assert done.returncode == 1
    assert "is missing or another file" in done.stderr


def test_a_late_check_of_a_container_that_has_ended(place: Place) -> None:
    with subprocess.Popen(["true"]) as gone:
        gone.wait()
    done = place.run("hook", "confirm", f"--closed={NULL}", stdin=state(id="x", pid=gone.pid))
    assert done.returncode == 0


@pytest.mark.parametrize("hook", ["bind", "confirm"])
def test_a_container_whose_cgroup_cannot_be_checked(place: Place, answerer: Answerer, hook: str) -> None:
    """Before the start it does not start; after it, it is killed. Its cgroup is this test's, which stays."""
    with subprocess.Popen(["sleep", "60"]) as init:
        given = state(id="x", pid=init.pid)
        done = place.run("hook", hook, "--cookie=7", "--closed=1:3-3", stdin=given)
        assert (done.returncode, answerer.asked) == (1, [])
        if hook == "confirm":
            assert init.wait(10) == -signal.SIGKILL
            assert "the container was killed" in done.stderr
        assert hook == "confirm" or init.poll() is None
        init.kill()


# ---- the driver's parameters ----

PARAMS = "ResmanDebugLevel: 4294967295\nModifyDeviceFiles: 1\nDeviceFileUID: 0\n"
MASKED = "ResmanDebugLevel: 4294967295\nDeviceFileUID: 0\nModifyDeviceFiles: 0\n"


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """The part of a container's root that the hook reads."""
    (tmp_path / "proc/driver/nvidia/gpus").mkdir(parents=True)
    (tmp_path / "proc/driver/nvidia/version").write_text("NVRM\n")
    (tmp_path / "proc/driver/nvidia/params").write_text(PARAMS)
    return tmp_path


SEEN = """
"$0" "$@" || exit 99
cd {root}/proc/driver/nvidia
cat params
echo -- $(ls) -- $(cat version)
(echo x >params) 2>&1
grep -c {root} /proc/self/mountinfo
"""


#: Executes its arguments under a seccomp filter that knows no mount_setattr (442), as Linux before 5.12.
LINUX_5_10 = """
import ctypes, os, struct, sys
code = ((0x20, 0, 0, 0), (0x15, 0, 1, 442), (0x06, 0, 0, 0x00050000 | 38), (0x06, 0, 0, 0x7FFF0000))
text = b"".join(struct.pack("HBBI", *one) for one in code)
program = ctypes.create_string_buffer(text)
head = ctypes.create_string_buffer(struct.pack("HxxxxxxP", len(code), ctypes.addressof(program)))
libc = ctypes.CDLL(None, use_errno=True)
assert libc.prctl(38, 1, 0, 0, 0) == 0 and libc.prctl(22, 2, head, 0, 0) == 0
os.execvp(sys.argv[1], sys.argv[1:])
"""


def params_hook(
    place: Place, root: Path, word: str, before: str = "", under: tuple[str, ...] = (), **more: Any
) -> list[str]:
    """The hook in a mount namespace of its own: prints the file, its neighbours, a write, the number of mounts."""
    file = root / "proc/driver/nvidia/params"
    text = file.read_text()
    done = subprocess.run(
        [*under, "unshare", "--mount", "sh", "-c", before + SEEN.format(root=root), place.shim, "hook", "params", word],
        input=state(id="x", pid=1, **more), capture_output=True, text=True, timeout=20, check=True,
        env=os.environ | {"ASAN_OPTIONS": "detect_leaks=0"},
    )  # fmt: skip
    assert file.read_text() == text, "the driver's own stays"
    return (done.stdout + done.stderr).splitlines()


@pytest.mark.parametrize("relative", [False, True])
def test_params_are_masked(place: Place, root: Path, relative: bool) -> None:
    word = f"--root={root.name if relative else root}"
    *text, names, write, mounts = params_hook(place, root, word, bundle=str(root.parent if relative else "/b"))
    assert "\n".join([*text, ""]) == MASKED
    assert names == "-- gpus params version -- NVRM", "the rest of the directory is as it was"
    assert "Read-only" in write
    assert mounts == "1", "nothing else is left behind"


def test_params_are_masked_on_linux_5_10(place: Place, root: Path) -> None:
    """The first kernel that the module is for."""
    under = (sys.executable, "-c", LINUX_5_10)
    *text, _, write, mounts = params_hook(place, root, f"--root={root}", under=under, bundle="/b")
    assert "\n".join([*text, ""]) == MASKED
    assert "Read-only" in write
    assert mounts == "1"


def test_params_without_the_line(place: Place, root: Path) -> None:
    """The library reads a missing ModifyDeviceFiles as 1."""
    (root / "proc/driver/nvidia/params").write_text("EnableMSI: 1")
    first, second, *_ = params_hook(place, root, f"--root={root}", bundle="/b")
    assert (first, second) == ("EnableMSI: 1", "ModifyDeviceFiles: 0")


def test_params_that_the_toolkit_has_masked_stay(place: Place, root: Path) -> None:
    (root / "masked").write_text(MASKED)
    before = f"mount --bind {root}/masked {root}/proc/driver/nvidia/params;"
    *text, _, mounts = params_hook(place, root, f"--root={root}", before, bundle="/b")
    assert "ModifyDeviceFiles: 0" in text
    assert mounts == "1"


@pytest.mark.parametrize("gone", ["proc/driver/nvidia/params", "proc/driver/nvidia", "proc"])
def test_without_a_driver_there_is_nothing_to_mask(place: Place, root: Path, gone: str) -> None:
    path = root / gone
    shutil.rmtree(path) if path.is_dir() else path.unlink()
    done = place.run("hook", "params", f"--root={root}", stdin=state(id="x", pid=1, bundle="/b"))
    assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.parametrize("link", ["proc", "proc/driver", "proc/driver/nvidia/params"])
def test_a_link_of_the_image_is_not_followed(place: Place, root: Path, link: str) -> None:
    path = root / link
    path.rename(root / "other")
    path.symlink_to(root / "other")
    done = place.run("hook", "params", f"--root={root}", stdin=state(id="x", pid=1, bundle="/b"))
    assert done.returncode == 1
    assert "cannot be masked" in done.stderr


@pytest.mark.parametrize("text", ["", "{}", state(id="x", bundle=7)])
def test_params_without_state_fails(place: Place, root: Path, text: str) -> None:
    assert place.run("hook", "params", f"--root={root}", stdin=text).returncode == 1


def test_as_nvidias_cli(place: Place) -> None:
    place.conf.write_text(f"nvidia-container-cli = {place.next}\n")
    place.run("--load-kmods", "configure", "--device=all", "configure", "/rootfs", name="/x/nvidia-container-cli-cgpu")
    assert place.handed_over() == [
        "--load-kmods", "configure", "--no-devbind", "--no-cgroups", "--device=all", "configure", "/rootfs",
    ]  # fmt: skip


@pytest.mark.skipif(os.geteuid() != 0, reason="only root makes a mount namespace")
@pytest.mark.parametrize("words", [("--root={}",), ("--root", "{}"), ("-r", "{}")], ids=str)
@pytest.mark.parametrize("run", ["run", "var/run"])
def test_nvidias_cli_finds_no_socket_of_a_service(
    place: Place, tmp_path: Path, words: tuple[str, ...], run: str
) -> None:
    """It would mount each of them into the container, after config.json was edited."""
    sockets = [tmp_path / run / f"nvidia-{name}/socket" for name in ("fabricmanager", "persistenced")]
    for path in sockets:
        path.parent.mkdir(parents=True)
        path.touch()
    place.next.write_text(
        f"#!/bin/sh\nls {' '.join(map(str, sockets))} > {place.record}\n"
        f'echo "$CUDA_MPS_PIPE_DIRECTORY" >> {place.record}\ntest ! -e "$CUDA_MPS_PIPE_DIRECTORY"\n'
    )
    place.conf.write_text(f"nvidia-container-cli = {place.next}\n")
    argv = [word.format(tmp_path) for word in words]
    done = place.run(*argv, "configure", "/rootfs", name="/x/nvidia-container-cli-cgpu", CUDA_MPS_PIPE_DIRECTORY="/tmp")
    assert done.returncode == 0, done.stderr
    assert place.handed_over() == ["/run/cgpu/no-pipes"]
    assert all(path.exists() for path in sockets), "the host keeps them"
    place.run(*argv, "list", name="/x/nvidia-container-cli-cgpu")
    assert place.handed_over() == [*map(str, sockets), ""]


# ---- junk ----


@settings(max_examples=20, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.one_of(st.binary(max_size=200), st.text('{}[]:,"\\u0041=x \n', max_size=80).map(str.encode)))
def test_no_junk_crashes_the_scanner(place: Place, junk: bytes) -> None:
    """The sanitizers are on: a crash would be neither 7 (handed over) nor 1 (not started)."""
    (place.bundle / "config.json").write_bytes(junk)
    assert place.run("create", "x").returncode in (1, 7)
    text = junk.decode("latin-1").replace("\0", " ")
    assert place.run("hook", "bind", stdin=text).returncode == 1
