# SPDX-License-Identifier: MIT
"""Engines, each by its own command line: podman, containerd's ctr, runc and crun by hand, and Docker.

An engine starts, execs into, pauses, kills and removes; a test reads everything else from the kernel's tree. The
container is a directory with static programs, so no image store is needed.
"""

from __future__ import annotations

import contextlib
import errno
import functools
import io
import itertools
import json
import os
import shutil
import signal
import subprocess
import tarfile
import tempfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

import engines_used
import image_tar
from docker_box import (
    BUILD,
    DEV,
    MIB,
    PROC,
    RUNTIME,
    STATE,
    answers,
    ask,
    call,
    daemon_pid,
    must,
    number,
    rootfs_tar,
    total_mib,
    until,
)
from docker_box import run_line as docker_run

CONF = engines_used.CONF
TOML = Path("/etc/cgpu/cgpu.toml")
ROOT = Path("/run/engines")
ROOTFS = ROOT / "rootfs"
SLEEP = ("/bin/sleep", "100000")
HOLD = ("/bin/simload", "--hold", "--alloc-mib", "64", "--seconds", "0")
GOING = (errno.ENOENT, errno.EIO)  # errno of a removed procfs file: before it was opened, and after
_names = itertools.count(1)

Done = subprocess.CompletedProcess[str]


def fresh(stem: str) -> str:
    return f"{stem}-{next(_names)}"


def variables(gib: object, **more: object) -> dict[str, str]:
    """The documented variables, for GPU 0 unless `more` overrides it."""
    found = {
        "ALIYUN_COM_GPU_MEM_DEV": DEV,
        "ALIYUN_COM_GPU_MEM_CONTAINER": gib,
        "ALIYUN_COM_GPU_VISIBLE_DEVICES": 0,
    }
    return {name: str(value) for name, value in (found | more).items()}


@functools.cache
def make_rootfs() -> None:
    """Once a boot: programs, and the mount points of a container that is made without an engine's help."""
    if not RUNTIME.exists():
        must("make", "-s", "-C", str(BUILD.parent / "cgpud/runtime"), f"OUT={RUNTIME.parent}")
    ROOTFS.mkdir(parents=True, exist_ok=True)
    with tarfile.open(fileobj=io.BytesIO(rootfs_tar())) as tar:
        for member in tar:
            if member.isfile():  # one that some container still runs cannot be written
                (ROOTFS / member.name).unlink(missing_ok=True)
        tar.extractall(ROOTFS)
    for name in ("etc", "run", "root", "var"):
        (ROOTFS / name).mkdir(exist_ok=True)


@contextlib.contextmanager
def hands_over_to(runtime: str, wait_s: int = 10) -> Iterator[None]:
    """runtime.conf of cgpu-runtime."""
    CONF.parent.mkdir(parents=True, exist_ok=True)
    CONF.write_text(f"next = {runtime}\nwait_s = {wait_s}\n")
    try:
        yield
    finally:
        CONF.unlink()


@contextlib.contextmanager
def configured(text: str) -> Iterator[None]:
    """Writes cgpu.toml and waits until the running daemon has read it."""
    TOML.parent.mkdir(parents=True, exist_ok=True)
    TOML.write_text(text)
    _reload_daemon()
    try:
        yield
    finally:
        TOML.unlink()
        _reload_daemon()


def _reload_daemon() -> None:
    """The next request is answered after the signal was: one thread takes both in turn."""
    pid = daemon_pid()
    assert pid is not None
    os.kill(pid, signal.SIGHUP)
    ask(op="status")
    ask(op="status")


def directories() -> dict[str, Path]:
    """The kernel's containers on GPU 0, by id. One may go between its name and its id: it is gone, then."""
    found = {}
    for path in (PROC / "0").glob("*/id"):
        try:
            found[path.read_text().strip()] = path.parent
        except OSError as err:
            if err.errno not in GOING:
                raise
    return found


def nothing_is_left() -> bool:
    return not directories() and not list(STATE.glob("*.json"))


NODES = ("cat /proc/self/mountinfo", "echo /dev/nvidia*")
ALIAS = "rm -f /tmp/alias; mknod /tmp/alias c 195 255 && echo made; ( : </tmp/alias ) && echo opened"


def types_of_nodes(mounts: str, nodes: str) -> set[str]:
    types = {}
    for line in mounts.splitlines():
        left, _, right = line.partition(" - ")
        types[left.split()[4]] = right.split()[0]
    return {types.get(path, "made") for path in nodes.split()}


def opened(said: str, errors: str) -> bool:
    """By the output of ALIAS."""
    assert "made" in said, errors
    return "opened" in said


@dataclass
class Running:
    """A container that was started."""

    engine: Engine
    id: str
    bundle: Path | None = None

    @property
    def dir(self) -> Path:
        return directories()[self.id]

    def is_sliced(self) -> bool:
        return self.id in directories()

    def memsize(self) -> int:
        return number(self.dir / "memsize")

    def run(self, *command: str) -> Done:
        return self.engine.run_in(self.id, *command)

    def sh(self, script: str) -> Done:
        return self.run("/bin/sh", "-c", script)

    def total_bytes(self) -> int:
        """The GPU's memory as a client inside sees it."""
        done = self.run("/bin/simload", "--info", "--json")
        assert done.returncode == 0, done.stderr
        return int(json.loads(done.stdout.splitlines()[-1])["total_bytes"])

    def answers(self, *scripts: str) -> list[tuple[str, str]]:
        return answers(self.sh, scripts)

    def nodes_come_from(self) -> set[str]:
        """Types of the file systems from which /dev/nvidia* are mounted: cgpu for ours, devtmpfs for the host's own,
        and "made" for a node that is not mounted. The device numbers do not differ.
        """
        return types_of_nodes(*(out for out, _ in self.answers(*NODES)))

    def reaches_the_driver(self) -> bool:
        """Whether a node made by root inside with the driver's own number opens, as a leftover rule would allow."""
        return opened(*self.answers(ALIAS)[0])

    def check_slice(self, gib: int) -> None:
        """Its nodes are ours, the driver's number does not open, and limit and total are so many of 15 parts."""
        (mounts, _), (nodes, _), alias, (info, errors) = self.answers(*NODES, ALIAS, "/bin/simload --info --json")
        assert types_of_nodes(mounts, nodes) == {"cgpu"}
        assert not opened(*alias)
        assert info, errors
        total = int(json.loads(info.splitlines()[-1])["total_bytes"])
        assert self.memsize() == total == total_mib() * gib // 15 * MIB

    def holds_memory(self) -> bool:
        stat = dict(line.split() for line in (self.dir / "stat").read_text().splitlines())
        return int(stat["used_bytes"]) >= 64 * MIB


class Engine(Protocol):
    """The operations that the tests need."""

    name: str

    def start(self, env: Mapping[str, str], command: tuple[str, ...], *options: str) -> tuple[Done, Running]: ...

    def run_in(self, container: str, *command: str) -> Done: ...

    def pause(self, container: str) -> None: ...

    def resume(self, container: str) -> None: ...

    def kill(self, container: str) -> None: ...

    def remove(self, container: str) -> None: ...


# ---- runc and crun by hand ----


@functools.cache
def spec_of_runc() -> str:
    """config.json as `runc spec` writes it: one program for all bundles."""
    with tempfile.TemporaryDirectory() as where:
        must("runc", "spec", "--bundle", where)
        return Path(where, "config.json").read_text()


def set_field(spec: dict[str, Any], path: str, value: object) -> None:
    *way, last = path.split(".")
    for word in way:
        spec = spec.setdefault(word, {})
    spec[last] = value


@dataclass
class ByHand:
    """A bundle and the verbs of the runtime interface. Options are PATH=JSON of config.json."""

    name: str
    runtime: str = str(RUNTIME)
    options: tuple[str, ...] = ()  # before the verb

    def bundle(self, env: Mapping[str, str], command: tuple[str, ...], *options: str) -> Path:
        engines_used.note()
        where = ROOT / fresh(f"{self.name}-bundle")
        where.mkdir(parents=True)
        spec = json.loads(spec_of_runc())
        spec["root"] = {"path": str(ROOTFS), "readonly": False}
        spec["process"] |= {"terminal": False, "args": list(command)}
        spec["process"]["env"] = ["PATH=/bin", *(f"{name}={value}" for name, value in env.items())]
        for names in spec["process"]["capabilities"].values():
            names.append("CAP_MKNOD")
        spec["linux"]["namespaces"] = [one for one in spec["linux"]["namespaces"] if one["type"] != "network"]
        for option in options:
            path, _, value = option.partition("=")
            set_field(spec, path, json.loads(value))
        (where / "config.json").write_text(json.dumps(spec))
        return where

    def start(self, env: Mapping[str, str], command: tuple[str, ...], *options: str) -> tuple[Done, Running]:
        return self.start_bundle(self.bundle(env, command, *options))

    def start_bundle(self, where: Path) -> tuple[Done, Running]:
        container = fresh(self.name)
        log = (where / "out").open("w+")
        done = subprocess.run(
            [self.runtime, *self.options, "create", "--bundle", str(where), container],
            stdin=subprocess.DEVNULL,
            stdout=log,  # the container's own from here on: no pipe that would have to end
            stderr=log,
            text=True,
            check=False,
        )
        if done.returncode == 0:
            must(self.runtime, *self.options, "start", container)
        log.seek(0)
        done.stderr = log.read()
        return done, Running(self, container, where)

    def run_in(self, container: str, *command: str) -> Done:
        return call(self.runtime, *self.options, "exec", container, *command)

    def pause(self, container: str) -> None:
        must(self.runtime, *self.options, "pause", container)

    def resume(self, container: str) -> None:
        must(self.runtime, *self.options, "resume", container)

    def kill(self, container: str) -> None:
        must(self.runtime, *self.options, "kill", container, "KILL")

    def remove(self, container: str) -> None:
        call(self.runtime, *self.options, "delete", "--force", container)


# ---- podman ----


@dataclass
class Podman:
    """Without its image store; runtime.conf names the next runtime."""

    name: str = "podman"
    words: list[str] = field(
        default_factory=lambda: [
            *("podman", "--runtime", str(RUNTIME), "--cgroup-manager=cgroupfs", "--events-backend=none"),
            *("--root", str(ROOT / "podman"), "--runroot", str(ROOT / "podman-run"), "--storage-driver=vfs"),
        ]
    )

    def start(self, env: Mapping[str, str], command: tuple[str, ...], *options: str) -> tuple[Done, Running]:
        engines_used.note("podman")
        pairs = [word for name, value in env.items() for word in ("--env", f"{name}={value}")]
        done = call(
            *self.words, "run", "--detach", "--network=none", "--log-driver=none", "--cap-add=MKNOD", *pairs, *options,
            "--rootfs", str(ROOTFS), *command,
        )  # fmt: skip
        return done, Running(self, done.stdout.strip())

    def run_in(self, container: str, *command: str) -> Done:
        return call(*self.words, "exec", container, *command)

    def pause(self, container: str) -> None:
        must(*self.words, "pause", container)

    def resume(self, container: str) -> None:
        must(*self.words, "unpause", container)

    def kill(self, container: str) -> None:
        must(*self.words, "kill", container)

    def remove(self, container: str) -> None:
        if container:
            call(*self.words, "rm", "--force", "--time=0", container)


# ---- Docker ----


@dataclass
class Docker:
    """The daemon that the command line finds (DOCKER_HOST)."""

    name: str = "docker"

    def start(self, env: Mapping[str, str], command: tuple[str, ...], *options: str) -> tuple[Done, Running]:
        pairs = [word for name, value in env.items() for word in ("-e", f"{name}={value}")]
        done = call(*docker_run("-d", *pairs, *options, command=command))
        return done, Running(self, done.stdout.strip())

    def run_in(self, container: str, *command: str) -> Done:
        return call("docker", "exec", container, *command)

    def pause(self, container: str) -> None:
        must("docker", "pause", container)

    def resume(self, container: str) -> None:
        must("docker", "unpause", container)

    def kill(self, container: str) -> None:
        must("docker", "kill", container)

    def remove(self, container: str) -> None:
        if container:
            call("docker", "rm", "-f", container)


# ---- containerd ----

IMAGE = "localhost/box:1"
CONTAINERD = ROOT / "containerd"
ADDRESS = CONTAINERD / "sock"
CONTAINERD_CONFIG = f"""version = 2
root = "/var/lib/containerd"
state = "{CONTAINERD}/state"
[grpc]
address = "{ADDRESS}"
[plugins."io.containerd.grpc.v1.cri"]
sandbox_image = "{IMAGE}"
enable_cdi = true
[plugins."io.containerd.grpc.v1.cri".containerd.runtimes.runc]
runtime_type = "io.containerd.runc.v2"
[plugins."io.containerd.grpc.v1.cri".containerd.runtimes.nvidia]
runtime_type = "io.containerd.runc.v2"
[plugins."io.containerd.grpc.v1.cri".containerd.runtimes.nvidia.options]
BinaryName = "{RUNTIME}"
"""


def image_archive() -> bytes:
    """The rootfs as an image of containerd's."""
    return image_tar.saved(rootfs_tar(), [IMAGE], SLEEP)


class Containerd:
    """The daemon, with the runtime of GPU pods as in docs/user/daemon.md."""

    def __enter__(self) -> Containerd:
        CONTAINERD.mkdir(parents=True, exist_ok=True)
        (CONTAINERD / "config.toml").write_text(CONTAINERD_CONFIG)
        self.start()
        return self

    def start(self) -> None:
        with (CONTAINERD / "log").open("ab") as log:
            self._daemon = subprocess.Popen(
                ["containerd", "--config", str(CONTAINERD / "config.toml")],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
            )
        until(lambda: call("ctr", "--address", str(ADDRESS), "version").returncode == 0, "containerd answers", 120)

    def kill(self) -> None:
        self._daemon.kill()
        self._daemon.wait(60)

    def __exit__(self, *why: object) -> None:
        self._daemon.terminate()
        self._daemon.wait(60)


@dataclass
class Ctr:
    """As nerdctl and ctr do: containerd's own API, the shim and the runtime under it."""

    name: str = "ctr"
    words: list[str] = field(default_factory=lambda: ["ctr", "--address", str(ADDRESS), "--namespace", "cgpu-test"])

    def start(self, env: Mapping[str, str], command: tuple[str, ...], *options: str) -> tuple[Done, Running]:
        engines_used.note("containerd")
        container = fresh(self.name)
        pairs = [word for name, value in env.items() for word in ("--env", f"{name}={value}")]
        done = call(
            *self.words, "run", "--detach", "--null-io", "--runc-binary", str(RUNTIME), *pairs, *options,
            "--rootfs", str(ROOTFS), container, *command,
        )  # fmt: skip
        return done, Running(self, container)

    def run_in(self, container: str, *command: str) -> Done:
        return call(*self.words, "task", "exec", "--exec-id", fresh("exec"), container, *command)

    def pause(self, container: str) -> None:
        must(*self.words, "task", "pause", container)

    def resume(self, container: str) -> None:
        must(*self.words, "task", "resume", container)

    def kill(self, container: str) -> None:
        must(*self.words, "task", "kill", "--signal", "SIGKILL", container)

    def remove(self, container: str) -> None:
        call(*self.words, "task", "delete", "--force", container)
        call(*self.words, "container", "delete", container)


@contextlib.contextmanager
def started(
    engine: Engine, env: Mapping[str, str], command: tuple[str, ...] = SLEEP, *options: str
) -> Iterator[Running]:
    done, one = engine.start(env, command, *options)
    try:
        assert done.returncode == 0, done.stderr
        yield one
    finally:
        engine.remove(one.id)
        if one.bundle:
            shutil.rmtree(one.bundle)
