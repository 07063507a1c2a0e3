# SPDX-License-Identifier: MIT
"""A node whose agent is a process of its own, with its default intervals."""

from __future__ import annotations

import asyncio
import os
import sys
from collections.abc import Mapping
from pathlib import Path

from node_world import NODE, World

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
