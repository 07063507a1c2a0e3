# SPDX-License-Identifier: MIT
"""A small node: a daemon over a temporary directory, the in-memory kernel, containers that are `sleep`s."""

from __future__ import annotations

import asyncio
import json
import os
import socket
import struct
import subprocess
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from fakelink import FakeLink

from cgpu_common.cards import NvmlGpu, NvmlView
from cgpu_common.config import Config
from cgpu_common.gpus import NvmlAbsent
from cgpu_common.server import Server
from cgpud.dependencies import Dependencies, NvmlSource
from cgpud.granted import Decider
from cgpud.kube import KubeClient
from cgpud.loop import Daemon
from cgpud.mps_control import Control
from cgpud.store import Store
from cgpud.watch import Facts

DATA = Path(__file__).parent / "data"
FAKE_CGPUD = Path(__file__).with_name("fakelink.py")  # the whole program on the in-memory kernel
#: tests/kube: the name of a warning and words of its reason; has it been logged?
Warned = Callable[[str, str], bool]
VARIABLES = ("ALIYUN_COM_GPU_MEM_DEV=15", "ALIYUN_COM_GPU_MEM_CONTAINER=6")
SHIM_TIMEOUT_S = 6  # CGPU_TIMEOUT_S of cgpu-runtime in these tests, in which a daemon may be slow; the product's is 60


def free_port() -> int:
    """Of 127.0.0.1; another process may take it before its user does."""
    with socket.create_server(("127.0.0.1", 0)) as one:
        port: int = one.getsockname()[1]
        return port


class FakeFacts(Facts):
    """The real /proc, but cgroups are plain directories: `groups` maps a pid to its cgroup, `slices` to the directory
    of the slice whose nodes it sees."""

    def __init__(self, cgroups: Path) -> None:
        super().__init__(cgroups=cgroups)
        self.groups: dict[int, str] = {}
        self.slices: dict[int, str] = {}

    def cgroup_path(self, pid: int) -> str | None:
        return self.groups.get(pid, "/shared")

    def mounts(self, pid: int) -> str:
        name = self.slices.get(pid)
        node = f"\n90 80 0:50 /{name}/nvidia0 /dev/nvidia0 rw,nosuid - cgpu cgpu rw\n" if name else ""
        return super().mounts(pid) + node

    def devices(self) -> str:
        return "Character devices:\n195 nvidia\n511 nvidia-uvm\n226 drm\n509 cgpu\n"


def no_nvml() -> tuple[NvmlGpu, ...]:
    raise NvmlAbsent("none here")


@dataclass
class FakeNvml:
    """Returns the result of a function at once, in place of a child process."""

    ask: Callable[[], tuple[NvmlGpu, ...]]

    async def query(self, wait_s: float) -> NvmlView:
        try:
            return NvmlView(self.ask())
        except NvmlAbsent as error:
            return NvmlView(absent=str(error))

    def close(self) -> None:
        pass


@dataclass
class Node:
    directory: Path
    link: FakeLink = field(default_factory=FakeLink)
    config: Config = field(default_factory=lambda: Config(kube_wait_s=0))
    now: float = 1000.0
    nvml: Callable[[], tuple[NvmlGpu, ...]] | NvmlSource = no_nvml
    sensors: Callable[[], tuple[NvmlGpu, ...]] = no_nvml
    decider: Decider = field(default_factory=lambda: KubeClient(Path("/nowhere/kube.sock")))

    def __post_init__(self) -> None:
        (self.directory / "cgroup").mkdir(exist_ok=True)
        (self.directory / "cgroup/cgroup.controllers").touch()
        self.facts = FakeFacts(self.directory / "cgroup")
        self.mps: Control = Control(self.directory / "mps")
        self.socket = self.directory / "d.sock"
        self.daemon: Daemon
        self._callers = ThreadPoolExecutor(32)  # not the pool of the daemon
        self._processes: list[subprocess.Popen[bytes]] = []

    @asynccontextmanager
    async def running(self) -> AsyncIterator[Daemon]:
        """One life of the daemon; enter again for a restart."""
        deps = Dependencies(
            self.link,
            Store(self.directory / "state"),
            self.facts,
            nvml=FakeNvml(self.nvml) if callable(self.nvml) else self.nvml,
            sensors=FakeNvml(self.sensors),
            decider=self.decider,
            mps=self.mps,
            draining=(self.directory / "drain").exists,
            clock=lambda: self.now,
        )
        self.daemon = Daemon(self.config, deps)
        await self.daemon.start()
        server = Server(
            self.socket, self.daemon.handle, self.daemon.undelivered, lambda pid: self.facts.cgroup_path(pid)
        )
        deps.restore_socket = server.restore_socket
        server.start()
        background = asyncio.create_task(self.daemon.run())
        try:
            yield self.daemon
        finally:
            await server.stop()
            background.cancel()
            await asyncio.gather(background, return_exceptions=True)
            await self.daemon.stop()

    def cleanup(self) -> None:
        for process in self._processes:
            process.kill()
            process.wait()
        self._callers.shutdown(wait=False)

    # ---- containers ----

    def bundle(self, name: str, env: Sequence[str] = VARIABLES) -> Path:
        directory = self.directory / "bundles" / name
        directory.mkdir(parents=True, exist_ok=True)
        spec = json.loads((DATA / "docker.json").read_text())
        spec["process"]["env"] = ["PATH=/bin", *env]
        (directory / "config.json").write_text(json.dumps(spec))
        return directory

    def spec(self, container_id: str) -> dict[str, Any]:
        """What its config.json has now."""
        found: dict[str, Any] = json.loads((self.directory / "bundles" / container_id / "config.json").read_text())
        return found

    @contextmanager
    def edited(self, container_id: str, env: Sequence[str] = VARIABLES) -> Iterator[dict[str, Any]]:
        """A new bundle, whose config.json is what the block makes of the spec."""
        directory = self.bundle(container_id, env)
        spec = self.spec(container_id)
        yield spec
        (directory / "config.json").write_text(json.dumps(spec))

    def process(self, group: str | None = None) -> subprocess.Popen[bytes]:
        process = subprocess.Popen(["sleep", "1000"])
        self._processes.append(process)
        if group is not None:
            self.facts.groups[process.pid] = group
            self.populate(group, True)
        return process

    def populate(self, group: str, populated: bool) -> None:
        directory = self.directory / "cgroup" / group.lstrip("/")
        directory.mkdir(parents=True, exist_ok=True)
        (directory / "cgroup.events").write_text(f"populated {int(populated)}\nfrozen 0\n")

    # ---- requests ----

    def _ask(self, request: dict[str, Any], fds: Sequence[int]) -> dict[str, Any]:
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as sock:
            sock.settimeout(10 + self.config.kube_wait_s)
            sock.connect(str(self.socket))
            body = json.dumps(request).encode()
            socket.send_fds(sock, [struct.pack(">I", len(body)) + body], list(fds))
            return read_reply(sock)

    async def ask(self, *, fds: Sequence[int] = (), **request: Any) -> dict[str, Any]:
        loop = asyncio.get_running_loop()
        return await loop.run_in_executor(self._callers, self._ask, request, fds)

    async def prepare(self, container_id: str, env: Sequence[str] = VARIABLES) -> dict[str, Any]:
        self.bundle(container_id, env)
        return await self.again(container_id)

    async def again(self, container_id: str, **more: Any) -> dict[str, Any]:
        """prepare() of the bundle as it is."""
        directory = self.directory / "bundles" / container_id
        return await self.ask(op="prepare", id=container_id, bundle=str(directory), **more)

    def cookie(self, container_id: str) -> str:
        """Read from config.json, as the hook gets it."""
        return str(self.spec(container_id)["hooks"]["poststop"][-1]["args"][-1].removeprefix("--cookie="))

    async def bind(self, container_id: str, pid: int) -> dict[str, Any]:
        pidfd = os.pidfd_open(pid)
        try:
            return await self.ask(op="bind", id=container_id, cookie=self.cookie(container_id), fds=[pidfd])
        finally:
            os.close(pidfd)

    async def start(self, container_id: str, group: str | None = None) -> subprocess.Popen[bytes]:
        assert (await self.prepare(container_id))["ok"]
        process = self.process(group)
        assert (await self.bind(container_id, process.pid)) == {"ok": True}
        return process


def read_reply(sock: socket.socket) -> dict[str, Any]:
    head = sock.recv(4, socket.MSG_WAITALL)
    (size,) = struct.unpack(">I", head)
    reply: dict[str, Any] = json.loads(sock.recv(size, socket.MSG_WAITALL))
    return reply


async def eventually(check: Any, what: str, seconds: float = 5.0) -> None:
    for _ in range(int(seconds / 0.02)):
        if check():
            return
        await asyncio.sleep(0.02)
    raise AssertionError(f"never: {what}")
