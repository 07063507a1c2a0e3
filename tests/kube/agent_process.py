# SPDX-License-Identifier: MIT
"""A node whose agent is a process of its own, with its default intervals."""

from __future__ import annotations

import asyncio
import os
import signal
import socket
import sys
from collections.abc import Mapping
from pathlib import Path

from node_world import NODE, World

START_S = 40  # of a process, on a machine that does other things

KUBECONFIG = """
current-context: c
contexts: [{{name: c, context: {{cluster: k, user: u}}}}]
clusters: [{{name: k, cluster: {{server: "{url}"}}}}]
users: [{{name: u, user: {{}}}}]
"""


class Process(World):
    """`cgpu-kube node` as it runs: the process that serves the kubelet's sockets, and its agent."""

    options: Mapping[str, str] = {}
    environment: Mapping[str, str] = {}
    keeper: asyncio.subprocess.Process | None = None
    program = "from cgpu_kube.main import main; main()"

    async def start_agent(self) -> None:
        config = self.directory / "kubeconfig"
        config.write_text(KUBECONFIG.format(url=self.api.url))
        options = {
            "node-name": NODE,
            "kubeconfig": config,
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
