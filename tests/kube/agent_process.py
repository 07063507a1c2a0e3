# SPDX-License-Identifier: MIT
"""A node whose agent is a process of its own, with its default intervals."""

from __future__ import annotations

import asyncio
import os
import signal
import socket
import sys
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path

from fake_api import kubeconfig
from fakes import eventually
from node_world import NODE, World

START_S = 40  # of a process, on a machine that does other things


class Process(World):
    """`cgpu-kube node` as it runs: the process that serves the kubelet's sockets, and its agent."""

    options: Mapping[str, str] = {}
    environment: Mapping[str, str] = {}
    keeper: asyncio.subprocess.Process | None = None
    program = "from cgpu_kube.main import main; main()"

    async def start_agent(self) -> None:
        options = {
            "node-name": NODE,
            "kubeconfig": kubeconfig(self.directory, self.api.url),
            "kubelet-dir": self.kubelet.directory,
            "cgpud": self.node.socket,
            "socket": self.socket,
            "keeper": self.keeper_socket,
            "state-dir": self.directory / "state",
            "cdi-dir": self.directory / "cdi",
            **self.options,
        }
        words = [word for name, value in options.items() for word in (f"--{name}", str(value))]
        self.process = await asyncio.create_subprocess_exec(
            sys.executable,
            "-c",
            self.program,
            "node",
            *words,
            env={**os.environ, **self.environment},
        )

    @property
    def keeper_socket(self) -> Path:
        return self.directory / "keeper.sock"

    async def start_keeper(self) -> None:
        """`cgpu-kube keep`, up to its report to systemd that it has started."""
        manager = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_NONBLOCK)
        address = self.directory / "keeper-notify"
        address.unlink(missing_ok=True)
        with manager:
            manager.bind(str(address))
            self.keeper = await asyncio.create_subprocess_exec(
                *(sys.executable, "-c", self.program, "keep", "--kubelet-dir", str(self.kubelet.directory)),
                *("--keeper", str(self.keeper_socket), "--state-dir", str(self.directory / "state")),
                env={**os.environ, "NOTIFY_SOCKET": str(address)},
            )
            async with asyncio.timeout(START_S):
                said = await asyncio.get_running_loop().sock_recv(manager, 4096)
        assert said.startswith(b"READY=1")

    async def stop_keeper(self, how: int = signal.SIGTERM) -> None:
        if self.keeper is not None:
            self.keeper.send_signal(how)
            assert await self.keeper.wait() == (0 if how == signal.SIGTERM else -how)
        self.keeper = None

    async def stop_agent(self) -> None:
        self.process.terminate()
        assert await self.process.wait() == 0, "it ends in order"

    async def kill(self) -> None:
        """Both processes, as the kernel does where memory.oom.group of the container's cgroup is set."""
        pids = self.pids()
        assert all(pids)
        for pid in pids:
            os.kill(pid, signal.SIGKILL)
        await self.process.wait()
        await eventually(lambda: not any(Path(f"/proc/{pid}").exists() for pid in pids), "both have ended")

    def kill_agent(self) -> int:
        """Its pid."""
        found = self.agent_pid()
        os.kill(found, signal.SIGKILL)
        return found

    async def next_agent(self, *before: int) -> int:
        """The pid of one that is none of these, once it runs."""
        await eventually(lambda: self.agent_pid() not in (0, *before), "the next agent", 2 * START_S)
        return self.agent_pid()

    async def serves(self) -> None:
        await eventually(lambda: self.is_there() and self.agent_pid(), "the node offers its GPUs", START_S)

    def agent_pid(self) -> int:
        """0: it does not run."""
        found = Path(f"/proc/{self.process.pid}/task/{self.process.pid}/children").read_text().split()
        return int(found[0]) if found else 0

    def pids(self) -> tuple[int, ...]:
        return self.process.pid, self.agent_pid()

    def pss_mib(self) -> int:
        """Of both, with what they share counted once."""
        found = 0
        for pid in self.pids():
            rows = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()
            found += next(int(row.split()[1]) for row in rows if row.startswith("Pss:"))
        return found >> 10

    def cpu_s(self) -> float:
        found = 0
        for task in (task for pid in self.pids() for task in Path(f"/proc/{pid}/task").iterdir()):
            try:
                found += int((task / "schedstat").read_text().split()[0])
            except OSError:
                pass
        return found / 1e9

    async def idle(self, seconds: float) -> float:
        """Share of one CPU."""
        before = self.cpu_s()
        await asyncio.sleep(seconds)
        return (self.cpu_s() - before) / seconds


@asynccontextmanager
async def standing(directory: Path, *, keeper: bool = False, **more: object) -> AsyncIterator[Process]:
    """A node whose agent serves. @keeper: with the unit cgpu-kube-keep. @more: attributes of the Process."""
    world = Process(directory)
    for name, value in more.items():
        setattr(world, name, value)
    world.node.config = replace(world.node.config, kube_wait_s=60)
    if keeper:
        await world.start_keeper()
    try:
        async with world.running():
            await world.serves()
            yield world
    finally:
        await world.stop_keeper()
