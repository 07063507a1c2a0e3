# SPDX-License-Identifier: MIT
"""Helpers of the Docker tests: the engine, the image, containers, the tree and the daemon.

Runs in the guest, where cgpu_km and dockerd are up. No helper takes a number to compare from cgpu itself.
"""

from __future__ import annotations

import contextlib
import functools
import json
import os
import select
import signal
import socket
import struct
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import engines_used
import image_tar

REPO = Path(__file__).resolve().parents[4]
BUILD = REPO / "build"
RUNTIME = BUILD / "bin/cgpu-runtime"
IMAGE = "cgpu-test"
PROC = Path("/proc/cgpu_km")
SOCKET = Path("/run/cgpu/cgpud.sock")
STATE = Path("/run/cgpu/state")
MIB = 1 << 20
DEV = 15
REFUSED = 125  # docker run: the container never started
OVER_LIMIT = 3  # simload: --alloc-mib was refused
APPLETS = ("sh", "cat", "ls", "sleep", "mknod", "true", "echo", "rm", "stat", "kill")


def call(*words: str, timeout: float = 240) -> subprocess.CompletedProcess[str]:
    return subprocess.run(words, capture_output=True, text=True, timeout=timeout, check=False)


def must(*words: str) -> str:
    done = call(*words)
    assert done.returncode == 0, f"{' '.join(words)}: {done.returncode}: {done.stderr or done.stdout}"
    return done.stdout


def pause_s(look_s: float) -> float:
    """After a look that took so long: looks that start a program have a third of the time at most."""
    return max(0.1, min(2 * look_s, 1))


def until(check: Callable[[], object], what: str, seconds: float = 60) -> None:
    """Looks each tenth of a second, or less often by pause_s()."""
    end = time.monotonic() + seconds
    while True:
        began = time.monotonic()
        if check():
            return
        now = time.monotonic()
        assert now < end, f"not within {seconds:.0f} s: {what}"
        time.sleep(pause_s(now - began))


def number(path: Path) -> int:
    return int(path.read_text())


# ---- the engine ----


def ensure_runtime() -> None:
    """`nvidia` is cgpu-runtime itself: NVIDIA's toolkit is not in Debian's archive. SIGHUP reloads runtimes."""
    if not RUNTIME.exists():
        must("make", "-s", "-C", str(REPO / "cgpud/runtime"), f"OUT={RUNTIME.parent}")
    info = json.loads(must("docker", "info", "--format", "{{json .Runtimes}}"))
    if info.get("nvidia", {}).get("path") == str(RUNTIME):
        return
    settings(runtimes={"nvidia": {"path": str(RUNTIME)}})
    until(lambda: "nvidia" in must("docker", "info", "--format", "{{json .Runtimes}}"), "dockerd knows the runtime")


def settings(**changed: object) -> None:
    """Changes dockerd's settings and makes dockerd read them again."""
    pid, argv = dockerd()
    path = Path(argv[argv.index("--config-file") + 1])
    path.write_text(json.dumps(json.loads(path.read_text()) | changed))
    os.kill(pid, signal.SIGHUP)


def dockerd() -> tuple[int, list[str]]:
    """Its pid and command line."""
    pid = int(must("pidof", "dockerd").split()[0])
    return pid, Path(f"/proc/{pid}/cmdline").read_text().rstrip("\0").split("\0")


def restart_dockerd() -> None:
    """Killed, and started again as it was. It does not start while /proc has the pid of its pid file."""
    pid, argv = dockerd()
    os.kill(pid, signal.SIGKILL)
    gone = Path(f"/proc/{pid}")  # pidof does not list a zombie; where it is our child, call() reaps it
    until(lambda: call("pidof", "dockerd").returncode and not gone.exists(), "dockerd is gone")
    with (Path(os.environ["CGPU_RUN"]) / "dockerd-again.log").open("ab") as log:
        subprocess.Popen(argv, stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True)
    until(lambda: call("docker", "version").returncode == 0, "dockerd answers", 120)


def find_simload() -> Path:
    found = [path for path in (BUILD / "bin/simload", BUILD / "client/simload") if path.exists()]
    assert found, "simload is not built"
    return found[0]


def rootfs_tar() -> bytes:
    """Static busybox and simload: the only programs in a container here."""
    programs = {"bin/busybox": Path("/bin/busybox"), "bin/simload": find_simload()}
    return image_tar.rootfs(programs, APPLETS, ("tmp", "proc", "dev", "sys"))


def make_image() -> None:
    """Nothing comes from a registry."""
    _import_image(os.environ.get("DOCKER_HOST", ""))


@functools.cache
def _import_image(_engine: str) -> None:
    """Once into each."""
    done = subprocess.run(["docker", "import", "-", IMAGE], input=rootfs_tar(), capture_output=True, check=False)
    assert done.returncode == 0, done.stderr


def variables(gib: object, dev: object = DEV, **more: object) -> list[str]:
    """The documented ones; `weight=2` is ALIYUN_COM_GPU_SCHD_WEIGHT and so on."""
    names = {
        "weight": "ALIYUN_COM_GPU_SCHD_WEIGHT",
        "highprio": "ALIYUN_COM_GPU_HIGH_PRIO",
        "devices": "ALIYUN_COM_GPU_VISIBLE_DEVICES",
    }
    pairs = {"ALIYUN_COM_GPU_MEM_DEV": dev, "ALIYUN_COM_GPU_MEM_CONTAINER": gib}
    pairs |= {names.get(name, name): value for name, value in more.items()}
    return [word for name, value in pairs.items() for word in ("-e", f"{name}={value}")]


def run_line(*options: str, command: tuple[str, ...], image: str = IMAGE) -> tuple[str, ...]:
    engines_used.note("docker")
    return ("docker", "run", "--runtime=nvidia", "--network=none", *options, image, *command)


def run_once(*options: str, command: tuple[str, ...]) -> subprocess.CompletedProcess[str]:
    return call(*run_line("--rm", *options, command=command))


MARK = "end-of-answer"


def answers(
    shell: Callable[[str], subprocess.CompletedProcess[str]], scripts: tuple[str, ...]
) -> list[tuple[str, str]]:
    """Standard output and error of each script, all by one shell in a container: an engine takes long to start one."""
    done = shell("\n".join(f"( {one}\n)\necho {MARK}; echo {MARK} >&2" for one in scripts))
    said = [text.split(f"{MARK}\n")[:-1] for text in (done.stdout, done.stderr)]
    assert len(said[0]) == len(said[1]) == len(scripts), done
    return list(zip(*said, strict=True))


@dataclass(frozen=True)
class Box:
    """A container that docker started."""

    id: str

    @property
    def dir(self) -> Path:
        return PROC / "0" / self.id[:12]

    def memsize(self) -> int:
        return number(self.dir / "memsize")

    def run(self, *command: str) -> subprocess.CompletedProcess[str]:
        return call("docker", "exec", self.id, *command)

    def answers(self, *scripts: str) -> list[tuple[str, str]]:
        return answers(lambda script: self.run("sh", "-c", script), scripts)

    def info(self) -> dict[str, Any]:
        """The GPU as a client inside sees it."""
        done = self.run("simload", "--info", "--json")
        assert done.returncode == 0, done.stderr
        answer: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
        return answer

    def kill(self) -> None:
        must("docker", "kill", self.id)

    def gone(self) -> bool:
        return not self.dir.exists()


HOLD = ("simload", "--hold", "--alloc-mib", "64", "--seconds", "0")
SLEEP = ("sleep", "100000")


@contextlib.contextmanager
def box(*options: str, command: tuple[str, ...] = SLEEP, image: str = IMAGE) -> Iterator[Box]:
    started = Box(must(*run_line("-d", *options, command=command, image=image)).strip())
    try:
        yield started
    finally:
        call("docker", "rm", "-f", started.id)
        until(started.gone, f"{started.dir} is gone")


# ---- the whole GPU ----


@functools.cache
def total_mib() -> int:
    """As the driver reports it on the host, without cgpu."""
    done = call(str(find_simload()), "--info", "--json")
    assert done.returncode == 0, done.stderr
    return int(json.loads(done.stdout.splitlines()[-1])["total_bytes"]) // MIB


# ---- the daemon ----


def ask(**request: object) -> dict[str, Any]:
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as sock:
        sock.settimeout(30)
        sock.connect(str(SOCKET))
        body = json.dumps(request).encode()
        sock.sendall(struct.pack(">I", len(body)) + body)
        (size,) = struct.unpack(">I", sock.recv(4, socket.MSG_WAITALL))
        reply: dict[str, Any] = json.loads(sock.recv(size, socket.MSG_WAITALL))
        return reply


def cookies() -> dict[str, int]:
    """By id, from the daemon's records, which only root may read; `status` does not show cookies."""
    records = [json.loads(path.read_text()) for path in STATE.glob("*.json")]
    return {record["id"]: record["cookie"] for record in records}


def daemon_pid() -> int | None:
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as sock:
        try:
            sock.connect(str(SOCKET))
        except OSError:
            return None
        # The peer's credentials are those of the process that called listen().
        return int(struct.unpack("3i", sock.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12))[0])


def stop_daemon(how: int = signal.SIGTERM) -> None:
    pid = daemon_pid()
    assert pid is not None, "cgpud does not run"
    process = os.pidfd_open(pid)
    try:
        os.kill(pid, how)
        # It closes its socket first and its watches last.
        until(lambda: bool(select.select([process], [], [], 0)[0]), "cgpud stops")
    finally:
        os.close(process)


def start_daemon(*before: str) -> None:
    """In the background, outliving the test; with the simulated NVML if it is built. The command `before` execs it."""
    log = (Path(os.environ.get("TMPDIR", "/tmp")) / "cgpud-restarted.log").open("ab")
    library = BUILD / "client"
    environ = {**os.environ, "PYTHONPATH": str(REPO)}
    if (library / "libnvidia-ml.so.1").exists():
        environ["LD_LIBRARY_PATH"] = str(library)
    subprocess.Popen(
        [*before, sys.executable, "-m", "cgpud"],
        stdin=subprocess.DEVNULL,
        stdout=log,
        stderr=log,
        env=environ,
        cwd="/",
        start_new_session=True,
    )
    until(lambda: daemon_pid() is not None, "cgpud answers")


def ensure_daemon() -> None:
    """For tests that follow one that failed while the daemon was stopped."""
    if daemon_pid() is None:
        start_daemon()


def known_ids() -> set[str]:
    return {container["id"] for container in ask(op="status")["containers"]}
